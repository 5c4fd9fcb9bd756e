"""Masks on the trainer's side: against references written in loops, and against each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from penstock.client import masks
from penstock.server.roles.collators import PackedCollator, PaddedCollator
from penstock.server.roles.context import CollateContext
from penstock.wire.errors import InvalidRequest

HEADS, WIDTH = 2, 4


@st.composite
def numbers(draw: st.DrawFn, most_rows: int = 3, most_tokens: int = 24) -> torch.Tensor:
    """Rows of document numbers: documents, hidden tokens in and between them, padding."""
    width = draw(st.integers(1, most_tokens))
    rows = []
    for _ in range(draw(st.integers(1, most_rows))):
        row: list[int] = []
        while len(row) < width and draw(st.booleans()):
            number = max(row, default=0) + 1
            size = draw(st.integers(1, 6))
            row += [number if draw(st.integers(0, 3)) else 0 for _ in range(size)]
        rows.append((row + [0] * width)[:width])
    return torch.tensor(rows)


def slow_mask(ids: torch.Tensor, *, itself: bool) -> list[Any]:
    """Return the mask as its definition says, pair by pair."""
    return [
        [
            [
                [
                    (a == b and j <= i and a > 0 and b > 0) or (itself and i == j)
                    for j, b in enumerate(row)
                ]
                for i, a in enumerate(row)
            ]
        ]
        for row in ids.tolist()
    ]


@settings(deadline=None)
@given(ids=numbers())
def test_the_mask_is_its_definition(ids: torch.Tensor) -> None:
    """Same document, not later, neither hidden; a hidden token sees itself, or nothing."""
    assert masks.block_causal(ids).tolist() == slow_mask(ids, itself=True)
    bare = masks.block_causal(ids, padding="none")
    assert bare.tolist() == slow_mask(ids, itself=False)
    added = masks.block_causal(ids, padding="none", dtype=torch.float32)
    assert torch.equal(added == 0, bare)
    assert (added[~bare] == torch.finfo(torch.float32).min).all()


@settings(deadline=None)
@given(ids=numbers())
def test_the_lengths_are_those_of_counting(ids: torch.Tensor) -> None:
    """Row by row the tokens of document 1, 2, ...; those of none are left out."""
    lengths = []
    for row in ids.tolist():
        lengths += [n for number in range(1, max(row) + 1) if (n := row.count(number))]
    places = [place for place, number in enumerate(ids.flatten().tolist()) if number]

    found = masks.varlen(ids)

    assert found.cu_seqlens.dtype == torch.int32
    assert found.indices.dtype == torch.int64
    if not places:
        assert (found.cu_seqlens.tolist(), found.indices.tolist()) == ([0, 1], [0])
        return
    assert found.cu_seqlens.tolist() == [0, *np.cumsum(lengths).tolist()]
    assert found.indices.tolist() == places
    assert found.max_seqlen == max(lengths)


@settings(deadline=None, max_examples=25)
@given(ids=numbers(most_tokens=80))
def test_the_block_mask_is_the_one_of_torch(ids: torch.Tensor) -> None:
    """Which blocks are looked at, and which without a mask, as torch finds it from all pairs."""
    height, width = ids.shape
    ours = masks.flex(ids, block_size=16)

    theirs = create_block_mask(
        ours.mask_mod, height, None, width, width, device="cpu", BLOCK_SIZE=16
    )

    assert ours.shape == theirs.shape
    for counts, lists in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        assert torch.equal(getattr(ours, counts), getattr(theirs, counts)), counts
        for count, ours_row, theirs_row in zip(
            getattr(ours, counts).flatten(),
            getattr(ours, lists).flatten(0, 2),
            getattr(theirs, lists).flatten(0, 2),
            strict=True,
        ):
            assert ours_row[:count].tolist() == theirs_row[:count].tolist(), lists


def one_by_one(ids: torch.Tensor, *heads: torch.Tensor) -> torch.Tensor:
    """Return attention within each document alone, by the sequences of `varlen`; 0 elsewhere."""
    height, width = ids.shape
    found = masks.varlen(ids)
    flat = [head.transpose(1, 2).reshape(height * width, HEADS, WIDTH) for head in heads]
    query, key, value = (head[found.indices] for head in flat)
    parts = []
    for start, stop in zip(found.cu_seqlens[:-1], found.cu_seqlens[1:], strict=True):
        here = (part[start:stop].transpose(0, 1) for part in (query, key, value))
        parts.append(scaled_dot_product_attention(*here, is_causal=True).transpose(0, 1))
    out = torch.zeros(height * width, HEADS, WIDTH, dtype=query.dtype)
    out = out.index_copy(0, found.indices, torch.cat(parts))
    return out.view(height, width, HEADS, WIDTH).transpose(1, 2)


# Without a compiler flex looks at the function of the mask alone, and only forwards; which blocks
# kernels skip is compared above.
plain_flex = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@plain_flex
@settings(deadline=None, max_examples=10)
@given(ids=numbers(most_tokens=48), seed=st.integers(0, 1000))
def test_all_three_give_the_same_attention(ids: torch.Tensor, seed: int) -> None:
    """Outputs of tokens that are seen, and gradients: with the mask, and one by one; and flex."""
    generator = torch.Generator().manual_seed(seed)
    shape = (4, len(ids), HEADS, ids.shape[1], WIDTH)
    *made, weight = torch.randn(shape, generator=generator, dtype=torch.float64)
    seen = (ids > 0)[:, None, :, None]
    found = []
    for attention in (
        lambda *heads: scaled_dot_product_attention(*heads, attn_mask=masks.block_causal(ids)),
        lambda *heads: one_by_one(ids, *heads),
    ):
        heads = [head.clone().requires_grad_() for head in made]
        out = attention(*heads) * seen
        (out * weight).sum().backward()
        found.append([out, *(head.grad for head in heads)])
    flexed = flex_attention(*made, block_mask=masks.flex(ids, block_size=16)) * seen

    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[0][0], flexed, rtol=1e-9, atol=1e-9)


@plain_flex
@pytest.mark.parametrize("attention", ["mask", "flex"])
def test_padding_alone_gives_numbers(attention: str) -> None:
    """A padding batch goes through the model like others: nothing in it becomes NaN."""
    ids = torch.zeros(2, 16, dtype=torch.int64)
    heads = torch.randn(3, 2, HEADS, 16, WIDTH)

    if attention == "mask":
        out = scaled_dot_product_attention(*heads, attn_mask=masks.block_causal(ids))
    else:
        out = flex_attention(*heads, block_mask=masks.flex(ids, block_size=16))

    assert out.isfinite().all()


ROWS: list[list[dict[str, Any]]] = [
    [{"input_ids": [1, 2, 3]}, {"input_ids": [4]}, {"input_ids": [5, 6, 7, 8]}],
    [{"input_ids": [9, 10]}],
]


def batch_of(collator: Any, rows: list[list[dict[str, Any]]] = ROWS) -> dict[str, Any]:
    values = collator.collate(rows, CollateContext(seed=0, lane=0, offset=0))
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("layout", "multiple"),
    [*itertools.product(["flash", "thd", "indexed", "neat"], [None, 4]), ("seams", None)],
)
def test_every_layout_tells_the_same_documents(layout: str, multiple: int | None) -> None:
    """Numbers of tokens in their rows, 0 on padding."""
    collator = PackedCollator(pad_to=16, document_multiple=multiple, layout=layout)

    found = masks.document_ids(batch_of(collator))

    wanted = PackedCollator(pad_to=16, document_multiple=multiple)
    assert found.tolist() == batch_of(wanted)["document_ids"].tolist()


@pytest.mark.parametrize("most", [None, 9])
def test_seams_alone_number_padding_too(most: int | None) -> None:
    """Megatron's seams do not tell padding apart: tokens of documents see the same all the same."""
    batch = batch_of(PackedCollator(pad_to=10, max_documents=most, layout="megatron"))

    found = masks.document_ids(batch)

    assert found.tolist() == [[1, 1, 1, 2, 3, 3, 3, 3, 4, 4], [1, 1, *[2] * 8]]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=3),
    multiple=st.sampled_from([None, 2, 4]),
    spare=st.integers(0, 2),
    fixed=st.booleans(),
)
def test_tokens_of_megatrons_rows_see_their_own_documents(
    rows: list[list[int]], multiple: int | None, spare: int, fixed: bool
) -> None:
    """Pair by pair as documents lie in their rows; no token of one sees padding."""
    step = multiple or 1
    places: list[list[int]] = []  # by row: the document of each place, 0 on padding
    for sizes in rows:
        places.append([])
        for number, size in enumerate(sizes, start=1):
            places[-1] += [number] * size + [0] * (-size % step)
    width = (max(map(len, places)) + spare * 4) // step * step
    places = [row + [0] * (width - len(row)) for row in places]
    most = sum(len(sizes) + 1 for sizes in rows) if fixed else None
    collator = PackedCollator(width, multiple, most, layout="megatron")
    samples = [[{"input_ids": [7] * size} for size in sizes] for sizes in rows]

    documents = masks.document_ids(batch_of(collator, samples))
    found = masks.block_causal(documents)

    ids = torch.tensor(places)
    seen, wanted = ids > 0, torch.tensor(slow_mask(ids, itself=False))
    assert torch.equal(found[:, 0][seen], wanted[:, 0][seen])
    lengths = masks.varlen(documents)
    assert lengths.indices.tolist() == list(range(ids.numel())), "each place is in a sequence"
    starts = set(lengths.cu_seqlens.tolist())
    assert starts >= {
        row * width + place
        for row, numbers in enumerate(places)
        for place, number in enumerate(numbers)
        if number and (place == 0 or number not in numbers[:place])
    }


