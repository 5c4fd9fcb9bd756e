"""Frames that travelled as planes: RGB of them is the stated one, in arrays of every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.client import Loader
from penstock.client.media import ToRgb, resized, resizing
from penstock.client.media import to_rgb as to_rgb_module
from penstock.client.testing import DeviceArray, SimulatedDevice
from penstock.wire.colours import (
    WEIGHTS,
    Colours,
    Levels,
    Matrix,
    Siting,
    chroma_shape,
    factors,
    to_rgb,
)
from penstock.wire.errors import InvalidRequest
from unit.served import ServedNode

DEVICE = SimulatedDevice()

EVERY = [
    Colours(matrix, full_range, siting)
    for matrix in Matrix
    for full_range in (False, True)
    for siting in Siting
]


def on_device(array: np.ndarray[Any, Any]) -> DeviceArray:
    """Return an array of a simulated device, whose stream is the calling thread's."""
    memory = DEVICE.simulator.allocate(array.nbytes, DEVICE.current())
    data = np.frombuffer(array.tobytes(), np.uint8)
    DEVICE.simulator.launch(
        DEVICE.current(), lambda block: block.__setitem__(slice(None), data), [], [memory]
    )
    return DeviceArray(DEVICE, memory, array.dtype, array.shape, 0)


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    """Return a tensor of torch."""
    import torch

    return torch.from_numpy(array)


KINDS = [
    pytest.param(lambda array: array, id="numpy"),
    pytest.param(on_device, id="simulated"),
    pytest.param(as_tensor, id="torch", marks=pytest.mark.torch),
]

Kind = Callable[[np.ndarray[Any, Any]], Any]


def back(value: Any) -> np.ndarray[Any, Any]:
    """Return an array of any kind as one of NumPy."""
    return value.get() if isinstance(value, DeviceArray) else np.asarray(value)


def noise(*shape: int, seed: int = 24) -> tuple[Levels, Levels, Levels]:
    """Return planes of every level at random."""
    chance = np.random.default_rng(seed)
    halves = (*shape[:-2], *chroma_shape(*shape[-2:]))
    y, u, v = (chance.integers(0, 256, size, np.uint8) for size in (shape, halves, halves))
    return y, u, v


def batch_of(planes: tuple[Levels, Levels, Levels], colours: Any, kind: Kind) -> dict[str, Any]:
    """Return a batch of frames `top`."""
    y, u, v = planes
    values = {"y": y, "u": u, "v": v, "colours": np.array(colours, np.uint8)}
    return {f"top.{name}": kind(value) for name, value in values.items()}


def exact(planes: tuple[Levels, Levels, Levels], colours: Colours) -> np.ndarray[Any, Any]:
    """Return float64 RGB, each level of chroma in a block of four."""
    y, *chroma = planes
    height, width = y.shape[-2:]
    u, v = (plane.repeat(2, -1).repeat(2, -2)[..., :height, :width] for plane in chroma)
    return _by_formula(y, u, v, colours)


def _by_formula(y: Any, u: Any, v: Any, colours: Colours) -> np.ndarray[Any, Any]:
    """Return float64 RGB by the formulas of H.273, of planes of one size."""
    y, u, v = (plane.astype(np.float64) for plane in (y, u, v))
    u, v = u - 128, v - 128
    if colours.full_range:
        y, chroma = y / 255, 255.0
    else:
        y, chroma = (y - 16) / 219, 224.0
    red, blue = WEIGHTS[colours.matrix]
    r, b = y + 2 * (1 - red) * v / chroma, y + 2 * (1 - blue) * u / chroma
    g = (y - red * r - blue * b) / (1 - red - blue)
    return np.clip(255 * np.stack([r, g, b], -1), 0, 255)


# --- the stated integers ---


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", Matrix)
def test_the_integers_are_those_of_the_matrix(matrix: Matrix, full_range: bool) -> None:
    """At most 3 levels below H.273's formula, and a third above it, for every U and V."""
    every = np.indices((256, 256), np.uint8)
    chance = np.random.default_rng(7)
    y = chance.integers(0, 256, (512, 512), np.uint8)
    planes = (y, every[0], every[1])

    found = to_rgb(planes, matrix, full_range).astype(np.float64)

    apart = found - exact(planes, Colours(matrix, full_range, Siting.LEFT))
    assert -3 < apart.min() <= apart.max() < 1 / 3


def test_the_integers_stay_what_they_are() -> None:
    """They decide bytes: another one would change what jobs give."""
    assert factors(Matrix.BT601, False) == (128, 9539, 13075, -3209, -6660, 16525)
    assert factors(Matrix.BT709, False) == (128, 9539, 14686, -1747, -4366, 17305)
    assert factors(Matrix.BT2020, False) == (128, 9539, 13752, -1535, -5328, 17545)
    assert factors(Matrix.BT601, True) == (0, 8192, 11485, -2819, -5850, 14516)
    assert factors(Matrix.BT709, True) == (0, 8192, 12901, -1534, -3835, 15201)
    assert factors(Matrix.BT2020, True) == (0, 8192, 12080, -1348, -4680, 15412)


