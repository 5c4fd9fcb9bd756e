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

PIXELS, NORM = ("pixel_values", "pixel_values_videos"), "pixel_norm"

CHUNK = 1 << 24
"""Values that are float32 at once: 64 MiB, where a batch of pictures may have thirty times that."""

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def normalize(batch: Mapping[str, Any], *, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    """Return a batch whose pixels, of pictures and videos, are normalized, without `pixel_norm`.

    Args:
        batch: With `pixel_values`, `pixel_values_videos` or both, and `pixel_norm`; one that has no
            `pixel_norm` is of `patches: float32`, or of text alone, and only its dtype changes.
        dtype: float32, float16 or bfloat16.

    Raises:
        InvalidRequest: The dtype is another one, or the pixels are unnormalized and nothing says
            what they become.
    """
    made = dict(batch)
    norm = made.pop(NORM, None)
    for name in PIXELS:
        if made.get(name) is None:
            continue
        pixels = torch.as_tensor(made[name])
        if norm is not None:
            made[name] = normalized(pixels, norm, dtype=dtype)
        elif pixels.dtype == torch.uint8:
            raise InvalidRequest(
                f"the batch has {name} of uint8 and no pixel_norm: use a collator that carries it, "
                "or call normalized with mean and deviation",
                field="batch",
                value=", ".join(map(str, batch)),
            )
        else:
            made[name] = pixels.to(_checked(dtype))
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
        pixels: uint8 (..., values) of patches, or (..., 3, height, width) of patches or pictures.
        norm: float32 (2, values) or (2, 3, 1, 1): a level becomes (level - first) / second. Those
            of several samples, one after another, are alike: the first is taken.
        dtype: float32, float16 or bfloat16. In float32 it is the family's own value, but for the
            last bits; the others round that.
        device: Where it is to lie, and is computed. None = where `pixels` are.

    Returns:
        Of the shape of `pixels`.

    Raises:
        InvalidRequest: The dtype, or a shape, is another one.
    """
    _checked(dtype)
    if pixels.dtype != torch.uint8:
        raise InvalidRequest(
            f"pixels are {pixels.dtype}, and only uint8 is not normalized yet",
            field="pixels",
            value=str(pixels.dtype),
        )
    pixels = pixels.to(device) if device is not None else pixels
    mean, std = _two(norm, pixels)
    found = torch.empty(pixels.shape, dtype=dtype, device=pixels.device)
    if not pixels.numel():
        return found
    shape = (-1, *pixels.shape[-mean.ndim :])
    entries, into = pixels.reshape(shape), found.view(shape)
    rows = max(1, CHUNK // entries[0].numel())
    for start in range(0, len(entries), rows):
        chunk = entries[start : start + rows].to(torch.float32)
        into[start : start + rows] = chunk.sub_(mean).div_(std)
    return found


def _two(norm: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what is taken off a patch or picture, and what that is divided by."""
    found = torch.as_tensor(norm, dtype=torch.float32, device=pixels.device)
    if found.ndim in (3, 5) and len(found):
        found = found[0]
    shape = pixels.shape[-1:] if found.ndim == 2 else (3, 1, 1)
    if found.shape != (2, *shape) or (
        found.ndim == 4 and (pixels.ndim < 3 or pixels.shape[-3] != 3)
    ):
        raise InvalidRequest(
            f"pixel_norm has the shape {tuple(found.shape)}, and pixels {tuple(pixels.shape)}: it "
            "is (2, values) for (..., values), or (2, 3, 1, 1) for (..., 3, height, width)",
            field="norm",
            value=str(tuple(found.shape)),
        )
    return found[0], found[1]


def _checked(dtype: torch.dtype) -> torch.dtype:
    if dtype not in _DTYPES:
        raise InvalidRequest(
            f"dtype is {dtype}; give torch.float32, torch.float16 or torch.bfloat16",
            field="dtype",
            value=str(dtype),
        )
    return dtype
