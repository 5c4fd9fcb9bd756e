"""The file of an index: what was written is read, in any stretch, and nothing else is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexes import as_items, one_each, samples_of, written
from penstock.server.pipeline.lane_counts import MAX_REASONS
from penstock.server.planning.index import index_file
from penstock.server.planning.index.block import (
    OTHER_REASONS,
    QUARANTINED,
    ItemSizes,
    LeftOut,
    block_items,
    decode_block,
    encode_block,
)
from penstock.server.planning.index.index_file import SizeIndex, SourceBlocks, write_index
from penstock.server.planning.index.index_place import IndexPlace
from penstock.server.planning.make.finished_blocks import FinishedBlock
from penstock.wire.errors import InvalidJob, SourceUnavailable

SIZES = st.one_of(
    st.integers(0, 300), st.sampled_from([0, 1, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1])
)
ITEMS = st.lists(
    st.one_of(
        st.lists(SIZES, min_size=1, max_size=4), st.sampled_from(["filtered:a", "filtered:b"])
    ),
    max_size=40,
)


@given(ITEMS, st.data())
def test_a_block_gives_back_what_was_written(items: list[Any], data: st.DataObject) -> None:
    """Every stretch of it, whatever the widths are."""
    block = decode_block(encode_block(samples_of(*items)))

    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    assert as_items(block.read(start, stop, 0), start) == items[start:stop]


@given(ITEMS, st.integers(0, 3), st.data())
def test_a_block_gives_back_what_samples_count(
    items: list[Any], measures: int, data: st.DataObject
) -> None:
    """Beside their sizes; a block without measures has the bytes that it always had."""
    found = samples_of(*items)
    count = st.integers(0, 300) | st.sampled_from([255, 256, 2**16, 2**32 - 1, 2**32, 2**40])
    counts = st.lists(count, min_size=measures, max_size=measures)
    drawn = data.draw(st.lists(counts, min_size=len(found.sizes), max_size=len(found.sizes)))
    measured = np.array(drawn, np.int64).reshape(len(found.sizes), measures)
    whole = found._replace(measured=measured if measures else None)

    encoded = encode_block(whole)

    assert (encoded == encode_block(found)) is (measures == 0)
    block = decode_block(encoded)
    assert len(block.measured) == measures
    assert block.totals == [int(sum(column)) for column in measured.T.tolist()]
    start = data.draw(st.integers(0, len(items)))
    stop = data.draw(st.integers(start, len(items)))
    part = block.read(start, stop, 0)
    assert as_items(part, start) == items[start:stop]
    firsts = np.concatenate([[0], np.cumsum(found.counts)]).astype(int)
    expected = measured[firsts[start] : firsts[stop]].tolist()
    assert (part.measured is None) is (measures == 0)
    assert part.measured is None or part.measured.tolist() == expected


def test_what_samples_count_is_summed_and_checked(tmp_path: Path) -> None:
    """Over blocks; a block without what the index names is refused."""
    found = one_each(*range(1000))._replace(measured=np.arange(2000).reshape(1000, 2))
    inputs = {"measures": ["images", "patches"]}
    written(tmp_path / "x", ("a", found), inputs=inputs)

    index = SizeIndex.open(str(tmp_path / "x"))

    index.check()
    assert index.sources["a"].counted == {"images": 999_000, "patches": 1_000_000}
    part = index.sources["a"].read(250, 300).measured
    assert part is not None
    assert part.tolist() == [[2 * n, 2 * n + 1] for n in range(250, 300)]
    with pytest.raises(ValueError, match="argument"):
        written(tmp_path / "y", ("a", one_each(5)), inputs=inputs)
    with pytest.raises(ValueError, match="argument"):
        written(tmp_path / "y", ("a", found))


@pytest.mark.parametrize(
    ("sizes", "nbytes"),
    [
        ([0] * 8, 0),
        ([65_535] * 8, 16),
        ([65_535] * 7 + [65_536], 32),
        ([2**32] + [0] * 7, 64),
    ],
)
def test_sizes_take_as_few_bytes_as_hold_the_largest(sizes: list[int], nbytes: int) -> None:
    assert len(encode_block(one_each(*sizes))) == 24 + nbytes


def test_counts_take_no_bytes_where_all_are_one() -> None:
    ones = ItemSizes(np.ones(8, np.uint32), np.full(8, 5, np.int64))

    assert encode_block(ones) == encode_block(one_each(*[5] * 8))


@pytest.mark.parametrize(
    "wrong",
    [
        ItemSizes(np.array([2], np.uint32), np.array([1])),
        ItemSizes(np.array([0], np.uint32), np.array([], np.int64)),
        ItemSizes(np.array([0], np.uint32), np.array([], np.int64), {1: "filtered:x"}),
        ItemSizes(None, np.array([-1])),
        ItemSizes(None, np.array([1]), measured=np.zeros((2, 1), np.int64)),
        ItemSizes(None, np.array([1]), measured=np.array([[-1]])),
    ],
    ids=[
        "a size is missing",
        "no reason",
        "the reason of another",
        "a negative size",
        "counts of another sample",
        "a negative count",
    ],
)
def test_what_does_not_go_together_is_not_written(wrong: ItemSizes) -> None:
    with pytest.raises(ValueError, match=r"sizes|reason|size is|count is"):
        encode_block(wrong)


def test_reasons_without_number_are_counted_together() -> None:
    """A reason that a role makes of each item anew does not let the footer grow."""
    items = [f"filtered:too short, {number}" for number in range(3 * MAX_REASONS)]

    block = decode_block(encode_block(samples_of(*items)))

    left_out = block.read(0, len(items), 0).left_out
    assert isinstance(left_out, LeftOut)
    tally = left_out.tally()
    assert tally[OTHER_REASONS] == 2 * MAX_REASONS
    assert len(tally) == MAX_REASONS + 1


def test_items_that_fail_are_counted_among_any_number_of_reasons(tmp_path: Path) -> None:
    """A job bounds their number, so they do not hide among others: in a block, and in the sums."""
    others = [f"filtered:too short, {number}" for number in range(3 * MAX_REASONS)]
    items = samples_of(*others, *[QUARANTINED] * 5)
    blocks = samples_of(*(others * 9), *[QUARANTINED] * 7)
    written(tmp_path / "x", ("a", blocks))

    assert FinishedBlock.of(encode_block(items), drew=False).quarantined == 5
    left_out = SizeIndex.open(str(tmp_path / "x")).sources["a"].left_out
    assert left_out[QUARANTINED] == 7
    assert sum(left_out.values()) == 9 * len(others) + 7
    assert OTHER_REASONS in left_out
    assert len(left_out) == MAX_REASONS + 2


def random_items(rng: np.random.Generator, count: int) -> list[list[int] | str]:
    return [
        f"filtered:{rng.integers(3)}"
        if kind == 0
        else rng.integers(0, 100_000, 1 if kind < 8 else 3).tolist()
        for kind in rng.integers(0, 10, count).tolist()
    ]


def test_an_index_gives_back_every_stretch(tmp_path: Path) -> None:
    """Across blocks and sources, in any order, and again from memory."""
    rng = np.random.default_rng(7)
    first, second = random_items(rng, 1500), random_items(rng, 10)
    root = written(tmp_path / "x", ("a", samples_of(*first)), ("b", samples_of(*second)))

    index = SizeIndex.open(str(tmp_path / "x"))

    assert (index.root, list(index.sources)) == (root, ["a", "b"])
    assert index.inputs == {"made": "for a test"}
    found = index.sources["a"]
    assert found.items == 1500 > 3 * found.block_items
    assert found.samples == sum(len(item) for item in first if not isinstance(item, str))
    assert found.tokens == sum(sum(item) for item in first if not isinstance(item, str))
    assert found.left_out == {
        reason: first.count(reason) for reason in {i for i in first if isinstance(i, str)}
    }
    cuts = rng.integers(0, 1501, (60, 2))
    for start, stop in [(0, 1500), (0, 0), (1500, 1500), *map(sorted, cuts.tolist())]:
        assert as_items(found.read(start, stop), start) == first[start:stop]
    assert as_items(index.sources["b"].read(0, 10)) == second


def test_a_stretch_that_is_not_there_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "x", ("a", one_each(1, 2)))
    found = SizeIndex.open(str(tmp_path / "x")).sources["a"]

    for start, stop in [(-1, 1), (1, 0), (0, 3)]:
        with pytest.raises(ValueError, match="positions"):
            found.read(start, stop)


def test_neighbouring_blocks_are_read_together_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store takes a request for all of them, and none for what is in memory."""
    written(tmp_path / "x", ("a", one_each(*range(5000))))
    found = SizeIndex.open(str(tmp_path / "x")).sources["a"]
    reads: list[tuple[int, int]] = []
    read = IndexPlace.read

    def counted(self: IndexPlace, start: int, stop: int) -> bytes:
        reads.append((start, stop))
        return read(self, start, stop)

    monkeypatch.setattr(IndexPlace, "read", counted)
    step = found.block_items
    found.read(step, 2 * step)
    found.read(0, 5000)
    found.read(10, 4990)

    assert len(reads) == 3  # the second block, then those on either side of it


