"""Positions in three dimensions (time, height, width), as Qwen's models rotate by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def rope_positions(
    length: int,
    starts: Sequence[int],
    grids: Sequence[tuple[int, int, int]],
    merge: int,
    seen: npt.NDArray[np.bool_] | None = None,
    intervals: Sequence[float] | None = None,
) -> npt.NDArray[np.int32]:
    """Return the positions of a document's tokens.

    Text counts on in all three dimensions at once. The tokens of a picture have their row and
    their column, from where the text before them ended, and those of a video their time, too; the
    text after it goes on from the larger of row and column. Section 2.1 of "Qwen2-VL" (arXiv
    2409.12191).

    Args:
        length: How many tokens the document has, t.
        starts: Where the tokens of each picture or video begin, in order.
        grids: The patches of each: times, rows, columns.
        merge: Rows, and columns, of patches that become one token.
        intervals: How far apart the times of each are, which Qwen2.5-VL takes of a video's rate:
            time k has k times that, cut to a whole number, reckoned in float32. None = 1 of all.
        seen: bool (t,), False on tokens that attention does not see, whole pictures among them:
            the others count as if these were not there. They have the position before them.
            None = all are seen.

    Returns:
        int32 (3, t).
    """
    steps = np.ones(length, np.int32)
    """How much further the position is after each token; text by one."""
    inner = np.zeros((3, length), np.int32)
    """What a picture's token adds to the position that its picture begins at."""
    if seen is not None:
        steps[~seen] = 0
    apart = [1.0] * len(starts) if intervals is None else intervals
    for start, (times, rows, columns), interval in zip(starts, grids, apart, strict=True):
        rows, columns = rows // merge, columns // merge
        stop = start + times * rows * columns
        if seen is not None and not seen[start]:
            continue
        steps[start : stop - 1] = 0
        steps[stop - 1] = max(rows, columns)
        where = inner[:, start:stop].reshape(3, times, rows, columns)
        begin = np.arange(times, dtype=np.float32) * np.float32(interval)
        where[0] = begin.astype(np.int32)[:, None, None]
        where[1] = np.arange(rows, dtype=np.int32)[:, None]
        where[2] = np.arange(columns, dtype=np.int32)
    after = np.cumsum(steps, dtype=np.int32)
    begins = after - steps
    if seen is not None:
        begins[~seen] = np.maximum(begins[~seen] - 1, 0)
    return inner + begins
