"""What is done with values as they arrive: the same on the host and on a device, and in order."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from penstock.client import Limits, Loader
from penstock.client.arrive import Cast, Normalize
from penstock.client.bodies.buffers import BufferPool
from penstock.client.device.copier import Copier, Copy
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import PinnedMemory
from penstock.client.packed import complete
from penstock.client.testing import (
    DeviceArray,
    Lazy,
    Misuse,
    Schedule,
    SimulatedDevice,
    Tape,
    every_schedule,
)
from penstock.wire.errors import DataTimeout, InvalidRequest
from unit.devices import DRIVERS, EACH, on_host
from unit.served import ServedNode, wait_until

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = {
    "float16": (np.dtype(np.float16), 11),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 8),
    "float32": (np.dtype(np.float32), 24),
    "float64": (np.dtype(np.float64), 53),
}
"""By name: NumPy's dtype, and the bits of its significand."""


DEVICE = SimulatedDevice()


def on_device(array: np.ndarray[Any, Any]) -> DeviceArray:
    """Return an array of a simulated device, whose stream is the calling thread's."""
    device = DEVICE
    memory = device.simulator.allocate(array.nbytes, device.current())
    if array.nbytes:
        data = np.frombuffer(array.tobytes(), np.uint8)
        device.simulator.launch(
            device.current(), lambda block: block.__setitem__(slice(None), data), [], [memory]
        )
    return DeviceArray(device, memory, array.dtype, array.shape, 0)


KINDS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "numpy": lambda array: array,
    "torch": torch.from_numpy,
    "simulated": on_device,
}


def back(value: Any) -> np.ndarray[Any, Any]:
    """Return an array of any kind as one of NumPy."""
    if isinstance(value, DeviceArray):
        return value.get()
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bfloat16:
            return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return value.numpy()
    return np.asarray(value)


