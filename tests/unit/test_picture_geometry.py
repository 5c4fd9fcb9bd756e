"""Where a picture is cut, and how large it becomes; and what the kernels make of it."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pictures
from penstock.server.media import resize as kernels
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.geometry import Box, Extent, Geometry, Layout, smart_resize
from penstock.server.media.resize import FILTERS, KERNELS, load_kernel, resize
from penstock.wire.errors import MissingExtra

SIZES = [
    Extent(375, 500),
    Extent(500, 375),
    Extent(224, 224),
    Extent(1, 300),
    Extent(97, 31),
    Extent(1080, 1920),
]


def layout(geometry: Geometry, picture: Extent, seed: int = 0) -> Layout:
    return geometry.lay_out(picture, "it", lambda: np.random.default_rng(seed))


GEOMETRIES = [
    Geometry(),
    Geometry("exact", Extent(224, 112)),
    Geometry("shortest", Extent(256, 256)),
    Geometry("longest", Extent(256, 256)),
    Geometry("pad", Extent(96, 160)),
    Geometry("smart_resize"),
    Geometry("exact", Extent(64, 64), crop="centre", crop_size=Extent(48, 32)),
    Geometry("shortest", Extent(300, 300), crop="random", crop_size=Extent(224, 224), flip=0.5),
    Geometry(crop="random", crop_size=Extent(1, 20)),
    Geometry(crop="random_resized", crop_size=Extent(224, 224)),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("picture", SIZES, ids=str)
def test_the_size_is_known_without_a_draw(geometry: Geometry, picture: Extent) -> None:
    """Whatever is drawn, the result is as large as its header told; parts lie within."""
    try:
        told = geometry.result(picture, "it")
    except BadPicture:
        with pytest.raises(BadPicture):
            layout(geometry, picture)
        return

    for seed in range(20):
        found = layout(geometry, picture, seed)
        assert found.size == told
        part = found.part
        assert part.top >= 0 <= part.left
        assert part.height >= 1 <= part.width
        assert part.top + part.height <= picture.height
        assert part.left + part.width <= picture.width
        if found.crop is not None:
            assert found.crop.top + found.crop.height <= found.resized.height
            assert found.crop.left + found.crop.width <= found.resized.width


def test_sides_keep_their_ratio() -> None:
    """The shorter side, or the longer one, gets the size; a picture to be padded fits within."""
    for picture in SIZES:
        shortest = layout(Geometry("shortest", Extent(90, 90)), picture).resized
        longest = layout(Geometry("longest", Extent(90, 90)), picture).resized
        padded = layout(Geometry("pad", Extent(90, 60)), picture).resized
        assert min(shortest) == 90
        assert max(longest) == 90
        assert padded.height == 90 or padded.width == 60
        assert padded.height <= 90
        assert padded.width <= 60
        for found in (shortest, longest, padded):
            ratio = picture.width / picture.height
            if min(found) > 1:
                assert (found.width - 1) / (found.height + 1) < ratio
                assert ratio < (found.width + 1) / (found.height - 1)


def test_smart_resize_is_that_of_transformers() -> None:
    """Of every size around the bounds and the halves, in both families' settings."""
    qwen = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    sides = [*range(1, 60, 3), 42, 56, 70, 98, 99, 140, 141, 377, 500, 1000, 1400, 2800, 5000]

    for factor, least, most in ((28, 3136, 1003520), (32, 65536, 16777216), (28, 784, 50176)):
        for picture in itertools.product(sides, sides):
            if max(picture) > 200 * min(picture):
                with pytest.raises(BadPicture, match="200 times as long"):
                    smart_resize(*picture, factor, least, most)
                continue
            theirs = qwen.smart_resize(*picture, factor, least, most)
            assert smart_resize(*picture, factor, least, most) == tuple(theirs)


def test_random_parts_are_spread_as_told() -> None:
    """Areas and ratios lie where they may, and every corner is reached."""
    geometry = Geometry(crop="random_resized", crop_size=Extent(10, 10), crop_scale=(0.2, 0.5))
    picture, areas, ratios = Extent(400, 600), [], []
    corners = set()

    for seed in range(400):
        part = layout(geometry, picture, seed).part
        areas.append(part.height * part.width / 240_000)
        ratios.append(part.width / part.height)
        corners.add((2 * part.top + part.height > 400, 2 * part.left + part.width > 600))

    assert min(areas) > 0.199
    assert max(areas) < 0.501
    assert abs(np.mean(areas) - 0.35) < 0.02
    assert min(ratios) > 0.73
    assert max(ratios) < 1.35
    assert len(corners) == 4


