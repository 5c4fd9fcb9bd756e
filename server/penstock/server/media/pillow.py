"""Pictures decoded by Pillow: what each mode becomes in RGB, and what Pillow does not notice."""

from __future__ import annotations

import importlib
import io
import struct
import warnings
import zlib
from functools import cache
from typing import Any

import numpy as np

from penstock.server.files.filesystems import require
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import ImageHeader
from penstock.server.media.jpeg import check_scans
from penstock.server.media.png import has_all_rows
from penstock.wire.errors import InvalidJob

EIGHTHS = (1, 2, 4, 8)
"""How small a JPEG is decoded: so many eighths of each side."""

Colour = tuple[int, int, int]

# By their classes, not by `Image.open`: that also knows formats without a header parser here, and
# warns above its own bound on pixels, which is the process's and not this job's.
_CLASSES = {
    "JPEG": ("JpegImagePlugin", "JpegImageFile"),
    "PNG": ("PngImagePlugin", "PngImageFile"),
    "WebP": ("WebPImagePlugin", "WebPImageFile"),
    "GIF": ("GifImagePlugin", "GifImageFile"),
    "BMP": ("BmpImagePlugin", "BmpImageFile"),
    "TIFF": ("TiffImagePlugin", "TiffImageFile"),
}

_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
    struct.error,
    zlib.error,
)
"""What Pillow raises for damaged files, by its plugins' habits; never MemoryError."""

_NUMBERS = ("I;16", "I;16B", "I;16L", "I;16N")

_PLANES_APART, _PLANAR_TAG = 2, 284

_TILE_TAGS = (322, 323)
_USUAL_TILE = 1 << 22
"""Pixels that a tile of a TIFF may have around a small picture: 2,048 x 2,048."""


def decode_by_pillow(
    data: bytes | memoryview,
    header: ImageHeader,
    name: str,
    eighths: int = 8,
    background: Colour = (255, 255, 255),
) -> np.ndarray:
    """Return a picture as it is stored, without its orientation; a TIFF's is applied.

    Args:
        data: The file.
        header: What its header says.
        name: What errors call it.
        eighths: How small a JPEG is decoded, one of `EIGHTHS`.
        background: On which colour what is transparent lies.

    Returns:
        uint8 (height, width, 3): the first frame or page.

    Raises:
        BadPicture: The data are damaged or end early, or are of a mode without a stated result.
        InvalidJob: The job's own code has set `ImageFile.LOAD_TRUNCATED_IMAGES`.
        MissingExtra: Pillow is not installed, or cannot be imported.
    """
    _check_globals(header, name)
    if header.format == "JPEG":
        check_scans(data, name)
    with warnings.catch_warnings():  # about metadata; what is wrong with pixels is an error
        warnings.simplefilter("ignore")
        try:
            image = _opened(data, header, name, eighths)
            found = _as_rgb(image, header, name, background)
        except BadPicture:
            raise
        except (*_ERRORS, pillow().DecompressionBombError) as error:
            said = str(error).partition("\n")[0] or type(error).__name__
            raise BadPicture(f"{name}: Pillow cannot decode this {header.format}: {said}") from None
        if header.format == "JPEG" and _ends_flat(found) and _ends_early(data, eighths, image):
            raise BadPicture(
                f"{name}: the data of this JPEG end before its last row: it was cut off, or its "
                "header says more than it holds"
            )
    return found


def pillow() -> Any:
    """Return the module `PIL.Image`.

    Raises:
        MissingExtra: Pillow is not installed, or cannot be imported.
    """
    return require("PIL.Image", package="pillow", extra="images", who="decoding pictures")


@cache
def _class(kind: str) -> Any:
    pillow()
    module, name = _CLASSES[kind]
    return getattr(importlib.import_module(f"PIL.{module}"), name)


def _check_globals(header: ImageHeader, name: str) -> None:
    from PIL import ImageFile

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise InvalidJob(
            "code of this job has set PIL.ImageFile.LOAD_TRUNCATED_IMAGES, with which pictures "
            "that were cut off would be grey from there on: leave that line out, and let "
            "on_item_error: quarantine leave out such items",
            key="processor",
        )
    bound = pillow().MAX_IMAGE_PIXELS
    if header.format in ("TIFF", "WebP") and bound is not None and header.pixels > bound:
        raise BadPicture(
            f"{name} has {header.pixels:,} pixels, and Pillow's own bound for a {header.format} "
            f"is {bound:,}: code of the job may raise PIL.Image.MAX_IMAGE_PIXELS"
        )