def test_blocks_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "KEPT_BYTES", 2000)
    sizes = list(range(1, 5001))
    written(tmp_path / "x", ("a", one_each(*sizes)))
    found = SizeIndex.open(str(tmp_path / "x")).sources["a"]

    assert found.read(0, 5000).sizes.tolist() == sizes
    assert found.read(0, 5000).sizes.tolist() == sizes
    assert sum(block.samples * 2 for block in found._kept.values()) <= 2000


# --- what is not an index, or not a whole one -----------------------------------------------------

SMALL = (
    ("a", samples_of([3], [4, 70_000], "filtered:null", [1], "quarantined:index")),
    ("b", one_each(5, 6, 7)),
)


def read_all(path: Path) -> list[Any]:
    index = SizeIndex.open(str(path))
    return [as_items(found.read(0, found.items)) for found in index.sources.values()]


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    written(path, *SMALL)
    good = path.read_bytes()
    assert read_all(path)

    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with pytest.raises(InvalidJob, match=re.escape(repr(str(path)))):
            read_all(path)
        with pytest.raises(InvalidJob, match=re.escape(repr(str(path)))):
            SizeIndex.open(str(path)).check()


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    written(path, *SMALL)
    good = path.read_bytes()

    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(InvalidJob, match=re.escape(repr(str(path)))):
            read_all(path)


