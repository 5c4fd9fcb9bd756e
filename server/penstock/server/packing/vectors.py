"""Packing by several budgets at once: a pack takes what fits into every one of them.

Each sample is looked at by itself, with one pass of array code over all packs: 262,144 samples of
two limits took 5 s. The functions that know lengths alone are a hundred times as fast, and are used
wherever there are no limits.
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
    needs = np.column_stack([sizes, counts])[order]
    whole = np.concatenate([[capacity], most])
    # What is above a limit is alone, so the largest numbers to compare are the limits.
    dtype = np.int32 if whole.max() < 1 << 30 else np.int64
    rooms = np.empty((needs.shape[1], max(1, len(order))), dtype)  # by budget: compared at once
    taken_by = np.empty(len(order), np.int64)
    packs = first = 0  # packs before `first` have no room for the least length
    least = int(needs[:, 0].min()) if len(order) else 0
    is_alone: list[bool] = np.asarray((needs > whole).any(axis=1)).tolist()
    for at, need in enumerate(needs.tolist()):
        if is_alone[at]:
            rooms[:, packs] = -1
            taken_by[at], packs = packs, packs + 1
            continue
        fits = rooms[0, first:packs] >= need[0]
        for budget in range(1, len(need)):
            if need[budget]:
                fits &= rooms[budget, first:packs] >= need[budget]
        found = np.flatnonzero(fits)
        if len(found):
            left = rooms[0, first:packs][found]
            pack = first + int(found[left.argmin() if tightest else left.argmax()])
        else:
            pack, packs = packs, packs + 1
            rooms[:, pack] = whole
        rooms[:, pack] -= np.array(need, dtype)
        taken_by[at] = pack
        while first < packs and rooms[0, first] < least:
            first += 1
    return taken_by, packs