@pytest.mark.parametrize(("down", "across"), [(1, 1), (1, 2), (2, 1)])
def test_chroma_of_other_sizes_is_that_of_its_pixels(down: int, across: int) -> None:
    y = noise(7, 9)[0]
    shape = (-(-7 // down), -(-9 // across))
    u, v = noise(*shape, seed=1)[0], noise(*shape, seed=2)[0]
    spread = [plane.repeat(down, 0).repeat(across, 1)[:7, :9] for plane in (u, v)]

    found = to_rgb((y, u, v), Matrix.BT601, False)

    one_by_one = [
        to_rgb((y[at], spread[0][at], spread[1][at]), Matrix.BT601, False)
        for at in ((slice(row, row + 1), slice(None)) for row in range(7))
    ]
    np.testing.assert_array_equal(found, np.concatenate(one_by_one))


def test_planes_of_different_pictures_are_refused() -> None:
    y, u, v = noise(8, 8)
    with pytest.raises(ValueError, match=r"planes of \(8, 8\), \(4, 4\) and \(3, 4\)"):
        to_rgb((y, u, v[:3]), Matrix.BT601, False)


# --- a batch ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(48, 64), (47, 63), (1, 1), (2, 3), (5, 2)])
def test_every_byte_is_the_stated_one(kind: Kind, size: tuple[int, int]) -> None:
    """Of every matrix and range, each frame by its own."""
    planes = noise(len(EVERY), 2, *size)

    found = ToRgb()({**batch_of(planes, EVERY, kind), "task": 7})

    assert list(found) == ["task", "top"]
    for at, (matrix, full_range, _) in enumerate(EVERY):
        of_one = [plane[at] for plane in planes]
        np.testing.assert_array_equal(back(found["top"])[at], to_rgb(of_one, matrix, full_range))


@pytest.mark.parametrize("kind", KINDS)
def test_channels_come_first_where_they_shall(kind: Kind) -> None:
    planes = noise(3, 6, 10)
    expected = to_rgb(planes, Matrix.BT709, False)

    found = back(ToRgb(channels="first")(batch_of(planes, [(1, 0, 0)] * 3, kind))["top"])

    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, np.moveaxis(expected, -1, -3))


@pytest.mark.parametrize("kind", KINDS)
def test_floats_are_levels_divided_by_255(kind: Kind) -> None:
    planes = noise(3, 6, 10)
    expected = to_rgb(planes, Matrix.BT709, False).astype(np.float32) / 255

    found = back(ToRgb(dtype="float32")(batch_of(planes, [(1, 0, 0)] * 3, kind))["top"])

    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("colours", [(9, 1, 2), [(9, 1, 2)] * 2, [[(9, 1, 2)] * 3] * 2])
def test_colours_are_those_of_frames_or_of_what_holds_them(colours: Any) -> None:
    planes = noise(2, 3, 4, 6)
    found = ToRgb()(batch_of(planes, colours, lambda array: array))["top"]
    np.testing.assert_array_equal(found, to_rgb(planes, Matrix.BT2020, True))


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_frames_of_any_size_stay_lists(kind: Kind) -> None:
    planes = [noise(2, 4, 6), noise(1, 7, 3)]
    batch: dict[str, Any] = {
        f"top.{name}": [kind(one[at]) for one in planes] for at, name in enumerate("yuv")
    }
    batch["top.colours"] = kind(np.array([(6, 0, 0), (1, 1, 0)], np.uint8))

    first, second = ToRgb()(batch)["top"]

    np.testing.assert_array_equal(back(first), to_rgb(planes[0], Matrix.BT601, False))
    np.testing.assert_array_equal(back(second), to_rgb(planes[1], Matrix.BT709, True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(8, 12), (7, 9), (1, 1), (2, 3)])
def test_chroma_is_interpolated_by_its_siting(kind: Kind, size: tuple[int, int]) -> None:
    """As the mean of its neighbours by their distances, in exact numbers."""
    planes = noise(len(EVERY), *size)
    found = back(ToRgb(chroma="bilinear")(batch_of(planes, EVERY, kind))["top"])

    for at, colours in enumerate(EVERY):
        y, u, v = (plane[at] for plane in planes)
        down = _linear(u.shape[0], size[0], 0.0 if colours.siting == Siting.TOPLEFT else 0.25)
        across = _linear(u.shape[1], size[1], 0.25 if colours.siting == Siting.CENTER else 0.0)
        spread = [down @ plane @ across.T for plane in (u, v)]
        assert np.abs(found[at] - _by_formula(y, *spread, colours)).max() < 0.6, colours


def _linear(before: int, after: int, shift: float) -> np.ndarray[Any, Any]:
    """Return what each sample of chroma adds to each pixel along a side."""
    found = np.zeros((after, before))
    for pixel in range(after):
        place = min(max(pixel / 2 - shift, 0), before - 1)
        for sample in range(before):
            found[pixel, sample] = max(0.0, 1 - abs(place - sample))
    return found


@pytest.mark.parametrize("device", [None, "simulated"])
def test_a_loader_makes_frames_as_they_arrive(device: str | None) -> None:
    """Of every batch, and beside the loop where there is a device."""
    planes = noise(4, 3, 10, 14)
    given = batch_of(planes, [(1, 0, 0)] * 4, lambda array: array)
    expected = np.moveaxis(to_rgb(planes, Matrix.BT709, False), -1, -3)
    simulated = SimulatedDevice() if device else None
    with ServedNode(batches=6, lanes=2, given=given) as node:
        options: dict[str, Any] = {"device": simulated} if device else {"as_numpy": True}
        frames = ToRgb(channels="first")
        with Loader(node.address, "code", rank=0, world_size=1, arrive=frames, **options) as loader:
            found = [back(batch["top"]) for batch in loader]
    assert len(found) == 6
    for pixels in found:
        np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("chroma", ["blocks", "bilinear"])
@pytest.mark.parametrize("kind", KINDS)
def test_where_chunks_end_changes_nothing(
    kind: Kind, chroma: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by a few frames at once."""
    batch = batch_of(noise(7, 12, 10), [EVERY[at] for at in range(7)], kind)
    convert = ToRgb(chroma=chroma, size=(5, 4))
    whole = back(convert(batch)["top"])

    monkeypatch.setattr(to_rgb_module, "CHUNK", 2 * 120)
    monkeypatch.setattr(to_rgb_module, "HOST_CHUNK", 2 * 120)
    monkeypatch.setattr(resizing, "CHUNK", 3 * 360)

    np.testing.assert_array_equal(back(convert(batch)["top"]), whole)


# --- other sizes ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(5, 6), (20, 3), (40, 40), (1, 1)])
def test_a_resized_pixel_is_the_mean_of_its_area(kind: Kind, size: tuple[int, int]) -> None:
    """By a triangle, written out for each side."""
    pixels = np.random.default_rng(3).integers(0, 256, (2, 17, 23, 3), np.uint8)
    down, across = _triangles(17, size[0]), _triangles(23, size[1])
    expected = np.einsum("ih,nhwc,jw->nijc", down, pixels.astype(np.float64), across)

    found = back(resized(kind(pixels), size))

    assert found.dtype == np.uint8
    assert np.abs(found - expected).max() < 1.01  # torch rounds between the two sides


def _triangles(before: int, after: int) -> np.ndarray[Any, Any]:
    found = np.zeros((after, before))
    half = max(1.0, before / after)
    for to in range(after):
        for of in range(before):
            apart = abs((of + 0.5) - (to + 0.5) * before / after)
            found[to, of] = max(0.0, 1 - apart / half)
        found[to] /= found[to].sum()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_made_and_then_resized(kind: Kind) -> None:
    planes = noise(2, 16, 24)
    expected = back(resized(kind(to_rgb(planes, Matrix.BT601, False)), (8, 8)))
    batch = batch_of(planes, [(6, 0, 0)] * 2, kind)

    found = back(ToRgb(size=(8, 8))(batch)["top"])

    np.testing.assert_array_equal(found, expected)


def test_the_same_size_changes_nothing() -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    assert resized(pixels, (4, 6)) is pixels


# --- what is refused ---


def test_what_is_none_of_it_is_said() -> None:
    with pytest.raises(InvalidRequest, match=r"ToRgb\(chroma='bicubic'\): .*blocks"):
        ToRgb(chroma="bicubic")
    with pytest.raises(InvalidRequest, match=r"dtype='int8'"):
        ToRgb(dtype="int8")
    with pytest.raises(InvalidRequest, match=r"no frames as planes.*input_ids"):
        ToRgb()({"input_ids": np.zeros(3)})
    planes = noise(2, 4, 6)
    batch = batch_of(planes, [(6, 0, 0)] * 2, lambda array: array)
    with pytest.raises(InvalidRequest, match=r"has top\.y and no top\.v, top\.colours"):
        ToRgb()({name: batch[name] for name in ("top.y", "top.u")})
    with pytest.raises(InvalidRequest, match=r"shapes \(2, 4, 6\), \(2, 2, 2\)"):
        ToRgb()(batch | {"top.u": planes[1][..., :2]})
    with pytest.raises(InvalidRequest, match="are uint8, uint8, int64, uint8"):
        ToRgb()(batch | {"top.v": planes[2].astype(np.int64)})
    with pytest.raises(InvalidRequest, match=r"matrix 2.*known are BT709 \(1\)"):
        ToRgb()(batch | {"top.colours": np.array([(2, 0, 0)] * 2, np.uint8)})
    with pytest.raises(InvalidRequest, match=r"size=\(0, 4\)"):
        resized(np.zeros((4, 6, 3), np.uint8), (0, 4))
    with pytest.raises(InvalidRequest, match=r"pixels are \(4, 6\)"):
        resized(np.zeros((4, 6), np.uint8), (2, 2))
    with pytest.raises(InvalidRequest, match="pixels are float32"):
        resized(np.zeros((4, 6, 3), np.float32), (2, 2))
