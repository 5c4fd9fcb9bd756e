"""What every collator keeps: purity, fixed names and dtypes, honest specs, a blank that fits."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators import (
    BUILTIN_COLLATORS,
    DefaultBatchCollator,
    FunctionCollator,
    ListsCollator,
    PackedCollator,
    PaddedCollator,
    VlmCollator,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.server.testing import check_collator
from penstock.server.testing.compare import as_bytes
from penstock.wire import frame
from penstock.wire.errors import BadBatch, InvalidJob
from penstock.wire.joined import Joined
from penstock.wire.packed_rows import made
from penstock.wire.value_types import to_plain

Rows = list[list[Sample]]


def tokens(*ids: int, **more: Any) -> Sample:
    return {"input_ids": np.array(ids, dtype=np.int32), **more}


STACKED: Rows = [
    [{"image": np.ones((2, 3), np.uint8), "label": 3, "weight": 0.5, "name": "a", "hard": True}],
    [{"image": np.zeros((2, 3), np.uint8), "label": 4, "weight": 1, "name": "b", "hard": False}],
]
STACKED_LATER: Rows = [
    [{"image": np.full((2, 3), 7, np.uint8), "label": 1, "weight": 2.0, "name": "", "hard": True}],
]
RAGGED: Rows = [
    [tokens(1, 2, 3, weight=0.5)],
    [tokens(4, weight=1.5, labels=np.array([9]))],
    [tokens(5, 6, weight=2.5)],
]
RAGGED_LATER: Rows = [[tokens(8, 9, weight=0.0)], [tokens(7, weight=0.25)]]
PACKED: Rows = [
    [tokens(1, 2, 3), tokens(4, 5, labels=[6, 7])],
    [tokens(8), tokens(9, 10), tokens(11)],
]
PACKED_LATER: Rows = [[tokens(1)], [tokens(2, 3)]]
HIDING: Rows = [
    [tokens(1, 2, 3, attention_mask=[1, 0, 1]), tokens(4, 5, labels=[6, 7])],
    [tokens(8, pad_token_id=3), tokens(9, 10, loss_mask=[1.0, 0.0]), tokens(11)],
]
CHOSEN: Rows = [
    [tokens(1, 2, 3, token_mask=np.array([False, True, True]), loss_mask=[0, 1, 1])],
    [tokens(4, 5, token_mask=np.array([True, False]), loss_mask=[1, 0])],
]


def shown(*ids: int, grids: list[list[int]], **more: Any) -> Sample:
    """A sample with pictures: as many patches as their grids say."""
    patches = sum(t * h * w for t, h, w in grids)
    pixels = np.arange(patches * 4, dtype=np.uint8).reshape(patches, 4)
    return tokens(
        *ids, pixel_values=pixels, image_grid_thw=np.array(grids, np.int32).reshape(-1, 3), **more
    )


def axes(*first: int) -> Any:
    """Positions of three axes."""
    return np.array([first, [2 * one for one in first], [0] * len(first)])


SHOWN: Rows = [
    [
        shown(1, 2, 3, grids=[[1, 2, 2]], position_ids=axes(0, 1, 2)),
        tokens(4, 5, labels=[-100, 7], position_ids=axes(0, 4)),
    ],
    [shown(8, 9, grids=[[1, 2, 2], [1, 4, 2]], position_ids=axes(0, 9)), tokens(10)],
]
SHOWN_LATER: Rows = [[shown(1, grids=[[1, 2, 4]], position_ids=axes(0))], [tokens(2, 3)]]
APART: Rows = [
    [{"images": [np.ones((2, 3), np.uint8), np.ones((1, 1), np.uint8)], "sound": None, "n": 3}],
    [{"images": np.zeros((4, 2), np.uint8), "plan": {"steps": [1, 2]}, "size": [1, 2]}],
]
APART_LATER: Rows = [
    [{"images": [], "sound": np.ones(4, np.float32), "n": 1}, {"images": None, "t": "a"}]
]
CHOSEN_LATER: Rows = [[tokens(7, 8, token_mask=np.array([True, True]), loss_mask=[1, 1])]]


def stacked(samples: list[Sample]) -> dict[str, Any]:
    """As a `collate_fn` of a trainer: it takes its labels out of the samples."""
    labels = [sample.pop("label") for sample in samples]
    images = np.stack([sample["image"] for sample in samples])
    return {"image": images, "labels": np.array(labels), "names": [s["name"] for s in samples]}


def ragged(samples: list[Sample], context: CollateContext) -> dict[str, Any]:
    """Pad to the longest, hide a random token, count what the loss is taken of."""
    width = max(len(sample["input_ids"]) for sample in samples)
    ids = np.zeros((len(samples), width), np.int64)
    mask = np.zeros_like(ids)
    for number, sample in enumerate(samples):
        ids[number, : len(sample["input_ids"])] = sample["input_ids"]
        mask[number, : len(sample["input_ids"])] = 1
    labels = np.where(mask, ids, -100)
    labels[0, context.rng.integers(len(samples[0]["input_ids"]))] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


CASES: dict[str, tuple[BatchCollator, Rows, Rows]] = {
    "default": (DefaultBatchCollator(), STACKED, STACKED_LATER),
    "padded": (PaddedCollator(), RAGGED, RAGGED_LATER),
    "padded to": (PaddedCollator(pad_to=8, pad_value=99), RAGGED, RAGGED_LATER),
    "padded multiple": (PaddedCollator(pad_to_multiple_of=4), RAGGED, RAGGED_LATER),
    "padded shifted and cut": (
        PaddedCollator(pad_to=8, labels="shifted", truncate=True, mask_dtype="bool"),
        CHOSEN,
        CHOSEN_LATER,
    ),
    "packed": (PackedCollator(), PACKED, PACKED_LATER),
    "packed to": (PackedCollator(pad_to=8, pad_value=99), PACKED, PACKED_LATER),
    "packed for compile": (PackedCollator(pad_to=8, max_documents=12), PACKED, PACKED_LATER),
    "packed for cp": (PackedCollator(document_multiple=4), PACKED, PACKED_LATER),
    "packed shifted": (PackedCollator(labels="shifted"), PACKED, PACKED_LATER),
    "packed int32": (PackedCollator(ids_dtype="int32"), PACKED, PACKED_LATER),
    "packed megatron": (PackedCollator(pad_to=8, layout="megatron"), PACKED, PACKED_LATER),
    "packed megatron for compile": (
        PackedCollator(pad_to=8, max_documents=12, layout="megatron"),
        PACKED,
        PACKED_LATER,
    ),
    "packed thd": (PackedCollator(layout="thd"), PACKED, PACKED_LATER),
    "packed thd for cp": (
        PackedCollator(pad_to=12, document_multiple=4, max_documents=5, layout="thd"),
        PACKED,
        PACKED_LATER,
    ),
    "packed indexed": (PackedCollator(layout="indexed"), HIDING, PACKED_LATER),
    "packed neat": (PackedCollator(pad_to=8, layout="neat"), HIDING, PACKED_LATER),
    "packed neat int32": (
        PackedCollator(pad_to=8, layout="neat", labels="unshifted", ids_dtype="int32"),
        HIDING,
        PACKED_LATER,
    ),
    "lists": (ListsCollator(), APART, APART_LATER),
    "lists nested": (
        ListsCollator(nested=["images"], placeholders=["sound"], batch_axis=True),
        APART,
        APART_LATER,
    ),
    "vlm": (VlmCollator(pad_to_multiple_of=4, mask_dtype="bool"), SHOWN, SHOWN_LATER),
    **{
        f"vlm {layout}": (VlmCollator(layout=layout, pad_to=8), SHOWN, SHOWN_LATER)
        for layout in ("flash", "indexed", "neat")
    },
    "function": (FunctionCollator(stacked), STACKED, STACKED_LATER),
    "function told the context": (FunctionCollator(ragged), RAGGED, RAGGED_LATER),
    "function of packed rows": (FunctionCollator(ragged), PACKED, PACKED_LATER),
}
every_collator = pytest.mark.parametrize(
    ("collator", "rows", "later"), CASES.values(), ids=CASES.keys()
)
BUILT_IN = {name: case for name, case in CASES.items() if not name.startswith("function")}
every_built_in = pytest.mark.parametrize(
    ("collator", "rows", "later"), BUILT_IN.values(), ids=BUILT_IN.keys()
)


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def test_the_suite_covers_every_built_in() -> None:
    """No built-in collator is without this contract."""
    covered = {type(collator) for collator, _, _ in CASES.values()}
    assert covered == {*BUILTIN_COLLATORS.values(), FunctionCollator}
    assert all(cls.type_name == name for name, cls in BUILTIN_COLLATORS.items())


@every_collator
def test_every_collator_keeps_the_contract(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """The published one; the batches may come in any order."""
    check_collator(collator, rows, later)
    check_collator(collator, later, rows)


@every_collator
def test_the_samples_are_not_in_the_values(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """A sample may be read again by another batch: writing into the values does not touch it."""
    before = copy.deepcopy(rows)

    for value in collator.collate(rows, context()).values():
        if isinstance(value, np.ndarray):
            value[...] = 1

    assert as_bytes(rows) == as_bytes(before)


@every_collator
def test_specs_say_what_the_values_are(collator: BatchCollator, rows: Rows, later: Rows) -> None:
    """Every known key is there, of the dtype, kind and fixed dimensions that were announced."""
    for batch in (rows, later):
        values = collator.collate(batch, context())

        for spec in collator.specs():
            if spec.optional and spec.name not in values:
                continue
            value = values[spec.name]
            if spec.kind == "int":
                assert type(value) is int
                assert (spec.least or 0) <= value <= (spec.most or value)
                assert spec.place == "host"
                continue
            if spec.kind == "str":
                assert type(value) is str
                continue
            assert spec.kind == "tensor"
            assert value.dtype.name == spec.dtype
            assert len(spec.shape) == value.ndim
            assert all(
                want in (-1, have) for want, have in zip(spec.shape, value.shape, strict=True)
            )
            assert spec.least is None or value.min(initial=spec.least) >= spec.least
            assert spec.most is None or value.max(initial=spec.most) <= spec.most


@every_collator
def test_blank_keeps_the_shapes_and_changes_only_labels(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """A padding batch has every key, dtype and shape; its integer labels train nothing."""
    values = collator.collate(rows, context())

    blank = collator.blank(values)

    for name, value in values.items():
        if name == "labels":
            assert (blank["labels"] == -100).all()
            assert blank["labels"] is not values["labels"]
        elif name in ("loss_mask", "token_mask"):
            assert not blank[name].any()
            assert blank[name].dtype == value.dtype
        else:
            assert as_bytes(blank[name]) == as_bytes(value)


@every_collator
def test_counts_are_plain_and_true(collator: BatchCollator, rows: Rows, later: Rows) -> None:
    """The integers of the header agree with what is in the batch."""
    told = context()

    values = collator.collate(rows, told)

    assert all(type(count) is int for count in told.counts.values())
    assert told.counts["samples"] == sum(map(len, rows))
    if (ids := values.get("input_ids", values.get("tokens"))) is not None:
        real = sum(len(sample["input_ids"]) for row in rows for sample in row)
        assert told.counts["tokens"] == real
        assert told.counts["padding_tokens"] == ids.size - real
        assert told.counts["loss_tokens"] == np.count_nonzero(values["labels"] != -100)
        if "tokens" in values:
            assert told.counts["loss_tokens"] == values["loss_mask"].sum()


@every_built_in
def test_emptied_rows_make_a_batch_of_padding(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """Where quarantine took every item the batch is still one: same keys and dtypes, no tokens."""
    usual = collator.collate(rows, context())
    told = context()

    values = collator.collate([[], []], told)

    assert told.counts["samples"] == 0
    for spec in collator.specs():
        if spec.kind == "tensor" and not spec.optional:
            assert values[spec.name].dtype == usual[spec.name].dtype
            assert values[spec.name].ndim == usual[spec.name].ndim
            assert values[spec.name].size > 0
    if "labels" in values:
        assert (values["labels"] == -100).all()
        assert len(values["labels"]) == 2
        assert told.counts["tokens"] == told.counts["loss_tokens"] == 0


@every_collator
def test_the_identity_is_json_and_tells_parameters(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """What decides bytes can be hashed, and a parameter at its default is left out."""
    identity = json.loads(json.dumps(collator.identity()))

    assert identity["type"] == type(collator).type_name
    assert identity["version"] == type(collator).version
    parameters = {
        name: value.__name__ if callable(value) else value
        for name, value in collator.arguments.items()
    }
    assert identity.get("parameters", {}) == json.loads(json.dumps(parameters))
    assert ("source" in identity) == isinstance(collator, FunctionCollator)


def sent_bytes(values: dict[str, Any]) -> bytes:
    layout = frame.BodyLayout(values)
    out = bytearray(layout.sent_bytes)
    frame.write_body(layout, memoryview(out))
    return bytes(out)


@pytest.mark.parametrize("collator", [DefaultBatchCollator(), VlmCollator(), VlmCollator("neat")])
def test_large_values_are_the_same_bytes_joined_as_they_are_written(
    collator: BatchCollator,
) -> None:
    """Of arrays of any memory order and byte order, some of them empty."""
    rng = np.random.default_rng(5)
    rows: Rows = []
    for number in range(4):
        pixels = rng.integers(0, 256, (200, 300), np.uint8)
        rows.append([tokens(1, 2, 3, pixel_values=pixels, weights=rng.random((90, 70)))])
        if number == 1:
            rows[-1][0]["pixel_values"] = np.asfortranarray(pixels)
            rows[-1][0]["weights"] = rows[-1][0]["weights"].astype(">f8").astype(float)[::-1]
        if number == 2 and not isinstance(collator, DefaultBatchCollator):
            rows[-1][0]["pixel_values"] = pixels[:0]

    sending = collator.collate_to_send(rows, context())
    whole = collator.collate(rows, context())

    assert any(isinstance(value, Joined) for value in sending.values())
    assert not any(isinstance(value, Joined) for value in whole.values())
    assert sent_bytes(made(sending)) == sent_bytes(made(whole))
    assert [(n, v.shape, v.dtype) for n, v in made(sending).items()] == [
        (n, v.shape, v.dtype) for n, v in whole.items()
    ]
    joined = {name: value for name, value in sending.items() if isinstance(value, Joined)}
    assert sent_bytes(joined) == sent_bytes({name: whole[name] for name in joined})


# --- DefaultBatchCollator ---


def test_default_gives_what_torch_gives() -> None:
    """Arrays, numbers and booleans come out in the shapes and dtypes of torch's default_collate."""
    torch = pytest.importorskip("torch")
    samples = [row[0] for row in STACKED]
    samples = [{**sample, "weight": float(sample["weight"])} for sample in samples]

    ours = DefaultBatchCollator().collate([[sample] for sample in samples], context())
    theirs = torch.utils.data.default_collate(samples)

    assert list(ours) == list(theirs)
    assert ours.pop("name") == theirs.pop("name")
    for name, value in ours.items():
        assert value.dtype == theirs[name].numpy().dtype
        assert np.array_equal(value, theirs[name].numpy())


