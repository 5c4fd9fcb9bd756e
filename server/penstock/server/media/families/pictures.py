"""A picture's size from its header, and its pixels, upright, by Pillow."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from penstock.server.media.medium import Medium
from penstock.wire.errors import MissingExtra

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]
"""Of shape (height, width, 3), or (n, ...) once they are patches."""

_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)
"""Orientations of EXIF in which width and height change places."""


def picture_size(medium: Medium) -> tuple[int, int]:
    """Return (width, height) of a picture as it is looked at, from its first bytes.

    Raises:
        ValueError: It is not a picture.
        MissingExtra: Pillow is not installed.
    """
    found = _opened(medium, medium.head())
    width, height = found.size
    exif = pillow().Image.getexif(found)  # that of PNG reads the whole file first
    return (height, width) if exif.get(_ORIENTATION) in _TURNED else (width, height)


def picture_pixels(medium: Medium) -> Pixels:
    """Return a picture in red, green and blue: uint8 (height, width, 3), transparent parts white.

    Raises:
        ValueError: It is not a picture, or it is cut short.
        MissingExtra: Pillow is not installed.
    """
    found: Any = _opened(medium, medium.read())
    try:
        found.load()
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the picture {medium.name} cannot be decoded: {error}") from None
    from PIL import Image, ImageOps

    found = ImageOps.exif_transpose(found)
    if "A" in found.getbands() or found.info.get("transparency") is not None:
        white = Image.new("RGBA", found.size, (255, 255, 255, 255))
        found = Image.alpha_composite(white, found.convert("RGBA"))
    return np.asarray(found.convert("RGB"))


def _opened(medium: Medium, data: bytes | memoryview) -> Image.Image:
    image = pillow()
    try:
        found: Image.Image = image.open(io.BytesIO(data))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{medium.name} is not a picture: {error}") from None
    return found


def pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra(
            "conversations with pictures need the package pillow; "
            "install it with: pip install 'penstock[vlm]'",
            package="pillow",
            extra="vlm",
        ) from None
    return Image
