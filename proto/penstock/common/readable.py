"""Which files can be read now, whatever their numbers are."""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


F = TypeVar("F", bound="int | _HasFileno")


def readable(files: Sequence[F], timeout_s: float | None = None) -> list[F]:
    """Return the files that can be read or have come to their end, in the order of `files`.

    By `poll`, since `select.select` refuses descriptors above 1,023, and a process with many
    readers or many open shards has such.

    Args:
        files: Descriptors, or what has one.
        timeout_s: How long to wait for the first; 0 = only look, None = until there is one.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    found = poll.poll(None if timeout_s is None else math.ceil(1000 * max(0.0, timeout_s)))
    ready = {fd for fd, _ in found}
    return [file for file in files if (file if isinstance(file, int) else file.fileno()) in ready]
