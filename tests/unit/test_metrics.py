"""What a node's metrics say of a line's counters."""

from __future__ import annotations

from penstock.server.metrics import Metrics


def test_only_what_is_left_out_counts_as_skipped() -> None:
    """Samples that were split or cut are delivered, and cut tokens are no samples."""
    metrics = Metrics("0")
    counters = {
        "drawn": 9,
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "overlong_dropped": 3,
        "overlong_split": 4,
        "truncated_tokens": 500,
    }

    metrics.counted("code", 0, counters, {})
    metrics.counted("code", 0, {**counters, "overlong_split": 6}, {})

    assert samples(metrics, "penstock_samples_skipped", "reason") == {
        "filtered:too short": 2,
        "quarantined:draw": 1,
        "overlong_dropped": 3,
    }
    assert samples(metrics, "penstock_batcher_counts", "count") == {
        "overlong_split": 6,
        "truncated_tokens": 500,
    }


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


def samples(metrics: Metrics, name: str, label: str) -> dict[str, float]:
    """Return a counter's values by a label."""
    [family] = [one for one in metrics.registry.collect() if one.name == name]
    return {one.labels[label]: one.value for one in family.samples if one.name.endswith("_total")}
