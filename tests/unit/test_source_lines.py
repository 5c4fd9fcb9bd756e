"""JSON Lines, JSON arrays, CSV and text: every value, and one sentence for each mistake."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.planning.index.index_place import IndexPlace
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import (
    CsvSource,
    HfStreamSource,
    JsonlSource,
    JsonSource,
    MetaSource,
    TextSource,
)
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged, SourceUnavailable

BLOCKS = (1, 40, 333, 1 << 22)


def some_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows whose texts are full of what JSON and CSV give a meaning."""
    rng = random.Random(seed)
    return [
        {
            "text": "".join(rng.choice('ab"\\,\n[]{}é\t') for _ in range(rng.randrange(20))),
            "n": n,
            "deep": [1, [2, {"a": '"]}'}], {}],
        }
        for n in range(count)
    ]


def all_items(source: IndexedSource) -> list[Any]:
    return source.fetch(range(len(source)))


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n \t\n\n"])
def test_every_line_is_a_value_and_blank_ones_are_none(
    tmp_path: Path, ending: str, block_bytes: int
) -> None:
    """Whatever the line ends and the blocks; the last line may lack its end."""
    rows = some_rows(60, 1)
    path = tmp_path / "a.jsonl"
    path.write_bytes(ending.join(json.dumps(r, ensure_ascii=False) for r in rows).encode())

    source = JsonlSource(str(path), block_bytes=block_bytes)

    assert all_items(source) == rows
    assert sum(source.blocks().items) == len(rows)  # type: ignore[union-attr]


@pytest.mark.parametrize("block_bytes", BLOCKS)
@pytest.mark.parametrize("indent", [None, 2])
def test_every_element_of_an_array_is_a_value(
    tmp_path: Path, indent: int | None, block_bytes: int
) -> None:
    """Brackets, commas and quotes in texts do not count, escaped quotes do not end one."""
    rows: list[Any] = [*some_rows(60, 2), 17, "a,b", [], {}, None, '\\"', "\\\\"]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")

    assert all_items(JsonSource(str(path), block_bytes=block_bytes)) == rows


def test_an_empty_array_beside_another_is_no_mistake(tmp_path: Path) -> None:
    """It holds nothing; alone it is refused like every source of nothing."""
    (tmp_path / "a.json").write_text(" [ ]\n")

    with pytest.raises(InvalidJob, match="hold no elements"):
        JsonSource(str(tmp_path))
    (tmp_path / "b.json").write_text('\ufeff[{"a": 1}]')
    assert all_items(JsonSource(str(tmp_path))) == [{"a": 1}]


@pytest.mark.parametrize("block_bytes", BLOCKS)
def test_csv_gives_what_was_written_with_types_of_all_rows(
    tmp_path: Path, block_bytes: int
) -> None:
    """A type holds for all blocks: whole numbers but for the last row are numbers."""
    rows = [
        {
            "text": row["text"],
            "n": row["n"],
            "real": row["n"] / 2 if row["n"] == 59 else row["n"],
            "flag": row["n"] % 2 == 0,
            "date": "2024-01-01",
            "mixed": "x" if row["n"] == 3 else "7",
        }
        for row in some_rows(60, 3)
    ]
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)

    source = CsvSource(str(path), block_bytes=block_bytes)

    assert all_items(source) == rows
    assert [type(source.fetch([0])[0][name]) for name in rows[0]] == [
        str, int, float, bool, str, str
    ]  # fmt: skip


