"""WebDataset's tar files: the files of a sample follow one another and share a name."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY
from tokenize import TokenError
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from penstock.server.files.ranges import RangeStream, windowed
from penstock.server.roles.parameters import TrueOrFalse, declared
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex
from penstock.server.sources.cache import BlockRows, EachRow
from penstock.server.sources.file_source import Files
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.server.usercode.frames import error_line

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")


def _npy(data: bytes) -> Any:
    """Return the array of a `.npy` file, which holds at least as many bytes as its header claims.

    Raises:
        ValueError: It is not one, holds objects, or claims more.
    """
    stream, form = io.BytesIO(data), np.lib.format
    is_first = form.read_magic(stream) == (1, 0)
    read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
    shape, _, dtype = read(stream)
    left = len(data) - stream.tell()
    if math.prod(shape) * dtype.itemsize > left:
        raise ValueError(f"an array of shape {shape} of {dtype} in {left} bytes")
    stream.seek(0)
    return form.read_array(stream, allow_pickle=False)


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode()),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _npy,
}
"""As `webdataset.autodecode.decoders` has them, by the last ending; no pickles."""


_UNDECODABLE = (ValueError, SyntaxError, TokenError, TypeError, OverflowError, RecursionError)
"""NumPy reads the header of a `.npy` with Python's own parser, which has errors of its own."""


def _refuse_commands(files: Sequence[str]) -> None:
    """Refuse `pipe:` of `webdataset.gopen`, which runs a command and reads what it prints.

    Raises:
        InvalidJob: Names what reads the same files.
    """
    for name in files:
        if str(name).startswith("pipe:") or name == "-":
            raise invalid_files(
                f"{name!r} is a stream, and samples are read here in any order, a range of bytes "
                "at a time: give the files themselves, as paths or URLs (s3://, gs://, https://)"
            )


class ArchiveMember(NamedTuple):
    """A file in an archive.

    Attributes:
        key: The name up to the first dot after the last slash: what the files of a sample share.
        ending: What follows that dot, in lower case.
        start: Where its header starts, in bytes.
        data: Where its bytes start.
        stop: Where they end.
    """

    key: str
    ending: str
    start: int
    data: int
    stop: int


@declared
class WebdatasetSource(BlockedFiles):
    """The samples of WebDataset's tar files, without compression.

    Files that follow one another and have the same name up to the first dot are a sample, as in
    `webdataset.tariterators`. An item is a dict: `__key__`, the archive's name `__url__`, and for
    each file its ending with its bytes. With `decode` those that end in txt, text, transcript,
    json, jsn, cls, cls2, index, inx, id and npy are values, as `webdataset` decodes them; all
    others, images as well, stay bytes.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        decode: Whether to decode texts, numbers, JSON and arrays. False leaves all files bytes.

    Raises:
        InvalidJob: No file matches, a file is compressed or is not a tar file, no samples; or a
            file is a command.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "webdataset"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    files: Files
    _: KW_ONLY
    decode: Annotated[bool, TrueOrFalse()] = True

    def __post_init__(self) -> None:
        _refuse_commands([self.files] if isinstance(self.files, str) else self.files)
        self.open_files(self.files, "samples", self.block_bytes)

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole samples.

        Raises:
            InvalidJob: It is not a tar file, or a sample has two files of one ending.
        """
        import tarfile  # 10 ms of the start of every process, for this source alone

        read_at = self.file_set.reader(file)
        refuse_other_kinds(file, read_at(0, min(FIRST_BYTES, file.size)), "webdataset")
        window = 1 << 16 if self.file_set.is_local else self.block_bytes
        index = FileIndex.empty()
        start = stop = items = first = 0
        try:
            for members in samples(
                _members(RangeStream(windowed(read_at, file.size, window), file.size))
            ):
                begin, end = members[0].start, -(-members[-1].stop // 512) * 512
                if items and end - start > self.block_bytes:
                    index.add(start, stop, items, first=first)
                    first, items = first + items, 0
                if not items:
                    start = begin
                stop, items = min(end, file.size), items + 1
        except (tarfile.TarError, ValueError) as error:
            raise invalid_files(
                f"{file.path} is not a tar file of samples ({error_line(error, 300)}): write it "
                "again"
            ) from None
        if items:
            index.add(start, stop, items, first=first)
        return index

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the samples of a block; their files are decoded when they are asked for."""
        found = list(samples(_members(io.BytesIO(data))))
        if len(found) != block.items:
            raise ValueError(f"{len(found)} samples where there were {block.items}")
        decoders = _DECODERS if self.decode else {}  # and not `self`: memory would keep the source

        def item(row: int) -> dict[str, Any]:
            members = found[row]
            made: dict[str, Any] = {"__key__": members[0].key, "__url__": block.file.name}
            for member in members:
                value = data[member.data : member.stop]
                decode = decoders.get(member.ending.rpartition(".")[2])
                try:
                    made[member.ending] = value if decode is None else decode(value)
                except _UNDECODABLE as error:
                    raise block.bad(
                        f"sample {block.first + row}, {member.key}.{member.ending},",
                        f"cannot be decoded ({error_line(error, 300)})",
                        "correct the file, take decode: false, or let on_item_error: quarantine "
                        "skip it",
                    ) from None
            return made

        return EachRow(item)


def _members(stream: Any) -> Iterator[ArchiveMember]:
    """Yield the files in an archive that belong to samples.

    Raises:
        tarfile.TarError: It is not a tar archive, ends within a file, or has one with holes.
    """
    import tarfile

    with tarfile.open(fileobj=stream, mode="r:") as archive:
        while (found := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
            match = _NAME.match(found.name)
            if found.issparse():  # its bytes are not those that stand in the archive
                raise tarfile.ReadError(f"{found.name!r} is sparse, as `tar --sparse` writes it")
            if found.size < 0:
                raise tarfile.ReadError(f"{found.name!r} has a size of {found.size}")
            if found.isreg() and match is not None and not _META.match(found.name):
                yield ArchiveMember(
                    match[1],
                    match[2].lower(),
                    found.offset,
                    found.offset_data,
                    found.offset_data + found.size,
                )


def samples(members: Iterator[ArchiveMember]) -> Iterator[list[ArchiveMember]]:
    """Yield the files of each sample.

    Raises:
        ValueError: A sample has two files of one ending.
    """
    sample: list[ArchiveMember] = []
    for member in members:
        if sample and sample[0].key != member.key:
            yield sample
            sample = []
        if any(member.ending == other.ending for other in sample):
            raise ValueError(f"{member.key}.{member.ending} is in it two times in a row")
        sample.append(member)
    if sample:
        yield sample
