"""What an index fits: every job that agrees in what sizes depend on, and no other."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.planning.index.inputs import check_inputs, differences, index_inputs
from penstock.server.roles import (
    MapDistributor,
    MixtureDistributor,
    ProcessContext,
    RawItemProcessor,
    Sample,
    SampleBatcher,
)
from penstock.server.roles.batchers import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    PoolPackingBatcher,
    SequentialPackingBatcher,
)
from penstock.server.roles.collators import PackedCollator
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob

ROWS = [{"input_ids": [1] * n, "lang": "ed"[n % 2]} for n in range(1, 40)]


class Masks(RawItemProcessor):
    """Code of a user, which may draw."""

    version = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item."""
        return dict(raw)


class ByHalf(SampleBatcher):
    """A user's own sizes."""

    version = 1

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Return a batch of it."""
        return [[[ref]]]

    def size_of(self, sample: Sample) -> int:
        """Return half its length."""
        return len(sample["input_ids"]) // 2


def job(rows: Iterable[Any] = ROWS, **options: Any) -> Job:
    options.setdefault("batcher", BestFitPackingBatcher(64))
    return Job(ItemsSource(list(rows)), **options)


def inputs(made: Job) -> dict[str, Any]:
    return index_inputs(made.role_sets[0], made.seed)


ALIKE: dict[str, Callable[[], Job]] = {
    "seed": lambda: job(seed=5),
    "lanes": lambda: job(lanes=3),
    "epochs": lambda: job(epochs=2),
    "batcher": lambda: job(batcher=BestFitDecreasingPackingBatcher(32, rows=4)),
    "sequential": lambda: job(batcher=SequentialPackingBatcher(100)),
    "padded": lambda: job(batcher=PoolPackingBatcher(64, pool_size=9)),
    "batch_size": lambda: job(batcher=None, batch_size=7),
    "collator": lambda: job(collator=PackedCollator(pad_to=64)),
    "shuffle": lambda: job(distributor=MapDistributor(shuffle="none")),
    "sample_ratio": lambda: job(distributor=MapDistributor(sample_ratio=2.5)),
    "policy": lambda: job(on_item_error="quarantine"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_jobs_that_differ_in_what_sizes_do_not_depend_on_share_an_index(name: str) -> None:
    assert inputs(ALIKE[name]()) == inputs(job())


OTHERS: dict[str, tuple[Callable[[], Job], str]] = {
    "content": (lambda: job(ROWS[:-1]), "sources[0].identity.fingerprint"),
    "where": (lambda: job(distributor=MapDistributor(where={"lang": "e"})), "where"),
    "processor": (lambda: job(processor=Masks()), "processor"),
    "length": (lambda: job(batcher=BestFitPackingBatcher(64, length_key="lang")), "size"),
    "own sizes": (lambda: job(batcher=ByHalf()), "size"),
    "no sizes": (lambda: job(batcher=SequentialPackingBatcher(max_samples_per_batch=3)), "size"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_jobs_have_an_index_of_their_own(name: str) -> None:
    """And are told in what they differ."""
    other, differs = OTHERS[name]
    made = other()

    with pytest.raises(InvalidJob, match=r"the index 'x' does not fit this job: ") as caught:
        check_inputs("x", inputs(job()), made.role_sets[0], made.seed)

    assert differs in str(caught.value)
    assert differs.split(".")[0] in {
        path.split(".")[0] for path in differences(inputs(job()), inputs(made))
    }


def test_a_condition_is_told_by_what_it_keeps_and_not_by_how_it_is_written() -> None:
    one = job(distributor=MapDistributor(where={"lang": "e"}))
    same = job(distributor=MapDistributor(where={"lang": ["e"]}))
    other = job(distributor=MapDistributor(where={"lang": "d"}))

    assert inputs(one) == inputs(same)
    assert differences(inputs(one), inputs(other)) == ["where.condition.lang[0][1][0]"]


def test_the_seed_counts_where_processing_may_draw_and_did() -> None:
    """An index without a seed in it was made by code that drew nothing: it fits every seed."""
    first, second = job(processor=Masks(), seed=1), job(processor=Masks(), seed=2)
    drew = inputs(first)
    drew_nothing = {key: value for key, value in drew.items() if key != "seed"}

    assert differences(drew, inputs(second)) == ["the seed that its sizes depend on"]
    assert differences(drew_nothing, inputs(second)) == []


def test_samples_without_a_length_have_the_size_0_where_no_batcher_looks_at_sizes() -> None:
    rows = [{"image": [1]}, {"image": [2]}]

    known = job(rows, batcher=None, batch_size=2)
    unknown = job(rows, batcher=None, batch_size=2, processor=Masks())

    assert inputs(known)["size"] is None
    assert inputs(unknown)["size"] == {"length_of": "input_ids", "else": 0}


def test_only_the_sources_that_are_drawn_from_count() -> None:
    sources = {"a": ItemsSource(ROWS), "b": ItemsSource(ROWS[:3])}
    both = Job(sources, batch_size=1)
    one = Job(sources, MapDistributor(source="b"), batch_size=1)

    assert [source["name"] for source in inputs(both)["sources"]] == ["a", "b"]
    assert [source["name"] for source in inputs(one)["sources"]] == ["b"]


class Twice(MapDistributor):
    """A user's own."""

    version = 1


def test_a_job_with_another_distributor_has_no_index() -> None:
    """Not even where its class is derived from the one that has: it may draw otherwise."""
    with pytest.raises(InvalidJob, match="distributor is Twice: an index of sizes is for"):
        inputs(job(distributor=Twice()))
    with pytest.raises(InvalidJob, match="distributor is mixture: an index of sizes is for"):
        inputs(job(distributor=MixtureDistributor(parts={"main": 1})))


def test_inputs_are_the_same_in_another_process(tmp_path: Path) -> None:
    """They hold nothing of this one: no times, no paths, no order of a set."""
    texts = [str(inputs(job(random.Random(seed).sample(ROWS, len(ROWS))))) for seed in (1, 1)]

    assert texts[0] == texts[1]
    assert not re.search(re.escape(str(tmp_path)) + r"|0x[0-9a-f]{6}", texts[0])
