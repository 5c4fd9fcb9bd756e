"""Where the media of a job lie, and what of them decides its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.common.checks import check_whole
from penstock.server.files.ranges import HttpRanges
from penstock.server.media.listing import (
    ENDINGS,
    MediaListing,
    holds_nothing,
    listed_for,
    listing_of,
)
from penstock.server.media.media_places import is_url, local_path
from penstock.server.media.media_storage import Filesystems
from penstock.wire.errors import InvalidJob

AHEAD_BYTES, REQUESTS, MAX_FILE_BYTES = 64 << 20, 64, 256 << 20

MAX_REQUESTS = 256
"""Each is a thread of every worker."""


class MediaFiles:
    """Where the pictures and sounds lie that items name, and how they are fetched.

    Items name media by a path, a URL or the key of an LMDB. Only what lies below `dir`, or below
    the directory of a source that has one, and what `allow` names is read: items are data, and may
    come from anybody.

    Args:
        dir: The directory that names are relative to: a path relative to the job file, or a URL.
            Its files are listed when the job begins: their names, their sizes and the content of a
            sample of them are part of the log id, and one that changes while the job exists stops
            it. Of a web server, which lists nothing, only names are known.
        allow: Paths and URLs below which items may name files besides, such as
            `[/data/pictures, "https://images.example.org", "s3://"]`, whatever follows. Of these
            only names are known, so that a change of their content goes unnoticed.
        endings: What names of media in `dir` end in, such as `[.jpg, .png]`; `[""]` for all files.
            Default: those of pictures, sounds, films and LMDBs. Others can be read, and are not
            part of the log id.
        ahead_bytes: How many bytes each worker fetches ahead of decoding, at most. A larger number
            hides a slower store, and costs each worker that much memory; leave it alone until
            `penstockd check` shows workers that wait for media.
        requests: How many files each worker asks for at once. More of them hide a longer round
            trip; fewer are kinder to a store that limits its requests.
        max_file_bytes: A medium of more bytes is a bad item, and is not read.
        storage_options: Options of fsspec for URLs, such as endpoint and credentials.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    def __init__(
        self,
        dir: str | None = None,
        allow: Sequence[str] = (),
        endings: Sequence[str] | None = None,
        ahead_bytes: int = AHEAD_BYTES,
        requests: int = REQUESTS,
        max_file_bytes: int = MAX_FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if dir is not None and not (isinstance(dir, str) and dir):
            raise InvalidJob(f"dir is {dir!r}: give a path or a URL", key="media.dir")
        self.dir = None if dir is None else absolute_root(dir)
        self.allow = _texts("allow", allow)
        for text in self.allow:
            if not is_url(text) and not local_path(text).startswith("/"):
                raise InvalidJob(
                    f"allow names {text!r}: give absolute paths, or URLs", key="media.allow"
                )
        self.endings = ENDINGS if endings is None else _texts("endings", endings)
        if "" in self.endings:
            self.endings = ()
        self.ahead_bytes = check_whole("ahead_bytes", ahead_bytes, 0, key="media.ahead_bytes")
        self.requests = check_whole("requests", requests, 1, key="media.requests")
        if requests > MAX_REQUESTS:
            raise InvalidJob(
                f"requests is {requests}: give at most {MAX_REQUESTS}", key="media.requests"
            )
        self.max_file_bytes = check_whole(
            "max_file_bytes", max_file_bytes, 1, key="media.max_file_bytes"
        )
        self.storage_options = dict(storage_options or {})
        self.filesystems = Filesystems(self.storage_options, self.requests, self.max_file_bytes)
        self._listings: dict[str, MediaListing | None] = {}

    def listing(self, root: str) -> MediaListing | None:
        """Return what lies in a directory, listed once; None = its server lists nothing.

        Raises:
            InvalidJob: It is not there.
            SourceUnavailable: It cannot be listed at the moment.
        """
        if root not in self._listings:
            self._listings[root] = self._listed(root)
        return self._listings[root]

    def _listed(self, root: str) -> MediaListing | None:
        what, key = "the directory of media", "media.dir"
        with listed_for(what, root, key):
            ranges, path = self.filesystems.find(root)
            if isinstance(ranges, HttpRanges):
                return None
            found = listing_of(ranges, path, tuple(self.endings), self.storage_options)
        if not len(found):
            raise holds_nothing(what, root, tuple(self.endings), key)
        return found


def absolute_root(root: str) -> str:
    """Return a directory as a URL, or as an absolute path."""
    return root if is_url(root) else str(Path.cwd() / local_path(root))


def _texts(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(text, str) for text in given):
        raise InvalidJob(f"{name} is {given!r}: give a list of texts", key=f"media.{name}")
    return tuple(given)
