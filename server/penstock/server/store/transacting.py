"""What a kind of store adds to its tables: it is opened, and it runs transactions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from penstock.server.store.about import About, describe
from penstock.server.store.tables import Tables
from penstock.server.store.thinning import Crowded
from penstock.wire.errors import PenstockError

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Transacting")

Transaction = Callable[[Tables], Coroutine[Any, Any, T]]
"""What runs within one transaction."""


class Transacting(ABC):
    """Runs transactions over the rows of one installation.

    The coroutines may be called concurrently, from one event loop.
    """

    def __init__(self) -> None:
        self._crowded = Crowded()

    @property
    @abstractmethod
    def uuid(self) -> str:
        """Return the identity of this store, so that another store is never mistaken for it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Return where it is, for people: an absolute path, or an address without passwords."""

    @property
    def created(self) -> str:
        """Return where `open` created an empty store; empty = the store existed."""
        return ""

    @property
    def shared(self) -> bool:
        """Tell whether other processes, or other nodes of this one, may write to it, too."""
        return False

    @abstractmethod
    async def open(self) -> None:
        """Open or create.

        Raises:
            StoreLocked: Another process has it open.
            StoreCorrupt: It is damaged, or not a store, or of a newer format.
            StoreUnavailable: It cannot be reached, or its folder cannot be written.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish running calls and close; idempotent."""

    async def discard(self) -> None:
        """Close it, and remove what `open` has created: for a node that nobody could read from.

        A store that existed stays as it is. By default, all stay.
        """
        await self.close()

    @abstractmethod
    async def transact(self, transaction: Transaction[T]) -> T:
        """Return what a transaction returns: all of its changes are written durably, or none.

        Raises:
            PenstockError: What it raised; `StoreUnavailable` if the store is not open.
        """

    async def operate(self, about: About, transaction: Transaction[T]) -> T:
        """Run the transaction of an operation, as `transact` does.

        Args:
            about: What it is about: for stores in which transactions may overlap.
            transaction: What it does; it may be called again where it has had no effect.
        """
        return await self.transact(transaction)

    @abstractmethod
    def watch(self, on_error: Callable[[PenstockError], None]) -> None:
        """Call back with every error that `transact` ends with, from now on, in the event loop."""

    @abstractmethod
    async def probe(self) -> None:
        """Write something meaningless, durably: find out whether commits would work.

        Its errors are not reported to `watch`.

        Raises:
            StoreUnavailable, StoreCorrupt: As `transact` would.
        """


def transaction(
    body: Callable[Concatenate[S, Tables, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make an operation of what it does within a transaction: callers give no tables."""
    about = describe(body)

    @wraps(body)
    def operation(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self.operate(about(args, kwargs), lambda tables: body(self, tables, *args, **kwargs))

    return operation
