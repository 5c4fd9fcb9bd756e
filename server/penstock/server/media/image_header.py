"""How large a picture is, from the first bytes of its file alone.

Width and height are those of the picture as people see it: with its EXIF orientation applied.
Nothing here decodes, and nothing is imported but the standard library.

Layouts: JPEG of ITU T.81 annex B, EXIF 2.32 section 4.6, PNG third edition, the WebP container of
RFC 9649, GIF89a, the bitmap headers of Windows and OS/2, TIFF 6.0 and BigTIFF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.medium import HEAD_BYTES, Medium

FORMATS = ("JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF")
"""The formats that are read."""


MAX_PARTS = 50_000
"""Parts of a file that are looked at for its header: segments, chunks and blocks, of which cameras
and programs write a few dozen. A GIF's comments and XMP are such parts, too: 5 MB have 50,000."""

MAX_HEADER_BYTES = 16 << 20
"""Where a JPEG, a PNG or a GIF has come to its pixels, at the latest. Profiles have up to 4 MB,
thumbnails 64 KB, and what programs keep of their work a few MB."""


class ImageHeader(NamedTuple):
    """What the header of a picture's file says.

    Attributes:
        format: One of `FORMATS`.
        width: Pixels across, with the orientation applied.
        height: Pixels down, with the orientation applied.
        channels: Values of a pixel once palettes are looked up: 1 grey, 2 grey and alpha, 3 a
            colour, 4 a colour and alpha, or CMYK.
        bits: Bits of each value, 1 to 64.
        orientation: How the stored rows lie, 1 to 8, as EXIF counts; 1 = as people see them.
        progressive: A JPEG whose scans each refine the whole picture.
    """

    format: str
    width: int
    height: int
    channels: int
    bits: int = 8
    orientation: int = 1
    progressive: bool = False

    @property
    def stored_size(self) -> tuple[int, int]:
        """Return height and width as the file has them, before the orientation is applied."""
        if self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width

    @property
    def pixels(self) -> int:
        """Return how many pixels there are."""
        return self.width * self.height

    @property
    def decoded_bytes(self) -> int:
        """Return about how many bytes decoding takes: as stored, or as RGB where that is more."""
        return self.pixels * max(3, self.channels * (-(-self.bits // 8)))


def read_header(medium: Medium) -> ImageHeader:
    """Return what the header of a picture's file says.

    Only where its first 64 KiB do not suffice (long profiles before the size, a TIFF's directory or
    a WebP's EXIF at the end) more of it is asked for.

    Raises:
        BadPicture: It is none of `FORMATS`, or its header is damaged or ends early.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.head`.
    """
    data = medium.head()
    if len(data) < HEAD_BYTES:
        return parse_header(data, medium.name)
    whole = False
    while True:
        try:
            return _parsed(data, medium.name)
        except _MoreNeeded as more:
            if whole:
                raise _ends_early(medium.name, more) from None
            # At least four times as much, so that a chain of long parts is not read part by part.
            wanted = max(more.size + HEAD_BYTES, 4 * len(data))
            data = medium.head(wanted)
            whole = len(data) < wanted


def parse_header(data: bytes | memoryview, name: str) -> ImageHeader:
    """Return what the header says in the bytes of a whole file.

    Args:
        data: The bytes.
        name: What errors call the file.

    Raises:
        BadPicture: As `read_header`.
    """
    try:
        return _parsed(data, name)
    except _MoreNeeded as more:
        raise _ends_early(name, more) from None


class _MoreNeeded(Exception):
    """The bytes that are there end before what is looked at.

    Attributes:
        size: How many bytes would be needed.
        format: Of which format; empty = not known yet.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size, self.format = size, ""


class _Damaged(Exception):
    """A header says what cannot be; the sentence about it is completed by `_parsed`."""


def _ends_early(name: str, more: _MoreNeeded) -> BadPicture:
    return BadPicture(
        f"{name}: the {more.format or 'file'} ends within its header: at least {more.size} bytes "
        "are needed; it was cut off, get it again"
    )


def _parsed(data: bytes | memoryview, name: str) -> ImageHeader:
    file = _File(data)
    parse = _parser(file, name)
    try:
        found = parse(file)
    except _MoreNeeded as more:
        more.format = _NAMES[parse]
        raise
    except _Damaged as damaged:
        what = f"the header of this {_NAMES[parse]} is damaged"
        raise BadPicture(f"{name}: {what}: {damaged}") from None
    if found.width < 1 or found.height < 1:
        raise BadPicture(
            f"{name}: the header of this {found.format} says {found.width} x {found.height} "
            "pixels: there is no picture in it"
        )
    if found.orientation >= 5:
        return found._replace(width=found.height, height=found.width)
    return found


def _parser(file: _File, name: str) -> Callable[[_File], ImageHeader]:
    """Return what parses a file of these first bytes."""
    start = bytes(file.data[:12])
    for mark, parse in _MARKS:
        if start.startswith(mark):
            return parse
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return _webp
    if not start:
        raise BadPicture(f"{name} is empty")
    if any(mark.startswith(start) for mark, _ in _MARKS) or b"RIFF".startswith(start[:4]):
        raise BadPicture(f"{name} ends after {len(start)} bytes: it was cut off, get it again")
    raise BadPicture(
        f"{name} is not a picture that can be read: it begins with {start!r}, as none of "
        f"{', '.join(FORMATS)} does"
    )


class _File:
    """The bytes of a file that are there, read within their bounds.

    Args:
        data: The first bytes of it.
        order: The order of bytes in numbers, as `struct` writes it.
    """

    def __init__(self, data: bytes | memoryview, order: str = ">") -> None:
        self.data, self.order = data, order
        self._parts = 0

    def part(self, at: int = 0) -> None:
        """Count a part that is looked at before the pixels are found, and where it begins.

        Raises:
            _Damaged: There are too many of them, or it lies too far from the beginning.
        """
        self._parts += 1
        if self._parts > MAX_PARTS or at > MAX_HEADER_BYTES:
            raise _Damaged(
                f"its pixels do not begin within {MAX_PARTS:,} parts and {MAX_HEADER_BYTES:,} bytes"
            )

    def take(self, start: int, count: int) -> bytes:
        """Return bytes, all of them.

        Raises:
            _MoreNeeded: They are not there.
        """
        if start + count > len(self.data):
            raise _MoreNeeded(start + count)
        return bytes(self.data[start : start + count])

    def byte(self, at: int) -> int:
        """Return one byte."""
        if at >= len(self.data):
            raise _MoreNeeded(at + 1)
        return self.data[at]

    def u16(self, at: int) -> int:
        """Return a number of two bytes."""
        return self._number(at, _U16[self.order])

    def u32(self, at: int) -> int:
        """Return a number of four bytes."""
        return self._number(at, _U32[self.order])

    def u64(self, at: int) -> int:
        """Return a number of eight bytes."""
        return self._number(at, _U64[self.order])

    def _number(self, at: int, kind: Struct) -> int:
        if at + kind.size > len(self.data):
            raise _MoreNeeded(at + kind.size)
        found: int = kind.unpack_from(self.data, at)[0]
        return found


_U16, _U32, _U64, _I32 = (
    {order: Struct(order + code) for order in "<>"} for code in ("H", "I", "Q", "i")
)


# --- JPEG ---

_ALONE = {0x01, *range(0xD0, 0xD8)}
"""Markers without a length: TEM, and RST0 to RST7."""

_NO_FRAMES = (0xC4, 0xC8, 0xCC)
"""Markers among those of frames, C0 to CF, that begin none: tables, and one that is reserved."""


def _jpeg(file: _File) -> ImageHeader:
    """Walk over the segments up to the first scan."""
    at, found, orientation = 2, None, None
    while True:
        file.part(at)
        if file.byte(at) != 0xFF:
            raise _Damaged(f"there is no marker at byte {at}")
        while (marker := file.byte(at + 1)) == 0xFF:  # several of these may come before
            at += 1
            file.part(at)
        if marker in _ALONE:
            at += 2
            continue
        if marker == 0xD9:
            raise _Damaged("it ends before its first scan")
        if marker in (0x00, 0xD8):
            raise _Damaged(f"a marker FF {marker:02X} at byte {at} does not belong there")
        length = file.u16(at + 2)
        if length < 2:
            raise _Damaged(f"a segment of {length} bytes at byte {at}")
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            if found is not None:
                raise _Damaged("it says its size twice")
            found = _jpeg_frame(file, at, length)._replace(progressive=marker & 3 == 2)
        elif marker == 0xE1 and orientation is None and length >= 8:
            if file.take(at + 4, 6) == b"Exif\0\0":
                orientation = exif_orientation(file.take(at + 10, length - 8))
        elif marker == 0xDA:
            break
        at += 2 + length
    if found is None:
        raise _Damaged("its first scan comes before its size")
    return found._replace(orientation=orientation or 1)


def _jpeg_frame(file: _File, at: int, length: int) -> ImageHeader:
    bits, channels = file.byte(at + 4), file.byte(at + 9)
    if length != 8 + 3 * channels or channels not in (1, 3, 4):
        raise _Damaged(f"a frame of {channels} components in {length} bytes")
    if not 2 <= bits <= 16:
        raise _Damaged(f"values of {bits} bits")
    return ImageHeader("JPEG", file.u16(at + 7), file.u16(at + 5), channels, bits)


# --- PNG ---

_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_PNG_BITS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def _png(file: _File) -> ImageHeader:
    """Read IHDR, then walk over the chunks up to the data."""
    if file.u32(8) != 13 or file.take(12, 4) != b"IHDR":
        raise _Damaged("its first chunk is not IHDR of 13 bytes")
    width, height, bits, colour = file.u32(16), file.u32(20), file.byte(24), file.byte(25)
    if bits not in _PNG_BITS.get(colour, ()):
        raise _Damaged(f"colour type {colour} with {bits} bits")
    if width >= 1 << 31 or height >= 1 << 31:
        raise _Damaged(f"{width} x {height} pixels")
    orientation, channels, at = 0, _PNG_CHANNELS[colour], 33
    while (kind := file.take(at + 4, 4)) != b"IDAT":
        length = file.u32(at)
        if length >= 1 << 31:
            raise _Damaged(f"a chunk of {length} bytes at byte {at}")
        file.part(at + 12 + length)  # before that is asked for
        if kind == b"IEND":
            raise _Damaged("it ends before its data")
        if kind == b"eXIf" and not orientation:
            orientation = exif_orientation(file.take(at + 8, length))
        elif kind == b"tRNS" and channels in (1, 3):
            channels += 1
        at += 12 + length
    if colour == 3:
        bits = 8  # those of the palette's colours
    return ImageHeader("PNG", width, height, channels, bits, orientation or 1)


# --- WebP ---

_WEBP_EXIF, _WEBP_ALPHA = 0x08, 0x10


def _webp(file: _File) -> ImageHeader:
    """Read the first chunk; where an extended one says so, look for EXIF after the data."""
    file.order = "<"
    kind = file.take(12, 4)
    if kind == b"VP8 ":
        if file.take(23, 3) != b"\x9d\x01\x2a":
            raise _Damaged("its first frame is not a key frame")
        return ImageHeader("WebP", file.u16(26) & 0x3FFF, file.u16(28) & 0x3FFF, 3)
    if kind == b"VP8L":
        if file.byte(20) != 0x2F:
            raise _Damaged("its data do not begin as lossless ones")
        said = file.u32(21)
        channels = 4 if said >> 28 & 1 else 3
        return ImageHeader("WebP", 1 + (said & 0x3FFF), 1 + (said >> 14 & 0x3FFF), channels)
    if kind != b"VP8X":
        raise _Damaged(f"its first chunk is {kind!r}")
    flags = file.byte(20)
    width, height = (1 + (file.u16(at) | file.byte(at + 2) << 16) for at in (24, 27))
    found = ImageHeader("WebP", width, height, 4 if flags & _WEBP_ALPHA else 3)
    if not flags & _WEBP_EXIF:
        return found
    at = 20 + file.u32(16) + (file.u32(16) & 1)
    end = 8 + file.u32(4)
    while at + 8 <= end:
        file.part()  # its EXIF lies after the pixels, however many these are
        length = file.u32(at + 4)
        if file.take(at, 4) == b"EXIF":
            return found._replace(orientation=exif_orientation(file.take(at + 8, length)))
        at += 8 + length + (length & 1)
    return found


# --- GIF ---


def _gif(file: _File) -> ImageHeader:
    """Read the screen's size; the first picture may reach beyond it, and be transparent."""
    file.order = "<"
    width, height, channels = file.u16(6), file.u16(8), 3
    at = 13 + _gif_colours(file.byte(10))
    while (kind := file.byte(at)) != 0x2C:
        file.part(at)
        if kind == 0x3B:
            raise _Damaged("it ends before its first picture")
        if kind != 0x21:
            raise _Damaged(f"a block {kind:#04x} at byte {at}")
        if file.byte(at + 1) == 0xF9 and file.byte(at + 2) == 4 and file.byte(at + 3) & 1:
            channels = 4
        at += 2
        while length := file.byte(at):
            at += 1 + length
            file.part(at)
        at += 1
    left, top, across, down = (file.u16(at + place) for place in (1, 3, 5, 7))
    if not across or not down:
        raise _Damaged(f"its first picture has {across} x {down} pixels")
    return ImageHeader("GIF", max(width, left + across), max(height, top + down), channels)


def _gif_colours(packed: int) -> int:
    """Return the bytes of the table of colours that a byte of flags announces."""
    return 3 << (packed & 7) + 1 if packed & 0x80 else 0


# --- BMP ---


def _bmp(file: _File) -> ImageHeader:
    """Read the header of OS/2 or of Windows."""
    file.order = "<"
    header = file.u32(14)
    if header == 12:
        width, height, bits = file.u16(18), file.u16(20), file.u16(24)
    elif header in (16, 40, 52, 56, 64, 108, 124):
        width, bits = file.u32(18), file.u16(28)
        height = abs(_I32["<"].unpack(file.take(22, 4))[0])  # negative where rows go down
    else:
        raise _Damaged(f"a header of {header} bytes")
    if bits not in (1, 2, 4, 8, 16, 24, 32) or width >= 1 << 31:
        raise _Damaged(f"{width} x {height} pixels of {bits} bits")
    return ImageHeader("BMP", width, height, 4 if bits == 32 else 3)


# --- TIFF, and EXIF, which is one ---

_WIDTH, _LENGTH, _BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES = 256, 257, 258, 262, 274, 277
_WANTED = frozenset((_WIDTH, _LENGTH, _BITS, _PHOTOMETRIC, _ORIENTATION, _SAMPLES))

_TYPE_BYTES = {1: 1, 3: 2, 4: 4, 16: 8}
"""The types of whole numbers, by their code: BYTE, SHORT, LONG, and LONG8 of BigTIFF."""

_PALETTE = 3


def _tiff(file: _File) -> ImageHeader:
    """Read the first directory."""
    tags = dict(_directory(file, _WANTED))
    if _WIDTH not in tags or _LENGTH not in tags:
        raise _Damaged("its first directory has no width and height")
    bits, channels = tags.get(_BITS, 1), tags.get(_SAMPLES, 1)
    if not 1 <= bits <= 64 or not 1 <= channels <= 1 << 10:
        raise _Damaged(f"{channels} values of {bits} bits in each pixel")
    if tags.get(_PHOTOMETRIC) == _PALETTE:
        bits, channels = 8, 3
    turned = tags.get(_ORIENTATION, 1)
    orientation = turned if 1 <= turned <= 8 else 1
    return ImageHeader("TIFF", tags[_WIDTH], tags[_LENGTH], channels, bits, orientation)


def exif_orientation(data: bytes) -> int:
    """Return the orientation that EXIF tells, 1 to 8; 1 where it tells none that makes sense.

    Cameras and programs write damaged EXIF beside good pictures, so nothing here is an error.

    Args:
        data: A TIFF header and its directory, with or without `Exif` before it.
    """
    file = _File(data.removeprefix(b"Exif\0\0"))
    if file.data[:4] not in (b"II*\0", b"MM\0*"):
        return 1
    try:
        for _, value in _directory(file, frozenset((_ORIENTATION,))):
            return value if 1 <= value <= 8 else 1
    except (_MoreNeeded, _Damaged):
        pass
    return 1


def _directory(file: _File, wanted: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield tags of the first directory of a TIFF, with the first number of each."""
    file.order = "<" if file.data[0] == 0x49 else ">"
    big = file.u16(2) == 43
    if big and file.take(4, 4) != (b"\x08\0\0\0" if file.order == "<" else b"\0\x08\0\0"):
        raise _Damaged("offsets that are not of 8 bytes")
    number, word, entry = (file.u64, 8, 20) if big else (file.u32, 4, 12)
    at = number(8 if big else 4)
    count = number(at) if big else file.u16(at)
    at += 8 if big else 2
    if count > 1 << 16:
        raise _Damaged(f"a directory of {count} entries")
    for place in range(at, at + count * entry, entry):
        tag = file.u16(place)
        if tag not in wanted:
            continue
        size = _TYPE_BYTES.get(file.u16(place + 2))
        values = number(place + 4)
        if size is None or not values:
            raise _Damaged(f"tag {tag} is not a number")
        value = place + 4 + word
        if values * size > word:
            value = number(value)
        yield tag, {1: file.byte, 2: file.u16, 4: file.u32, 8: file.u64}[size](value)


_MARKS: tuple[tuple[bytes, Callable[[_File], ImageHeader]], ...] = (
    (b"\xff\xd8\xff", _jpeg),
    (b"\x89PNG\r\n\x1a\n", _png),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"BM", _bmp),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
    (b"II+\0", _tiff),
    (b"MM\0+", _tiff),
)
_NAMES: dict[Callable[[_File], ImageHeader], str] = {
    _jpeg: "JPEG",
    _png: "PNG",
    _webp: "WebP",
    _gif: "GIF",
    _bmp: "BMP",
    _tiff: "TIFF",
}