def test_default_takes_tensors_of_torch_bfloat16_too() -> None:
    """A user's Dataset may give tensors; bfloat16 keeps its bits."""
    torch = pytest.importorskip("torch")
    tensors = [torch.tensor([1.5, 2.0]), torch.tensor([3.0, -0.25])]
    rows: Rows = [[{"x": tensor, "h": tensor.to(torch.bfloat16)}] for tensor in tensors]

    values = DefaultBatchCollator().collate(rows, context())

    assert values["x"].dtype == np.float32
    assert values["x"].tolist() == [[1.5, 2.0], [3.0, -0.25]]
    assert values["h"].dtype.name == "bfloat16"
    assert values["h"].astype(np.float32).tolist() == values["x"].tolist()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        ([b"a", b"b"], [b"a", b"b"]),
        ([None, 3], [None, 3]),
        ([None, None], [None, None]),
        ([{"a": 1}, {"b": 2}], [{"a": 1}, {"b": 2}]),
        ([["x"], ["y", "z"]], [["x"], ["y", "z"]]),
    ],
)
def test_default_lists_what_is_no_number(given: list[Any], expected: list[Any]) -> None:
    """Text, bytes, None and JSON stay Python values, one per sample."""
    values = DefaultBatchCollator().collate([[{"v": value}] for value in given], context())

    assert values == {"v": expected}


