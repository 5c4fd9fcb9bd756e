"""MosaicML Streaming's MDS shards, with or without compression."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.server.files.filesystems import require
from penstock.server.roles.parameters import declared
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex
from penstock.server.sources.cache import BlockRows, EachRow
from penstock.server.sources.file_source import Files
from penstock.server.sources.files import refusing
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_columns, invalid_files
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob
from penstock.wire.plain import clean_text

Decoder = Callable[[bytes], Any]

_INDEX = "index.json"
_SCALARS = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
)  # fmt: skip
_SHAPE_DTYPES = ("u1", "<u2", "<u4", "<u8")
_VALUE_DTYPES = {
    8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4",
    64: "<u8", 65: "<i8", 66: "<f8",
}  # fmt: skip
_SIMPLE: dict[str, Decoder] = {
    "bytes": bytes,
    "str": lambda data: data.decode(),
    "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "json": json.loads,
    "jpeg": bytes,
    "png": bytes,
}
_COMPRESSIONS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli", "snappy": "snappy"}

_SNAPPY_RATIO = 64  # three bytes of snappy stand for 64 at most
_PIECE_BYTES = 16 << 20


@declared
class MdsSource(BlockedFiles):
    """The samples of MDS shards, as `streaming.MDSWriter` writes them, with their `index.json`.

    The layout is that of `streaming/base/format/mds`, version 2. Items are dicts of the columns:
    `ndarray` is an array, scalars and `int` are Python's numbers, `jpeg` and `png` stay encoded
    bytes. A block is a part of a shard; a compressed shard (zstd, gz, bz2, br, snappy) is
    uncompressed as one, so its block is the whole shard. Pickles are refused, since reading one
    runs code.

    Args:
        files: The folders, or their `index.json`: paths or URLs, one or a list. All indexes below a
            folder count; shards that several name are read once.
        columns: Which columns to read, in this order; None = all, as the index orders them.
        block_bytes: About how many bytes of a shard without compression are read at once. Smaller
            blocks mix batches better with fewer in memory, larger ones need fewer requests to a
            store. Part of the order of items.

    Raises:
        InvalidJob: There is no index, a shard is missing or damaged, an encoding is not known.
        MissingExtra: fsspec or the filesystem's package, or pyarrow for a compressed shard, is not
            installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "mds"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (
        _INDEX, ".mds", *(f".mds.{name}" for name in _COMPRESSIONS)
    )  # fmt: skip

    files: Files
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._shards: dict[str, dict[str, Any]] = {}
        self._decoders: dict[str, Decoder] = {}
        given = [self.files] if isinstance(self.files, str) else self.files
        self.open_files(
            [posixpath.dirname(name) or "." if name.endswith(_INDEX) else name for name in given],
            "samples",
            self.block_bytes,
        )
        first = self.shards[0]
        existing = self._shards[first.path]["column_names"]
        self.names = check_columns(self.columns, existing, first.name)
        for file in self.shards:
            named = self._shards[file.path]
            check_columns(self.names, named["column_names"], file.name)
            for name, encoding in zip(
                named["column_names"], named["column_encodings"], strict=True
            ):
                if name in self.names and encoding not in self._decoders:
                    self._decoders[encoding] = decoder_of(encoding, name, file.path)

    def data_files(self) -> list[DataFile]:
        """Return the shards that the indexes name, in their order, each once."""
        indexes = [file for file in self.file_set.files if posixpath.basename(file.name) == _INDEX]
        if not indexes:
            raise invalid_files(
                f"there is no {_INDEX} beside the shards: name the folder that MDSWriter wrote"
            )
        by_path = {file.path: file for file in self.file_set.files}
        found: dict[str, DataFile] = {}
        for file in indexes:
            for shard in self.noted(file, "mds index 1", self._read_index)["shards"]:
                packed = shard["zip_data"] or shard["raw_data"]
                path = posixpath.join(posixpath.dirname(file.path), packed["basename"])
                if path not in by_path:
                    raise invalid_files(
                        f"{file.path} names {packed['basename']}, which is not there: copy the "
                        "folder again, whole"
                    )
                if by_path[path].size != packed["bytes"]:
                    raise invalid_files(
                        f"{path} has {by_path[path].size} bytes and {_INDEX} says "
                        f"{packed['bytes']}: copy the folder again, whole"
                    )
                found[path], self._shards[path] = by_path[path], shard
        if not found:
            raise invalid_files(
                f"{indexes[0].path} lists no shards: name the folder that MDSWriter wrote"
            )
        return list(found.values())

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns; what the encodings are in Arrow is not known."""
        return dict.fromkeys(self.names, "")

    def index_of(self, file: DataFile) -> FileIndex:
        """Return parts of the shard; a compressed one is a single block.

        Raises:
            InvalidJob: It has other samples than its index says.
        """
        shard, index = self._shards[file.path], FileIndex.empty()
        samples = int(shard["samples"])
        if shard["zip_data"]:
            if samples:
                index.add(0, file.size, samples, nbytes=shard["raw_data"]["bytes"], first=0)
            return index
        offsets = self._offsets(file, shard, 0, samples)
        first, start = 0, int(offsets[0])
        for sample, stop in enumerate(offsets[1:].tolist()):
            if stop - start > self.block_bytes and sample > first:
                end = int(offsets[sample])
                index.add(start, end, sample - first, first=first)
                first, start = sample, end
        if samples > first:
            index.add(start, file.size, samples - first, first=first)
        return index

    def read_block(self, block: FileBlock) -> bytes:
        """Return the samples of a block, after the places where they start in these bytes."""
        shard = self._shards[block.file.path]
        data = self.file_set.read(block.file, block.start, block.stop)
        if shard["zip_data"]:
            return data
        offsets = self._offsets(block.file, shard, block.first, block.items)
        return (offsets - block.start).tobytes() + data

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the samples of a block; they are decoded when they are asked for."""
        shard = self._shards[block.file.path]
        encodings = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
        decoders = {name: self._decoders[encodings[name]] for name in self.names}
        if shard["zip_data"]:
            data = _uncompressed(data, shard)
            offsets = np.frombuffer(data, "<u4", block.items + 1, 4).astype(np.int64)
            _check_offsets(offsets, len(data))
        else:
            offsets = np.frombuffer(data, np.int64, block.items + 1)
            data = data[offsets.nbytes :]

        def item(row: int) -> dict[str, Any]:
            sample, name = data[int(offsets[row]) : int(offsets[row + 1])], ""
            try:
                places = _places(sample, shard["column_names"], shard["column_sizes"])
                found = {}
                for name, decode in decoders.items():
                    begin, end = places[name]
                    found[name] = decode(sample[begin:end])
            except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
                raise block.bad(
                    f"sample {block.first + row}{f', column {name!r},' * bool(name)}",
                    f"cannot be decoded ({error_line(error, 300)})",
                    "write it again, or let on_item_error: quarantine skip it",
                ) from None
            return found

        return EachRow(item)

    def _offsets(
        self, file: DataFile, shard: dict[str, Any], first: int, items: int
    ) -> NDArray[np.int64]:
        """Return where samples start, then where the last one ends: int64 (items + 1,)."""
        samples = int(shard["samples"])
        if file.size < 4 * (samples + 2):
            raise _torn(file, f"{file.size} bytes are too few for {samples} samples")
        found = int.from_bytes(self.file_set.read(file, 0, 4), "little") if first == 0 else samples
        if found != samples:
            raise _torn(file, f"it says that it has {found} samples and {_INDEX} says {samples}")
        data = self.file_set.read(file, 4 * (1 + first), 4 * (2 + first + items))
        offsets = np.frombuffer(data, "<u4").astype(np.int64)
        try:
            _check_offsets(offsets, file.size)
        except ValueError as error:
            raise _torn(file, str(error)) from None
        return offsets

    def _read_index(self, file: DataFile) -> dict[str, Any]:
        """Return what an index says of its shards.

        Raises:
            InvalidJob: It is not an index of MDS shards.
        """
        with refusing(file):
            data = self.file_set.read(file, 0, file.size)
        try:
            said = json.loads(data)
            listed = said.get("shards") if isinstance(said, dict) else None
            if not isinstance(listed, list):
                raise ValueError("it has no list of shards")
            shards = [_checked_shard(number, shard) for number, shard in enumerate(listed)]
        except (ValueError, RecursionError) as error:
            raise invalid_files(
                f"{file.path} is not an index of MDS shards ({error_line(error, 300)}): name the "
                "folder that MDSWriter wrote"
            ) from None
        return {"shards": shards}


