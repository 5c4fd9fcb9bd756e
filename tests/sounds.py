"""Sounds for tests: drawn, and written in every format that is read."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from penstock.server.media.resample import RESAMPLER_VERSION, resample

FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "wav of 8 bits": ("WAV", "PCM_U8"),
    "wav of 24 bits": ("WAV", "PCM_24"),
    "wav of 32 bits": ("WAV", "PCM_32"),
    "wav of floats": ("WAV", "FLOAT"),
    "wav of doubles": ("WAV", "DOUBLE"),
    "wav in A-law": ("WAV", "ALAW"),
    "wav in mu-law": ("WAV", "ULAW"),
    "extensible wav": ("WAVEX", "PCM_16"),
    "RF64": ("RF64", "PCM_24"),
    "flac": ("FLAC", "PCM_16"),
    "flac of 24 bits": ("FLAC", "PCM_24"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
"""Names of soundfile for each."""

RESAMPLED_RATES = [
    (44100, 16000),
    (48000, 16000),
    (16000, 48000),
    (44100, 48000),
    (48000, 44100),
    (8000, 16000),
    (22050, 16000),
    (11025, 32000),
    (96000, 11025),
]

RESAMPLED = (1, "4f5a6e6da59c64a1")
"""The version of the filter, and what `resampling_digest` gives with it."""


def resampling_digest() -> tuple[int, str]:
    """Return the filter's version, and what it makes of fixed points at all these rates."""
    points = (np.arange(4000, dtype=np.int64) * 7919 % 65536 - 32768).astype(np.float32) / 32768
    digest = hashlib.sha256()
    for rate, new_rate in RESAMPLED_RATES:
        digest.update(resample(points, rate, new_rate).astype("<f4").tobytes())
    return RESAMPLER_VERSION, digest.hexdigest()[:16]


def drawn(seconds: float, rate: int, channels: int = 1, seed: int = 0) -> npt.NDArray[np.float32]:
    """Return a tone that wanders, with some noise: float32 (n, channels), within -0.6 and 0.6."""
    rng = np.random.default_rng(seed)
    count = round(seconds * rate)
    phase = 7e-3 * np.cumsum(rng.standard_normal((count, channels)), axis=0)
    return (0.5 * np.sin(phase) + 0.02 * rng.standard_normal((count, channels))).astype(np.float32)


def written(points: npt.NDArray[Any], rate: int, kind: str, **options: Any) -> bytes:
    """Return the bytes of a file of one of `FORMATS`."""
    container, subtype = FORMATS[kind]
    file = io.BytesIO()
    with soundfile.SoundFile(
        file, "w", rate, points.shape[1], format=container, subtype=subtype, **options
    ) as out:
        for start in range(0, len(points), 1 << 14):  # libsndfile crashes if it gets much at once
            out.write(points[start : start + (1 << 14)])
    return file.getvalue()


def decoded(data: bytes) -> npt.NDArray[np.float32]:
    """Return what soundfile makes of a whole file, in one call and without a seek before it."""
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        found: npt.NDArray[np.float32] = file.read(dtype="float32", always_2d=True)
    return found


def audiodata() -> list[Path]:
    """Return the wav files of Python's own tests; none where they were left out."""
    import test

    return sorted((Path(test.__path__[0]) / "audiodata").glob("*.wav"))