def test_default_stacks_lists_of_numbers() -> None:
    """A list column of one length is an array."""
    values = DefaultBatchCollator().collate([[{"v": [1, 2]}], [{"v": [3, 4]}]], context())

    assert values["v"].dtype == np.int64
    assert values["v"].tolist() == [[1, 2], [3, 4]]


def test_default_makes_a_float_among_ints_float() -> None:
    """JSON writes 1.0 as 1: the column is one of floats all the same."""
    values = DefaultBatchCollator().collate([[{"v": 1}], [{"v": 0.5}]], context())

    assert values["v"].dtype == np.float64


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"x": np.ones(2)}, {"x": np.ones(3)}, ["'x'", "(2,)", "(3,)", "PaddedCollator"]),
        ({"x": np.ones(2)}, {"x": np.ones(2, np.int8)}, ["'x'", "float64", "int8"]),
        ({"x": 1, "y": 2}, {"x": 1}, ["sample 1", "'y'"]),
        ({"x": 1}, {"x": 1, "y": 2}, ["sample 1", "'y'"]),
        ({"x": 1}, {"x": 2**63}, ["'x'", str(2**63)]),
    ],
)
def test_default_names_what_does_not_stack(first: Sample, second: Sample, words: list[str]) -> None:
    """The error names the key, both values' forms, the batch and the way out."""
    with pytest.raises(BadBatch) as caught:
        DefaultBatchCollator().collate([[first], [second]], context())

    assert caught.value.fields == {"lane": 2, "offset": 5}
    assert all(word in str(caught.value) for word in ["lane 2", "offset 5", *words])


