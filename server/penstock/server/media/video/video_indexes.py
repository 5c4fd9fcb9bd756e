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

    def look(self, medium: Medium) -> VideoIndex | None:
        """Return the index of a video that is held or kept, by what is known without reading it.

        It may be that of an earlier version of the file, so it is for guesses alone.
        """
        _, version = medium.known()
        if not version:
            return None
        if (held := self._held.get(f"{medium.name} {version}")) is not None:
            return held
        if (kept := _kept(medium, version)) is not None:
            self._hold(f"{medium.name} {version}", kept)
        return kept

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
        self._hold(key, found)
        return found

    def _hold(self, key: str, found: VideoIndex) -> None:
        self._held[key] = found
        self.held_bytes += found.nbytes
        while self.held_bytes > self._most_bytes and len(self._held) > 1:
            self.held_bytes -= self._held.popitem(last=False)[1].nbytes


def _content(medium: Medium) -> str:
    """Return a hash of what an item holds itself; of a file that tells no version, its size."""
    if type(medium).at is not Medium.at:
        return str(medium.size())
    return hashlib.blake2b(medium.read(), digest_size=16).hexdigest()


def _kept_or_made(medium: Medium, version: str) -> VideoIndex:
    if not version:
        return index_video(medium)
    if (kept := _kept(medium, version)) is not None:
        return kept
    made = index_video(medium)
    keep_bytes(_key(medium, version), made.to_bytes())
    return made


def _kept(medium: Medium, version: str) -> VideoIndex | None:
    if (data := kept_bytes(_key(medium, version))) is not None:
        try:
            return VideoIndex.from_bytes(data)
        except ValueError as error:
            logger.debug("the index of %s is made anew: %s", medium.name, error)
    return None


def _key(medium: Medium, version: str) -> str:
    return catalog_key("video", INDEX_FORMAT, load_av().__version__, medium.name, version)
