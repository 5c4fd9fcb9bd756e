"""Memory of pixels is used again when nobody looks at it any more, and never before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.server.media.video.pixel_memory import LEAST_BYTES, PixelMemory

SHAPE = (8, 480, 640, 3)


def address(array: np.ndarray) -> int:
    """Return where an array lies."""
    return int(array.__array_interface__["data"][0])


def test_memory_is_used_again() -> None:
    memory = PixelMemory()
    array = memory.empty(SHAPE)
    assert array.shape == SHAPE
    assert array.dtype == np.uint8
    assert array.flags.c_contiguous
    assert array.flags.writeable
    place = address(array)
    del array
    assert memory.idle_bytes >= np.prod(SHAPE)
    assert address(memory.empty(SHAPE)) == place


@pytest.mark.parametrize(
    "held",
    [
        lambda array: array[3],
        lambda array: array.view(),
        lambda array: memoryview(array),
        lambda array: np.frombuffer(array, np.uint8),
        lambda array: array.T[0],
        lambda array: np.rot90(array[0])[::2],
    ],
    ids=["part", "view", "memoryview", "buffer", "transposed", "turned"],
)
def test_whoever_holds_a_part_has_the_whole_for_itself(
    held: Callable[[np.ndarray], Any],
) -> None:
    memory = PixelMemory()
    array = memory.empty(SHAPE)
    array[:] = 7
    part = held(array)
    del array
    other = memory.empty(SHAPE)
    other[:] = 8
    assert (np.asarray(part) == 7).all()
    assert memory.idle_bytes == 0


def test_torch_holds_it_too() -> None:
    torch = pytest.importorskip("torch")
    memory = PixelMemory()
    tensor = torch.from_numpy(memory.empty(SHAPE))
    tensor.fill_(7)
    part = tensor[2:3]
    del tensor
    memory.empty(SHAPE)[:] = 8
    assert bool((part == 7).all())


def test_nearly_equal_sizes_share_memory() -> None:
    memory = PixelMemory()
    first = memory.empty((8, 480, 640, 3))
    place = address(first)
    del first
    assert address(memory.empty((8, 478, 640, 3))) == place


def test_what_is_kept_is_bounded_and_sizes_that_are_used_stay() -> None:
    memory = PixelMemory(8 << 20)
    small = [memory.empty((2 << 20,)) for _ in range(4)]
    del small
    assert memory.idle_bytes == 8 << 20
    large = memory.empty((6 << 20,))
    place = address(large)
    del large
    assert memory.idle_bytes == 8 << 20  # three of the small ones went
    assert address(memory.empty((6 << 20,))) == place


def test_small_arrays_and_those_of_no_bound_come_from_malloc() -> None:
    assert PixelMemory().empty((LEAST_BYTES - 1,)).flags.owndata
    assert PixelMemory().most_idle_bytes == 0
    assert PixelMemory(0).empty(SHAPE).flags.owndata


def test_arrays_may_end_in_any_thread() -> None:
    memory = PixelMemory(64 << 20)
    for _ in range(20):
        arrays = [memory.empty((1 << 20,)) for _ in range(8)]
        for number, array in enumerate(arrays):
            array[:] = number
        thread = threading.Thread(target=arrays.clear)
        thread.start()
        more = [memory.empty((1 << 20,)) for _ in range(8)]
        for number, array in enumerate(more):
            array[:] = 100 + number
        thread.join()
        assert [int(array[0]) for array in more] == list(range(100, 108))
        assert [int(array[-1]) for array in more] == list(range(100, 108))
        del more, array
    assert memory.idle_bytes <= 64 << 20
