"""Frames of robots' episodes: what their cameras show, decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from penstock.common.nearest import hint
from penstock.server.core.shown import shown
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.geometry import Extent
from penstock.server.media.image_header import parse_header
from penstock.server.media.medium import Medium
from penstock.server.media.picture import Decoding
from penstock.server.media.resize import FILTERS, KERNELS
from penstock.server.media.video.frame_arrays import planes_of
from penstock.server.media.video.parts_ahead import parts_ahead
from penstock.server.media.video.video_decoders import PYAV, VIDEO_DECODERS, load_decoder
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.processors.frame_resizing import (
    FRAME_RESIZES,
    PIXELS,
    RGB24,
    FrameResizing,
)
from penstock.server.roles.processors.frames_processor import FramesProcessor
from penstock.server.roles.processors.picture_sides import Sides
from penstock.server.roles.processors.video import check_decoder
from penstock.server.roles.samples import RawItem, Sample
from penstock.server.roles.source import Source
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged

PAD = "_is_pad"
_REFERENCE = ("bytes", "path", "dir", "offset", "length")


class CameraView(NamedTuple):
    """What a camera shows in an item: some frames of a video, or pictures.

    Attributes:
        camera: The key.
        references: What names the media: one video, or each picture.
        times: When in the video the frames are shown, in seconds; None = it is pictures.
        is_window: Whether the item has a window of it.
        where: What errors name: the episode and its frames.
    """

    camera: str
    references: Sequence[Any]
    times: Sequence[float] | None
    is_window: bool
    where: str


@declared
class RobotProcessor(FramesProcessor):
    """Decode what cameras show: uint8 (height, width, 3), RGB, or (T, height, width, 3) of windows.

    For items of the source `lerobot`: all their other keys go into the sample as they are. Frames
    of videos are found by their times, and each is the frame that is shown then, whatever was
    decoded before. Where many items are processed together, those of a file are decoded in one
    pass; videos stay open, and frames that windows share are decoded once, as far as the bounds
    below allow. These change no batch.

    Args:
        cameras: Which cameras to decode; None = all of an item. Others go into the sample as the
            item has them.
        pixels: `rgb24`; or `yuv420p`, the planes of videos as they were decoded, in half the bytes:
            in place of a camera `CAMERA.y`, `CAMERA.u`, `CAMERA.v` and `CAMERA.colours`, as of the
            processor `video`.
        resize: `exact`: to `resize_to`, whatever the ratio, so that all cameras have one size.
            `shortest` and `longest`: so that this side of each camera has `resize_to`. None = not
            resized. As of the processor `video`, to the byte; pictures that lie in the table, too.
            Only RGB is resized here.
        resize_to: Pixels of both sides, or [height, width].
        kernel: What resizes, as of the processor `image`.
        filter: `bilinear` or `bicubic`, which is sharper and takes longer.
        decoder: `pyav` or `torchcodec`, as of the processor `video`.
        tolerance_s: How far from the wanted time a frame may be shown, in seconds; else the item is
            bad. LeRobot's own reader has 0.0001, too.
        decoders: The most videos that a worker keeps open. More save opening them anew where draws
            mix many episodes; each takes some megabytes, and a handle.
        decoder_bytes: The most bytes that these take, by estimate.
        frame_bytes: The most bytes of decoded frames that a worker keeps for windows that overlap.
        max_pixels: The most pixels of a picture that lies in the table; one with more is a bad
            item.

    Raises:
        InvalidJob: A parameter makes no sense, or two of them do not go together.
    """

    type_name: ClassVar[str] = "robot"
    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True
    reads_whole: ClassVar[bool] = False

    _: KW_ONLY
    cameras: Sequence[str] | None = None
    pixels: Annotated[str, OneOf(PIXELS)] = RGB24
    resize: Annotated[str | None, OneOf(FRAME_RESIZES)] = None
    resize_to: Annotated[int | Sequence[int] | None, Sides()] = None
    kernel: Annotated[str, OneOf(KERNELS)] = "pillow"
    filter: Annotated[str, OneOf(FILTERS)] = "bilinear"
    decoder: Annotated[str, OneOf(VIDEO_DECODERS)] = PYAV
    tolerance_s: float = 1e-4
    decoders: Annotated[int, AtLeast(1)] = 64
    decoder_bytes: Annotated[int, AtLeast(1)] = 512 << 20
    frame_bytes: Annotated[int, AtLeast(0)] = 256 << 20
    max_pixels: Annotated[int, AtLeast(1)] = 64 << 20

    def __post_init__(self) -> None:
        if isinstance(self.cameras, str):
            raise InvalidJob(f"cameras is {self.cameras!r}: give a list of names", key="cameras")
        tolerance_s = self.tolerance_s
        is_number = isinstance(tolerance_s, int | float) and not isinstance(tolerance_s, bool)
        if not is_number or not 0 <= tolerance_s < 1:
            raise InvalidJob(
                f"tolerance_s is {shown(tolerance_s)}: give seconds, from 0 to less than 1",
                key="tolerance_s",
            )
        self._resizing = FrameResizing(
            self.resize, self.resize_to, self.kernel, self.filter, self.pixels
        )
        check_decoder(self.decoder, self.pixels)
        self.frames = VideoFrames(self.decoders, self.decoder_bytes, self.frame_bytes, self.decoder)
        self.indexes = VideoIndexes()
        self._pictures = Decoding("jpeg", (255, 255, 255), self.max_pixels, 4 * self.max_pixels)

    def least_sample_bytes(self, source: Source) -> int:
        """Return what the pixels of cameras take whose shape the source declares."""
        pixels = 0
        for name, (frames, height, width) in source.shown_frames().items():
            if self.cameras is not None and name not in self.cameras:
                continue
            try:
                size = self._resizing.size_of(Extent(height, width), name)
            except BadPicture:
                continue  # if its frames are as declared, each is a bad item, by name
            pixels += frames * size.height * size.width
        return 3 * pixels if self.pixels == RGB24 else 3 * pixels // 2

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
            MissingExtra: A package is not installed, or cannot be used.
        """
        load_decoder(self.decoder)
        self._resizing.load()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a camera that is named.

        Raises:
            InvalidJob: Names the keys that there are.
        """
        for camera in self.cameras or ():
            if camera not in columns:
                raise InvalidJob(
                    f"processor.cameras names {camera!r}, and the items have no such key: "
                    f"{hint(camera, columns)}",
                    key="processor.cameras",
                )

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the keys of items, which samples have too, where planes have none of their own."""
        return list(columns) if columns is not None and self.pixels == RGB24 else None

    # --- what an item shows ---

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the media of all cameras, in the order of the item's keys.

        Raises:
            ValueError: It is not an item of a source of episodes.
        """
        return [reference for each in self._shown(raw) for reference in each.references]

    def _shown(self, raw: RawItem) -> list[CameraView]:
        if not isinstance(raw, Mapping):
            raise ValueError(
                f"the item is of type {type(raw).__name__}: the processor robot takes those of the "
                "source lerobot"
            )
        found = []
        for name, value in raw.items():
            if self.cameras is not None and name not in self.cameras:
                continue
            is_window = name + PAD in raw
            if isinstance(value, Mapping) and "times" in value:
                where = f"episode {value.get('episode')}, frame "
                where += ", ".join(map(str, value.get("frames", ())))
                reference = {key: value[key] for key in _REFERENCE if key in value}
                found.append(CameraView(name, [reference], value["times"], is_window, where))
            elif _is_picture(value):
                found.append(CameraView(name, [value], None, is_window, ""))
            elif isinstance(value, list) and value and all(map(_is_picture, value)):
                found.append(CameraView(name, value, None, is_window, ""))
            elif self.cameras is not None:
                raise ValueError(f"{name!r} is {shown(value)}: it is not a camera")
        return found

    def parts_read(
        self, raw: RawItem, media: Sequence[Medium], *, for_size: bool
    ) -> Sequence[Sequence[tuple[int, int]] | None]:
        """Return where the frames lie that cameras show, as far as their videos have an index."""
        found: list[Sequence[tuple[int, int]] | None] = []
        own = iter(media)
        for each in self._shown(raw):
            found += [self._parts(each, next(own), for_size) for _ in each.references]
        return found

    def _parts(
        self, each: CameraView, medium: Medium, for_size: bool
    ) -> Sequence[tuple[int, int]] | None:
        if (times := each.times) is None:
            return None

        def numbers(index: VideoIndex) -> list[int]:
            return self._numbers(times, index)

        return parts_ahead(medium, self.indexes, self.frames, numbers, for_size=for_size)

    def _numbers(self, times: Sequence[float], index: VideoIndex) -> list[int]:
        return [index.number_at(time_s, self.tolerance_s) for time_s in times]

    def begins(self, raw: RawItem, media: Sequence[Medium]) -> tuple[str, float]:
        """Return the video of the first camera that has one, and its first time in it."""
        own = iter(media)
        for each in self._shown(raw):
            shown = [next(own) for _ in each.references]
            if each.times is not None:
                return shown[0].name, min(each.times)
        return "", 0.0

    # --- pixels ---

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return the item with pixels in the place of references.

        Raises:
            BadVideo: A video is damaged, or shows no frame at a time; names file, episode, frame
                and camera.
            BadPicture: A picture is damaged, or too large, or would become so.
            BadItem: A file is not there; names it, camera, episode and frame.
            SourceChanged: A file is not the one that was there; names the same.
        """
        sample: Sample = {}
        shown = {each.camera: each for each in self._shown(raw)}
        media = iter(context.media)
        for name, value in raw.items():
            if (each := shown.get(name)) is None:
                sample[name] = value
            else:
                own = [next(media) for _ in each.references]
                sample.update(self._pixels(each, own))
        return sample

    def _pixels(self, each: CameraView, media: Sequence[Medium]) -> Sample:
        """Return what a camera shows, under its key or those of its planes."""
        if each.times is None:
            return {each.camera: _joined(each, [self._picture(medium) for medium in media])}
        [medium] = media
        try:
            index = self.indexes.of(medium)
            numbers = self._numbers(each.times, index)
            frames = self.frames.frames(medium, index, numbers)
            if self.pixels == RGB24:
                size = self._resizing.size_of_frames(index, medium.name)
                shown = {"": self._resizing.frames(frames, size, self.frames.pixels)}
            else:
                shown = planes_of(frames, index, self.frames.pixels)
        except BadVideo as error:
            raise BadVideo(f"{medium.name}, {each.camera}, {each.where}: {error}") from error
        except (BadItem, SourceChanged) as error:  # of its storage, which knows the file alone
            raise error.reworded(f"{each.camera}, {each.where}: {error.message}") from error
        return {each.camera + end: _joined(each, pixels) for end, pixels in shown.items()}

    def _picture(self, medium: Medium) -> np.ndarray:
        data = medium.read()
        pixels = self._pictures.decode(data, parse_header(data, medium.name), medium.name)
        return self._resizing.picture(pixels, medium.name)


def _is_picture(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _joined(each: CameraView, pixels: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return the pictures of a window as one array, or the only one."""
    if not each.is_window:
        return pixels[0]
    return pixels if isinstance(pixels, np.ndarray) else np.stack(pixels)