# --- ListsCollator ---


def test_lists_gives_what_cosmos_gives() -> None:
    """By its rules: collated alone as a batch of one, split, and put together again.

    Keys of lists stay nested, None of `sound` holds its place, other Nones go, `image_size` is
    joined, timings come once, and all else has a first axis of 1.
    """
    torch = pytest.importorskip("torch")
    lists = ("images", "action", "sound")
    samples: list[Sample] = [
        {"images": [np.ones((2, 3)), np.ones((1, 4))], "sound": None, "image_size": [np.ones(2)]},
        {"images": np.zeros((5, 5)), "sound": np.ones(3), "image_size": [np.zeros(2)], "n": 4},
        {"images": [np.ones((1, 1))], "sound": None, "image_size": [], "text": "c", "action": None},
    ]
    samples = [{**sample, "time": float(number)} for number, sample in enumerate(samples)]

    expected: dict[str, Any] = {}
    for sample in samples:
        for name, value in sample.items():
            if value is None and name != "sound":
                continue
            if name == "time":
                expected.setdefault(name, value)
            elif name == "image_size":
                expected.setdefault(name, []).extend(value)
            elif name in lists:
                inner = value if isinstance(value, list) else [value]
                expected.setdefault(name, []).append(inner)
            else:
                alone = torch.utils.data.default_collate([value])
                one = alone[0] if isinstance(alone, list) else alone[0:1].numpy()
                expected.setdefault(name, []).append(one)

    collator = ListsCollator(
        nested=lists, flat=["image_size"], once=["time"], placeholders=["sound"], batch_axis=True
    )
    values = collator.collate([[sample] for sample in samples], context())

    assert as_bytes(values) == as_bytes(expected)


