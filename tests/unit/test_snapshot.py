"""Snapshots: canonical bytes; whatever is damaged or foreign is refused by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    IdentityProcessor,
    KnapsackPackingBatcher,
    MapDistributor,
    ProcessContext,
    RawItemProcessor,
    Sample,
    WindowPackingBatcher,
)
from penstock.server.roles.batchers.packer import PackingBatcher
from penstock.server.roles.samples import SampleSizes
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadSnapshot
from resume.plans import make_job

LOG = bytes(range(32))


class Processed(IdentityProcessor):
    """Processes, so that a verdict removes a draw."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = False


@pytest.fixture(scope="module")
def real() -> tuple[SamplePlanner, bytes]:
    """A planner in the middle of a packer's work, and its snapshot."""
    job = make_job("best_fit_split", "full", "choosy", 3)
    planner = SamplePlanner(job, 1, Items(job))
    for _ in range(7):
        planner.next()
    return planner, planner.snapshot()


def test_decode_gives_back_what_encode_took() -> None:
    """Offset and state survive, whatever characters they hold."""
    state = {"b": [1, {"ü": None}], "a": "\u2028 ✓", "f": 0.1}

    data = snapshot.encode(LOG, 2, 77, state)

    assert snapshot.decode(data, LOG, 2) == (77, state)


def test_the_order_of_keys_decides_no_byte() -> None:
    """Two nodes that filled a dict in another order write the same snapshot."""
    pairs = [("drawn", 3), ("filtered:x", 1), ("quarantined:draw", 2)]

    written = {
        snapshot.encode(LOG, 0, 1, {"counters": dict(order)})
        for order in itertools.permutations(pairs)
    }

    assert len(written) == 1


def test_every_flipped_bit_is_noticed(real: tuple[SamplePlanner, bytes]) -> None:
    """One bit anywhere, in the head or in the text, makes it a bad snapshot."""
    planner, data = real
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSnapshot):
            snapshot.decode(bytes(damaged), planner.job.log_id, 1)


def test_every_truncation_is_noticed(real: tuple[SamplePlanner, bytes]) -> None:
    """A snapshot cut anywhere is bad."""
    planner, data = real
    for length in range(len(data)):
        with pytest.raises(BadSnapshot):
            planner.restore(data[:length])


def test_the_snapshot_of_another_lane_or_log_is_refused(real: tuple[SamplePlanner, bytes]) -> None:
    """It says whose it is, and for whom it was given."""
    planner, data = real
    job = planner.job

    with pytest.raises(BadSnapshot, match=r"lane 1 of log .* given for lane 2"):
        SamplePlanner(job, 2, Items(job)).restore(data)
    other = make_job("best_fit_split", "full", "sized", 3)
    with pytest.raises(BadSnapshot, match=f"given for lane 1 of log {other.log_id.hex()[:12]}"):
        SamplePlanner(other, 1, Items(other)).restore(data)


def test_a_state_of_another_form_is_refused(real: tuple[SamplePlanner, bytes]) -> None:
    """A checksum that fits does not make a state: what is missing or of another type is named."""
    planner, data = real
    job = planner.job
    _, state = snapshot.decode(data, job.log_id, 1)
    for key in state:
        for wrong in ("absent", None, 7, "text", [[1]], {"draws": 1}):
            changed = {k: v for k, v in state.items() if k != key}
            if wrong != "absent":
                changed[key] = wrong
            forged = snapshot.encode(job.log_id, 1, 7, changed)
            fresh = SamplePlanner(job, 1, Items(job))
            with contextlib.suppress(BadSnapshot):
                fresh.restore(forged)
                # What is accepted must be a state: its own snapshot is canonical again.
                assert json.loads(fresh.snapshot()[10:])["offset"] == 7


def test_a_foreign_format_is_refused() -> None:
    """Another version, another magic: each named."""
    data = snapshot.encode(LOG, 0, 1, {})

    with pytest.raises(BadSnapshot, match=r"format 3; this version reads 2"):
        snapshot.decode(data[:4] + b"\3\0" + data[6:], LOG, 0)
    with pytest.raises(BadSnapshot, match="starts with b'SQLi'"):
        snapshot.decode(b"SQLi" + data[4:], LOG, 0)


