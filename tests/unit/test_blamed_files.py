"""A file that is damaged, or of another kind, is blamed by name, and for what is wrong with it."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from damaged.formats import FORMATS
from damaged.reading import attempt
from penstock.server.roles.processors.tokenize import TokenizeProcessor
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import (
    ArrowSource,
    CsvSource,
    HfSource,
    JsonlSource,
    JsonSource,
    MdsSource,
    MetaSource,
    ParquetSource,
    SavedSource,
    TextSource,
    TokensSource,
    WebdatasetSource,
)
from penstock.server.sources.json_array import top_level
from penstock.wire.errors import BadItem, InvalidJob


def rows(count: int = 40) -> pa.Table:
    return pa.table({"id": range(count), "text": [f"row {n}" for n in range(count)]})


# --- files of another kind ---


def _parquet(path: Path) -> None:
    pq.write_table(rows(), path)


def _arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows().schema) as writer:
        writer.write_table(rows())


def _gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b'{"id": 1}\n' * 99))


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", '{"id": 1}\n' * 99)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("0.json")
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"{}"))


def _npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.arange(9))


def _pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "parquet": (_parquet, "is a Parquet file: use type: parquet"),
    "arrow": (_arrow, "is an Arrow file: use type: arrow"),
    "gzip": (_gzip, "is compressed with gzip"),
    "zip": (_zip, "is a zip archive"),
    "tar": (_tar, "is a tar file: use type: webdataset"),
    "npy": (_npy, "is an array of NumPy: use type: tokens"),
    "pointer": (_pointer, "is a pointer of Git LFS and not the data: run `git lfs pull`"),
}
READERS: dict[str, Callable[[str], IndexedSource]] = {
    "jsonl": JsonlSource,
    "json": JsonSource,
    "csv": CsvSource,
    "text": TextSource,
    "document": lambda path: TextSource(path, "document"),
    "webdataset": WebdatasetSource,
    "parquet": ParquetSource,
    "arrow": ArrowSource,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_known_by_its_first_bytes(
    tmp_path: Path, reader: str, kind: str
) -> None:
    """Before any line or row of it is looked at, with the type that reads it."""
    write, said = KINDS[kind]
    path = tmp_path / "a.data"
    write(path)
    if (reader, kind) in (("webdataset", "tar"), ("parquet", "parquet"), ("arrow", "arrow")):
        assert len(READERS[reader](str(path))) > 0
        return

    with pytest.raises(InvalidJob) as refused:
        READERS[reader](str(path))

    assert f"{path} {said}" in refused.value.message


def test_text_may_begin_like_another_format(tmp_path: Path) -> None:
    """A column, a word: only with the bytes that follow in such files is it one."""
    (tmp_path / "a.csv").write_text("PAR1,naïve\n1,2\n")
    (tmp_path / "a.txt").write_text("BZh and ARROW1 are words, é" + "é" * 600)

    assert CsvSource(str(tmp_path / "a.csv")).fetch([0]) == [{"PAR1": 1, "naïve": 2}]
    assert len(TextSource(str(tmp_path / "a.txt"))) == 1


# --- damaged files ---


def error_of(reader: Callable[[str], IndexedSource], path: Path) -> str | None:
    """Return what an error that blames the bytes says as a file is read; None = there is none."""
    try:
        source = reader(str(path))
        source.fetch(range(min(len(source), 99)))
    except (InvalidJob, BadItem) as error:
        return error.message
    return None


def test_a_damaged_arrow_file_is_not_said_to_be_away(tmp_path: Path) -> None:
    """With four random bytes changed, of each of 120: never `cannot be read at the moment`."""
    _arrow(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    path = tmp_path / "a.arrow"
    for seed in range(120):
        draw, damaged = random.Random(seed), bytearray(data)
        for _ in range(4):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        said = error_of(ArrowSource, path)
        assert said is None or str(path) in said, seed


def test_each_bit_of_a_parquet_footer_may_flip(tmp_path: Path) -> None:
    """It is damaged, or says the same, or its rows are other ones: no error is Python's own."""
    pq.write_table(rows(6), tmp_path / "whole", store_schema=False, write_statistics=False)
    data = (tmp_path / "whole").read_bytes()
    length = int.from_bytes(data[-8:-4], "little") + 8
    path = tmp_path / "a.parquet"
    for bit in range((len(data) - length) * 8, len(data) * 8, 5):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        said = error_of(ParquetSource, path)
        assert said is None or str(path) in said, bit


