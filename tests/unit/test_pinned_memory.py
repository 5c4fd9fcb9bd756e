"""The arena that a device copies from: bounded, grown a few times, and never in anybody's way."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import resource
import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from penstock.client import Limits
from penstock.client.bodies.buffers import BufferPool, Lease, size_class
from penstock.client.device.copier import Copier
from penstock.client.device.free_spans import FreeSpans
from penstock.client.device.pinned import SHARE, PinnedMemory, default_pinned_bytes
from penstock.client.device.pinned_arena import BODIES
from penstock.client.device.trouble import cannot_pin
from penstock.client.testing import Lazy, SimulatedDevice, Simulator
from penstock.common.resources import usable_memory_bytes
from penstock.wire.errors import CannotPin, InvalidRequest
from unit.devices import bytes_of

MIB = 1 << 20


def test_spans_never_overlap_and_grow_together_again() -> None:
    seed = random.randrange(1 << 32)
    rng, spans, taken = random.Random(seed), FreeSpans(10_000), list[tuple[int, int]]()
    for _ in range(5000):
        nbytes = rng.randrange(1, 2000)
        if rng.random() < 0.5 and taken:
            spans.give_back(*taken.pop(rng.randrange(len(taken))))
        elif (start := spans.take(nbytes)) is not None:
            taken.append((start, nbytes))
        ordered = sorted(taken)
        assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ordered)), seed
        assert spans.free_bytes == 10_000 - sum(n for _, n in taken), seed
    for span in taken:
        spans.give_back(*span)

    assert spans.take(10_000) == 0, seed


def test_bodies_of_changing_sizes_share_what_was_pinned_at_first() -> None:
    """They are spans of one arena, and their sizes no powers of two."""
    port = Simulator()
    memory = PinnedMemory(port)
    rng = random.Random(1)
    held: deque[Lease | None] = deque([memory.lease(MIB)], maxlen=3)
    for _ in range(5000):
        held.append(memory.lease(rng.randrange(1, MIB)))

    assert (port.counts["pin"], memory.grown) == (1, 0)
    assert memory.arena_bytes == BODIES * size_class(MIB)
    assert memory.statistics()["leased_bytes"] <= memory.arena_bytes


def test_an_arena_grows_a_few_times_whatever_comes() -> None:
    """Bodies that become larger byte by byte: each growth at least doubles it."""
    port = Simulator()
    memory = PinnedMemory(port, 256 * MIB)
    for nbytes in range(100, 4 * MIB, 9973):
        lease = memory.lease(nbytes)
        assert lease is not None
        assert lease.is_pinned

    assert memory.grown == port.counts["pin"] - 1 <= 16
    assert BODIES * 4 * MIB <= memory.arena_bytes <= 2 * BODIES * size_class(4 * MIB)


def test_never_more_is_pinned_than_was_allowed() -> None:
    """Whatever sizes come, and whatever the loop holds: plain memory takes over."""
    seed = random.randrange(1 << 32)
    rng, port, pinned = random.Random(seed), Simulator(), 0
    for most in (4096, 100_000, MIB, 5 * MIB):
        memory = PinnedMemory(port, most)
        pool, held = BufferPool(keep=2, memory=memory), list[Lease]()
        for _ in range(300):
            held.append(pool.lease(rng.randrange(1, rng.choice([5000, 50_000, 2 * MIB]))))
            if rng.random() < 0.4:
                held.pop(rng.randrange(len(held)))
            pinned = max(pinned, memory.arena_bytes)
            assert memory.arena_bytes <= most, seed
        assert memory.overflowed > 0
    assert pinned > 2 * MIB, seed  # how much more depends on the order of sizes


@pytest.fixture
def device() -> SimulatedDevice:
    """One that does nothing before somebody waits."""
    return SimulatedDevice(Lazy())


def aside(work: Callable[[], None]) -> None:
    """Do work on a thread that is not the loop's."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for what never comes"
    if failed:
        raise failed[0]


def test_a_loop_that_holds_every_batch_stops_nobody(device: SimulatedDevice) -> None:
    """Views on the host fill the arena but for what is left to staging, which goes on there."""
    stream = device.open()
    memory = PinnedMemory(device.port, 40 * 4096)
    copier, pool = Copier(device.port, stream, memory), BufferPool(1, memory=memory)
    held: list[Lease] = []

    def read() -> None:
        for number in range(100):
            lease = pool.lease(10_000)
            lease.array[:] = number
            held.append(lease)
            copy = copier.copy(lease)
            device.port.synchronize(copy.event)
            copier.receive(copy, device.current())
            assert set(bytes_of(device, copy, 10_000)) == {number}

    aside(read)
    assert sum(lease.is_pinned for lease in held) >= 3
    assert memory.staged == memory.overflowed >= 90
    assert (memory.grown, device.simulator.counts["pin"]) == (0, 1)