def test_a_snapshot_says_up_to_which_verdict_it_was_planned() -> None:
    """The highest number that has removed a draw: the same for whoever plans it, and whenever."""
    items = [{"input_ids": [number]} for number in range(8)]
    job = Job(
        ItemsSource(items),
        MapDistributor(shuffle="none"),
        Processed(),
        batch_size=2,
        lanes=1,
        on_item_error="quarantine",
    )
    verdicts = [
        Verdict("draw", ItemRef("main", index, 0), "", "r", True, 0, 0, number=number)
        for index, number in ((1, 4), (6, 9))
    ]

    def snapshots(known: list[Verdict]) -> list[bytes]:
        planner = SamplePlanner(job, 0, Items(job, VerdictBook(known)))
        found = [planner.snapshot()]
        for _ in range(3):
            planner.next()
            found.append(planner.snapshot())
        restored = SamplePlanner(job, 0, Items(job, VerdictBook(known)))
        restored.restore(found[-1])
        assert restored.snapshot() == found[-1]
        return found

    both = snapshots(verdicts)
    states = [snapshot.decode(data, job.log_id, 0)[1] for data in both]
    assert [state.get("verdicts", 0) for state in states] == [0, 4, 4, 9]
    assert snapshots(verdicts[:1])[:3] == both[:3]


class Measured(RawItemProcessor):
    """Counts images and patches beside tokens."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    @property
    def measures(self) -> Sequence[str]:
        """Return both."""
        return ("images", "patches")

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return so many tokens."""
        return {"input_ids": [1] * raw[0], "counted": raw[1:]}

    def size(self, raw: Any) -> SampleSizes:
        """Return all three."""
        return SampleSizes(raw[0], tuple(raw[1:]))

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return what the item says."""
        counted: Sequence[int] = sample["counted"]
        return counted


PACKERS: list[PackingBatcher] = [
    BestFitPackingBatcher(40, pool_size=9, overlong="drop", limits={"images": 6, "patches": 60}),
    KnapsackPackingBatcher(40, window=9, overlong="drop", limits={"images": 6}),
    WindowPackingBatcher(40, window=6, overlong="drop", limits={"patches": 60}),
    BestFitDecreasingPackingBatcher(40, window=9, overlong="drop"),
]


def with_refs(state: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """Return a state whose refs of samples are others."""
    if isinstance(state, dict):
        if set(state) == {"ref"}:
            return {"ref": change(list(state["ref"]))}
        return {key: with_refs(inner, change) for key, inner in state.items()}
    return [with_refs(inner, change) for inner in state] if isinstance(state, list) else state


@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: type(packer).type_name)
def test_counts_that_cannot_be_are_the_snapshots_mistake(packer: PackingBatcher) -> None:
    """Too few, too many, none, or no whole numbers from 0 on; and sizes like these."""
    draw = random.Random(5)
    items = [(draw.randint(1, 20), draw.randint(0, 3), draw.randint(0, 30)) for _ in range(99)]
    job = Job(ItemsSource(items), processor=Measured(), batcher=packer.clone(), lanes=1)
    planner = SamplePlanner(job, 0, Items(job))
    for _ in range(7):
        planner.next()
    _, state = snapshot.decode(planner.snapshot(), job.log_id, 0)
    assert with_refs(state, lambda ref: [*ref[:-1], [0, 0]]) != state, "it holds samples"
    numbers: list[Any] = [-1, 1.5, "1", None, True, 2**63, [1]]
    changed = [[], [1], [1, 1, 1], *([1, number] for number in numbers)]
    forms = [lambda ref, own=own: [*ref[:-1], own] for own in changed]
    forms += [lambda ref, own=own: [*ref[:4], own, ref[-1]] for own in numbers]
    forms.append(lambda ref: ref[:-1])

    for form in forms:
        data = snapshot.encode(job.log_id, 0, 7, with_refs(state, form))
        with pytest.raises(BadSnapshot, match="has not the form"):
            SamplePlanner(job, 0, Items(job)).restore(data)
