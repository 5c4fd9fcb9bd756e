"""Packed rows travel as ids and seams, and are completed to the bytes that the collator gives."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.bodies.assembly import Assembly
from penstock.client.bodies.buffers import BufferPool
from penstock.client.bodies.landing import Landing
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.collators.layouts import LAYOUTS
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.wire import frame
from penstock.wire.digest import batch_digest
from penstock.wire.errors import BadFrame, ChecksumMismatch
from penstock.wire.packed_rows import Derived, PackedRows, Rule
from penstock.wire.v1 import feed_pb2

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
MOST = 4 << 20


def of_the_page() -> Any:
    """The function that docs/protocol.md gives to clients in other languages."""
    [code] = re.findall(r"^<!-- file: complete.py -->\n```python\n(.*?)^```", PAGE, re.M | re.S)
    space: dict[str, Any] = {}
    exec(code, space)
    return space["complete"]


complete_by_the_page = of_the_page()


def context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)


def written(values: dict[str, Any], counts: dict[str, int]) -> tuple[feed_pb2.BatchHeader, bytes]:
    """What a node sends: the header of a batch, and the bytes that travel for its body."""
    layout = frame.BodyLayout(values)
    sent = bytearray(layout.sent_bytes)
    crc = frame.write_body(layout, memoryview(sent))
    encoded = frame.write_header(layout, bytes(32), 2, 5, crc, counts, [])
    header = frame.read_header(frame.with_position(encoded, 12))
    frame.check_header(header, max_body_bytes=MOST)
    frame.check_crc(header, sent)
    return header, bytes(sent)


def told(header: feed_pb2.BatchHeader) -> feed_pb2.BatchHeader:
    """What a header says of a batch, but for what travels."""
    found = feed_pb2.BatchHeader()
    found.CopyFrom(header)
    for name in ("packed", "crc32c", "header_crc32c"):
        found.ClearField(name)
    return found


@st.composite
def batches(draw: st.DrawFn, *, labels: bool, hides: bool) -> list[list[Sample]]:
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        row: list[Sample] = []
        for size in draw(st.lists(st.integers(0, 6), max_size=5)):
            sample: Sample = {"input_ids": draw(some(st.integers(0, 2**31 - 1), size))}
            if labels and draw(st.booleans()):
                sample["labels"] = draw(some(st.sampled_from([-100, 3, 4]), size))
            if labels and draw(st.booleans()):
                sample["loss_mask"] = draw(some(st.integers(0, 1), size))
            if hides and draw(st.booleans()):
                sample["attention_mask"] = draw(some(st.integers(0, 1), size))
            row.append(sample)
        rows.append(row)
    return rows


def some(numbers: st.SearchStrategy[int], size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(numbers, min_size=size, max_size=size)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), layout=st.sampled_from(list(LAYOUTS)))
def test_what_is_completed_is_what_the_collator_gives(data: st.DataObject, layout: str) -> None:
    """To the byte, by the Loader's code and by that of the page, and the digest is the same."""
    made = LAYOUTS[layout]
    multiple = data.draw(st.sampled_from([None, 1, 3])) if made.learns else None
    collator = PackedCollator(
        data.draw(st.sampled_from([None, 60])),
        document_multiple=multiple,
        max_documents=data.draw(st.sampled_from([None, 30])) if made.has_seams else None,
        labels=data.draw(st.sampled_from([None, "shifted", "unshifted"])),
        pad_value=data.draw(st.sampled_from([None, 9])),
        ids_dtype=data.draw(st.sampled_from(["int64", "int32"])),
        layout=layout,
    )
    labels = made.learns and data.draw(st.booleans())
    rows = data.draw(batches(labels=labels, hides=made.hides and data.draw(st.booleans())))
    of_arrays, of_rows = context(), context()

    header, sent = written(collator.collate_to_send(rows, of_rows), of_rows.counts)
    whole, body = written(collator.collate(rows, of_arrays), of_arrays.counts)

    assert header.HasField("packed")
    assert not whole.HasField("packed")
    assert told(header) == told(whole)
    assert bytes(frame.completed(header, sent)) == body  # type: ignore[arg-type]
    assert bytes(complete_by_the_page(header, sent)) == body
    assert batch_digest(header, sent) == batch_digest(whole, body)