def test_csv_keeps_texts_as_they_are_written(tmp_path: Path) -> None:
    """Empty numbers are None and empty texts empty; `types` keeps zeros; other delimiters too."""
    (tmp_path / "a.tsv").write_text("zip\tn\ttext\n007\t1\tNA\n008\t\t\n")

    plain = CsvSource(str(tmp_path / "a.tsv"), delimiter="\t")
    told = CsvSource(str(tmp_path / "a.tsv"), ["zip"], delimiter="\t", types={"zip": "text"})

    assert all_items(plain) == [
        {"zip": 7, "n": 1, "text": "NA"},
        {"zip": 8, "n": None, "text": ""},
    ]
    assert all_items(told) == [{"zip": "007"}, {"zip": "008"}]


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_text_by_lines_paragraphs_and_files(tmp_path: Path, block_bytes: int) -> None:
    """Paragraphs are what lies between blank lines; lines are kept, empty ones too."""
    path = tmp_path / "a.txt"
    path.write_bytes("\n\na\nb\n\n \nc\r\nd\n\n\nü".encode())

    def texts(sample_by: str) -> list[str]:
        source = TextSource(str(path), sample_by, block_bytes=block_bytes)
        return [item["text"] for item in all_items(source)]

    assert texts("line") == ["", "", "a", "b", "", " ", "c", "d", "", "", "ü"]
    assert texts("paragraph") == ["a\nb", "c\r\nd", "ü"]
    assert texts("document") == [path.read_bytes().decode()]


def test_only_wanted_lines_are_parsed(tmp_path: Path) -> None:
    """A line that is not JSON harms no other: it is a bad item, named with its number."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 0}\n\n{"a": oops}\n{"a": 2}\n')
    source = JsonlSource(str(path), block_bytes=12)

    assert source.fetch([0, 2]) == [{"a": 0}, {"a": 2}]
    for _ in range(2):
        with pytest.raises(BadItem, match=r"a\.jsonl: line 3 is not JSON .*quarantine") as caught:
            source.fetch([1])
    assert caught.value.fields["reason"].startswith("a.jsonl: line 3 is not JSON")
    assert str(tmp_path) not in caught.value.fields["reason"]


def test_each_bad_record_is_named(tmp_path: Path) -> None:
    """Element and byte of an array, the line of a text that is not UTF-8."""
    (tmp_path / "a.json").write_text('[1, {"a": oops}, 3,]')
    (tmp_path / "a.txt").write_bytes(b"one\n\xfftwo\n")
    array, text = JsonSource(str(tmp_path / "a.json")), TextSource(str(tmp_path / "a.txt"))

    assert array.fetch([0, 2]) == [1, 3]
    with pytest.raises(BadItem, match=r"element 1, at byte 3, is not JSON"):
        array.fetch([1])
    with pytest.raises(BadItem, match=r"element 3, at byte 19, is not JSON"):
        array.fetch([3])
    with pytest.raises(BadItem, match=r"a\.txt: line 2 is not UTF-8 .* at byte 4"):
        text.fetch([1])


MISTAKES: list[tuple[str, bytes, Callable[..., IndexedSource], dict[str, Any], str]] = [
    ("a.jsonl", b'[\n{"a": 1}\n]', JsonlSource, {}, "holds a JSON array .* type: json"),
    ("a.jsonl", b'[{"a": 1}, {"a": 2}]', JsonlSource, {}, "holds a JSON array"),
    ("a.jsonl", b"\x1f\x8b123", JsonlSource, {}, "compressed with gzip.*source type hf"),
    ("a.jsonl", b" \n\n", JsonlSource, {}, "hold no lines"),
    ("a.jsonl", b"1", JsonlSource, {"block_bytes": 0}, "block_bytes is 0"),
    ("a.txt", b"\xff\xfea\0", TextSource, {}, "UTF-16"),
    ("a.txt", b"a", TextSource, {"sample_by": "word"}, "sample_by is 'word'"),
    ("a.json", b'{"a": 1}\n{"a": 2}', JsonSource, {}, "holds an object: .* type: jsonl"),
    ("a.json", b"17", JsonSource, {}, r"does not begin with \["),
    ("a.json", b'[{"a": 1}, {"a"', JsonSource, {}, "ends within its array, in element 1"),
    ("a.json", b"[1]\n[2]", JsonSource, {}, "goes on after its array, at byte 3"),
    ("a.csv", b"a,b\n1,2\n\"x\ny\",3\n1,2,3\n", CsvSource, {}, "line 5 has 3 values .* names 2"),
    ("a.csv", b"a,a\n1,2\n", CsvSource, {}, "must name every column"),
    ("a.csv", b"a,b\n1,2\n", CsvSource, {"columns": ["c"]}, "no column 'c'"),
    ("a.csv", b"a,b\n1,2\n", CsvSource, {"types": {"a": "date"}}, "types.a is 'date'"),
    ("a.csv", b"a,b\n1,2\n", CsvSource, {"delimiter": "||"}, "give one character"),
    ("a.csv", b"a,b\n", CsvSource, {}, "hold no rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "make", "more", "sentence"), MISTAKES)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    name: str,
    data: bytes,
    make: Callable[..., IndexedSource],
    more: dict[str, Any],
    sentence: str,
) -> None:
    """The file, the place in it and the remedy are in the message."""
    (tmp_path / name).write_bytes(data)

    with pytest.raises(InvalidJob, match=sentence):
        make(str(tmp_path / name), **more)


def test_a_value_that_is_not_of_its_type_names_the_type(tmp_path: Path) -> None:
    """The types were given: the delimiter and the quotes are not what is wrong."""
    (tmp_path / "a.csv").write_text("x,y\n1,2\n3,b\n")

    with pytest.raises(InvalidJob, match=r"line 3 .*another type than in types: \{y: int\}"):
        CsvSource(str(tmp_path / "a.csv"), types={"y": "int"}).fetch([0])


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    """Both files and their columns are named; another order of columns is none."""
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,x\n2,1\n")
    (tmp_path / "c.csv").write_text("x,z\n1,2\n")

    assert all_items(CsvSource(str(tmp_path / "[ab].csv"))) == [{"x": 1, "y": 2}] * 2
    with pytest.raises(InvalidJob, match=r"c\.csv has the columns x, z, and a\.csv has x, y"):
        CsvSource(str(tmp_path))


def test_a_file_that_changes_or_goes_is_noticed(tmp_path: Path) -> None:
    """As it is read, not only when it is opened: by then its blocks may lie elsewhere."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    source = JsonlSource(str(path), block_bytes=1, cache_bytes=0)
    source.identity()
    away = path.rename(tmp_path / "away")

    with pytest.raises(SourceUnavailable, match=r"a\.jsonl cannot be read") as caught:
        source.fetch([1])
    assert caught.value.fields["item"] == 1
    away.rename(path)
    assert source.fetch([1]) == [{"a": 2}]
    path.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(SourceChanged, match=r"a\.jsonl changed"):
        source.fetch([0])