def _checked_shard(number: int, shard: Any) -> dict[str, Any]:
    """Return what is needed of a shard's entry in an index.

    Raises:
        ValueError: It is of another format, or a value is not what MDSWriter writes.
    """

    def value(key: str, fits: Callable[[Any], bool]) -> Any:
        found = shard.get(key) if isinstance(shard, dict) else None
        if not fits(found):
            raise ValueError(f"{key} of shard {number} is {clean_text(repr(found), 100)}")
        return found

    value("format", lambda found: found == "mds")
    value("version", lambda found: found == 2)
    names = value("column_names", _is_texts)
    of_columns = {"column_names": names}
    for key, fits in (("column_encodings", _is_text), ("column_sizes", _is_size)):
        of_columns[key] = value(key, partial(_are_all, len(names), fits))
    if len(set(names)) < len(names):
        raise ValueError(f"two columns of shard {number} have one name")
    packing = value("compression", lambda found: found is None or _is_text(found)) or ""
    packing = packing.partition(":")[0]
    files = {}
    for key in ("raw_data", "zip_data"):
        entry = value(key, partial(_is_file, optional=key == "zip_data"))
        files[key] = entry and {"basename": entry["basename"], "bytes": entry["bytes"]}
    if files["zip_data"] and packing not in _COMPRESSIONS:
        raise ValueError(
            f"compression {clean_text(repr(packing), 100)} of shard {number}, of which only "
            f"{', '.join(_COMPRESSIONS)} are read"
        )
    samples = value("samples", _is_count)
    return {"samples": samples, **of_columns, **files, "compression": packing}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_all(count: int, fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and len(value) == count and all(map(fits, value))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_size(value: Any) -> bool:
    """Tell whether a value says how many bytes a column takes: a number, or None = it varies."""
    return value is None or _is_count(value)


def _is_file(value: Any, *, optional: bool) -> bool:
    if value is None:
        return optional
    return (
        isinstance(value, dict)
        and _is_text(value.get("basename"))
        and bool(value["basename"])
        and _is_count(value.get("bytes"))
    )


def _check_offsets(offsets: NDArray[np.int64], size: int) -> None:
    if (np.diff(offsets) < 0).any() or int(offsets[-1]) > size:
        raise ValueError("its samples do not lie one after another")


def _torn(file: DataFile, said: str) -> InvalidJob:
    return invalid_files(
        f"{file.path} is not a whole MDS shard: {said}; copy the folder again, whole"
    )


def _uncompressed(data: bytes, shard: dict[str, Any]) -> bytes:
    arrow = require("pyarrow")
    codec, size = _COMPRESSIONS[shard["compression"]], shard["raw_data"]["bytes"]
    if codec == "snappy":  # without frames, so that the size has to be told
        if size > _SNAPPY_RATIO * len(data):
            raise ValueError(f"{len(data)} bytes where the index says {size} without compression")
        return bytes(arrow.decompress(data, size, codec, asbytes=True))
    stream = arrow.CompressedInputStream(arrow.BufferReader(data), codec)
    # Piece by piece: neither what the index claims nor what is packed in it is believed.
    raw = bytearray()
    while len(raw) <= size and (more := stream.read(min(_PIECE_BYTES, size + 1 - len(raw)))):
        raw += more
    if len(raw) != size:
        at_least = "at least " if len(raw) > size else ""
        raise ValueError(f"{at_least}{len(raw)} bytes where the index says {size}")
    return bytes(raw)


def _places(
    sample: bytes, names: Sequence[str], sizes: Sequence[int | None]
) -> dict[str, tuple[int, int]]:
    """Return where columns are in a sample: the sizes of those that vary come before all."""
    varying = sum(size is None for size in sizes)
    told = iter(np.frombuffer(sample, "<u4", varying).tolist())
    at, places = 4 * varying, {}
    for name, size in zip(names, sizes, strict=True):
        end = at + (next(told) if size is None else size)
        places[name] = (at, end)
        at = end
    if at != len(sample):
        raise ValueError(f"its columns take {at} bytes of {len(sample)}")
    return places


def decoder_of(encoding: str, column: str, path: str) -> Decoder:
    """Return what makes a value of its bytes.

    Args:
        encoding: As the index names it, such as `str` or `ndarray:int32`.
        column: The column, for messages.
        path: The shard, for messages.

    Raises:
        InvalidJob: It is a pickle, or an encoding that is not known.
    """
    name, _, config = encoding.partition(":")
    if encoding in _SIMPLE:
        return _SIMPLE[encoding]
    if encoding in _SCALARS:
        dtype = np.dtype(encoding).newbyteorder("<")
        return lambda data: np.frombuffer(data, dtype)[0].item()
    if name == "ndarray" and re.fullmatch(r"(\w+(:\d+(,\d+)*)?)?", config):
        dtype_name, _, shape = config.partition(":")
        fixed = tuple(map(int, shape.split(","))) if shape else None
        if dtype_name in ("", *_SCALARS):
            kind = np.dtype(dtype_name).newbyteorder("<") if dtype_name else None
            return lambda data: _array(data, kind, fixed)
    remedy = (
        "reading a pickle runs code: write the column as json, str or ndarray"
        if name == "pkl"
        else f"known are {', '.join([*_SIMPLE, 'ndarray', *_SCALARS])}"
    )
    raise InvalidJob(
        f"{path}: column {clean_text(repr(column), 100)} has the encoding "
        f"{clean_text(repr(encoding), 100)}: {remedy}, or leave it out with "
        "columns",
        key="source.columns",
    )


def _array(data: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Any:
    """Return an array: its dtype and shape stand before the values where they are not fixed."""
    at = 0
    if dtype is None:
        dtype, at = np.dtype(_VALUE_DTYPES[data[0]]), 1
    if shape is None:
        dimensions, kind = data[at] >> 2, np.dtype(_SHAPE_DTYPES[data[at] % 4])
        shape = tuple(np.frombuffer(data, kind, dimensions, at + 1).tolist())
        at += 1 + dimensions * kind.itemsize
    values = np.frombuffer(data, dtype, math.prod(shape), at)
    if at + values.nbytes != len(data):
        raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
    return values.reshape(shape).astype(dtype.newbyteorder("="))
