"""Where an index of sizes lies: a path of this machine, or a URL of fsspec."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import InvalidJob, SourceUnavailable

T = TypeVar("T")

KEY = "plan.index"

_OF_THE_PATH = (PermissionError, IsADirectoryError, NotADirectoryError, FileNotFoundError)
"""What these say of a path stays so until somebody changes it."""


class IndexPlace:
    """A file, at a path or a URL, and the folder of what is finished of it (`.parts`).

    Args:
        url: The path, or the URL.
        options: Options of the filesystem.

    Attributes:
        url: As it was given, for messages.

    Raises:
        InvalidJob: No filesystem has such URLs.
        MissingExtra: The filesystem's package is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        # Here and not above: the room imports all sources, and jobs are known to trainers, too.
        from penstock.server.files.filesystems import located

        self.url = url
        try:
            self._fs, self.path = located(url, options)
        except ValueError as error:
            raise InvalidJob(f"{url!r} is not a place for an index: {error}", key=KEY) from None
        protocol = self._fs.protocol
        self.is_local = "file" in ((protocol,) if isinstance(protocol, str) else protocol)
        self._fd: int | None = None

    @property
    def full_url(self) -> str:
        """Return the one URL of it, however it was given."""
        return str(self._fs.unstrip_protocol(self.path))

    # --- reading ---

    def size(self) -> int:
        """Return how many bytes the file has.

        Raises:
            FileNotFoundError: There is none.
            InvalidJob, SourceUnavailable: It cannot be looked at.
        """

        def look() -> int:
            if self.is_local:
                return os.fstat(self._opened()).st_size
            self._fs.invalidate_cache(self.path)
            return int(self._fs.info(self.path)["size"])

        return self._reached(look)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; may be called from several threads.

        Raises:
            InvalidJob, SourceUnavailable: They cannot be read.
        """

        def look() -> bytes:
            if not self.is_local:
                return bytes(self._fs.cat_file(self.path, start=start, end=stop))
            data = os.pread(self._opened(), stop - start, start)
            while len(data) < stop - start and (
                more := os.pread(self._opened(), stop - start - len(data), start + len(data))
            ):
                data += more  # a read gives 2 GiB at most
            return data

        data = self._reached(look) if stop > start else b""
        if len(data) != stop - start:
            raise SourceUnavailable(
                f"the index {self.url!r} gave {len(data)} bytes where {stop - start} were asked "
                "for: check the storage",
                item=self.url,
            )
        return data

    def _opened(self) -> int:
        """Return a descriptor: what was opened stays the same file if another takes its place."""
        if self._fd is None:
            # A pipe without a writer would wait for one.
            self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            weakref.finalize(self, os.close, self._fd)
        return self._fd

    def _reached(self, look: Callable[[], T]) -> T:
        try:
            return look()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._failed(error, "read") from error

    def _failed(self, error: Exception, doing: str) -> Exception:
        if isinstance(error, _OF_THE_PATH) or getattr(error, "errno", None) == errno.EROFS:
            why = getattr(error, "strerror", None) or error
            return InvalidJob(f"the index {self.url!r} cannot be {doing}: {why}", key=KEY)
        if is_transient(error, reading=isinstance(error, OSError)):
            return SourceUnavailable(
                f"the index {self.url!r} cannot be {doing} at the moment: {error}", item=self.url
            )
        return error

    # --- writing ---

    def write(self, parts: Iterable[bytes]) -> None:
        """Put a file there, whole or not at all; another one is replaced.

        Raises:
            InvalidJob, SourceUnavailable: It cannot be written.
            Exception: What `parts` raises.
        """
        if self.is_local:
            self._write_here(parts)
        else:
            self._write_there(parts)

    def _write_here(self, parts: Iterable[bytes]) -> None:
        folder, name = os.path.split(self.path)
        # What a kill leaves of it goes with the parts, where there are any.
        beside = f"{self.path}.parts" if os.path.isdir(f"{self.path}.parts") else folder
        fresh = os.path.join(beside, f".{name}.{secrets.token_hex(4)}")
        try:
            with self._writing():
                os.makedirs(folder, exist_ok=True)
                file = open(fresh, "xb")  # noqa: SIM115 - the errors of `parts` are others
            try:
                for part in parts:
                    with self._writing():
                        file.write(part)
                with self._writing():
                    file.flush()
                    os.fsync(file.fileno())
                    file.close()
            except BaseException:
                # What did not fit is still in its buffer, so closing it fails once more.
                with contextlib.suppress(OSError):
                    file.close()
                raise
            with self._writing():
                os.replace(fresh, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            raise

    def _write_there(self, parts: Iterable[bytes]) -> None:
        # A store shows an object when it is whole, and never a part of one.
        with self._writing():
            file = self._fs.open(self.path, "wb", autocommit=False)
        try:
            for part in parts:
                with self._writing():
                    file.write(part)
            with self._writing():
                file.close()
                file.commit()
        except BaseException:
            with contextlib.suppress(Exception):  # the error that counts is on its way
                file.discard()
            raise
        self._fs.invalidate_cache(self.path)

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except Exception as error:
            raise self._failed(error, "written") from error

    # --- what is finished of it ---

    def part(self, name: str) -> IndexPlace:
        """Return a file beside it, in `.parts`."""
        found = IndexPlace.__new__(IndexPlace)
        found._fs, found.is_local, found._fd = self._fs, self.is_local, None
        found.url, found.path = f"{self.url}.parts/{name}", f"{self.path}.parts/{name}"
        return found

    def part_names(self) -> list[str]:
        """Return the names of the parts that are there, in no order.

        Raises:
            InvalidJob, SourceUnavailable: They cannot be listed.
        """

        def look() -> list[str]:
            folder = f"{self.path}.parts"
            if self.is_local:
                return [name for name in os.listdir(folder) if not name.startswith(".")]
            self._fs.invalidate_cache(folder)
            return [posixpath.basename(path) for path in self._fs.ls(folder, detail=False)]

        try:
            return self._reached(look)
        except FileNotFoundError:
            return []

    def remove_parts(self) -> None:
        """Remove all parts.

        Raises:
            InvalidJob, SourceUnavailable: They cannot be removed.
        """
        with self._writing(), contextlib.suppress(FileNotFoundError):
            self._fs.rm(f"{self.path}.parts", recursive=True)
            self._fs.invalidate_cache(f"{self.path}.parts")