# --- the same wherever it is computed ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", INTEGERS)
def test_integers_are_cast_as_numpy_casts_them(kind: str, to: str) -> None:
    """Every bit, also of what does not fit."""
    for name in INTEGERS:
        info = np.iinfo(name)
        array = np.array([info.min, info.max, 0, 1, info.max // 2, info.max // 3], name)
        found = Cast(to)(KINDS[kind](array.reshape(2, 3)))
        assert back(found).dtype == np.dtype(to)
        np.testing.assert_array_equal(back(found), array.reshape(2, 3).astype(to))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", FLOATS)
def test_floats_are_cast_to_the_nearest(kind: str, to: str) -> None:
    """Halves go to the even one, and what is too large is infinite."""
    random = np.random.default_rng(5)
    array = (random.standard_normal(999) * 10.0 ** random.integers(-6, 6, 999)).astype(np.float32)
    array[:4] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1e38, -0.0]
    with np.errstate(over="ignore"):
        expected = array.astype(FLOATS[to][0])
        found = back(Cast(to)(KINDS[kind](array)))

    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_normalized_differs_as_little_as_is_said(kind: str, data: st.DataObject) -> None:
    """From what exact arithmetic gives, and nothing from what NumPy gives on the host."""
    to = data.draw(st.sampled_from(sorted(FLOATS)))
    name = data.draw(st.sampled_from(["uint8", "int16", "float16", "float32"]))
    axis = data.draw(st.sampled_from([-3, 1, -1]))
    number = st.floats(0.01, 300, allow_subnormal=False)
    shape = (2, 3, 4, 3) if axis == -1 else (2, 3, 4, 5)
    per_channel = data.draw(st.booleans())
    count = 3 if per_channel else 1
    mean = data.draw(st.lists(number, min_size=count, max_size=count))
    std = data.draw(st.lists(number, min_size=count, max_size=count))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    array = random.integers(0, 256, shape).astype(name)
    transform = Normalize(mean, std, to, axis=axis)

    found = back(transform(KINDS[kind](array)))

    dtype, bits = FLOATS[to]
    assert found.dtype == dtype
    assert found.tobytes() == back(transform(array)).tobytes()
    wide, form = array.astype(np.float64), [1] * 4
    form[axis] = count
    means, stds = np.reshape(mean, form), np.reshape(std, form)
    bound = 2.0**-21 * (np.abs(wide) + means) / stds
    with np.errstate(over="ignore"):  # float16 has nothing above 65504
        exact = (wide - means) / stds
        is_finite = np.isfinite(found.astype(np.float64))
        rounded = np.maximum(np.abs(exact) * 2.0**-bits, 2.0**-25 if to == "float16" else 0)
    error = np.abs(found.astype(np.float64) - exact)
    assert (error <= bound * (1 + 2.0**-bits) + rounded)[is_finite].all()
    assert (np.abs(exact[~is_finite]) > 65_000).all()


def test_lists_of_arrays_are_changed_array_by_array() -> None:
    """Ragged values travel as such lists; what is not there stays so."""
    value = [np.array([1], np.int32), [None, np.array([[2]], np.uint8)]]

    found = Cast("int64")(value)

    assert [found[0].dtype, found[1][1].dtype] == [np.int64, np.int64]
    assert found[1][0] is None
    assert Cast("int64")(found)[0] is found[0]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shifted", [False, True])
def test_seams_are_completed_alike(dtype: Any, shifted: bool) -> None:
    """On arrays of each kind; by NumPy on the host, by operations of known shapes elsewhere."""
    batch = {
        "input_ids": np.arange(1, 13, dtype=dtype).reshape(2, 6),
        "cu_seq_lens_q": np.array([0, 2, 5, 6, 9, 12, 12], np.int32),
        "row_tokens": np.array([5, 6], np.int32),
        "max_length_q": 3,
    }
    expected = {
        "position_ids": [[0, 1, 0, 1, 2, 0], [0, 1, 2, 0, 1, 2]],
        "document_ids": [[1, 1, 2, 2, 2, 0], [1, 1, 1, 2, 2, 2]],
        "labels": [[2, -100, 4, 5, -100, -100], [8, 9, -100, 11, 12, -100]]
        if shifted
        else [[-100, 2, -100, 4, 5, -100], [-100, 8, 9, -100, 11, 12]],
    }
    for make in KINDS.values():
        values = {
            name: make(value) if isinstance(value, np.ndarray) else value
            for name, value in batch.items()
        }
        found = complete(values, shifted=shifted)
        assert set(found) == {*batch, *expected} - {"row_tokens"}
        assert found["max_length_q"] == 3
        for name, rows in expected.items():
            assert back(found[name]).tolist() == rows, name
        dtypes = [back(found[name]).dtype for name in expected]
        assert dtypes == [np.dtype(dtype), np.dtype(np.int32), np.dtype(np.int64)]


# --- a Loader ---


@pytest.fixture(scope="module", params=[False, True], ids=["bodies", "packed rows"])
def node(request: pytest.FixtureRequest) -> Iterator[ServedNode]:
    """One node for all: nobody holds it up."""
    with ServedNode(batches=60, lanes=3, packed=request.param) as served:
        yield served


def reading(node: ServedNode, **options: Any) -> Loader:
    """A Loader of one rank."""
    return Loader(node.address, "code", rank=0, world_size=1, **options)


ONE_BODY = Limits(pinned_bytes=4096)
"""So much that what is staged waits for the body before it."""


class Late(SimulatedDevice):
    """Opened when some bodies have come, to memory that is not pinned: they are staged."""

    def __init__(
        self, count: int, loader: Callable[[], Loader], schedule: Schedule | None = None
    ) -> None:
        super().__init__(schedule)
        self._count, self._loader = count, loader

    def open(self) -> Any:
        """Wait for the bodies first."""
        stats = self._loader().stats
        wait_until(lambda: stats()["buffered_batches"] >= self._count, "the prefetch")
        return super().open()


def doubled(values: dict[str, Any]) -> dict[str, Any]:
    """Return a batch with another value: a transform of somebody's own."""
    return {**values, "doubled": values["input_ids"] * 2 + values["mask"][0]}


ARRIVE: Any = [
    doubled,
    {"input_ids": Cast("int32"), "parts": lambda parts: [Cast("float64")(parts[0]), *parts[1:]]},
    {"doubled": Normalize(3, 2, "float32")},
]


@pytest.mark.parametrize("name", EACH)
def test_a_loop_finds_on_a_device_what_it_finds_on_the_host(node: ServedNode, name: str) -> None:
    """Every value of every batch, its dtype and its bytes, whenever the device does its work."""
    driver = DRIVERS[name]()
    with (
        reading(node, device=driver, arrive=ARRIVE) as there,
        reading(node, as_numpy=True, arrive=ARRIVE) as here,
    ):
        count = 0
        for found, expected in zip(there, here, strict=True):
            assert list(found) == list(expected)
            for key in ("input_ids", "mask", "doubled"):
                array = on_host(found[key])
                assert array.dtype == expected[key].dtype
                np.testing.assert_array_equal(array, expected[key], err_msg=key)
            assert on_host(found["parts"][0]).dtype == np.float64
            assert np.asarray(found["grid"]).tolist() == expected["grid"].tolist()
            count += 1
        assert count == 60
    if isinstance(driver, SimulatedDevice):
        del found, there, here
        gc.collect()
        driver.simulator.close()


def test_tensors_on_the_host_are_changed_there(node: ServedNode) -> None:
    """Also those that a job keeps there: without a device there is no other place."""
    with reading(node, arrive=[*ARRIVE, {"grid": Cast("int64")}]) as loader:
        batch = next(iter(loader))

    assert (batch["input_ids"].dtype, batch["grid"].dtype) == (torch.int32, torch.int64)
    assert batch["doubled"].dtype is torch.float32


def test_what_is_done_on_arrival_comes_after_labels_are_widened() -> None:
    """It is given what the loop would get, and its word is the last."""
    seen = []
    labels = np.array([[1, -100]], np.int32)

    def look(values: dict[str, Any]) -> dict[str, Any]:
        seen.append(values["labels"].dtype)
        return values

    with ServedNode(batches=4, given={"labels": labels}, host=()) as served:
        for device in (None, SimulatedDevice()):
            with reading(
                served, device=device, as_numpy=device is None or None, arrive=look
            ) as loader:
                assert back(next(iter(loader))["labels"]).dtype == np.int64
            with reading(served, device=device, arrive={"labels": Cast("int16")}) as loader:
                assert back(next(iter(loader))["labels"]).dtype == np.int16
    assert set(seen) == {np.dtype(np.int64)}


def test_the_loops_thread_never_waits_for_the_device(node: ServedNode) -> None:
    """Whatever the device leaves for later: others wait for it, to stage bodies."""
    waiting = set()

    def before(call: str) -> None:
        if call == "synchronize":
            waiting.add(threading.get_ident())

    device = Late(8, lambda: loader, Lazy())
    device.simulator.before = before
    with reading(node, device=device, arrive=ARRIVE, prefetch=8, limits=ONE_BODY) as loader:
        kept = [batch["doubled"] for batch in loader]

    assert len(kept) == 60
    device.simulator.drain()
    assert device.simulator.counts["synchronize"] > 0
    assert waiting
    assert threading.get_ident() not in waiting


def test_a_transform_that_fails_fails_at_its_own_batch(node: ServedNode) -> None:
    """Those before it are given, and asking again does it again."""
    failing = [3]

    def fail(ids: Any) -> Any:
        calls.append(ids)
        if failing and len(calls) - 1 == failing[0]:
            failing.clear()
            raise OSError("a table is missing")
        return ids + 0

    for device in (None, SimulatedDevice()):
        calls: list[Any] = []
        failing[:] = [3]
        with reading(node, device=device, arrive={"input_ids": fail}) as loader:
            batches = iter(loader)
            assert [next(batches).position for _ in range(3)] == [0, 1, 2]
            with pytest.raises(OSError, match="a table is missing"):
                next(batches)
            assert loader.state_dict()["step"] == 3
            assert [next(batches).position for _ in range(3)] == [3, 4, 5]


@pytest.mark.parametrize("device", [None, "simulated"])
@pytest.mark.parametrize(
    ("arrive", "sentence"),
    [
        ({"pixels": Cast("int64")}, "this batch has no such value, but 'input_ids'"),
        ({"input_ids": lambda ids: None}, "returned None: return the value"),
        (lambda values: values["mask"], "return a dict of all values of the batch"),
        ({"name": Cast("int64")}, "takes arrays, and was given a str"),
        ({"input_ids": Cast}, "Cast: dtype=an array: pass the name"),
        ({"input_ids": Normalize([1, 2], [1, 1], axis=-1)}, "numbers for 2 channels"),
        (complete, "a batch without 'cu_seq_lens_q' cannot be completed"),
    ],
)
def test_what_cannot_be_done_is_said_at_the_batch(
    node: ServedNode, device: str | None, arrive: Any, sentence: str
) -> None:
    found = SimulatedDevice() if device else None
    with (
        reading(node, device=found, arrive=arrive) as loader,
        pytest.raises(InvalidRequest, match=sentence),
    ):
        next(iter(loader))


def test_a_value_that_stays_on_the_host_is_not_changed_beside_the_loop(node: ServedNode) -> None:
    with (
        reading(node, device=SimulatedDevice(), arrive={"grid": Cast("int64")}) as loader,
        pytest.raises(InvalidRequest, match=r"'grid'.*keeps this value on the host"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("tensors", [True, False])
def test_a_loop_may_write_into_what_stays_on_the_host(node: ServedNode, tensors: bool) -> None:
    """Although the device has read nothing of the body then."""
    device = SimulatedDevice(Lazy(), tensors=tensors)
    with (
        reading(node, device=device) as there,
        reading(node, as_numpy=True) as here,
    ):
        for found, expected in zip(there, here, strict=True):
            assert np.asarray(found["grid"]).tolist() == expected["grid"].tolist()
            found["grid"][...] = 9
            np.testing.assert_array_equal(on_host(found["input_ids"]), expected["input_ids"])
    del found, there, here
    gc.collect()
    device.simulator.close()


@pytest.mark.parametrize(
    "arrive", [3, "input_ids", {"input_ids": "int64"}, {3: Cast("int64")}, [Cast("int64"), 4]]
)
def test_what_is_no_transform_is_refused_at_once(arrive: Any) -> None:
    with pytest.raises(InvalidRequest, match="arrive="):
        Loader("127.0.0.1:1", "code", rank=0, world_size=1, arrive=arrive)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Cast("int65"), "dtype='int65'"),
        (lambda: Normalize(0, 1, "int8"), "dtype='int8'"),
        (lambda: Cast(np.int64), "dtype=<class 'numpy.int64'>: pass the name"),  # type: ignore[arg-type]
        (lambda: Normalize(0, 0), "above 0"),
        (lambda: Normalize(0, 1e-39), "which does not hold the mean, or 1 / std"),
        (lambda: Normalize(1e39, 1), "which does not hold the mean"),
        (lambda: Normalize(float("nan"), 1), "mean=nan"),
        (lambda: Normalize([], 1), r"mean=\[\]"),
        (lambda: Normalize([1, 2], [1, 2, 3]), "2 numbers and std 3"),
        (lambda: Normalize(1, 1, axis=1.5), "axis=1.5"),  # type: ignore[arg-type]
    ],
)
def test_a_transform_that_cannot_be_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        make()