def test_a_text_that_is_not_utf8_is_a_bad_item_by_row_and_column(tmp_path: Path) -> None:
    """Of a Parquet file that other programs wrote; the rows beside it are as good as ever."""
    raw = pa.array([b"good", b"bad \xff", b"good"]).view(pa.string())
    pq.write_table(pa.table({"id": [1, 2, 3], "text": raw}), tmp_path / "a.parquet")
    source = ParquetSource(str(tmp_path / "a.parquet"))

    assert source.fetch([0, 2]) == [{"id": 1, "text": "good"}, {"id": 3, "text": "good"}]
    with pytest.raises(BadItem, match=r"a\.parquet: row 1 of row group 0, column 'text', cannot"):
        source.fetch([0, 1, 2])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"options": [1]}, "one: options is [1]: give keys and values"),
        ({"options": "abc"}, "one: options is 'abc': give keys and values"),
        ({"options": {"columns": 5}}, "one.options.columns is 5: give a list of text"),
        ({"options": {"colums": None}}, "did you mean columns?"),
        ({"type": [1]}, "one: type is [1]: give a name, such as jsonl"),
        ({"type": {"a": 1}}, "one: type is {'a': 1}: give a name"),
        ({"tags": [1]}, "one.tags is [1]: give names"),
        ({"columns": 5}, "one.columns is 5: give names"),
        ({"sample_ratio": [2]}, "one: sample_ratio is [2]: give a number"),
    ],
)
def test_a_meta_file_with_a_wrong_value_is_refused_by_key(
    tmp_path: Path, entry: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    meta = tmp_path / "meta.json"
    meta.write_text(json.dumps({"one": {"file_name": "a.jsonl", **entry}}))

    with pytest.raises(InvalidJob) as refused:
        MetaSource(str(meta))

    assert f"{meta}:1: " in refused.value.message
    assert said in refused.value.message


MDS: dict[str, Any] = {
    "shards": {"a": 1},
    "shards.0": [1],
    "shards.0.samples": "7",
    "shards.0.column_names": [[1]],
    "shards.0.column_encodings": ["str"],
    "shards.0.column_sizes": 5,
    "shards.0.compression": [1],
    "shards.0.raw_data": {"basename": 5, "bytes": 1},
    "shards.0.raw_data.bytes": 1.5,
    "shards.0.zip_data": "x",
}


@pytest.mark.parametrize("place", MDS)
def test_an_mds_index_with_a_wrong_value_is_refused_by_key(tmp_path: Path, place: str) -> None:
    FORMATS["mds plain"].write(tmp_path)
    index = tmp_path / "index.json"
    said = json.loads(index.read_text())
    *path, last = place.split(".")
    inner = said
    for key in path:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[int(last) if isinstance(inner, list) else last] = MDS[place]
    index.write_text(json.dumps(said))

    with pytest.raises(InvalidJob, match=r"is not an index of MDS shards \(ValueError") as refused:
        MdsSource(str(tmp_path))

    assert str(index) in refused.value.message
    assert last.rstrip("0") in refused.value.message or last == "0"


def test_a_saved_folder_with_another_state_is_refused(tmp_path: Path) -> None:
    FORMATS["saved"].write(tmp_path)
    for text in (
        "[1]",
        '{"_data_files": []}',
        '{"_data_files": 5}',
        '{"_data_files": [{"filename": 5}]}',
        "\x1b",
        "{",
    ):
        (tmp_path / "saved" / "state.json").write_text(text)

        with pytest.raises(InvalidJob, match=r"state\.json is not what save_to_disk writes"):
            SavedSource(str(tmp_path / "saved"))


def test_json_that_begins_with_null_is_no_data_set_of_the_library(tmp_path: Path) -> None:
    """Its reader would end the process."""
    for text in ("null", '\n null\n{"a": 1}\n'):
        (tmp_path / "a.json").write_text(text)

        with pytest.raises(InvalidJob, match=r"a\.json begins with null"):
            HfSource("json", str(tmp_path / "a.json"))


def test_an_array_file_with_any_header_is_refused_by_name(tmp_path: Path) -> None:
    """NumPy reads it with Python's parser; and -5 rows of -8 ids have as many bytes as 5 of 8."""
    np.save(tmp_path / "a.npy", np.arange(40, dtype=np.uint16).reshape(5, 8))
    data = (tmp_path / "a.npy").read_bytes()
    for header in (b"(-5, -8)", b"(5, 8\0)", b"(((((((", b"(5, ()) ", b"('a', 8)", b"(f(), 8)"):
        (tmp_path / "a.npy").write_bytes(data.replace(b"(5, 8), ", header.ljust(8)))
        for _ in range(2):
            with pytest.raises(
                InvalidJob, match=r"a\.npy (is not a \.npy file|has 208 bytes)"
            ) as no:
                TokensSource(str(tmp_path / "a.npy"))
            assert " at 0x" not in no.value.message


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidJob, match=r"tokenizer\.json' cannot be read: Not a directory"):
        TokenizeProcessor(str(tmp_path / "file" / "tokenizer.json")).identity()


