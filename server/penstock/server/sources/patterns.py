"""From the patterns of a job to files with logical names, on any filesystem that fsspec knows."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.server.files.filesystems import is_web, located
from penstock.server.files.ranges import LOOKERS, Ranges
from penstock.server.usercode.transient import is_transient
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import InvalidJob, SourceUnavailable


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


def located_by(
    patterns: str | Sequence[str], options: dict[str, Any], key: str
) -> tuple[Any, list[tuple[str, str]]]:
    """Return the filesystem of some patterns, and each pattern with what it is called there.

    Raises:
        InvalidJob: They are not patterns, or lie on two filesystems.
        MissingExtra: The filesystem's package is not installed.
    """
    given = [patterns] if isinstance(patterns, str) else list(patterns)
    if not given or not all(isinstance(pattern, str) and pattern for pattern in given):
        raise InvalidJob(f"files is {patterns!r}: give a path, a glob or a list of them", key=key)
    found: Any = None
    paths: list[tuple[str, str]] = []
    for pattern in given:
        fs, path = _filesystem(pattern, options, key)
        if found is not None and type(fs) is not type(found):
            raise InvalidJob(
                f"{given[0]!r} and {pattern!r} lie on different filesystems: a source reads one",
                key=key,
            )
        found = fs
        paths.append((pattern, path))
    return found, paths


def _filesystem(pattern: str, options: dict[str, Any], key: str) -> tuple[Any, str]:
    try:
        fs, path = located(pattern, options)
    except ValueError as error:
        raise InvalidJob(f"{pattern!r} cannot be read: {error}", key=key) from None
    return fs, path


def _is_no_path(error: Exception) -> bool:
    """Tell whether no file can have such a path: a name that is too long, a file as a folder."""
    return isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR)


def _no_file(pattern: str, key: str) -> InvalidJob:
    if is_web(pattern):
        return InvalidJob(
            f"no file matches {pattern!r}: check the address; where the server does not list what "
            "lies below it, name each file by its own, or put them on a store that lists, such as "
            "s3:// or hf://",
            key=key,
            pattern=pattern,
        )
    return InvalidJob(
        f"no file matches {pattern!r}: check the path; in a job file, or in a meta file, it is "
        "relative to that file",
        key=key,
        pattern=pattern,
    )


def listed(
    fs: Any,
    ranges: Ranges,
    patterns: Sequence[tuple[str, str]],
    suffix: str | tuple[str, ...],
    key: str,
) -> list[DataFile]:
    """Return the files that patterns name, ordered by logical name, bytewise.

    Args:
        fs: Their filesystem.
        ranges: How its files are looked at.
        patterns: Each pattern, with what it is called there.
        suffix: What files in a folder end in; one, or several.
        key: The key path of the patterns in a job file, for error messages.

    Raises:
        InvalidJob: A pattern matches nothing, or may not be looked at.
        SourceUnavailable: The filesystem does not answer.
    """
    found: dict[str, dict[str, Any]] = {}
    roots: list[str] = []
    sizes: dict[str, int] = {}
    for pattern, path in patterns:
        try:
            root, matches = _match(fs, ranges, path, suffix)
            sizes.update(_sizes(ranges, matches))
        except PermissionError as error:
            raise InvalidJob(
                f"{pattern!r} cannot be listed: {error.strerror or error}", key=key, pattern=pattern
            ) from error
        except Exception as error:
            if not isinstance(error, OSError) and not is_transient(error):
                raise
            if isinstance(error, FileNotFoundError) or _is_no_path(error):
                raise _no_file(pattern, key) from error
            raise SourceUnavailable(
                f"{pattern!r} cannot be listed: {error}", item=pattern
            ) from error
        if not matches and root == path.rstrip("/"):
            endings = (suffix,) if isinstance(suffix, str) else suffix
            raise InvalidJob(
                f"the folder {pattern!r} holds no file that ends in {' or '.join(endings)}: "
                "name another folder, or the files by a glob, such as folder/*",
                key=key,
                pattern=pattern,
            )
        if not matches:
            raise _no_file(pattern, key)
        roots.append(root)
        found.update(matches)
    common = posixpath.commonpath(roots) if all(roots) else ""
    above = common.rstrip("/") + "/"

    def name(path: str) -> str:
        if "://" in path:  # where a query may be a signature, another one each day
            return without_credentials(_below(path.partition("?")[0]))
        return _below(path)

    def _below(path: str) -> str:
        if common and path.startswith(above):
            return path[len(above) :]  # as relpath, which takes 20 us
        return posixpath.relpath(path, common) if common else path

    return sorted(
        (DataFile(name(path), path, sizes[path]) for path in found),
        key=lambda file: file.name.encode(),
    )


def _match(
    fs: Any, ranges: Ranges, path: str, suffix: str | tuple[str, ...]
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the root of a pattern and its files, by path."""
    # What follows a question mark in a URL is for the server: a signature, say.
    named = path.partition("?")[0] if "://" in path else path
    magic = min((at for at in map(named.find, "*?[") if at >= 0), default=-1)
    if magic >= 0:
        root = posixpath.dirname(path[:magic])
        matches = fs.glob(path, detail=True)
    else:
        info = ranges.info(path, listed=True)
        if info["type"] != "directory":
            return posixpath.dirname(path), {path: info}
        root = path.rstrip("/")
        one = isinstance(suffix, str)
        matches = fs.glob(f"{root}/**/*{suffix if one else ''}", detail=True)
        matches = {name: info for name, info in matches.items() if name.endswith(suffix)}
    return root, {
        path: info
        for path, info in matches.items()
        # Hidden files are leftovers of tools: ._part.parquet, .part.parquet.crc
        if info["type"] == "file" and not posixpath.basename(path).startswith(".")
    }


def _sizes(ranges: Ranges, matches: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Return the bytes of files; a web server's listing does not tell them."""
    told = {path: info["size"] for path, info in matches.items()}
    unknown = [path for path, size in told.items() if size is None]
    if unknown:
        with ThreadPoolExecutor(LOOKERS) as pool:
            told.update(zip(unknown, pool.map(lambda p: ranges.look(p).size, unknown), strict=True))
    return {path: int(size) for path, size in told.items()}