# --- the order, and orders that are wrong ---

BODIES, NBYTES = 3, 64


class Unrecorded(Copier):
    """Nothing says when what follows a copy is over: the loop waits for the copy alone."""

    def follow(self, copy: Copy, driver: Driver, work: Callable[[], Any]) -> tuple[Any, Copy]:
        """Leave the event out."""
        result, found = super().follow(copy, driver, work)
        return result, found._replace(event=copy.event)


class Unkept(Copier):
    """Nothing keeps results for the loop's stream."""

    def follow(self, copy: Copy, driver: Driver, work: Callable[[], Any]) -> tuple[Any, Copy]:
        """Leave the results out."""
        result, found = super().follow(copy, driver, work)
        return result, found._replace(results=())


class Elsewhere(Copier):
    """What follows a copy is queued on the calling thread's own stream, which does not wait."""

    def follow(self, copy: Copy, driver: Driver, work: Callable[[], Any]) -> tuple[Any, Copy]:
        """Leave the stream out."""
        return work(), copy


class Early(Copier):
    """The event is recorded before the work that it is for."""

    def follow(self, copy: Copy, driver: Driver, work: Callable[[], Any]) -> tuple[Any, Copy]:
        """Record first."""
        event = driver.port.record(self._stream)
        result, memory = driver.work_on(self._stream, work)
        return result, Copy(copy.memory, event, tuple(memory))


