"""What goes into a batch comes out of it: every dtype, shape and kind of value."""

from __future__ import annotations

import json
import math
import struct
import sys
from enum import Enum, IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from PIL import Image

from penstock.wire import ALIGNMENT
from penstock.wire.describe import describe_values
from penstock.wire.errors import MissingExtra, UnsupportedValue
from penstock.wire.frame import (
    BodyLayout,
    batch_messages,
    check_chunk,
    check_crc,
    check_header,
    decode_values,
    parse_reply,
    with_position,
    write_body,
    write_header,
)
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import MAX_JSON_DEPTH, MAX_LIST_DEPTH, STORAGE

NUMPY_DTYPES = sorted(set(STORAGE) - {"bfloat16"})


def travel(values: dict[str, Any]) -> tuple[feed_pb2.BatchHeader, bytearray]:
    """Return the header and body of a batch as a client holds them after the whole way."""
    plan = BodyLayout(values)
    body = np.full(plan.nbytes, 0xA5, np.uint8)
    crc = write_body(plan, body)
    head = with_position(write_header(plan, bytes(32), 1, 2, crc, {}, []), 7)
    received, filled, header = bytearray(plan.nbytes), 0, None
    for message in batch_messages(head, 1, 2, body, chunk_bytes=100):
        reply = parse_reply(message)
        if reply.header is not None:
            header = reply.header
            check_header(header, max_body_bytes=plan.nbytes)
        if reply.chunk is not None:
            assert header is not None
            after = check_chunk(header, reply.chunk, filled)
            received[filled:after] = reply.chunk.data
            filled = after
    assert header is not None
    assert filled == plan.nbytes
    check_crc(header, received)
    return header, received


def round_trip(values: dict[str, Any]) -> dict[str, Any]:
    return decode_values(*travel(values))


def same(left: Any, right: Any) -> bool:
    """Tell whether two values are of one type and bit for bit equal, NaN and -0.0 included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
arrays = st.sampled_from(NUMPY_DTYPES).flatmap(
    lambda name: npst.arrays(
        STORAGE[name], npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    )
)
finite = st.floats(allow_nan=False, allow_infinity=False)
objects = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers() | finite | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
).map(lambda found: json.loads(json.dumps(found, sort_keys=True)))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats()
    | texts
    | st.binary(max_size=9)
    | objects
    | arrays
)
anything = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@settings(deadline=None)
@given(st.dictionaries(texts.filter(bool), anything, max_size=6))
@example({})
@example({"ragged": [[None, [1, 2.5]], [], [[[]]], [np.zeros((2, 0)), None, np.array(3)]]})
@example({"edge": [-(1 << 63), (1 << 63) - 1, math.nan, -0.0, math.inf, "", b"", True, 1, {}]})
def test_a_batch_arrives_as_it_was_sent(values: dict[str, Any]) -> None:
    """Names, order, types, dtypes, shapes and bits of every value survive the whole way."""
    assert same(round_trip(values), values)


@pytest.mark.parametrize("name", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3), (1, 2, 3, 4)])
def test_every_dtype_travels_in_every_shape(name: str, shape: tuple[int, ...]) -> None:
    """The bytes of a tensor are its elements' own bits, whatever they mean as numbers."""
    bits = np.arange(math.prod(shape) * STORAGE[name].itemsize, dtype=np.uint8)
    array = (bits % 2 if name == "bool" else bits).view(STORAGE[name]).reshape(shape)

    header, body = travel({"x": array})

    assert same(decode_values(header, body)["x"], array)
    assert describe_values(header)["x"] == {"kind": "tensor", "dtype": name, "shape": list(shape)}


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_bfloat16_travels(shape: tuple[int, ...]) -> None:
    """The dtype of ml_dtypes comes out as it went in, and is called bfloat16 on the wire."""
    array = np.arange(math.prod(shape)).reshape(shape).astype(ml_dtypes.bfloat16)

    header, body = travel({"x": array, "scalar": ml_dtypes.bfloat16(1.5)})

    found = decode_values(header, body)
    assert same(found["x"], array)
    assert same(found["scalar"], 1.5)
    assert describe_values(header)["x"]["dtype"] == "bfloat16"


def test_bfloat16_without_ml_dtypes_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy cannot view it then, and whoever makes the tensors itself still can."""
    header, body = travel({"x": torch.arange(70, dtype=torch.bfloat16).reshape(7, 10)})
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    with pytest.raises(MissingExtra, match="pip install ml-dtypes"):
        decode_values(header, body)

    def as_torch(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> torch.Tensor:
        kind = {"bfloat16": torch.bfloat16}[dtype]
        return torch.frombuffer(body, dtype=kind, offset=start, count=nbytes // 2).reshape(shape)

    found = decode_values(header, body, as_torch)["x"]
    assert found.tolist() == torch.arange(70).reshape(7, 10).tolist()


@pytest.mark.parametrize("shape", [(2, 3, 4), (40, 30, 20)])  # small ones go another way
@pytest.mark.parametrize("name", NUMPY_DTYPES)
def test_layout_in_memory_does_not_show(name: str, shape: tuple[int, ...]) -> None:
    """Strides and byte order of the sender's array leave no trace."""
    base = np.arange(np.prod(shape)).reshape(shape).astype(STORAGE[name])
    views = {
        "fortran": np.asfortranarray(base),
        "transposed": base.transpose(2, 0, 1),
        "reversed": base[::-1, :, ::-2],
        "broadcast": np.broadcast_to(base[0, 0], shape[1:]),
        "big_endian": base.astype(base.dtype.newbyteorder(">")),
        "read_only": base[0],
    }
    views["read_only"].flags.writeable = False

    found = round_trip(views)

    for key, view in views.items():
        expected = np.ascontiguousarray(view.astype(STORAGE[name]))
        assert same(found[key], expected), key


