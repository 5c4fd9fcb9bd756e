"""Pool packing: padded batches of like lengths, chosen from a pool of pending samples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import islice
from operator import le, sub

from penstock.server.packing.lengths import Lengths, checked

STRATEGIES = ("prefer_closest", "prefer_first")
LONG_SAMPLE_THRESHOLD = 1000
"""Halving cuts the budget when the longest member has this much: cosmos-framework's constant."""


def pool(
    lengths: Lengths,
    capacity: int,
    *,
    pool_size: int = 16,
    max_batch_size: int | None = 1,
    long_threshold: int = 6400,
    strategy: str = "prefer_closest",
    halve_long: bool = True,
    kinds: Sequence[str] | None = None,
) -> list[list[int]]:
    """Return batches of like lengths: the oldest of a pool of samples, and what suits it best.

    cosmos-framework's `PoolPackingBatcher`. The pool is filled to `pool_size` before each batch.

    Args:
        lengths: The length of each sample, 0 or more.
        capacity: What a batch may cost once padded: `longest * count`, in the unit of `lengths`.
        pool_size: How many samples there are to choose from.
        max_batch_size: The most samples of a batch; None or 0 = no such limit.
        long_threshold: A sample of this length or more is a batch of its own.
        strategy: `prefer_closest` or `prefer_first`: see `choose`.
        halve_long: Halve the capacity once the longest member has 1,000 or more.
        kinds: What must not be mixed in a batch, per sample, for example its modality.

    Returns:
        Batches of indices, each index once; see `choose` for what a batch may cost.

    Raises:
        ValueError: The capacity or the pool size is below 1, a length is negative or not a whole
            number, the strategy is unknown, or there are not as many kinds as lengths.
    """
    sizes, capacity = checked(lengths, capacity)
    if pool_size < 1:
        raise ValueError(f"pool_size is {pool_size}: a pool holds at least 1 sample")
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}: choose one of {', '.join(STRATEGIES)}")
    if kinds is not None and len(kinds) != len(sizes):
        raise ValueError(f"there are {len(kinds)} kinds for {len(sizes)} lengths: give one each")
    batches: list[list[int]] = []
    coming = iter(range(len(sizes)))
    pending = list(islice(coming, pool_size))
    while pending:
        chosen = choose(
            [sizes[index] for index in pending],
            [""] * len(pending) if kinds is None else [kinds[index] for index in pending],
            capacity,
            max_batch_size=max_batch_size,
            long_threshold=long_threshold,
            strategy=strategy,
            halve_long=halve_long,
        )
        batches.append([pending[number] for number in chosen])
        taken = set(chosen)
        pending = [index for number, index in enumerate(pending) if number not in taken]
        pending += islice(coming, len(taken))
    return batches


def choose(
    lengths: Sequence[int],
    kinds: Sequence[str],
    capacity: int,
    *,
    max_batch_size: int | None,
    long_threshold: int,
    strategy: str,
    halve_long: bool,
    keys: Sequence[Hashable] | None = None,
    counts: Sequence[Sequence[int]] | None = None,
    most: Sequence[int] = (),
) -> list[int]:
    """Return the indices, within a pool, of the samples that form the next batch.

    The oldest sample (index 0) is always chosen, so none starves, and it is never dropped, however
    long it is. Then, as long as one fits, the sample of the oldest's kind that makes the padded
    cost `longest * count` least. Among equal costs `prefer_closest` takes the length nearest to the
    longest so far, and `prefer_first` and all remaining ties the lowest index.

    Args:
        lengths: The lengths of the pool's samples, oldest first; at least one.
        kinds: Their kinds; a batch holds one kind.
        capacity: What the padded batch may cost (`<=`). With `halve_long` only half of it, rounded
            down, counts once the longest member *before* the candidate has 1,000 or more: the
            candidate itself does not, so a long one may still join within the whole capacity.
        max_batch_size: The most samples of a batch; None or 0 = no such limit.
        long_threshold: An oldest sample of this length or more stays alone.
        strategy: `prefer_closest` or `prefer_first`.
        halve_long: Whether the capacity halves at all.
        keys: What each sample is: a batch holds no two of one key. None = all differ.
        counts: What each sample counts beside its length, where that is limited.
        most: What a batch may count of each, unless the oldest alone is above.

    Returns:
        Places in the order of choice, the first one 0.
    """

    def cap(longest: int) -> int:
        return capacity // 2 if halve_long and longest >= LONG_SAMPLE_THRESHOLD else capacity

    longest = lengths[0]
    chosen = [0]
    if max_batch_size == 1 or longest >= long_threshold or longest >= cap(longest):
        return chosen
    candidates = [index for index in range(1, len(lengths)) if kinds[index] == kinds[0]]
    if keys is not None:
        candidates = [index for index in candidates if keys[index] != keys[0]]
    rooms = list(most)
    while candidates and (not max_batch_size or len(chosen) < max_batch_size):
        if counts is not None:
            rooms = list(map(sub, rooms, counts[chosen[-1]]))
            candidates = [index for index in candidates if all(map(le, counts[index], rooms))]
        best: tuple[int, int, int] | None = None
        for index in candidates:
            cost = max(longest, lengths[index]) * (len(chosen) + 1)
            if cost <= cap(longest):
                away = abs(lengths[index] - longest) if strategy == "prefer_closest" else 0
                best = min(best or (cost, away, index), (cost, away, index))
        if best is None:
            break
        index = best[2]
        chosen.append(index)
        candidates.remove(index)
        if keys is not None:
            candidates = [other for other in candidates if keys[other] != keys[index]]
        longest = max(longest, lengths[index])
    return chosen
