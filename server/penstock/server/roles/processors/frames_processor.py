"""What processors share that decode frames of videos."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.frame_counts import FrameCounts
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.samples import RawItem, Sample

ERROR, KEEP = ON_BROKEN_TAIL = ("error", "keep")
"""What becomes of a video that was cut off, and can be read up to there."""

BOUNDS = ("decoders", "decoder_bytes", "frame_bytes")
"""Parameters that change no batch."""


class FramesProcessor(MediaProcessor):
    """A processor that decodes frames of videos: items that share a file do it in one pass.

    Attributes:
        frames: The open videos of this process, and the frames that it holds.
        indexes: The indexes of videos.
    """

    uses_global_rng: ClassVar[bool] = False

    frames: VideoFrames
    indexes: VideoIndexes

    @property
    def frame_counts(self) -> FrameCounts | None:
        """Return what was decoded so far in this process, and what for."""
        return self.frames.counts

    def most_video_bytes(self) -> int:
        """Return what the bounds allow, as far as videos were seen."""
        return self.frames.most_bytes

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes."""
        return {name: v for name, v in super().parameters().items() if name not in BOUNDS}

    @abstractmethod
    def begins(self, raw: RawItem, media: Sequence[Medium]) -> tuple[str, float]:
        """Return the file of an item's first video, and where its first frame lies.

        Reads nothing. It orders the work alone, so a guess will do.

        Returns:
            The file's name, and a number of a frame, or seconds: a processor has one of them.

        Raises:
            Exception: The item is bad: `process` raises the same.
        """

    def process_batch(
        self, raws: Sequence[RawItem], contexts: Sequence[ProcessContext]
    ) -> list[Sample | Sequence[Sample] | None]:
        """Return what `process` gives for each item.

        Items go in the order of their files and first frames, so that those of a file are decoded
        in one pass, whatever the order of draws.
        """
        found: list[Sample | Sequence[Sample] | None] = [None] * len(raws)
        begins = [
            self.begins(raw, context.media) for raw, context in zip(raws, contexts, strict=True)
        ]
        for at in sorted(range(len(raws)), key=begins.__getitem__):
            found[at] = self.process(raws[at], contexts[at])
        return found


def check_tail(index: VideoIndex, on_broken_tail: str) -> None:
    """Refuse a video whose end is missing, unless the job keeps what there is.

    Raises:
        BadVideo: Says what is missing.
    """
    if index.broken and on_broken_tail == ERROR:
        raise BadVideo(
            f"{index.broken}; on_broken_tail: keep takes the {len(index):,} frames before that"
        )