def _opened(data: bytes | memoryview, header: ImageHeader, name: str, eighths: int) -> Any:
    """Return an image whose pixels are there, all of them."""
    image = _class(header.format)(io.BytesIO(data))
    _check_memory(image, header, name)
    if eighths < 8:
        image.draft(None, tuple(max(1, side * eighths // 8) for side in image.size))
    if header.format == "TIFF" and not _covers(image, header):
        raise BadPicture(f"{name}: this TIFF has no data for its last rows: it was cut off")
    image.load()
    height, width = header.stored_size
    if header.format == "TIFF":
        height, width = header.height, header.width
    if eighths == 8 and image.size != (width, height):
        raise BadPicture(
            f"{name}: the data of this {header.format} are {image.width} x {image.height} pixels, "
            f"and its header says {width} x {height}"
        )
    if header.format == "PNG" and _ends_in_zeros(image) and not has_all_rows(data):
        raise BadPicture(
            f"{name}: the data of this PNG end before its last row: it was cut off, or its header "
            "says more than it holds"
        )
    return image


def _check_memory(image: Any, header: ImageHeader, name: str) -> None:
    """Refuse what would take more memory than the header that was checked says.

    A PNG may have a second header, and a TIFF is decoded by whole tiles, however small it is.
    """
    if image.width * image.height > header.pixels:
        raise BadPicture(
            f"{name}: this {header.format} says {image.width} x {image.height} pixels in another "
            f"place than its header, which says {header.width} x {header.height}"
        )
    if header.format == "TIFF":
        across, down = (int(image.tag_v2.get(tag, 1)) for tag in _TILE_TAGS)
        if across * down > max(_USUAL_TILE, 4 * header.pixels):
            raise BadPicture(
                f"{name}: this TIFF has tiles of {across} x {down} pixels, and "
                f"{header.width} x {header.height} in all"
            )


def _ends_in_zeros(image: Any) -> bool:
    """Tell whether the last or last but one row is zeros: as Pillow leaves rows without data.

    Of an interlaced picture every second row comes last.
    """
    end = image.crop((0, max(0, image.height - 2), *image.size))
    return not all(row.any() for row in np.asarray(end))


def _covers(image: Any, header: ImageHeader) -> bool:
    """Tell whether the strips or tiles of a TIFF give every pixel."""
    planes = 1
    if len(image.tile) > 1 and image.tag_v2.get(_PLANAR_TAG) == _PLANES_APART:
        planes = len(image.getbands())
    areas = ((right - left) * (bottom - top) for left, top, right, bottom in _extents(image))
    return sum(areas) >= header.pixels * planes


def _extents(image: Any) -> list[tuple[int, int, int, int]]:
    return [tile[1] for tile in image.tile]


# --- colours ---


def _as_rgb(image: Any, header: ImageHeader, name: str, background: Colour) -> np.ndarray:
    """Return what a mode becomes: uint8 (height, width, 3)."""
    mode, clear = image.mode, image.info.get("transparency")
    if mode in _NUMBERS or (mode == "I" and header.format == "PNG"):
        return _of_16_bits(np.asarray(image), clear, background)
    if mode == "RGB" and clear is not None and header.bits == 16:
        clear = None  # Pillow has the high bytes alone, which more colours share
    if mode in ("LA", "La", "PA", "RGBA", "RGBa") or (
        mode in ("1", "L", "P", "RGB") and clear is not None
    ):
        image = image.convert("RGBA")
        on = pillow().new("RGB", image.size, background)
        on.paste(image, mask=image.getchannel("A"))
        return np.asarray(on)
    if mode in ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"):
        return np.asarray(image if mode == "RGB" else image.convert("RGB"))
    raise BadPicture(
        f"{name}: this {header.format} has values of mode {mode!r}, which no range is known for: "
        "make 8 or 16 bits of them, or read it with a function: of your own"
    )


def _of_16_bits(values: np.ndarray, clear: Any, background: Colour) -> np.ndarray:
    """Return grey of the high bytes, as Pillow takes them of colours with 16 bits."""
    found = np.repeat((values >> 8).astype(np.uint8)[..., None], 3, axis=2)
    if clear is not None:
        found[values == clear] = background
    return found


# --- JPEG data that end early, which Pillow passes over ---

_PROBE = bytes((n * 89 + 53) % 251 for n in range(64))
"""Bytes without FF, which are data to a decoder that waits for some."""


def _ends_flat(pixels: np.ndarray) -> bool:
    """Tell whether the last pixels are of one colour, as where data are missing."""
    corner = pixels[-4:, -4:]
    return bool((corner == corner[-1, -1]).all())


def _ends_early(data: bytes | memoryview, eighths: int, image: Any) -> bool:
    """Tell whether a decoder would take more data than the file has.

    libjpeg fills in what is missing with the last colour, and tells only who asks for its warnings.
    More data before the end's marker change nothing, unless they were missing.
    """
    data = bytes(data)
    at = data.rfind(b"\xff\xd9")
    more = _class("JPEG")(io.BytesIO(data[:at] + _PROBE + _next_restart(data) + data[at:]))
    if eighths < 8:
        more.draft(None, tuple(max(1, side * eighths // 8) for side in more.size))
    more.load()
    return bool(more.tobytes() != image.tobytes())


def _next_restart(data: bytes) -> bytes:
    """Return the marker after which a decoder would go on, and data; empty = it waits for none."""
    if b"\xff\xdd\0\x04" not in data:
        return b""
    scan, seen = data.rfind(b"\xff\xda"), 7
    at = scan
    for number in range(8):
        if (found := data.rfind(bytes((0xFF, 0xD0 + number)), scan)) > at:
            at, seen = found, number
    return bytes((0xFF, 0xD0 + (seen + 1) % 8)) + _PROBE
