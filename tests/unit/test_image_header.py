"""What a picture's header says: as Pillow has it, from few bytes; what is damaged has an error."""

from __future__ import annotations

import io
import os
import random
import struct
import time
import tracemalloc
import warnings
import zlib
from collections.abc import Callable

import pytest
from PIL import Image, ImageOps, PngImagePlugin

import pictures
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import (
    MAX_HEADER_BYTES,
    ImageHeader,
    parse_header,
    read_header,
)
from penstock.server.media.medium import HEAD_BYTES, HeldMedium, Medium

DRAWN = dict(pictures.drawn())
TURNED = {
    f"{kind} {number}": pictures.turned(kind, number)
    for kind in pictures.TURNED
    for number in range(1, 9)
}
UNKNOWN_TO_PILLOW = {"multipage_rgb.tif": (10, 10)}
"""Three planes of grey values, which Pillow refuses; with the size that tifffile reads."""

SEED = int(os.environ.get("HEADER_SEED", "20"))


class Counting(Medium):
    """A file that counts the bytes that were asked for."""

    def __init__(self, data: bytes) -> None:
        self.name, self.data, self.asked = "counted", data, 0

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes."""
        self.asked = max(self.asked, count)
        return self.data[:count]

    def read(self) -> bytes:
        """Refuse: a header is not the whole."""
        raise AssertionError("the whole file was read")


def header(data: bytes) -> ImageHeader:
    return read_header(HeldMedium("it", data))


def as_pillow_has_it(data: bytes) -> tuple[int, int]:
    """Return the size that Pillow gives once the orientation is applied."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return ImageOps.exif_transpose(image).size


@pytest.mark.parametrize("name", pictures.photographs())
def test_the_size_of_a_photograph_is_pillows(name: str) -> None:
    """Of every picture that scikit-image has."""
    data = pictures.photographs()[name].read_bytes()

    found = header(data)

    size = UNKNOWN_TO_PILLOW.get(name) or as_pillow_has_it(data)
    assert (found.width, found.height) == size


@pytest.mark.parametrize("name", [*DRAWN, *TURNED])
def test_the_size_of_a_drawn_picture_is_pillows(name: str) -> None:
    """In every format, mode and orientation, with as many values in a pixel as are decoded."""
    data = {**DRAWN, **TURNED}[name]

    found = header(data)

    assert (found.width, found.height) == as_pillow_has_it(data)
    with Image.open(io.BytesIO(data)) as image:
        assert found.format == {"WEBP": "WebP", "MPO": "JPEG"}.get(image.format, image.format)
        bands = len(image.getbands())
        if (
            image.mode not in ("P", "1")
            and name != "png LA 16 bits"
            and found.format not in "GIF BMP"
        ):
            assert found.channels == bands + ("transparency" in image.info), image.mode
        assert found.decoded_bytes >= image.width * image.height * 3


def test_orientations_are_those_of_exif() -> None:
    """Each of the eight, in each format that has them; 5 to 8 swap the sides."""
    for name, data in TURNED.items():
        kind, number = name.split()
        found = header(data)
        assert found.orientation == int(number), name
        assert found.stored_size == (pictures.HEIGHT, pictures.WIDTH), kind


def test_the_first_64_kib_suffice_and_no_more_is_asked_for() -> None:
    """A file may be large: of all formats but those whose header stands at the end."""
    for name, data in {**DRAWN, **TURNED}.items():
        medium = Counting(data + bytes(1 << 20))
        if name.startswith(("tiff", "TIFF", "WEBP")):
            continue
        assert read_header(medium) == header(data), name
        assert medium.asked == HEAD_BYTES, name


