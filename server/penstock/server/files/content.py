"""Hashes that identify the content of data files, wherever and whenever they were copied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

WHOLE_BYTES = 64 << 20
"""Up to this size every byte is hashed."""

BLOCK_BYTES = 64 << 10
"""Of larger files the head, the tail and some blocks between them, each of this size, are
hashed."""

BLOCKS = 16
"""How many blocks between head and tail."""

LISTED_FILES = 64
"""Up to so many files a fingerprint lists them one by one, so that a difference names the file."""

ReadAt = Callable[[int, int], bytes]
"""`(start, stop) -> bytes` of one file."""


def sampled_ranges(size: int, blocks: int = BLOCKS) -> list[tuple[int, int]]:
    """Return which `[start, stop)` of a file of `size` bytes stand for all of it, in order.

    Head, tail, and `blocks` blocks at offsets that depend on the size alone.
    """
    if size <= (blocks + 2) * BLOCK_BYTES:
        return [(0, size)]
    last = size - BLOCK_BYTES
    starts = {0, last}
    for number in range(blocks):
        digest = hashlib.blake2b(f"penstock sample\0{size}\0{number}".encode(), digest_size=8)
        starts.add(int.from_bytes(digest.digest(), "little") % last)
    return [(start, start + BLOCK_BYTES) for start in sorted(starts)]


def content_hash(read_at: ReadAt, size: int, *, whole: bool, blocks: int = BLOCKS) -> str:
    """Return the SHA-256, hex, that stands for the content of one file.

    Args:
        read_at: Reads one range of the file.
        size: Bytes in the file.
        whole: Every byte, in pieces of 4 MiB; otherwise `sampled_ranges`.
        blocks: How many blocks between head and tail where it is sampled.
    """
    step = 4 << 20
    ranges = (
        [(start, min(size, start + step)) for start in range(0, size, step)]
        if whole
        else sampled_ranges(size, blocks)
    )
    digest = hashlib.sha256()
    for start, stop in ranges:
        digest.update(read_at(start, stop))
    return digest.hexdigest()


def files_fingerprint(files: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
    """Return the fingerprint of files `(logical name, bytes, hash)`, in their items' order."""
    entries = [list(entry) for entry in files]
    fingerprint: dict[str, Any] = {
        "files": len(entries),
        "bytes": sum(size for _, size, _ in entries),
        "sha256": hashlib.sha256(json.dumps(entries).encode()).hexdigest(),
    }
    if len(entries) <= LISTED_FILES:
        fingerprint["list"] = entries
    return fingerprint
