"""From the patterns of a job to files with logical names, on any filesystem that fsspec knows."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.server.sources.access import require
from penstock.wire.errors import InvalidJob, MissingExtra, SourceChanged, SourceUnavailable

# What a filesystem tells that changes when a file does: to notice that, never part of an identity.
_STAMPS = ("ETag", "etag", "md5", "mtime", "LastModified", "last_modified", "updated", "created")


@dataclass(frozen=True)
class DataFile:
    """One file of a source.

    Attributes:
        name: Its logical name: the path below the common root of the patterns, with `/`.
        path: Where its filesystem finds it.
        size: Bytes.
    """

    name: str
    path: str
    size: int


class FileSet:
    """The files that some patterns name, ordered by logical name, bytewise.

    Args:
        patterns: Paths, globs, folders or URLs; one, or a list on one filesystem.
        suffix: What files in a folder end in.
        storage_options: For the filesystem: endpoint, credentials.
        key: The key path of the patterns in a job file, for error messages.

    Raises:
        InvalidJob: A pattern matches nothing, or the patterns lie on two filesystems.
        MissingExtra: The filesystem's package is not installed.
        SourceUnavailable: The filesystem does not answer.
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        *,
        suffix: str,
        storage_options: dict[str, Any] | None = None,
        key: str = "source.files",
    ) -> None:
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        if not given or not all(isinstance(pattern, str) and pattern for pattern in given):
            raise InvalidJob(
                f"files is {patterns!r}: give a path, a glob or a list of them", key=key
            )
        self.fs: Any = None
        self._key, self._suffix = key, suffix
        found: dict[str, dict[str, Any]] = {}
        roots: list[str] = []
        for pattern in given:
            fs, path = self._filesystem(pattern, storage_options or {})
            if self.fs is not None and type(fs) is not type(self.fs):
                raise InvalidJob(
                    f"{given[0]!r} and {pattern!r} lie on different filesystems: a source "
                    "reads one",
                    key=key,
                )
            self.fs = fs
            try:
                root, matches = self._match(path)
            except FileNotFoundError:
                root, matches = "", {}
            except OSError as error:
                raise SourceUnavailable(
                    f"{pattern!r} cannot be listed: {error}", item=pattern
                ) from error
            if not matches:
                raise InvalidJob(
                    f"no file matches {pattern!r}: check the path; in a job file it is relative to "
                    "the job file",
                    key=key,
                    pattern=pattern,
                )
            roots.append(root)
            found.update(matches)
        self._stamps: dict[str, str] = {}
        common = posixpath.commonpath(roots) if all(roots) else ""
        self.files = sorted(
            (
                DataFile(
                    posixpath.relpath(path, common) if common else path,
                    path,
                    int(info["size"]),
                )
                for path, info in found.items()
            ),
            key=lambda file: file.name.encode(),
        )

    @property
    def is_local(self) -> bool:
        """Tell whether the files lie on a disk of this machine."""
        protocol = self.fs.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def open(self, file: DataFile) -> Any:
        """Return the open file, a binary reader that seeks."""
        # Readers ask for exact ranges: a read-ahead would fetch megabytes that nobody asked for.
        return self.fs.open(file.path, "rb", **({} if self.is_local else {"cache_type": "none"}))

    def watch(self, file: DataFile) -> None:
        """Remember which version of a file is there now, for `check`.

        Raises:
            OSError: It cannot be looked at.
        """
        # Asked by info, not taken from the listing: some filesystems tell times there otherwise.
        self._stamps[file.path] = _stamp(self.fs.info(file.path))

    def check(self, file: DataFile) -> None:
        """Refuse a file that is not the one that `watch` saw.

        Raises:
            SourceChanged: Its size or its filesystem's stamp is another.
            OSError: It cannot be looked at.
        """
        info = self.fs.info(file.path)
        if int(info["size"]) != file.size or _stamp(info) != self._stamps[file.path]:
            raise SourceChanged(
                f"{file.path} changed under an open source ({file.size} bytes then, {info['size']} "
                "now): data files are immutable; restart with the new files as a new job",
                path=file.path,
            )

    def _filesystem(self, pattern: str, options: dict[str, Any]) -> tuple[Any, str]:
        fsspec = require("fsspec.core")
        try:
            fs, path = fsspec.url_to_fs(pattern, **options)
        except ImportError as error:  # the filesystem's own package: s3fs, gcsfs, adlfs
            package = getattr(error.__cause__, "name", None) or pattern.partition(":")[0]
            raise MissingExtra(
                f"{pattern!r} needs a package that is not here: pip install {package} ({error})",
                package=package,
                extra="",
            ) from None
        except ValueError as error:
            raise InvalidJob(f"{pattern!r} cannot be read: {error}", key=self._key) from None
        return fs, path

    def _match(self, path: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the root of a pattern and its files, by path."""
        magic = min((at for at in map(path.find, "*?[") if at >= 0), default=-1)
        if magic >= 0:
            root = posixpath.dirname(path[:magic])
            matches = self.fs.glob(path, detail=True)
        else:
            info = self.fs.info(path)
            if info["type"] != "directory":
                return posixpath.dirname(path), {path: info}
            root = path.rstrip("/")
            matches = self.fs.glob(f"{root}/**/*{self._suffix}", detail=True)
        return root, {
            path: info
            for path, info in matches.items()
            # Hidden files are what tools leave behind: ._part.parquet, .part.parquet.crc
            if info["type"] == "file" and not posixpath.basename(path).startswith(".")
        }


def _stamp(info: dict[str, Any]) -> str:
    return next((f"{name}={info[name]}" for name in _STAMPS if info.get(name) is not None), "")


__all__ = ["DataFile", "FileSet"]
