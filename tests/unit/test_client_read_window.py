"""What a bench counts of batches: gaps, samples, frames and episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from penstock.client.commands.read_window import ReadWindow, frames_in, gap_quantiles
from penstock.client.loop.steps import Batch, BatchInfo
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2


def batch_of(values: Mapping[str, Any], *, items: int = 1, padding: bool = False) -> Batch:
    """Return a batch of so many items, whose collator counts nothing."""
    samples = [feed_pb2.Sample(source="s", index=at) for at in range(items)]
    header = feed_pb2.BatchHeader(samples=samples, padding=padding)
    info = BatchInfo(position=0, counts={}, header=header, body=None, _share=Share(1, 0, 1))
    return Batch(values, info=info)


def test_quantiles_are_gaps_that_there_were() -> None:
    gaps = [n / 1000 for n in range(1, 101)]
    assert gap_quantiles(gaps[::-1]) == {"p50": 0.05, "p95": 0.095, "p99": 0.099}
    assert gap_quantiles([2.0]) == {"p50": 2.0, "p95": 2.0, "p99": 2.0}
    assert gap_quantiles([]) == {}


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "frames"),
    [
        ("cam", (4, 3, 48, 64, 3), "uint8", 12),
        ("cam", (48, 64, 3), "uint8", 1),
        ("cam.y", (4, 3, 48, 64), "uint8", 12),
        ("cam.u", (4, 3, 24, 32), "uint8", 0),
        ("cam", (4, 3, 48, 64, 3), "float32", 0),
        ("state", (4, 3), "float32", 0),
        ("cam.colours", (4, 3), "uint8", 0),
    ],
)
def test_frames_are_counted_by_their_shape(
    name: str, shape: tuple[int, ...], dtype: str, frames: int
) -> None:
    assert frames_in(name, np.zeros(shape, dtype)) == frames
    assert frames_in(name, [np.zeros(shape, dtype)] * 2) == 2 * frames
    assert frames_in(name, "text") == 0


def test_samples_frames_and_episodes_add_up() -> None:
    window = ReadWindow()
    for episodes in ([3, 3, 1], [2, 2, 2], [0, 1, 2]):
        values = {
            "left": np.zeros((3, 8, 8, 3), np.uint8),
            "right.y": np.zeros((3, 2, 8, 8), np.uint8),
            "episode_index": np.array(episodes),
        }
        window.add(batch_of(values, items=3), gap_s=0.5)

    found = window.figures(seconds=1.5)

    assert (found["samples"], found["samples_per_s"]) == (9, 6.0)
    assert (found["frames"], found["frames_per_s"]) == (27, 18.0)
    assert found["episodes_per_batch"] == {"mean": 2.0, "least": 1}
    assert found["gap_s"] == {"p50": 0.5, "p95": 0.5, "p99": 0.5}


def test_padding_is_no_sample() -> None:
    window = ReadWindow()
    window.add(batch_of({"x": np.zeros(2)}, items=2, padding=True), gap_s=0.1)
    assert window.samples == 0
    assert window.figures(1.0)["episodes_per_batch"] is None
