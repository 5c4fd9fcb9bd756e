"""Pixels in another size, by the kernel that a job names.

No two of them give the same pixels. torch's bilinear ones differ from Pillow's by one level at
most, its bicubic ones by three. OpenCV's takes four pixels, however much smaller the result is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from penstock.server.files.filesystems import require
from penstock.server.media.geometry import Extent
from penstock.server.media.pillow import pillow

KERNELS = ("pillow", "torch", "opencv")
FILTERS = ("bilinear", "bicubic")


def load_kernel(kernel: str) -> None:
    """Import what a kernel needs.

    Raises:
        MissingExtra: It is not installed; says what to install.
    """
    if kernel == "torch":
        _torch()
    elif kernel == "opencv":
        _opencv()
    else:
        pillow()


def resize(
    pixels: np.ndarray, size: Extent, kernel: str, filtering: str = "bilinear"
) -> np.ndarray:
    """Return pixels in another size.

    Args:
        pixels: uint8 (height, width, 3).
        size: The size of the result.
        kernel: One of `KERNELS`.
        filtering: One of `FILTERS`; `opencv` has `bilinear` alone.

    Returns:
        uint8 (height, width, 3); `pixels` itself where it has that size.

    Raises:
        MissingExtra: As `load_kernel`.
    """
    if pixels.shape[:2] == size:
        return pixels
    if kernel == "torch":
        return _by_torch(pixels, size, filtering)
    if kernel == "opencv":
        return _by_opencv(pixels, size)
    images = pillow()
    image = images.fromarray(np.ascontiguousarray(pixels))
    found: np.ndarray = np.asarray(
        image.resize((size.width, size.height), images.Resampling[filtering.upper()])
    )
    return found


def _by_torch(pixels: np.ndarray, size: Extent, filtering: str) -> np.ndarray:
    """Resize by torch's antialiasing kernel for uint8, in as many threads as this process has.

    A worker has one. More give the same pixels, of which each is computed by itself.
    """
    torch = _torch()
    if not pixels.flags.writeable:  # torch warns of such, though it only reads
        pixels = pixels.copy()
    # In this order of calls torch sees that channels come last, and gives them back as they came.
    batch = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    found = torch.nn.functional.interpolate(
        batch, tuple(size), mode=filtering, align_corners=False, antialias=True
    )
    resized: np.ndarray = np.ascontiguousarray(found[0].permute(1, 2, 0).numpy())
    return resized


def _by_opencv(pixels: np.ndarray, size: Extent) -> np.ndarray:
    """Resize by OpenCV's linear kernel, after means of whole blocks where that is far smaller.

    What is left for the linear one is less than twice the size of the result each way, or it would
    pass over pixels.
    """
    cv2 = _opencv()
    height, width = pixels.shape[:2]
    down, across = max(1, height // size.height), max(1, width // size.width)
    if down > 1 or across > 1:
        between = (-(-width // across), -(-height // down))
        pixels = cv2.resize(pixels, between, interpolation=cv2.INTER_AREA)
    found: np.ndarray = pixels
    if pixels.shape[:2] != size:
        found = cv2.resize(pixels, (size.width, size.height), interpolation=cv2.INTER_LINEAR)
    return found


@cache
def _torch() -> Any:
    return require("torch", extra="", who="kernel: torch")


@cache
def _opencv() -> Any:
    return require("cv2", package="opencv-python-headless", extra="opencv", who="kernel: opencv")
