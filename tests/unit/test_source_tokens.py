"""Token ids in files: flat ones, and Megatron's, which Megatron's own library wrote."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.formats.write import DOCUMENTS
from penstock.server.roles.distributors import MapDistributor
from penstock.server.sources import MegatronSource, TokensSource
from penstock.wire.errors import InvalidJob, SourceChanged

GOLDEN = Path(__file__).parents[1] / "data" / "formats" / "megatron"


def ids(source: Any) -> list[list[int]]:
    return [item["input_ids"].tolist() for item in source.fetch(range(len(source)))]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("block_bytes", [1, 9, 1 << 20])
@pytest.mark.parametrize("keeps", [True, False])
def test_megatrons_own_files_give_its_documents(dtype: str, block_bytes: int, keeps: bool) -> None:
    """By documents or by sequences, with sizes from the index alone, in the index's dtype."""
    by_document = [[i for sequence in document for i in sequence] for document in DOCUMENTS]
    by_sequence = [sequence for document in DOCUMENTS for sequence in document]

    for sample_by, expected in (("document", by_document), ("sequence", by_sequence)):
        source = MegatronSource(str(GOLDEN / f"{dtype}.bin"), sample_by, block_bytes=block_bytes)
        source.keep_blocks(100 if keeps else 0)
        sizes = source.sizes(range(len(source)))

        assert source.token_count() == sum(map(len, expected))
        assert source.read_bytes() == 0
        assert sizes is not None
        assert list(sizes) == [len(document) for document in expected]
        assert ids(source) == expected
        assert ids(source) == expected
        assert source.fetch([0])[0]["input_ids"].dtype == dtype


def test_a_sequence_is_read_alone_where_blocks_are_not_kept(tmp_path: Path) -> None:
    """So `shuffle: full` is allowed, and reads what it draws; with blocks each is read once."""
    (tmp_path / "a.bin").write_bytes(np.arange(8000, dtype=np.uint16).tobytes())
    source = TokensSource(str(tmp_path), "uint16", sequence_length=10, block_bytes=4000)
    distributor = MapDistributor("full")
    distributor.bind({"main": source}, seed=1, epochs=1, lanes=4)

    assert len(source.blocks()) == 4
    assert source.fetch([555])[0]["input_ids"].tolist() == [*range(5550, 5560)]
    assert source.read_bytes() == 20
    source.keep_blocks(1)
    source.fetch([555])
    source.fetch([556])
    assert source.read_bytes() == 4000


def test_spans_of_sequences_are_gathered_into_one_array(tmp_path: Path) -> None:
    """Without an object for any sequence; lengths come from where the ids `eos` are."""
    (tmp_path / "a.bin").write_bytes(np.array([5, 6, 0, 0, 7, 8, 9, 0, 1], np.uint8).tobytes())
    source = TokensSource(str(tmp_path), "uint8", eos=0)

    rows, starts, stops = np.array([[2, 0, 3], [1, 0, 0], [4, 2, 1]])
    out = np.zeros(6, np.uint8)
    source.gather("input_ids", rows, starts, stops, out)

    assert source.lengths("input_ids", np.arange(4)).tolist() == [3, 1, 4, 1]
    assert source.token_count() == 9
    assert out.tolist() == [8, 9, 0, 5, 6, 1]
    assert ids(source) == [[5, 6, 0], [0], [7, 8, 9, 0], [1]]
    assert not source.knows_sizes()


@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
def test_arrays_of_numpy_are_cut_as_they_say(tmp_path: Path, block_bytes: int) -> None:
    """Two dimensions are rows; one is cut by length, or at the end of documents."""
    np.save(tmp_path / "rows.npy", np.arange(21, dtype=np.int64).reshape(7, 3))
    np.save(tmp_path / "flat.npy", np.arange(8, dtype=">u2"))

    rows = TokensSource(str(tmp_path / "rows.npy"), block_bytes=block_bytes)
    flat = str(tmp_path / "flat.npy")
    cut = TokensSource(flat, sequence_length=3, block_bytes=block_bytes)
    whole = TokensSource(flat, sequence_length=3, drop_last=True, block_bytes=block_bytes)
    at_ids = TokensSource(flat, eos=4, block_bytes=block_bytes)

    assert ids(rows) == np.arange(21).reshape(7, 3).tolist()
    assert ids(cut) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert np.asarray(cut.sizes(range(3))).tolist() == [3, 3, 2]
    assert ids(whole) == [[0, 1, 2], [3, 4, 5]]
    assert ids(at_ids) == [[0, 1, 2, 3, 4], [5, 6, 7]]
    assert cut.fetch([0])[0]["input_ids"].dtype == np.uint16