MUTANTS = (Unrecorded, Unkept, Elsewhere, Early)


def epoch(schedule: Schedule, kind: type[Copier] = Copier) -> None:
    """Bring a few bodies to a device as a feed and a loop do, and look at what arrives."""
    device = SimulatedDevice(schedule)
    try:
        bring(device, kind)
        device.simulator.close()
    finally:
        device.simulator.drain()  # else what is kept until its events is kept for good


def bring(device: SimulatedDevice, kind: type[Copier]) -> None:
    """See `epoch`; nothing of it is left."""
    stream, pinned = device.open(), PinnedMemory(device.port)
    copier, pool = kind(device.port, stream, pinned), BufferPool(keep=2, memory=pinned)
    failures: list[BaseException] = []

    def begin(number: int) -> tuple[Any, Copy]:
        lease = pool.lease(NBYTES)
        lease.array[:] = number
        copy = copier.copy(lease)
        view = device.values(copy.memory)("uint8", (NBYTES,), 0, NBYTES)
        return copier.follow(copy, device, partial(Cast("int64"), view))

    def ahead() -> None:
        try:
            begun.append(begin(len(seen)))
        except BaseException as error:  # the edge of the thread
            failures.append(error)

    begun: list[tuple[Any, Copy]] = []
    seen: list[Any] = []
    for number in range(BODIES):
        thread = threading.Thread(target=ahead)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        values, copy = begun.pop()
        copier.receive(copy, device.current())
        seen.append(values + 1)  # a kernel of the loop, which reads it
        del values, copy
        assert seen[number].shape == (NBYTES,)
    assert [set(found.tolist()) for found in seen] == [{n + 1} for n in range(BODIES)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=60))
