"""With which packets decoding can begin: key frames from which all that follows is exact.

libav marks as a key frame of H.264 also what only leads back to right pictures after some frames
(ITU-T H.264, D.2.8: recovery point), so that is read here.
"""

from __future__ import annotations

from collections.abc import Iterator

_IDR, _SEI, _SLICE = 5, 6, 1
_RECOVERY_POINT = 6

_LOOKED_AT = 1 << 16
"""Bytes of a packet: what comes before its first slice is shorter."""


def is_start(codec: str, packet: bytes | memoryview, extradata: bytes | None) -> bool:
    """Tell whether decoding can begin with a key frame.

    Of HEVC, VP9, AV1, MPEG-4 and MJPEG it can: libav marks only pictures after which nothing
    refers to what lies before them, apart from frames that are shown earlier. Of H.264 it can with
    an instantaneous refresh (IDR), and with a recovery point that says that its pictures are exact
    at once.

    Args:
        codec: As libav names it.
        packet: The packet that is marked as a key frame.
        extradata: Of the stream: for H.264, it says how units are told apart.
    """
    if codec != "h264":
        return True
    data = bytes(packet[:_LOOKED_AT])
    for unit in _units(data, extradata or b""):
        kind = unit[0] & 31
        if kind == _IDR:
            return True
        if kind == _SLICE:
            return False
        if kind == _SEI and _is_exact_at_once(unit[1:]):
            return True
    return False


def _units(data: bytes, extradata: bytes) -> Iterator[bytes]:
    """Yield the units of a packet of H.264 that are not empty."""
    if extradata[:1] == b"\x01" and len(extradata) > 4:  # of mp4 and mkv: lengths come first
        width = (extradata[4] & 3) + 1
        at = 0
        while at + width < len(data):
            length = int.from_bytes(data[at : at + width], "big")
            at += width
            if length:
                yield data[at : at + length]
            at += length
        return
    for part in data.split(b"\x00\x00\x01")[1:]:  # of avi: start codes (Annex B)
        if part:
            yield part


def _is_exact_at_once(message: bytes) -> bool:
    """Tell whether an SEI message is a recovery point of the very picture that it comes with."""
    data = message.replace(b"\x00\x00\x03", b"\x00\x00")  # emulation prevention
    at = 0
    while at + 2 < len(data):
        numbers = []
        for _ in range(2):  # a payload's type and size: each 255 goes on
            number = 0
            while at < len(data) and data[at] == 255:
                number, at = number + 255, at + 1
            if at >= len(data):
                return False
            number, at = number + data[at], at + 1
            numbers.append(number)
        kind, size = numbers
        if kind == _RECOVERY_POINT and at < len(data):
            # recovery_frame_cnt, ue(v), is 0 where its first bit is set; then exact_match_flag,
            # and broken_link_flag, which is set where an edit has cut what lies before.
            return data[at] & 0xE0 == 0xC0
        at += size
    return False
