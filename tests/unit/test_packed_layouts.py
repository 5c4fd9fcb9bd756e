"""The layouts of packed batches: every key against a reference written token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.batch_text import batch_text
from penstock.server.roles.collator import ValueLayout
from penstock.server.roles.collators import PackedCollator, PaddedCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch

LAYOUTS = ("flash", "megatron", "thd", "indexed", "neat")
HIDE = ("indexed", "neat")


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def document(*ids: int, **more: Any) -> Sample:
    return {"input_ids": np.array(ids, dtype=np.int32), **more}


@st.composite
def samples(draw: st.DrawFn, *, hiding: bool = False) -> Sample:
    """A document, with labels, a loss mask and hidden tokens of its own or without."""
    size = draw(st.integers(0, 6))
    made: Sample = {"input_ids": draw(st.lists(st.integers(1, 50), min_size=size, max_size=size))}
    flags = st.lists(st.integers(0, 1), min_size=size, max_size=size)
    if draw(st.booleans()):
        made["labels"] = draw(st.lists(st.sampled_from([-100, 3, 4]), min_size=size, max_size=size))
    if draw(st.booleans()):
        made["loss_mask"] = [float(flag) for flag in draw(flags)]
    if hiding and draw(st.booleans()):
        made["attention_mask"] = draw(flags)
    return made


def slow_rows(
    rows: list[list[Sample]], width: int, multiple: int, pad: int, *, shifted: bool
) -> dict[str, list[list[Any]]]:
    """Return what each token is: id, label, place, document, and whether it is padding.

    `place` counts from the document's start, through its own padding and what is left of the row.
    """
    found: dict[str, list[list[Any]]] = {
        name: [] for name in ("ids", "labels", "place", "numbers", "padding")
    }
    for row in rows or [[]]:
        cells: list[tuple[int, int, int, int, bool]] = []
        number = place = 0
        for sample in row:
            ids = sample["input_ids"]
            if len(ids) == 0:
                continue
            number += 1
            own = list(sample.get("labels", ids))
            learned = sample.get("loss_mask", [1] * len(ids))
            seen = sample.get("attention_mask", [1] * len(ids))
            for place in range(-(-len(ids) // multiple) * multiple):
                if place >= len(ids):
                    cells.append((pad, -100, place, 0, True))
                    continue
                target, source = (place + 1, place) if shifted else (place, place - 1)
                label = -100
                if source >= 0 and target < len(ids) and learned[target]:
                    label = own[target] if seen[target] and seen[source] else -100
                cells.append((ids[place], label, place, number if seen[place] else 0, False))
        while len(cells) < width:
            place = place + 1 if number else len(cells)
            cells.append((pad, -100, place, 0, True))
        for name, column in zip(found, zip(*cells, strict=True), strict=True):
            found[name].append(list(column))
    return found


def slow_lengths(
    rows: list[list[Sample]], width: int, multiple: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the tokens of each document of each row without and with padding, as thd has them."""
    lengths, padded = [], []
    for row in rows or [[]]:
        sizes = [len(sample["input_ids"]) for sample in row if len(sample["input_ids"])]
        whole = [-(-size // multiple) * multiple for size in sizes]
        if sizes:
            whole[-1] += width - sum(whole)
        lengths.append(sizes or [width])
        padded.append(whole or [width])
    most = max(map(len, lengths))
    for rows_of in (lengths, padded):
        for numbers in rows_of:
            numbers += [-1000] * (most - len(numbers))
    return lengths, padded


def slow_seams(rows: list[list[Sample]], width: int, multiple: int) -> list[int]:
    """Return where each document or padding begins in the flattened rows, and the end."""
    seams = []
    for number, row in enumerate(rows or [[]]):
        start = number * width
        for sample in row:
            if len(sample["input_ids"]):
                seams.append(start)
                start += -(-len(sample["input_ids"]) // multiple) * multiple
        if start < (number + 1) * width:
            seams.append(start)
    return [*seams, width * len(rows or [[]])]


@settings(deadline=None, max_examples=150)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    multiple=st.sampled_from([None, 2, 4]),
    labels=st.sampled_from([None, "shifted", "unshifted"]),
    ids_dtype=st.sampled_from(["int64", "int32"]),
    spare=st.integers(0, 3),
)
def test_every_layout_is_the_slow_one(
    data: st.DataObject,
    layout: str,
    multiple: int | None,
    labels: str | None,
    ids_dtype: str,
    spare: int,
) -> None:
    """Keys, their order, dtypes, shapes and values."""
    rows = data.draw(
        st.lists(st.lists(samples(hiding=layout in HIDE), max_size=4), min_size=1, max_size=3)
    )
    unit = multiple or 1
    longest = max(sum(-(-len(s["input_ids"]) // unit) * unit for s in row) for row in rows)
    width = longest + spare * unit or unit
    shifted = labels == "shifted" or (labels is None and layout in ("megatron", "thd", "neat"))
    slow = slow_rows(rows, width, unit, 99, shifted=shifted)
    told = context()

    values = PackedCollator(
        pad_to=width,
        document_multiple=multiple,
        labels=labels,
        pad_value=99,
        ids_dtype=ids_dtype,
        layout=layout,
    ).collate(rows, told)

    seams = slow_seams(rows, width, unit)
    start_of = np.array(seams)[np.searchsorted(seams, range(seams[-1]), side="right") - 1]
    in_seams = (np.arange(seams[-1]) - start_of).reshape(len(rows), width).tolist()
    lengths, padded = slow_lengths(rows, width, unit)
    on_documents = [
        [0 if padding else place for place, padding in zip(*row, strict=True)]
        for row in zip(slow["place"], slow["padding"], strict=True)
    ]
    masks = [[float(label != -100) for label in row] for row in slow["labels"]]
    longest_seam = max(np.diff(seams))
    ids, label, number = slow["ids"], slow["labels"], slow["numbers"]
    expected: dict[str, tuple[str, Any]] = {
        "flash": {
            "input_ids": (ids_dtype, ids),
            "labels": (ids_dtype, label),
            "position_ids": (ids_dtype, in_seams),
            "cu_seq_lens_q": ("int32", seams),
            "cu_seq_lens_k": ("int32", seams),
            "max_length_q": ("", longest_seam),
            "max_length_k": ("", longest_seam),
            "document_ids": ("int32", number),
        },
        "megatron": {
            "tokens": (ids_dtype, ids),
            "labels": (ids_dtype, label),
            "loss_mask": ("float32", masks),
            "position_ids": (ids_dtype, in_seams),
            "cu_seqlens": ("int32", seams),
            "max_seqlen": ("int32", longest_seam),
        },
        "thd": {
            "input_ids": (ids_dtype, ids),
            "labels": (ids_dtype, label),
            "position_ids": (ids_dtype, slow["place"]),
            "seq_lens": ("int64", lengths),
            "seq_lens_padded": ("int64", padded),
            "qkv_format": ("", "thd"),
        },
        "indexed": {
            "input_ids": (ids_dtype, ids),
            "labels": (ids_dtype, label),
            "position_ids": (ids_dtype, on_documents),
            "attention_mask": (ids_dtype, number),
        },
        "neat": {
            "input_ids": (ids_dtype, ids),
            "labels": (ids_dtype, label),
            "position_ids": (ids_dtype, on_documents),
            "attention_mask": (ids_dtype, number),
            "_packed_seq_ids": (ids_dtype, number),
        },
    }[layout]
    assert list(values) == list(expected)
    for name, (dtype, wanted) in expected.items():
        if dtype:
            assert values[name].dtype == dtype, name
            assert values[name].tolist() == wanted, name
        else:
            assert values[name] == wanted, name
    assert told.counts["loss_tokens"] == sum(map(sum, masks))


def test_a_layout_by_hand() -> None:
    """Two documents and two tokens of padding, in each layout that is not `flash`."""
    rows = [[document(1, 2, 3), document(4, 5)]]

    def values(layout: str) -> dict[str, Any]:
        made = PackedCollator(pad_to=7, pad_value=9, layout=layout).collate(rows, context())
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in made.items()
        }

    assert values("megatron") == {
        "tokens": [[1, 2, 3, 4, 5, 9, 9]],
        "labels": [[2, 3, -100, 5, -100, -100, -100]],
        "loss_mask": [[1, 1, 0, 1, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 1]],
        "cu_seqlens": [0, 3, 5, 7],
        "max_seqlen": 3,
    }
    assert values("thd") == {
        "input_ids": [[1, 2, 3, 4, 5, 9, 9]],
        "labels": [[2, 3, -100, 5, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1, 2, 3]],
        "seq_lens": [[3, 2]],
        "seq_lens_padded": [[3, 4]],
        "qkv_format": "thd",
    }
    assert values("indexed") == {
        "input_ids": [[1, 2, 3, 4, 5, 9, 9]],
        "labels": [[-100, 2, 3, -100, 5, -100, -100]],
        "position_ids": [[0, 1, 2, 0, 1, 0, 0]],
        "attention_mask": [[1, 1, 1, 2, 2, 0, 0]],
    }
    assert values("neat") == {
        **values("indexed"),
        "labels": [[2, 3, -100, 5, -100, -100, -100]],
        "_packed_seq_ids": [[1, 1, 1, 2, 2, 0, 0]],
    }


def test_a_hidden_token_keeps_its_place_and_is_not_learned() -> None:
    """As the tokens of a stand-in image: attention skips them, and positions count on."""
    rows = [[document(1, 2, 3, 4), document(5, 6, 7, 8, 9, attention_mask=[1, 0, 0, 1, 1])]]

    values = PackedCollator(layout="indexed").collate(rows, context())

    assert values["attention_mask"].tolist() == [[1, 1, 1, 1, 2, 0, 0, 2, 2]]
    assert values["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4]]
    assert values["labels"].tolist() == [[-100, 2, 3, 4, -100, -100, -100, -100, 9]]


@pytest.mark.parametrize("layout", ["flash", "megatron", "thd"])
def test_seams_cannot_hide_tokens(layout: str) -> None:
    """A kernel with seams alone would see them: the batch is refused, and says what works."""
    rows = [[document(1, 2, attention_mask=[1, 0])]]

    with pytest.raises(BadBatch, match=f"layout {layout} cannot say; use layout: indexed"):
        PackedCollator(layout=layout).collate(rows, context())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_without_documents_has_sequences_of_padding(layout: str) -> None:
    """What quarantine emptied has the others' keys; kernels get no sequence of no tokens."""
    collator = PackedCollator(pad_to=4, layout=layout)
    usual = collator.collate([[document(1, 2)], [document(3)]], context())

    values = collator.collate([[], []], context())

    assert list(values) == list(usual)
    assert (values["labels"] == -100).all()
    if "cu_seqlens" in values:
        assert values["cu_seqlens"].tolist() == [0, 4, 8]
    if "seq_lens" in values:
        assert values["seq_lens"].tolist() == values["seq_lens_padded"].tolist() == [[4], [4]]


def test_the_most_documents_of_thd_are_those_of_a_row() -> None:
    """The lengths have one shape; a row with more documents is refused."""
    collator = PackedCollator(pad_to=4, max_documents=2, layout="thd")

    values = collator.collate([[document(1)], [document(1), document(2)]], context())

    assert values["seq_lens"].tolist() == [[1, -1000], [1, 1]]
    assert values["seq_lens_padded"].tolist() == [[4, -1000], [1, 3]]
    with pytest.raises(BadBatch, match="3 documents in a row"):
        collator.collate([[document(1), document(2), document(3)]], context())


@pytest.mark.parametrize("layout", [*LAYOUTS, "seams"])
def test_documents_are_shown_in_every_layout(layout: str) -> None:
    """As `cat --text` and `show --text` print them, with their seams and padding."""
    rows = [[document(1, 2, 3), document(4, 5)], [document(6, 7)]]

    shown = batch_text(PackedCollator(pad_to=7, layout=layout).collate(rows, context()), None)

    assert shown.splitlines() == [
        "--- row 0, document 1, 3 tokens ---",
        "1 2 3",
        "--- row 0, document 2, 2 tokens ---",
        "4 5",
        "--- row 0, padding, 2 tokens ---",
        "--- row 1, document 1, 2 tokens ---",
        "6 7",
        "--- row 1, padding, 5 tokens ---",
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_tells_what_its_labels_are(layout: str) -> None:
    """What `Describe` states: the name, whether labels are shifted, which label losses ignore."""
    shifted = layout in ("megatron", "thd", "neat")

    assert PackedCollator(layout=layout).value_layout() == ValueLayout(layout, shifted, -100)
    for labels in ("shifted", "unshifted"):
        told = PackedCollator(layout=layout, labels=labels).value_layout()
        assert told.labels_shifted == (labels == "shifted")
    assert PaddedCollator(labels="shifted", label_pad=-1).value_layout() == ValueLayout(
        "padded", True, -1
    )


@pytest.mark.parametrize("collator", [PackedCollator, PaddedCollator])
def test_padding_has_the_id_that_samples_tell(
    collator: type[PackedCollator] | type[PaddedCollator],
) -> None:
    """A tokenizer's own, unless the job gives one; two tokenizers in a batch are refused."""
    rows = [[document(1, 2, pad_token_id=7)], [document(3, pad_token_id=7)]]

    assert collator().collate(rows, context())["input_ids"].tolist() == [[1, 2], [3, 7]]
    assert collator(pad_value=5).collate(rows, context())["input_ids"].tolist() == [[1, 2], [3, 5]]
    rows[1][0]["pad_token_id"] = 8
    with pytest.raises(BadBatch, match="pad_token_ids 7, 8"):
        collator().collate(rows, context())


@pytest.mark.parametrize("collator", [PackedCollator(), PaddedCollator()])
def test_what_processors_note_is_counted(collator: PackedCollator | PaddedCollator) -> None:
    """Integers of samples are added up in the batch's counts, and are not among its values."""
    rows = [[document(1, 2, noted={"guessed": 1})], [document(3, noted={"guessed": 2, "odd": 1})]]
    told = context()

    values = collator.collate([*rows, [document(4)]], told)

    assert "noted" not in values
    assert (told.counts["guessed"], told.counts["odd"]) == (3, 1)


def test_padded_shifts_and_cuts() -> None:
    """Labels are shifted before samples are cut: a last token that stays predicts what was cut."""
    rows = [
        [document(1, 2, 3, 4, loss_mask=[1, 1, 1, 1])],
        [document(5, 6, loss_mask=[1, 0])],
    ]
    told = context()

    values = PaddedCollator(pad_to=3, labels="shifted", truncate=True).collate(rows, told)

    assert values["input_ids"].tolist() == [[1, 2, 3], [5, 6, 0]]
    assert values["labels"].tolist() == [[2, 3, 4], [-100, -100, -100]]
    assert values["loss_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert told.counts == {
        "loss_tokens": 3,
        "samples": 2,
        "tokens": 5,
        "padding_tokens": 1,
        "truncated_samples": 1,
        "truncated_tokens": 1,
    }


@pytest.mark.parametrize("collator", [PackedCollator, PaddedCollator])
def test_both_forms_of_labels_count_the_same_tokens(
    collator: type[PackedCollator] | type[PaddedCollator],
) -> None:
    """What a step's loss is divided by does not depend on who shifts."""
    rows = [
        [document(*ids, loss_mask=[1] * (len(ids) - 1) + [last])]
        for *ids, last in ([1, 2, 3, 1], [4, 1], [5, 6, 0])
    ]
    counts = []
    for labels in ("unshifted", "shifted"):
        told = context()
        collator(labels=labels).collate(rows, told)
        counts.append(told.counts)

    assert counts[0] == counts[1]
    assert counts[0]["loss_tokens"] == 2


def test_padded_gives_the_sequence_keys_of_cosmos() -> None:
    """Right-padded to a multiple of 16, masks bool, labels -100 on padding."""
    rows = [
        [document(*range(1, 18), labels=[-100] * 16 + [17], token_mask=np.arange(17) == 16)],
        [document(1, 2, labels=[-100, 2], token_mask=np.array([False, True]))],
    ]

    values = PaddedCollator(pad_to_multiple_of=16, pad_value=99, mask_dtype="bool").collate(
        rows, context()
    )

    assert {name: (value.dtype.name, value.shape) for name, value in values.items()} == {
        "input_ids": ("int64", (2, 32)),
        "attention_mask": ("bool", (2, 32)),
        "labels": ("int64", (2, 32)),
        "token_mask": ("bool", (2, 32)),
    }
    assert np.array_equal(values["token_mask"], values["labels"] != -100)
    assert np.array_equal(values["attention_mask"], values["input_ids"] != 99)