def test_what_lies_farther_on_is_asked_for() -> None:
    """Profiles of megabytes before the size, a directory and EXIF after the pixels."""
    image = pictures.photograph(900, 700)
    profile = bytes(range(256)) * 2000
    files = {
        "JPEG with profiles": pictures.encoded(image, "JPEG", icc_profile=profile),
        "TIFF": pictures.encoded(image, "TIFF", compression="tiff_lzw", tiffinfo={0x0112: 6}),
        "WebP": pictures.encoded(image, "WEBP", quality=100, exif=pictures.exif(6)),
    }
    for name, data in files.items():
        medium = Counting(data)
        found = read_header(medium)
        assert (found.width, found.height) == as_pillow_has_it(data), name
        assert medium.asked > HEAD_BYTES, name


def test_damaged_exif_counts_as_none() -> None:
    """Cameras write such beside good pictures; Pillow shows these as they lie, too."""
    good = pictures.turned("JPEG", 6)
    at = good.index(b"Exif\0\0")
    for place, value in ((at + 6, b"XX"), (at + 10, b"\xff\xff\xff\xff"), (at + 24, b"\0\x63")):
        data = good[:place] + value + good[place + len(value) :]
        assert header(data).orientation == 1


SENTENCES = {
    b"": "it is empty",
    b"\xff": "cut off",
    b"RIFF\0\0": "cut off",
    b"%PDF-1.4 and more": "not a picture that can be read",
    b"\xff\xd8\xff\xd9": "ends before its first scan",
    DRAWN["jpeg"][:100]: "ends within its header",
    DRAWN["png RGB"][:20]: "ends within its header",
    DRAWN["jpeg"].replace(b"\xff\xc0\0\x11\x08\0\x2f", b"\xff\xc0\0\x11\x08\0\0"): "61 x 0 pixels",
    DRAWN["gif"][:6] + bytes(7) + b";": "ends before its first picture",
}


