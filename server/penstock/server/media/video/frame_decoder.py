"""One video that is open, and stands somewhere: frames come in one pass, from there or a start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.conversion import RgbConversion
from penstock.server.media.video.decoded_frame import DecodedFrame, PlanarFrame
from penstock.server.media.video.open_video import OpenVideo
from penstock.server.media.video.video_index import VideoIndex

MOST_PASSED = 32
"""Packets that are read and not decoded rather than sought: a seek reads a block anew. Of a file
that is far those that are needed were fetched, and what lies between was not: none is passed."""


class FrameDecoder:
    """Gives frames of one video by number.

    A frame's bytes depend on its file alone: decoding begins at a start, from which libav gives
    the same as from the file's beginning, and every frame carries the number of its packet.

    Args:
        medium: The file.
        index: Its index.

    Attributes:
        decoded: Frames that were decoded so far, wanted or not.

    Raises:
        BadVideo: It cannot be opened.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
    """

    def __init__(self, medium: Medium, index: VideoIndex) -> None:
        self._index, self._medium = index, medium
        self._conversion = RgbConversion(index.colours)
        self._most_passed = 0 if medium.is_far else MOST_PASSED
        self.decoded = 0
        self._open()

    def _open(self) -> None:
        self._video = OpenVideo(self._medium)
        self._packets = self._video.packets()
        self._next = 0  # the packet that the container gives next
        # What the last packet gave beside the frame that was wanted: at the end, all that is left.
        self._surplus: dict[int, Any] = {}
        self._is_fed = False  # the decoder was given packets since it was opened, or emptied
        self._first_sure = -1  # the first frame that decoding since its last start gives; -1 = none
        self._inside: set[int] = set()  # packets that the decoder holds, and has given no frame of

    def frames(self, numbers: Sequence[int]) -> Iterator[DecodedFrame]:
        """Yield frames, decoded in one pass.

        Args:
            numbers: Which, rising.

        Yields:
            All that are wanted, in any order, and others that were decoded on the way.

        Raises:
            BadVideo: One cannot be decoded; it says which.
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        given: set[int] = set()
        try:
            for number in numbers:
                if number in given:
                    continue
                if (frame := self._surplus.pop(number, None)) is not None:
                    yield self._shown(frame, number)
                    continue
                self._approach(number)
                for found, frame in self._until(number):
                    given.add(found)
                    yield self._shown(frame, found)
                if number not in given:
                    raise BadVideo("its packet gives no picture, or one that is damaged")
        except BadVideo as error:
            self._first_sure = -1
            raise BadVideo(f"{self._index.told(number)} cannot be decoded: {error}") from error
        except BaseException:  # the storage's, or whoever takes the frames stops
            self._first_sure = -1
            raise

    def close(self) -> None:
        """Close the file."""
        self._video.close()

    def _shown(self, frame: Any, number: int) -> DecodedFrame:
        return PlanarFrame(frame, number, self._index, self._conversion)

    # --- where it stands ---

    def _approach(self, number: int) -> None:
        """Go to where decoding gives a frame after the fewest packets."""
        index = self._index
        place = index.start_of(number)
        start, packet = int(index.starts[place]), int(index.packets[number])
        goes_on = 0 <= self._first_sure <= number and self._next >= start
        if goes_on and (packet in self._inside or self._next <= packet):
            return
        if not self._next <= start <= self._next + self._most_passed:
            self._seek(start)
        elif self._is_fed:
            self._video.stream.codec_context.flush_buffers()
        self._is_fed = False
        while self._next < start:
            self._take()
        self._first_sure = int(index.first_numbers[place])
        self._inside.clear()
        self._surplus.clear()

    def _seek(self, packet: int) -> None:
        """Let the container go to a packet, or before it."""
        index = self._index
        earlier = index.starts[index.starts < packet]
        for start in (packet, *earlier[-2:][::-1].tolist()):
            if not len(index.places):
                break
            # Where a seek leads is the library's affair: it may be too far, which is seen.
            with self._video.libav():
                self._video.container.seek(
                    int(index.decoding_times[start]), stream=self._video.stream
                )
            self._packets = self._video.packets()
            if (found := next(self._packets, None)) is None or found.pos is None:
                continue
            at = np.flatnonzero(index.places == found.pos)
            if len(at) and at[0] <= packet:
                self._packets = _after(found, self._packets)
                self._next = int(at[0])
                return
        self._video.close()
        self._open()

    def _take(self) -> Any:
        """Return the next packet; None = there are no more.

        Raises:
            BadVideo: It is another one than the index says.
        """
        index, number = self._index, self._next
        if number == len(index.decoding_times):
            return None
        packet = next(self._packets, None)
        if packet is None or (len(index.places) and packet.pos != index.places[number]):
            at = "the end" if packet is None else f"byte {packet.pos}"
            raise BadVideo(f"its packet {number:,} is at {at}, and its index says another place")
        frame = int(index.numbers[number])
        if index.says_times and frame >= 0 and packet.pts != index.times[frame]:
            raise BadVideo(
                f"its packet {number:,} is shown at tick {packet.pts}, and its index says "
                f"{index.times[frame]}"
            )
        self._next += 1
        return packet

    def _until(self, number: int) -> Iterator[tuple[int, Any]]:
        """Yield what decoding gives, until it has given a frame, or nothing can give it."""
        index = self._index
        wanted, is_given = int(index.packets[number]), False
        while not is_given:
            at = self._next
            packet = self._take()
            if packet is not None and 0 <= index.numbers[at] < self._first_sure:
                continue  # it needs what lies before the start, and nothing later needs it
            self._is_fed = True
            try:
                frames = self._video.decode(packet, at)
                is_end = packet is None
            except BadVideo:
                if at <= wanted or wanted not in self._inside:
                    raise
                frames, is_end = self._video.decode(None, at), True  # it may still come
            if packet is not None:
                self._inside.add(at)
            self.decoded += len(frames)
            self._inside.difference_update(frame.pts for frame in frames)
            sure = {
                int(index.numbers[frame.pts]): frame
                for frame in frames
                if index.numbers[frame.pts] >= max(0, self._first_sure) and not frame.is_corrupt
            }
            yield from sure.items()
            is_given = number in sure
            self._surplus = {found: frame for found, frame in sure.items() if found != number}
            if is_end:
                self._first_sure = -1
                return


def _after(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others
