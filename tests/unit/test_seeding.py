"""The global generators: the same numbers for every item, wherever it is computed, and put back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.commands.purity import check_promises
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    BatchCollator,
    DefaultBatchCollator,
    IdentityProcessor,
    SimpleBatcher,
)
from penstock.server.roles.context import item_key
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources import ItemsSource
from penstock.server.usercode.seeding import BorrowedGlobals, seeded_globals
from penstock.wire.errors import InvalidJob

REFS = [ItemRef("main", index, 2) for index in range(5)]


def numbers() -> list[float]:
    """Draw from random, from numpy, and a pair of normals that leaves half of it behind."""
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]


def test_a_run_gives_every_item_what_it_gets_alone() -> None:
    """Borrowed once for a run, seeded for each: whatever the items before have drawn."""
    alone = []
    for item in REFS:
        with seeded_globals(item_key(7, item)):
            alone.append(numbers())

    borrowed, run = BorrowedGlobals(), []
    for part in (REFS[:2], REFS[2:]):  # one object for one run after the other
        with borrowed:
            for item in part:
                borrowed.seed(item_key(7, item))
                run.append(numbers())

    assert run == alone


def test_what_was_borrowed_is_put_back_also_after_an_error() -> None:
    """The process's own numbers go on where they were."""
    random.seed(1)
    np.random.seed(1)
    expected = [random.random(), np.random.rand(), random.random(), np.random.rand()]
    random.seed(1)
    np.random.seed(1)
    found = [random.random(), np.random.rand()]

    borrowed = BorrowedGlobals()

    def fails() -> None:
        with borrowed:
            borrowed.seed(5)
            numbers()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()

    assert [*found, random.random(), np.random.rand()] == expected


def quiet(raw: Any) -> Any:
    return {**raw, "r": np.random.rand()}


quiet.version = 1  # type: ignore[attr-defined]
quiet.uses_global_rng = False  # type: ignore[attr-defined]


class Loud(IdentityProcessor):
    """Inherits a promise that it breaks."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: Any) -> Any:
        """Return the item and a number."""
        return {**raw, "r": random.random()}


class Shaken(DefaultBatchCollator):
    """Breaks its promise for a batch."""

    version: ClassVar[int | str | None] = 1

    def collate(self, rows: Sequence[Sequence[Any]], context: Any) -> dict[str, Any]:
        """Return the values in another order."""
        random.shuffle(list(rows))
        return super().collate(rows, context)


class Rolling(ItemsSource):
    """Breaks the promise that every source makes by default."""

    version: ClassVar[int | str | None] = 1

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the items."""
        np.random.rand()
        return super().fetch(indices)


def promises(**roles: Any) -> None:
    source = roles.pop("source", ItemsSource)([{"x": n} for n in range(20)])
    job = Job(source, batcher=SimpleBatcher(2), **roles)
    items = Items(job)
    items.samples(REFS, "draw")
    check_promises(job, items, REFS, Line(job, 0))


@pytest.mark.parametrize(
    ("key", "role", "name"),
    [
        ("processor", FunctionProcessor(quiet), "quiet"),
        ("processor", Loud(), "Loud"),
        ("collator", Shaken(), "Shaken"),
        ("source", Rolling, "Rolling"),
    ],
)
def test_a_broken_promise_is_named(key: str, role: Any, name: str) -> None:
    """Nobody seeds for a role that says it draws nothing."""
    with pytest.raises(InvalidJob, match=f"^{name} of job 'job' says uses_global_rng") as caught:
        promises(**{key: role})

    assert caught.value.fields["key"] == key


def test_who_keeps_a_promise_or_gives_none_is_left_alone() -> None:
    """Seeded roles may draw, and what draws from the context alone does not break its word."""

    def fair(raw: Any, context: Any) -> Any:
        return {**raw, "r": context.rng.random()}

    fair.version, fair.uses_global_rng = 1, False  # type: ignore[attr-defined]

    class Seeded(BatchCollator):
        version: ClassVar[int | str | None] = 1

        def collate(self, rows: Sequence[Sequence[Any]], context: Any) -> dict[str, Any]:
            return {"r": np.random.rand(3)}

    promises(processor=FunctionProcessor(fair), collator=Seeded())


def test_a_promise_is_true_or_false() -> None:
    """Anything else is refused before an item is processed."""

    def odd(raw: Any) -> Any:
        return raw

    odd.version, odd.uses_global_rng = 1, "no"  # type: ignore[attr-defined]

    with pytest.raises(InvalidJob, match="uses_global_rng is 'no'"):
        FunctionProcessor(odd).setup()
