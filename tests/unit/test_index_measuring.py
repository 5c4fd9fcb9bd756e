"""What a block of an index holds is what processing gives, one item after another."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from indexes import as_items
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.processing import Filtered
from penstock.server.planning.index.block import ItemSizes, encode_block
from penstock.server.planning.make.measuring import Measuring
from penstock.server.roles import (
    MapDistributor,
    ProcessContext,
    RankPartitionedDistributor,
    RawItemProcessor,
    Sample,
    SampleBatcher,
)
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.condition import Kept
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch, BadItem, InvalidJob

WORDS = ["x " * (7 * n % 23) for n in range(300)]
ROWS = [{"text": text, "lang": "ed"[n % 2]} for n, text in enumerate(WORDS)]


class Split(RawItemProcessor):
    """Filters empty texts, makes two samples of long ones, and fails where it is told to."""

    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False

    def process(self, raw: Any, context: ProcessContext) -> Sample | list[Sample] | None:
        """Return samples of as many tokens as there are words."""
        words = raw["text"].split()
        if raw.get("lang") == "!":
            raise ValueError("cannot be decoded")
        if not words:
            return context.skip("no words")
        if len(words) > 15:
            return [{"input_ids": words[:10]}, {"input_ids": words[10:]}]
        return {"input_ids": words} if len(words) != 7 else None


class Seeded(Split):
    """The same, one by one, with the generators seeded."""

    uses_global_rng: ClassVar[bool] = True


class Told(Split):
    """One sample each, whose size is told without processing."""

    one_to_one: ClassVar[bool] = True

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Fail: nobody shall process."""
        raise AssertionError("it was processed")

    def size(self, raw: Any) -> int:
        """Return how many words there are."""
        return len(raw["text"].split())


class Lengths(ItemsSource):
    """Knows the sizes of its items, and gives none of them."""

    version: ClassVar[int | str | None] = 1

    def sizes(self, indices: Sequence[int]) -> Sequence[int]:
        """Return them."""
        return [10 * index for index in indices]

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Fail: nobody shall read."""
        raise AssertionError("it was read")


def job(source: Any = None, **options: Any) -> Job:
    options.setdefault("batcher", BestFitPackingBatcher(64))
    return Job(ItemsSource(ROWS) if source is None else source, **options)


def measured(made: Job, *, step: int = 64, source: str = "main") -> list[list[int] | str]:
    measuring = Measuring(made)
    items = measuring.positions[source]
    found: list[list[int] | str] = []
    for start in range(0, items, step):
        sizes = measuring.block(source, start, min(start + step, items)).sizes
        found += as_items(sizes, start)
    return found


def one_by_one(made: Job, refs: Sequence[ItemRef]) -> list[list[int] | str]:
    items, roles = Items(made), made.role_sets[0]
    found: list[list[int] | str] = []
    for ref in refs:
        [outcome] = items.samples([ref], "draw")
        if isinstance(outcome, Filtered):
            found.append(f"filtered:{outcome.reason}")
        else:
            assert isinstance(outcome, list)
            found.append([roles.batcher.size_of(sample) for sample in outcome])
    return found


@pytest.mark.parametrize("processor", [Split, Seeded])
@pytest.mark.parametrize("step", [1, 64, 1000])
def test_it_is_what_processing_gives(processor: type[RawItemProcessor], step: int) -> None:
    made = job(processor=processor())

    found = measured(made, step=step)

    assert found == one_by_one(made, [ItemRef("main", index, 0) for index in range(len(ROWS))])
    assert {"filtered:no words", "filtered:none"} <= {item for item in found if type(item) is str}
    assert any(len(item) == 2 for item in found)


def test_positions_are_the_items_that_a_condition_keeps() -> None:
    made = job(processor=Split(), distributor=MapDistributor(where={"lang": "e"}))

    found = measured(made, step=37)

    assert found == one_by_one(made, [ItemRef("main", index, 0) for index in range(0, 300, 2)])


def test_kept_items_are_found_from_any_position() -> None:
    """Against a mask, for every stretch that begins and ends near a byte's bounds."""
    rng = np.random.default_rng(3)
    for share in (0.02, 0.5, 1.0):
        mask = rng.random(9000) < share
        kept, items = Kept.of(mask), np.flatnonzero(mask)
        cuts = rng.integers(0, len(items) + 1, (200, 2)).tolist()
        for start, stop in [(0, len(items)), *map(sorted, cuts)]:
            assert kept.run(start, stop).tolist() == items[start:stop].tolist()


