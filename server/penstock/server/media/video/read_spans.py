"""Which bytes of a medium are read: noted, or told beforehand by its index."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from penstock.server.media.fetching import GAP_BYTES
from penstock.server.media.medium import HEAD_BYTES, Medium
from penstock.server.media.video.video_index import VideoIndex

STEP_BYTES = 1 << 20
"""Of frames between two starts so much is fetched at a time, from the first of them on: items that
want others of them find these there, and none of them is fetched twice for that."""

Spans = list[tuple[int, int]]


class ReadSpans(Medium):
    """A medium that notes what is read of it.

    Args:
        medium: The medium.
    """

    def __init__(self, medium: Medium) -> None:
        self.name, self._medium = medium.name, medium
        self._spans: Spans = []

    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes."""
        return self._noted(0, self._medium.head(count))

    def read(self) -> bytes | memoryview:
        """Return all its bytes."""
        return self._noted(0, self._medium.read())

    def size(self) -> int:
        """Return how many bytes it has."""
        return self._medium.size()

    def at(self, start: int, stop: int) -> bytes | memoryview:
        """Return its bytes `[start, stop)`."""
        return self._noted(start, self._medium.at(start, stop))

    def available(self, start: int, stop: int) -> bytes | memoryview:
        """Return its bytes from `start` on, all of them: what is noted depends on nothing else."""
        return self.at(start, stop)

    def version(self) -> str:
        """Return what tells its content from others."""
        return self._medium.version()

    def _noted(self, start: int, data: bytes | memoryview) -> bytes | memoryview:
        self._spans.append((start, start + len(data)))
        return data

    def joined(self) -> Spans:
        """Return what was read, rising and disjoint."""
        return joined(self._spans)


def joined(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return spans, rising and disjoint; those with little between them are one."""
    found: Spans = []
    for start, stop in sorted(spans):
        if start >= stop:
            continue
        if found and start <= found[-1][1] + GAP_BYTES:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def spans_of(index: VideoIndex, numbers: Iterable[int], size: int) -> Spans:
    """Return what will be read of a file to open it and to decode frames, rising and disjoint.

    As a rule: where a container interleaves its packets in another way, a reader asks for more.

    Args:
        index: Of the file.
        numbers: Which frames.
        size: Of the file, in bytes.
    """
    spans = [(int(start), int(stop)) for start, stop in index.opening.reshape(-1, 2)]
    if not len(index.places):  # it is always read from its beginning
        return joined([*spans, (0, size)])
    done: set[tuple[int, int]] = set()
    for number in numbers:
        first = int(index.starts[index.start_of(number)])
        last = min(int(index.packets[number]) + index.reach, len(index.places) - 1)
        place = int(np.searchsorted(index.starts, last, "right"))
        last_of = int(index.starts[place]) if place < len(index.starts) else len(index.places)
        if (first, last_of) in done:
            continue
        begins = int(index.places[first : last + 1].min())
        needed = min(size, int(index.ends[first : last + 1].max())) - begins
        stepped = -(-needed // STEP_BYTES) * STEP_BYTES
        if (whole := min(size, int(index.ends[first:last_of].max())) - begins) <= stepped:
            done.add((first, last_of))
        spans.append((begins, begins + min(stepped, whole)))
    return joined(spans)