@pytest.mark.parametrize(("data", "said"), SENTENCES.items(), ids=SENTENCES.values())
def test_what_is_wrong_is_said_in_a_sentence(data: bytes, said: str) -> None:
    """With the file's name before it."""
    with pytest.raises(BadPicture, match=said) as raised:
        header(data)

    assert str(raised.value).startswith("it")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a file with bytes changed, left out or repeated, most of them at its start."""
    found = bytearray(data[: 1 << 16])
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        reach = len(found) if chance.random() < 0.3 else min(len(found), 96)
        at = chance.randrange(max(1, reach))
        match chance.randrange(6):
            case 0:
                found[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                found[at : at + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
            case 2:
                del found[at : at + chance.randrange(1, 9)]
            case 3:
                found[at:at] = found[at : at + chance.randrange(1, 40)]
            case 4:
                found[at] ^= 1 << chance.randrange(8) if at < len(found) else 0
            case _:
                del found[max(1, at) :]
        if not found:
            break
    return bytes(found)


@pytest.mark.parametrize("count", [pytest.param(n, id=f"{n:,}") for n in (6_000, 100_000)])
def test_damage_gives_a_size_or_a_named_error(count: int) -> None:
    """Whatever is changed: no other error, and little memory for a file of 64 KiB."""
    chance = random.Random(SEED)
    files = list({**DRAWN, **TURNED}.values())
    files += [path.read_bytes() for path in pictures.photographs().values()]
    tracemalloc.start()
    try:
        for number in range(count):
            data = damaged(chance.choice(files), chance)
            try:
                found = parse_header(data, "it")
                assert found.width > 0 < found.height
            except BadPicture:
                continue
            except Exception as error:
                pytest.fail(f"HEADER_SEED={SEED}, file {number}: {error!r}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 64 << 20


def png_chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG_START = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
GIF_START = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0, 0, 0)
WEBP_START = b"RIFF\xff\xff\xff\x7fWEBPVP8X" + struct.pack("<I", 10) + b"\x08" + bytes(3) + bytes(6)

LONG: dict[str, Callable[[], bytes]] = {
    "png of empty chunks": lambda: PNG_START + png_chunk(b"teSt") * 1_000_000,
    "png of one large chunk": lambda: (
        PNG_START + struct.pack(">I", 64 << 20) + b"teSt" + bytes(64 << 20)
    ),
    "png of large EXIF": lambda: (
        PNG_START + struct.pack(">I", 64 << 20) + b"eXIf" + bytes(64 << 20)
    ),
    "gif of comments": lambda: GIF_START + b"\x21\xfe\x01a\x00" * 2_000_000,
    "gif of one comment": lambda: GIF_START + b"\x21\xfe" + b"\x01a" * 5_000_000,
    "gif of one long comment": lambda: GIF_START + b"\x21\xfe" + (b"\xff" + b"a" * 255) * 100_000,
    "jpeg of markers": lambda: b"\xff\xd8" + b"\xff\xfe\0\x02" * 2_000_000,
    "jpeg of markers without a length": lambda: b"\xff\xd8" + b"\xff\x01" * 4_000_000,
    "jpeg of fill bytes": lambda: b"\xff\xd8" + b"\xff" * 8_000_000,
    "jpeg of long segments": lambda: b"\xff\xd8" + (b"\xff\xe2\xff\xff" + bytes(65533)) * 400,
    "webp of empty chunks": lambda: WEBP_START + b"teSt\0\0\0\0" * 1_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_header_that_does_not_come_is_not_waited_for(name: str) -> None:
    """One that was made to be slow is refused after a stated number of parts, or of bytes."""
    medium = Counting(LONG[name]())

    began_s = time.process_time()
    with pytest.raises(BadPicture, match=r"do not begin within 50,000 parts and 16,777,216 bytes"):
        read_header(medium)

    assert time.process_time() - began_s < 5  # some were 10 s and more
    assert medium.asked <= 4 * MAX_HEADER_BYTES + HEAD_BYTES


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF"])
def test_long_headers_of_real_files_are_read(kind: str) -> None:
    """Profiles, thumbnails and XMP of megabytes, as programs write them, are read."""
    out = io.BytesIO()
    image = Image.new("RGB", (8, 6))
    if kind == "JPEG":
        exif = Image.Exif()
        exif[0x0112] = 6
        exif[0x010E] = "a" * 60_000
        image.save(out, kind, icc_profile=bytes(4 << 20), exif=exif, xmp=b"x" * 65_000)
        data = out.getvalue()
        segment = b"\xff\xe1\xff\xffhttp://ns.adobe.com/xmp/extension/\0" + bytes(65_498)
        data = data[:2] + segment * 100 + data[2:]  # 6 MB of extended XMP
    elif kind == "PNG":
        info = PngImagePlugin.PngInfo()
        for number in range(500):
            info.add_text(f"note {number}", "a" * 10_000)
        image.save(out, kind, icc_profile=os.urandom(4 << 20), pnginfo=info)
        data = out.getvalue()
    else:
        image.save(out, kind)
        data = out.getvalue()
        at = data.index(b"\x2c", 13)
        text = b"<rdf:li>" * 8
        xmp = b"\x21\xff\x0bXMP DataXMP" + (bytes([len(text)]) + text) * 30_000 + b"\0"
        while data[at : at + 1] != b"\x2c" or data[at + 1 : at + 5] != bytes(4):
            at = data.index(b"\x2c", at + 1)
        data = data[:at] + xmp + data[at:]

    found = header(data)

    assert (found.width, found.height) == ((6, 8) if kind == "JPEG" else (8, 6))


def test_a_directory_that_names_many_entries_takes_little_time() -> None:
    """A TIFF of 64 KiB may claim 2^64 of them; a GIF's blocks may be as many as its bytes."""
    tiff = b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0" + b"\xff" * 8 + bytes(1 << 16)
    gif = DRAWN["gif"][:6] + bytes(7) + b"!\xfe" + b"\x01a" * 30_000

    for data in (tiff, gif):
        with warnings.catch_warnings(), pytest.raises(BadPicture):
            header(data)