def test_rows_that_are_padded_are_one_document_each() -> None:
    batch = batch_of(PaddedCollator(mask_dtype="bool"))

    found = masks.document_ids(batch)

    assert found.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_lengths_for_transformer_engine() -> None:
    """Sums of the lengths; with those of padded lengths only where padding lies in between."""
    whole = batch_of(PackedCollator(layout="thd"))
    first = masks.thd(whole["seq_lens"][:1], whole["seq_lens_padded"][:1])
    rows = masks.thd(whole["seq_lens"], whole["seq_lens_padded"])
    batch = batch_of(PackedCollator(pad_to=12, document_multiple=4, layout="thd"))
    parallel = masks.thd(batch["seq_lens"], batch["seq_lens_padded"])

    assert first.cu_seqlens.dtype == torch.int32
    assert (first.cu_seqlens.tolist(), first.cu_seqlens_padded) == ([0, 3, 4, 8], None)
    # The second row is padded at the batch's end: that lies between no two documents.
    assert (rows.cu_seqlens.tolist(), rows.cu_seqlens_padded) == ([0, 3, 4, 8, 10], None)
    assert (first.max_seqlen, rows.max_seqlen) == (4, 4)
    assert parallel.cu_seqlens_padded is not None
    assert parallel.cu_seqlens.tolist() == [0, 3, 4, 8, 10]
    assert parallel.cu_seqlens_padded.tolist() == [0, 4, 8, 12, 24]
    assert parallel.max_seqlen == 12


