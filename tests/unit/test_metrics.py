"""What a node's metrics say of a line's counters."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.common.metric_table import JOB, METRICS, help_of
from penstock.server.job.job import Job
from penstock.server.metrics.node_metrics import FAILURES, MAX_REASONS, STORE_ERRORS, Metrics
from penstock.server.roles import BestFitPackingBatcher, PackedCollator
from penstock.server.sources import ItemsSource
from penstock.wire.errors import ERRORS


def test_only_what_is_left_out_counts_as_skipped() -> None:
    """Samples that were split or cut are delivered, and cut tokens are no samples."""
    metrics = Metrics("0")
    counters = {
        "drawn": 9,
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "dropped:overlong": 3,
        "batcher:overlong_split": 4,
        "batcher:never_dropped": 500,
    }

    metrics.counted("code", 0, counters, {})
    metrics.counted("code", 0, {**counters, "batcher:overlong_split": 6}, {})

    assert samples(metrics, "penstock_samples_skipped", "reason") == {
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "dropped:overlong": 3,
    }
    assert samples(metrics, "penstock_batcher_counts", "count") == {
        "overlong_split": 6,
        "never_dropped": 500,
    }


def test_what_making_a_batch_finds_is_counted_by_reason() -> None:
    """Samples that verdicts left out with those that were skipped, sizes and retries by name."""
    metrics = Metrics("0")

    for _ in range(2):
        metrics.left_out("code", {"quarantined:exit": 2, "size:larger": 1, "size:larger_tokens": 9})
    metrics.retried("code", {"unavailable": 3})
    metrics.retried("code", {"unavailable": 1, "second_try": 1})

    assert samples(metrics, "penstock_samples_skipped", "reason") == {"quarantined:exit": 4}
    found = samples(metrics, "penstock_batcher_counts", "count")
    assert found == {"size:larger": 2, "size:larger_tokens": 18}
    found = samples(metrics, "penstock_retries", "reason")
    assert found == {"unavailable": 4, "second_try": 1}


def test_what_was_counted_before_this_node_is_not_counted_again() -> None:
    """A lane goes on from a snapshot: here its history, and what a replay repeats, are not new."""
    metrics = Metrics("0")
    reason = "filtered:too short"

    metrics.counted("code", 0, {reason: 103}, {reason: 100})
    metrics.counted("code", 0, {reason: 105}, {reason: 100})
    metrics.counted("code", 0, {reason: 104}, {reason: 101})  # its worker died
    metrics.counted("code", 0, {reason: 106}, {reason: 101})

    assert samples(metrics, "penstock_samples_skipped", "reason") == {reason: 6}


def test_counts_that_make_no_sense_harm_nobody() -> None:
    """A user's collator may call anything padding; its node goes on."""
    metrics = Metrics("0")

    metrics.produced("code", 100, {"tokens": 5, "padding_tokens": -5})
    metrics.produced("code", 100, {"tokens": -5, "padding_tokens": 5})

    [family] = [one for one in metrics.registry.collect() if one.name == "penstock_tokens_packed"]
    assert [one.value for one in family.samples if one.labels] in ([], [0])


def test_reasons_are_bounded_for_a_job_and_not_for_each_of_its_lanes() -> None:
    """48 lanes whose processor makes a reason of each item are 33 series, and count all items."""
    metrics = Metrics("0")

    for lane in range(48):
        metrics.counted("code", lane, {f"filtered:{lane} {n}": 1 for n in range(32)}, {})

    found = samples(metrics, "penstock_samples_skipped", "reason")
    assert len(found) == MAX_REASONS + 1
    assert sum(found.values()) == 48 * 32
    assert found["filtered:other reasons"] == 48 * 32 - MAX_REASONS


