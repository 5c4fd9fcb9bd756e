"""Decoding: what each mode becomes, by both decoders, and that half a picture is none."""

from __future__ import annotations

import io
import random
import struct
import sys
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

import pictures
from penstock.server.media import jpeg
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.image_header import ImageHeader, parse_header
from penstock.server.media.picture import DECODERS, Decoding
from penstock.wire.errors import InvalidJob, MissingExtra

DRAWN = dict(pictures.drawn())
JPEGS = {name: data for name, data in DRAWN.items() if name.startswith("jpeg")}
RGB = np.asarray(pictures.colours())
ALPHA = np.asarray(pictures.see_through())[..., 3:]
GREY = np.asarray(pictures.colours().convert("L"))

every_decoder = pytest.mark.parametrize("decoder", DECODERS)


def decode(data: bytes, decoder: str = "jpeg", **options: Any) -> np.ndarray:
    least = options.pop("least", None)
    return Decoding(decoder, **options).decode(data, parse_header(data, "it"), "it", least)


def by_pillow(data: bytes) -> np.ndarray:
    """Return what Pillow gives by itself, upright, for a picture without transparency."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def over(colour: tuple[int, int, int]) -> np.ndarray:
    """Return the drawn picture with its alpha, on a colour, in whole numbers, rounded."""
    alpha = ALPHA.astype(int)
    found: np.ndarray = (RGB * alpha + np.array(colour) * (255 - alpha) + 127) // 255
    return found.astype(np.uint8)


def three(grey: np.ndarray) -> np.ndarray:
    """Return grey as RGB."""
    return np.repeat(grey[..., None], 3, axis=2)


def with_clear(pixels: np.ndarray, clear: np.ndarray) -> np.ndarray:
    """Return pixels with white where they are transparent."""
    return np.where(clear[..., None], 255, pixels).astype(np.uint8)


HIGH = (pictures.deep() >> 8).astype(np.uint8)
BITS = np.asarray(pictures.colours().convert("1"))
INDICES = np.asarray(pictures.colours().quantize(64))
PALETTE = np.asarray(pictures.colours().quantize(64).convert("RGB"))
LIKE = np.array(pictures.colours().getpixel((7, 9)))
CMYK = np.asarray(pictures.colours().convert("CMYK")).astype(int)

STATED = {
    "png 1": three(BITS * np.uint8(255)),
    "png L": three(GREY),
    "png RGB": RGB,
    "png RGBA": over((255, 255, 255)),
    "png P": PALETTE,
    "png P transparent": with_clear(PALETTE, INDICES == 3),
    "png L transparent": with_clear(three(GREY), GREY == 100),
    "png RGB transparent": with_clear(RGB, (RGB == LIKE).all(axis=2)),
    "png I;16": three(HIGH),
    "png I;16 transparent": with_clear(three(HIGH), pictures.deep() == 12 * 256 + 129),
    "png RGB 16 bits": np.stack([HIGH + np.uint8(1), HIGH, HIGH], axis=2),
    "png animated": RGB,
    "webp lossless": RGB,
    "webp lossless alpha": over((255, 255, 255)),
    "gif": PALETTE,
    "gif transparent": with_clear(PALETTE, INDICES == 3),
    "gif animated": PALETTE,
    "bmp 1": three(BITS * np.uint8(255)),
    "bmp RGB": RGB,
    "bmp RGBA": RGB,
    "tiff 1": three(BITS * np.uint8(255)),
    "tiff L": three(GREY),
    "tiff P": PALETTE,
    "tiff RGB": RGB,
    "tiff RGBA": over((255, 255, 255)),
    "tiff CMYK": ((255 - CMYK[..., :3]) * (255 - CMYK[..., 3:]) / 255).round().astype(np.uint8),
    "tiff I;16": three(HIGH),
    "tiff pages": RGB,
}
"""What docs/media.md states, computed from what was drawn, without a decoder."""


@every_decoder
@pytest.mark.parametrize("name", STATED)
def test_each_mode_has_a_stated_result(name: str, decoder: str) -> None:
    """The same by both decoders, to the level."""
    found = decode(DRAWN[name], decoder)

    assert found.dtype == np.uint8
    assert np.array_equal(found, STATED[name])


def test_what_is_transparent_lies_on_the_colour_that_the_job_names() -> None:
    """Whole alphas and single colours alike."""
    found = decode(DRAWN["png RGBA"], background=(10, 200, 30))
    clear = decode(DRAWN["png I;16 transparent"], background=(10, 200, 30))

    assert np.array_equal(found, over((10, 200, 30)))
    assert clear[pictures.deep() == 12 * 256 + 129].tolist()[0] == [10, 200, 30]


@pytest.mark.parametrize("name", JPEGS)
def test_a_jpeg_is_pillows_to_the_byte(name: str) -> None:
    """Whole, by either decoder: in every subsampling, progressive, grey and CMYK."""
    for decoder in DECODERS:
        assert np.array_equal(decode(JPEGS[name], decoder), by_pillow(JPEGS[name]))


def test_ycck_is_cmyk_by_another_name() -> None:
    """As simplejpeg writes it of CMYK; neither decoder hands back YCCK as it is."""
    import simplejpeg

    ink = np.ascontiguousarray(255 - CMYK).astype(np.uint8)  # Adobe's programs store it inverted
    data = simplejpeg.encode_jpeg(ink, quality=100, colorspace="CMYK", colorsubsampling="444")
    found = {decoder: decode(data, decoder).astype(int) for decoder in DECODERS}

    assert parse_header(data, "it").channels == 4
    assert np.array_equal(found["jpeg"], found["pillow"])
    assert np.array_equal(found["jpeg"], by_pillow(data))


@every_decoder
@pytest.mark.parametrize("kind", pictures.TURNED)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(kind: str, orientation: int, decoder: str) -> None:
    """In each of the eight ways in which EXIF, or a TIFF's tag, says that they lie."""
    data = pictures.turned(kind, orientation)

    assert np.array_equal(decode(data, decoder), by_pillow(data))


