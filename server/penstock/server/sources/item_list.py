"""A list of items, written in the job file or built in Python."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.server.roles.parameters import declared
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource
from penstock.server.sources.requirements import check_indices
from penstock.server.usercode.copies import own_copy
from penstock.wire.errors import InvalidJob


@declared
class ItemsSource(IndexedSource):
    """The items of a list. Every fetch gives copies: a processor may change what it is given.

    Args:
        items: Numbers, strings, bytes, None, arrays (anything with `__array__`), and lists, tuples
            and dicts of these.

    Raises:
        InvalidJob: `items` is not a list.
    """

    type_name: ClassVar[str] = "items"
    version: ClassVar[int | str | None] = 1
    gives_fresh_items: ClassVar[bool] = True

    items: Sequence[RawItem]

    def __post_init__(self) -> None:
        if isinstance(self.items, (str, bytes)) or not isinstance(self.items, Sequence):
            raise InvalidJob(
                f"items is of type {type(self.items).__name__}: give a list", key="source.items"
            )
        self._items = list(self.items)

    def __len__(self) -> int:
        return len(self._items)

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return copies of the items at `indices`, in that order.

        Raises:
            IndexError: An index is negative or not below the length.
        """
        check_indices(indices, len(self))
        return [own_copy(self._items[index]) for index in indices]

    def columns_of_items(self) -> dict[str, str] | None:
        """Return the keys of all items, if all are dicts."""
        if not all(isinstance(item, Mapping) for item in self._items):
            return None
        return {str(key): "" for item in self._items for key in item}

    def has_column(self, name: str) -> bool:
        """Tell whether every item is a dict, and one of them has this key."""
        return name in (self.columns_of_items() or ())

    def column(self, name: str, start: int, stop: int) -> list[Any]:
        """Return the values of a key of the items `[start, stop)`; None = it is not there."""
        return [item.get(name) for item in self._items[start:stop]]

    def parameters(self) -> dict[str, Any]:
        """Return nothing: the fingerprint identifies the items."""
        return {}

    def fingerprint(self) -> dict[str, Any]:
        """Return the length and a hash of the items' types and values.

        Raises:
            InvalidJob: An item holds a value that has no canonical bytes.
        """
        digest = hashlib.sha256()
        for number, item in enumerate(self._items):
            digest.update(canonical_bytes(item, f"items[{number}]"))
        return {"length": len(self), "sha256": digest.hexdigest()}


def canonical_bytes(value: Any, where: str) -> bytes:
    """Return bytes that differ where two values differ in type, shape, order or content.

    Raises:
        InvalidJob: A value is of a kind that has no such bytes; `where` names it.
    """
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return _framed(b"i", str(value).encode())
    if isinstance(value, float):
        return b"d" + struct.pack("<d", value)
    if isinstance(value, str):
        return _framed(b"s", value.encode("utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _framed(b"b", bytes(value))
    if isinstance(value, (list, tuple)):
        inner = [canonical_bytes(element, f"{where}[{at}]") for at, element in enumerate(value)]
        return _framed(b"l" if isinstance(value, list) else b"u", b"".join(inner))
    if isinstance(value, dict):
        # In the dict's own order: a collator may keep it.
        pairs = [
            canonical_bytes(key, f"{where} key") + canonical_bytes(element, f"{where}[{key!r}]")
            for key, element in value.items()
        ]
        return _framed(b"m", b"".join(pairs))
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if not array.dtype.hasobject:
            head = f"{array.dtype.str}{array.shape}".encode()
            return _framed(b"a", _framed(b"h", head) + array.tobytes())
    raise InvalidJob(
        f"{where} is of type {type(value).__name__}: an items source holds numbers, strings, "
        "bytes, arrays, lists and dicts; give other objects through a torch source",
        key="source.items",
    )


def _framed(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack("<Q", len(data)) + data
