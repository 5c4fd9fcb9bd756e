"""Collators of samples with pictures, given samples that nobody meant."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker
from penstock.server.roles import ProcessContext, RawItemProcessor, SimpleBatcher
from penstock.server.roles.collators import (
    DefaultBatchCollator,
    ListsCollator,
    PackedCollator,
    PaddedCollator,
    VlmCollator,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.server.sources import ItemsSource
from penstock.wire import frame
from penstock.wire.errors import BadBatch, PenstockError
from penstock.wire.v1 import feed_pb2

LAYOUTS = ("padded", "flash", "indexed", "neat")


def context() -> CollateContext:
    return CollateContext(1, 0, 0)


def shown(length: int, pictures: int = 1, **more: Any) -> Sample:
    """Return a sample of so many tokens and pictures, each of four patches."""
    ids = np.arange(1, length + 1, dtype=np.int32)
    return {
        "input_ids": ids,
        "labels": ids,
        "pixel_values": np.full((4 * pictures, 6), length, np.float32),
        "image_grid_thw": np.array([[1, 2, 2]] * pictures, np.int64).reshape(-1, 3),
        **more,
    }


def collated(layout: str, *samples: Sample) -> dict[str, Any]:
    """Return what `vlm` makes of samples, one to a row or all in one."""
    rows = [[sample] for sample in samples] if layout == "padded" else [list(samples)]
    return VlmCollator(layout=layout).collate(rows, context())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_of_no_sample_are_no_keys(layout: str) -> None:
    """Whether samples lack them, have None, or arrays without an entry."""
    for sample in (
        shown(3, 0),
        shown(3, 0, pixel_values=None, image_grid_thw=None),
        shown(3, 0, pixel_values=[], image_grid_thw=[]),
    ):
        alone = collated(layout, sample, shown(4, 0))
        beside = collated(layout, sample, shown(4, 2), sample)

        assert not {"pixel_values", "image_grid_thw"} & set(alone)
        assert alone["n_images_per_sample"].sum() == 0
        assert beside["image_grid_thw"].tolist() == [[1, 2, 2]] * 2
        assert beside["pixel_values"].tolist() == [[4.0] * 6] * 8
        each = [0, 2, 0] if layout == "padded" else [2]
        assert beside["n_images_per_sample"].tolist() == each


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pictures_of_one_shape_are_counted_without_grids(layout: str) -> None:
    """As LLaVA's are: an entry of the pixels is a picture. Patches without grids are none."""
    told = [shown(3, pixel_values=np.ones((n, 3, 2, 2)), image_grid_thw=None) for n in (2, 0, 1)]
    patches = shown(3, image_grid_thw=None)

    each = [2, 0, 1] if layout == "padded" else [3]
    assert collated(layout, *told)["n_images_per_sample"].tolist() == each
    assert collated(layout, patches)["n_images_per_sample"].tolist() == [0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_none_in_place_of_a_value_is_as_if_it_were_not_there(layout: str) -> None:
    names = ("position_ids", "mm_token_type_ids", "attention_mask", "pixel_norm", "image_sizes")
    if layout == "flash":
        names = tuple(name for name in names if name != "attention_mask")
    nothing = dict.fromkeys(names)

    plain = collated(layout, shown(3), shown(4))
    found = collated(layout, shown(3, **nothing), shown(4, **nothing))

    for name, value in plain.items():
        assert np.array_equal(found[name], value), name
    types = collated(layout, shown(3, mm_token_type_ids=None), shown(4, mm_token_type_ids=[1] * 4))
    assert types["mm_token_type_ids"].sum() == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_positions_of_one_and_of_three_axes_go_together(layout: str) -> None:
    """Also where they are lists: one of one axis holds in all three."""
    own = [[5, 6, 7]] * 3
    mixed = collated(
        layout,
        shown(3, position_ids=own),
        shown(2, position_ids=np.array([3, 4])),
        shown(2, position_ids=None),
    )

    found = [mixed["position_ids"][axis][mixed["input_ids"] > 0].tolist() for axis in range(3)]
    assert found == [[5, 6, 7, 3, 4, 0, 1]] * 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pixel_values": np.array(5.0)}, "'pixel_values' of sample 0 is ndarray, not an array"),
        ({"image_grid_thw": np.array(5)}, "'image_grid_thw' of sample 0 is ndarray, not an array"),
        ({"image_grid_thw": 5}, "'image_grid_thw' of sample 0 is int, not an array"),
        ({"image_grid_thw": [1, 2, 2]}, r"shape \(3,\): \[1, 2, 2\]; give .* shape \(n, 3\)"),
        ({"image_grid_thw": [[1, 2]]}, r"give whole numbers from 1 on of shape \(n, 3\)"),
        ({"image_grid_thw": [[1, -2, -2]]}, "give whole numbers from 1 on"),
        ({"image_grid_thw": [[1, 2.0, 2]]}, "is float64 of shape .* give whole numbers"),
        ({"image_grid_thw": [[1, np.nan, 2]]}, "give whole numbers from 1 on"),
        ({"image_grid_thw": np.array([[2**63, 1, 1]], np.uint64)}, "give whole numbers from 1 on"),
        ({"image_grid_thw": [[1, 4, 4]]}, r"of shape \(4, 6\), and 'image_grid_thw' says 16"),
        ({"image_grid_thw": None}, r"of shape \(4, 6\), and 'image_grid_thw' says 0"),
        ({"pixel_values": None}, "'pixel_values' of sample 0 is none, and .* says 4"),
        ({"pixel_values": np.ones((4, 6), np.float16)}, "is float16 of .* and float32 of"),
        ({"pixel_values": np.array([None, 1])}, "not an array with an entry for each picture"),
        ({"image_sizes": [1, 2]}, r"'image_sizes' of sample 0 .* shape \(n, 2\)"),
        ({"second_per_grid_ts": [[1.0]]}, r"give numbers of shape \(n,\)"),
        ({"position_ids": np.zeros((3, 3))}, "is float64 of shape .* whole numbers"),
        ({"position_ids": np.zeros((3, 1, 3), int)}, r"whole numbers of shape \(3, 3\)"),
        ({"mm_token_type_ids": np.full(3, np.nan)}, "not one whole number for each of its 3"),
        ({"mm_token_type_ids": "abc"}, "not one whole number for each of its 3"),
        ({"pixel_norm": "a"}, "'pixel_norm' of a sample is not an array of numbers"),
        ({"noted": {"a": "x"}}, "'noted' of a sample has 'a': 'x'; give whole numbers by names"),
        ({"noted": {"a": float("nan")}}, "'a': nan; give whole numbers by names"),
        ({"noted": {"a": 1.5}}, "'a': 1.5; give whole numbers by names"),
        ({"noted": {"a": 2**70}}, "give whole numbers by names"),
        ({"noted": {5: 2}}, "has 5: 2; give whole numbers by names"),
    ],
)
def test_what_no_model_could_take_is_one_sentence(
    layout: str, more: dict[str, Any], said: str
) -> None:
    """First in the batch, and never a grid of other pictures."""
    with pytest.raises(BadBatch, match=said):
        collated(layout, shown(3, **more), shown(4))