def test_sizes_that_are_told_are_not_processed() -> None:
    """Neither those that a processor tells, nor those that a source does."""
    assert measured(job(processor=Told())) == [[len(text.split())] for text in WORDS]
    rows = [{"input_ids": []}] * 300
    assert measured(job(Lengths(rows))) == [[10 * index] for index in range(300)]


def test_what_has_no_size_and_one_sample_each_is_not_even_read() -> None:
    class Unread(Lengths):
        def sizes(self, indices: Sequence[int]) -> Sequence[int]:
            raise AssertionError("it was asked")

    made = job(Unread([{"image": [1]}] * 9), batcher=None, batch_size=2)

    assert measured(made) == [[0]] * 9


def test_columns_tell_lengths_whatever_the_batcher_is() -> None:
    """So jobs that share an index make the same one."""
    rows = [{"input_ids": [1] * (n % 9)} for n in range(100)]
    expected = [[n % 9] for n in range(100)]

    for options in ({"batcher": BestFitPackingBatcher(64)}, {"batcher": None, "batch_size": 4}):
        assert measured(job(ItemsSource(rows), **options)) == expected


def test_each_source_has_positions_of_its_own() -> None:
    made = job({"a": ItemsSource(ROWS), "b": ItemsSource(ROWS[5:9])}, processor=Split())

    assert Measuring(made).positions == {"a": 300, "b": 4}
    assert measured(made, source="b") == measured(made, source="a")[5:9]


# --- items that fail, and sizes that are none -----------------------------------------------------

DAMAGED = [*ROWS[:20], {"text": "x", "lang": "!"}, *ROWS[20:30]]


def test_an_item_that_fails_ends_it_with_its_name() -> None:
    with pytest.raises(BadItem, match=r"item main\[20\] in epoch 0 .* cannot be decoded"):
        measured(job(ItemsSource(DAMAGED), processor=Split()))


def test_an_item_that_fails_is_left_out_where_the_job_says_so() -> None:
    made = job(ItemsSource(DAMAGED), processor=Split(), on_item_error="quarantine")

    found = Measuring(made).block("main", 10, 31)

    assert as_items(found.sizes, 10)[10] == "quarantined:index"
    assert found.bad == [("main[20] in epoch 0", "ValueError: cannot be decoded")]
    without = measured(job(ItemsSource([*DAMAGED[:20], *DAMAGED[21:]]), processor=Split()))
    items = as_items(found.sizes, 10)
    assert [*items[:10], *items[11:]] == without[10:]


class Sized(SampleBatcher):
    """A user's batcher; sizes are what the class says."""

    version: ClassVar[int | str | None] = 1
    says: ClassVar[Any] = 3

    def add(self, ref: Any, sample: Sample | None = None) -> list[Any]:
        """Take it."""
        return [[[ref]]]

    def size_of(self, sample: Sample) -> Any:
        """Return what the class says."""
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (-1, "Sized.size_of() gave -1 for a sample of item main[2]"),
        (1 << 63, "item main[2] in epoch 0 of job 'job': a size is from 0 to 2^63 - 1"),
        (2.5, "Sized.size_of() finds no size of a sample of item main[2]"),
        (KeyError("x"), "KeyError: 'x'; the sample has input_ids"),
    ],
    ids=["negative", "too large", "a fraction", "an error"],
)
def test_a_size_that_is_none_names_the_item(
    says: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sized, "says", says)

    with pytest.raises(BadBatch) as caught:
        measured(job(batcher=Sized(), processor=Split()))

    assert said in str(caught.value)


class Boundless(Told):
    """Tells a size that no index holds."""

    def size(self, raw: Any) -> int:
        """Return it."""
        return 2**63


def test_a_told_size_that_no_index_holds_names_the_item() -> None:
    with pytest.raises(BadItem, match=r"Boundless.size\(\) gave 9223372036854775808 for item main"):
        measured(job(processor=Boundless()))


