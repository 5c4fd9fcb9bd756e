"""What windows of a planned job hold, added up: in one process, or in several side by side."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.job.role_set import RoleSet
from penstock.server.planning.log.chains import Chains
from penstock.server.planning.log.index_windows import WindowSamples
from penstock.server.planning.log.packed_window import PackedWindow, counts_of
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.planning.report.known_sizes import collates_by_size
from penstock.server.planning.report.totals import BatchTotals
from penstock.server.roles.filling import BatchColumns, BatchSizes, Misfit, Numbers

KEPT_BYTES = 256 << 20
"""Blocks of the index that are kept: each window is made of runs from all over it, so of an index
of up to 10^8 samples no block is read twice."""

BY_CHANCE = ("dropped:tail", "dropped:max_packs", "batcher:tail_truncated")
"""Counts of samples that are left out or cut whatever their size is: another one in each epoch."""

WindowKey = tuple[int, int]
"""The number of a reading group, and of a window of it."""


class WindowFigures:
    """Adds up windows of a planned job, for as many epochs as differ.

    Args:
        names: The names of the sources, by their numbers.

    Attributes:
        tally: Of all batches, of each of the epochs.
        samples, tokens: By source, of what is in batches.
        once: Tokens of the samples that have pieces in batches, all of each.
        processed: The same, each as often as it is processed: once for the batches with a piece of
            it that a lane makes while it keeps it, and once for each other batch.
        kept: Tokens of the samples that lanes keep meanwhile, at most: all lanes of a reading
            group, which stand at the same place of a window.
        counts: Of the items and samples that are not, in one epoch.
        costs: By window, its costs by name, in the first of the epochs.
        chains: By window, its chains, if it has any.
        by_chance: Which sample is left out, or split, differs from epoch to epoch.
        misfits: Batches that cannot be made, with the window and the epoch that they are in.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.tally = list(names), BatchTotals()
        self.samples = np.zeros(len(names), np.int64)
        self.tokens = np.zeros(len(names), np.int64)
        self.once = self.processed = self.kept = 0
        self.counts: Counter[str] = Counter()
        self.costs: dict[WindowKey, dict[str, npt.NDArray[Any]]] = {}
        self.chains: dict[WindowKey, Chains] = {}
        self.by_chance = False
        self.misfits: list[tuple[Misfit, WindowKey, int]] = []

    def merge(self, other: WindowFigures) -> None:
        """Take in what another has added up, of other windows."""
        self.tally.merge(other.tally)
        self.samples += other.samples
        self.tokens += other.tokens
        self.once += other.once
        self.processed += other.processed
        self.kept = max(self.kept, other.kept)
        self.counts.update(other.counts)
        self.costs.update(other.costs)
        self.chains.update(other.chains)
        self.by_chance |= other.by_chance
        self.misfits += other.misfits

    def encode(self) -> bytes:
        """Return it as bytes, for another process."""
        arrays: dict[str, npt.NDArray[Any]] = {
            f"tally.{name}": array for name, array in self.tally.to_arrays().items()
        }
        for number, (key, costs) in enumerate(self.costs.items()):
            arrays[f"key.{number}"] = np.array(key, np.int64)
            arrays.update({f"cost.{number}.{name}": array for name, array in costs.items()})
            if key in self.chains:
                arrays[f"chains.{number}"], arrays[f"bounds.{number}"] = self.chains[key]
        known = {
            "names": self.names,
            "counts": self.counts,
            "processed": [self.once, self.processed, self.kept],
            "by_chance": self.by_chance,
            "misfits": self.misfits,
        }
        out = io.BytesIO()
        arrays["told"] = np.frombuffer(json.dumps(known).encode(), np.uint8)
        arrays["samples"], arrays["tokens"] = self.samples, self.tokens
        np.savez(out, **arrays)  # type: ignore[arg-type]  # no array has the name of an option
        return out.getvalue()

    @classmethod
    def decode(cls, data: bytes) -> WindowFigures:
        """Return what `encode` gave."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            told = json.loads(arrays["told"].tobytes())
            found = cls(told["names"])
            found.counts, found.by_chance = Counter(told["counts"]), told["by_chance"]
            found.samples, found.tokens = arrays["samples"], arrays["tokens"]
            found.once, found.processed, found.kept = told["processed"]
            found.misfits = [
                (Misfit(*misfit), (group, window), epoch)
                for misfit, (group, window), epoch in told["misfits"]
            ]
            tally: dict[str, npt.NDArray[Any]] = {}
            for name in arrays.files:
                kind, _, rest = name.partition(".")
                if kind == "tally":
                    tally[rest] = arrays[name]
                elif kind == "cost":
                    number, _, cost = rest.partition(".")
                    group, window = arrays[f"key.{number}"].tolist()
                    found.costs.setdefault((group, window), {})[cost] = arrays[name]
                elif kind == "chains":
                    group, window = arrays[f"key.{rest}"].tolist()
                    found.chains[group, window] = Chains(arrays[name], arrays[f"bounds.{rest}"])
        found.tally = BatchTotals.from_arrays(tally)
        return found


def add_up(
    roles: RoleSet,
    keys: Iterable[WindowKey],
    epochs: int,
    tell: Callable[[WindowKey], None] = lambda key: None,
) -> WindowFigures:
    """Return what some windows hold.

    Args:
        roles: The set of roles, planned.
        keys: Which windows.
        epochs: How many epochs, from the first on; more than one only where they differ.
        tell: KnownSizes of each window that is done.

    Raises:
        BadItem: A sample does not fit, and the batcher refuses it.
        InvalidJob, SourceUnavailable: The index cannot be read.
    """
    log = planned_log(roles)
    found = WindowFigures(list(roles.distributor.drawn_from()))
    for source in log.index.sources.values():
        source.kept_bytes = max(source.kept_bytes, KEPT_BYTES)
    sized = any(source.tokens for source in log.index.sources.values())
    collator = roles.collator if collates_by_size(roles.batcher) else None
    for key in keys:
        group, number = key
        samples = log.streams[group].samples(number)
        packed = log.streams[group].window(number, samples)
        found.counts.update(packed.counts)
        by_chance = any(packed.counts[name] for name in BY_CHANCE) or (
            len(found.names) > 1 and _split_by_place(samples, packed)
        )
        found.by_chance |= by_chance
        for epoch in range(epochs):
            slots, sizes = packed.slots, packed.sizes
            if log.fills_differ or by_chance:
                slots = log.filled(samples, group, number, epoch)[slots]
            if log.fills_differ:
                sizes = samples.sizes[slots]
            batches = BatchSizes(sizes, packed.rows, packed.batches)
            columns, misfit = found.tally.add(batches, collator)
            if samples.measured is not None:
                counts = counts_of(packed, slots, samples.measured)
                found.tally.add_measured(batches, log.index.measures, counts)
            if misfit is not None:
                found.misfits.append((misfit, key, epoch))
            _count_sources(found, samples, slots, sizes)
            if epoch == 0:
                found.costs[key] = _costs(columns, packed, sized)
            if packed.chains is not None:
                found.chains[key] = packed.chains
            once, times, kept = log.streams[group].processed(number, samples, packed, epoch)
            found.once += once
            found.processed += times
            found.kept = max(found.kept, kept)
        tell(key)
    return found


def _split_by_place(samples: WindowSamples, packed: PackedWindow) -> bool:
    """Tell whether samples of one size are in different numbers of pieces, as `concat` cuts them.

    A sample then has other pieces in the place that an epoch gives it.
    """
    pieces = np.bincount(packed.slots, minlength=len(samples.sizes))
    # Only sizes of which some sample is not whole may differ: few, where a packer splits long ones.
    some = np.isin(samples.sizes, np.unique(samples.sizes[pieces != 1]))
    sizes, pieces = samples.sizes[some], pieces[some]
    order = np.argsort(sizes, kind="stable")
    return bool(((np.diff(sizes[order]) == 0) & (np.diff(pieces[order]) != 0)).any())


def _count_sources(
    found: WindowFigures, samples: WindowSamples, slots: Numbers, sizes: Numbers
) -> None:
    if len(found.names) == 1:
        found.samples += len(slots)
        found.tokens += sizes.sum()
        return
    sources, most = samples.sources[slots], len(found.names)
    found.samples += np.bincount(sources, minlength=most)
    # As float64, which is exact up to 2^53: a window has fewer tokens.
    found.tokens += np.bincount(sources, sizes, minlength=most).astype(np.int64)


def _costs(columns: BatchColumns, packed: PackedWindow, sized: bool) -> dict[str, Any]:
    """Return what batches cost, in 8 bytes for each and name at most."""
    costs: dict[str, Any] = {"samples": _narrow(columns.samples)}
    if sized:
        costs = {"tokens": _narrow(columns.tokens), "squares": columns.squares}
    return costs if packed.cost is None else {**costs, "balance": packed.cost}


def _narrow(values: Numbers) -> npt.NDArray[Any]:
    is_small = not len(values) or int(values.max()) < 1 << 32
    return values.astype(np.uint32) if is_small else values
