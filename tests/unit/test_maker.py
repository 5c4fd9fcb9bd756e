"""The maker: from a plan to bytes, the same whoever makes them and whatever is at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef, Span
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import MAX_EMPTIED, Line, compute
from penstock.server.pipeline.maker import Maker
from penstock.server.pipeline.writing import MadeBatch
from penstock.server.roles import (
    BatchCollator,
    BestFitPackingBatcher,
    CollateContext,
    DefaultBatchCollator,
    FunctionCollator,
    MapDistributor,
    PackedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire import frame
from penstock.wire.errors import BadBatch, BadItem, LaneStarved
from penstock.wire.v1 import feed_pb2
from resume.plans import BATCHERS, PROCESSORS, make_job


def written(made: MadeBatch) -> tuple[feed_pb2.BatchHeader, bytes]:
    body = bytearray(made.nbytes)
    header = feed_pb2.BatchHeader.FromString(made.write(memoryview(body)))
    frame.check_header(header, max_body_bytes=1 << 30)
    frame.check_crc(header, body)
    return header, bytes(body)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("batcher", BATCHERS)
def test_samples_at_hand_change_nothing(batcher: str, processor: str) -> None:
    """A batch from the planner's samples and one from its plan alone are the same bytes."""
    job = make_job(batcher, "full", processor, 2)
    line, elsewhere = Line(job, 1), Maker(job, Items(job))
    for _ in range(25):
        plan = line.advance()
        assert written(elsewhere.make(plan)) == written(line.make(plan))


class Lies(RawItemProcessor):
    """Sizes that are not what processing gives."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the true tokens."""
        return {"input_ids": list(range(raw["true"]))}

    def size(self, raw: Any) -> int:
        """Return the stated size."""
        return int(raw["stated"])


def accounting(header: feed_pb2.BatchHeader) -> dict[str, int]:
    return {count.name: count.value for count in header.accounting}


def lying(items: list[dict[str, int]], policy: str = "quarantine") -> Job:
    return Job(
        ItemsSource(items),
        processor=Lies(),
        batcher=BestFitPackingBatcher(10, pool_size=2),
        collator=PackedCollator(pad_to=10),
        lanes=1,
        on_item_error=policy,
    )


def test_a_sample_larger_than_it_was_planned_stops_or_is_left_out() -> None:
    """It would not fit into its row; a smaller one does."""
    items = [{"stated": 5, "true": 3}, {"stated": 5, "true": 6}]
    plan = BatchPlan(0, 0, [[SampleRef(ItemRef("main", i, 0), 0, 5) for i in range(2)]])
    stop = lying(items, "stop")
    with pytest.raises(BadItem, match="its size is 6, and it was planned with 5"):
        Maker(stop, Items(stop)).make(plan)

    job = lying(items)
    header, _ = written(Maker(job, Items(job)).make(plan))

    assert [sample.index for sample in header.samples] == [0]
    assert accounting(header) == {
        "quarantined:size": 1,
        "size:smaller": 1,
        "size:smaller_tokens": 2,
    }


@pytest.mark.parametrize("policy", ["stop", "quarantine"])
def test_a_sample_larger_than_it_was_told_stays_where_its_row_has_room(policy: str) -> None:
    """In the order of the plan: of 10 tokens 3 are free, 2 and 1 are taken, the last has none.

    What is left out of the row, or smaller than told, makes no room: that others may not know.
    """
    sizes = [(3, 5), (2, 1), (1, 2), (1, 2)]
    items = [{"stated": stated, "true": true} for stated, true in sizes]
    refs = [SampleRef(ItemRef("main", i, 0), 0, stated) for i, (stated, _) in enumerate(sizes)]
    job = lying(items, policy)

    header, _ = written(Maker(job, Items(job)).make(BatchPlan(0, 0, [refs[:3]])))

    assert [sample.index for sample in header.samples] == [0, 1, 2]
    assert accounting(header) == {
        "size:larger": 2,
        "size:larger_tokens": 3,
        "size:smaller": 1,
        "size:smaller_tokens": 1,
    }
    whole = BatchPlan(0, 0, [refs])
    if policy == "stop":
        with pytest.raises(BadItem, match=r"main\[3\].* its size is 2"):
            Maker(job, Items(job)).make(whole)
    else:
        header, _ = written(Maker(job, Items(job)).make(whole))
        assert [sample.index for sample in header.samples] == [0, 1, 2]
        assert accounting(header)["quarantined:size"] == 1


