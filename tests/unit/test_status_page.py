"""The status page's parts: rates and bottleneck, history, who may look, what a page may load."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from penstock.server.access.caller import Caller
from penstock.server.processes.page import STAGES as STAGES_OF_WORKERS
from penstock.server.web.history import EVERY_S, FRESH_S, KEPT_S, History
from penstock.server.web.routes import FILE, SharedText, is_local, policy
from penstock.server.web.strip import STAGES, strip

COUNTS = ("items", "read_bytes", "tokens", "padding_tokens", "sent_batches", "sent_bytes")


def status(at_s: float = 0.0, **stages_s: float) -> dict[str, Any]:
    """Return a status of a node with two workers, a job and a reader."""
    counts = {**dict.fromkeys(COUNTS, 0), "sent_tokens": 0, "stages_s": stages_s}
    reader = {"id": 1, "group": "run", "rank": 0, "batches_per_step": 4, "waiting_s": 0.0}
    reader |= {"lag_batches": 3, "stalled_s": 0.0, "waits_for": None}
    job = {"name": "code", "counts": counts, "produced": 0, "ready_batches": 0, "ready_bytes": 0}
    job |= {"groups": [reader], "cursors": {"run": 0}}
    return {"uptime_s": at_s, "bound_bytes": 100, "workers": [{}, {}], "jobs": [job]}


def later(waited_s: float, stage: str | None = None, **stages_s: float) -> dict[str, Any]:
    """Return a status ten seconds later, in which the reader has waited so long."""
    found = status(10.0, **stages_s)
    [reader] = found["jobs"][0]["groups"]
    reader["waiting_s"] = waited_s
    if stage is not None:
        reader["waits_for"] = {"lane": 0, "offset": 0, "stage": stage, "item": ""}
    return found


def test_rates_are_what_was_counted_in_between() -> None:
    """Per second; a group's commits count in batches."""
    now = later(1.0, process=15.0, fetch=1.0, collate=0.5, plan=0.5)
    job = now["jobs"][0]
    job["counts"] |= {"items": 50, "tokens": 900, "padding_tokens": 100, "sent_tokens": 400}
    job |= {"produced": 20, "cursors": {"run": 5}}

    flow = strip(status(), now)["code"]

    assert flow["source"]["items_per_s"] == 5
    assert flow["process"]["workers"] == 1.5
    assert flow["pack"] == {"batches_per_s": 2, "fill": 0.9, "workers": 0.1}
    assert flow["sent"]["tokens_per_s"] == 40
    assert flow["committed"] == {"batches_per_s": 2, "lag_batches": 3}
    assert flow["wait_share"] == 0.1


@pytest.mark.parametrize(
    ("now", "part"),
    [
        (later(0.1, process=19.0), "committed"),
        (later(5.0, process=12.0, fetch=4.0), "process"),
        (later(5.0, process=2.0, fetch=14.0), "source"),
        (later(5.0, collate=9.0, plan=8.0, process=1.0), "pack"),
        (later(5.0, "retrying", process=0.1), "source"),
        (later(5.0, "process"), "process"),
    ],
)
def test_what_holds_readers_up_is_marked(now: dict[str, Any], part: str) -> None:
    """Training, where they need not wait; else what workers do most, or what is waited for."""
    assert strip(status(), now)["code"]["bottleneck"] == part


def test_the_network_is_marked_where_batches_lie_ready() -> None:
    """Readers wait, workers idle, and batches are there."""
    now = later(5.0)
    now["jobs"][0]["ready_batches"] = 7

    assert strip(status(), now)["code"]["bottleneck"] == "sent"


def test_nothing_is_marked_where_nobody_reads() -> None:
    now = later(0.0)
    now["jobs"][0]["groups"] = []

    flow = strip(status(), now)["code"]

    assert flow["bottleneck"] is None
    assert "Nobody" in flow["why"]


def test_every_stage_of_a_worker_belongs_to_a_part() -> None:
    assert set(STAGES) == set(STAGES_OF_WORKERS) - {"idle"}


def test_a_quarter_of_an_hour_is_kept_and_no_more() -> None:
    """However long the node runs."""
    found = status()

    def next_status() -> dict[str, Any]:
        found["uptime_s"] += EVERY_S
        return copy.deepcopy(found)

    history = History(next_status)
    for _ in range(KEPT_S // EVERY_S + 50):
        history.sample()

    assert len(history.samples()["samples"]) == KEPT_S // EVERY_S == 180


def test_viewers_share_a_status() -> None:
    """Ten of them within half a second cost what one costs."""
    asked: list[float] = []
    now = [100.0]

    def ask() -> dict[str, Any]:
        asked.append(now[0])
        return status(now[0])

    history = History(ask, clock=lambda: now[0])
    for _ in range(10):
        history.now()
        now[0] += FRESH_S / 10

    assert len(asked) == 1
    now[0] += FRESH_S
    history.now()
    assert len(asked) == 2


def test_the_past_is_one_object_until_there_is_more_of_it() -> None:
    """Its text is made once for all who look."""
    statuses = iter(status(float(n)) for n in range(3))
    history = History(lambda: next(statuses))
    history.sample()
    history.sample()

    first = history.samples()

    assert history.samples() is first
    history.sample()
    assert len(history.samples()["samples"]) == len(first["samples"]) + 1


def test_viewers_who_may_see_the_same_share_a_text_and_others_do_not() -> None:
    """Until there is something new to show."""
    made: list[tuple[str, int]] = []

    def seen(caller: Caller, of: dict[str, int]) -> dict[str, int]:
        made.append((caller.name, of["n"]))
        return {caller.name: of["n"]}

    shared = SharedText(seen)
    one, two = Caller(name="one"), Caller(name="two")
    before, now = {"n": 1}, {"n": 2}

    texts = [shared.text(before, one), shared.text(before, two), shared.text(before, one)]
    texts += [shared.text(now, two), shared.text(now, one), shared.text(now, one)]

    assert texts == ['{"one":1}', '{"two":1}', '{"one":1}', '{"two":2}', '{"one":2}', '{"one":2}']
    assert made == [("one", 1), ("two", 1), ("two", 2), ("one", 2)]


@pytest.mark.parametrize(
    ("remote", "host", "may_look"),
    [
        ("127.0.0.1", "127.0.0.1:9090", True),
        ("127.0.0.1", "localhost:9090", True),
        ("::1", "[::1]:9090", True),
        ("::1", "[::1]", True),
        ("127.0.0.1", "evil.example:9090", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "", False),
        ("10.0.0.7", "127.0.0.1:9090", False),
        ("10.0.0.7", "10.0.0.7:9090", False),
        (None, "localhost", False),
    ],
)
def test_only_this_machine_may_look(remote: str | None, host: str, may_look: bool) -> None:
    """And only by a name of the loopback: another may be somebody's who has it lead here."""
    assert is_local(remote, host) is may_look


def test_the_page_is_one_small_file_that_loads_nothing() -> None:
    """Below 60 KB, with one script and one style, which its policy names by their hashes."""
    page = FILE.read_text()

    assert len(page.encode()) < 60_000
    assert (page.count("<script>"), page.count("<style>")) == (1, 1)
    assert re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?(?!data:)[\w/.:]", page) == ["href = U"]
    assert "https:" not in page
    assert " style=" not in page
    assert "innerHTML" not in page
    said = policy(page)
    assert said.count("'sha256-") == 2
    assert "default-src 'none'" in said
    assert "unsafe" not in said