@settings(max_examples=100, deadline=None)
@given(rows=batches(labels=True, hides=False), cut=st.integers(1, 200), is_odd=st.booleans())
def test_rows_come_in_any_pieces_and_at_any_address(
    rows: list[list[Sample]], cut: int, is_odd: bool
) -> None:
    """A body lies whole and aligned in one lease, however its bytes came."""
    header, sent = written(PackedCollator().collate_to_send(rows, context()), {})
    expected = bytes(frame.completed(header, sent))  # type: ignore[arg-type]
    pool = BufferPool(2)
    soiled = pool.lease(header.body_bytes)
    soiled.array[:] = 255
    del soiled
    entries = frame.check_header(header, max_body_bytes=MOST)
    assembly = Assembly(header, entries, Landing(pool, None), is_wanted=True)
    for start in range(0, len(sent), cut):
        piece = memoryview(bytes(is_odd) + sent[start : start + cut])[is_odd:]
        assert not assembly.is_whole
        assembly.add(frame.ChunkView(header.lane, header.offset, start, piece))

    assert assembly.is_whole
    lease = assembly.finish()

    assert lease is not None
    assert lease.array.tobytes() == expected
    assert lease.array.ctypes.data % 64 == 0
    assert not header.HasField("packed"), "the header speaks of the body as it lies there"


