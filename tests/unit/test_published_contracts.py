"""`penstock.server.testing`: a stranger can run it, and it finds what is wrong with a role."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.roles import (
    BatchCollator,
    IndexedSource,
    RawItemProcessor,
    SampleBatcher,
)
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.samples import Sample
from penstock.server.sources import ItemsSource
from penstock.server.testing import (
    check_batcher,
    check_collator,
    check_job,
    check_processor,
    check_source,
)

# --- each mistake is found, and named ---


class Shuffled(IndexedSource):
    """Gives items in another order than asked."""

    def __len__(self) -> int:
        return 5

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return them sorted."""
        if any(not 0 <= index < 5 for index in indices):
            raise IndexError
        return sorted(indices)


class Wraps(IndexedSource):
    """Takes an index from behind for one."""

    def __len__(self) -> int:
        return 5

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return what a list would."""
        return [list(range(5))[index] for index in indices]


class Remembers(RawItemProcessor):
    """Counts the items."""

    def __init__(self) -> None:
        self.count = 0

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return how many there were."""
        self.count += 1
        return {"x": self.count}


class Rolls(RawItemProcessor):
    """Draws from a generator that nobody seeds."""

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return a number of its own."""
        return {"x": random.SystemRandom().random()}


class Miscounts(RawItemProcessor):
    """Counts one too few where only lengths are wanted."""

    def __init__(self, missing: int = 0) -> None:
        self._missing = missing

    def process(self, raw: Any, context: ProcessContext) -> Any:
        """Give four ids."""
        return {"ids": [7] * (4 - self._missing)}

    def for_lengths(self, key: str) -> RawItemProcessor:
        """Give three."""
        return Miscounts(1)


class Uncounted(RawItemProcessor):
    """Names two measures, and counts one."""

    version = 1
    measures = ("images", "patches")  # type: ignore[assignment]

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item."""
        return {"x": raw["x"]}

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return one."""
        return [1]


class Eats(RawItemProcessor):
    """Takes what it needs out of the item."""

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return it."""
        return {"x": raw.pop("x")}


class Loses(SampleBatcher):
    """Every third sample is nowhere."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Return the others."""
        self.count += 1
        return [] if self.count % 3 == 0 else [[[ref]]]


class Forgets(SampleBatcher):
    """Its state does not hold what it holds."""

    needs_sizes = False

    def __init__(self) -> None:
        self.held: list[SampleRef] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Return the third last."""
        self.held.append(ref)
        return [[[self.held.pop(0)]]] if len(self.held) > 2 else []

    def state(self) -> Any:
        """Return nothing."""
        return {}

    def restore(self, state: Any) -> None:
        """Take nothing."""


class Narrows(BatchCollator):
    """The dtype follows the values."""

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the smallest integers that hold them."""
        values = [sample["x"] for row in rows for sample in row]
        return {"x": np.array(values, np.min_scalar_type(max(values)))}


class Marks(BatchCollator):
    """Writes into the samples."""

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return them, marked."""
        for sample in itertools.chain(*rows):
            sample["seen"] = True
        return {"x": np.array([sample["x"] for row in rows for sample in row])}


SAMPLES: list[tuple[int, Sample]] = [(1 + n % 3, {"x": n}) for n in range(9)]
ROWS: tuple[Any, Any] = ([[{"x": 3}]], [[{"x": 3000}]])


@pytest.mark.parametrize(
    ("check", "says"),
    [
        (lambda: check_source(Shuffled()), "in the order asked"),
        (lambda: check_source(Wraps()), r"fetch\(\[0, -1\]\) raises no IndexError"),
        (lambda: check_processor(Remembers(), [{"x": 1}]), "a second time: it is not pure"),
        (lambda: check_processor(Rolls(), [{"x": 1}]), "it is not pure"),
        (lambda: check_processor(Eats(), [{"x": 1}]), "changes the item"),
        (lambda: check_processor(Miscounts(), [{"x": 1}]), "gives other lengths of 'ids'"),
        (lambda: check_processor(Uncounted(), [{"x": 1}]), "so give 2 counts"),
        (lambda: check_batcher(Loses(), SAMPLES), "Loses has lost samples: 1 of 3"),
        (lambda: check_batcher(Forgets(), SAMPLES), "after restore"),
        (lambda: check_collator(Narrows(), *ROWS), "'x' as .*uint8.* and .*uint16"),
        (lambda: check_collator(Marks(), *ROWS), "changes the samples"),
    ],
)
def test_a_mistake_is_named(check: Callable[[], None], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check()


def test_a_job_that_resumes_elsewhere_is_named() -> None:
    """Whatever the roles hide from their states, a lane that is restored shows it."""

    def make() -> Job:
        items = ItemsSource([{"x": n} for n in range(7)])
        return Job(items, batcher=Forgets(), lanes=1)

    with pytest.raises(AssertionError, match=r"lane 0, restored at offset \d+,"):
        check_job(make, batches=9)