@pytest.mark.parametrize(
    "batcher", [SimpleBatcher(2), SequentialPackingBatcher(max_samples_per_batch=2)]
)
def test_sizes_that_nothing_looks_at_are_not_compared(batcher: SampleBatcher) -> None:
    """Where samples are counted, one that is larger or smaller than it was told is as planned."""
    items = [{"stated": 5, "true": 3}, {"stated": 5, "true": 6}]
    job = Job(
        ItemsSource(items),
        MapDistributor(shuffle="none"),
        Lies(),
        batcher,
        PackedCollator(),
        lanes=1,
    )
    line = Line(job, 0)

    header, _ = written(line.make(line.advance()))

    assert [sample.index for sample in header.samples] == [0, 1]
    assert accounting(header) == {"drawn": 2}


def test_what_a_sample_in_pieces_has_beyond_the_last_is_counted() -> None:
    """Told 15, and 18 when it is there: the pieces are as they were planned, and 3 are in none."""
    job = lying([{"stated": 15, "true": 18}])
    item = ItemRef("main", 0, 0)
    maker = Maker(job, Items(job))

    headers = [
        written(maker.make(BatchPlan(0, offset, [[SampleRef(item, 0, size, span)]])))[0]
        for offset, (size, span) in enumerate([(10, Span(0, 10)), (5, Span(10, 15))])
    ]

    assert [accounting(header) for header in headers] == [{}, {"size:cut_tokens": 3}]


def test_whether_a_piece_fits_is_found_alike_before_and_after_the_verdict() -> None:
    """One piece of a split item fits and another does not: neither changes when it is known."""
    job = lying([{"stated": 20, "true": 15}])
    item = ItemRef("main", 0, 0)
    pieces = [SampleRef(item, 0, 10, Span(start, start + 10)) for start in (0, 10)]
    plans = [BatchPlan(0, offset, [[piece]]) for offset, piece in enumerate(pieces)]
    book = VerdictBook()
    maker = Maker(job, Items(job, book))

    before = [written(maker.make(plan)) for plan in plans]
    after = [written(maker.make(plan)) for plan in plans]
    fresh = [written(Maker(job, Items(job)).make(plan)) for plan in reversed(plans)][::-1]

    assert before == after == fresh
    assert [header.padding for header, _ in before] == [False, True]
    assert book.find("size", item) is not None


class Fragile(RawItemProcessor):
    """Cannot decode item 1."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the tokens."""
        if raw == 1:
            raise ValueError("no picture")
        return {"input_ids": [raw] * 3}


def test_what_fails_on_exit_leaves_its_own_group_alone() -> None:
    """Its neighbours stay, other groups do not move, an emptied group is padding without weight."""
    job = Job(
        ItemsSource([0, 1, 2]),
        processor=Fragile(),
        batcher=SimpleBatcher(1),
        collator=PackedCollator(pad_to=8),
        lanes=1,
        on_item_error="quarantine",
    )
    maker = Maker(job, Items(job))

    def batch(*indices: int) -> feed_pb2.BatchHeader:
        rows = [[SampleRef(ItemRef("main", index, 0)) for index in indices]]
        return written(maker.make(BatchPlan(0, 5, rows)))[0]

    mixed, emptied, good = batch(0, 1, 2), batch(1), batch(2)

    assert [sample.index for sample in mixed.samples] == [0, 2]
    assert (mixed.padding, emptied.padding, good.padding) == (False, True, False)
    assert {count.name: count.value for count in emptied.counts}["tokens"] == 0
    shapes = [
        [list(v.value.tensor.shape) for v in h.values if v.name == "input_ids"]
        for h in (emptied, good)
    ]
    assert shapes[0] == shapes[1]


