"""The indexes of videos: held by this process, kept by an earlier one, or made."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict

from penstock.server.files.catalog import catalog_key, keep_bytes, kept_bytes
from penstock.server.media.medium import Medium
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.open_video import load_av
from penstock.server.media.video.video_index import INDEX_FORMAT, VideoIndex

logger = logging.getLogger("penstock")

INDEX_BYTES = 64 << 20
"""Of indexes that a process holds: of 3 million frames, some 28 hours."""


class VideoIndexes:
    """Gives the index of a video: held, or kept by an earlier start, or made by reading it once.

    What is kept lies where catalogs of files do (the setting `hash_cache`), under the file's path
    and version, and with the version of PyAV; so a node's workers make an index once.

    Args:
        most_bytes: Of indexes that are held; the last one always is.

    Attributes:
        held_bytes: Of those that are held.
    """

    def __init__(self, most_bytes: int = INDEX_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[str, VideoIndex] = OrderedDict()
        self.held_bytes = 0

    def of(self, medium: Medium) -> VideoIndex:
        """Return the index of a video.

        Raises:
            BadVideo: As `index_video`.
            BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
            MissingExtra: PyAV is not installed.
        """
        version = medium.version()
        key = f"{medium.name} {version or _content(medium)}"
        if (held := self._held.get(key)) is not None:
            self._held.move_to_end(key)
            return held
        found = _kept_or_made(medium, version)
        self._held[key] = found
        self.held_bytes += found.nbytes
        while self.held_bytes > self._most_bytes and len(self._held) > 1:
            self.held_bytes -= self._held.popitem(last=False)[1].nbytes
        return found


def _content(medium: Medium) -> str:
    """Return a hash of what an item holds itself; of a file that tells no version, its size."""
    if type(medium).at is not Medium.at:
        return str(medium.size())
    return hashlib.blake2b(medium.read(), digest_size=16).hexdigest()


def _kept_or_made(medium: Medium, version: str) -> VideoIndex:
    if not version:
        return index_video(medium)
    key = catalog_key("video", INDEX_FORMAT, load_av().__version__, medium.name, version)
    if (data := kept_bytes(key)) is not None:
        try:
            return VideoIndex.from_bytes(data)
        except ValueError as error:
            logger.debug("the index of %s is made anew: %s", medium.name, error)
    made = index_video(medium)
    keep_bytes(key, made.to_bytes())
    return made
