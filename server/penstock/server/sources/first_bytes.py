"""What a file is by its first bytes, where that is not the format that a job says."""

from __future__ import annotations

import re

from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.wire.errors import InvalidJob

FIRST_BYTES = 512
"""Enough to know any of them: a tar file names itself at byte 257."""

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}

_READ_BY = (
    (b"PAR1", "a Parquet file", "parquet"),
    (b"ARROW1\0\0", "an Arrow file", "arrow"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "arrow"),
    (b"\x93NUMPY", "an array of NumPy", "tokens"),
    (b"MMIDIDX\0\0", "an index of Megatron-LM", "megatron"),
)

_READ_BY_NONE = (
    (b"PK\x03\x04", "a zip archive", "unpack it"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it"),
    (b"SQLite format 3\0", "a database of SQLite", "export its rows, as Parquet for example"),
    (b"\x89HDF\r\n", "an HDF5 file", "export its rows, as Parquet for example"),
    (b"\x89PNG\r\n", "an image", "name files of rows; images are read from a tar, as webdataset"),
    (b"\xff\xd8\xff", "an image", "name files of rows; images are read from a tar, as webdataset"),
    (b"%PDF-", "a PDF", "take the text out of it"),
)

_LFS = b"version https://git-lfs.github.com/spec/"

_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x7f]")


def _is_text(head: bytes) -> bool:
    """Tell whether a file begins as text does, which may begin with the letters of a format."""
    if _CONTROL.search(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:  # maybe in the middle of a character
        return len(head) == FIRST_BYTES and error.start > FIRST_BYTES - 4
    return True


def refuse_other_kinds(file: DataFile, head: bytes, own: str = "") -> None:
    """Refuse a file that is something else than its source reads.

    Args:
        file: The file.
        head: Its first `FIRST_BYTES` bytes.
        own: The source type that reads it; "" = one of text.

    Raises:
        InvalidJob: Says what the file is, and what reads that.
    """
    if head.startswith(_LFS):
        raise invalid_files(
            f"{file.path} is a pointer of Git LFS and not the data: run `git lfs pull`"
        )
    if not own and head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise invalid_files(f"{file.path} is UTF-16: write it again as UTF-8")
    if _is_text(head):
        return
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise invalid_files(
                f"{file.path} is compressed with {name}, and items in it cannot be found without "
                "reading all of it: uncompress it, or let `datasets` do that (source type hf)"
            )
    found = [(what, kind) for magic, what, kind in _READ_BY if head.startswith(magic)]
    if head[257:262] == b"ustar":
        found.append(("a tar file", "webdataset"))
    for what, kind in found:
        if kind != own:
            raise InvalidJob(f"{file.path} is {what}: use type: {kind}", key="source.type")
    for magic, what, remedy in _READ_BY_NONE:
        if head.startswith(magic):
            raise invalid_files(f"{file.path} is {what}, which no source reads: {remedy}")
