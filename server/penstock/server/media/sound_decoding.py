"""Sound decoded: what is in a file between two points, by libsndfile.

libsndfile gives what it finds, without a word about what is missing. So headers, pages and frames
are read here first, and what it gives must be as long as they say.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.files.filesystems import require
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.mp3_frames import for_decoder
from penstock.server.media.ogg_pages import check_pages
from penstock.server.media.parts import MediumParts, PartFile, failure
from penstock.server.media.sound_header import SoundHeader, check_blocks

SOUGHT = ("wav", "flac")
"""Formats of which a span is sought, and decoded in blocks.

Others are decoded from their beginning, and in one call: soundfile seeks after each read, and the
decoders of `mp3` and Vorbis give other points after a seek, to the same place, too.
"""

_BLOCK_BYTES = 1 << 18
"""Of float32 that is decoded at once, before channels are mixed."""

_LARGEST = 1 << 20
"""Of a value: some programs write 16 bits as floats of up to 32,768."""

Floats = npt.NDArray[np.float32]


def load_soundfile() -> Any:
    """Return the package soundfile, imported when it is first needed.

    Raises:
        MissingExtra: It is not installed, or finds no libsndfile.
    """
    return require("soundfile", extra="sound", who="the processor sound")


def decode(parts: MediumParts, header: SoundHeader, start: int, stop: int, *, mono: bool) -> Floats:
    """Return points `[start, stop)` of a file.

    Of a `wav` and a `flac` only these are read and decoded; see `SOUGHT`.

    Args:
        parts: The file.
        header: Its header.
        start: The first point.
        stop: The point after the last one; not beyond the end.
        mono: Mean of all channels.

    Returns:
        float32 (n, channels), n = stop - start; or (n,), where it is mono. Values of whole numbers
        are divided by the most negative one, so that they are from -1 to 1.

    Raises:
        BadSound: The file is damaged, cut, or holds other points than its header says.
        SourceUnavailable, SourceChanged, BadItem: As `Medium.read`.
        MissingExtra: soundfile is not installed.
    """
    if (start, stop) == (0, header.points):
        parts.whole()
    with _opened(parts, header) as file:
        if header.format in SOUGHT:
            out = _read_blocks(file, header, start, stop, mono=mono)
        else:
            found = np.empty((stop, header.channels), np.float32)
            if (count := len(file.read(out=found))) < stop:
                raise BadSound(_short(header, count))
            _check_values(found)
            out = _mean(found[start:]) if mono else found[start:]
    return out


def decoding_bytes(header: SoundHeader, start: int, stop: int, *, mono: bool) -> int:
    """Return the bytes that `decode` takes for what it gives, beside the file and a block."""
    given = 4 * (stop - start) * (1 if mono else header.channels)
    return given if header.format in SOUGHT else given * mono + 4 * stop * header.channels


def _read_blocks(file: Any, header: SoundHeader, start: int, stop: int, *, mono: bool) -> Floats:
    count = stop - start
    out = np.empty(count if mono else (count, header.channels), np.float32)
    block = _block(header)
    if start:
        file.seek(start)
    for at in range(0, count, len(block)):
        wanted = min(len(block), count - at)
        got = file.read(out=block[:wanted])
        if len(got) < wanted:
            raise BadSound(_short(header, start + at + len(got)))
        _check_values(got)
        out[at : at + wanted] = _mean(got) if mono else got
    return out


def _check_values(points: Floats) -> None:
    """Refuse what no sound has: values that are not finite, or far from -1 to 1."""
    if not -_LARGEST < points.min() <= points.max() < _LARGEST:  # which no NaN passes
        raise BadSound(f"it holds values that are not numbers, or beyond {_LARGEST:,}")


def _short(header: SoundHeader, found: int) -> str:
    said = f"its header says {header.points:,} points, and it gives {found:,}"
    return f"{said}: it was cut, or is damaged"


def _block(header: SoundHeader) -> Floats:
    points = max(1, _BLOCK_BYTES // (4 * header.channels))
    return np.empty((points, header.channels), np.float32)


def _mean(points: Floats) -> Floats:
    """Return the mean of the channels: summed in their order, by float64."""
    if points.shape[1] == 1:
        return points[:, 0]
    total = points[:, 0].astype(np.float64)
    for channel in range(1, points.shape[1]):
        total += points[:, channel]
    total /= points.shape[1]
    return total.astype(np.float32)


@contextmanager
def _opened(parts: MediumParts, header: SoundHeader) -> Iterator[Any]:
    """Open a file, or what a decoder shall see of it, and say what goes wrong.

    Of a `wav` it sees the points alone: there is one reader of its header, not two that may differ.
    """
    soundfile = load_soundfile()
    how: dict[str, Any] = {}
    seen: PartFile | io.BytesIO
    if header.format == "wav":
        if parts.size() < header.stop:
            width = (header.stop - header.start) // header.points
            raise BadSound(_short(header, max(0, parts.size() - header.start) // width))
        how = {
            "format": "RAW",
            "samplerate": header.rate,
            "channels": header.channels,
            "subtype": header.encoding,
            "endian": "LITTLE",
        }
        seen = parts.open(header.start, header.stop)
    elif header.format == "mp3":
        seen = io.BytesIO(for_decoder(parts.whole(), header.start))
    else:
        if header.format == "ogg":
            check_pages(parts.whole(), header.start)
        else:
            check_blocks(parts, header.start)
        seen = parts.open(header.start, parts.size())
    try:
        with soundfile.SoundFile(seen, **how) as file:
            given = (file.samplerate, file.channels)
            if given != (header.rate, header.channels):
                raise BadSound(
                    f"its header says {header.rate:,} Hz and {header.channels} channels, and its "
                    f"decoder {given[0]:,} Hz and {given[1]}"
                )
            if file.frames != header.points:
                raise BadSound(_short(header, file.frames))
            yield file
    except soundfile.LibsndfileError as error:
        said = error.error_string.rstrip(".")
        damaged = BadSound(f"it was cut, or is damaged; libsndfile says: {said}")
        raise failure(seen) or damaged from error
    except BadSound as error:
        if (away := failure(seen)) is None:
            raise
        raise away from error
