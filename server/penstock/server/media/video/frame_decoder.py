"""One video that is open, and stands somewhere: frames come in one pass, from there or a start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.open_video import OpenVideo
from penstock.server.media.video.video_index import VideoIndex

MOST_PASSED = 32
"""Packets that are read and not decoded rather than sought: a seek reads a block anew."""


class FrameDecoder:
    """Gives frames of one video by number.

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
        self._video = OpenVideo(medium)
        self._packets = self._video.packets()
        self._next = 0  # the packet that the container gives next
        self._start = -1  # the place of the start since which it decodes; -1 = of none
        self._inside: set[int] = set()  # numbers of frames whose packets the decoder holds
        self._is_flushed = False
        self.decoded = 0

    def frames(self, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield frames in one pass, in presentation order.

        Args:
            numbers: Which, rising.

        Yields:
            A number, and the frame of PyAV.

        Raises:
            BadVideo: One cannot be decoded; it says which.
            SourceUnavailable, SourceChanged: As `Medium.at`.
        """
        wanted = set(numbers)
        given: set[int] = set()
        for number in numbers:
            if number in given:
                continue
            self._approach(number)
            found: set[int] = set()
            for place, frame in self._decode_until(number):
                found.add(place)
                if place in wanted:
                    yield place, frame
            given |= found
            if number not in found:
                raise BadVideo(self._lacks(number))

    def close(self) -> None:
        """Close the file."""
        self._video.close()

    # --- where it stands ---

    def _approach(self, number: int) -> None:
        """Go to where decoding gives a frame with the fewest packets."""
        index = self._index
        packet, place = int(index.packets[number]), index.start_of(number)
        start = int(index.starts[place])
        can_go_on = (
            self._start >= 0
            and not self._is_flushed
            and (number in self._inside or self._next <= packet)
            and int(index.first_numbers[self._start]) <= number
        )
        if can_go_on and (self._next > start or number in self._inside):
            return
        if can_go_on and start == self._next and self._start == place - 1:
            self._start = place  # the next group, reached in passing: nothing is thrown away
            return
        self._go_to(start)
        self._start, self._inside, self._is_flushed = place, set(), False

    def _go_to(self, packet: int) -> None:
        """Let the container give a packet next, and the decoder forget what it holds."""
        if self._is_flushed or not self._next <= packet <= self._next + MOST_PASSED:
            self._seek(packet)
        else:
            self._video.stream.codec_context.flush_buffers()
        while self._next < packet:
            self._take()

    def _seek(self, packet: int) -> None:
        index = self._index
        if not len(index.places):
            return self._reopen()
        # A seek may lead too far: then an earlier time is tried, and at last the beginning.
        for start in (packet, *reversed(index.starts[index.starts < packet][-2:].tolist())):
            ticks = int(index.decoding_times[start])
            with self._video.libav():
                self._video.container.seek(ticks, stream=self._video.stream)
            self._packets = self._video.packets()
            first = next(self._packets, None)
            found = -1 if first is None else self._number_of(first)
            if 0 <= found <= packet:
                self._next, self._first = found, first
                return None
        return self._reopen()