def test_staging_grows_within_what_may_be_pinned(device: SimulatedDevice) -> None:
    """A longer body finds room where shorter ones were staged, when their copies are over."""
    stream = device.open()
    memory = PinnedMemory(device.port, 6 * 4096)
    copier = Copier(device.port, stream, memory)

    def read() -> None:
        for pages in (1, 1, 1, 2, 3, 2, 4, 1, 4, 4):
            copier.copy(Lease(np.full(pages * 4096, pages, np.uint8), []))

    aside(read)
    assert memory.arena_bytes == 6 * 4096
    assert device.simulator.counts["synchronize"] > 0


# --- what cannot be ---


def test_a_body_that_is_larger_than_all_that_may_be_pinned_is_refused(
    device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """At its own copy, with both sizes; it has landed in plain memory by then."""
    stream = device.open()
    memory = PinnedMemory(device.port, 8192)
    copier, pool = Copier(device.port, stream, memory), BufferPool(1, memory=memory)
    with caplog.at_level(logging.WARNING, "penstock"):
        leases = [pool.lease(9000) for _ in range(3)]

    for lease in leases:
        assert not lease.is_pinned
        with pytest.raises(CannotPin, match="a batch of 9,000 bytes does not fit") as caught:
            copier.copy(lease)
        assert (caught.value.code, caught.value.nbytes) == ("cannot_pin", 9000)
        assert caught.value.limit_bytes == 8192
    assert "pinned_bytes" in str(caught.value)
    assert len(caplog.records) == 1
    copier.copy(pool.lease(5000))


class Limited(Simulator):
    """A host that lets this process lock so much memory."""

    limit_bytes = 0

    def pin(self, nbytes: int) -> np.ndarray:
        """Pin within the limit."""
        if nbytes > self.limit_bytes:
            raise cannot_pin(nbytes, "Operation not permitted")
        return super().pin(nbytes)


@pytest.fixture
def locked() -> Iterator[None]:
    """This process may lock 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


@pytest.mark.usefixtures("locked")
def test_a_limit_on_locked_memory_leaves_room_for_staging_or_is_told() -> None:
    """One body is enough; without that the error has the limit, and what to do."""
    port = Limited()
    port.limit_bytes = 16_384
    memory = PinnedMemory(port)
    pool = BufferPool(1, memory=memory)
    copier = Copier(port, port.stream("copies"), memory)
    leases = [pool.lease(10_000), pool.lease(10_000)]
    assert (memory.arena_bytes, [lease.is_pinned for lease in leases]) == (12_288, [False, False])
    copier.copy(leases[0])

    with pytest.raises(CannotPin, match=r"may lock 65,536 of them.*ulimit -l") as caught:
        copier.copy(pool.lease(100_000))
    assert (caught.value.code, caught.value.limit_bytes) == ("cannot_pin", 65536)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, "64MiB", True])
def test_pinned_bytes_are_a_whole_number(nbytes: object) -> None:
    with pytest.raises(InvalidRequest, match="pinned_bytes") as caught:
        Limits(pinned_bytes=nbytes)  # type: ignore[arg-type]
    assert caught.value.code == "invalid_request"


def test_more_pinned_bytes_than_there_is_memory_are_refused() -> None:
    most = usable_memory_bytes()

    assert Limits(pinned_bytes=most).pinned_bytes == most
    with pytest.raises(InvalidRequest, match=f"has {most} bytes of memory") as caught:
        Limits(pinned_bytes=most + 1)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("name", "value", "ranks"),
    [("LOCAL_WORLD_SIZE", "8", 8), ("SLURM_NTASKS_PER_NODE", "2(x3)", 1), ("RANK", "4", 1)],
)
def test_ranks_of_one_host_share_what_may_be_pinned(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, ranks: int
) -> None:
    monkeypatch.setenv(name, value)

    assert default_pinned_bytes() == usable_memory_bytes() // ranks // SHARE


# --- memory of others ---


def test_memory_of_others_is_pinned_within_the_same_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With room left for the arena; one line says what was not."""
    port = Simulator()
    memory = PinnedMemory(port, 3 * MIB)
    others = [BufferPool(1).lease(MIB).array for _ in range(4)]
    with caplog.at_level(logging.WARNING, "penstock"):
        assert [memory.register(array, 100_000) for array in others] == [True, True, False, False]

    assert memory.registered_bytes == 2 * MIB
    [record] = caplog.records
    assert "pinned_bytes" in record.getMessage()
    assert memory.lease(100_000) is not None
    assert memory.arena_bytes + memory.registered_bytes <= 3 * MIB
    for array in others[:2]:
        memory.unregister(array)
    assert memory.registered_bytes == 0
    assert memory.register(others[2], 100_000)
    memory.unregister(others[2])
    del memory
    gc.collect()
    port.close()
