"""Where the name of a medium leads, and whether an item may name that.

Items are data, and data comes from others: what it names is read only below the directories of the
job, and below what the job allows besides. Names are compared and never asked of a filesystem, so
links below a directory lead where whoever owns it has them lead.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.server.core.shown import shown
from penstock.server.files.filesystems import plain_url
from penstock.wire.credentials import without_credentials

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class MediaPlace(NamedTuple):
    """Where a medium lies.

    Attributes:
        root: The directory that it is below; empty = it is below none, and only allowed.
        path: An absolute path of this machine, or a URL.
        name: What follows the root; empty without one.
    """

    root: str
    path: str
    name: str


def is_url(text: str) -> bool:
    """Tell whether a text is a URL, and not a path of this machine."""
    return bool(_URL.match(text)) and not text.lower().startswith(("file://", "local://"))


def local_path(text: str) -> str:
    """Return a path without `file://`, made plain: no `.`, no `..` and no double slashes."""
    text = plain_url(text)
    for scheme in ("file://", "local://"):
        if text.lower().startswith(scheme):
            text = text[len(scheme) :]
    path = posixpath.normpath(text)
    return path[1:] if path.startswith("//") else path


def plain_root(text: str) -> str:
    """Return a directory, or what items may name, as names are compared with it."""
    return text.rstrip("/") if is_url(text) and not text.endswith("://") else _plain(text)


def _plain(text: str) -> str:
    return text if is_url(text) else local_path(text)


class MediaPlaces:
    """The places that the items of a job may name.

    Args:
        roots: The directories whose files are known.
        allowed: Paths and URLs below which items may name files besides.
    """

    def __init__(self, roots: Sequence[str], allowed: Sequence[str]) -> None:
        self._roots = sorted(map(plain_root, roots), key=len, reverse=True)
        self._allowed = [plain_root(text) for text in allowed]

    def find(self, name: str, directory: str | None) -> MediaPlace:
        """Return where a name leads.

        Args:
            name: The name, as the item has it.
            directory: What it is relative to; None = to nothing.

        Raises:
            ValueError: The job does not allow items to name it, or it is not a valid name.
        """
        full = _full(name, None if directory is None else plain_root(directory))
        for root in self._roots:
            if (below := _below(full, root)) is not None:
                return MediaPlace(root, full, below)
        if any(_below(full, allowed) is not None for allowed in self._allowed):
            return MediaPlace("", full, "")
        raise ValueError(self._refusal(name))

    def _refusal(self, name: str) -> str:
        known = ", ".join(map(without_credentials, self._roots)) or "the job has none"
        outer = name.rpartition("/")[0] if is_url(name) or name.startswith("/") else ""
        remedy = f"media: {{allow: [{without_credentials(outer)}]}}" if outer else "media: {allow}"
        return (
            f"{_called(name)} lies outside of the directories of media ({known}): if items may "
            f"name it, say so in the job, {remedy}"
        )


def _full(name: str, directory: str | None) -> str:
    """Return a name as an absolute path, or as a URL."""
    if is_url(name):
        if "::" in name or _CONTROL.search(name) or _climbs(name.partition("://")[2]):
            raise ValueError(f"{_called(name)} is no plain URL: give one without ::, . and ..")
        return name
    if name.startswith("/") or _URL.match(name):
        return local_path(name)
    if directory is None:
        raise ValueError(
            f"{_called(name)} is relative, and the job has no directory of media: give it "
            "media: {dir: PATH}"
        )
    if not is_url(directory):
        return local_path(posixpath.join(directory, name))
    if _CONTROL.search(name) or _climbs(name):
        raise ValueError(f"{_called(name)} is no plain name: give one without . and ..")
    return f"{directory}/{name}"


def _called(name: str) -> str:
    return shown(without_credentials(name))


def _climbs(path: str) -> bool:
    """Tell whether a path of a URL has `.` or `..` in it, as a server may read them, too."""
    plain = path.partition("?")[0]
    while (decoded := unquote(plain)) != plain:  # some decode what they pass on
        plain = decoded
    names = {part.partition(";")[0] for part in plain.replace("\\", "/").split("/")}
    return "." in names or ".." in names


def _below(full: str, root: str) -> str | None:
    """Return what follows a root in a path or a URL; None = it does not lie below it."""
    if is_url(full) != (is_url(root) or root.endswith("://")):
        return None
    if root.endswith("://"):  # any host, any bucket
        return full[len(root) :] if full.lower().startswith(root.lower()) else None
    if is_url(full):
        one, other = urlsplit(full), urlsplit(root)
        if (one.scheme, one.netloc) != (other.scheme, other.netloc):
            return None
    above = root.rstrip("/") + "/"
    return full[len(above) :] if full.startswith(above) else None