class Colour(str, Enum):  # noqa: UP042 - its str() differs from its value, as in older code
    """A str that is more than one."""

    RED = "red"


class Level(IntEnum):
    """An int that is more than one."""

    HIGH = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.bool_(True), True),
        (np.int8(-3), -3),
        (np.uint64((1 << 63) - 1), (1 << 63) - 1),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.complex64(1 + 2j), np.array(1 + 2j, np.complex64)),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ((1, (2, None)), [1, [2, None]]),
        ({"b": np.int64(1), "a": (np.float32(0.5), True)}, {"a": [0.5, True], "b": 1}),
    ],
)
def test_near_kin_become_the_value_they_mean(value: Any, expected: Any) -> None:
    """NumPy's scalars, enums, tuples and buffers arrive as plain Python values."""
    assert same(round_trip({"x": value})["x"], expected)


TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_tensors_of_torch_travel(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A torch tensor arrives as the array that NumPy sees in it."""
    tensor = (torch.arange(math.prod(shape)) % 2).reshape(shape).to(dtype)

    assert same(round_trip({"x": tensor})["x"], tensor.numpy())


def test_tensors_of_torch_travel_in_any_state() -> None:
    """Gradients, strides and lazy conjugation do not hinder a tensor."""
    base = torch.arange(6.0).reshape(2, 3)
    states = {
        "grad": base.clone().requires_grad_(),
        "parameter": torch.nn.Parameter(base),
        "transposed": base.T,
        "bfloat16 transposed": base.T.to(torch.bfloat16),
        "conjugated": torch.complex(base, base).conj(),
        "imaginary of conjugated": torch.complex(base, base).conj().imag,
    }

    found = round_trip(states)

    for key, state in states.items():
        assert (
            torch.from_numpy(found[key].astype(np.complex128)).tolist()
            == state.to(torch.complex128).resolve_conj().tolist()
        ), key


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "I", "F"])
def test_images_of_pil_travel(mode: str) -> None:
    """An image arrives as the array of its pixels."""
    image = Image.effect_noise((5, 4), 50).convert(mode)

    assert same(round_trip({"x": image})["x"], np.asarray(image))


class WithArray:
    """Offers `__array__` alone."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(3, dtype=np.int16)


class WithDlpack:
    """Offers DLPack alone."""

    def __init__(self) -> None:
        self.held = np.arange(4, dtype=np.float32)

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.held.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self.held.__dlpack_device__()


def test_array_protocols_are_followed() -> None:
    """What offers `__array__` or DLPack is a tensor."""
    found = round_trip({"a": WithArray(), "b": WithDlpack()})

    assert same(found["a"], np.arange(3, dtype=np.int16))
    assert same(found["b"], np.arange(4, dtype=np.float32))


def nested_list(depth: int) -> Any:
    return [nested_list(depth - 1)] if depth else 0


def nested_object(depth: int) -> Any:
    return {"x": nested_object(depth - 1)} if depth else 0


class Refusing:
    """Offers `__array__` and refuses, as arrays on a device do."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("lives on a device")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (1 << 63, "send it as a str"),
        (-(1 << 63) - 1, "does not fit int64"),
        (np.uint64(1 << 63), "does not fit int64"),
        (np.array([object()]), "list of arrays"),
        (np.array(["a"]), r"\.tolist\(\)"),
        (np.array([b"a"]), r"\.tolist\(\)"),
        (np.array(["2026-01-01"], "datetime64[D]"), r"astype\('int64'\)"),
        (np.timedelta64(1, "s"), r"astype\('int64'\)"),
        (np.zeros(2, np.longdouble), r"astype\('float64'\)"),
        (np.zeros(2, np.clongdouble), r"astype\('complex128'\)"),
        (np.longdouble(1), r"astype\('float64'\)"),
        (np.zeros(2, "i4,f4"), "each field"),
        (np.zeros(2, ml_dtypes.float8_e4m3fn), r"view\('uint8'\)"),
        (np.ma.masked_array([1], [True]), r"\.mask"),
        (torch.zeros(2).to_sparse(), r"\.to_dense\(\)"),
        (torch.zeros(2).to(torch.float8_e4m3fn), "torch.uint8"),
        (torch.zeros(2, device="meta"), "meta"),
        (Refusing(), "lives on a device"),
        (1 + 2j, "send an array"),
        ({1, 2}, "send an array"),
        (object(), "send an array"),
        (iter([1]), "send an array"),
        ("\ud800", "surrogate"),
        ({"a": "\ud800"}, "surrogate"),
        ({1: 2}, "str keys, not 1"),
        ({"a": {None: 2}}, "str keys, not None"),
        ({"a": math.nan}, "JSON has no nan"),
        ({"a": np.float32(math.inf)}, "JSON has no inf"),
        ({"a": np.zeros(2)}, "key of its own"),
        ({"a": b"x"}, "key of its own"),
        (nested_list(MAX_LIST_DEPTH + 1), "flatten"),
        (nested_object(MAX_JSON_DEPTH + 1), "deeper than"),
    ],
)
def test_what_has_no_form_is_refused_by_name(value: Any, remedy: str) -> None:
    """The error names the key, the type and the way out, inside lists the index too."""
    with pytest.raises(UnsupportedValue, match=remedy) as plain:
        BodyLayout({"key": value})
    with pytest.raises(UnsupportedValue, match=r"key\[1\]"):
        BodyLayout({"key": [None, value]})

    assert "'key" in str(plain.value)
    assert plain.value.fields["name"].startswith("key")
    assert plain.value.fields["type"] in str(plain.value)


def test_the_deepest_values_that_are_accepted_arrive() -> None:
    """What the sender lets through, protobuf and the receiver let through."""
    deep = {"x": nested_list(MAX_LIST_DEPTH), "y": nested_object(MAX_JSON_DEPTH)}

    assert same(round_trip(deep), deep)


@pytest.mark.parametrize("name", [1, None, "", b"x", "\ud800"])
def test_a_name_is_a_text(name: Any) -> None:
    """A key of a batch that is no text, or an empty one, is refused."""
    with pytest.raises(UnsupportedValue):
        BodyLayout({name: 1})


def test_tensors_lie_aligned_in_order_and_zeros_between() -> None:
    """Each starts at the next multiple of 64, the body ends with the last, every byte is set."""
    sizes = [1, 63, 64, 0, 65, 0, 7]
    plan = BodyLayout({f"x{i}": np.full(size, 255, np.uint8) for i, size in enumerate(sizes)})
    bodies = [np.full(plan.nbytes, fill, np.uint8) for fill in (0x00, 0xFF)]

    crcs = {write_body(plan, body) for body in bodies}

    header = feed_pb2.BatchHeader.FromString(write_header(plan, b"", 0, 0, crcs.pop(), {}, []))
    starts = [named.value.tensor.start for named in header.values]
    assert starts == [0, 64, 128, 192, 192, 320, 320]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert plan.nbytes == header.body_bytes == 327
    assert not crcs
    assert bodies[0].tobytes() == bodies[1].tobytes()
    assert int((bodies[0] == 255).sum()) == sum(sizes)
    assert set(bodies[0].tolist()) == {0, 255}


def test_a_batch_without_tensors_has_no_body() -> None:
    """Values that live in the header take no byte of the body."""
    plan = BodyLayout({"a": 1, "b": [None, "x"]})

    assert plan.nbytes == 0
    assert write_body(plan, memoryview(bytearray())) == 0


@pytest.mark.parametrize("length", [0, 127, 129])
def test_a_body_is_written_into_exactly_its_place(length: int) -> None:
    """A buffer of another length than the body is refused."""
    plan = BodyLayout({"x": np.zeros(128, np.uint8)})

    with pytest.raises(ValueError, match=f"128 bytes, the buffer {length}"):
        write_body(plan, memoryview(bytearray(length)))


def test_objects_are_canonical() -> None:
    """The order in which a dict was filled does not reach the wire."""
    headers = {
        write_header(BodyLayout({"x": value}), b"", 0, 0, 0, {}, [])
        for value in ({"a": 1, "b": {"d": 2, "c": 3}}, {"b": {"c": 3, "d": 2}, "a": 1})
    }

    assert len(headers) == 1


def test_decoded_tensors_are_views_of_the_body() -> None:
    """Nothing is copied, and what the body lets be written can be written."""
    header, body = travel({"x": np.arange(4), "y": [np.arange(5)]})

    found = decode_values(header, body)
    found["x"][0] = 99
    frozen = decode_values(header, bytes(body))

    assert np.shares_memory(found["x"], np.frombuffer(body, np.uint8))
    assert np.shares_memory(found["y"][0], np.frombuffer(body, np.uint8))
    assert frozen["x"].tolist() == [99, 1, 2, 3]
    assert not frozen["x"].flags.writeable


def test_places_are_announced() -> None:
    """Names given as `host` are marked so, all others belong on the device."""
    header = write_header(
        BodyLayout({"a": np.zeros(1), "b": np.zeros(1)}, host={"b"}), b"", 0, 0, 0, {}, []
    )

    places = [named.place for named in feed_pb2.BatchHeader.FromString(header).values]

    assert places == [feed_pb2.PLACE_DEVICE, feed_pb2.PLACE_HOST]
