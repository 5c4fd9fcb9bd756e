"""How transactions reach rows: everything that a kind of store must implement for them.

`transactions` are written once, over `Tables`. Its methods are coroutines, since a database over
the network answers later; a store that never waits for its rows runs a transaction with `finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from penstock.server.store.rows import Change, Row, Value

R = TypeVar("R", bound=Row)
T = TypeVar("T")


class Tables(ABC):
    """The rows of a store, within one transaction.

    What a transaction has written it sees, and others see all of it or nothing.
    """

    @abstractmethod
    def now(self) -> str:
        """Return the store's time, ISO 8601 UTC: for people only, nothing compares it."""

    @abstractmethod
    async def get(self, kind: type[R], *key: Value) -> R | None:
        """Return the row of a key."""

    @abstractmethod
    async def some(self, kind: type[R], keys: Sequence[tuple[Value, ...]]) -> list[R | None]:
        """Return the rows of many keys, in their order; None = there is no such row."""

    @abstractmethod
    async def numbers(self, kind: type[Row], column: str, count: int) -> Sequence[int]:
        """Return numbers that no row of a class has in a column, and that nobody else is given.

        They ascend, and are above all that were given before and are in use.
        """

    @abstractmethod
    async def last(self, kind: type[R], *prefix: Value, at_most: int | None = None) -> R | None:
        """Return the row with the highest key that begins with `prefix`.

        Args:
            kind: Which rows.
            prefix: The first columns of the key.
            at_most: Only rows whose next column of the key is at most this; None = all.
        """

    @abstractmethod
    async def all(
        self,
        kind: type[R],
        *prefix: Value,
        after: Value | None = None,
        limit: int | None = None,
        where: Mapping[str, Value] | None = None,
    ) -> list[R]:
        """Return rows by key.

        Args:
            kind: Which rows.
            prefix: The first columns of their keys; none = all rows.
            after: Only rows whose next column of the key is more than this.
            limit: At most so many.
            where: Only rows that have these values in these columns.
        """

    @abstractmethod
    async def highest(self, kind: type[Row], column: str, *prefix: Value) -> int:
        """Return the highest value of a column of integers; 0 = there is no row, or none above."""

    @abstractmethod
    async def counts(self, kind: type[Row], *prefix: Value) -> dict[Any, int]:
        """Return how many rows begin with `prefix`, by the next column of their keys."""

    @abstractmethod
    async def count(self, kind: type[Row], *prefix: Value) -> int:
        """Return how many rows begin with `prefix`."""

    @abstractmethod
    async def count_each(self, kind: type[Row], prefixes: Sequence[tuple[Value, ...]]) -> list[int]:
        """Return how many rows begin with each of many prefixes, all of one length."""

    @abstractmethod
    async def steps(
        self, group_id: int, generation: int, rank: int
    ) -> tuple[int | None, int | None]:
        """Return the step of a rank's cursor, and the least of all other ranks; None = no row.

        A commit needs nothing else: when 1,024 ranks commit at once, none loads all rows.
        """

    @abstractmethod
    async def write(self, changes: Sequence[Change]) -> None:
        """Make changes, in their order."""


def finish(transaction: Coroutine[Any, Any, T]) -> T:
    """Return what a transaction gives that never has to wait for its rows.

    Raises:
        RuntimeError: It waited for something.
    """
    try:
        transaction.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    transaction.close()
    raise RuntimeError("a transaction over rows that are here waited for something else")
