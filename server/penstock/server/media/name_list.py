"""Many names in little memory, which the workers of a node share."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate

import numpy as np

_LENGTH = struct.Struct("<Q")


class NameList:
    """Names in bytewise order: one text, and where each begins.

    Args:
        key: By which other processes find it.
        data: What `to_bytes` gave.

    Attributes:
        key: The same.
    """

    def __init__(self, key: str, data: bytes | memoryview) -> None:
        self.key, self._data = key, data
        (count,) = _LENGTH.unpack_from(data, 0)
        self._ends = np.frombuffer(data, "<u8", count + 1, _LENGTH.size)
        self._text = memoryview(data)[_LENGTH.size + self._ends.nbytes :]

    @classmethod
    def of(cls, key: str, names: Iterable[str]) -> NameList:
        """Return a list of names, sorted."""
        encoded = sorted(map(os.fsencode, names))
        ends = np.array([0, *accumulate(map(len, encoded))], "<u8")
        return cls(key, _LENGTH.pack(len(encoded)) + ends.tobytes() + b"".join(encoded))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        """Return a name; there is one of each number below the length."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        return os.fsdecode(bytes(self._text[int(self._ends[number]) : int(self._ends[number + 1])]))

    def __iter__(self) -> Iterator[str]:
        """Yield them in order."""
        return (self[number] for number in range(len(self)))

    def blob(self) -> bytes:
        """Return bytes that differ where two lists do."""
        return self._ends.tobytes() + bytes(self._text)

    def to_bytes(self) -> bytes | memoryview:
        """Return all of it, for other processes."""
        return self._data
