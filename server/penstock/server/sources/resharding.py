"""The tables of a LeRobot folder written anew, with a row group for each episode.

The rows, their order, columns and types stay what they are. A table is written under another name
and takes its own when it is whole and was read back, so a run that is killed leaves whole tables
alone; the next one goes on with those that are missing. Which ones are done is told by the tables:
each names in its footer the hash of what it was made of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from penstock.server.files.filesystems import require
from penstock.server.sources.files import refusing
from penstock.server.sources.footers import read_tail
from penstock.server.sources.frame_groups import RobotTables, TableGroups
from penstock.server.sources.lerobot_episodes import INFO
from penstock.server.sources.patterns import DataFile
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidRequest

MADE_OF = b"penstock.made_of"
"""The key in a footer under which the hash of the table's origin is."""

_TEMPORARY = ".reshard-"


class Resharding:
    """Writes the tables of a folder into another, or in their places.

    Args:
        tables: The tables.
        root: The folder that they are of.
        target: The folder to write: another one, or `root` itself.

    Raises:
        InvalidRequest: `target` cannot be written.
    """

    def __init__(self, tables: RobotTables, root: str, target: str) -> None:
        if "://" in target:
            raise InvalidRequest(
                f"{target} is a URL: name a folder of this machine, and copy that there"
            )
        self._tables, self._target = tables, Path(target)
        self.is_in_place = "://" not in root and os.path.realpath(root) == os.path.realpath(target)
        self._root = root
        with self._writing():
            self._target.mkdir(parents=True, exist_ok=True)
            for left in self._target.rglob(f"{_TEMPORARY}*"):  # of a run that was killed
                left.unlink()

    def write(self, file: DataFile) -> bool:
        """Write a table, unless that is done.

        Returns:
            Whether it was written now.

        Raises:
            InvalidJob: It is damaged, or holds other frames than `meta` says.
            SourceUnavailable: It cannot be read at the moment.
            InvalidRequest: It cannot be written.
        """
        looked = self._tables.look(file)
        path = self._target / looked.name
        if self.is_in_place and looked.is_apart:
            return False
        with refusing(file, "source.root"):
            origin = self._hash(file)
            if not self.is_in_place and self._is_done(path, origin):
                return False
            with self._writing():
                path.parent.mkdir(parents=True, exist_ok=True)
                self._write(file, looked, path, origin)
        return True

    def finish(self) -> None:
        """Copy `meta`, what it says of the folder last: until then the target is none.

        Raises:
            InvalidRequest: It cannot be written.
            SourceUnavailable: A file cannot be read at the moment.
        """
        if self.is_in_place:
            return
        meta = self._tables.meta.files
        files = [file for file in meta.files if file.name != INFO]
        files += [file for file in meta.files if file.name == INFO]
        for file in files:
            path = self._target / "meta" / file.name
            with refusing(file, "source.root"):
                data = meta.read(file, 0, file.size)
            with self._writing(), self._replacing(path) as temporary:
                temporary.write_bytes(data)

    # --- one table ---

    def _hash(self, file: DataFile) -> str:
        """Return a hash of a table's footer, which tells of its rows and where they lie."""
        tail = read_tail(self._tables.file_set.reader(file), file.size)
        return hashlib.sha256(tail + str(file.size).encode()).hexdigest()

    def _is_done(self, path: Path, origin: str) -> bool:
        if not path.exists():
            return False
        with contextlib.suppress(OSError, ValueError, require("pyarrow").ArrowException):
            found = require("pyarrow.parquet").read_metadata(path).metadata or {}
            return bool(found.get(MADE_OF) == origin.encode())
        return False

    def _write(self, file: DataFile, looked: TableGroups, path: Path, origin: str) -> None:
        parquet = require("pyarrow.parquet")
        with contextlib.ExitStack() as opened:
            stream = opened.enter_context(self._tables.file_set.open(file))
            source = opened.enter_context(parquet.ParquetFile(stream))
            known = source.schema_arrow.metadata or {}
            schema = source.schema_arrow.with_metadata({**known, MADE_OF: origin.encode()})
            temporary = opened.enter_context(self._replacing(path))
            with parquet.ParquetWriter(temporary, schema, compression=_codecs(source)) as writer:
                for table in _episodes(source, looked):
                    own = table.replace_schema_metadata(schema.metadata)
                    writer.write_table(own, row_group_size=len(own))
            self._read_back(source, looked, temporary)

    def _read_back(self, source: Any, looked: TableGroups, path: Path) -> None:
        """Compare what was written with what it was made of, an episode at a time.

        Raises:
            InvalidRequest: They differ.
        """
        with require("pyarrow.parquet").ParquetFile(path) as written:
            for number, table in enumerate(_episodes(source, looked)):
                again = written.read_row_group(number, use_threads=False)
                if not again.equals(table):
                    raise InvalidRequest(
                        f"{looked.name}, which was written just now, has other rows in row group "
                        f"{number} than it was made of: the disk is at fault; write to another"
                    )

    # --- writing ---

    @contextlib.contextmanager
    def _replacing(self, path: Path) -> Iterator[Path]:
        """Give a path to write; it takes the place of `path` when all of it is on the disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            if path.exists():
                shutil.copymode(path, temporary)
            else:
                os.chmod(temporary, 0o644)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidRequest(
                f"{self._target} cannot be written: {error_line(error, 300)}; name another folder"
            ) from error


def _codecs(source: Any) -> dict[str, str]:
    """Return how each column is compressed."""
    group = source.metadata.row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    return {column.path_in_schema: column.compression.lower() for column in columns}


def _episodes(source: Any, looked: TableGroups) -> Iterator[Any]:
    """Yield the rows of each episode, with one row group after another in memory."""
    pa = require("pyarrow")
    groups = (source.metadata.row_group(n) for n in range(source.num_row_groups))
    ends = list(accumulate(group.num_rows for group in groups))
    group, held, first = -1, None, 0
    at = 0
    for length in looked.episodes:
        parts, stop = [], at + length
        while at < stop:
            while held is None or at >= ends[group]:
                group += 1
                first = ends[group - 1] if group else 0
                held = source.read_row_group(group, use_threads=False)
            count = min(stop, ends[group]) - at
            parts.append(held.slice(at - first, count))
            at += count
        yield pa.concat_tables(parts).combine_chunks()
