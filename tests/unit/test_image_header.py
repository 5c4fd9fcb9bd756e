"""What a picture's header says: as Pillow has it, from few bytes; what is damaged has an error."""

from __future__ import annotations

import io
import os
import random
import tracemalloc
import warnings

import pytest
from PIL import Image, ImageOps

import pictures
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import ImageHeader, parse_header, read_header
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


def test_a_directory_that_names_many_entries_takes_little_time() -> None:
    """A TIFF of 64 KiB may claim 2^64 of them; a GIF's blocks may be as many as its bytes."""
    tiff = b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0" + b"\xff" * 8 + bytes(1 << 16)
    gif = DRAWN["gif"][:6] + bytes(7) + b"!\xfe" + b"\x01a" * 30_000

    for data in (tiff, gif):
        with warnings.catch_warnings(), pytest.raises(BadPicture):
            header(data)
