"""What an LMDB says of itself, read without mapping it: whether mapping it could kill the process.

LMDB trusts its file. A page that lies beyond the file's end kills whoever reads it (SIGBUS), and so
does what its first pages say of sizes, where these were damaged. Pages in the middle are not looked
at here: that would be to read all of it.

The layout is that of LMDB 0.9 on machines of 64 bits, `mdb.c` of OpenLDAP: version 1 of its data.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_META = struct.Struct("<10xH4x IIQQ I2xH32xQ I2xH32xQ QQ".replace(" ", ""))
"""Flags of the page; magic, version, address and bytes of the map; of the free pages, then of the
entries, bytes of a page, depth and root; the last page and the transaction."""

_PAGE = struct.Struct("<QHHHH")
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_BIG = 1
"""Of a node: its value lies in pages of its own."""

_NONE = (1 << 64) - 1
"""The root of a tree without entries."""

_PAGE_BYTES = tuple(1 << shift for shift in range(9, 17))
_MOST_MAPPED = 1 << 46
"""Bytes that a process may map."""

_MAX_DEPTH, _MAX_FREE_PAGES = 32, 1 << 16
_MAX_FREE_BYTES = 64 << 20
"""Of the lists of free pages, all together: 8 million pages."""


class DamagedLmdb(Exception):
    """The file is an LMDB that cannot be one; says why."""


class _Meta(NamedTuple):
    """One of the two descriptions that a file begins with.

    Attributes:
        page: Bytes of a page.
        mapped: Bytes that are mapped.
        free_root: The first page of the tree of free pages.
        root: The first page of the tree of entries.
        last: The last page.
        number: Of the transaction that wrote it; the larger one counts.
    """

    page: int
    mapped: int
    free_root: int
    root: int
    last: int
    number: int


class LmdbPages:
    """The pages of the file of an LMDB.

    Args:
        fd: The file, open for reading.
        size: Its bytes.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd, self._size, self._page = fd, size, 0

    def check(self) -> None:
        """Refuse a database of which it is known that reading it would kill the process.

        What is no LMDB at all, or of another version or machine, LMDB refuses by itself.

        Raises:
            DamagedLmdb: Says what is wrong.
        """
        first = self._meta(0)
        if first is None:
            return
        self._page = first.page
        if first.page not in _PAGE_BYTES:
            raise DamagedLmdb(f"it says that its pages have {first.page} bytes")
        second = self._meta(first.page)
        if second is None or second.page != first.page:
            raise DamagedLmdb("its first two pages do not both describe it")
        meta = max(first, second, key=lambda each: each.number)
        if meta.mapped > _MOST_MAPPED:
            raise DamagedLmdb(f"it says that {meta.mapped:,} bytes of it are mapped")
        whole = self._size // meta.page
        if meta.last + 1 > whole:
            self._check_missing(whole, meta)
        for name, at in (("entries", meta.root), ("free pages", meta.free_root)):
            if at != _NONE and not (2 <= at < whole and self._is_tree(at)):
                raise DamagedLmdb(f"the tree of its {name} begins at page {at:,}, which is none")

    def _meta(self, at: int) -> _Meta | None:
        data = os.pread(self._fd, _META.size, at)
        if len(data) < _META.size or sys.byteorder != "little":
            return None
        flags, magic, version, _, mapped, page, _, free_root, _, _, root, last, number = (
            _META.unpack(data)
        )
        if not flags & _IS_META or (magic, version) != (_MAGIC, _VERSION):
            return None
        return _Meta(page, mapped, free_root, root, last, number)

    def _is_tree(self, number: int) -> bool:
        """Tell whether a page can be one of a tree."""
        _, _, flags, lower, upper = self._header(number)
        return flags in (_BRANCH, _LEAF) and _PAGE.size <= lower <= upper <= self._page

    def _header(self, number: int) -> tuple[int, int, int, int, int]:
        if (number + 1) * self._page > self._size:
            raise DamagedLmdb(f"its page {number:,} lies beyond its end")
        data = os.pread(self._fd, _PAGE.size, number * self._page)
        return _PAGE.unpack(data)

    def _check_missing(self, whole: int, meta: _Meta) -> None:
        """Refuse a file of which pages are missing that are not free.

        Pages that were freed again before they were written may be missing at its end.
        """
        count = meta.last + 1 - whole
        lacking = {whole}
        if count <= _MAX_FREE_PAGES:
            lacking = set(range(whole, meta.last + 1))
            for pages in self._free(meta.free_root):
                lacking.difference_update(pages)
        if lacking:
            raise DamagedLmdb(
                f"it has {self._size:,} bytes, and says that it has {meta.last + 1:,} pages of "
                f"{self._page:,} bytes: it was cut off"
            )

    def _free(self, root: int) -> Iterator[tuple[int, ...]]:
        """Yield the lists of free pages."""
        waiting, left = [] if root == _NONE else [(root, 0)], _MAX_FREE_BYTES
        for _ in range(_MAX_FREE_PAGES):
            if not waiting:
                return
            number, depth = waiting.pop()
            if depth > _MAX_DEPTH or not self._is_tree(number):
                break
            data = os.pread(self._fd, self._page, number * self._page)
            flags, lower = _PAGE.unpack_from(data)[2:4]
            for at in range(_PAGE.size, lower, 2):
                place = int.from_bytes(data[at : at + 2], "little")
                if place + _NODE.size > len(data):
                    raise DamagedLmdb(f"its page {number:,} of free pages is damaged")
                low, high, node_flags, key = _NODE.unpack_from(data, place)
                if flags == _BRANCH:
                    waiting.append((low | high << 16 | node_flags << 32, depth + 1))
                    continue
                value = place + _NODE.size + key
                found = data[value : value + (low | high << 16)]
                if node_flags & _BIG:
                    start = int.from_bytes(found[:8], "little") * self._page + _PAGE.size
                    left -= low | high << 16
                    if left < 0 or start >= self._size:
                        raise DamagedLmdb("its list of free pages is damaged")
                    found = os.pread(self._fd, min(low | high << 16, self._size - start), start)
                count = min(int.from_bytes(found[:8], "little"), len(found) // 8 - 1)
                if count > 0:
                    yield struct.unpack_from(f"<{count}Q", found, 8)
        if waiting:
            raise DamagedLmdb("its list of free pages is damaged")
