"""Packing by several budgets at once: a pack takes what fits into every one of them.

Each sample is looked at by itself, with one pass of array code over all packs. So it suits windows
of up to some 100,000 samples, and the functions that know lengths alone are hundreds of times as
fast: they are used wherever there are no limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Counts = Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
"""What each sample counts beside its length: a row of whole numbers for each sample."""

Integers = npt.NDArray[np.int64]


def checked_counts(
    counts: Counts | None, most: Sequence[int], samples: int
) -> tuple[Integers, Integers]:
    """Return counts, int64 (n, limits), and limits, int64 (limits,).

    Args:
        counts: What each sample counts; None = nothing.
        most: What a pack may count of each.
        samples: How many samples there are.

    Raises:
        ValueError: They are not a whole number of at least 0 for each sample and limit, or a limit
            is below 1.
    """
    limits = np.array([int(each) for each in most], np.int64)
    found = np.zeros((samples, 0), np.int64) if counts is None else np.asarray(counts)
    if not samples:
        found = np.zeros((0, len(limits)), np.int64)
    if found.shape != (samples, len(limits)):
        raise ValueError(
            f"counts have the shape {found.shape}: give {len(limits)} numbers, one for each limit, "
            f"for each of {samples} samples"
        )
    if found.size and (found.dtype.kind not in "iu" or found.min() < 0):
        raise ValueError("counts are not whole numbers of at least 0")
    if (limits < 1).any():
        raise ValueError(f"most is {limits.tolist()}: a pack counts at least 1 of each")
    return found.astype(np.int64, copy=False), limits


def place(
    order: Integers,
    sizes: Integers,
    capacity: int,
    counts: Integers,
    most: Integers,
    *,
    tightest: bool,
) -> tuple[Integers, int]:
    """Return which pack takes each sample, and how many packs there are.

    Each joins, of the packs that have room for all of it, the one with the least room in lengths,
    or the most; of equal ones the oldest. Where none has, it opens one.

    Args:
        order: int64 (n,): the samples in the order in which they are packed.
        sizes: int64 (samples,): their lengths.
        capacity: What the lengths of a pack sum to, at most. A sample that is longer, or above a
            limit, is a pack of its own, which takes nothing more.
        counts: int64 (samples, limits).
        most: int64 (limits,).
        tightest: True takes the pack with the least room.
    """
    needs = np.column_stack([sizes, counts])
    whole = np.concatenate([[capacity], most])
    rooms = np.empty((max(1, len(order)), needs.shape[1]), np.int64)
    taken_by = np.empty(len(order), np.int64)
    packs = first = 0  # packs before `first` have no room for the least length
    least = int(needs[order, 0].min()) if len(order) else 0
    for at, need in enumerate(needs[order]):
        if (need > whole).any():
            rooms[packs] = -1
            taken_by[at], packs = packs, packs + 1
            continue
        some = rooms[first:packs]
        fits = np.flatnonzero((some >= need).all(axis=1))
        if len(fits):
            left = some[fits, 0]
            pack = first + int(fits[left.argmin() if tightest else left.argmax()])
        else:
            pack, packs = packs, packs + 1
            rooms[pack] = whole
        rooms[pack] -= need
        taken_by[at] = pack
        while first < packs and rooms[first, 0] < least:
            first += 1
    return taken_by, packs