def test_a_mark_of_utf8_alone_is_no_line(tmp_path: Path) -> None:
    """Nor a paragraph, where only blank lines follow it."""
    for ending in (b"", b"\n", b"\n\n \n"):
        (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + ending)
        (tmp_path / "b").write_bytes(b'\xef\xbb\xbf\n{"id": 1}\n')

        assert JsonlSource([str(tmp_path / "a"), str(tmp_path / "b")]).fetch([0]) == [{"id": 1}]
        with pytest.raises(InvalidJob, match=r"hold no lines; the first is .*/a"):
            JsonlSource(str(tmp_path / "a"))
        with pytest.raises(InvalidJob, match="hold no text"):
            TextSource(str(tmp_path / "a"), "paragraph")


# --- bounds ---


def test_millions_of_backslashes_take_no_longer_than_other_bytes() -> None:
    """A quote after an odd number of them is none; each is looked at once."""
    for slashes in (1, 2, 3, 3_000_000, 3_000_001):
        data = b'"' + b"\\" * slashes + b'", 1, "a\\"b"]'
        closes = slashes % 2 == 0
        started = time.process_time()

        found = top_level(data)

        assert time.process_time() - started < 5.0
        if closes:
            assert found.commas.tolist() == [slashes + 2, slashes + 5]
            assert found.end == len(data) - 1


def test_strings_of_any_backslashes_are_elements(tmp_path: Path) -> None:
    items = [{"text": "\\" * n + '"' * (n % 3) + ",]"} for n in range(60)]
    (tmp_path / "a.json").write_text(json.dumps(items))

    source = JsonSource(str(tmp_path / "a.json"), block_bytes=100)

    assert source.fetch(range(len(source))) == items


def test_a_csv_file_of_too_many_columns_is_refused_before_its_rows(tmp_path: Path) -> None:
    """Arrow takes kilobytes for each of them."""
    names = ",".join(f"c{n}" for n in range(100_000))
    (tmp_path / "a.csv").write_text(f"{names}\n{'1,' * 99_999}1\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with pytest.raises(InvalidJob, match=r"a\.csv has 100,000 columns, and of CSV at most 20,000"):
        CsvSource(str(tmp_path / "a.csv"))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_sentence_about_many_columns_stays_one(tmp_path: Path) -> None:
    names = ",".join(f"c{n}" for n in range(9_000))
    (tmp_path / "a.csv").write_text(f"{names}\n{'1,' * 8_999}1\n")

    with pytest.raises(InvalidJob, match=r"c19 and 8,980 more") as refused:
        CsvSource(str(tmp_path / "a.csv"), ["none"])

    assert len(refused.value.message) < 500


def test_a_file_without_an_end_of_line_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where damage hides where a record ends, the rest of the file would come into memory."""
    monkeypatch.setattr("penstock.server.sources.blocked.MAX_RECORD_BYTES", 1 << 16)
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n' + "x" * (1 << 18))
    (tmp_path / "a.csv").write_text('id\n1\n"' + "2\n" * (1 << 17))
    (tmp_path / "a.json").write_text('[{"id": 1}, "' + "1, " * (1 << 16))

    for reader, name in ((JsonlSource, "jsonl"), (CsvSource, "csv"), (JsonSource, "json")):
        with pytest.raises(InvalidJob, match=rf"a\.{name}: what begins at byte \d+ has no end"):
            reader(str(tmp_path / f"a.{name}"), block_bytes=100)


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_read(tmp_path: Path, name: str) -> None:
    """What the test of damage starts from."""
    FORMATS[name].write(tmp_path)

    outcome, found, _ = attempt(FORMATS[name], tmp_path)

    assert outcome == "read", found
