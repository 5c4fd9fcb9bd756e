"""PackedCollator against a form made of loops, the collator of transformers, and by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch, InvalidJob

Rows = list[list[Sample]]


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def document(*ids: int, **more: Any) -> Sample:
    return {"input_ids": np.array(ids, dtype=np.int32), **more}


def slow_packed(
    rows: Rows,
    pad_to: int | None,
    multiple: int,
    labels: str,
    pad_value: int,
) -> dict[str, Any]:
    """The obvious form: one Python list per row, one token at a time."""
    kept = [[sample for sample in row if len(sample["input_ids"])] for row in rows] or [[]]
    ids, marks, positions, numbers, ends = [], [], [], [], []
    for row in kept:
        row_ids: list[int] = []
        row_marks: list[int] = []
        row_positions: list[int] = []
        row_numbers: list[int] = []
        row_ends: list[int] = []
        for number, sample in enumerate(row, start=1):
            tokens = [int(token) for token in sample["input_ids"]]
            own = [int(label) for label in sample.get("labels", tokens)]
            own = [-100, *own[1:]] if labels == "unshifted" else [*own[1:], -100]
            padding = 0
            while (len(tokens) + padding) % multiple:
                padding += 1
            row_ids += tokens + [pad_value] * padding
            row_marks += own + [-100] * padding
            row_positions += list(range(len(tokens) + padding))
            row_numbers += [number] * len(tokens) + [0] * padding
            row_ends.append(len(row_ids))
        ids.append(row_ids)
        marks.append(row_marks)
        positions.append(row_positions)
        numbers.append(row_numbers)
        ends.append(row_ends)
    width = pad_to or max(*map(len, ids), multiple)
    seams = [0]
    for number in range(len(kept)):
        rest = width - len(ids[number])
        ids[number] += [pad_value] * rest
        marks[number] += [-100] * rest
        positions[number] += list(range(rest))
        numbers[number] += [0] * rest
        seams += [number * width + end for end in ends[number]]
        if rest:
            seams.append((number + 1) * width)
    longest = max(right - left for left, right in pairwise(seams))
    return {
        "input_ids": ids,
        "labels": marks,
        "position_ids": positions,
        "cu_seq_lens_q": seams,
        "cu_seq_lens_k": seams,
        "max_length_q": longest,
        "max_length_k": longest,
        "document_ids": numbers,
    }


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    ids = draw(st.lists(st.integers(0, 50_000), max_size=9))
    sample: Sample = {"input_ids": np.array(ids, dtype=np.int32)}
    if draw(st.booleans()):
        label = st.one_of(st.just(-100), st.integers(0, 9))
        sample["labels"] = draw(st.lists(label, min_size=len(ids), max_size=len(ids)))
    return sample


@settings(deadline=None)  # imports and a busy machine are no property
@given(
    rows=st.lists(st.lists(samples(), max_size=6), max_size=4),
    multiple=st.sampled_from([None, 1, 2, 4]),
    fixed=st.booleans(),
    spare=st.integers(0, 5),
    labels=st.sampled_from(["unshifted", "shifted"]),
    pad_value=st.integers(0, 9),
    ids_dtype=st.sampled_from(["int64", "int32"]),
)
def test_packing_equals_the_form_made_of_loops(
    rows: Rows,
    multiple: int | None,
    fixed: bool,
    spare: int,
    labels: str,
    pad_value: int,
    ids_dtype: str,
) -> None:
    """Every value of every batch is what writing one token after another gives."""
    unit = multiple or 1
    longest = max(
        (sum(-(-len(sample["input_ids"]) // unit) * unit for sample in row) for row in rows),
        default=0,
    )
    pad_to = longest + spare * unit or unit if fixed else None
    expected = slow_packed(rows, pad_to, unit, labels, pad_value)
    told = context()

    values = PackedCollator(
        pad_to=pad_to,
        document_multiple=multiple,
        labels=labels,
        pad_value=pad_value,
        ids_dtype=ids_dtype,
    ).collate(rows, told)

    assert list(values) == list(expected)
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            assert value.tolist() == expected[name], name
            wanted = ids_dtype if name in ("input_ids", "labels", "position_ids") else "int32"
            assert value.dtype == wanted, name
        else:
            assert (type(value), value) == (int, expected[name]), name
    assert told.counts == {
        "samples": sum(map(len, rows)),
        "tokens": int(np.count_nonzero(expected["document_ids"])),
        "loss_tokens": int(np.count_nonzero(values["labels"] != -100)),
        "padding_tokens": sum(row.count(0) for row in expected["document_ids"]),
    }


@settings(deadline=None)
@given(rows=st.lists(st.lists(samples(), max_size=6), max_size=4), spare=st.integers(0, 5))
def test_seams_are_strictly_increasing_and_cover_everything(rows: Rows, spare: int) -> None:
    """cu_seq_lens bounds every token of the flattened rows once; max_length is the longest gap."""
    longest = max((sum(len(s["input_ids"]) for s in row) for row in rows), default=0)

    values = PackedCollator(pad_to=max(1, longest + spare)).collate(rows, context())

    seams = values["cu_seq_lens_q"]
    gaps = np.diff(seams)
    assert seams[0] == 0
    assert seams[-1] == values["input_ids"].size
    assert (gaps > 0).all()
    assert values["max_length_q"] == values["max_length_k"] == gaps.max()
    assert np.array_equal(seams, values["cu_seq_lens_k"])


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(samples(), max_size=6), min_size=1, max_size=4),
    multiple=st.sampled_from([None, 2, 4]),
)
def test_every_mask_derives_from_document_ids(rows: Rows, multiple: int | None) -> None:
    """For real tokens "same document, not later" is "same seam, not later", and nothing else."""
    values = PackedCollator(document_multiple=multiple).collate(rows, context())

    numbers = values["document_ids"]
    height, width = numbers.shape
    causal = np.tril(np.ones((width, width), bool))
    of_seams = np.repeat(
        np.arange(len(values["cu_seq_lens_q"]) - 1), np.diff(values["cu_seq_lens_q"])
    ).reshape(height, width)
    for row in range(height):
        real = numbers[row] > 0
        by_documents = (numbers[row][:, None] == numbers[row]) & real & real[:, None] & causal
        by_seams = (of_seams[row][:, None] == of_seams[row]) & causal
        assert np.array_equal(by_documents[real], by_seams[real])
        assert not by_documents[~real].any()
        firsts = real & (np.diff(numbers[row], prepend=0) > 0)
        assert (values["position_ids"][row][firsts] == 0).all()
        assert (values["labels"][row][firsts | ~real] == -100).all()
        assert int(firsts.sum()) == sum(len(sample["input_ids"]) > 0 for sample in rows[row])


def test_the_layout_by_hand() -> None:
    """Two documents and two tokens of padding, written out."""
    values = PackedCollator(pad_to=7, pad_value=99).collate(
        [[document(1, 2, 3), document(4, 5)]], context()
    )

    assert values["input_ids"].tolist() == [[1, 2, 3, 4, 5, 99, 99]]
    assert values["labels"].tolist() == [[-100, 2, 3, -100, 5, -100, -100]]
    assert values["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1]]
    assert values["cu_seq_lens_q"].tolist() == [0, 3, 5, 7]
    assert values["max_length_q"] == 3
    assert values["document_ids"].tolist() == [[1, 1, 1, 2, 2, 0, 0]]


def test_rows_are_flattened_for_the_seams_and_numbered_each() -> None:
    """With several rows cu_seq_lens runs over all of them; no document joins another row's."""
    values = PackedCollator().collate([[document(1, 2), document(3)], [document(4)], []], context())

    assert values["input_ids"].shape == (3, 3)
    assert values["cu_seq_lens_q"].tolist() == [0, 2, 3, 4, 6, 9]
    assert values["document_ids"].tolist() == [[1, 1, 2], [1, 0, 0], [0, 0, 0]]
    assert values["max_length_q"] == 3


