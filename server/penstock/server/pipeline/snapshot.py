"""A snapshot's bytes: canonical, versioned, checksummed; one history gives the same everywhere.

Layout: magic `PSNK`, format version (uint16, little-endian), CRC32C of the rest (uint32), then JSON
with sorted keys and no spaces, UTF-8. It holds refs with sizes and spans, and counters; never data,
never times.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import google_crc32c

from penstock.wire.errors import BadSnapshot

MAGIC = b"PSNK"
FORMAT = 2
_HEAD = struct.Struct("<4sHI")


def encode(log_id: bytes, lane: int, offset: int, state: dict[str, Any]) -> bytes:
    """Return the snapshot of a lane's planner at `offset`."""
    text = json.dumps(
        {"log": log_id.hex(), "lane": lane, "offset": offset, "state": state},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()
    return _HEAD.pack(MAGIC, FORMAT, google_crc32c.value(text)) + text


def decode(data: bytes, log_id: bytes, lane: int) -> tuple[int, dict[str, Any]]:
    """Return the offset and the state that `encode` wrote.

    Raises:
        BadSnapshot: It is damaged, of another format, or belongs to another lane or log.
    """
    if len(data) < _HEAD.size:
        raise BadSnapshot(f"a snapshot of lane {lane} is only {len(data)} bytes long", lane=lane)
    magic, version, checksum = _HEAD.unpack_from(data)
    text = bytes(data[_HEAD.size :])
    if magic != MAGIC:
        raise BadSnapshot(
            f"a snapshot of lane {lane} starts with {magic!r}, not {MAGIC!r}", lane=lane
        )
    if version != FORMAT:
        raise BadSnapshot(
            f"a snapshot of lane {lane} has format {version}; this version reads {FORMAT}",
            lane=lane,
        )
    if google_crc32c.value(text) != checksum:
        raise BadSnapshot(
            f"a snapshot of lane {lane} is damaged: its checksum does not match", lane=lane
        )
    content = json.loads(text)
    if content["log"] != log_id.hex() or content["lane"] != lane:
        raise BadSnapshot(
            f"a snapshot of lane {content['lane']} of log {content['log'][:12]} was given for "
            f"lane {lane} of log {log_id.hex()[:12]}",
            lane=lane,
        )
    return content["offset"], content["state"]


def restore(
    data: bytes, log_id: bytes, lane: int, take: Callable[[int, dict[str, Any]], None]
) -> None:
    """Give offset and state of a snapshot to what goes on from there.

    Raises:
        BadSnapshot: As `decode`; also if `take` finds that the state has another form.
    """
    offset, state = decode(data, log_id, lane)
    try:
        take(offset, state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadSnapshot(
            f"a snapshot of lane {lane} at offset {offset} has not the form that this version "
            f"reads: {type(error).__name__}: {error}",
            lane=lane,
            offset=offset,
        ) from error
