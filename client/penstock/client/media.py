"""Pictures that travelled as bytes, normalized where the model is.

With `patches: uint8` a conversation's pictures travel unnormalized: a quarter of the bytes of
float32, half of those of bfloat16. `pixel_norm` says what they become.

```python
from functools import partial
from penstock.client import Loader, media

# On the device, beside the loop:
ready = partial(media.normalize, dtype=torch.bfloat16)
loader = Loader("dns:///penstock:50051", "chats", device="cuda", arrive=ready)
for batch in loader:
    model(**batch)
```

Imported only where torch is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.wire.errors import InvalidRequest

PIXELS, NORM = "pixel_values", "pixel_norm"

CHUNK = 1 << 24
"""Values that are float32 at once: 64 MiB, where a batch of pictures may have thirty times that."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def normalize(batch: Mapping[str, Any], *, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Return a batch whose `pixel_values` are normalized, without `pixel_norm`.

    Args:
        batch: With `pixel_values` and `pixel_norm`; one that has no `pixel_norm` is of
            `patches: float32`, or of text alone, and only its dtype changes.
        dtype: float32, float16 or bfloat16.

    Raises:
        InvalidRequest: The dtype is another one, or the pixels are unnormalized and nothing says
            what they become.
    """
    made = dict(batch)
    norm = made.pop(NORM, None)
    pixels = made.get(PIXELS)
    if pixels is None:
        return made
    pixels = torch.as_tensor(pixels)
    if norm is not None:
        made[PIXELS] = normalized(pixels, norm, dtype=dtype)
    elif pixels.dtype == torch.uint8:
        raise InvalidRequest(
            "the batch has pixel_values of uint8 and no pixel_norm: use a collator that carries "
            "it, or call normalized with mean and deviation",
            field="batch",
            value=", ".join(map(str, batch)),
        )
    else:
        made[PIXELS] = pixels.to(_checked(dtype))
    return made


def normalized(
    pixels: Tensor,
    norm: Any,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return what the processor of the model's family gives for these pixels, rounded to a dtype.

    Args:
        pixels: uint8 (n, ...), where what follows n begins with three channels: patches
            (n, 3 * times * side * side) or (n, 3, side, side), or pictures (n, 3, height, width).
        norm: float32 (2, 3), or a list of it (rows of samples, which are alike): a level becomes
            (level - first) / second, in its channel.
        dtype: float32, float16 or bfloat16. In float32 it is the family's own value, but for the
            last bits; the others round that.
        device: Where it is to lie, and is computed. None = where `pixels` are.

    Returns:
        Of the shape of `pixels`.

    Raises:
        InvalidRequest: The dtype, or a shape, is another one.
    """
    _checked(dtype)
    if pixels.dtype != torch.uint8 or pixels.ndim < 2:
        raise InvalidRequest(
            f"pixels are {pixels.dtype} of shape {tuple(pixels.shape)}, and only uint8 of two or "
            "more dimensions is not normalized yet",
            field="pixels",
            value=str(pixels.dtype),
        )
    pixels = pixels.to(device) if device is not None else pixels
    mean, std = _two(norm, pixels.device)
    found = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    if not pixels.numel():
        return found
    by_channel, into = (each.view(len(pixels), 3, -1) for each in (pixels.contiguous(), found))
    rows = max(1, CHUNK // by_channel[0].numel())
    for start in range(0, len(pixels), rows):
        chunk = by_channel[start : start + rows].to(torch.float32)
        into[start : start + rows] = chunk.sub_(mean).div_(std)
    return found


def _two(norm: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and deviation, each float32 (3, 1)."""
    found = torch.as_tensor(norm, dtype=torch.float32, device=device)
    if found.ndim == 3 and len(found):  # of several samples: they are alike
        found = found[0]
    if found.shape != (2, 3):
        raise InvalidRequest(
            f"pixel_norm has the shape {tuple(found.shape)}; it is (2, 3): what is taken off, and "
            "what it is divided by, in each channel",
            field="norm",
            value=str(tuple(found.shape)),
        )
    return found[0, :, None], found[1, :, None]


def _checked(dtype: torch.dtype) -> torch.dtype:
    if dtype not in _DTYPES:
        raise InvalidRequest(
            f"dtype is {dtype}; give torch.float32, torch.float16 or torch.bfloat16",
            field="dtype",
            value=str(dtype),
        )
    return dtype
