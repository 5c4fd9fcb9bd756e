"""One picture or sound of an item, read when somebody asks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.wire.errors import PenstockError

HEAD_BYTES = 64 << 10
"""Bytes of a file that are read for its header, where more is not asked for."""


class Medium(ABC):
    """The bytes of one picture or sound that an item holds or refers to.

    Attributes:
        name: What errors call it: a path, a URL, a key, or the place in the item that holds it.
        failure: Why it could not be read the last time; None = it could. Whoever called a processor
            looks here, since a processor may catch what it does not understand.

    Glossary:
        medium: One picture or sound of an item: bytes that it holds, or a file that it names.
    """

    name: str
    failure: PenstockError | None = None

    @abstractmethod
    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes: `count` of them, or all where it has fewer.

        Raises:
            BadItem: There is no such file.
            SourceUnavailable: It cannot be read at this moment.
            SourceChanged: It is not the one that the job began with.
        """

    @abstractmethod
    def read(self) -> bytes | memoryview:
        """Return all its bytes; each call may fetch them again.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `head`.
        """

    def size(self) -> int:
        """Return how many bytes it has; where that is not known otherwise, it is read.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `head`.
        """
        return len(self.read())

    def at(self, start: int, stop: int) -> bytes | memoryview:
        """Return its bytes `[start, stop)`, or fewer where it ends; by default out of all of them.

        For headers that stand at its end, and for spans of a file of which nobody needs the rest.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `head`.
        """
        return self.read()[start:stop]

    def available(self, start: int, stop: int) -> bytes | memoryview:
        """Return its bytes from `start` on: at least one, and none from `stop` on.

        Fewer than all of them where some were fetched before: who goes on asks for the next.
        `start` lies before its end.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `head`.
        """
        return self.at(start, stop)

    @property
    def is_far(self) -> bool:
        """Tell whether it takes so long to read that what will be needed is fetched ahead."""
        return False

    def known(self) -> tuple[int, str]:
        """Return its size, and what `version` will probably be, without reading anything.

        Returns:
            An empty version: nothing is known, nor is the size.
        """
        return 0, ""

    def version(self) -> str:
        """Return what tells its content from any other of its name; empty = nothing known does.

        Raises:
            BadItem, SourceUnavailable, SourceChanged: As `head`.
        """
        return ""


class HeldMedium(Medium):
    """Bytes that are there already.

    Args:
        name: What errors call it.
        data: The bytes.
    """

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self.name, self._data = name, data

    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes."""
        return self._data[:count]

    def read(self) -> bytes | memoryview:
        """Return all its bytes."""
        return self._data