def test_the_order_holds_whenever_the_device_does_its_work(numbers: list[int]) -> None:
    epoch(Tape(iter(numbers)))


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_order_that_lacks_a_part_is_found(mutant: type[Copier]) -> None:
    """Within 200 examples, as a read before its copy or memory that is freed too early."""

    def is_wrong(numbers: list[int]) -> bool:
        try:
            epoch(Tape(iter(numbers)), mutant)
        except Misuse:
            return True
        return False

    try:
        find(
            st.lists(st.integers(0, 5), max_size=60),
            is_wrong,
            settings=settings(max_examples=200, deadline=None, database=None),
        )
    except NoSuchExample:
        pytest.fail(f"{mutant.__name__} was not found")


def test_one_body_is_right_in_every_order_there_is() -> None:
    """A copy, what follows it, and a loop that reads it."""

    def scenario(schedule: Schedule) -> None:
        device = SimulatedDevice(schedule)
        stream, pinned = device.open(), PinnedMemory(device.port)
        copier, pool = Copier(device.port, stream, pinned), BufferPool(keep=1, memory=pinned)
        lease = pool.lease(NBYTES)
        lease.array[:] = 7
        copy = copier.copy(lease)
        view = device.values(copy.memory)("uint8", (NBYTES,), 0, NBYTES)
        wide, copy = copier.follow(copy, device, partial(Cast("int64"), view))
        copier.receive(copy, device.current())
        assert set((wide * 2).tolist()) == {14}
        device.simulator.drain()

    assert every_schedule(scenario) > 10