@pytest.mark.parametrize("name", [n for n in pictures.photographs() if n != "multipage_rgb.tif"])
def test_a_photograph_is_what_pillow_makes_of_it(name: str) -> None:
    """Of each that has no alpha."""
    data = pictures.photographs()[name].read_bytes()

    found = decode(data)

    header = parse_header(data, name)
    assert found.shape == (header.height, header.width, 3)
    if header.channels == 3:
        assert np.array_equal(found, by_pillow(data))


# --- smaller ---


@every_decoder
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_is_decoded_no_smaller_than_asked(decoder: str, orientation: int) -> None:
    """And in the smallest size that the decoder has; nothing but a JPEG is made smaller."""
    image = pictures.photograph(320, 200)
    data = pictures.encoded(image, "JPEG", exif=pictures.exif(orientation))
    height, width = (200, 320) if orientation == 1 else (320, 200)

    for eighths in (8, 6, 5, 4, 3, 2, 1):
        least = -(-height * eighths // 8), -(-width * eighths // 8)
        found = decode(data, decoder, least=least)
        there = {"jpeg": eighths, "pillow": 1 << (eighths - 1).bit_length()}[decoder]
        assert found.shape[:2] == (-(-height * there // 8), -(-width * there // 8))
    assert decode(pictures.encoded(image, "PNG"), decoder, least=(20, 20)).shape[:2] == (200, 320)


@pytest.mark.parametrize("eighths", [1, 2, 4])
def test_both_decoders_scale_alike(eighths: int) -> None:
    """Where both have a size, its pixels are the same."""
    data = pictures.encoded(pictures.photograph(333, 201), "JPEG")
    least = 201 * eighths // 8, 333 * eighths // 8

    assert np.array_equal(decode(data, "jpeg", least=least), decode(data, "pillow", least=least))


# --- damage ---

WHOLE_OR_NOTHING = [*DRAWN, "photograph.jpg", "photograph.png"]


@every_decoder
@pytest.mark.parametrize("name", WHOLE_OR_NOTHING)
def test_a_file_that_was_cut_off_is_an_error_or_whole(name: str, decoder: str) -> None:
    """Cut anywhere: at each of its last bytes, and at many places before. Never grey halves."""
    if name.startswith("photograph"):
        kind = {"jpg": "JPEG", "png": "PNG"}[name[-3:]]
        data = pictures.encoded(pictures.photograph(160, 120), kind)
    else:
        data = DRAWN[name]
    whole, errors = decode(data, decoder), 0
    chance = random.Random(name)
    cuts = {*range(len(data) - 12, len(data)), *(chance.randrange(len(data)) for _ in range(25))}

    for cut in sorted(cuts):
        try:
            found = decode(data[:cut], decoder)
        except BadPicture:
            errors += 1
        else:
            assert np.array_equal(found, whole), f"{name} after {cut} of {len(data)} bytes"

    assert errors >= 5


def taller(data: bytes, height: int) -> bytes:
    """Return a file whose header says another height."""
    if data[:4] == b"\x89PNG":
        head = data[16:20] + struct.pack(">I", height) + data[24:29]
        return data[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + data[33:]
    if data[:2] == b"BM":
        return data[:22] + struct.pack("<i", height) + data[26:]
    if data[:3] == b"GIF":
        at = data.index(b",", 13 + 3 * 64)
        return data[: at + 7] + struct.pack("<H", height) + data[at + 9 :]
    if data[8:12] == b"WEBP":
        at = data.index(b"\x9d\x01\x2a")
        return data[: at + 5] + struct.pack("<H", height) + data[at + 7 :]
    if data[:2] == b"II":
        at = data.index(struct.pack("<HH", 257, 4)) if big(data) else data.index(b"\x01\x01\x03\0")
        return data[: at + 8] + struct.pack("<H", height) + data[at + 10 :]
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    return data[: at + 5] + struct.pack(">H", height) + data[at + 7 :]


def big(data: bytes) -> bool:
    """Tell whether a TIFF says its height in four bytes."""
    return struct.pack("<HH", 257, 4) in data


LIARS = [
    *("jpeg", "jpeg 444", "jpeg progressive", "jpeg restarts", "jpeg grey", "jpeg cmyk"),
    *("png RGB", "png L", "png P", "png 1", "webp", "gif", "bmp RGB", "bmp L"),
    *("tiff RGB", "tiff L", "tiff tiff_lzw", "tiff packbits"),
]


@every_decoder
@pytest.mark.parametrize("name", LIARS)
def test_a_header_that_says_more_than_the_data_is_an_error(name: str, decoder: str) -> None:
    """Rows that are not there are nobody's grey, and nobody's black."""
    data = taller(DRAWN[name], 2 * pictures.HEIGHT)
    assert parse_header(data, "it").height == 2 * pictures.HEIGHT

    with pytest.raises(BadPicture):
        decode(data, decoder)
    if name.startswith("jpeg"):
        with pytest.raises(BadPicture):
            decode(data, decoder, least=(24, 31))


def test_an_interlaced_png_is_looked_through_as_well() -> None:
    """Rows of all seven passes are counted; a whole one that ends in black is whole."""
    black = Image.new("RGB", (37, 29))
    first = b"\0\x09" * 3 + b"\0\x09\x09\x09" + b"\0\x09\x09" * 2  # passes 1, 2, 4, 5, 6
    interlaced = bytearray(pictures.png(5, 4, 8, 0, first + bytes(2 * 6)))
    interlaced[28] = 1
    interlaced[29:33] = struct.pack(">I", zlib.crc32(interlaced[12:29]))
    whole = bytes(interlaced)
    short = bytearray(pictures.png(5, 4, 8, 0, first + bytes(6)))
    short[28:33] = whole[28:33]

    assert decode(whole).shape == (4, 5, 3)
    assert not decode(pictures.encoded(black, "PNG")).any()
    with pytest.raises(BadPicture, match="end before its last row"):
        decode(bytes(short))


def test_a_whole_jpeg_may_end_in_one_colour() -> None:
    """A white page is one, and is not taken for what was cut off."""
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 2}):
        data = pictures.encoded(Image.new("RGB", (50, 70), (255, 255, 255)), "JPEG", **options)
        assert (decode(data, "pillow") == 255).all()


def test_a_warning_about_a_header_alone_is_no_error() -> None:
    """Cameras write scans whose bounds make no sense; with damaged data behind, it is one."""
    data = bytearray(JPEGS["jpeg"])
    at = data.index(b"\xff\xda")
    data[at + 11] = 0  # the last coefficient of the scan: 63
    odd = bytes(data)

    assert np.array_equal(decode(odd), decode(JPEGS["jpeg"]))
    with pytest.raises(BadPicture):
        decode(taller(odd, 2 * pictures.HEIGHT))


def test_a_jpeg_of_a_thousand_scans_is_refused() -> None:
    """Before the first of them is decoded."""
    data = JPEGS["jpeg progressive"]
    at = data.rindex(b"\xff\xda")
    slow = data[:at] + data[at:-2] * 1000 + data[-2:]

    for decoder in DECODERS:
        with pytest.raises(BadPicture, match="more than 500 scans"):
            decode(slow, decoder)


@every_decoder
def test_a_jpeg_that_is_not_progressive_may_not_have_thousands_of_scans_either(
    decoder: str,
) -> None:
    """Each component's scan again and again: a second for 3,000 of them, in 30 KB."""
    data = JPEGS["jpeg"]
    at = data.index(b"\xff\xda")
    scans = b"".join(
        b"\xff\xda\0\x08\x01" + bytes((part, 0x11 * (part > 1), 0, 63, 0)) + b"\0"
        for part in (1, 2, 3) * 200
    )

    with pytest.raises(BadPicture, match="more than 500 scans"):
        decode(data[:at] + scans + b"\xff\xd9", decoder)


def test_a_second_header_of_a_png_takes_no_memory() -> None:
    """Pillow goes by the last one, and the bounds were checked of the first."""
    data = DRAWN["png RGB"]
    second = b"IHDR" + struct.pack(">II", 30_000, 30_000) + data[24:29]
    other = struct.pack(">I", 13) + second + struct.pack(">I", zlib.crc32(second))

    with pytest.raises(BadPicture, match="30000 x 30000 pixels in another place"):
        decode(data[:33] + other + data[33:])


@pytest.mark.parametrize("side", [40_000, 4_096])
def test_a_tile_of_a_tiff_is_not_far_larger_than_itself(side: int) -> None:
    """150 bytes would take 1.5 GB, which libtiff needs for a whole tile."""
    tags = [(256, 4), (257, 4), (258, 8), (259, 8), (262, 1), (277, 1), (322, side), (323, side)]
    packed = zlib.compress(bytes(1000))
    tags += [(324, 14 + 12 * (len(tags) + 2)), (325, len(packed))]
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)

    with pytest.raises(BadPicture, match=f"tiles of {side} x {side} pixels, and 4 x 4 in all"):
        decode(struct.pack("<4sIH", b"II*\0", 8, len(tags)) + directory + bytes(4) + packed)


@pytest.mark.parametrize("count", [pytest.param(n, id=f"{n:,}") for n in (800, 30_000)])
def test_damage_gives_pixels_or_a_named_error(count: int) -> None:
    """Whatever a decoder raises becomes one; the header is parsed as always."""
    chance = random.Random(7)
    files = list(DRAWN.values())

    for number in range(count):
        data = bytearray(chance.choice(files))
        for _ in range(chance.choice((1, 3, 9))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for decoder in DECODERS:
            try:
                decode(bytes(data), decoder, max_pixels=1 << 20)
            except BadPicture:
                continue
            except Exception as error:
                pytest.fail(f"file {number}, {decoder}: {error!r}")


# --- bounds, and what is installed ---


def test_bounds_are_checked_before_memory_is_taken() -> None:
    """By the header: ten thousand megapixels in a file of some bytes take none."""
    data = taller(DRAWN["png RGB"], 1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(BadPicture, match="max_pixels is 67,108,864"):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_pixels": 61 * 47 - 1}, "2,867 in all, and max_pixels is 2,866"),
        ({"max_bytes": 3 * 61 * 47 - 1}, "take 8,601 bytes, and max_bytes is 8,600"),
    ],
)
def test_a_bound_is_named_with_both_numbers(options: dict[str, int], said: str) -> None:
    """One less than it has."""
    with pytest.raises(BadPicture, match=said):
        decode(DRAWN["jpeg"], **options)


def test_a_file_of_too_many_bytes_is_refused() -> None:
    """Pixels may be few beside megabytes of something else."""
    data = DRAWN["jpeg"] + bytes(20_000)

    with pytest.raises(BadPicture, match="max_bytes is 20,000"):
        decode(data, max_bytes=20_000)


def test_pillows_own_bound_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the process's: a job that allows more pixels reads them without a warning."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)

    for name in ("jpeg cmyk", "png RGB", "gif", "bmp RGB"):
        assert decode(DRAWN[name], "pillow").shape == (47, 61, 3)
    for name in ("tiff RGB", "webp"):  # where Pillow asks within
        with pytest.raises(BadPicture, match=r"PIL\.Image\.MAX_IMAGE_PIXELS"):
            decode(DRAWN[name])
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_job_that_lets_pillow_fill_in_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With that flag pictures that were cut off would be grey from there on."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)

    with pytest.raises(InvalidJob, match="LOAD_TRUNCATED_IMAGES"):
        decode(DRAWN["png RGB"])


@pytest.mark.parametrize(
    ("decoder", "module", "package"),
    [("jpeg", "simplejpeg", "simplejpeg"), ("jpeg", "PIL", "pillow"), ("pillow", "PIL", "pillow")],
)
def test_a_missing_package_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, decoder: str, module: str, package: str
) -> None:
    """At the start, whatever pictures come: nothing depends on what is installed."""
    jpeg.simplejpeg.cache_clear()
    for name in (module, *(name for name in sys.modules if name.startswith(f"{module}."))):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[images\]'") as raised:
        Decoding(decoder).load()

    assert raised.value.package == package
    assert "\n" not in str(raised.value)


def test_values_without_a_range_are_refused() -> None:
    """Floats, and whole numbers of 32 bits: black and white could be anything."""
    for values in (RGB[..., 0].astype(np.float32), RGB[..., 0].astype(np.int32)):
        data = pictures.encoded(Image.fromarray(values), "TIFF")
        with pytest.raises(BadPicture, match="no range is known"):
            decode(data)


def test_data_of_another_size_than_the_header_are_refused() -> None:
    """A WebP has two headers, and decoders believe the other one."""
    header = ImageHeader("JPEG", 30, 20, 3)

    with pytest.raises(BadPicture, match="and its header says 30 x 20"):
        Decoding().decode(DRAWN["jpeg"], header, "it")
