"""Sound at another sample rate: a filter of this project's own, the same to the bit everywhere.

Each output point is a sum of input points around it, weighted by a sinc under a Kaiser window:
Julius O. Smith, "Digital Audio Resampling" (https://ccrma.stanford.edu/~jos/resample/). The ratio
of two whole rates is L / M in lowest terms, so there are L sets of weights, used in turns (a
polyphase filter). Window and cutoff follow Kaiser's formulas: J. F. Kaiser, "Nonrecursive digital
filter design using the I0-sinh window function" (Proc. IEEE ISCAS, 1974).

The sums are exact, whatever adds them up. Points are rounded to multiples of 2^-25 of their peak,
weights to multiples of 2^-24, so products are whole numbers of one unit; no partial sum reaches
2^53 of these units, because the weights of a point are below 4 together. So a matrix product of
float64 never rounds, and its order, threads and fused operations cannot show. The one rounding
left is the last, to float32. What the two roundings of the input cost is 120 dB down.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

RESAMPLER_VERSION = 1
"""Part of the identity of a job that resamples: other weights or sums make it another number."""

ZERO_CROSSINGS = 64
"""Of the sinc, on each side. Twice as many halve the width of the transition for twice the work."""

ATTENUATION_DB = 96
"""By how much what would alias is weakened: 16 bits."""

_BETA = 0.1102 * (ATTENUATION_DB - 8.7)
_TRANSITION = (ATTENUATION_DB - 7.95) / (14.36 * 2 * ZERO_CROSSINGS)
_CUTOFF = 1 - _TRANSITION
"""Of the lower rate's Nyquist frequency: the transition ends there, and begins at 0.904 of it."""

_POINT_BITS, _WEIGHT_BITS = 25, 24

_MOST_WEIGHTS = 1 << 20
"""Of one ratio: 8 MiB, and 4 ratios are kept. The rates in use, from 8 to 192 kHz, have fewer."""

_CHUNK = 1 << 17
"""Input points that are worked on at once: with their windows 2 MiB, which stays in the caches."""

Floats = npt.NDArray[np.float32]


class UnusualRates(ValueError):
    """Two sample rates whose ratio takes a table of weights too large to make."""


class _Group(NamedTuple):
    """Outputs of a period that are made by one matrix product.

    Attributes:
        first: The first of them within the period.
        begins: The first input of their windows, counted from the period's first input.
        weights: float64 (inputs, outputs), whole numbers.
    """

    first: int
    begins: int
    weights: npt.NDArray[np.float64]


class _Filter(NamedTuple):
    """The weights of one ratio: they repeat after `outputs` outputs, which are `inputs` inputs."""

    inputs: int
    outputs: int
    groups: list[_Group]