def tokens(count: int, **more: Any) -> list[list[Sample]]:
    """Four rows of documents, `count` tokens each, and a few left over."""
    draws = np.random.default_rng(3)
    rows = []
    for _ in range(4):
        sizes = [count // 8] * 7 + [count // 8 - 5]
        row = [{"input_ids": draws.integers(0, 50_000, size)} for size in sizes]
        rows.append([{**one, **{key: value(one) for key, value in more.items()}} for one in row])
    return rows


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_a_token_costs_four_bytes(layout: str, dtype: str) -> None:
    """And what says where documents begin; labels of its own cost four more."""
    collator = PackedCollator(8192, layout=layout, ids_dtype=dtype)
    header, sent = written(collator.collate_to_send(tokens(8192), context()), {})
    assert len(sent) == header.packed.sent_bytes <= 4.04 * 4 * 8192

    if layout != "seams":
        rows = tokens(8192, loss_mask=lambda one: np.arange(len(one["input_ids"])) % 3)
        _, sent = written(collator.collate_to_send(rows, context()), {})
        assert len(sent) <= 8.04 * 4 * 8192


@pytest.mark.parametrize("key", ["input_ids", "labels"])
def test_numbers_that_int32_does_not_hold_travel_as_they_are(key: str) -> None:
    rows = [[{"input_ids": [1, 2, 3]} | {key: [1, 1 << 31, 3]}]]

    header, sent = written(PackedCollator().collate_to_send(rows, context()), {})

    assert not header.HasField("packed")
    assert frame.decode_values(header, sent)[key].tolist()[0][1] == 1 << 31


def test_every_rule_of_the_wire_has_its_name() -> None:
    """Whoever makes values by rules needs no protobuf."""
    assert {f"RULE_{rule.name}": rule.value for rule in Rule} == dict(feed_pb2.Rule.items())


class Adding(PackedCollator):
    """A user's: it adds a value, and changes one in place."""

    version = 1

    def collate(self, rows: Any, context: CollateContext) -> dict[str, Any]:
        """Return the values of `packed`, a label changed, and one more."""
        values = super().collate(rows, context)
        values["labels"][0, -1] = 77
        return {**values, "extra": np.arange(3.0)}


def test_a_collator_that_is_derived_from_it_gives_what_it_gives() -> None:
    rows = tokens(64)

    header, sent = written(Adding().collate_to_send(rows, context()), {})

    values = frame.decode_values(header, sent)
    assert values["labels"][0, -1] == 77
    assert values["extra"].tolist() == [0, 1, 2]


def test_values_beside_packed_rows_travel_with_them() -> None:
    """Whatever a batch holds beside them, within lists too."""
    values = PackedCollator().collate_to_send(tokens(64), context())
    beside = {"x": [np.arange(5, dtype=np.int16), None, ["a", np.ones((2, 2))]], "n": 3, "t": "é"}

    header, sent = written({**beside, **values, "last": np.array(1.5)}, {})

    assert header.HasField("packed")
    found = frame.decode_values(header, sent)
    assert list(found) == [*beside, *values, "last"]
    assert found["x"][0].tolist() == [0, 1, 2, 3, 4]
    assert found["x"][2][1].tolist() == [[1, 1], [1, 1]]
    assert found["last"] == 1.5
    assert bytes(complete_by_the_page(header, sent)) == bytes(frame.completed(header, sent))  # type: ignore[arg-type]
    for name, value in PackedCollator().collate(tokens(64), context()).items():
        np.testing.assert_array_equal(found[name], value)


def packed_batch() -> tuple[feed_pb2.BatchHeader, bytes]:
    rows = [[{"input_ids": [1, 2, 3]}, {"input_ids": [4]}], [{"input_ids": [5, 6]}]]
    return written(PackedCollator(5).collate_to_send(rows, context()), {})


HUGE = (1 << 64) - 1
LIES: dict[str, dict[str, Any]] = {
    "rows that no memory holds": {"height": 1 << 40, "width": 1 << 40},
    "rows whose product overflows": {"height": 1 << 32, "width": 1 << 32},
    "more tokens than int32 counts": {"height": 1, "width": 1 << 31},
    "no rows": {"height": 0},
    "rows of nothing": {"width": 0},
    "fewer segments than rows": {"segments": 1},
    "more segments than tokens": {"segments": 11},
    "segments without end": {"segments": HUGE},
    "another length": {"sent_bytes": 100},
    "a length without end": {"sent_bytes": HUGE},
    "labels that were not sent": {"labels": True},
    "numbers that were not sent": {"documents": True},
    "a rule too few": {"rules": [1] * 5},
    "a rule too many": {"rules": [1, 2, 4, 8, 8, 7, 0]},
    "ids that are as long as seams": {"rules": [1, 2, 4, 1, 8, 7]},
    "seams for each token": {"rules": [8, 2, 4, 8, 8, 7]},
    "a mask of int64": {"rules": [3, 2, 4, 8, 8, 7]},
    "a rule that nobody knows": {"rules": [1, 2, 4, 8, 8, 99]},
    "a tensor that was not sent": {"rules": [0, 2, 4, 8, 8, 7]},
}


@pytest.mark.parametrize("lie", LIES)
def test_rows_that_lie_are_refused_before_memory_is_taken(lie: str) -> None:
    header, _ = packed_batch()
    assert list(header.packed.rules) == [1, 2, 4, 8, 8, 7]
    for name, value in LIES[lie].items():
        header.packed.ClearField(name)
        if name == "rules":
            header.packed.rules.extend(value)
        else:
            setattr(header.packed, name, value)

    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            frame.check_header(header, max_body_bytes=MOST)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_what_would_be_too_large_is_refused_before_memory_is_taken() -> None:
    """A few bytes that would become many, and many that would become few."""
    header, sent = packed_batch()
    with pytest.raises(BadFrame, match=f"a body of {header.body_bytes} bytes"):
        frame.check_header(header, max_body_bytes=header.body_bytes - 1)
    values = PackedCollator(1 << 18, layout="seams", ids_dtype="int32").collate_to_send(
        [[]], context()
    )
    del values["row_tokens"], values["input_ids"]
    layout = frame.BodyLayout(values)
    crc = frame.write_body(layout, memoryview(bytearray(layout.sent_bytes)))
    header = feed_pb2.BatchHeader.FromString(
        frame.write_header(layout, bytes(32), 0, 0, crc, {}, [])
    )
    assert header.body_bytes < 1000 < layout.sent_bytes
    with pytest.raises(BadFrame, match="at most 1000 are allowed"):
        frame.check_header(header, max_body_bytes=1000)
    assert len(sent) < 1000


def test_tensors_of_packed_rows_lie_in_order() -> None:
    """Or what one of them was made as would be written over by the zeros before another."""
    header, _ = packed_batch()
    first, second = (header.values[at].value.tensor for at in (0, 1))
    first.start, second.start = second.start, first.start
    with pytest.raises(BadFrame, match="before the one before it"):
        frame.check_header(header, max_body_bytes=MOST)


LEAST = -(1 << 31)
WRONG: dict[str, tuple[list[int], list[int], str]] = {
    "begin late": ([1, 4, 5, 7, 10], [3, 1, 2, 0], "one after another"),
    "end early": ([0, 4, 5, 7, 9], [3, 1, 2, 0], "one after another"),
    "end late": ([0, 4, 5, 7, 11], [3, 1, 2, 0], "one after another"),
    "are empty": ([0, 5, 5, 7, 10], [5, 0, 2, 0], "one after another"),
    "fall": ([0, 5, 4, 7, 10], [3, 1, 2, 0], "one after another"),
    "wrap": ([0, (1 << 31) - 1, LEAST, -1, 10], [3, 1, 2, 0], "one after another"),
    "go on in the next row": ([0, 3, 4, 7, 10], [3, 1, 2, 0], "end of a row"),
    "have more tokens": ([0, 3, 5, 7, 10], [4, 1, 2, 0], "other tokens"),
    "have less than none": ([0, 3, 5, 7, 10], [3, -1, 2, 0], "other tokens"),
    "have the least": ([0, 3, 5, 7, 10], [3, LEAST, 2, 0], "other tokens"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_segments_that_lie_are_refused(wrong: str) -> None:
    """A checksum covers them, so a node that sends them is broken, or hostile."""
    seams, counts, says = WRONG[wrong]
    ids = np.arange(10, dtype=np.int32).reshape(2, 5)
    lying = PackedRows(ids, *(np.array(each, np.int32) for each in (seams, counts)))
    shape = ids.shape
    header, sent = written({"x": Derived(lying, Rule.IDS, "int64", shape)}, {})
    assembly = Assembly(
        header,
        frame.check_header(header, max_body_bytes=MOST),
        Landing(BufferPool(2), None),
        is_wanted=True,
    )
    assembly.add(frame.ChunkView(header.lane, header.offset, 0, memoryview(sent)))

    with pytest.raises(BadFrame, match=says):
        assembly.finish()


def test_rows_that_were_damaged_are_not_completed() -> None:
    header, sent = packed_batch()
    damaged = bytearray(sent)
    damaged[70] ^= 1
    entries = frame.check_header(header, max_body_bytes=MOST)
    assembly = Assembly(header, entries, Landing(BufferPool(2), None), is_wanted=True)
    assembly.add(frame.ChunkView(header.lane, header.offset, 0, memoryview(damaged)))

    with pytest.raises(ChecksumMismatch):
        assembly.finish()


def test_what_nobody_waits_for_takes_no_memory() -> None:
    header, sent = packed_batch()
    pool = BufferPool(2)
    entries = frame.check_header(header, max_body_bytes=MOST)
    assembly = Assembly(header, entries, Landing(pool, None), is_wanted=False)
    assembly.add(frame.ChunkView(header.lane, header.offset, 0, memoryview(sent)))

    assert assembly.is_whole
    assert assembly.finish() is None
    assert pool.statistics() == {"leased_bytes": 0, "free_bytes": 0}