class Counting(Split):
    """A user's processor; what counts for it is what the class says."""

    gives: ClassVar[Any] = None

    def for_lengths(self, key: str) -> Any:
        """Return what the class says."""
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (None, "Counting.for_lengths() gave None: return a processor"),
        (KeyError("x"), "Counting.for_lengths() fails with KeyError"),
    ],
    ids=["nothing", "an error"],
)
def test_what_counts_lengths_is_a_processor(
    gives: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counting, "gives", gives)

    with pytest.raises(InvalidJob) as caught:
        measured(job(batcher=BestFitPackingBatcher(64), processor=Counting()))

    assert said in str(caught.value)


def test_a_users_sizes_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sized, "says", np.int64(5))

    found = measured(job(batcher=Sized(), processor=Split()))

    assert {size for item in found if isinstance(item, list) for size in item} == {5}


def test_a_sample_without_its_length_is_the_jobs_mistake() -> None:
    made = job(batcher=BestFitPackingBatcher(64, length_key="tokens"), processor=Split())

    with pytest.raises(
        InvalidJob, match="length_key is 'tokens', but the processor's samples have"
    ):
        measured(made)


def test_a_set_of_a_joint_job_is_measured_as_a_job_of_its_own() -> None:
    """Each set by its own processor and sources: nothing of the other is part of it."""
    sets = {
        "a": RoleSet(ItemsSource(ROWS), batch_size=1),
        "b": RoleSet(ItemsSource(ROWS[:5]), None, Split(), BestFitPackingBatcher(64)),
    }
    alone = Job({"b": ItemsSource(ROWS[:5])}, None, Split(), BestFitPackingBatcher(64))

    found = Measuring(JointJob(sets, choice="batch", name="both"), role_set=1)

    of_its_own = Measuring(alone)
    assert found.inputs == of_its_own.inputs
    assert found.positions == of_its_own.positions == {"b": 5}
    assert as_items(found.block("b", 0, 5).sizes) == as_items(of_its_own.block("b", 0, 5).sizes)


def test_a_set_that_cannot_have_an_index_is_named() -> None:
    """The first set could have one."""
    sets = {
        "a": RoleSet(ItemsSource(ROWS), batch_size=1),
        "b": RoleSet(ItemsSource(ROWS), RankPartitionedDistributor({"b": 1}), batch_size=1),
    }

    with pytest.raises(InvalidJob, match=r"set 'b' of job 'both': distributor is rank_partitioned"):
        Measuring(JointJob(sets, choice="batch", name="both"), role_set=1)


# --- random numbers -------------------------------------------------------------------------------


class Draws(RawItemProcessor):
    """Draws for every hundredth item."""

    version: ClassVar[int | str | None] = 1
    draw: ClassVar[Any] = None

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the words, or some of them."""
        words = [*raw["text"].split(), "x"]
        if context.item.index % 100 == 50:
            type(self).draw(context)
        return {"input_ids": words}


class DrawsOwn(Draws):
    """Of its own generator alone."""

    uses_global_rng: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("processor", "draw", "drew"),
    [
        (DrawsOwn, lambda context: context.rng.integers(3), True),
        (DrawsOwn, lambda context: None, False),
        (Draws, lambda context: context.rng.integers(3), True),
        (Draws, lambda context: random.random(), True),
        (Draws, lambda context: np.random.rand(), True),
        (Draws, lambda context: None, False),
    ],
    ids=["own", "own, none", "context", "random", "numpy", "none"],
)
def test_it_is_noticed_whether_processing_draws(
    processor: type[Draws], draw: Any, drew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block for itself: 50, 150 and 250 are the items that do."""
    monkeypatch.setattr(processor, "draw", staticmethod(draw))
    measuring = Measuring(job(processor=processor()))

    found = [measuring.block("main", start, start + 50).drew for start in range(0, 300, 50)]

    assert found == [drew and start % 100 == 50 for start in range(0, 300, 50)]


def test_the_same_bytes_come_of_any_block_size_order_and_care() -> None:
    """What a process has measured before leaves no trace."""
    measuring = Measuring(job(processor=Split()))

    def block(start: int) -> bytes:
        found: ItemSizes = measuring.block("main", start, start + 60).sizes
        return encode_block(found, start)

    expected = [block(start) for start in range(0, 300, 60)]
    assert [block(start) for start in range(240, -1, -60)][::-1] == expected
    measuring.items.careful = True
    assert [block(start) for start in range(0, 300, 60)] == expected