def test_series_that_alerts_watch_are_there_from_the_start() -> None:
    """`increase()` does not see the first event of a counter that appears with it."""
    metrics = Metrics("0")
    batcher = BestFitPackingBatcher(max_tokens=8)
    source = ItemsSource(items=[{"input_ids": [1]}])

    metrics.begin({"code": Job(source=source, batcher=batcher, collator=PackedCollator())})

    text = generate_latest(metrics.registry).decode()
    series = {
        one.name + str(sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    job = "('penstock_job', 'code')"
    for name in (
        f"penstock_batches_produced_total[{job}]",
        f"penstock_impure_batches_total[{job}]",
        f"penstock_verified_batches_total[{job}]",
        f"penstock_stream_restarts_total[{job}]",
        f"penstock_consumer_wait_seconds_count[{job}]",
        f"penstock_samples_skipped_total[{job}, ('reason', 'dropped:overlong')]",
        f"penstock_samples_skipped_total[{job}, ('reason', 'quarantined:draw')]",
        f"penstock_batcher_counts_total[('count', 'truncated_tokens'), {job}]",
        "penstock_worker_restarts_total[]",
        *(f"penstock_decode_errors_total[{job}, ('reason', '{code}')]" for code in FAILURES),
        *(f"penstock_store_errors_total[('reason', '{code}')]" for code in STORE_ERRORS),
    ):
        assert series[name] == 0, name


def test_no_label_is_one_of_prometheus_own() -> None:
    """A scrape adds `job` and `instance`, and renames ours of that name to `exported_job`."""
    metrics = Metrics("0")
    metrics.begin({"code": Job(source=ItemsSource(items=[1]), batch_size=1)})

    labels = {
        name
        for family in metrics.registry.collect()
        for one in family.samples
        for name in one.labels
    }

    assert not labels & {"job", "instance"}


def test_failures_are_named_by_codes_that_there_are() -> None:
    """A series of a code that no error has would be 0 for ever."""
    assert set(FAILURES) | set(STORE_ERRORS) <= set(ERRORS)


def samples(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """Return a counter's values by a label."""
    [family] = [one for one in metrics.registry.collect() if one.name == name]
    return {one.labels[label]: one.value for one in family.samples if one.name.endswith("_total")}


def scraped() -> str:
    """Return what a scrape says of a node with a job and a reader."""
    metrics = Metrics("0")
    metrics.begin({"code": Job(ItemsSource([{"x": 1}]), batch_size=1, lanes=1)})
    stream = {"group": "g", "rank": 0, "next": 4, "waiting_s": 1.5, "lag_batches": 2}
    stream |= {"stalled_s": 0.5}
    counted = ("ready_batches", "ready_bytes", "recomputed", "unread", "cache_hits", "refused")
    job = {
        "name": "code",
        "groups": [stream],
        **dict.fromkeys((*counted, "wanted_nodes", "needed_workers", "units", "units_asked"), 1),
    }
    status = {
        "workers": [{"ready": True}],
        "lent_bytes": 5,
        "bound_bytes": 9,
        "started_at": 1.0,
        "start_s": 0.5,
        "memory": {"server": 1},
        "store": {"away_s": 0.0, "snapshots_waiting": 0, "shared": False},
        "jobs": [job],
    }
    metrics.watch(lambda: status)
    metrics.watch_certificate(lambda: 1.0)
    metrics.watch_callers(lambda: ["a"], lambda: {"a": (1, 2)})
    return generate_latest(metrics.registry).decode()


def test_every_metric_has_one_name_and_one_text() -> None:
    """That of the table: none is missing there, and none is there alone."""
    text = scraped()
    found = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\w+) (.*)$", text, re.MULTILINE))

    assert set(found) == {name for name in METRICS if not name.startswith("penstock_loader_")}
    for name, text in found.items():
        assert text == help_of(name)
        kind = METRICS[name].kind
        assert kinds[name] == {"info": "gauge"}.get(kind, kind), name
        assert text[0].isupper() or text[0].isdigit(), text
        assert text.endswith("."), text
        assert "](" not in text


def test_alerts_name_metrics_that_there_are() -> None:
    """In deploy/prometheus/, and in docs/operate.md beside its table."""
    root = Path(__file__).parents[2]
    pages = [*(root / "deploy" / "prometheus").glob("*.yaml"), root / "docs" / "operate.md"]
    named = {name for page in pages for name in re.findall(r"\bpenstock_\w+", page.read_text())}
    named -= {JOB, "penstock_loader_"}
    known = {name + end for name in METRICS for end in ("", "_sum", "_count", "_bucket")}

    assert len(named) > 20
    assert sorted(named - known) == []


def test_what_is_lent_is_counted_among_what_is_sent() -> None:
    """By batches and by bytes: what is lent now is a gauge that is 0 again a moment later."""
    metrics = Metrics("0")

    metrics.sent("code", [100, 200, 300])
    metrics.lent("code", [200, 300])
    metrics.lent("code", [])

    text = generate_latest(metrics.registry).decode()
    for name, value in (
        ("batches_sent", 3),
        ("sent_bytes", 600),
        ("batches_lent", 2),
        ("batches_lent_bytes", 500),
    ):
        assert f'penstock_{name}_total{{penstock_job="code"}} {value}' in text
