"""Windows around a frame: offsets in seconds become frames of its episode, clamped at its ends.

As LeRobot's `delta_timestamps` are defined for its map-style reader: an offset of `d` seconds is
`round(d * fps)` frames; a frame before the episode's first or after its last is replaced by that
one, and marked as a pad.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.shown import shown
from penstock.server.sources.lerobot_info import LIST, TEXT, Feature, no_feature
from penstock.wire.errors import InvalidJob

PAD = "_is_pad"
"""What the key of a mask ends in: bool (T,), True where a window's frame is a pad."""

TOLERANCE_S = 1e-4
"""Of LeRobot's own reader."""

MAX_STEPS = 10_000
"""Frames of a window: more are a mistake, which would fill a node's memory."""

_KEY = "delta_timestamps"


def frames_of(
    given: Any, features: Mapping[str, Feature], fps: float, tolerance_s: float
) -> dict[str, NDArray[np.int64]]:
    """Return the offsets of windows in frames: int64 (T,) for each feature that has one.

    Args:
        given: Seconds, by feature.
        features: The features that there are.
        fps: Frames a second.
        tolerance_s: How far an offset may lie from a frame.

    Raises:
        InvalidJob: A feature is not there or has no windows, or an offset is none or lies between
            two frames.
    """
    if not isinstance(given, Mapping):
        raise _invalid(f"{_KEY} is {shown(given)}: give seconds by feature, {{action: [0, 0.1]}}")
    found = {}
    for name, seconds in given.items():
        feature = features.get(name)
        if feature is None:
            raise no_feature(_KEY, name, features)
        if feature.kind in (TEXT, LIST):
            of = [each.name for each in features.values() if each.kind not in (TEXT, LIST)]
            raise _invalid(
                f"{_KEY} names {name!r}, whose values have no fixed shape and cannot be stacked: "
                f"{', '.join(of)} can"
            )
        found[name] = _frames(name, seconds, fps, tolerance_s)
    return found


def _frames(name: str, seconds: Any, fps: float, tolerance_s: float) -> NDArray[np.int64]:
    if isinstance(seconds, str) or not isinstance(seconds, Sequence) or not seconds:
        raise _invalid(f"{_KEY} of {name!r} is {shown(seconds)}: give a list of seconds")
    if len(seconds) > MAX_STEPS:
        raise _invalid(f"{_KEY} of {name!r} has {len(seconds)} offsets: give at most {MAX_STEPS}")
    offsets = []
    for offset in seconds:
        if isinstance(offset, bool) or not isinstance(offset, int | float):
            raise _invalid(f"{_KEY} of {name!r} has {shown(offset)}: give seconds")
        if not abs(offset * fps) < 2**31:  # infinity and NaN as well
            raise _invalid(f"{_KEY} of {name!r} has {offset} s, which no episode lasts")
        steps = round(offset * fps)
        if abs(offset * fps - steps) / fps > tolerance_s:
            low = math.floor(offset * fps)
            raise _invalid(
                f"{_KEY} of {name!r} has {offset} s, which lies between two frames at {fps:g} "
                f"frames a second: give {low / fps:.6g} or {(low + 1) / fps:.6g}, or a larger "
                f"tolerance_s than {tolerance_s:g}"
            )
        offsets.append(steps)
    return np.array(offsets, np.int64)


def _invalid(said: str) -> InvalidJob:
    return InvalidJob(said, key=f"source.{_KEY}")


def window(
    frame: int, length: int, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the frames of a window, and which of them are pads.

    Args:
        frame: The frame that the window is around, from 0 on.
        length: How many frames its episode has.
        offsets: int64 (T,).

    Returns:
        int64 (T,), each within the episode; bool (T,), True where it was clamped.
    """
    wanted = offsets + frame
    clamped = np.clip(wanted, 0, length - 1)
    return clamped, clamped != wanted
