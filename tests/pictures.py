"""Pictures for tests: photographs that scikit-image ships with, and drawn ones of every kind."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 61, 47
"""Of drawn pictures: no multiple of a JPEG's blocks."""

ENDINGS = (".png", ".jpg", ".tif", ".gif")


@cache
def photographs() -> dict[str, Path]:
    """Return the files of pictures in scikit-image's folder, by name."""
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    return {path.name: path for path in sorted(folder.iterdir()) if path.suffix in ENDINGS}


def photograph(
    width: int = 500, height: int = 375, name: str = "motorcycle_left.png"
) -> Image.Image:
    """Return a photograph, in the size that a test needs."""
    with Image.open(photographs()[name]) as image:
        return image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return a picture as a file of a format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def colours(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Return a picture without symmetry: each corner has a colour of its own."""
    down, across = np.mgrid[:height, :width]
    red, green = down * 255 // max(1, height - 1), across * 255 // max(1, width - 1)
    blue = 255 * ((down // 8 + across // 8) % 2) // 2
    return Image.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def see_through(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Return the same one with an alpha that grows from left to right."""
    alpha = np.broadcast_to(np.arange(width) * 255 // (width - 1), (height, width))
    image = colours(width, height)
    image.putalpha(Image.fromarray(alpha.astype(np.uint8)))
    return image


def deep() -> np.ndarray:
    """Return 16-bit grey, uint16 (height, width), in which the low byte is never that of 8 bits."""
    down, across = np.mgrid[:HEIGHT, :WIDTH]
    grey: np.ndarray = ((down * 5 + across) % 256 * 256 + 129).astype(np.uint16)
    return grey


def png(width: int, height: int, bits: int, colour: int, rows: bytes, *chunks: bytes) -> bytes:
    """Return a PNG of rows as they are filtered, for kinds that Pillow does not write.

    Args:
        width: Pixels across.
        height: Pixels down.
        bits: Bits of a value.
        colour: The colour type.
        rows: Each with its filter's byte before it.
        chunks: What comes between header and data.
    """
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    parts = [
        png_chunk(b"IHDR", head),
        *chunks,
        png_chunk(b"IDAT", zlib.compress(rows)),
        png_chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG with its length and checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def exif(orientation: int) -> bytes:
    """Return EXIF that tells an orientation and no more."""
    found = Image.Exif()
    found[0x0112] = orientation
    return found.tobytes()


def drawn() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the file of a picture of every format and mode, 61 x 47 pixels."""
    rgb, rgba = colours(), see_through()
    grey, palette = rgb.convert("L"), rgb.quantize(64)
    grey_alpha = rgba.convert("LA")
    for name, options in {
        "jpeg": {},
        "jpeg 444": {"subsampling": 0},
        "jpeg 422": {"subsampling": 1},
        "jpeg progressive": {"progressive": True},
        "jpeg restarts": {"restart_marker_blocks": 3},
    }.items():
        yield name, encoded(rgb, "JPEG", quality=90, **options)
    yield "jpeg grey", encoded(grey, "JPEG")
    yield "jpeg cmyk", encoded(rgb.convert("CMYK"), "JPEG")
    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        yield f"png {mode}", encoded((rgba if "A" in mode else rgb).convert(mode), "PNG")
    yield "png P", encoded(palette, "PNG")
    yield "png P transparent", encoded(palette, "PNG", transparency=3)
    yield "png P of alphas", encoded(palette, "PNG", transparency=bytes(range(0, 256, 4)))
    yield "png P 2 bits", encoded(rgb.quantize(4), "PNG", bits=2)
    yield "png L transparent", encoded(grey, "PNG", transparency=100)
    yield "png RGB transparent", encoded(rgb, "PNG", transparency=rgb.getpixel((7, 9)))
    yield "png I;16", encoded(Image.fromarray(deep()), "PNG")
    yield "png RGB 16 bits", deep_png(2, 3)
    yield "png RGBA 16 bits", deep_png(6, 4)
    yield "png LA 16 bits", deep_png(4, 2)
    clear = png_chunk(b"tRNS", struct.pack(">H", 12 * 256 + 129))
    yield "png I;16 transparent", deep_png(0, 1, clear)
    yield "png animated", encoded(rgb, "PNG", save_all=True, append_images=[rgb.rotate(180)])
    yield "webp", encoded(rgb, "WEBP")
    yield "webp lossless", encoded(rgb, "WEBP", lossless=True)
    yield "webp alpha", encoded(rgba, "WEBP")
    yield "webp lossless alpha", encoded(rgba, "WEBP", lossless=True)
    yield "webp animated", encoded(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(180)])
    yield "gif", encoded(palette, "GIF")
    yield "gif grey", encoded(grey, "GIF")
    yield "gif transparent", encoded(palette, "GIF", transparency=3)
    yield (
        "gif animated",
        encoded(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]),
    )
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        image = palette if mode == "P" else (rgba if "A" in mode else rgb).convert(mode)
        yield f"bmp {mode}", encoded(image, "BMP")
    for mode in ("1", "L", "P", "LA", "RGB", "RGBA", "CMYK"):
        image = {"P": palette, "LA": grey_alpha, "RGBA": rgba}.get(mode) or rgb.convert(mode)
        yield f"tiff {mode}", encoded(image, "TIFF")
    yield "tiff I;16", encoded(Image.fromarray(deep()), "TIFF")
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
        yield f"tiff {compression}", encoded(rgb, "TIFF", compression=compression)
    yield "tiff big", encoded(rgb, "TIFF", big_tiff=True)
    yield "tiff pages", encoded(rgb, "TIFF", save_all=True, append_images=[rgb.rotate(180)])


def deep_png(colour: int, channels: int, *chunks: bytes) -> bytes:
    """Return a PNG with 16 bits in each value, of `deep`."""
    values = np.repeat(deep()[..., None], channels, axis=2)
    values[..., 0] += 256 * (channels > 1)  # so that no channel is another
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png(WIDTH, HEIGHT, 16, colour, rows, *chunks)


def turned(kind: str, orientation: int) -> bytes:
    """Return a picture whose EXIF, or tag, tells an orientation."""
    image = colours()
    if kind == "TIFF":
        return encoded(image, kind, tiffinfo={0x0112: orientation})
    return encoded(image, kind, exif=exif(orientation))


TURNED = ("JPEG", "PNG", "WEBP", "TIFF")
"""The formats whose files may tell an orientation."""
