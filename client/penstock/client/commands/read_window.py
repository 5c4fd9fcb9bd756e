"""What was read within a window of time: rates, gaps, frames and episodes, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.client.loop.steps import Batch
from penstock.wire.colours import PLANES

EPISODE = "episode_index"
"""The value that says of which episode a row is, as LeRobot's data sets have it."""

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


class ReadWindow:
    """Counts batches as they come.

    Args:
        episode: The value of a batch that says of which episode its rows are.

    Attributes:
        samples: In all batches: those that the collator counts, else items.
        frames: In all batches: of `KEY.y` planes, and of uint8 (..., height, width, 3).
    """

    def __init__(self, episode: str = EPISODE) -> None:
        self._episode = episode
        self._gaps_s: list[float] = []
        self._episodes: list[int] = []
        self._names: list[str] | None = None
        self.samples = self.frames = 0

    def add(self, batch: Batch, gap_s: float) -> None:
        """Count a batch.

        Args:
            batch: The batch, whose values are arrays of NumPy.
            gap_s: Seconds from the one before it, or from the window's begin.
        """
        info = batch.info
        assert info is not None  # the Loader has just made it
        self._gaps_s.append(gap_s)
        if not info.is_padding:
            counted = info.counts.get("samples")
            self.samples += len(info.samples) if counted is None else counted
        if self._names is None:  # every batch has the same values
            self._names = [name for name, value in batch.items() if frames_in(name, value)]
        self.frames += sum(frames_in(name, batch.get(name)) for name in self._names)
        if self._episode in batch:
            self._episodes.append(len(np.unique(np.asarray(batch[self._episode]))))

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return what was counted, by name, for a window of so many seconds."""
        return {
            "samples": self.samples,
            "samples_per_s": round(self.samples / seconds, 2),
            "frames": self.frames,
            "frames_per_s": round(self.frames / seconds, 2),
            "gap_s": gap_quantiles(self._gaps_s),
            "episodes_per_batch": _mean_and_least(self._episodes),
        }


def gap_quantiles(gaps_s: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99: each a gap that there was, which so many do not exceed."""
    ordered = sorted(gaps_s)
    return {
        name: round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 6)
        for name, share in QUANTILES.items()
        if ordered
    }


def frames_in(name: str, value: Any) -> int:
    """Return how many frames or pictures a value of a batch holds; 0 = it holds none."""
    if isinstance(value, list):
        return sum(frames_in(name, inner) for inner in value)
    shape: tuple[int, ...] = getattr(value, "shape", ())
    if str(getattr(value, "dtype", "")) != "uint8":
        return 0
    if name.endswith(PLANES[0]) and len(shape) >= 2:
        return math.prod(shape[:-2])
    return math.prod(shape[:-3]) if len(shape) >= 3 and shape[-1] == 3 else 0


def _mean_and_least(counts: Sequence[int]) -> Mapping[str, float] | None:
    if not counts:
        return None
    return {"mean": round(sum(counts) / len(counts), 2), "least": min(counts)}
