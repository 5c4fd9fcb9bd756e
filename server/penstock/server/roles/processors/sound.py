"""Sound to arrays of points: decoded, mixed and resampled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY
from fractions import Fraction
from numbers import Real
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from penstock.common.nearest import hint
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import Medium
from penstock.server.media.parts import MediumParts
from penstock.server.media.resample import (
    RESAMPLER_VERSION,
    UnusualRates,
    check_rates,
    resample,
    resampled_length,
)
from penstock.server.media.sound_decoding import (
    decode,
    decoding_bytes,
    load_soundfile,
)
from penstock.server.media.sound_header import SoundHeader, read_header
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.wire.errors import InvalidJob


class _Span(NamedTuple):
    """What an item wants of a file.

    Attributes:
        start: The first point, at the file's rate.
        stop: The point after the last.
        points: How many it gives, at the sample's rate.
        rate: That rate.
    """

    start: int
    stop: int
    points: int
    rate: int


SOME_RATE = 16_000
"""Points in a second of the silence that stands in for a sound of any rate."""


@declared
class SoundProcessor(MediaProcessor):
    """Turn an item's sound into `sound`, an array of points, with its `sample_rate`.

    A point is one value per channel. `wav` (PCM, float, A-law, mu-law), `flac`, `ogg` (Vorbis and
    Opus) and `mp3` are decoded by soundfile, which the extra `sound` installs. What is damaged, cut
    or not as long as its header says is a bad item, never silence.

    `sound` is of shape (n,), or with `channels: all` (n, channels). It is resampled by penstock's
    own filter, which keeps what is below 0.9 of half the lower rate, and weakens what would alias
    by 96 dB; its sums are exact, so processors and threads do not show.

    Sizes are told from headers: without a rule of tokens the points (the batcher then needs
    `length_key: sound`), with one the tokens. With a rule each sample also has `input_ids`, as many
    times `token_id` as it has tokens. It counts `seconds`, rounded up, and with a rule
    `media_tokens`.

    Args:
        column: The column that holds the sound: bytes, a dict with `bytes` or `path`, a path or a
            URL.
        columns: Other columns, such as a transcript, that go into the sample as they are.
        sample_rate: Points in a second, to which all sound is resampled. Half of it is the highest
            frequency that is left; work in a trainer, and bytes, grow with it. None = each file
            keeps its own.
        channels: `mono` is the mean of all channels; `all` keeps them, and files that differ in
            their number cannot be stacked.
        dtype: `float32`, from -1 to 1, or `int16`, half the bytes: rounded to the nearest and
            limited to -32,768 and 32,767.
        start_s: Where a sample begins in its file, in seconds; or the column that says it for each
            item. Of a `wav` and a `flac` only the span is read, an `ogg` and an `mp3` are decoded
            from their beginning.
        stop_s: Where it ends. A number means at most so much of each file; a column must not lead
            beyond the end of the file. None = the end.
        max_seconds: Longer sounds are bad items. None = `max_bytes` alone is a bound.
        max_bytes: The most memory that one sound may take while it is decoded; more is a bad item,
            which its header tells before memory is taken. Each worker may take so much.
        tokens_per_second: What a model makes of a second, such as 25: a rule of tokens.
        points_per_token: The rule in points at the sample's rate, such as 320, for models whose
            steps are a number of points.
        token_rounding: A last token that is only partly filled counts (`up`), as where a model pads
            sound, or not (`down`).
        token_id: What stands for a token of sound in `input_ids`.

    Raises:
        InvalidJob: A parameter has a value that cannot be, or two contradict each other.
    """

    type_name: ClassVar[str] = "sound"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = True

    column: str = "audio"
    _: KW_ONLY
    columns: Sequence[str] = ()
    sample_rate: Annotated[int | None, AtLeast(1, "points in a second")] = None
    channels: Annotated[str, OneOf(("mono", "all"))] = "mono"
    dtype: Annotated[str, OneOf(("float32", "int16"))] = "float32"
    start_s: float | str = 0
    stop_s: float | str | None = None
    max_seconds: Annotated[int | None, AtLeast(1)] = None
    max_bytes: Annotated[int, AtLeast(1)] = 256 << 20
    tokens_per_second: float | None = None
    points_per_token: Annotated[int | None, AtLeast(1)] = None
    token_rounding: Annotated[str, OneOf(("up", "down"))] = "up"
    token_id: Annotated[int, AtLeast(0)] = 0

    def __post_init__(self) -> None:
        """Check what no single bound says, and find out which columns sizes need."""
        if not isinstance(self.column, str) or not self.column:
            raise InvalidJob(
                f"column is {self.column!r}: name the column of the sound", key="column"
            )
        given = self.columns
        if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
            raise InvalidJob(
                f"columns is {self.columns!r}: give a list of names, such as [text]", key="columns"
            )
        if taken := [name for name in given if name in self._own_keys]:
            raise InvalidJob(
                f"columns names {taken[0]!r}, which this processor gives itself: leave it out",
                key="columns",
            )
        for name in ("start_s", "stop_s"):
            value = getattr(self, name)
            if (value is not None or name == "start_s") and not isinstance(value, str):
                self._check_number(name, value, "seconds, or the name of a column", zero=True)
        if self.tokens_per_second is not None:
            rate = self.tokens_per_second
            self._check_number("tokens_per_second", rate, "a number above 0", zero=False)
            if self.points_per_token is not None:
                raise InvalidJob(
                    "tokens_per_second and points_per_token are two rules for one number: give one",
                    key="points_per_token",
                )
        spans = [name for name in (self.start_s, self.stop_s) if isinstance(name, str)]
        self.size_columns = (self.column, *spans)  # type: ignore[misc]  # these, of this job
        self.reads_whole = self.start_s == 0 and self.stop_s is None  # type: ignore[misc]

    @staticmethod
    def _check_number(name: str, value: Any, what: str, *, zero: bool) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf or (value == 0 and not zero):
            raise InvalidJob(f"{name} is {value!r}: give {what}", key=name)

    @property
    def measures(self) -> Sequence[str]:
        """Return `seconds`, and `media_tokens` where there is a rule."""
        return ("seconds", "media_tokens") if self._has_tokens else ("seconds",)

    @property
    def _has_tokens(self) -> bool:
        return self.tokens_per_second is not None or self.points_per_token is not None

    @property
    def _own_keys(self) -> Sequence[str]:
        return ("sound", "sample_rate", *(["input_ids"] if self._has_tokens else []))

    def identity(self) -> dict[str, Any]:
        """Return what decides bytes: with the version of the filter, where it is used."""
        found = super().identity()
        return found if self.sample_rate is None else {**found, "resampler": RESAMPLER_VERSION}

    def check_identity(self) -> None:
        """Refuse a job where soundfile is missing, before any worker starts.

        Raises:
            InvalidJob: As `Role.check_identity`.
            MissingExtra: The package soundfile is not installed.
        """
        super().check_identity()
        load_soundfile()

    def setup(self) -> None:
        """Load the decoder.

        Raises:
            MissingExtra: The package soundfile is not installed.
        """
        load_soundfile()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a column that is named.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        named = [("column", self.column), *(("columns", name) for name in self.columns)]
        named += [(key, getattr(self, key)) for key in ("start_s", "stop_s")]
        for key, name in named:
            if isinstance(name, str) and name not in columns:
                raise InvalidJob(
                    f"processor.{key} names {name!r}, and the items have no such column: "
                    f"{hint(name, columns)}",
                    key=f"processor.{key}",
                    columns=list(columns),
                )

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the keys of samples, unless a subclass makes other ones."""
        if not self.keeps(SoundProcessor, "process"):
            return None
        return [*self._own_keys, *self.columns]

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the item's sound.

        Raises:
            ValueError: It has none.
        """
        return [_value(raw, self.column)]

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> SampleSizes:
        """Return tokens, or points without a rule; and what the sample counts.

        Raises:
            BadSound: As `process`, of what headers tell.
        """
        [medium] = media
        with _named(medium):
            span = self._span(raw, read_header(MediumParts(medium)))
        counts = self._counts(span.points, span.rate)
        return SampleSizes(counts[1] if self._has_tokens else span.points, counts)

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return the seconds of a sample, and its tokens where there is a rule."""
        return self._counts(len(sample["sound"]), sample["sample_rate"])

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return the sample.

        Raises:
            BadSound: The file is not sound, is damaged, or holds more than the job allows.
            ValueError: The item lacks a column, or one has a value that cannot be.
            MissingExtra: soundfile is not installed.
        """
        [medium] = context.media
        mono = self.channels == "mono"
        with _named(medium):
            parts = MediumParts(medium)
            if self.reads_whole:
                parts.whole()
            header = read_header(parts)
            span = self._span(raw, header)
            sound = decode(parts, header, span.start, span.stop, mono=mono)
        if span.rate != header.rate:
            sound = resample(sound, header.rate, span.rate)
        if self.dtype == "int16":
            sound = np.clip(np.rint(sound * np.float32(32768)), -32768, 32767).astype(np.int16)
        sample: Sample = {"sound": sound, "sample_rate": span.rate}
        if self._has_tokens:
            tokens = self._tokens(span.points, span.rate)
            sample["input_ids"] = np.full(tokens, self.token_id, np.int32)
        return {**sample, **{name: _value(raw, name, null=True) for name in self.columns}}

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Return elements `[start, stop)`: of a sample with tokens, these and their points."""
        found, sound = super().cut(sample, start, stop, size), sample["sound"]
        if self._has_tokens:
            per_token = self._points_of_token(sample["sample_rate"])
            last = len(sound) if stop == size else math.ceil(stop * per_token)
            found["sound"] = sound[math.ceil(start * per_token) : last]
        else:
            found["sound"] = sound[start:stop]
        return found

    def stand_in(self, empty: Sample, most: int | None) -> Sample:
        """Return silence of some rate: without one there are neither seconds nor tokens."""
        if "sample_rate" not in empty:  # of a subclass
            return empty
        return {**empty, "sample_rate": self.sample_rate or SOME_RATE}

    # --- how much ---

    def _span(self, raw: RawItem, header: SoundHeader) -> _Span:
        """Return what the item wants, after checking that this is there and not too much."""
        points = header.points
        start = self._place(raw, "start_s", header.rate, 0)
        stop = self._place(raw, "stop_s", header.rate, points)
        if stop > points and not isinstance(self.stop_s, str):
            stop = points
        if not start < stop <= points:
            raise BadSound(
                f"the item wants {start / header.rate:,.3f} s to {stop / header.rate:,.3f} s of "
                f"it, and it has {points / header.rate:,.3f} s"
            )
        mono, rate = self.channels == "mono", self.sample_rate or header.rate
        if self.max_seconds is not None and stop - start > self.max_seconds * header.rate:
            raise BadSound(
                f"it has {(stop - start) / header.rate:,.1f} s, and max_seconds is "
                f"{self.max_seconds:,}"
            )
        given = stop - start
        takes = decoding_bytes(header, start, stop, mono=mono)
        if rate != header.rate:
            check_rates(header.rate, rate)
            given = resampled_length(given, header.rate, rate)
            takes += 4 * given * (1 if mono else 2 * header.channels)  # apart, and together
        if takes > self.max_bytes:
            raise BadSound(
                f"it takes {takes:,} bytes to decode, and max_bytes is {self.max_bytes:,}: raise "
                "that, or take a span of it with stop_s"
            )
        return _Span(start, stop, given, rate)

    def _place(self, raw: RawItem, name: str, rate: int, otherwise: int) -> int:
        """Return a place in a file as a point: seconds to the nearest one."""
        seconds = getattr(self, name)
        if isinstance(seconds, str):
            column = seconds
            seconds = _value(raw, column, null=True)
            is_number = isinstance(seconds, Real) and not isinstance(seconds, bool)
            if seconds is not None and not (is_number and 0 <= float(seconds) < 1e9):
                raise ValueError(f"its {column!r} is {seconds!r}, where seconds are needed")
        return otherwise if seconds is None else round(float(seconds) * rate)

    def _points_of_token(self, rate: int) -> Fraction:
        if self.points_per_token is not None:
            return Fraction(self.points_per_token)
        # As it is written: 12.1 means 12.1, not the nearest binary fraction.
        return rate / Fraction(str(self.tokens_per_second))

    def _tokens(self, points: int, rate: int) -> int:
        exact = points / self._points_of_token(rate)
        return math.ceil(exact) if self.token_rounding == "up" else math.floor(exact)

    def _counts(self, points: int, rate: int) -> tuple[int, ...]:
        seconds = -(-points // rate)
        return (seconds, self._tokens(points, rate)) if self._has_tokens else (seconds,)


def _value(raw: RawItem, column: str, *, null: bool = False) -> Any:
    """Return an item's value of a column; None only where that is allowed."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"it is {type(raw).__name__}, and sound needs items with named columns")
    value = raw.get(column)
    if value is None and not (null and column in raw):
        said = "is null" if column in raw else f"is missing; it has {[str(key) for key in raw]}"
        raise ValueError(f"its column {column!r} {said}")
    return value


@contextmanager
def _named(medium: Medium) -> Iterator[None]:
    """Say in errors which file they are about."""
    try:
        yield
    except (BadSound, UnusualRates) as error:
        raise BadSound(f"{medium.name}: {error}") from error
