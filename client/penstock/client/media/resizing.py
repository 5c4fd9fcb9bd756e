"""Pictures and frames in another size, where they lie: as the node's `kernel: torch` makes them."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from penstock.client.array_libraries import Array, arrays_like, is_tensor
from penstock.wire.errors import InvalidRequest

CHUNK = 1 << 23
"""Values that are float32 at once: 32 MiB."""


def resized(pixels: Array, size: tuple[int, int], *, channels: str = "last") -> Array:
    """Return pixels in another size: bilinear, with antialiasing where it becomes smaller.

    A pixel is the mean of those of the source that its own area touches, weighed by a triangle
    whose half width is the ratio of the sides, and 1 at least; pixels are squares whose centres
    are at halves (`align_corners=False`). Both sides are resized in float32, and the result is
    rounded. On a CPU torch computes it with the kernel for uint8 that a node has
    (`kernel: torch`), so that the bytes are the same where the versions of torch are; elsewhere
    levels differ by 1 at most.

    Args:
        pixels: uint8 (..., height, width, 3), of NumPy, cupy or torch.
        size: Height and width of the result.
        channels: `last`; or `first`, where they are (..., 3, height, width).

    Returns:
        uint8 (..., *size, 3) or (..., 3, *size), contiguous; `pixels` itself where it has that
        size.

    Raises:
        InvalidRequest: They are not such pixels, or a side is not above 0.
    """
    arrays, at = arrays_like(pixels), -1 if channels == "last" else -3
    if arrays is None or pixels.ndim < 3 or pixels.shape[at] != 3:
        shape = getattr(pixels, "shape", type(pixels).__name__)
        raise InvalidRequest(
            f"pixels are {shape}, channels={channels!r}: resized takes an array of uint8, "
            "(..., height, width, 3), or (..., 3, height, width) with channels='first'"
        )
    if str(pixels.dtype).rpartition(".")[2] != "uint8":
        raise InvalidRequest(f"pixels are {pixels.dtype}: resized takes uint8")
    if len(size) != 2 or min(size) < 1:
        raise InvalidRequest(f"size={size!r}: pass height and width, both above 0")
    if tuple(pixels.shape[-3:-1] if channels == "last" else pixels.shape[-2:]) == tuple(size):
        return pixels
    if channels == "last":
        pixels = arrays.moved(pixels, -1, -3)
    lead, (height, width) = tuple(pixels.shape[:-3]), tuple(pixels.shape[-2:])
    images = pixels.reshape(-1, 3, height, width)
    found = arrays.new((len(images), 3, *size), pixels, "uint8")
    step = max(1, CHUNK // max(1, height * width * 3))
    by_library = _by_torch if is_tensor(pixels) else _by_weights
    for start in range(0, len(images), step):
        found[start : start + step] = by_library(images[start : start + step], size)
    pixels = found.reshape(*lead, 3, *size)
    if channels == "last":
        pixels = arrays.moved(pixels, -3, -1)
    return arrays.contiguous(pixels)


def _by_torch(images: Any, size: tuple[int, int]) -> Any:
    """Return what torch's kernel gives: of uint8 on a CPU; devices have it for floats alone."""
    torch: Any = sys.modules["torch"]
    if images.device.type != "cpu":
        images = images.to(torch.float32)
    made = torch.nn.functional.interpolate(
        images, size=tuple(size), mode="bilinear", align_corners=False, antialias=True
    )
    return made if made.dtype == torch.uint8 else made + 0.5


def _by_weights(images: Array, size: tuple[int, int]) -> Array:
    """Return the same by two products of matrices, first of rows, then of columns."""
    height, width = images.shape[2:]
    down = np.asarray(_weights(height, size[0]), like=images)
    across = np.asarray(_weights(width, size[1]).T, like=images)
    images = np.ascontiguousarray(images, np.float32, like=images)
    return np.matmul(np.matmul(down, images), across) + np.float32(0.5)


@lru_cache(64)
def _weights(before: int, after: int) -> np.ndarray:
    """Return float32 (after, before): the parts of the source's pixels in each of the result."""
    ratio = before / after
    support = max(ratio, 1.0)
    centres = (np.arange(after)[:, None] + 0.5) * ratio
    distances = np.abs(np.arange(before)[None] + 0.5 - centres) / support
    parts = np.clip(1 - distances, 0, None)
    weights: np.ndarray = (parts / parts.sum(1, keepdims=True)).astype(np.float32)
    weights.flags.writeable = False
    return weights