def test_shifted_labels_are_the_next_token() -> None:
    """The input t is paired with t + 1, and the last of a document with nothing."""
    values = PackedCollator(pad_to=6, labels="shifted").collate(
        [[document(1, 2, 3), document(4, 5)]], context()
    )

    assert values["labels"].tolist() == [[2, 3, -100, 5, -100, -100]]


def test_shifted_and_unshifted_train_on_the_same_targets() -> None:
    """Both forms count the same tokens of the loss, so sums and means agree."""
    rows = [[document(1, 2, 3), document(4), document(5, 6, labels=[-100, 7])]]
    counts = []
    for labels in ("unshifted", "shifted"):
        told = context()
        PackedCollator(pad_to=8, labels=labels).collate(rows, told)
        counts.append(told.counts)

    assert counts[0] == counts[1]
    assert counts[0]["loss_tokens"] == 3


def test_labels_of_the_samples_are_used_but_for_the_first() -> None:
    """Prompt masking survives packing, and no document predicts its neighbour's first token."""
    rows = [[document(1, 2, labels=[1, -100]), document(3, 4, labels=np.array([3, 9]))]]

    values = PackedCollator().collate(rows, context())

    assert values["labels"].tolist() == [[-100, -100, -100, 9]]


def test_documents_fill_up_to_a_multiple() -> None:
    """For context parallelism a document's own padding lies behind it and inside its seams."""
    values = PackedCollator(pad_to=12, document_multiple=4, pad_value=99).collate(
        [[document(1, 2, 3), document(4, 5, 6, 7)]], context()
    )

    assert values["input_ids"].tolist() == [[1, 2, 3, 99, 4, 5, 6, 7, 99, 99, 99, 99]]
    assert values["cu_seq_lens_q"].tolist() == [0, 4, 8, 12]
    assert values["document_ids"].tolist() == [[1, 1, 1, 0, 2, 2, 2, 2, 0, 0, 0, 0]]
    assert values["position_ids"].tolist() == [[0, 1, 2, 3] * 3]


