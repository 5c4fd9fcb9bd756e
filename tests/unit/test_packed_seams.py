"""The layout `seams`, completed, is the layout `flash`; columns give what items do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client import masks
from penstock.client.packed import complete, on_device
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.number_columns import ColumnRows
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch, InvalidJob, InvalidRequest

LAYOUTS = ("flash", "megatron", "thd", "indexed", "neat", "seams")


class Columns(ColumnRows):
    """Rows of samples as columns."""

    def __init__(self, rows: list[list[Sample]], names: list[str]) -> None:
        self._rows = rows
        self.lengths = [np.array([len(one["input_ids"]) for one in row], np.int64) for row in rows]
        self.dtypes = dict.fromkeys(names, np.dtype(np.int32))

    def write(self, column: str, row: int, out: np.ndarray[Any, Any]) -> None:
        """Write a row."""
        out[:] = np.concatenate([one[column] for one in self._rows[row]] or [[]])


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def tensors(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


@st.composite
def batches(draw: st.DrawFn, *, labels: bool = False) -> list[list[Sample]]:
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = draw(st.lists(st.integers(0, 5), max_size=4))
        row = [{"input_ids": np.arange(1, size + 1, dtype=np.int32)} for size in sizes]
        if labels:
            for sample in row:
                own = st.sampled_from([-100, 3, 4])
                size = len(sample["input_ids"])
                sample["labels"] = np.array(
                    draw(st.lists(own, min_size=size, max_size=size)), np.int32
                )
        rows.append(row)
    return rows


@settings(max_examples=150, deadline=None)
@given(
    rows=batches(),
    shifted=st.booleans(),
    room=st.sampled_from([None, 30]),
    pad_to=st.sampled_from([None, 20]),
)
def test_what_is_completed_is_what_flash_sends(
    rows: list[list[Sample]], shifted: bool, room: int | None, pad_to: int | None
) -> None:
    labels = "shifted" if shifted else "unshifted"
    sent = {
        layout: PackedCollator(pad_to, max_documents=room, labels=labels, layout=layout).collate(
            rows, context()
        )
        for layout in ("flash", "seams")
    }
    found = complete(tensors(sent["seams"]), shifted=shifted)
    expected = tensors(sent["flash"])
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, int):
            assert found[name] == value
            continue
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name
    seams = tensors(sent["seams"])
    of_device = on_device(seams["input_ids"], seams["cu_seq_lens_q"], seams["row_tokens"], shifted)
    for name, value in of_device.items():
        assert value.dtype == found[name].dtype, name
        assert torch.equal(value, found[name]), name


def test_a_batch_that_fills_a_step_teaches_nothing() -> None:
    collator = PackedCollator(8, layout="seams")
    rows = [[{"input_ids": np.array([5, 6, 7])}, {"input_ids": np.array([8, 9])}]]
    batch = tensors(collator.blank(collator.collate(rows, context())))

    found = complete(batch)

    assert (found["labels"] == -100).all()
    assert not found["document_ids"].any()
    assert torch.equal(found["document_ids"], masks.document_ids(batch).to(torch.int32))


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    layout=st.sampled_from(LAYOUTS),
    shifted=st.booleans(),
    own=st.booleans(),
    pad_to=st.sampled_from([None, 100]),
    multiple=st.sampled_from([None, 1, 4]),
)
def test_columns_give_the_bytes_that_items_give(
    data: st.DataObject,
    layout: str,
    shifted: bool,
    own: bool,
    pad_to: int | None,
    multiple: int | None,
) -> None:
    rows = data.draw(batches(labels=own))
    labels = "shifted" if shifted else "unshifted"
    if layout == "seams":
        multiple = None
    collator = PackedCollator(pad_to, multiple, labels=labels, layout=layout, pad_value=0)
    names = ["input_ids", "labels"] if own else ["input_ids"]
    taken = collator.takes_columns(dict.fromkeys(names, np.dtype(np.int32)))
    if own and layout == "seams":
        assert taken is None
        return
    assert taken == names
    of_items, of_columns = context(), context()
    expected = collator.collate(rows, of_items)
    found = collator.collate_columns(Columns(rows, names), of_columns)
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].dtype == value.dtype, name
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            assert found[name] == value
    assert of_columns.counts == of_items.counts


def test_columns_are_refused_where_more_than_they_decides() -> None:
    ids = np.dtype(np.int32)
    assert PackedCollator().takes_columns({"input_ids": ids, "url": None}) == ["input_ids"]
    assert PackedCollator().takes_columns({"text": None}) is None
    assert PackedCollator().takes_columns({"input_ids": np.dtype(np.float32)}) is None
    assert PackedCollator().takes_columns({"input_ids": ids, "labels": None}) is None
    assert PackedCollator().takes_columns({"input_ids": ids, "loss_mask": ids}) is None


def test_seams_carry_no_labels_of_samples() -> None:
    rows = [[{"input_ids": [1, 2], "labels": [1, 2]}]]
    with pytest.raises(BadBatch, match=r"brings labels .* layout: seams does not carry"):
        PackedCollator(layout="seams").collate(rows, context())
    with pytest.raises(InvalidJob, match="leave it out, or use layout: flash"):
        PackedCollator(layout="seams", document_multiple=2)


def test_another_layout_is_not_completed() -> None:
    with pytest.raises(InvalidRequest, match="'row_tokens' cannot be completed"):
        complete({"input_ids": torch.zeros(1, 4), "cu_seq_lens_q": torch.tensor([0, 4])})
