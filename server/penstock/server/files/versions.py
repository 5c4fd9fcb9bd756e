"""Whether files are still those whose content is in the log id."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from penstock.server.files.catalog import Stamp
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import SourceChanged

logger = logging.getLogger("penstock")

Found = TypeVar("Found")

ATTEMPTS = 5
"""How often something is read where its file is touched meanwhile."""


class Hashed(NamedTuple):
    """What is known of a file's content.

    Attributes:
        digest: Its hash.
        whole: Every byte is in it; False = head, tail and some blocks between them are.
    """

    digest: str
    whole: bool


class Versions:
    """Notes how files looked when they were found, and refuses those that have changed since.

    A file that looks as it did has not changed: the time of an inode's last change cannot be set
    back, and neither can an ETag. One that looks otherwise may still hold the same bytes: it was
    touched, moved away and back, copied again, or got another mode or a second name. So it is
    hashed again, and goes on if its hash is the one that was known. Where that hash is of parts of
    the file alone, another time of change is refused at once: an edit may lie between them.

    Args:
        look: Returns the stamp of a path as it is now.
        known: Returns what is known of the content of a path; None = nothing.
        hash_again: Returns the hash of a path's content as it is now, made as the known one was.

    Attributes:
        seen: How files looked when they were found, by path.
    """

    def __init__(
        self,
        look: Callable[[str], Stamp],
        known: Callable[[str], Hashed | None],
        hash_again: Callable[[str], str],
    ) -> None:
        self._look, self._known, self._hash_again = look, known, hash_again
        self.seen: dict[str, Stamp] = {}
        self._same: dict[str, Stamp] = {}  # how a file looked when it was hashed again

    def now(self, path: str) -> Stamp:
        """Return the stamp of the version that counts as unchanged."""
        return self._same.get(path) or self.seen[path]

    def check(self, path: str) -> bool:
        """Refuse a file that has changed; of several threads at once each hashes for itself.

        Returns:
            Whether it looks as it did at the last look. False = it looks otherwise and has the
            same content, so that what was read before this call may have been other bytes.

        Raises:
            SourceChanged: Its content is another, or cannot be compared.
            OSError: It cannot be looked at, or not be read.
        """
        found, seen = self._look(path), self.seen[path]
        if is_same(found, self.now(path)):
            return True
        known = self._known(path) if found.size == seen.size else None
        if known is None or (not known.whole and found.version != seen.version):
            raise changed(path, seen, found)
        if self._hash_again(path) != known.digest or not is_same(self._look(path), found):
            raise changed(path, seen, found)
        self._same[path] = found
        parts = "" if known.whole else ", as far as it is hashed: head, tail and blocks of it"
        name = without_credentials(path)
        logger.info("%s was touched while it is read; its content is the same%s", name, parts)
        return False

    def check_all(self, paths: Iterable[str]) -> None:
        """Refuse files that are gone or have changed; other errors may be gone when they are read.

        Raises:
            SourceChanged: Names the first one.
        """
        for path in paths:
            try:
                self.check(path)
            except FileNotFoundError as error:
                raise SourceChanged(
                    f"{path} is not there any more: put it back as it was, or restart with the "
                    "files that are there as a new job",
                    path=path,
                ) from error
            except OSError:
                continue


def read_unchanged(
    read: Callable[[bool], Found],
    check: Callable[[], bool],
    is_sure: Callable[[Found], bool] = lambda _: False,
) -> Found:
    """Return what was read while the files that it is of were as they were found.

    Args:
        read: Reads it, and is told whether that is once more, since a file was touched.
        check: `Versions.check`, of every file that is read.
        is_sure: Whether what was read says by itself of which version it is.

    Raises:
        SourceChanged: One of the files has changed.
        BlockingIOError: One is touched again and again; it can be read in a moment.
        Exception: Whatever `read` raises of files that were not touched.
    """
    for attempt in range(ATTEMPTS):
        try:
            found = read(attempt > 0)
        except (SourceChanged, MemoryError):
            raise
        except Exception as error:  # of any library: it may have read bytes of two versions
            if check():
                raise
            logger.info("it is read once more, since it could not be read: %s", error)
            continue
        if is_sure(found) or check():
            return found
    raise BlockingIOError(errno.EAGAIN, "it is touched again and again while it is read")


def is_same(one: Stamp, other: Stamp) -> bool:
    """Tell whether a file looked the same twice, whenever that was."""
    return one[:3] == other[:3]


def changed(path: str, then: Stamp, now: Stamp) -> SourceChanged:
    """Return the error that names a file that is not the one that was opened."""
    return SourceChanged(
        f"{path} changed under an open source ({then.size} bytes then, {now.size} now): data files "
        "are immutable; restart with the new files as a new job",
        path=path,
    )