@pytest.mark.parametrize("documents", range(1, 6))
def test_max_documents_fixes_the_length_of_the_seams(documents: int) -> None:
    """However many documents, cu_seq_lens has one shape; its last value is repeated."""
    rows = [[document(number) for number in range(documents)]]

    values = PackedCollator(pad_to=5, max_documents=6).collate(rows, context())

    padding = [5] if documents < 5 else []
    seams = [*range(documents + 1), *padding]
    assert values["cu_seq_lens_q"].tolist() == seams + [5] * (7 - len(seams))


@pytest.mark.parametrize(
    ("collator", "shape"),
    [
        (PackedCollator(pad_to=6), (1, 6)),
        (PackedCollator(document_multiple=4), (1, 4)),
        (PackedCollator(), (1, 1)),
    ],
)
@pytest.mark.parametrize("rows", [[], [[]], [[document()]]])
def test_a_batch_without_tokens_is_padding(
    collator: PackedCollator, shape: tuple[int, int], rows: Rows
) -> None:
    """An emptied group has the others' shape, as far as it is fixed, and one document: padding."""
    told = context()

    values = collator.collate(rows, told)

    assert values["input_ids"].shape == shape
    assert values["cu_seq_lens_q"].tolist() == [0, shape[1]]
    assert values["max_length_q"] == shape[1]
    assert not values["document_ids"].any()
    assert told.counts["padding_tokens"] == shape[1]


@pytest.mark.parametrize(
    ("collator", "row", "words"),
    [
        (PackedCollator(pad_to=4), [document(1, 2, 3), document(4, 5)], ["row 0", "5", "pad_to"]),
        (
            PackedCollator(pad_to=4, document_multiple=2),
            [document(1, 2, 3), document(4)],
            ["6 tokens", "multiple of 2", "pad_to is 4"],
        ),
        (
            PackedCollator(pad_to=4, max_documents=2),
            [document(1), document(2)],
            ["3 documents", "max_documents is 2"],
        ),
        (PackedCollator(), [{"text": "a"}], ["'input_ids'", "'text'"]),
        (PackedCollator(), [document(1, 2, labels=[1])], ["1 labels", "2 tokens"]),
        (PackedCollator(), [{"input_ids": np.ones(3)}], ["'input_ids'", "float64"]),
    ],
)
def test_what_does_not_fit_is_named(
    collator: PackedCollator, row: list[Sample], words: list[str]
) -> None:
    """The error says where, how much and against which parameter."""
    with pytest.raises(BadBatch) as caught:
        collator.collate([row], context())

    assert caught.value.fields == {"lane": 2, "offset": 5}
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"pad_to": 0}, "pad_to"),
        ({"pad_to": "8192"}, "pad_to"),
        ({"document_multiple": 0}, "document_multiple"),
        ({"pad_value": "0"}, "pad_value"),
        ({"max_documents": -1}, "max_documents"),
        ({"pad_to": 10, "document_multiple": 4}, "pad_to"),
        ({"labels": "moved"}, "labels"),
        ({"ids_dtype": "int16"}, "ids_dtype"),
        ({"layout": "megatronn"}, "layout"),
        ({"layout": "indexed", "max_documents": 4}, "max_documents"),
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, Any], key: str) -> None:
    """A wrong parameter fails where it is given, by name."""
    with pytest.raises(InvalidJob) as caught:
        PackedCollator(**parameters)

    assert caught.value.fields["key"] == key


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), own_labels=st.booleans())
def test_packing_equals_the_flattening_collator_of_transformers(
    lengths: list[int], own_labels: bool
) -> None:
    """Without padding every key is what transformers gives its own models."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokens = np.arange(1, sum(lengths) + 1)
    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    features = [
        {"input_ids": part.tolist()}
        | ({"labels": [-100, *(part[1:] + 7).tolist()]} if own_labels else {})
        for part in parts
    ]

    theirs = transformers.DataCollatorWithFlattening(
        return_flash_attn_kwargs=True, return_seq_idx=True
    )(features)
    ours = PackedCollator().collate([features], context())

    # transformers counts sequences from 0, and has no padding to tell apart from the first.
    assert np.array_equal(ours.pop("document_ids"), theirs.pop("seq_idx").numpy() + 1)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, int):
            assert value == theirs[name], name
        else:
            assert np.array_equal(value, theirs[name].numpy()), name
            assert value.dtype == theirs[name].numpy().dtype, name