def test_lists_of_different_keys_are_shorter_than_the_batch() -> None:
    """Unless the key holds its place: then the list is as long as the batch."""
    rows: Rows = [[{"x": 1}], [{"y": np.ones(2)}], [{"x": None, "y": np.ones(3)}]]

    values = ListsCollator(placeholders=["y"]).collate(rows, context())

    assert values["x"] == [1]
    assert [None if y is None else y.shape for y in values["y"]] == [None, (2,), (3,)]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"nested": "images"}, "nested is 'images'; give a list of keys"),
        ({"flat": [3]}, r"flat is \[3\]; give a list of keys"),
        ({"nested": ["a"], "once": ["a"]}, "'a' is named in nested and in once"),
        ({"batch_axis": "no"}, "batch_axis is 'no'"),
    ],
)
def test_lists_refuses_what_makes_no_sense(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        ListsCollator(**parameters)


def test_flat_joins_lists_alone() -> None:
    with pytest.raises(BadBatch, match="'size' of a sample is int, and flat joins lists"):
        ListsCollator(flat=["size"]).collate([[{"size": 3}]], context())


# --- VlmCollator ---


def test_vlm_gives_the_tokens_of_the_collator_that_it_names() -> None:
    """And of pictures what `VLMCollator` of cosmos-framework and NeMo Automodel's give."""
    texts = [
        [{key: s[key] for key in ("input_ids", "labels") if key in s} for s in row] for row in SHOWN
    ]
    for layout, plain in (
        ("padded", PaddedCollator(pad_to=16)),
        ("neat", PackedCollator(pad_to=16, layout="neat")),
    ):
        values = VlmCollator(layout=layout, pad_to=16).collate(SHOWN, context())
        alone = plain.collate(texts, context())

        for name, value in alone.items():
            if name != "position_ids":
                assert as_bytes(values[name]) == as_bytes(value)
        samples = [sample for row in SHOWN for sample in row if "pixel_values" in sample]
        pixels = np.concatenate([sample["pixel_values"] for sample in samples])
        assert as_bytes(values["pixel_values"]) == as_bytes(pixels)
        assert values["image_grid_thw"].dtype == np.int64
        assert values["image_grid_thw"].tolist() == [[1, 2, 2], [1, 2, 2], [1, 4, 2]]
        each = [1, 0, 2, 0] if layout == "padded" else [1, 2]
        assert values["n_images_per_sample"].tolist() == each
    with_norm = [[{**s, "pixel_norm": np.ones((2, 3), np.float32)} for s in row] for row in SHOWN]
    assert VlmCollator().collate(with_norm, context())["pixel_norm"].tolist() == [[1.0] * 3] * 2


def test_vlm_positions_start_anew_in_every_document() -> None:
    """A sample's own in three axes; one without counts its tokens; 0 on padding."""
    values = VlmCollator(layout="flash", pad_to=6).collate(SHOWN, context())

    assert values["position_ids"].dtype == np.int64
    assert values["position_ids"].tolist() == [
        [[0, 1, 2, 0, 4, 0], [0, 9, 0, 0, 0, 0]],
        [[0, 2, 4, 0, 8, 0], [0, 18, 0, 0, 0, 0]],
        [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    ]
    padded = VlmCollator().collate(SHOWN, context())["position_ids"]
    assert padded.shape == (3, 4, 3)
    assert padded[0].tolist() == [[0, 1, 2], [0, 4, 0], [0, 9, 0], [0, 0, 0]]


@pytest.mark.parametrize("layout", ["padded", "indexed", "neat"])
def test_vlm_keeps_hidden_what_a_sample_hides(layout: str) -> None:
    """The tokens of a fake picture stay hidden beside samples that hide nothing, and untrained."""
    fake = shown(
        5, 6, 7, 8, grids=[[1, 2, 2]], attention_mask=[0, 0, 1, 1], labels=[-100, -100, 7, 8]
    )
    rows: Rows = [[tokens(1, 2)], [fake]] if layout == "padded" else [[tokens(1, 2), fake]]

    values = VlmCollator(layout=layout).collate(rows, context())

    seen = values["attention_mask"].reshape(-1)
    hidden = np.isin(values["input_ids"].reshape(-1), (5, 6))
    assert not seen[hidden].any()
    assert seen[~hidden].all() or layout == "padded"
    learned = values["labels"][values["labels"] != -100]
    assert not np.isin(learned, (5, 6)).any()


def test_vlm_of_samples_without_pictures_has_no_keys_of_them() -> None:
    told = context()
    values = VlmCollator().collate([[tokens(1, 2)], [tokens(3)]], told)

    assert list(values) == ["input_ids", "attention_mask", "labels", "n_images_per_sample"]
    assert values["n_images_per_sample"].tolist() == [0, 0]
    assert told.counts["images"] == 0


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (tokens(1, position_ids=axes(0, 1)), r"of shape \(3, 2\); give the three positions"),
        (tokens(1, pixel_values="a"), "'pixel_values' of sample 1 is str, not an array"),
        (
            {**shown(1, grids=[[1, 1, 2]]), "pixel_values": np.ones((2, 5), np.uint8)},
            r"shape \(4, 4\) in sample 0 and uint8 of shape \(2, 5\) in sample 1",
        ),
        (tokens(1, mm_token_type_ids=[1, 2]), "not one whole number for each of its 1 tokens"),
        (tokens(1, pixel_norm=[[1.0], [2.0]]), "'pixel_norm' differs between samples"),
    ],
)
def test_vlm_names_what_does_not_go_together(sample: Sample, words: str) -> None:
    first = shown(1, grids=[[1, 2, 2]], pixel_norm=np.zeros((2, 3), np.float32))
    with pytest.raises(BadBatch, match=words):
        VlmCollator().collate([[first], [sample]], context())


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"layout": "thd"}, "layout is 'thd'"),
        ({"layout": "neat", "mask_dtype": "bool"}, "mask_dtype says nothing of layout: neat"),
        ({"max_documents": 4}, "max_documents says nothing of layout: padded"),
        ({"layout": "neat", "max_documents": 4}, "max_documents fixes the length"),
    ],
)
def test_vlm_refuses_what_makes_no_sense(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        VlmCollator(**parameters)


# --- PaddedCollator ---


def test_padded_pads_on_the_right() -> None:
    """Ids, mask and labels end in padding; own labels win; the rest is stacked.

    A first token, which nothing predicts, has a label only if it is the sample's own.
    """
    values = PaddedCollator(pad_to=4, pad_value=99).collate(RAGGED, context())

    assert values["input_ids"].tolist() == [[1, 2, 3, 99], [4, 99, 99, 99], [5, 6, 99, 99]]
    assert values["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert values["labels"].tolist() == [
        [-100, 2, 3, -100],
        [9, -100, -100, -100],
        [-100, 6, -100, -100],
    ]
    assert values["weight"].tolist() == [0.5, 1.5, 2.5]
    assert list(values) == ["input_ids", "attention_mask", "labels", "weight"]


@pytest.mark.parametrize(
    ("collator", "width"),
    [
        (PaddedCollator(), 3),
        (PaddedCollator(pad_to_multiple_of=2), 4),
        (PaddedCollator(pad_to_multiple_of=3), 3),
        (PaddedCollator(pad_to=6, pad_to_multiple_of=3), 6),
    ],
)
def test_padded_width(collator: PaddedCollator, width: int) -> None:
    """T is the longest sample, rounded up, or what was asked for."""
    assert collator.collate(RAGGED, context())["input_ids"].shape == (3, width)


def test_padded_pads_what_goes_with_the_tokens() -> None:
    """Keys of one entry per token are padded with 0 in their own dtype, further ones by name."""
    rows: Rows = [
        [tokens(1, 2, token_type_ids=[1, 1], speech=np.ones((2, 3), np.float32))],
        [tokens(3, token_type_ids=[1], speech=np.ones((1, 3), np.float32))],
    ]

    values = PaddedCollator(sequences=["speech"]).collate(rows, context())

    assert values["token_type_ids"].tolist() == [[1, 1], [1, 0]]
    assert values["speech"].shape == (2, 2, 3)
    assert values["speech"].dtype == np.float32
    assert values["speech"][1].tolist() == [[1, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("name", ["loss_mask", "attention_mask", "special_tokens_mask", "faces"])
@pytest.mark.parametrize("place", [0, 1])
def test_an_empty_document_is_padding_whatever_it_brings(name: str, place: int) -> None:
    """An empty list has no dtype and no width of its own: those of the others hold."""
    ones = [[1, 2], [3, 4]] if name == "faces" else [1, 1]
    rows: Rows = [[{"input_ids": [5, 6], name: ones}]]
    alone = PaddedCollator(sequences=["faces"]).collate(rows, context())[name]
    rows.insert(place, [{"input_ids": [], name: []}])

    values = PaddedCollator(sequences=["faces"]).collate(rows, context())

    assert values[name].dtype == alone.dtype
    assert values[name][1 - place].tolist() == ones
    assert not values[name][place].any()
    assert (values["labels"][place] == -100).all()


def test_padded_keeps_an_attention_mask_of_the_samples() -> None:
    """A processor that hides tokens is believed."""
    rows: Rows = [[tokens(1, 2, attention_mask=[0, 1])], [tokens(3, attention_mask=[1])]]

    values = PaddedCollator().collate(rows, context())

    assert values["attention_mask"].tolist() == [[0, 1], [1, 0]]
    assert list(values) == ["input_ids", "attention_mask", "labels"]


def test_padded_stacks_class_labels_on_request() -> None:
    """One label per sample is a class: it is neither padded nor counted as loss tokens."""
    rows: Rows = [[tokens(1, 2, labels=5)], [tokens(3, labels=6)]]
    told = context()

    values = PaddedCollator(make_labels=False).collate(rows, told)

    assert values["labels"].tolist() == [5, 6]
    assert "loss_tokens" not in told.counts


def test_padded_makes_no_labels_where_none_are_wanted() -> None:
    """With make_labels off only samples that bring labels have them."""
    collator = PaddedCollator(make_labels=False)

    without = collator.collate([[tokens(1, 2)]], context())
    brought = collator.collate(
        [[tokens(1, 2, labels=[-100, 2])], [tokens(3, labels=[3])]], context()
    )

    assert list(without) == ["input_ids", "attention_mask"]
    assert brought["labels"].tolist() == [[-100, 2], [3, -100]]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([tokens(1, 2, 3)], ["sample 0", "3 tokens", "pad_to is 2", "max_length"]),
        ([{"ids": [1]}], ["'input_ids'", "'ids'"]),
        ([tokens(1), tokens(2, 3, labels=[1])], ["'labels'", "sample 1", "(1,)", "2 tokens"]),
        ([tokens(1, attention_mask=[1]), tokens(2)], ["'attention_mask'", "sample 1", "missing"]),
        ([tokens(1, labels=[0.5])], ["'labels'", "float64"]),
        ([tokens(1, labels=5)], ["'labels'", "sample 0", "make_labels: false"]),
        ([{"input_ids": [0.5]}], ["'input_ids'", "float64"]),
        ([{"input_ids": np.ones((1, 2), int)}], ["'input_ids'", "(1, 2)"]),
        ([{"input_ids": "ab"}], ["'input_ids'", "str"]),
        (
            [tokens(1, token_type_ids=[1]), tokens(2, token_type_ids=[0.5])],
            ["'token_type_ids'", "int64", "float64"],
        ),
    ],
)
def test_padded_names_what_does_not_fit(samples: list[Sample], words: list[str]) -> None:
    """The error names the sample, what it has and the remedy."""
    with pytest.raises(BadBatch) as caught:
        PaddedCollator(pad_to=2).collate([[sample] for sample in samples], context())

    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"pad_to": 0}, "pad_to"),
        ({"pad_to": "8"}, "pad_to"),
        ({"pad_to": True}, "pad_to"),
        ({"pad_to_multiple_of": -1}, "pad_to_multiple_of"),
        ({"pad_value": -1}, "pad_value"),
        ({"label_pad": "ignore"}, "label_pad"),
        ({"pad_to": 10, "pad_to_multiple_of": 4}, "pad_to"),
        ({"sequences": "speech"}, "sequences"),
    ],
)
def test_padded_refuses_parameters_that_cannot_be(parameters: dict[str, Any], key: str) -> None:
    """A wrong parameter fails where it is given, by name."""
    with pytest.raises(InvalidJob) as caught:
        PaddedCollator(**parameters)

    assert caught.value.fields["key"] == key