def test_more_bytes_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    written(path, *SMALL)
    good = path.read_bytes()

    for more in (good + b"\0", good + good, good[:16] + good):
        path.write_bytes(more)
        with pytest.raises(InvalidJob):
            read_all(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no index of sizes at .*make it with `penstockd index FILE JOB`"),
        (b"", "is not an index of sizes"),
        (b"PAR1" + bytes(100), "is not an index of sizes"),
        (b"PENSTOCK-SIZES\1\0", "is damaged: it ends before its end"),
        (b"PENSTOCK-SIZES\7\0" * 9, "has version 7 of the format, .* reads versions 1 and 2"),
    ],
    ids=["nothing", "empty", "another format", "cut", "another version"],
)
def test_what_is_not_an_index_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "x").write_bytes(content)

    with pytest.raises(InvalidJob, match=said) as caught:
        SizeIndex.open(str(tmp_path / "x"))

    assert caught.value.key == "plan.index"


def test_a_folder_or_an_unknown_protocol_is_refused(tmp_path: Path) -> None:
    for url, said in ((str(tmp_path), "cannot be read: Is a directory"), ("nope://x", "nope")):
        with pytest.raises(InvalidJob, match=said):
            SizeIndex.open(url)


# --- writing --------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """What was there stays there, and nothing is left beside it."""
    path = tmp_path / "x"
    written(path, *SMALL)
    before = path.read_bytes()

    def failing() -> Any:
        yield encode_block(one_each(1))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        write_index(str(path), {}, [SourceBlocks("a", 1, failing())])

    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


