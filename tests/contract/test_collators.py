"""What every collator keeps: purity, fixed names and dtypes, honest specs, a blank that fits."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

from penstock.server.roles.base import BatchCollator, CollateContext, Sample
from penstock.server.roles.collators import (
    BUILTIN_COLLATORS,
    DefaultBatchCollator,
    PackedCollator,
    PaddedCollator,
)
from penstock.wire.errors import BadBatch, InvalidJob
from penstock.wire.values import to_plain

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

CASES = {
    "default": (DefaultBatchCollator(), STACKED, STACKED_LATER),
    "padded": (PaddedCollator(), RAGGED, RAGGED_LATER),
    "padded to": (PaddedCollator(pad_to=8, pad_value=99), RAGGED, RAGGED_LATER),
    "padded multiple": (PaddedCollator(pad_to_multiple_of=4), RAGGED, RAGGED_LATER),
    "packed": (PackedCollator(), PACKED, PACKED_LATER),
    "packed to": (PackedCollator(pad_to=8, pad_value=99), PACKED, PACKED_LATER),
    "packed for compile": (PackedCollator(pad_to=8, max_documents=12), PACKED, PACKED_LATER),
    "packed for cp": (PackedCollator(document_multiple=4), PACKED, PACKED_LATER),
    "packed shifted": (PackedCollator(labels="shifted"), PACKED, PACKED_LATER),
    "packed int32": (PackedCollator(ids_dtype="int32"), PACKED, PACKED_LATER),
}
every_collator = pytest.mark.parametrize(
    ("collator", "rows", "later"), CASES.values(), ids=CASES.keys()
)


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def as_bytes(values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Everything that decides the bytes of a batch, in order."""
    return [
        (name, value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else (name, type(value), value)
        for name, value in values.items()
    ]


def test_the_suite_covers_every_built_in() -> None:
    """No built-in collator is without this contract."""
    assert {type(collator) for collator, _, _ in CASES.values()} == set(BUILTIN_COLLATORS.values())
    assert all(cls.type_name == name for name, cls in BUILTIN_COLLATORS.items())


@every_collator
def test_the_same_rows_give_the_same_bytes(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """What was collated before, and by which copy of the role, changes nothing."""
    first, second = context(), context()

    values = collator.collate(rows, first)
    collator.collate(later, context())
    again = collator.clone().collate(copy.deepcopy(rows), second)

    assert as_bytes(values) == as_bytes(again)
    assert first.counts == second.counts


@every_collator
def test_the_samples_are_left_as_they_were(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """A sample may be read again by another batch: neither collating nor its values touch it."""
    before = copy.deepcopy(rows)

    values = collator.collate(rows, context())
    for value in values.values():
        if isinstance(value, np.ndarray):
            value[...] = 1

    for row, old_row in zip(rows, before, strict=True):
        for sample, old in zip(row, old_row, strict=True):
            assert as_bytes(sample) == as_bytes(old)


@every_collator
def test_names_order_and_dtypes_are_those_of_every_batch(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """A trainer may compile against the first batch."""
    first = collator.collate(rows, context())
    second = collator.collate(later, context())

    assert list(first) == list(second)
    for name, value in first.items():
        assert type(value) is type(second[name])
        if isinstance(value, np.ndarray):
            assert value.dtype == second[name].dtype
            assert value.ndim == second[name].ndim


@every_collator
def test_specs_say_what_the_values_are(collator: BatchCollator, rows: Rows, later: Rows) -> None:
    """Every known key is there, of the dtype, kind and fixed dimensions that were announced."""
    for batch in (rows, later):
        values = collator.collate(batch, context())

        for spec in collator.specs():
            value = values[spec.name]
            if spec.kind == "int":
                assert type(value) is int
                assert spec.place == "host"
                continue
            assert spec.kind == "tensor"
            assert value.dtype.name == spec.dtype
            assert len(spec.shape) == value.ndim
            assert all(
                want in (-1, have) for want, have in zip(spec.shape, value.shape, strict=True)
            )


@every_collator
def test_blank_keeps_the_shapes_and_changes_only_labels(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """Every known key is there, of the dtype, kind and fixed dimensions that were announced."""
    values = collator.collate(rows, context())
    before = as_bytes(values)

    blank = collator.blank(values)

    assert as_bytes(values) == before
    for entry, old in zip(as_bytes(blank), before, strict=True):
        if entry[0] == "labels":
            assert entry[:3] == old[:3]
            assert (blank["labels"] == -100).all()
            assert blank["labels"] is not values["labels"]
        else:
            assert entry == old


@every_collator
def test_values_have_a_form_on_the_wire(collator: BatchCollator, rows: Rows, later: Rows) -> None:
    """Whatever a built-in collator gives can be sent."""
    for name, value in collator.collate(rows, context()).items():
        to_plain(value, name)


@every_collator
def test_counts_are_plain_and_true(collator: BatchCollator, rows: Rows, later: Rows) -> None:
    """The integers of the header agree with what is in the batch."""
    told = context()

    values = collator.collate(rows, told)

    assert all(type(count) is int for count in told.counts.values())
    assert told.counts["samples"] == sum(map(len, rows))
    if "input_ids" in values:
        real = sum(len(sample["input_ids"]) for row in rows for sample in row)
        assert told.counts["tokens"] == real
        assert told.counts["padding_tokens"] == values["input_ids"].size - real
        assert told.counts["loss_tokens"] == np.count_nonzero(values["labels"] != -100)


@every_collator
def test_emptied_rows_make_a_batch_of_padding(
    collator: BatchCollator, rows: Rows, later: Rows
) -> None:
    """Where quarantine took every item the batch is still one: same keys and dtypes, no tokens."""
    usual = collator.collate(rows, context())
    told = context()

    values = collator.collate([[], []], told)

    assert told.counts["samples"] == 0
    for spec in collator.specs():
        if spec.kind == "tensor":
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
    assert identity["version"] == 1
    assert identity.get("parameters", {}) == json.loads(json.dumps(collator.arguments))


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


# --- PaddedCollator ---


def test_padded_pads_on_the_right() -> None:
    """Ids, mask and labels end in padding; own labels win; the rest is stacked."""
    values = PaddedCollator(pad_to=4, pad_value=99).collate(RAGGED, context())

    assert values["input_ids"].tolist() == [[1, 2, 3, 99], [4, 99, 99, 99], [5, 6, 99, 99]]
    assert values["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert values["labels"].tolist() == [[1, 2, 3, -100], [9] + [-100] * 3, [5, 6, -100, -100]]
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
