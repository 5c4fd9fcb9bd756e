"""Attention masks and sequence lengths from packed batches, made on the trainer's device.

What travels is one number per token; a dense mask of 8,192 tokens would be 64 MB for each row. All
of it derives from `document_ids`: the number of each token's document in its row, from 1, and 0
where attention must not see a token. Numbers never fall within a row, but for zeros.

```python
from penstock.client import masks

documents = masks.document_ids(batch)                 # whatever the layout
masks.block_causal(documents)                         # for scaled_dot_product_attention
masks.flex(documents)                                 # for flex_attention
masks.varlen(documents)                               # for kernels of sequences without padding
masks.for_attention(batch, "sdpa")                    # for models of transformers
```

Imported only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from penstock.common.nearest import hint
from penstock.wire.errors import InvalidRequest

NO_LENGTH = -1000
"""What fills `seq_lens` after a row's last document."""


class Varlen(NamedTuple):
    """The tokens of a batch as sequences one after another, as flash-attn's varlen kernels take it.

    Attributes:
        cu_seqlens: int32 (n + 1,), where each of the n documents starts, then the end.
        indices: int64 (tokens,), where each token lies in the flattened batch: `x.flatten(0, 1)`
            indexed by it has no padding.
        max_seqlen: The tokens of the longest document.
    """

    cu_seqlens: Tensor
    indices: Tensor
    max_seqlen: int


class Thd(NamedTuple):
    """Sequence lengths in the form that Transformer Engine takes with `qkv_format="thd"`.

    Attributes:
        cu_seqlens: int32 (n + 1,), sums of the lengths of n documents without their padding.
        cu_seqlens_padded: int32 (n + 1,), where each lies in the flattened batch, then the end.
            None = nothing lies between documents, so `cu_seqlens` says it.
        max_seqlen: The longest of those sequences, in tokens.
    """

    cu_seqlens: Tensor
    cu_seqlens_padded: Tensor | None
    max_seqlen: int


def document_ids(batch: Mapping[str, Any]) -> Tensor:
    """Return the number of each token's document in its row, from 1; 0 on padding.

    Args:
        batch: Of any layout that the collators `packed` and `padded` give. `flash` has these
            numbers as they are; in `megatron` what is left of a row is a document of its own, as
            its seams do not tell padding apart. In `padded` each row is one document.

    Returns:
        Integer (B, T), on the device of the batch.

    Raises:
        InvalidRequest: The batch has none of the keys that tell documents apart.
    """
    for name in ("document_ids", "_packed_seq_ids"):
        if name in batch:
            return batch[name]
    if "seq_lens" in batch:
        width = batch["input_ids"].shape[1]
        return _of_lengths(batch["seq_lens"], batch["seq_lens_padded"], width)
    for seams, ids in (("cu_seqlens", "tokens"), ("cu_seq_lens_q", "input_ids")):
        if seams in batch and ids in batch:
            numbers = _of_seams(batch[seams], *batch[ids].shape)
            if "row_tokens" not in batch:
                return numbers
            places = torch.arange(numbers.shape[1], device=numbers.device)
            return torch.where(places < batch["row_tokens"][:, None], numbers, 0)
    mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        return mask.to(torch.int64)
    raise InvalidRequest(
        f"a batch of {', '.join(map(str, batch)) or 'nothing'} does not tell documents apart: read "
        "a job whose collator is packed or padded",
        field="batch",
    )


def block_causal(
    document_ids: Tensor, *, padding: str = "self", dtype: torch.dtype | None = None
) -> Tensor:
    """Return which token may attend to which: to those of its own document, not later than itself.

    It takes B * T * T bytes on the device, so it is for rows of a few thousand tokens.

    Args:
        document_ids: Integer (B, T), 0 = hidden: nothing attends there.
        padding: What a hidden token itself attends to. `self`: itself alone, so that no softmax is
            over nothing, which is NaN in many kernels; nothing reads what comes of it. `none`:
            nothing.
        dtype: None = bool, True where it may attend, as scaled_dot_product_attention takes it. A
            float dtype: 0 there and its lowest number elsewhere, to be added to scores.

    Returns:
        (B, 1, T, T): batch, head, query, key.

    Raises:
        InvalidRequest: `padding` is neither of the two.
    """
    if padding not in ("self", "none"):
        raise InvalidRequest(
            f"padding={padding!r}: choose one of self, none", field="padding", value=str(padding)
        )
    queries, keys = document_ids[:, :, None], document_ids[:, None, :]
    width = document_ids.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=document_ids.device).tril()
    sees = (queries == keys) & (queries > 0) & causal
    if padding == "self":
        sees |= torch.eye(width, dtype=torch.bool, device=document_ids.device)
    sees = sees[:, None]
    if dtype is None:
        return sees
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(
        ~sees, torch.finfo(dtype).min
    )


