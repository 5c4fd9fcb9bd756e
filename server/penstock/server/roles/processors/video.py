"""Frames of videos to pixels: chosen by number, time, rate or count, decoded and resized."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.common.nearest import hint
from penstock.server.core.shown import shown
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.geometry import Extent
from penstock.server.media.medium import Medium
from penstock.server.media.resize import FILTERS, KERNELS
from penstock.server.media.video.decoded_frame import DecodedFrame
from penstock.server.media.video.frame_arrays import planes_of
from penstock.server.media.video.frame_choice import by_count, by_rate
from penstock.server.media.video.parts_ahead import parts_ahead
from penstock.server.media.video.video_decoders import (
    PYAV,
    TORCHCODEC,
    VIDEO_DECODERS,
    load_decoder,
)
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import AtLeast, NumberUpTo, OneOf, declared
from penstock.server.roles.processors.frame_resizing import (
    FRAME_RESIZES,
    PIXELS,
    RGB24,
    YUV420P,
    FrameResizing,
)
from penstock.server.roles.processors.frames_processor import (
    ERROR,
    ON_BROKEN_TAIL,
    FramesProcessor,
    check_tail,
)
from penstock.server.roles.processors.picture_sides import Sides
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.server.roles.source import Source
from penstock.wire.colours import COLOURS, PLANES
from penstock.wire.errors import InvalidJob

KEY = "video"
"""What samples call their pixels."""

NUMBERS, TIMES = "frame_numbers", "frame_times"


@dataclass(frozen=True)
class _Wanted:
    """What an item wants of its video.

    Attributes:
        index: Of the video.
        numbers: Which frames.
        size: Height and width of what becomes of them.
    """

    index: VideoIndex
    numbers: list[int]
    size: Extent


@declared
class VideoProcessor(FramesProcessor):
    """Make `video` of a video's frames: uint8 (frames, height, width, 3), RGB.

    H.264, HEVC, VP9, AV1, MPEG-4 and MJPEG in mp4, mkv, webm and avi are decoded by PyAV, which the
    extra `video` installs, or by torchcodec. A frame's number is its place in the order in which
    frames are shown, from 0; what it is does not depend on what else is read. Frames are turned as
    the file says. Which frames an item has is said by `numbers`, `times`, `fps` or `nframes`;
    without any, it has all. Beside them the sample has `frame_numbers`, int64 (frames,), and
    `frame_times`, float64 (frames,): when each is shown, in seconds of the file's clock.

    Its size is its number of frames, known from an index of the file, which is made by reading it
    once without decoding it, and kept for later starts. Beside it counts `frames` and `pixels`.

    Args:
        column: The column that holds the video: its bytes, or what names its file.
        columns: Other columns, such as a label, that go into the sample as they are.
        numbers: Numbers of frames: a list, or the column that has one for each item. A number that
            the video does not have makes a bad item.
        times: Times in seconds of the file's clock: a list, or the column that has one. The frame
            that is shown nearest is taken.
        fps: Frames in a second: those that are shown nearest to the first one's time and each
            1 / fps after it.
        nframes: How many frames, evenly from the first to the last. A video with fewer is a bad
            item.
        tolerance_s: How far from a time of `times` a frame may be shown; else the item is bad.
            Half the distance of two frames takes any time; LeRobot's readers have 0.0001.
        pixels: `rgb24`; or `yuv420p`, the planes as they were decoded, in half the bytes:
            `video.y` (frames, height, width), `video.u` and `video.v`, of half the sides, rounded
            up, and `video.colours` (frames, 3), uint8. `penstock.client.media.ToRgb` makes of them,
            on a device or not, what `rgb24` gives.
        resize: `exact`: to `resize_to`, whatever the ratio. `shortest` and `longest`: so that this
            side has `resize_to`. None = not resized. Only RGB is resized here.
        resize_to: Pixels of both sides, or [height, width].
        kernel: What resizes, as of the processor `image`.
        filter: `bilinear` or `bicubic`, which is sharper and takes longer.
        decoder: `pyav`; or `torchcodec`, which a job names where a trainer was used to it: RGB by
            the FFmpeg that is installed, of files whose packets say when each frame is shown. Its
            wheel has to fit torch, and no extra installs it. It patches damaged pictures silently,
            in ways that may depend on what was decoded before: files have to be whole.
        on_broken_tail: Of a file that was cut off, and can be read up to there: `error`, it is a
            bad item; `keep`, it has the frames up to there, and none after a gap.
        max_bytes: The most bytes of the frames of a sample, as they are decoded and as they are
            given; more is a bad item, which the index tells before memory is taken.
        decoders: The most videos that a worker keeps open. More save opening them anew where draws
            mix many files; each takes some megabytes. It changes no batch.
        decoder_bytes: The most bytes that these take, by estimate.
        frame_bytes: The most bytes of decoded frames that a worker holds for items that follow. It
            pays where several items want frames between the same key frames; 0 where each wants all
            frames of its own file. It changes no batch.

    Raises:
        InvalidJob: A parameter makes no sense, or two of them do not go together.
    """

    type_name: ClassVar[str] = "video"
    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True
    reads_whole: ClassVar[bool] = False

    column: str = "video"
    _: KW_ONLY
    columns: Sequence[str] = ()
    numbers: str | Sequence[int] | None = None
    times: str | Sequence[float] | None = None
    fps: Annotated[float | None, NumberUpTo(1000)] = None
    nframes: Annotated[int | None, AtLeast(1)] = None
    tolerance_s: Annotated[float, NumberUpTo(1e9, zero=True)] = 1e-4
    pixels: Annotated[str, OneOf(PIXELS)] = RGB24
    resize: Annotated[str | None, OneOf(FRAME_RESIZES)] = None
    resize_to: Annotated[int | Sequence[int] | None, Sides()] = None
    kernel: Annotated[str, OneOf(KERNELS)] = "pillow"
    filter: Annotated[str, OneOf(FILTERS)] = "bilinear"
    decoder: Annotated[str, OneOf(VIDEO_DECODERS)] = PYAV
    on_broken_tail: Annotated[str, OneOf(ON_BROKEN_TAIL)] = ERROR
    max_bytes: Annotated[int, AtLeast(1)] = 1 << 30
    decoders: Annotated[int, AtLeast(1)] = 64
    decoder_bytes: Annotated[int, AtLeast(1)] = 1 << 29
    frame_bytes: Annotated[int, AtLeast(0)] = 1 << 27

    def __post_init__(self) -> None:
        """Check what no single bound says."""
        self._check_columns()
        self._check_choice()
        self._resizing = FrameResizing(
            self.resize, self.resize_to, self.kernel, self.filter, self.pixels
        )
        check_decoder(self.decoder, self.pixels)
        self.frames = VideoFrames(self.decoders, self.decoder_bytes, self.frame_bytes, self.decoder)
        self.indexes = VideoIndexes()
        named = [name for name in (self.numbers, self.times) if isinstance(name, str)]
        self.size_columns = (self.column, *named)  # type: ignore[misc]  # these, of this job

    @property
    def measures(self) -> Sequence[str]:
        """Return `frames` and `pixels`."""
        return ("frames", "pixels")

    @property
    def _own_keys(self) -> Sequence[str]:
        if self.pixels == RGB24:
            return (KEY, NUMBERS, TIMES)
        return (*(KEY + end for end in (*PLANES, COLOURS)), NUMBERS, TIMES)

    def least_sample_bytes(self, source: Source) -> int:
        """Return what pixels take where the job alone says how many there are."""
        if (size := self._resizing.exact) is None:
            return 0
        lists = [each for each in (self.numbers, self.times) if isinstance(each, list | tuple)]
        frames = self.nframes or (len(lists[0]) if lists else 1)
        return frames * size.height * size.width * 3

    def check_identity(self) -> None:
        """Refuse a job where its decoder is missing, before any worker starts.

        Raises:
            InvalidJob: As `Role.check_identity`.
            MissingExtra: A package is not installed, or cannot be used.
        """
        super().check_identity()
        load_decoder(self.decoder)

    def setup(self) -> None:
        """Load the decoder, and what resizes.

        Raises:
            MissingExtra: A package is not installed.
        """
        load_decoder(self.decoder)
        self._resizing.load()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a column that is named.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        named = [("column", self.column), *(("columns", name) for name in self.columns)]
        named += [(key, getattr(self, key)) for key in ("numbers", "times")]
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
        if not self.keeps(VideoProcessor, "process"):
            return None
        return [*self._own_keys, *self.columns]

    def parts_read(
        self, raw: RawItem, media: Sequence[Medium], *, for_size: bool
    ) -> Sequence[Sequence[tuple[int, int]] | None]:
        """Return where the frames lie that an item wants, as far as its video has an index."""
        [medium] = media

        def numbers(index: VideoIndex) -> list[int]:
            return self._numbers(raw, index)

        return [parts_ahead(medium, self.indexes, self.frames, numbers, for_size=for_size)]

    # --- one item ---

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the item's video.

        Raises:
            ValueError: It has none.
        """
        return [_value(raw, self.column)]

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> SampleSizes:
        """Return how many frames the sample has, by the index of its video.

        Raises:
            BadVideo: As `process`, of what the index tells.
        """
        [medium] = media
        with _named(medium):
            wanted = self._wanted(raw, medium)
        counts = self._counts(len(wanted.numbers), *wanted.size)
        return SampleSizes(counts[0], counts)

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return the frames of a sample, and their pixels."""
        return self._counts(*sample[self._own_keys[0]].shape[:3])

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return the sample.

        Raises:
            BadVideo: The file is not a video, is damaged, lacks a frame that is wanted, or holds
                more than the job allows.
            ValueError: The item lacks a column, or one has a value that cannot be.
            MissingExtra: PyAV is not installed.
        """
        [medium] = context.media
        with _named(medium):
            wanted = self._wanted(raw, medium)
            frames = self.frames.frames(medium, wanted.index, wanted.numbers)
            sample = self._pixels(frames, wanted)
        sample[NUMBERS] = np.array(wanted.numbers, np.int64)
        sample[TIMES] = wanted.index.times_s[sample[NUMBERS]]
        return {**sample, **{name: _value(raw, name, null=True) for name in self.columns}}

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Return frames `[start, stop)`."""
        found = super().cut(sample, start, stop, size)
        return {**found, **{key: sample[key][start:stop] for key in self._own_keys}}

    # --- which frames ---

    def _wanted(self, raw: RawItem, medium: Medium) -> _Wanted:
        """Return what the item wants, after checking that this is there and not too much."""
        index = self.indexes.of(medium)
        check_tail(index, self.on_broken_tail)
        numbers = self._numbers(raw, index)
        if not numbers:
            raise BadVideo("the item wants no frame of it")
        size = self._resizing.size_of_frames(index, medium.name)
        decoded = len(set(numbers)) * index.width * index.height * 3
        takes = decoded + len(numbers) * size.height * size.width * 3
        if takes > self.max_bytes:
            raise BadVideo(
                f"{len(numbers):,} frames of {index.width} x {index.height} pixels take "
                f"{takes:,} bytes, and max_bytes is {self.max_bytes:,}: raise that, or take fewer"
            )
        return _Wanted(index, numbers, size)

    def _numbers(self, raw: RawItem, index: VideoIndex) -> list[int]:
        if self.numbers is not None:
            found = [int(each) for each in self._listed(raw, "numbers", self.numbers, int)]
            for number in found:
                index.check_number(number)
            return found
        if self.times is not None:
            listed = self._listed(raw, "times", self.times, Real)
            return [index.number_at(float(each), self.tolerance_s) for each in listed]
        if self.fps is not None:
            return by_rate(index, self.fps)
        if self.nframes is not None:
            return by_count(index, self.nframes)
        return [*range(len(index))]

    def _listed(
        self, raw: RawItem, name: str, given: str | Sequence[Any], kind: type
    ) -> Sequence[Any]:
        if not isinstance(given, str):
            return given
        value = _value(raw, given)
        if isinstance(value, np.ndarray) and value.ndim == 1:
            value = value.tolist()
        if not isinstance(value, list | tuple) or not all(_is(kind, each) for each in value):
            raise ValueError(
                f"its {given!r} is {shown(value)}, where a list of frames' {name} is needed"
            )
        return value

    def begins(self, raw: RawItem, media: Sequence[Medium]) -> tuple[str, float]:
        """Return the item's video, and the least of the numbers or times that the item says."""
        column = self.numbers if self.numbers is not None else self.times
        value = raw.get(column) if isinstance(column, str) and isinstance(raw, Mapping) else None
        numbers = value if isinstance(value, list | tuple | np.ndarray) else ()
        is_known = len(numbers) and all(_is(Real, each) for each in numbers)
        return media[0].name, float(min(numbers)) if is_known else 0.0

    # --- pixels ---

    def _pixels(self, frames: Sequence[DecodedFrame], wanted: _Wanted) -> Sample:
        if self.pixels == YUV420P:
            planes = planes_of(frames, wanted.index, self.frames.pixels)
            return {KEY + end: plane for end, plane in planes.items()}
        return {KEY: self._resizing.frames(frames, wanted.size, self.frames.pixels)}

    def _counts(self, frames: int, height: int, width: int) -> tuple[int, int]:
        return frames, frames * height * width

    # --- what parameters say together ---

    def _check_columns(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidJob(
                f"column is {self.column!r}: name the column of the video", key="column"
            )
        given = self.columns
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise InvalidJob(
                f"columns is {given!r}: give a list of names, such as [label]", key="columns"
            )
        if taken := [name for name in given if name in self._own_keys]:
            raise InvalidJob(
                f"columns names {taken[0]!r}, which this processor gives itself: leave it out",
                key="columns",
            )

    def _check_choice(self) -> None:
        ways = [
            name
            for name in ("numbers", "times", "fps", "nframes")
            if getattr(self, name) is not None
        ]
        if len(ways) > 1:
            raise InvalidJob(
                f"{ways[0]} and {ways[1]} both say which frames: give one", key=ways[1]
            )
        for name, kind, what in (
            ("numbers", int, "whole numbers from 0, such as [0, 15, 30]"),
            ("times", Real, "seconds, such as [0.0, 0.5]"),
        ):
            value = getattr(self, name)
            if value is None or (isinstance(value, str) and value):
                continue
            is_list = isinstance(value, list | tuple) and len(value) > 0
            if not is_list or not all(_is(kind, each) and each >= 0 for each in value):
                raise InvalidJob(
                    f"{name} is {shown(value)}: give the column that has them, or {what}", key=name
                )


def check_decoder(decoder: str, pixels: str) -> None:
    """Refuse planes of a decoder that gives none.

    Raises:
        InvalidJob: `pixels: yuv420p` with torchcodec.
    """
    if decoder == TORCHCODEC and pixels == YUV420P:
        raise InvalidJob(
            "pixels is 'yuv420p' with decoder: torchcodec, which gives RGB alone: take decoder: "
            "pyav, or pixels: rgb24",
            key="pixels",
        )


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind | np.integer if kind is int else kind) and not isinstance(
        value, bool
    )


def _value(raw: RawItem, column: str, *, null: bool = False) -> Any:
    """Return an item's value of a column; None only where that is allowed."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"it is {type(raw).__name__}, and videos need items with named columns")
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
    except BadVideo as error:
        raise BadVideo(f"{medium.name}: {error}") from error
