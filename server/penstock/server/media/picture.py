"""A picture's file becomes pixels: by the decoder that a job names, within its bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.server.media import jpeg, pillow
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import ImageHeader
from penstock.server.media.jpeg import decode_jpeg, scaled_size
from penstock.server.media.pillow import Colour, decode_by_pillow

DECODERS = ("jpeg", "pillow")

MAX_PIXELS, MAX_BYTES = 1 << 26, 1 << 28
"""The usual bounds: 67 million pixels, which are 201 MB of RGB, and 268 MB."""


@dataclass(frozen=True)
class Decoding:
    """How pictures are decoded: what a job says of it.

    Attributes:
        decoder: One of `DECODERS`.
        background: The colour on which what is transparent lies.
        max_pixels: The most pixels of a picture.
        max_bytes: The most bytes of its file, and of its pixels as they are decoded.
    """

    decoder: str = "jpeg"
    background: Colour = (255, 255, 255)
    max_pixels: int = MAX_PIXELS
    max_bytes: int = MAX_BYTES

    def check(self, header: ImageHeader, name: str) -> None:
        """Refuse a picture that is too large, by its header: before memory is taken for it.

        Raises:
            BadPicture: It has more pixels or bytes than the job allows.
        """
        size = f"{name} has {header.width} x {header.height} pixels"
        if header.pixels > self.max_pixels:
            raise BadPicture(
                f"{size}, {header.pixels:,} in all, and max_pixels is {self.max_pixels:,}"
            )
        if header.decoded_bytes > self.max_bytes:
            raise BadPicture(
                f"{size}, which take {header.decoded_bytes:,} bytes, and max_bytes is "
                f"{self.max_bytes:,}"
            )

    def load(self) -> None:
        """Import what decodes, whatever pictures come: a missing package ends a job at its start.

        Raises:
            MissingExtra: A package is not installed.
        """
        pillow.pillow()
        if self.decoder == "jpeg":
            jpeg.simplejpeg()

    def decode(
        self,
        data: bytes | memoryview,
        header: ImageHeader,
        name: str,
        least: tuple[int, int] | None = None,
    ) -> np.ndarray:
        """Return a picture as people see it.

        Args:
            data: The file.
            header: What its header says.
            name: What errors call it.
            least: The smallest height and width that a JPEG may be decoded in; None = whole.

        Returns:
            uint8 (height, width, 3), contiguous; the smallest size of the decoder that has `least`.

        Raises:
            BadPicture: It is too large, damaged or cut off.
            InvalidJob, MissingExtra: As `decode_by_pillow`.
        """
        self.check(header, name)
        if len(data) > self.max_bytes:
            raise BadPicture(f"{name} has {len(data):,} bytes, and max_bytes is {self.max_bytes:,}")
        # CMYK is no part of simplejpeg's conversions: by the file, never by what is installed.
        by_turbo = self.decoder == "jpeg" and header.format == "JPEG" and header.channels != 4
        eighths = 8
        if least is not None and header.format == "JPEG":
            eighths = _eighths(header, least, jpeg.EIGHTHS if by_turbo else pillow.EIGHTHS)
        if by_turbo:
            found = decode_jpeg(data, header, name, eighths)
        else:
            found = decode_by_pillow(data, header, name, eighths, self.background)
        expected = scaled_size(header, eighths)
        if header.format == "TIFF":  # turned by Pillow
            expected = header.height, header.width
        if found.shape[:2] != expected:
            raise BadPicture(
                f"{name}: the data of this {header.format} are {found.shape[1]} x "
                f"{found.shape[0]} pixels, and its header says {expected[1]} x {expected[0]}"
            )
        if header.orientation > 1 and header.format != "TIFF":
            found = _upright(found, header.orientation)
        return in_order(found)


def in_order(pixels: np.ndarray) -> np.ndarray:
    """Return pixels that lie one after another, whatever was mirrored or swapped.

    Of a side of one pixel numpy keeps a negative stride and calls the array contiguous; torch
    refuses such.
    """
    if min(pixels.strides) < 0:
        return pixels.copy()
    return np.ascontiguousarray(pixels)


def _eighths(header: ImageHeader, least: tuple[int, int], choices: tuple[int, ...]) -> int:
    """Return the smallest choice that leaves at least so many pixels each way."""
    down, across = least[::-1] if header.orientation >= 5 else least
    height, width = header.stored_size
    for eighths in choices:
        if height * eighths >= 8 * down and width * eighths >= 8 * across:
            return eighths
    return 8


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return a view of pixels that lie as people see them."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    down, across = _FLIPS[orientation]
    return pixels[::down, ::across]


_FLIPS = {
    1: (1, 1),
    2: (1, -1),
    3: (-1, -1),
    4: (-1, 1),
    5: (1, 1),
    6: (1, -1),
    7: (-1, -1),
    8: (-1, 1),
}
"""The steps down and across, after the sides were swapped for 5 to 8."""
