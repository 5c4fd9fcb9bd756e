"""The values of packed batches that travel only as seams, made on the trainer's device.

```python
from penstock.client.packed import complete

for batch in loader:  # of a job with `collator: {type: packed, layout: seams}`
    model(**complete(batch))
```

Imported only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.wire.errors import InvalidRequest

IGNORE_INDEX = -100


def complete(batch: Mapping[str, Any], *, shifted: bool = False) -> dict[str, Any]:
    """Return the values of the layout `flash` for a batch of the layout `seams`.

    No value is read back from the device, so nothing waits for it.

    Args:
        batch: With `input_ids`, int64 or int32 (B, T); `cu_seq_lens_q`, int32 (n + 1,), where each
            of the n segments starts in the flattened rows, then their end; and `row_tokens`, int32
            (B,), the tokens of each row that are not padding.
        shifted: The label of a token is the token that follows it; else labels are for models that
            shift them themselves.

    Returns:
        What the batch has but `row_tokens`, and `labels` int64 (B, T), -100 on padding and where
        none is to be learned; `position_ids`, of the dtype of `input_ids`, and `document_ids`,
        int32, (B, T). All on the device of the batch. A row of padding alone, as in a batch that
        fills a step, is one document with labels of -100.

    Raises:
        InvalidRequest: The batch is of another layout.
    """
    missing = [name for name in ("input_ids", "cu_seq_lens_q", "row_tokens") if name not in batch]
    if missing:
        raise InvalidRequest(
            f"a batch without {missing[0]!r} cannot be completed: the collator must be packed, "
            "with layout: seams",
            field="batch",
            value=", ".join(map(str, batch)),
        )
    ids: Tensor = batch["input_ids"]
    make = on_cpu if ids.device.type == "cpu" else on_device
    kept = {name: value for name, value in batch.items() if name != "row_tokens"}
    return {**kept, **make(ids, batch["cu_seq_lens_q"], batch["row_tokens"], shifted)}


def on_device(ids: Tensor, seams: Tensor, row_tokens: Tensor, shifted: bool) -> dict[str, Tensor]:
    """Return the three values, by operations whose shapes are known: nothing waits for a device."""
    positions, numbers = _places(ids, seams)
    columns = torch.arange(ids.shape[1], device=ids.device)
    tokens = row_tokens[:, None]
    real = columns < tokens
    documents = torch.where(real | (tokens == 0), numbers, 0)
    if shifted:
        follows = torch.zeros_like(real)
        follows[:, :-1] = real[:, 1:] & (numbers[:, 1:] == numbers[:, :-1])
        labels = torch.where(follows, ids.roll(-1, 1).to(torch.int64), IGNORE_INDEX)
    else:
        labels = torch.where(real & (positions > 0), ids.to(torch.int64), IGNORE_INDEX)
    return {
        "labels": labels,
        "position_ids": positions.to(ids.dtype),
        "document_ids": documents.to(torch.int32),
    }


def _places(ids: Tensor, seams: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's place in its segment, and the segment's number in its row from 1."""
    area = ids.numel()
    starts = seams.to(torch.int64)
    begins = torch.zeros(area + 1, dtype=torch.int64, device=ids.device)
    begins[starts] = 1  # the end, which `max_documents` repeats, marks what is cut off
    segments = begins[:area].cumsum(0) - 1
    positions = torch.arange(area, device=ids.device) - starts[segments]
    segments = segments.view(ids.shape)
    return positions.view(ids.shape), segments - segments[:, :1] + 1


def on_cpu(ids: Tensor, seams: Tensor, row_tokens: Tensor, shifted: bool) -> dict[str, Tensor]:
    """Return the same three with NumPy: on so few numbers each operation of torch takes longer.

    Of rows of 8,192 tokens in a quarter of the time (`python tests/bench/run.py completing`).
    """
    tokens, ends = ids.numpy(), seams.numpy()
    height, width = tokens.shape
    starts, lengths = ends[:-1], np.diff(ends)
    firsts = np.repeat(starts.astype(tokens.dtype), lengths)
    positions = np.arange(tokens.size, dtype=tokens.dtype) - firsts
    positions = positions.reshape(tokens.shape)
    # Each segment's number in its row: that of all, less those of the rows before.
    before = np.searchsorted(starts, np.arange(height) * width)
    rows = np.minimum(
        starts // max(width, 1), height - 1
    )  # of no length at the end: `max_documents`
    numbers = np.arange(1, len(starts) + 1) - before[rows]
    documents = np.repeat(numbers.astype(np.int32), lengths).reshape(tokens.shape)
    labels = tokens.astype(np.int64)
    labels[positions == 0] = IGNORE_INDEX
    for row, real in enumerate(row_tokens.tolist()):
        labels[row, real:] = IGNORE_INDEX
        if real:
            documents[row, real:] = 0
    if shifted:
        labels[:, :-1] = labels[:, 1:]
        labels[:, -1:] = IGNORE_INDEX
    return {
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
        "document_ids": torch.from_numpy(documents),
    }


__all__ = ["complete"]
