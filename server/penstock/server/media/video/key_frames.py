"""With which packets decoding can begin: key frames from which all that follows is exact.

libav marks as a key frame of H.264 also what leads back to right pictures after a while, or only
without pictures that are shown earlier (ITU-T H.264, D.2.8: recovery point); what refers to lost
pictures is not told from damage there. So only an instantaneous refresh (IDR) is a start.
"""

from __future__ import annotations

from collections.abc import Iterator

_IDR, _SLICE = 5, 1

_LOOKED_AT = 1 << 16
"""Bytes of a packet: what comes before its first slice is shorter."""


def is_start(codec: str, packet: bytes | memoryview, extradata: bytes | None) -> bool:
    """Tell whether decoding can begin with a key frame.

    Of HEVC, VP9, AV1, MPEG-4 and MJPEG it can: libav marks only pictures after which nothing
    refers to what lies before them, apart from frames that are shown earlier.

    Args:
        codec: As libav names it.
        packet: The packet that is marked as a key frame.
        extradata: Of the stream: for H.264, it says how units are told apart.
    """
    if codec != "h264":
        return True
    for kind in _kinds(bytes(packet[:_LOOKED_AT]), extradata or b""):
        if kind in (_IDR, _SLICE):
            return kind == _IDR
    return False


def _kinds(data: bytes, extradata: bytes) -> Iterator[int]:
    """Yield the types of the units of a packet of H.264 (ITU-T H.264, 7.3.1 and annex B)."""
    if extradata[:1] == b"\x01" and len(extradata) > 4:  # of mp4 and mkv: lengths come first
        width = (extradata[4] & 3) + 1
        at = 0
        while at + width < len(data):
            yield data[at + width] & 31
            at += width + int.from_bytes(data[at : at + width], "big")
        return
    for unit in data.split(b"\x00\x00\x01")[1:]:  # of avi: start codes
        if unit:
            yield unit[0] & 31