@pytest.mark.parametrize(
    "collator",
    [DefaultBatchCollator(), ListsCollator(), PaddedCollator(), PackedCollator(), VlmCollator()],
    ids=lambda collator: type(collator).type_name,
)
def test_what_processors_note_is_counted_and_is_no_value(collator: Any) -> None:
    """With every collator, also where one sample alone has something."""
    first = {"input_ids": np.arange(3, dtype=np.int32), "noted": {"dropped_images": 2}}
    second = {"input_ids": np.arange(3, dtype=np.int32)}
    both = {**first, "noted": {"dropped_images": 1, "fake_images": 1}}
    told = context()

    values = collator.collate([[first], [second], [both]], told)

    assert "noted" not in values
    assert (told.counts["dropped_images"], told.counts["fake_images"]) == (3, 1)


def test_a_sample_may_call_its_own_value_noted() -> None:
    """What is no dict is a value like any other."""
    values = DefaultBatchCollator().collate([[{"noted": "yes"}], [{"noted": "no"}]], context())

    assert values == {"noted": ["yes", "no"]}


def sent(items: list[Sample]) -> dict[str, Any]:
    """Return what a reader gets of a batch of these samples in lists."""
    Given.items = items
    job = Job(
        ItemsSource(list(range(len(items)))),
        processor=Given(),
        batcher=SimpleBatcher(len(items)),
        collator=ListsCollator(),
        lanes=1,
    )
    rows = [[SampleRef(ItemRef("main", number, 0))] for number in range(len(items))]
    made = Maker(job, Items(job)).make(BatchPlan(0, 0, rows))
    body = bytearray(made.nbytes)
    written = made.write(memoryview(body))
    assert len(written) < 1 << 18
    return frame.decode_values(feed_pb2.BatchHeader.FromString(written), bytes(body))


class Given(RawItemProcessor):
    """Gives samples that were made beforehand."""

    version: ClassVar[int | str | None] = 1

    items: ClassVar[list[Sample]] = []

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return that of the item's number."""
        return self.items[raw]


def test_two_thousand_tensors_of_their_own_shapes_arrive_as_they_were() -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 9, (n % 7, 3, n % 5)).astype(f"i{1 << n % 4}") for n in range(2000)]

    found = sent([{"x": array, "y": [array, torch.from_numpy(array)]} for array in arrays])

    for array, x, y in zip(arrays, found["x"], found["y"], strict=True):
        for each in (x, *y):
            assert (each.dtype, each.shape) == (array.dtype, array.shape)
            assert each.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([2**63, -1], r"9223372036854775808 does not fit int64: send it as a str"),
        ([[1.5, -(2**70)]], "does not fit int64"),
        (2**70, "does not fit int64"),
        (torch.zeros(2, 2).to_sparse(), "only dense tensors travel"),
        ({"a": float("nan")}, "JSON has no nan"),
        ({"a": b"x"}, "which has no such value"),
        ({1: 2}, "a JSON object has str keys"),
        (np.array([None, 1]), "an array of objects is not data"),
        ("a\ud800", "half a surrogate pair"),
    ],
)
def test_a_value_that_would_arrive_as_another_one_is_refused(value: Any, said: str) -> None:
    """Whole numbers are not rounded to floats, and nothing is turned into its text."""
    with pytest.raises(PenstockError, match=said):
        sent([{"x": value}, {"x": value}])


def test_values_that_hold_themselves_are_one_sentence() -> None:
    own: list[Any] = []
    own.append(own)
    named: dict[str, Any] = {}
    named["a"] = named
    for value in (own, named, {"a": own}):
        with pytest.raises(PenstockError, match=r"recursion depth|nests deeper than 64") as caught:
            sent([{"x": value}])
        assert len(caught.value.message) < 1000


def test_ids_that_have_no_length_count_no_tokens() -> None:
    """A sample may lack them, or have one number."""
    told = context()

    ListsCollator().collate([[{"input_ids": each}] for each in (None, 5, [1, 2])], told)

    assert (told.counts["samples"], told.counts["tokens"]) == (3, 2)