def test_this_machine_may_be_named_in_a_url(tmp_path: Path) -> None:
    """`file://localhost/x` is `/x`, and not a folder `localhost` (RFC 8089)."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n')
    (tmp_path / "meta.json").write_text('{"a": {"file_name": "a.jsonl"}}')

    plain, named = JsonlSource(f"file://{path}"), JsonlSource(f"file://localhost{path}")
    meta = MetaSource(f"file://localhost{tmp_path}/meta.json")

    assert named.identity() == plain.identity()
    assert all_items(meta) == all_items(named) == [{"a": 1}]
    assert IndexPlace(f"file://localhost{path}").size() == path.stat().st_size
    stream = HfStreamSource("json", data_files=f"file://localhost{path}")
    assert [item for item, _ in stream.open(0, None)] == [{"a": 1}]


def test_a_block_is_read_once_for_the_rows_that_are_drawn_from_it(tmp_path: Path) -> None:
    """And again only when others have taken its place in memory."""
    rows = [{"n": n} for n in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = JsonlSource(str(path), block_bytes=200)

    source.keep_blocks(100)
    assert all_items(source) == rows
    assert all_items(source) == rows
    assert source.read_bytes() == path.stat().st_size


def test_what_was_found_is_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has not changed is opened for its items alone, and one that has is looked at."""
    import os

    monkeypatch.setenv("PENSTOCK_HASH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    monkeypatch.setattr("penstock.server.files.catalog.SETTLED_S", -1.0)
    first = JsonlSource(str(path)).identity()
    reads: list[int] = []
    opened = os.stat(path).st_size

    source = JsonlSource(str(path))
    read = source.file_set.read
    monkeypatch.setattr(source.file_set, "read", lambda *a: reads.append(1) or read(*a))

    assert source.identity() == first
    assert reads == []
    assert all_items(source) == [{"a": 1}, {"a": 2}]
    assert (len(reads), source.read_bytes()) == (1, opened)
    path.write_text('{"a": 3}\n')
    assert all_items(JsonlSource(str(path))) == [{"a": 3}]