def test_the_middle_is_taken_where_nothing_fits() -> None:
    """Of a strip, with the ratio that is nearest to its own."""
    found = layout(Geometry(crop="random_resized", crop_size=Extent(8, 8)), Extent(10, 1000)).part

    assert found == Box(0, 493, 10, 13)


def test_a_crop_of_a_picture_that_is_too_small_is_an_error() -> None:
    """It says both sizes, and what to do."""
    geometry = Geometry("shortest", Extent(100, 100), crop="centre", crop_size=Extent(224, 224))

    with pytest.raises(BadPicture, match="133 x 100 pixels where it is cropped to 224 x 224"):
        layout(geometry, Extent(375, 500))


@pytest.mark.parametrize("picture", SIZES, ids=str)
def test_a_part_of_a_smaller_decode_is_no_smaller_than_asked(picture: Extent) -> None:
    """Both ways, for a whole picture and for random parts of it."""
    geometry = Geometry(crop="random_resized", crop_size=Extent(20, 20))
    for seed, times in itertools.product(range(30), (1, 2)):
        found = layout(geometry, picture, seed)
        least = found.least(picture, times)
        part = found.part_of(picture, least)
        assert part.top + part.height <= least.height
        assert part.left + part.width <= least.width
        assert part.height >= times * 20 - 1  # both ends are rounded
        assert part.width >= times * 20 - 1
    whole = layout(Geometry("exact", Extent(20, 20)), picture)
    assert whole.part_of(picture, Extent(*(2 * side for side in picture)))[2:] == tuple(
        2 * side for side in picture
    )


# --- kernels ---


@pytest.mark.parametrize("filtering", FILTERS)
@pytest.mark.parametrize(
    "size", [Extent(224, 224), Extent(40, 333), Extent(600, 700), Extent(1, 1)], ids=str
)
def test_kernels_are_what_they_are_called(size: Extent, filtering: str) -> None:
    """Pillow's is Pillow's; torch's bilinear is within a level; a size that is there is left."""
    image = pictures.photograph()
    pixels = np.asarray(image)
    method = Image.Resampling[filtering.upper()]

    found = {kernel: resize(pixels, size, kernel, filtering) for kernel in ("pillow", "torch")}

    theirs = np.asarray(image.resize((size.width, size.height), method)).astype(int)
    assert np.array_equal(found["pillow"], theirs)
    assert abs(found["torch"] - theirs).max() <= {"bilinear": 1, "bicubic": 3}[filtering]
    assert found["torch"].flags.c_contiguous
    assert resize(pixels, Extent(375, 500), "torch") is pixels


def test_a_crop_of_an_array_needs_no_copy_of_its_own() -> None:
    """A view of a larger array gives what a copy of it gives, by every kernel."""
    pixels = np.asarray(pictures.photograph()).copy()[20:320, 33:433]

    for kernel in KERNELS:
        found = resize(pixels, Extent(100, 90), kernel)
        assert np.array_equal(found, resize(pixels.copy(), Extent(100, 90), kernel))


def test_opencv_passes_over_no_pixels() -> None:
    """Lines become grey within one of nine of them, however much smaller; sides stay put."""
    lines = np.zeros((900, 1203, 3), np.uint8)
    lines[::2] = 255
    halves = np.zeros((903, 1201, 3), np.uint8)
    halves[:, 600:] = 255

    found = resize(lines, Extent(100, 130), "opencv")
    split = resize(halves, Extent(100, 130), "opencv")

    assert abs(found.astype(int) - 128).max() <= 255 / 18 + 1
    assert (split[:, :64] == 0).all()
    assert (split[:, 66:] == 255).all()


@pytest.mark.parametrize(
    ("kernel", "module", "said"),
    [
        ("torch", "torch", "pip install 'torch'"),
        ("opencv", "cv2", r"pip install 'penstock\[opencv\]'"),
    ],
)
def test_a_kernel_that_is_not_installed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kernel: str, module: str, said: str
) -> None:
    """Never another kernel in its place."""
    monkeypatch.setitem(sys.modules, module, None)
    loaded: Any = {"torch": kernels._torch, "opencv": kernels._opencv}[kernel]
    loaded.cache_clear()

    with pytest.raises(MissingExtra, match=said) as raised:
        load_kernel(kernel)

    assert "\n" not in str(raised.value)