def for_attention(
    batch: Mapping[str, Any], implementation: str, *, dtype: torch.dtype = torch.float32
) -> Any:
    """Return the `attention_mask` with which a model of transformers keeps documents apart.

    Args:
        batch: As `document_ids` takes it.
        implementation: The model's attention, as it was named in `attn_implementation`: `sdpa`,
            `eager`, `flex_attention`, or one with `flash` in its name.
        dtype: Of the mask for `eager`, which adds it to scores: the model's.

    Returns:
        `sdpa`: bool (B, 1, T, T); `eager`: the same of `dtype`, 0 or its lowest number;
        `flex_attention`: a `BlockMask`; flash attention: None, as it takes the documents' ends that
        the batch has beside.

    Raises:
        InvalidRequest: There is no such attention; the batch does not tell documents apart; or
            flash attention is to read a layout without `cu_seq_lens_q`.
    """
    if "flash" in implementation:
        if "cu_seq_lens_q" not in batch:
            raise InvalidRequest(
                f"{implementation} takes no mask but cu_seq_lens_q, which this batch lacks: read a "
                "job whose collator is {type: packed, layout: flash}",
                field="batch",
            )
        return None
    made: dict[str, Callable[[Tensor], Any]] = {
        "sdpa": block_causal,
        "eager": lambda documents: block_causal(documents, dtype=dtype),
        "flex_attention": flex,
    }
    if implementation not in made:
        raise InvalidRequest(
            f"implementation={implementation!r}: "
            f"{hint(implementation, [*made, 'flash_attention_2', 'flash_attention_3'])}",
            field="implementation",
            value=str(implementation),
        )
    return made[implementation](document_ids(batch))


def varlen(document_ids: Tensor) -> Varlen:
    """Return the documents as sequences without padding and hidden tokens.

    Rows stay in order and documents never join across them; a document of hidden tokens alone is
    left out. A batch of padding alone has one sequence of one token, as kernels need at least one.

    Args:
        document_ids: Integer (B, T); 0 = left out.
    """
    width = document_ids.shape[1]
    numbers = document_ids.flatten()
    indices = numbers.nonzero().flatten()
    if len(indices) == 0:
        indices = torch.zeros(1, dtype=torch.int64, device=numbers.device)
    rows = indices // width
    of_row = rows * (width + 1) + numbers[indices]
    _, counts = torch.unique_consecutive(of_row, return_counts=True)
    return Varlen(_sums(counts), indices, int(counts.max()))


def thd(seq_lens: Tensor, seq_lens_padded: Tensor) -> Thd:
    """Return what kernels take of a batch in the layout `thd`.

    Args:
        seq_lens: int64 (B, documents), -1000 after a row's last.
        seq_lens_padded: The same with padding.
    """
    lengths = seq_lens[seq_lens != NO_LENGTH]
    padded = seq_lens_padded[seq_lens_padded != NO_LENGTH]
    # Padding after the last document of all lies between none.
    apart = not torch.equal(lengths[:-1], padded[:-1])
    longest = int((padded if apart else lengths).max())
    return Thd(_sums(lengths), _sums(padded) if apart else None, longest)


def flex(document_ids: Tensor, *, block_size: int = 128) -> Any:
    """Return the `BlockMask` for `torch.nn.attention.flex_attention`, over all heads.

    The same as `block_causal` with `padding="self"`. It takes (T / block_size)^2 numbers a row;
    `create_block_mask` of torch makes the mask of all tokens first.

    Args:
        document_ids: Integer (B, T), 0 = hidden.
        block_size: Tokens of a block, for queries and keys.

    Raises:
        InvalidRequest: `block_size` is not a power of two of at least 16, which the kernels need.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if block_size < 16 or block_size & (block_size - 1):
        raise InvalidRequest(
            f"block_size={block_size}: use a power of two of at least 16",
            field="block_size",
            value=str(block_size),
        )

    def sees(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = document_ids[batch, query]
        same = (number == document_ids[batch, key]) & (number > 0)
        return (same & (key <= query)) | (key == query)

    some, all_of_it = _blocks(document_ids, block_size)
    width = document_ids.shape[1]
    return BlockMask.from_kv_blocks(
        *_listed(some & ~all_of_it),
        *_listed(all_of_it),
        BLOCK_SIZE=block_size,
        mask_mod=sees,
        seq_lengths=(width, width),
    )


def _blocks(document_ids: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return in which blocks some pair of tokens attends, and in which all do.

    Returns:
        Two bool tensors (B, 1, blocks of queries, blocks of keys).
    """
    ids = functional.pad(document_ids, (0, -document_ids.shape[1] % block_size))
    ids = ids.view(len(ids), -1, block_size)
    count = ids.shape[1]
    last = ids.amax(-1)
    first = ids.masked_fill(ids == 0, torch.iinfo(ids.dtype).max).amin(-1)
    whole = (ids > 0).all(-1) & (first == last)  # one document, and nothing hidden
    before = torch.ones(count, count, dtype=torch.bool, device=ids.device).tril(-1)
    # Numbers never fall, so of a block and one before it they can share one number alone: the last
    # there and the first here.
    shared = (first[:, :, None] == last[:, None, :]) & before
    every = shared & whole[:, :, None] & whole[:, None, :]
    itself = torch.eye(count, dtype=torch.bool, device=ids.device)
    return (shared | itself)[:, None], every[:, None]


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks each row of blocks has, and which, those it has before the others."""
    counts = blocks.sum(-1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return counts, order.to(torch.int32)


def _of_seams(seams: Tensor, height: int, width: int) -> Tensor:
    ends = seams[1:].to(torch.int64)
    tokens = torch.arange(height * width, device=seams.device)
    segments = torch.searchsorted(ends, tokens, right=True).view(height, width)
    return segments - segments[:, :1] + 1


def _of_lengths(lengths: Tensor, padded: Tensor, width: int) -> Tensor:
    ends = padded.clamp(min=0).cumsum(-1)
    tokens = torch.arange(width, device=lengths.device).expand(len(lengths), width).contiguous()
    numbers = torch.searchsorted(ends, tokens, right=True)
    starts = (ends - padded.clamp(min=0)).gather(1, numbers)
    return torch.where(tokens - starts < lengths.gather(1, numbers), numbers + 1, 0)


def _sums(counts: Tensor) -> Tensor:
    return functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
