"""What is known of a video without decoding it: when its frames are shown, and where they start."""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.media.bad_video import BadVideo
from penstock.wire.colours import Colours, Matrix, Siting

INDEX_FORMAT = 2
"""Of `VideoIndex.to_bytes`, and of how an index is made: another one is made anew."""

_ARRAYS = (
    "times",
    "packets",
    "keys",
    "starts",
    "first_numbers",
    "places",
    "decoding_times",
    "opening",
)

_HEAD = struct.Struct("<I")

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class VideoIndex:
    """The frames of one video stream.

    A frame's number is its place in presentation order; frames of equal times follow each other as
    they were coded. Frames that the file does not show, such as those before the beginning of an
    edit list, have no number.

    Attributes:
        codec: As libav names it: `h264`, `hevc`, `vp9`, `av1`, `mpeg4`, `mjpeg`.
        container: As libav names the format, such as `mov,mp4,m4a,3gp,3g2,mj2`.
        stream: Which of the file's streams it is, from 0.
        width: Of a frame as it is shown, so after rotation, in pixels.
        height: The same.
        rotation: Degrees counterclockwise by which coded pictures are turned: 0, 90, 180, 270.
        mirrored: Pictures are mirrored from left to right, before they are turned.
        rate: Frames in a second, as the file says, else as its times do.
        time_base: Seconds of one tick of times.
        times: int64 (n,), when each of the n frames is shown, in ticks; never decreasing.
        packets: int64 (n,), which packet, counted as they lie in the file, holds each frame.
        keys: bool (n,), whether the file marks it as a key frame.
        starts: int64 (s,), s >= 1, packets with which decoding can begin, rising.
        first_numbers: int64 (s,), for each of these the first frame that it gives: that frame, and
            each one shown later that lies in a packet at or after it, is then decoded as it is
            from the file's beginning. Frames that follow it in the file and are shown earlier
            (of an open GOP) need an earlier start.
        places: int64 (p,), where each of the p packets lies in the file, in bytes; empty = that
            does not tell packets apart, so that the file is always read from its beginning.
        decoding_times: int64 (p,), when each packet is decoded, in ticks: what is sought.
        opening: int64 (2 o,), for each of o spans of bytes that are read to open the file, and to
            seek in it, the first and that after the last.
        says_times: Each packet says when its frame is shown; else times were counted.
        pixel_format: Of coded pictures, as libav names it, such as `yuv420p`.
        colours: How these become RGB, as the first one says it.
        broken: What it lacks at its end, as a sentence's part; empty = nothing is known to.
    """

    codec: str
    container: str
    stream: int
    width: int
    height: int
    rotation: int
    mirrored: bool
    rate: Fraction
    time_base: Fraction
    times: Integers
    packets: Integers
    keys: Flags
    starts: Integers
    first_numbers: Integers
    places: Integers
    decoding_times: Integers
    opening: Integers
    says_times: bool
    pixel_format: str
    colours: Colours
    broken: str = ""

    def __len__(self) -> int:
        """Return how many frames there are."""
        return len(self.times)

    @cached_property
    def times_s(self) -> npt.NDArray[np.float64]:
        """Return float64 (n,): when each frame is shown, in seconds of the file's own clock.

        That clock is not moved: the first frame of some files is shown later than at 0.
        """
        base = self.time_base
        return self.times.astype(np.float64) * base.numerator / base.denominator

    @property
    def nbytes(self) -> int:
        """Return how many bytes its arrays take."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)

    @property
    def turns(self) -> int:
        """Return how often pictures are turned by 90 degrees counterclockwise."""
        return self.rotation // 90

    @property
    def duration_s(self) -> float:
        """Return how long it is shown in seconds; the last frame by the rate."""
        return float(self.times_s[-1] - self.times_s[0] + 1 / self.rate)

    def number_at(self, time_s: float, tolerance_s: float) -> int:
        """Return the frame that is shown nearest to a time; of two as near, the earlier.

        Args:
            time_s: Seconds, as `times_s`.
            tolerance_s: How far from it the frame's time may be at most.

        Raises:
            BadVideo: The nearest one is farther away.
        """
        after = int(np.searchsorted(self.times_s, time_s))
        near = range(max(0, after - 1), min(len(self), after + 1))
        # Of frames with equal times the first one.
        number = min(near, key=lambda n: (abs(float(self.times_s[n]) - time_s), n))
        number = int(np.searchsorted(self.times, self.times[number]))
        found_s = float(self.times_s[number])
        if not abs(found_s - time_s) <= tolerance_s:
            raise BadVideo(
                f"no frame is shown at {time_s:.6f} s: the nearest, number {number:,} of "
                f"{len(self):,}, is shown at {found_s:.6f} s, {abs(found_s - time_s):.6f} s away, "
                f"and tolerance_s is {tolerance_s:g}"
            )
        return number

    def check_number(self, number: int) -> None:
        """Refuse a number that no frame has.

        Raises:
            BadVideo: It has none.
        """
        if not 0 <= number < len(self):
            raise BadVideo(
                f"frame {number:,} is wanted, and it has {len(self):,}, numbered from 0"
                + (f"; {self.broken}" if self.broken else "")
            )

    def told(self, number: int) -> str:
        """Return which frame a number is, as errors say it."""
        return f"frame {number:,} of {len(self):,}, shown at {self.times_s[number]:.3f} s,"

    def start_of(self, number: int) -> int:
        """Return the nearest start from which a frame can be decoded: its place in `starts`.

        Args:
            number: The frame that is wanted.
        """
        place = int(np.searchsorted(self.starts, self.packets[number], "right")) - 1
        while place > 0 and self.first_numbers[place] > number:
            place -= 1
        return max(place, 0)

    @cached_property
    def numbers(self) -> Integers:
        """Return int64 (p,): the number of the frame in each packet; -1 = it is not shown."""
        count = len(self.decoding_times)
        found = np.full(count, -1, np.int64)
        found[self.packets] = np.arange(len(self))
        return found

    @cached_property
    def ends(self) -> Integers:
        """Return int64 (p,): where what follows each packet begins; of the last one far away."""
        after = np.append(np.sort(self.places)[1:], np.iinfo(np.int64).max)
        return after[np.argsort(np.argsort(self.places))] if len(self.places) else self.places

    @cached_property
    def reach(self) -> int:
        """Return how many packets after its own a decoder may take before it gives a frame.

        A frame comes once all that are shown before it were decoded; and decoders of H.264 and
        HEVC hold as many as they may have to wait for, of any frame.
        """
        latest = np.maximum.accumulate(self.packets)
        return 2 * int((latest - self.packets).max()) + 1

    @cached_property
    def digest(self) -> str:
        """Return a hash of all of it, of 32 hex digits."""
        return hashlib.blake2b(self.to_bytes(), digest_size=16).hexdigest()

    # --- as bytes ---

    def to_bytes(self) -> bytes:
        """Return it as bytes, for catalogs: a few for each frame."""
        said: dict[str, Any] = {"format": INDEX_FORMAT}
        bodies = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in _ARRAYS:
                said[name] = len(value)
                bodies.append(np.diff(value.astype("<i8"), prepend=np.int64(0)).tobytes())
            else:
                said[name] = str(value) if isinstance(value, Fraction) else value
        said["colours"] = [int(value) for value in self.colours]
        head = json.dumps(said).encode()
        return zlib.compress(_HEAD.pack(len(head)) + head + b"".join(bodies), 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> VideoIndex:
        """Return what `to_bytes` gave.

        Raises:
            ValueError: It is damaged, or of another format.
        """
        try:
            whole = zlib.decompress(data)
            (length,) = _HEAD.unpack_from(whole)
            at = _HEAD.size + length
            said = json.loads(whole[_HEAD.size : at])
            if said.pop("format") != INDEX_FORMAT:
                raise ValueError("an index of a video is of another format")
            for name in ("rate", "time_base"):
                said[name] = Fraction(said[name])
            matrix, full_range, siting = said["colours"]
            said["colours"] = Colours(Matrix(matrix), bool(full_range), Siting(siting))
            for name in _ARRAYS:
                steps = np.frombuffer(whole, "<i8", said[name], at)
                at += steps.nbytes
                dtype = np.bool_ if name == "keys" else np.int64
                said[name] = np.cumsum(steps).astype(dtype)
            return cls(**said)
        except (zlib.error, struct.error, KeyError, TypeError) as error:
            raise ValueError(f"an index of a video is damaged: {error}") from error
