"""JPEG decoded by simplejpeg, which has a libjpeg-turbo of its own."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from penstock.server.files.filesystems import require
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import ImageHeader

EIGHTHS = (1, 2, 3, 4, 5, 6, 8)
"""How small it is decoded: so many eighths of each side, rounded up. Seven take longer than the
whole (500 x 375, libjpeg-turbo 3.1: 1.01 ms against 0.90)."""

MAX_SCANS = 500
"""Of one file. Each scan of a JPEG may go over the whole picture, and a few kilobytes may hold
thousands of them: minutes of decoding. Encoders write about ten, and that in progressive ones."""

HARMLESS = ("Invalid SOS parameters for sequential JPEG", "nknown Adobe color transform code")
"""Warnings of libjpeg-turbo about headers that cameras write, after which all pixels are right. One
about data comes later in a file, and then is the one that is told."""


def decode_jpeg(
    data: bytes | memoryview, header: ImageHeader, name: str, eighths: int = 8
) -> np.ndarray:
    """Return a picture as it is stored, without its orientation.

    Args:
        data: The file.
        header: What its header says.
        name: What errors call it.
        eighths: How small it is decoded, one of `EIGHTHS`.

    Returns:
        uint8 (height, width, 3).

    Raises:
        BadPicture: The data are damaged, end early, or are more than the header says.
        MissingExtra: simplejpeg is not installed.
    """
    check_scans(data, name)
    height, width = scaled_size(header, eighths)
    try:
        return _decoded(data, height, width)
    except ValueError as error:
        raise BadPicture(f"{name}: this JPEG cannot be decoded: {error}") from None


def _decoded(data: bytes | memoryview, height: int, width: int) -> np.ndarray:
    decode = simplejpeg().decode_jpeg
    try:
        found: np.ndarray = decode(data, min_height=height, min_width=width)
    except ValueError as error:
        if not any(known in str(error) for known in HARMLESS):
            raise
        found = decode(data, min_height=height, min_width=width, strict=False)
    return found


def scaled_size(header: ImageHeader, eighths: int) -> tuple[int, int]:
    """Return height and width of a stored picture that is decoded smaller."""
    height, width = header.stored_size
    return -(-height * eighths // 8), -(-width * eighths // 8)


def check_scans(data: bytes | memoryview, name: str) -> None:
    """Refuse a JPEG of more than `MAX_SCANS` scans, progressive or not: both may repeat them.

    Raises:
        BadPicture: It has more.
    """
    # Within data of a scan a byte FF is never followed by anything but 00 and markers. NumPy takes
    # a quarter of the time of `bytes.count`, for which FF is too frequent.
    values = np.frombuffer(data, np.uint8)
    scans = np.count_nonzero((values[:-1] == 0xFF) & (values[1:] == 0xDA))
    if scans > MAX_SCANS:
        raise BadPicture(
            f"{name}: this JPEG has more than {MAX_SCANS} scans, and each goes over the whole "
            "picture: it was made to be slow"
        )


@cache
def simplejpeg() -> Any:
    """Return the module.

    Raises:
        MissingExtra: It is not installed, or cannot be imported.
    """
    return require("simplejpeg", extra="images", who="decoder: jpeg")