# --- FunctionCollator ---


def test_a_function_gets_samples_as_torch_gives_them_to_a_collate_fn() -> None:
    """The default_collate of torch, unedited: one list of samples, a dict of tensors back."""
    torch = pytest.importorskip("torch")
    rows: Rows = [[{"x": torch.ones(2) * n, "label": n}] for n in range(3)]

    values = FunctionCollator("torch.utils.data:default_collate").collate(rows, context())

    assert values["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert to_plain(values["label"], "label") is not None


def test_a_function_gets_the_rows_of_a_packer_one_after_another() -> None:
    """Order is what a list of samples has; where the rows begin is for collators of one's own."""
    seen: list[list[int]] = []

    def collate(samples: list[Sample]) -> dict[str, Any]:
        seen.append([len(sample["input_ids"]) for sample in samples])
        return {"n": len(samples)}

    values = FunctionCollator(collate).collate(PACKED, context())

    assert values == {"n": 5}
    assert seen == [[3, 2, 1, 2, 1]]


def test_what_a_function_counts_itself_stays() -> None:
    """Tokens are counted for it where it gives arrays of them and has not counted itself."""

    def collate(samples: list[Sample], context: CollateContext) -> dict[str, Any]:
        context.count("tokens", 77)
        context.count("cats", 2)
        return ragged(samples, context)

    told = context()
    FunctionCollator(collate).collate(RAGGED, told)

    assert told.counts == {
        "tokens": 77,
        "cats": 2,
        "samples": 3,
        "padding_tokens": 3,
        "loss_tokens": 5,
    }


def test_blank_labels_of_a_function_may_be_tensors() -> None:
    """What a data collator of transformers gives is a mapping of tensors, and no dict."""
    torch = pytest.importorskip("torch")
    encoding = pytest.importorskip("transformers").BatchEncoding

    def collate(samples: list[Sample]) -> Any:
        return encoding({"labels": torch.tensor([1, 2]), "input_ids": torch.tensor([1, 2])})

    collator = FunctionCollator(collate)
    values = collator.collate(RAGGED, context())

    assert type(values) is dict
    assert collator.blank(values)["labels"].tolist() == [-100, -100]
    assert values["labels"].tolist() == [1, 2]
    assert collator.blank({"labels": ["a"], "x": 1}) == {"labels": ["a"], "x": 1}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned None"),
        ((1, 2), "returned a tuple of 2"),
        (np.zeros(2), "returned a ndarray"),
        ("text", "returned a str"),
    ],
)
def test_a_function_that_returns_no_dict_is_named(result: Any, words: str) -> None:
    """A `collate_fn` may return a tuple to torch; here every value has a name."""

    def wrong(samples: list[Sample]) -> Any:
        return result

    with pytest.raises(TypeError, match=f"wrong {words}; return a dict of named values"):
        FunctionCollator(wrong).collate(STACKED, context())


def test_a_collators_function_is_found_by_its_file(tmp_path: Path) -> None:
    """Its place decides nothing, its source does; a collator class is not one."""
    source = "def collate(samples):\n    return {'n': len(samples)}\n"
    for name, text in (("a.py", source), ("b.py", source), ("c.py", source.replace("'n'", "'m'"))):
        (tmp_path / name).write_text(text)
    (tmp_path / "d.py").write_text("from penstock.server.roles import PaddedCollator\n")

    one, same, other = (FunctionCollator(f"{tmp_path}/{name}.py:collate") for name in "abc")

    assert one.identity() == same.identity()
    assert one.identity() != other.identity()
    assert one.clone().collate(STACKED, context()) == {"n": 2}
    assert pickle.loads(pickle.dumps(one)).collate(STACKED, context()) == {"n": 2}
    with pytest.raises(InvalidJob, match="is a collator class; write it as type:"):
        FunctionCollator(f"{tmp_path}/d.py:PaddedCollator").identity()
    with pytest.raises(InvalidJob, match=r"such as './data.py:collate'"):
        FunctionCollator(5)  # type: ignore[arg-type]
