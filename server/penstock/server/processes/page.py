"""A shared memory page where a worker records its current work, for when it hangs or dies."""

from __future__ import annotations

import json
import mmap
import struct
import time
from collections import defaultdict
from functools import cache
from typing import Any, NamedTuple

from penstock.server.core.refs import ItemRef
from penstock.wire.plain import clean_text

PAGE_BYTES = 4096

_PAGE_HEAD = struct.Struct("<QI")  # a number that grows with every note, and the note's length

MAX_NOTE_BYTES = PAGE_BYTES - _PAGE_HEAD.size


STAGES = (
    "build",
    "collate",
    "encode",
    "fetch",
    "idle",
    "plan",
    "process",
    "replay",
    "retrying",
    "setup",
)
"""What a worker may be doing, as it notes it."""


class Note(NamedTuple):
    """What a worker is at.

    Attributes:
        serial: Grows with every note.
        stage: What it does; empty = the note was not finished.
        of: What it does it for: a log by its id, hex; a process that counts, a job by name.
        lane: The lane.
        item: The item, where there is one.
    """

    serial: int
    stage: str = ""
    of: str | None = None
    lane: int | None = None
    item: ItemRef | None = None

    @property
    def log_id(self) -> bytes | None:
        """Return the log that it is about, where `of` is one; a role may write anything there."""
        try:
            return bytes.fromhex(self.of or "") or None
        except (TypeError, ValueError):
            return None


class Page:
    """A page of memory where a worker notes what it does; the server reads it after a death."""

    def __init__(self, fd: int, *, write: bool = False) -> None:
        self._map = mmap.mmap(
            fd, PAGE_BYTES, prot=mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        )
        self._serial = 0
        self._stage, self._since_s = "idle", time.perf_counter()
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._item: ItemRef | None = None
        self._item_text = _item_text(None)

    def note(
        self,
        stage: str,
        of: str | None = None,
        lane: int | None = None,
        item: ItemRef | None = None,
    ) -> None:
        """Write what comes next; the time since the last note counts for its stage."""
        now = time.perf_counter()
        self._spent_s[self._stage] += now - self._since_s
        self._stage, self._since_s = stage, now
        if item is not self._item:  # one is noted several times
            self._item, self._item_text = item, _item_text(item)
        text = (_note_head(stage, of, lane) + self._item_text)[:MAX_NOTE_BYTES]
        self._serial += 1
        data = _PAGE_HEAD.pack(self._serial, len(text)) + text
        self._map[: len(data)] = data

    def take_spent(self) -> dict[str, float]:
        """Return the seconds spent at each stage since the last call, without those of waiting."""
        self.note(self._stage)
        spent, self._spent_s = dict(self._spent_s), defaultdict(float)
        spent.pop("idle", None)
        return spent

    def read(self) -> Note:
        """Return the last note."""
        serial, length = _PAGE_HEAD.unpack_from(self._map)
        try:
            text = self._map[_PAGE_HEAD.size : _PAGE_HEAD.size + length]
            stage, of, lane, item = json.loads(text)
            if stage not in STAGES:  # a role's code may write anything here
                return Note(serial)
            return Note(serial, stage, of, lane, _item(item) if item else None)
        except (ValueError, TypeError, RecursionError):
            return Note(serial)


def _item(entry: Any) -> ItemRef:
    source, index, epoch = entry
    if not (isinstance(source, str) and type(index) is int and type(epoch) is int):
        raise TypeError("not an item")
    return ItemRef(clean_text(source, 300), index, epoch)


@cache
def _note_head(stage: str, of: str | None, lane: int | None) -> bytes:
    """Return the JSON of a note up to its item; by hand, since every batch writes several."""
    return json.dumps([stage, of, lane, None]).removesuffix("null]").encode()


def _item_text(item: ItemRef | None) -> bytes:
    """Return the rest of the JSON of a note."""
    if item is None:
        return b"null]"
    return f"[{_quoted(item.source)},{item.index},{item.epoch}]]".encode()


@cache
def _quoted(text: str) -> str:
    return json.dumps(text)