def test_what_does_not_fit_is_named() -> None:
    """A batch without documents, a word and a size that cannot be."""
    with pytest.raises(InvalidRequest, match="a batch of image does not tell documents apart"):
        masks.document_ids({"image": torch.zeros(1)})
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(InvalidRequest, match="padding='all'"):
        masks.block_causal(ids, padding="all")
    with pytest.raises(InvalidRequest, match="block_size=100"):
        masks.flex(ids, block_size=100)


def test_the_mask_goes_with_the_attention() -> None:
    """Each has the form that its kernel takes; flash attention takes lengths in place of one."""
    ids = torch.tensor([[1, 1, 2, 0]])
    indexed = {"attention_mask": ids}
    flash = {"input_ids": ids, "cu_seq_lens_q": torch.tensor([0, 2, 3, 4]), "document_ids": ids}

    assert torch.equal(masks.for_attention(indexed, "sdpa"), masks.block_causal(ids))
    eager = masks.for_attention(flash, "eager", dtype=torch.bfloat16)
    assert torch.equal(eager, masks.block_causal(ids, dtype=torch.bfloat16))
    assert masks.for_attention(indexed, "flex_attention").shape == (1, 1, 4, 4)
    assert masks.for_attention(flash, "flash_attention_2") is None
    with pytest.raises(InvalidRequest, match="flash_attention_3 takes no mask but cu_seq_lens_q"):
        masks.for_attention(indexed, "flash_attention_3")
    with pytest.raises(InvalidRequest, match="'spda': did you mean sdpa"):
        masks.for_attention(indexed, "spda")
