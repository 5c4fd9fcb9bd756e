"""The values of packed batches that travel only as seams, made where the batch is.

```python
from penstock.client import Loader
from penstock.client.packed import complete

# Of a job with `collator: {type: packed, layout: seams}`: on CUDA beside the loop.
loader = Loader("dns:///penstock:50051", "text", device="cuda", arrive=complete)
for batch in loader:
    model(**batch)
```

`complete(batch)` does the same in the loop, and `functools.partial(complete, shifted=True)` gives
shifted labels. Nothing here imports torch or cupy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.array_libraries import Array, arrays_like, is_tensor
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
        int32, (B, T), 0 on padding, and so in each row of a batch that fills a step. All on the
        device of the batch.

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
    ids, seams, rows = (batch[name] for name in ("input_ids", "cu_seq_lens_q", "row_tokens"))
    made = completed(ids, seams, rows, shifted)
    return {name: value for name, value in batch.items() if name != "row_tokens"} | made


def completed(ids: Array, seams: Array, row_tokens: Array, shifted: bool) -> dict[str, Array]:
    """Return the three values, in the arrays that were given, where they are."""
    if isinstance(ids, np.ndarray):
        return on_host(ids, seams, row_tokens, shifted)
    if is_tensor(ids) and ids.device.type == "cpu":
        made = on_host(ids.numpy(), seams.numpy(), row_tokens.numpy(), shifted)
        return {name: sys.modules["torch"].from_numpy(array) for name, array in made.items()}
    return on_device(ids, seams, row_tokens, shifted)


def on_device(ids: Array, seams: Array, row_tokens: Array, shifted: bool) -> dict[str, Array]:
    """Return the three values, by operations whose shapes are known: nothing waits for a device."""
    arrays = arrays_like(ids)
    if arrays is None:
        raise InvalidRequest(f"'input_ids' is a {type(ids).__name__}, and not an array")
    area, (height, width) = ids.shape[0] * ids.shape[1], ids.shape
    starts = arrays.astype(seams, "int64")
    begins = arrays.zeros(area + 1, ids)
    begins[starts] = 1  # the end, which `max_documents` repeats, marks what is cut off
    segments = arrays.cumsum(begins[:area]) - 1
    positions = (arrays.arange(area, ids) - starts[segments]).reshape(height, width)
    segments = segments.reshape(height, width)
    numbers = segments - segments[:, :1] + 1
    real = arrays.arange(width, ids) < row_tokens[:, None]
    own = arrays.astype(ids, "int64")
    learned = real & (positions > 0)
    if shifted:
        # A row begins with a segment, so what comes round at its end is not learned.
        own, learned = arrays.roll(own, -1), arrays.roll(learned, -1)
    dtype = str(ids.dtype).removeprefix("torch.")
    return {
        "labels": arrays.where(learned, own, IGNORE_INDEX),
        "position_ids": arrays.astype(positions, dtype),
        "document_ids": arrays.astype(arrays.where(real, numbers, 0), "int32"),
    }


def on_host(
    tokens: NDArray[Any], ends: NDArray[Any], row_tokens: NDArray[Any], shifted: bool
) -> dict[str, NDArray[Any]]:
    """Return the same three by fewer and wider operations of NumPy, some of which look at values.

    Of rows of 8,192 tokens in a quarter of the time (`python tests/bench/run.py completing`).
    """
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
        documents[row, real:] = 0
    if shifted:
        labels[:, :-1] = labels[:, 1:]
        labels[:, -1:] = IGNORE_INDEX
    return {"labels": labels, "position_ids": positions, "document_ids": documents}