@contextlib.contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [100, 100_000], ids=["all in the buffer", "more"])
def test_a_full_disk_is_named_and_leaves_nothing(room: int, tmp_path: Path) -> None:
    """What did not fit is in the buffer, which is flushed again as the file is closed."""
    path = tmp_path / "x"
    with (
        files_of_at_most(room),
        pytest.raises(SourceUnavailable, match=r"x' cannot be written at the moment: .* too large"),
    ):
        IndexPlace(str(path)).write([b"a" * 150, b"b" * (2 * room - 150)])

    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_no_index(tmp_path: Path) -> None:
    """And nobody waits for what might be written into it."""
    os.mkfifo(tmp_path / "x")

    assert index_file.is_index(IndexPlace(str(tmp_path / "x"))) is False


@pytest.mark.parametrize("positions", [1, 3], ids=["too few", "too many"])
def test_blocks_have_the_positions_of_their_source(tmp_path: Path, positions: int) -> None:
    block = encode_block(one_each(*[5] * positions))

    with pytest.raises(ValueError, match="positions, to be 2"):
        write_index(str(tmp_path / "x"), {}, [SourceBlocks("a", 2, [block])])


def test_an_open_index_stays_what_it_was(tmp_path: Path) -> None:
    """Another one in its place is for those that open it next."""
    path = tmp_path / "x"
    written(path, ("a", one_each(1, 2, 3)))
    index = SizeIndex.open(str(path))
    written(path, ("a", one_each(4, 5, 6)))

    assert index.sources["a"].read(0, 3).sizes.tolist() == [1, 2, 3]
    assert SizeIndex.open(str(path)).sources["a"].read(0, 3).sizes.tolist() == [4, 5, 6]


def test_a_source_without_positions_has_no_blocks(tmp_path: Path) -> None:
    written(tmp_path / "x", ("a", one_each()), ("b", one_each(9)))

    index = SizeIndex.open(str(tmp_path / "x"))

    assert index.sources["a"].read(0, 0).sizes.tolist() == []
    assert index.sources["b"].tokens == 9


def test_blocks_grow_with_their_source() -> None:
    """So that there are blocks for every worker of a small one, and not too many of a large one."""
    counted = {items: block_items(items) for items in (0, 1, 4096, 10**4, 10**6, 10**8, 10**12)}

    assert counted == {
        0: 256,
        1: 256,
        4096: 256,
        10**4: 256,
        10**6: 2048,
        10**8: 32_768,
        10**12: 65_536,
    }


MARK = b"PENSTOCK-SIZES\1\0"
BLOCKS = bytes.fromhex(
    "05000000 0400000000000000 02000000 04 01 0000 25000000"  # of a: positions, samples, none, ...
    "03000000 04000000 70110100 01000000"  # sizes
    "01 02 00 01 00"  # counts
    "00 01"  # codes
    "5b2266696c74657265643a6e756c6c222c2271756172616e74696e65643a696e646578225d"  # reasons
    "00000000"
    "03000000 0300000000000000 00000000 02 00 0000 00000000"  # of b
    "0500 0600 0700 0000"
)
FOOTER = (
    b'{"inputs":{"made":"for a test"},"sources":[{"block_items":256,"blocks":{"bytes":[88],'
    b'"samples":[4],"sha256":["a71460bbb5d06497de95fec92ad9a45bd03835f5dbf0a37a469326e4dcfd90a4"]},'
    b'"items":5,"left_out":{"filtered:null":1,"quarantined:index":1},"name":"a","samples":4,'
    b'"tokens":70008},{"block_items":256,"blocks":{"bytes":[32],"samples":[3],"sha256":'
    b'["32e691a2602211a2f954d7ae90118a22e3421415fc932233e775e2a0ce9622e4"]},"items":3,"left_out":{},'
    b'"name":"b","samples":3,"tokens":18}],"version":1}'
)
ROOT = hashlib.sha256(FOOTER).digest()


def test_the_bytes_of_an_index_do_not_change(tmp_path: Path) -> None:
    """Indexes lie in buckets for years, and their roots are in log ids."""
    root = written(tmp_path / "x", *SMALL)

    tail = ROOT + len(FOOTER).to_bytes(8, "little") + MARK
    assert (tmp_path / "x").read_bytes() == MARK + BLOCKS + FOOTER + tail
    assert root == ROOT
    assert ROOT.hex() == "20f9a6a2b979b18661e707c0a74b99df3a243f7697ad3a023c3282f6560d76e2"
