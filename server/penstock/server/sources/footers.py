"""Whether a Parquet footer can be looked into: damaged ones end the process in some of Arrow's."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.server.sources.access import require


class _Asked(Exception):
    """Bytes of columns are asked for: the footer has been gone through by then."""


class _NoBytes:
    """The interface that Arrow needs of a Python file: one whose bytes nobody reads.

    Args:
        size: How long it is.
    """

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset."""
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the offset."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Say that it was asked.

        Raises:
            _Asked: Always.
        """
        raise _Asked

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def close(self) -> None:
        """Nothing is open."""


def check_footer(metadata: Any, size: int) -> None:
    """Let Arrow look at every column chunk of a footer where its errors are caught.

    What `RowGroupMetaData.column` of pyarrow throws ends the process, as of pyarrow 26. Reading
    with `pre_buffer` looks at all column chunks before any byte is read, and throws as errors what
    that finds: 9 ms for 8,000 of them.

    Args:
        metadata: What the footer says.
        size: How long the file is.

    Raises:
        OSError, ArrowException: It is damaged.
    """
    stream = require("pyarrow").PythonFile(_NoBytes(size), mode="r")
    reader = require("pyarrow.parquet").ParquetFile(stream, metadata=metadata, pre_buffer=True)
    with contextlib.suppress(_Asked):
        reader.read_row_groups(list(range(metadata.num_row_groups)), use_threads=False)


__all__ = ["check_footer"]