def resampled_length(points: int, rate: int, new_rate: int) -> int:
    """Return how many points there are at another rate: rounded up."""
    return -(-points * new_rate // rate)


def check_rates(rate: int, new_rate: int) -> None:
    """Refuse rates that `resample` cannot do, before any memory is taken.

    Raises:
        UnusualRates: Their ratio has too many sets of weights.
    """
    _shape(rate, new_rate)


def resample(points: Floats, rate: int, new_rate: int) -> Floats:
    """Return sound at another sample rate.

    The first point stays where it is in time; before it and after the last there is silence. Each
    channel becomes what it becomes alone.

    Args:
        points: float32 (n,) or (n, channels), finite.
        rate: Its sample rate, in Hz.
        new_rate: The rate that it gets.

    Returns:
        float32 (m,) or (m, channels), m = ceil(n * new_rate / rate).

    Raises:
        UnusualRates: The ratio of the rates has too many sets of weights.
    """
    if rate == new_rate or not len(points):
        return points
    if points.ndim == 2:
        channels = [resample(points[:, each], rate, new_rate) for each in range(points.shape[1])]
        return np.stack(channels, axis=1)
    used = _filter(rate // (common := math.gcd(rate, new_rate)), new_rate // common)
    wanted = resampled_length(len(points), rate, new_rate)
    periods = -(-wanted // used.outputs)
    out = np.empty((periods, used.outputs), np.float32)
    exponent = _exponent(points)
    at_once = max(1, _CHUNK // used.inputs)
    for start in range(0, periods, at_once):
        count = min(at_once, periods - start)
        for group in used.groups:
            width, outputs = group.weights.shape
            begin = start * used.inputs + group.begins
            needed = _slice(points, begin, begin + (count - 1) * used.inputs + width, exponent)
            windows = np.lib.stride_tricks.sliding_window_view(needed, width)[:: used.inputs]
            # A copy: rows that overlap are nothing that BLAS takes.
            sums = np.ascontiguousarray(windows) @ group.weights
            sums *= 2.0 ** (exponent - _POINT_BITS - _WEIGHT_BITS)
            out[start : start + count, group.first : group.first + outputs] = sums
    return out.reshape(-1)[:wanted]


def _exponent(points: Floats) -> int:
    """Return the smallest power of two, 0 or more, that no point is above."""
    peak = max(float(points.max()), -float(points.min()))
    mantissa, exponent = math.frexp(peak)
    return max(0, exponent - (mantissa == 0.5))


def _slice(points: Floats, start: int, stop: int, exponent: int) -> npt.NDArray[np.float64]:
    """Return points `[start, stop)` as whole numbers; what lies outside is 0."""
    found = np.zeros(stop - start)
    within = slice(max(0, start), max(0, min(stop, len(points))))
    if within.start < within.stop:
        place = found[within.start - start : within.stop - start]
        np.multiply(points[within], 2.0 ** (_POINT_BITS - exponent), out=place)
        np.rint(place, out=place)
    return found


def _shape(rate: int, new_rate: int) -> tuple[int, int, int]:
    """Return inputs on each side of an output, outputs of a period, and outputs of a group.

    A group's windows overlap for the most part: as many outputs are made together as make the
    matrix twice as high as one window.
    """
    common = math.gcd(rate, new_rate)
    down, up = rate // common, new_rate // common
    half = -(-ZERO_CROSSINGS * max(up, down) // up)
    together = -(-2 * half * up // down)
    outputs = up * -(-together // up)
    if outputs * 4 * half > _MOST_WEIGHTS:
        raise UnusualRates(
            f"from {rate:,} Hz to {new_rate:,} Hz is {up:,} / {down:,}, which takes "
            f"{outputs * 32 * half >> 20:,} MiB of weights, and at most {_MOST_WEIGHTS >> 17} are "
            "taken: choose a sample_rate with a larger common factor, or leave such files out"
        )
    groups = -(-outputs // together)
    return half, outputs, -(-outputs // groups)


@lru_cache(maxsize=4)
def _filter(down: int, up: int) -> _Filter:
    half, outputs, at_once = _shape(down, up)
    groups = []
    for first in range(0, outputs, at_once):
        places = np.arange(first, min(first + at_once, outputs)) * down
        wholes = places // up  # the input before each output, or at it
        begins = int(wholes[0]) - half + 1
        inputs = begins + np.arange(wholes[-1] - wholes[0] + 2 * half)
        # Distances in units of 1 / up of an input are whole: no rounding here.
        distances = (places - inputs[:, None] * up) / up
        groups.append(_Group(first, begins, _weights(distances, min(1.0, up / down))))
    return _Filter(outputs // up * down, outputs, groups)


def _weights(distances: npt.NDArray[Any], ratio: float) -> npt.NDArray[np.float64]:
    """Return the weights of inputs so far from an output, as whole numbers of 2^-24."""
    crossings = distances * ratio  # in points of the lower rate
    inside = np.maximum(0.0, 1 - (crossings / ZERO_CROSSINGS) ** 2)
    window = np.where(inside > 0, np.i0(_BETA * np.sqrt(inside)), 0.0) / np.i0(_BETA)
    weights = ratio * _CUTOFF * np.sinc(_CUTOFF * crossings) * window
    return np.rint(weights * 2.0**_WEIGHT_BITS)
