"""Rows that `datasets` prepares from files, kept in a folder that is named by the files' content.

`datasets` itself keys what it prepares by path and time of change: an edited file with an unchanged
time would give its old rows, under a log id that names the new content. Here the content is the
key, as it is of the log id.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from penstock.server.files.catalog import Catalog, Stamp, local_stamp
from penstock.server.files.content import WHOLE_BYTES, content_hash
from penstock.server.files.ranges import LOOKERS
from penstock.server.files.versions import Hashed, changed, is_same
from penstock.wire.errors import SourceChanged, SourceUnavailable

FOLDER = "penstock"
"""In the cache folder of `datasets`. Its content may be removed while no job reads."""


class HashedFile(NamedTuple):
    """A data file as it was when it was hashed.

    Attributes:
        path: Its path.
        size: Bytes.
        digest: SHA-256, hex: whole up to 64 MiB, above it head, tail and 16 blocks.
        stamp: How it looked.
    """

    path: Path
    size: int
    digest: str
    stamp: Stamp

    @property
    def hashed(self) -> Hashed:
        """What is known of its content."""
        return Hashed(self.digest, self.size <= WHOLE_BYTES)


def hash_files(paths: Sequence[Path], catalog: Catalog) -> list[HashedFile]:
    """Return the files with their hashes, in the order of `paths`.

    Args:
        paths: The files.
        catalog: What is known of them; files that are not known are read, and noted.

    Raises:
        SourceChanged: A file changed while it was hashed.
        SourceUnavailable: It cannot be read at the moment.
    """

    def hashed(path: Path) -> HashedFile:
        try:
            seen, absolute = local_stamp(os.stat(path)), os.path.abspath(path)
            digest = catalog.find(absolute, seen, "content")
            if digest is None:
                digest = content_of(str(path))
                if not is_same(now := local_stamp(os.stat(path)), seen):
                    raise changed(str(path), seen, now)
                catalog.note(absolute, seen, "content", digest)
        except OSError as error:
            raise SourceUnavailable(
                f"{path} cannot be read at the moment: {error}", item=path.name
            ) from error
        return HashedFile(path, seen.size, digest, seen)

    with ThreadPoolExecutor(LOOKERS) as pool:
        return list(pool.map(hashed, paths))


def content_of(path: str) -> str:
    """Return the hash of a file's content, as in `HashedFile`."""
    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size

        def read_at(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        return content_hash(read_at, size, whole=size <= WHOLE_BYTES)


def prepare(datasets: Any, builder: Any, files: Mapping[str, Sequence[HashedFile]]) -> None:
    """Let a builder prepare its rows, or find them prepared; `as_dataset` then reads them.

    Processes that prepare the same rows at once wait for the first. A folder is complete once the
    builder has finished and the files are still those that were hashed; a folder without that mark
    was left by a killed process, and is made again.

    Args:
        datasets: The package.
        builder: One of its builders.
        files: The files that it reads, by split.

    Raises:
        SourceChanged: A file changed between its hash and the end of the preparation.
        OSError: The cache folder cannot be written.
    """
    folder = _root(datasets) / f"{builder.dataset_name}-{_key(datasets, builder, files)}"
    rows, complete = folder / "rows", folder / "complete"
    with _locked(folder.with_name(folder.name + ".lock")):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        builder.download_and_prepare(
            output_dir=str(rows),
            # Archives are unpacked there, too: elsewhere only their path would identify them.
            download_config=datasets.DownloadConfig(
                cache_dir=str(folder / "unpacked"), use_etag=False
            ),
        )
        if not complete.exists():
            for file in (file for split in files.values() for file in split):
                if not is_same(local_stamp(os.stat(file.path)), file.stamp):
                    shutil.rmtree(folder)
                    raise SourceChanged(
                        f"{file.path} changed while it was read: data files are immutable; start "
                        "again when nobody writes it any more",
                        path=str(file.path),
                    )
            complete.touch()


def load_builder(datasets: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a builder that knows nothing of what the user's own `load_dataset` has prepared."""
    return datasets.load_dataset_builder(*args, cache_dir=str(_root(datasets)), **kwargs)


def _root(datasets: Any) -> Path:
    root = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER
    root.mkdir(parents=True, exist_ok=True)
    return root


def _key(datasets: Any, builder: Any, files: Mapping[str, Sequence[HashedFile]]) -> str:
    """Return what decides the prepared rows, and the paths in them, as 32 hex digits.

    Paths are part of it, unlike of the log id: prepared rows of images and archives name them.
    """
    config = {name: value for name, value in vars(builder.config).items() if name != "data_files"}
    decides = (
        datasets.__version__,
        type(builder).__module__,
        type(builder).__qualname__,
        config,
        builder.info.features,
        [
            (split, [(os.path.abspath(file.path), file.size, file.digest) for file in entries])
            for split, entries in files.items()
        ],
    )
    # Its hash of Python values: options may hold features and other objects of its own.
    return str(datasets.fingerprint.Hasher.hash(decides))[:32]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)  # and with it the lock, as when this process is killed
