"""Row groups of Parquet files, read and decoded; errors say which of the two has failed."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.server.files.filesystems import require
from penstock.server.files.ranges import RangeStream
from penstock.server.files.versions import read_unchanged
from penstock.server.sources.files import FileSet, unavailable
from penstock.server.sources.footers import leaves, read_tail
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged
from penstock.wire.plain import clean_text

Read = TypeVar("Read")

_OPEN_FILES = 16
_CHUNK_SLACK = (
    128  # old parquet-mr wrote a column chunk's size too small by its dictionary's header
)


class RowGroup(NamedTuple):
    """A row group of a file.

    Attributes:
        file: The file.
        number: Which of its row groups it is.
        rows: How many rows it has, as the footer says.
    """

    file: DataFile
    number: int
    rows: int

    def check(self, table: Any) -> Any:
        """Return what was decoded of it.

        Raises:
            ValueError: It has another number of rows.
        """
        if table.num_rows != self.rows:
            raise ValueError(f"{table.num_rows} rows where the footer says {self.rows}")
        return table

    def bad_value(self, row: int, column: str, error: Exception) -> BadItem:
        """Return the error of a value that has no form in Python."""
        what = f"row {row} of row group {self.number}, column {clean_text(repr(column), 100)},"
        said = clean_text(error_line(error, 300), 200)
        return BadItem(
            f"{self.file.path}: {what} cannot be decoded ({said}): write it again, or let "
            "on_item_error: quarantine skip it",
            path=self.file.path,
            row_group=self.number,
            reason=f"{self.file.name}: {what} cannot be decoded: {said}",
        )

    def damaged(self, column: str | None, said: str) -> BadItem:
        """Return the error of one that was read whole and cannot be decoded.

        Args:
            column: The column that cannot be; None = each can by itself.
            said: What is wrong with it.
        """
        what = f"row group {self.number}" + ("" if column is None else f", column {column!r},")
        return BadItem(
            f"{self.file.path}: {what} was read whole and cannot be decoded, it is damaged: {said}",
            path=self.file.path,
            row_group=self.number,
            reason=f"{self.file.name}: {what} is damaged: {said}",
        )


class RowGroupReader:
    """Reads row groups of the files of a source, which it keeps open; one call at a time.

    Args:
        files: The files.
    """

    def __init__(self, files: FileSet) -> None:
        self._files = files
        self._parquet = require("pyarrow.parquet")
        self._open: OrderedDict[str, tuple[Any, Any]] = OrderedDict()
        self._damaged: dict[RowGroup, BadItem] = {}  # each is read once, and not for each item

    def read(self, group: RowGroup, columns: Sequence[str]) -> Any:
        """Return some columns of a row group as a table.

        Raises:
            Exception: Of Arrow or of the filesystem: it cannot be read, or not be decoded.
        """

        def read(is_again: bool) -> Any:
            if is_again:
                self._close(group.file)  # it may be open on what was there before
            reader = self._reader(group.file)
            return reader.read_row_group(group.number, columns=columns, use_threads=False)

        return group.check(self._unchanged(group.file, read))

    def whole(self, group: RowGroup, columns: Sequence[str], index: int) -> Any:
        """Return the columns of a row group that items are made of, as a table.

        Args:
            group: The row group.
            columns: The columns.
            index: An item of it, for messages.

        Raises:
            SourceUnavailable: It cannot be read at the moment.
            SourceChanged: The file is not the one that was opened.
            BadItem: It was read, and cannot be decoded: the file is damaged.
        """
        try:
            if group in self._damaged:
                self._files.check(group.file)
                raise self._damaged[group]
            return self.read(group, columns)
        except (SourceChanged, BadItem):
            raise
        except Exception as error:
            self._close(group.file)  # the retry must not use a broken connection again
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            if is_transient(error):
                raise unavailable(group.file, error, index) from error
        # Reading and decoding were one call, with the same errors: now one after the other.
        return self._decoded(group, columns, self._pieces(group, columns, index))

    def alone(
        self, groups: Sequence[RowGroup], columns: Sequence[str], use: Callable[[Any], Any]
    ) -> list[Any]:
        """Return what `use` makes of some columns of row groups of one file, each as a table.

        One table is in memory at a time. For several threads at once: the file is opened for it.

        Raises:
            SourceUnavailable: It cannot be read at the moment.
            SourceChanged: The file is not the one that was opened.
            InvalidJob: A column cannot be decoded, or `use` refuses it.
        """
        file = groups[0].file

        def look(is_again: bool) -> list[Any]:
            with contextlib.ExitStack() as opened:
                stream: Any = file.path
                if not self._files.is_local:
                    stream = opened.enter_context(self._files.open(file))
                reader = opened.enter_context(
                    self._parquet.ParquetFile(stream, page_checksum_verification=True)
                )
                read = partial(reader.read_row_group, columns=list(columns), use_threads=False)
                return [use(read(group.number)) for group in groups]

        try:
            return self._unchanged(file, look)
        except (InvalidJob, SourceChanged):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            if is_transient(error):
                raise unavailable(file, error, file.name) from error
            raise invalid_files(
                f"{file.path}: {' and '.join(columns)} cannot be read: {error_line(error, 300)}"
            ) from error

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._close_one()

    def _unchanged(self, file: DataFile, read: Callable[[bool], Read]) -> Read:
        """Return what was read of a file, and is of the version that was found.

        Args:
            file: The file.
            read: Reads it, and is told whether that is once more: the file was touched meanwhile.

        Raises:
            SourceChanged: That version is gone.
            Exception: Whatever `read` raises.
        """
        # Behind a URL every range comes with its version; Arrow reads local files by itself.
        return read_unchanged(
            read, partial(self._files.check, file), lambda _: not self._files.is_local
        )

    def _pieces(self, group: RowGroup, columns: Sequence[str], index: int) -> _Pieces:
        """Return a row group's columns, read whole into memory and not decoded.

        Raises:
            SourceUnavailable: They cannot be read at the moment.
            SourceChanged: The file is not the one that was opened.
        """
        file = group.file
        read_at = self._files.reader(file)
        try:
            tail = read_tail(read_at, file.size)
            metadata = self._parquet.read_metadata(require("pyarrow").BufferReader(tail))
            pieces = _Pieces(file.size, metadata)
            chunks = metadata.row_group(group.number)
            for leaf, name in enumerate(leaves(metadata)):
                if name in columns:
                    chunk = chunks.column(leaf)
                    first = chunk.data_page_offset
                    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                        first = min(first, chunk.dictionary_page_offset)
                    stop = min(file.size, first + chunk.total_compressed_size + _CHUNK_SLACK)
                    # What a footer names beyond the end of its file is missed when decoding.
                    if 0 <= first < stop:
                        pieces.add(first, read_at(first, stop))
        except SourceChanged:
            raise
        except Exception as error:
            if isinstance(error, OSError) or is_transient(error, reading=True):
                raise unavailable(file, error, index) from error
            raise
        return pieces

    def _decoded(self, group: RowGroup, columns: Sequence[str], pieces: _Pieces) -> Any:
        """Return the columns of a row group whose bytes are all in memory.

        Raises:
            BadItem: They cannot be decoded: the file is damaged.
        """

        def decode(chosen: Sequence[str]) -> Any:
            reader = self._parquet.ParquetFile(
                pieces.stream(), metadata=pieces.metadata, page_checksum_verification=True
            )
            return group.check(
                reader.read_row_group(group.number, columns=chosen, use_threads=False)
            )

        try:
            return decode(columns)
        except Exception as error:
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            found = group.damaged(None, error_line(error, 300))
            for column in columns:  # which of them it is
                try:
                    decode([column])
                except Exception as its:
                    found = group.damaged(column, error_line(its))
                    break
            self._damaged[group] = found
            raise found from error

    def _reader(self, file: DataFile) -> Any:
        if file.path in self._open:
            self._open.move_to_end(file.path)
            return self._open[file.path][0]
        while len(self._open) >= _OPEN_FILES:
            self._close_one()
        if self._files.is_local:
            stream = None
            # Where pages carry checksums they are compared: damage may decode to other values.
            # A reader that buffers ahead keeps the row group's bytes for as long as it is open.
            reader = self._parquet.ParquetFile(
                file.path, page_checksum_verification=True, pre_buffer=False
            )
        else:
            stream = self._files.open(file)
            # pre_buffer joins the reads of a row group's column chunks into few requests.
            reader = self._parquet.ParquetFile(
                stream, pre_buffer=True, page_checksum_verification=True
            )
        self._open[file.path] = (reader, stream)
        return reader

    def _close(self, file: DataFile) -> None:
        if file.path in self._open:
            self._open.move_to_end(file.path, last=False)
            self._close_one()

    def _close_one(self) -> None:
        _, (reader, stream) = self._open.popitem(last=False)
        reader.close()
        if stream is not None:
            stream.close()


class _Pieces:
    """Parts of a file in memory, at their offsets: decoding them cannot fail because of the disk.

    Args:
        size: Bytes of the whole file.
        metadata: What its footer says.
    """

    def __init__(self, size: int, metadata: Any) -> None:
        self.metadata = metadata
        self._size = size
        self._pieces: list[tuple[int, bytes]] = []

    def add(self, start: int, data: bytes) -> None:
        """Put bytes where they are in the file."""
        self._pieces.append((start, data))

    def stream(self) -> Any:
        """Return a file for Arrow to read, at its start."""
        return require("pyarrow").PythonFile(RangeStream(self._read, self._size), mode="r")

    def _read(self, start: int, stop: int) -> bytes:
        """Return bytes of the file.

        Raises:
            ValueError: Some of them were not read.
        """
        for first, data in self._pieces:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        raise ValueError(f"bytes {start} to {stop} lie where no column should")
