"""Resampling: exact sums, lengths, what passes and what does not, beside SciPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from penstock.server.media import resample as module
from penstock.server.media.resample import UnusualRates, check_rates, resample, resampled_length
from sounds import RESAMPLED, resampling_digest
from sounds import RESAMPLED_RATES as PAIRS

RATES = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 88200, 96000, 192000]
every_pair = pytest.mark.parametrize(("rate", "new_rate"), PAIRS)


def tone(hertz: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)


def middle(points: np.ndarray) -> np.ndarray:
    return points[len(points) // 10 : -(len(points) // 10)].astype(np.float64)


def decibels(part: np.ndarray, whole: np.ndarray) -> float:
    return float(10 * np.log10((part**2).mean() / (whole**2).mean() + 1e-30))


@every_pair
def test_a_tone_below_the_transition_passes_as_it_is(rate: int, new_rate: int) -> None:
    """From a tenth to 0.9 of the lower rate's half: within 98 dB of the tone at the new rate."""
    for part in (0.1, 0.5, 0.85, 0.9):
        hertz = part * min(rate, new_rate) / 2
        found = resample(tone(hertz, rate).astype(np.float32), rate, new_rate)

        ideal = tone(hertz, new_rate)[: len(found)]
        assert decibels(middle(found - ideal), middle(ideal)) < -98, part


@pytest.mark.parametrize(("rate", "new_rate"), [pair for pair in PAIRS if pair[0] > pair[1]])
def test_a_tone_that_would_alias_is_gone(rate: int, new_rate: int) -> None:
    """From half the new rate on it is 96 dB weaker; as is what is made between input points."""
    for part in (1.005, 1.1, 1.3, 1.9):
        if (hertz := part * new_rate / 2) < rate / 2:
            points = tone(hertz, rate).astype(np.float32)
            found = resample(points, rate, new_rate)
            assert decibels(middle(found), middle(points)) < -96, part


@pytest.mark.parametrize(("rate", "new_rate"), [(44100, 16000), (16000, 48000), (44100, 48000)])
def test_it_is_close_to_scipys(rate: int, new_rate: int) -> None:
    """Where both pass a signal they agree in place and level; SciPy's is told to be as sharp."""
    from scipy.signal import firwin, resample_poly

    rng = np.random.default_rng(5)
    low = np.cumsum(np.convolve(rng.standard_normal(rate), np.hanning(40) / 40, "same")) * 1e-3
    points = (low - low.mean()).astype(np.float32)
    common = math.gcd(rate, new_rate)
    up, down = new_rate // common, rate // common
    window = firwin(2 * 64 * max(up, down) + 1, 0.952 / max(up, down), window=("kaiser", 9.66))

    theirs = resample_poly(points.astype(np.float64), up, down, window=window)
    ours = resample(points, rate, new_rate)

    assert len(ours) == len(theirs)
    assert decibels(middle(ours - theirs), middle(theirs)) < -96


@pytest.mark.parametrize("count", [1, 2, 3, 100, 127, 128, 129, 999, 1000, 1001])
def test_lengths_are_rounded_up(count: int) -> None:
    """ceil(n * new / old) for every length, with any ratio; and what is told is what is made."""
    for rate, new_rate in PAIRS:
        wanted = -(-count * new_rate // rate)

        found = resample(np.ones(count, np.float32), rate, new_rate)

        assert len(found) == wanted == resampled_length(count, rate, new_rate)
        assert found.dtype == np.float32


def obvious(points: np.ndarray, rate: int, new_rate: int, place: int) -> np.float32:
    """Return one output point as Python's whole numbers give it, from the docstring's sentences."""
    common = math.gcd(rate, new_rate)
    down, up = rate // common, new_rate // common
    ratio = min(1.0, up / down)
    half = math.ceil(64 * max(up, down) / up)
    exponent = max(0, math.ceil(math.log2(float(np.abs(points).max()))))
    beta, cutoff = 0.1102 * (96 - 8.7), 1 - (96 - 7.95) / (14.36 * 128)
    whole = place * down // up
    numbers = np.arange(max(0, whole - half + 1), min(len(points), whole + half + 1))
    crossings = (place * down - numbers * up) / up * ratio
    inside = np.maximum(0.0, 1 - (crossings / 64) ** 2)
    window = np.where(inside > 0, np.i0(beta * np.sqrt(inside)) / np.i0(beta), 0)
    weights = ratio * cutoff * np.sinc(cutoff * crossings) * window
    total = sum(
        round(float(point) * 2 ** (25 - exponent)) * round(float(weight) * 2**24)
        for point, weight in zip(points[numbers], weights, strict=True)
    )
    assert abs(total) < 2**53
    return np.float32(math.ldexp(total, exponent - 49))


@pytest.mark.parametrize(
    ("rate", "new_rate", "loudness"),
    [(44100, 16000, 0.01), (48000, 16000, 1.0), (16000, 48000, 5.0), (12000, 44100, 300.0)],
)
def test_the_sums_are_those_of_whole_numbers(rate: int, new_rate: int, loudness: float) -> None:
    """To the bit: so no order of adding, no thread and no fused operation can show."""
    rng = np.random.default_rng(7)
    points = (loudness * rng.uniform(-1, 1, 3000)).astype(np.float32)

    found = resample(points, rate, new_rate)

    for place in [0, 1, 2, 17, *rng.integers(0, len(found), 20), len(found) - 1]:
        assert found[place] == obvious(points, rate, new_rate, int(place)), place


def test_no_sum_can_round() -> None:
    """The weights of a point are below 4 together: 2 bits over 25 and 24 are less than 53."""
    for rate, new_rate in [*PAIRS, (192000, 8000), (8000, 192000), (11025, 12000)]:
        common = math.gcd(rate, new_rate)
        for group in module._filter.__wrapped__(rate // common, new_rate // common).groups:
            assert np.abs(group.weights).sum(axis=0).max() < 4 * 2**24
            assert (group.weights == np.rint(group.weights)).all()


def test_any_part_of_a_long_sound_is_the_same_as_alone() -> None:
    """How much is worked on at once does not show: far from its ends a part is as in the whole."""
    rng = np.random.default_rng(9)
    points = rng.uniform(-1, 1, 700_000).astype(np.float32)
    points[0] = points[-1] = 1.0  # both are scaled alike

    whole = resample(points, 48000, 44100)
    part = resample(points[320_000:], 48000, 44100)

    assert np.array_equal(whole[294_000 + 200 :], part[200:])


def test_silence_and_a_constant_stay() -> None:
    """Zeros are zeros, and a level is kept within a part in 10^5."""
    assert not resample(np.zeros(4410, np.float32), 44100, 16000).any()
    level = middle(resample(np.full(44100, 0.25, np.float32), 44100, 16000))
    assert np.abs(level - 0.25).max() < 2.5e-6


def test_every_pair_of_usual_rates_can_be_done_and_odd_ones_are_refused() -> None:
    """Before memory is taken: a header may say any rate."""
    for rate in RATES:
        for new_rate in RATES:
            check_rates(rate, new_rate)
    for rate, new_rate in ((999_983, 16000), (44101, 48000), (1, 48000)):
        with pytest.raises(UnusualRates, match=r"MiB of weights.*leave such files out"):
            check_rates(rate, new_rate)


def test_its_version_stands_for_its_bytes() -> None:
    """What fixed points become; another digest needs another RESAMPLER_VERSION."""
    assert resampling_digest() == RESAMPLED
