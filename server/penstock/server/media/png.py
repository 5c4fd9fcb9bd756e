"""Whether the data of a PNG are as long as its header says."""

from __future__ import annotations

import zlib

_ADAM7 = (
    (0, 8, 0, 8),
    (4, 8, 0, 8),
    (0, 4, 4, 8),
    (2, 4, 0, 4),
    (0, 2, 2, 4),
    (1, 2, 0, 2),
    (0, 1, 1, 2),
)
"""Of each pass of an interlaced picture: first column and step, first row and step."""

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}

_STEP = 1 << 20


def has_all_rows(data: bytes | memoryview) -> bool:
    """Tell whether the data of a PNG give every row that its header announces.

    It unpacks them once more, so it is asked only about pictures that look as if they do not.

    Args:
        data: The file, whose header was parsed.
    """
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    bits = data[24] * _CHANNELS[data[25]]
    passes = _ADAM7 if data[28] else ((0, 1, 0, 1),)
    missing = 0
    for column, across, row, down in passes:
        columns, rows = -(-(width - column) // across), -(-(height - row) // down)
        if columns > 0 and rows > 0:
            missing += rows * (1 + (columns * bits + 7) // 8)
    unpacking, at = zlib.decompressobj(), 8
    while missing > 0 and at + 8 <= len(data) and not unpacking.eof:
        length, kind = int.from_bytes(data[at : at + 4], "big"), bytes(data[at + 4 : at + 8])
        packed = data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
        while packed and missing > 0:
            missing -= len(unpacking.decompress(packed, _STEP))
            packed = unpacking.unconsumed_tail
    return missing <= 0