def test_a_header_of_a_raw_file_is_passed_over(tmp_path: Path) -> None:
    """As of those that begin with 256 numbers of 4 bytes (llm.c)."""
    (tmp_path / "a.bin").write_bytes(bytes(1024) + np.array([1, 2, 3], "<u2").tobytes())

    source = TokensSource(str(tmp_path), "uint16", sequence_length=2, header_bytes=1024)

    assert ids(source) == [[1, 2], [3]]


def index_file(lengths: list[int], pointers: list[int], bounds: list[int], code: int = 1) -> bytes:
    return (
        struct.pack("<9sQBQQ", b"MMIDIDX", 1, code, len(lengths), len(bounds))
        + np.array(lengths, np.int32).tobytes()
        + np.array(pointers, np.int64).tobytes()
        + np.array(bounds, np.int64).tobytes()
    )


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (None, r"a\.bin has no \.idx beside it"),
        (b"what else", "does not begin with MMIDIDX"),
        (index_file([3], [0], [0, 1], code=7), "of version 1 with values of kind 7"),
        (index_file([3], [0], [0, 1])[:-9], "too few for what it lists"),
        (index_file([2], [0], [0, 1]), "its documents end at byte 2 of 3"),
        (index_file([1, 2], [0, 2], [0, 1, 2]), "does not follow"),
        (index_file([1, 2], [0, 1], [0, 5]), "no valid bounds"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(
    tmp_path: Path, index: bytes | None, sentence: str
) -> None:
    """Before anything is read by it: one sentence with file, place and remedy."""
    (tmp_path / "a.bin").write_bytes(b"abc")
    if index is not None:
        (tmp_path / "a.idx").write_bytes(index)

    with pytest.raises(InvalidJob, match=sentence):
        MegatronSource(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "more", "sentence"),
    [
        ("a.bin", {}, "give dtype, such as uint16"),
        ("a.bin", {"dtype": "float32"}, "dtype is 'float32'"),
        ("a.bin", {"dtype": "uint16"}, "9 bytes of ids .* not a multiple of 2"),
        ("a.bin", {"dtype": "uint8"}, "with eos: ID, or cut it with sequence_length: N"),
        ("a.bin", {"dtype": "uint8", "eos": 1, "sequence_length": 2}, "are both given"),
        ("a.bin", {"dtype": "uint8", "eos": 0}, "do not hold the id 0 that is to end a document"),
        ("b.npy", {"eos": 1}, r"holds float64 of shape \(3,\)"),
        ("c.npy", {"eos": 1}, r"not a \.npy file"),
        ("d.npy", {"eos": 1}, "was not written whole"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, name: str, more: dict[str, Any], sentence: str
) -> None:
    """File, what is wrong with it, and what to give."""
    (tmp_path / "a.bin").write_bytes(b"123456789")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "c.npy").write_bytes(b"123456789")
    np.save(tmp_path / "d.npy", np.arange(30))
    (tmp_path / "d.npy").write_bytes((tmp_path / "d.npy").read_bytes()[:-8])

    with pytest.raises(InvalidJob, match=sentence):
        TokensSource(str(tmp_path / name), **more)


def test_an_index_that_changes_under_an_open_source_is_noticed(tmp_path: Path) -> None:
    """Before a size is told from it, as the ids themselves are before they are read."""
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "a.idx").write_bytes(index_file([1, 2], [0, 1], [0, 1, 2]))
    source = MegatronSource(str(tmp_path))

    (tmp_path / "a.idx").write_bytes(index_file([2, 1], [0, 2], [0, 1, 2]))

    with pytest.raises(SourceChanged, match=r"a\.idx changed"):
        source.sizes([0])
