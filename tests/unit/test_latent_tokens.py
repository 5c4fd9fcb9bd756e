"""Sizes that are estimated of shapes, as cosmos-framework's sequential batcher does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    FunctionProcessor,
    ListsCollator,
    MapDistributor,
    Sample,
    SequentialPackingBatcher,
)
from penstock.server.roles.batcher import facts_of, rule_of_sizes
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch, InvalidJob

ESTIMATE: dict[str, Any] = {
    "tokenizer_spatial_compression_factor": 16,
    "sound_latent_fps": 25,
    "length_key": "text_token_ids",
}


def theirs(sample: Sample) -> int:
    """Return what features of the original come to, value by value."""
    found = len(sample["text_token_ids"]) + 1
    for image in sample.get("images") or []:
        found += (image.shape[1] // 32) * (image.shape[2] // 32) + 2
    for video in sample.get("video") or []:
        _, frames, height, width = video.shape
        found += (height // 32) * (width // 32) * (1 + (frames - 1) // 4) + 2
    for action in sample.get("action") or []:
        found += 0 if action is None else len(action)
    for sound in sample.get("sound") or []:
        found += 0 if sound is None else int(sound.shape[-1] / 48000 * 25)
    return found


def test_the_estimate_is_that_of_cosmos() -> None:
    """Of pictures, films, actions and sounds, some of them missing."""
    batcher = SequentialPackingBatcher(10_000, **ESTIMATE)
    rng = np.random.default_rng(3)

    for _ in range(50):
        sides = rng.integers(1, 200, 6)
        sample: Sample = {
            "text_token_ids": list(range(int(rng.integers(0, 20)))),
            "images": [np.zeros((3, *sides[:2]), np.uint8)] * int(rng.integers(0, 3)),
            "video": [np.zeros((1, int(rng.integers(1, 12)), *sides[2:4]), np.uint8)],
            "action": [None, np.zeros((int(rng.integers(0, 9)), 7))],
            "sound": [None, np.zeros((1, int(rng.integers(0, 200_000))), np.int8)],
        }
        assert batcher.size_of(sample) == theirs(sample)


@pytest.mark.parametrize(
    "text",
    [
        [1, 2, 3],
        np.array([1, 2, 3]),
        np.array([[1, 2, 3]]),
        [np.array([1, 2]), np.array([3])],
    ],
)
def test_text_has_every_form(text: Any) -> None:
    """A list of ids, arrays with and without a batch axis, and a list of arrays."""
    assert SequentialPackingBatcher(99, **ESTIMATE).size_of({"text_token_ids": text}) == 4


def as_it_is(raw: Any) -> Any:
    return raw


def test_rows_are_packed_by_the_estimate() -> None:
    """A picture of 64 x 64 is 4 tokens, and 2: rows stay below the budget."""
    picture = np.zeros((3, 64, 64), np.uint8)
    items = [{"text_token_ids": [0] * n, "images": picture} for n in (1, 2, 3, 4, 5, 6)]
    job = Job(
        ItemsSource(items),
        MapDistributor(shuffle="none"),
        FunctionProcessor(as_it_is),
        SequentialPackingBatcher(21, lookahead_limit=2, **ESTIMATE),
        ListsCollator(),
        lanes=1,
        epochs=1,
        name="job",
    )
    line = Line(job, 0)

    plan = line.advance()

    assert [[ref.size for ref in row] for row in plan.rows] == [[8, 9]]
    assert line.make(plan).counts["samples"] == 2


def test_a_value_of_another_shape_is_named() -> None:
    job = Job(
        ItemsSource([{"text_token_ids": [1], "images": np.zeros((8, 8))}]),
        None,
        FunctionProcessor(as_it_is),
        SequentialPackingBatcher(21, **ESTIMATE),
        ListsCollator(),
        lanes=1,
        name="job",
    )

    with pytest.raises(BadBatch, match=r"'images' has the shape \(8, 8\), .* of \(C, H, W\)"):
        Line(job, 0).advance()


def test_without_an_estimate_sizes_are_lengths() -> None:
    """And an index of them is one of lengths; with it, one of this batcher alone."""
    plain, estimating = SequentialPackingBatcher(9), SequentialPackingBatcher(9, **ESTIMATE)

    assert facts_of(plain).length_key == "input_ids"
    assert rule_of_sizes(plain) == {"length_of": "input_ids"}
    assert facts_of(estimating).length_key is None
    assert rule_of_sizes(estimating) == {"batcher": estimating.identity()}
    with pytest.raises(InvalidJob, match="patch_spatial is of an estimate"):
        SequentialPackingBatcher(9, patch_spatial=4)