class Pictures(RawItemProcessor):
    """Nine of ten pictures are damaged."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return a picture, its class, its name, and what a dict may hold."""
        if raw % 10:
            raise ValueError("truncated")
        pixels = context.rng.integers(1, 255, (2, 3, 3), dtype=np.uint8)
        return {"pixels": pixels, "label": raw, "name": f"{raw}.jpg", "more": {"boxes": [raw]}}


class Wide(BatchCollator):
    """A user's collator that knows nothing of empty rows."""

    version: ClassVar[int | str | None] = 1

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the pictures beside each other."""
        return {"wide": np.concatenate([row[0]["pixels"] for row in rows], axis=1)}


def taking(samples: list[Sample]) -> dict[str, Any]:
    """Take the pictures out of the samples, which a `collate_fn` may."""
    return {"pixels": np.stack([sample.pop("pixels") for sample in samples])}


def writing(samples: list[Sample]) -> dict[str, Any]:
    """Write into the samples."""
    for sample in samples:
        sample["pixels"] += 1
    return taking(samples)


def test_a_function_that_writes_into_samples_makes_the_same_padding_each_time() -> None:
    """What stands in for the samples of an emptied batch is as it was for the one before."""
    job = Job(
        ItemsSource([0, 1, 2, 3]),
        processor=Pictures(),
        batch_size=3,
        collator=FunctionCollator(writing),
        lanes=1,
        on_item_error="quarantine",
    )
    maker = Maker(job, Items(job))
    rows = [[SampleRef(ItemRef("main", index, 0))] for index in (1, 2, 3)]

    first, second = (written(maker.make(BatchPlan(0, 5, rows))) for _ in range(2))

    assert first == second
    assert first[0].padding
    assert frame.decode_values(*first)["pixels"].max() == 1


@pytest.mark.parametrize("collator", [DefaultBatchCollator(), Wide(), FunctionCollator(taking)])
def test_an_emptied_batch_has_the_keys_and_shapes_of_a_real_one(collator: BatchCollator) -> None:
    """Whoever makes it first: nothing of it comes from what this process has seen."""
    job = Job(
        ItemsSource(list(range(400))),
        processor=Pictures(),
        batcher=SimpleBatcher(3),
        collator=collator,
        lanes=1,
        on_item_error="quarantine",
    )

    def batch(indices: list[int], items: Items) -> tuple[feed_pb2.BatchHeader, bytes]:
        rows = [[SampleRef(ItemRef("main", index, 2))] for index in indices]
        return written(Maker(job, items).make(BatchPlan(0, 5, rows)))

    def shapes(header: feed_pb2.BatchHeader, body: bytes) -> dict[str, Any]:
        found = frame.decode_values(header, body)
        return {
            name: (value.shape, value.dtype) if isinstance(value, np.ndarray) else len(value)
            for name, value in found.items()
        }

    real = batch([10, 20, 30], Items(job))
    used = Items(job)
    used.samples([ItemRef("main", index, 1) for index in (390, 380)], "exit")
    emptied = [batch([11, 12, 13], Items(job)), batch([11, 12, 13], used)]

    assert emptied[0] == emptied[1]
    header, body = emptied[0]
    assert (header.padding, real[0].padding) == (True, False)
    assert not header.samples
    assert all(count.value == 0 for count in header.counts)
    assert shapes(header, body) == shapes(*real)
    values = frame.decode_values(header, body)
    if "name" in values:
        assert values["name"] == ["", "", ""]
        assert values["more"] == [{"boxes": [0]}] * 3
        values = {"pixels": values["pixels"]}
    assert not any(array.any() for array in values.values())


def test_stand_ins_take_no_more_room_than_what_they_stand_for() -> None:
    """Packed without pad_to: a row is as wide as it was planned, and trains nothing."""
    items = [{"stated": 9, "true": 9}, {"stated": 4, "true": 7}, {"stated": 4, "true": 7}]
    job = Job(
        ItemsSource(items),
        processor=Lies(),
        batcher=BestFitPackingBatcher(10, pool_size=2),
        collator=PackedCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    plan = BatchPlan(0, 0, [[SampleRef(ItemRef("main", index, 0), 0, 4) for index in (1, 2)]])

    header, body = written(Maker(job, Items(job)).make(plan))

    values = frame.decode_values(header, body)
    assert header.padding
    assert values["input_ids"].shape == (1, 8)
    assert (values["labels"] == -100).all()


def test_a_lane_of_nothing_but_padding_stops_by_name() -> None:
    """After a bounded number in a row; so does a source of which nothing tells a shape."""

    def job(good: int) -> Job:
        source = ItemsSource([0] * good + [1] * (300 - good))
        return Job(
            source,
            MapDistributor(shuffle="none"),
            Pictures(),
            batch_size=1,
            lanes=1,
            on_item_error="quarantine",
        )

    few = job(2)
    line = Line(few, 0)
    headers = [compute(few, position, line=line).header for position in range(MAX_EMPTIED + 1)]
    padding = [feed_pb2.BatchHeader.FromString(header).padding for header in headers]
    assert padding == [False] * 2 + [True] * (MAX_EMPTIED - 1)
    with pytest.raises(LaneStarved, match=f"last {MAX_EMPTIED} batches"):
        compute(few, MAX_EMPTIED + 1, line=line)
    with pytest.raises(LaneStarved, match="none of 256 items of source 'main'"):
        compute(job(0), 0)


def test_a_blanked_batch_has_the_shapes_and_no_weight() -> None:
    """What fills the last step of a finite log: labels that train nothing, counts of zero."""
    job = make_job("best_fit_split", "full", "sized", 1)
    line, maker = Line(job, 0), Maker(job, Items(job))
    plan = line.advance()

    real, body = written(maker.make(plan))
    blank, blanked = written(maker.make(plan, blank=True))

    assert [v.value.tensor.shape for v in blank.values] == [
        v.value.tensor.shape for v in real.values
    ]
    assert blank.padding
    assert all(count.value == 0 for count in blank.counts)
    labels = frame.decode_values(blank, blanked)["labels"]
    assert (labels == -100).all()
    assert (frame.decode_values(real, body)["labels"] != -100).any()


class Broken(BatchCollator):
    """A user's collator with a bug."""

    version: ClassVar[int | str | None] = 1

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Fail."""
        return {"x": rows[0][0]["no such key"]}


class Unsendable(Broken):
    """A user's collator that returns what has no form on the wire."""

    version: ClassVar[int | str | None] = 1

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return an object."""
        return {"x": np.array([object()])}


class Gambler(Broken):
    """A user's collator that draws random numbers, of its own and global ones."""

    version: ClassVar[int | str | None] = 1

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return some."""
        context.count("draws", 2)
        return {"own": context.rng.random(4), "global": np.random.random(4)}


def test_a_collators_bug_names_the_batch_and_the_line() -> None:
    """Lane, offset, items and the user's own frames."""
    job = Job(ItemsSource([1, 2, 3]), batcher=SimpleBatcher(2), collator=Broken(), lanes=1)
    line = Line(job, 0)
    line.skip_to(7)

    with pytest.raises(BadBatch, match="Broken fails on the batch at lane 0, offset 7") as caught:
        line.make(line.advance())

    assert (caught.value.fields["lane"], caught.value.fields["offset"]) == (0, 7)
    assert "no such key" in caught.value.fields["traceback"]
    assert "pipeline" not in caught.value.fields["traceback"]


def test_what_a_collator_draws_depends_on_the_batch_alone() -> None:
    """In any order, with any global state: the same numbers, and others for every batch."""
    job = Job(ItemsSource([1, 2, 3]), batcher=SimpleBatcher(1), collator=Gambler(), lanes=1)
    line = Line(job, 0)
    plans = [line.advance() for _ in range(5)]
    maker = Maker(job, Items(job))
    forwards = [written(maker.make(plan)) for plan in plans]

    np.random.seed(0)
    backwards = [written(maker.make(plan)) for plan in reversed(plans)][::-1]

    assert backwards == forwards
    assert len({body for _, body in forwards}) == 5


def test_a_value_without_a_form_on_the_wire_is_named() -> None:
    """The key, and what it is."""
    job = Job(ItemsSource([1, 2, 3]), batcher=SimpleBatcher(1), collator=Unsendable(), lanes=1)
    line = Line(job, 0)

    with pytest.raises(Exception, match="'x'") as caught:
        line.make(line.advance())

    assert getattr(caught.value, "code", "") == "unsupported_value"