# --- why a loop waits ---


def test_waiting_for_a_node_is_told_from_other_waiting() -> None:
    with ServedNode(batches=4, lanes=1) as served:
        served.gate.held.add(2)
        with reading(served, deadline_s=0.3) as loader:
            batches = iter(loader)
            for _ in range(2):
                next(batches)
            with pytest.raises(DataTimeout):
                next(batches)
            stats = loader.stats()
        served.gate.released.set()

    parts = [stats[f"wait_{part}_s"] for part in ("network", "memory", "copy", "decode")]
    assert stats["wait_network_s"] >= 0.29
    assert sum(parts) == pytest.approx(stats["wait_s"])


@pytest.mark.parametrize("part", ["copy", "decode"])
def test_waiting_for_a_copy_is_told_from_waiting_for_values(node: ServedNode, part: str) -> None:
    """A device that does not take the copy, and a transform that takes long."""
    goes, device = threading.Event(), SimulatedDevice()
    goes.set()

    def hold(ids: Any) -> Any:
        assert goes.wait(60)
        return ids

    def before(call: str) -> None:
        if part == "copy" and call == "allocate" and threading.get_ident() != loop:
            assert goes.wait(60)

    loop, device.simulator.before = threading.get_ident(), before
    arrive = {"input_ids": hold} if part == "decode" else None
    with reading(node, device=device, arrive=arrive, deadline_s=0.3) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: loader.stats()["device_batches"] == 2, "copies ahead")
        assert loader.stats()["pinned_bytes"] > 0
        goes.clear()
        next(batches)
        next(batches)
        try:
            with pytest.raises(DataTimeout):
                next(batches)
            stats = loader.stats()
        finally:
            goes.set()

    other = {"copy": "decode", "decode": "copy"}[part]
    assert stats[f"wait_{part}_s"] >= 0.29
    assert stats[f"wait_{other}_s"] < 0.29


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("query", id="where bodies land: the device does not say what is free"),
        pytest.param("synchronize", id="where they are staged: the copy before is not over"),
    ],
)
def test_waiting_for_memory_is_told_from_waiting_for_a_node(node: ServedNode, call: str) -> None:
    """What comes has no memory to go to."""
    goes, device = threading.Event(), Late(2, lambda: loader, Lazy())

    def before(called: str) -> None:
        thread = threading.current_thread()
        stages = thread.name == "penstock-ahead"
        if called == call and thread.ident != loop and stages == (call == "synchronize"):
            assert goes.wait(60)

    loop, device.simulator.before = threading.get_ident(), before
    with reading(node, device=device, prefetch=2, deadline_s=0.5, limits=ONE_BODY) as loader:
        batches = iter(loader)
        kept: list[Any] = []
        try:
            with pytest.raises(DataTimeout, match="position"):
                kept.extend(batches)
            stats = loader.stats()
        finally:
            goes.set()

    assert stats["wait_memory_s"] >= 0.3
    assert stats["pinned_bytes"] == 4096
    assert stats["pinned_staged"] >= 1
    assert stats["wait_network_s"] < stats["wait_memory_s"]


def test_the_loop_waits_for_what_it_does_itself_on_the_host(node: ServedNode) -> None:
    took_s = 0.05

    def slow(ids: Any) -> Any:
        threading.Event().wait(took_s)
        return ids

    with reading(node, arrive={"input_ids": slow}) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        stats = loader.stats()

    assert stats["wait_decode_s"] >= 2 * took_s * 0.9
    assert (stats["device_batches"], stats["pinned_bytes"]) == (0, 0)
