"""Values that are kept until the objects that they belong to are gone."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

logger = logging.getLogger("penstock")

T = TypeVar("T")


class Lifetimes(Generic[T]):
    """Learns from the garbage collector which objects are gone, and has a value for each.

    The end of an object comes anywhere, maybe inside these calls or where a signal handler raises:
    it takes no lock and runs no Python, it appends a reference, which `take_ended` looks up.
    """

    def __init__(self) -> None:
        # By the id of the reference, which must live to be called.
        self._watched: dict[int, tuple[weakref.ref[Any], T]] = {}
        self._gone: deque[weakref.ref[Any]] = deque()

    def watch(self, thing: Any, value: T) -> None:
        """Keep a value until an object is gone, and then until `take_ended`; any thread calls."""
        reference = weakref.ref(thing, self._gone.append)
        self._watched[id(reference)] = (reference, value)

    def take_ended(self) -> list[T]:
        """Return the values whose objects are gone, once each; one thread at a time calls."""
        ended = []
        while self._gone:
            ended.append(self._watched.pop(id(self._gone.popleft()))[1])
        return ended

    def ended(self) -> list[T]:
        """Return the values that `take_ended` would return, and leave them; any thread calls."""
        found = [self._watched.get(id(reference)) for reference in list(self._gone)]
        return [watched[1] for watched in found if watched is not None]

    def values(self) -> list[T]:
        """Return the values of `alive` and of `ended`."""
        return [value for _, value in list(self._watched.values())]

    def alive(self) -> list[T]:
        """Return the values whose objects are there."""
        gone = {id(reference) for reference in list(self._gone)}
        return [value for key, (_, value) in list(self._watched.items()) if key not in gone]


class Passing(Protocol):
    """What completes without us, such as the end of a copy."""

    def query(self) -> bool:
        """Tell whether it is complete; never waits."""
        ...


_KEPT: deque[tuple[Any, list[Passing]]] = deque()


def keep_until(thing: Any, events: Iterable[Passing]) -> None:
    """Keep an object until all of some events are complete, whatever else is gone by then.

    It asks nothing and takes no lock, so that finalizers may call it; `release_kept` asks.
    """
    _KEPT.append((thing, list(events)))


def release_kept() -> None:
    """Release what was kept until events that are complete by now; never on a loop's thread.

    A device reads on when a Loader is closed: so whatever takes memory next looks after that.
    """
    for _ in range(len(_KEPT)):
        try:
            kept = _KEPT.popleft()
        except IndexError:  # another thread looks, too
            return
        is_over = False
        try:
            is_over = all(event.query() for event in kept[1])
        except Exception as error:  # of whatever driver: not the caller's, who may be any Loader
            logger.debug("memory of a device that failed is kept: %s", error)
        finally:
            if not is_over:
                _KEPT.append(kept)
