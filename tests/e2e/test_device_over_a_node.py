"""Batches of a real node on a simulated device: from where they lie, and what is there is right."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness import Server, call_command, serving, write_job_file
from invariants import eventually
from penstock.client import Batch, Limits, Loader
from penstock.client.bodies.lent_arenas import MAX_MAPPINGS, LentBody
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Lazy, Misuse, Random, SimulatedDevice
from penstock.client.testing.device_arrays import DeviceArray
from penstock.wire.describe import batch_record

ROLES = """
import numpy

class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        draws = numpy.random.default_rng(index)
        size = (1_000, 70_000, 300_000, 65_536)[index % 4]
        return {"n": numpy.int64(index), "x": draws.integers(0, 256, size, numpy.uint8)}

    def fingerprint(self):
        return "v1"

class Texts(Items):
    def __getitem__(self, index):
        draws = numpy.random.default_rng(index)
        return {"input_ids": draws.integers(0, 50_000, draws.integers(1, 4_000), numpy.int32)}
"""
WAYS = ("sent", "lent")


class Node(NamedTuple):
    """A node, and the file of its jobs."""

    server: Server
    file: Path


def job_file(folder: Path, listen: str, **server: Any) -> Path:
    """Write a job of bodies that are lent but for one in four, and one of packed rows."""
    (folder / "data.py").write_text(ROLES)
    items = {
        "lanes": 4,
        "source": {"type": "torch", "factory": "./data.py:Items"},
        "distributor": {"type": "map", "shuffle": "full"},
        "batch_size": 1,
    }
    packed = {
        "lanes": 3,
        "source": {"type": "torch", "factory": "./data.py:Texts"},
        "batcher": {"type": "best_fit", "max_tokens": 8192, "pool_size": 16, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 8192},
    }
    server = {"listen": listen, "workers": 2, "ready_bytes": str(8 << 20), **server}
    return write_job_file(folder / "jobs.yaml", {"items": items, "packed": packed}, **server)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Node]]:
    """A node behind a port, and one behind a Unix socket, of the same jobs."""
    sent, lent = (tmp_path_factory.mktemp(way) for way in WAYS)
    files = job_file(sent, "127.0.0.1:0"), job_file(lent, f"unix:{lent}/node.sock")
    with serving(files[0]) as sends, serving(files[1]) as lends:
        yield {"sent": Node(sends, files[0]), "lent": Node(lends, files[1])}


@pytest.fixture
def device() -> SimulatedDevice:
    """One that does anything at any time."""
    return SimulatedDevice(Random(3))


def opened(node: Node, job: str, device: SimulatedDevice, **options: Any) -> Loader:
    given: dict[str, Any] = {"rank": 0, "world_size": 1, "device": device} | options
    return Loader(node.server.address, job, **given)


def pinned(loader: Loader) -> PinnedMemory:
    """Return what is pinned for a Loader."""
    found = getattr(loader._reader.intake._decoder, "pinned", None)
    assert isinstance(found, PinnedMemory)
    return found


def body_of(device: SimulatedDevice, batch: Batch) -> np.ndarray:
    """Return the bytes of a batch as they lie on the device, read by a kernel of the loop."""
    [array, *_] = [value for value in batch.values() if isinstance(value, DeviceArray)]
    memory = array.memory
    return DeviceArray(device, memory, np.dtype(np.uint8), memory.shape, 0).get()


def record_of(device: SimulatedDevice, batch: Batch) -> dict[str, Any]:
    """Return what `show --json` says of a batch, of its bytes on the device."""
    return batch_record(batch.header, body_of(device, batch), batch.step)


def shown(file: Path, job: str, count: int) -> list[str]:
    """Return the digests of the first batches, as a node's program computes them."""
    found = []
    for position in range(count):
        done = call_command("penstockd", "show", str(file), job, f"--position={position}", "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["digest"])
    return found


def state(loader: Loader, device: SimulatedDevice) -> dict[str, int]:
    """Return what may not grow."""
    memory, counts = pinned(loader), device.simulator.counts
    return {
        "pinned": memory.arena_bytes + memory.registered_bytes,
        "pins": counts["pin"] + counts["register"],
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def resident() -> int:
    """Return how many bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def finished(device: SimulatedDevice) -> None:
    """Check that nothing is left on the device, or pinned for it, once threads have ended."""

    def is_closed() -> bool:
        gc.collect()
        try:
            device.simulator.close()
        except Misuse as misuse:
            if "handles are left" not in misuse.kind:
                raise
            return False
        return True

    eventually(is_closed, 30, "all is released")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("job", ["items", "packed"])
def test_what_lies_on_the_device_is_what_is_shown(
    nodes: dict[str, Node], device: SimulatedDevice, way: str, job: str
) -> None:
    """Also when the Loader was left in the middle, and another one goes on from its state."""
    digests, count = [], 12
    with opened(nodes[way], job, device) as loader:
        for batch in itertools.islice(loader, count // 2):
            digests.append(record_of(device, batch)["digest"])
        state = loader.state_dict()
    del loader, batch
    with opened(nodes[way], job, device) as loader:
        loader.load_state_dict(state)
        for batch in itertools.islice(loader, count - count // 2):
            digests.append(record_of(device, batch)["digest"])
        # Rows are completed by the process, so they land in its arena; see decision 0038.
        assert bool(pinned(loader).registered_bytes) == ((way, job) == ("lent", "items"))
    del loader, batch

    assert digests == shown(nodes[way].file, job, count)
    finished(device)


def test_lent_bodies_are_copied_from_where_they_lie(
    nodes: dict[str, Node], device: SimulatedDevice
) -> None:
    """Nothing is staged of them; each of the node's arenas is registered once."""
    with opened(nodes["lent"], "items", device) as loader:
        batches = iter(loader)
        for _ in range(100):
            next(batches)
        memory, counts = pinned(loader), device.simulator.counts
        # Nothing but what had landed in plain memory before the device was known.
        early = memory.staged
        assert memory.overflowed == 0
        for _ in range(100):
            next(batches)
        assert memory.staged == early <= 30
        assert 1 <= counts["register"] <= 2, "one arena for each worker"
        assert memory.registered_bytes == counts["register"] * (64 << 20)
    del loader, batches, memory
    eventually(
        lambda: nodes["lent"].server.status()["lent_bytes"] == 0 or gc.collect(), 30, "returned"
    )
    assert counts["unregister"] == counts["register"]
    finished(device)


def test_what_does_not_fit_is_staged(
    nodes: dict[str, Node], device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, and the bytes are the same."""
    limits = Limits(pinned_bytes=4 << 20)
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        opened(nodes["lent"], "items", device, limits=limits) as loader,
    ):
        batches = iter(loader)
        digests = [record_of(device, next(batches))["digest"] for _ in range(8)]
        # Before the node knows that they may be lent, some are sent, and land in the arena.
        memory = pinned(loader)
        while memory.staged < 5:
            next(batches)
    del loader, batches, memory

    assert digests == shown(nodes["lent"].file, "items", 8)
    assert device.simulator.counts["register"] == 0
    [record] = [r for r in caplog.records if "pinned" in r.getMessage()]
    assert "lent batches are copied within the host" in record.getMessage()
    finished(device)


def test_where_registering_fails_bodies_are_staged(
    nodes: dict[str, Node], device: SimulatedDevice, caplog: pytest.LogCaptureFixture
) -> None:
    from penstock.client.device.trouble import cannot_pin

    def before(call: str) -> None:
        if call == "register":
            raise cannot_pin(64 << 20, "cudaErrorNotSupported")

    device.simulator.before = before
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        opened(nodes["lent"], "items", device) as loader,
    ):
        digests = [record_of(device, b)["digest"] for b in itertools.islice(loader, 8)]
    del loader

    assert digests == shown(nodes["lent"].file, "items", 8)
    [record] = [r for r in caplog.records if "copied within the host" in r.getMessage()]
    assert "cudaErrorNotSupported" in record.getMessage()
    finished(device)


def test_a_loan_and_its_connection_outlast_the_copy(nodes: dict[str, Node]) -> None:
    """The Loader is closed while the device has not read what it was given."""
    device, node = SimulatedDevice(Lazy()), nodes["lent"]
    loader = opened(node, "items", device)
    batches = iter(loader)
    held = [next(batches) for _ in range(12)]
    loader.close()
    assert node.server.status()["lent_bytes"] > 0

    digests = [record_of(device, batch)["digest"] for batch in held]
    assert digests == shown(node.file, "items", 12)
    held.clear()
    del loader, batches
    finished(device)
    eventually(lambda: node.server.status()["lent_bytes"] == 0, 30, "everything has come back")


def test_a_loan_that_goes_back_before_its_copy_is_found(
    nodes: dict[str, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node writes there, or the arena is unpinned, and the device has not read it."""
    device = SimulatedDevice(Lazy())
    monkeypatch.setattr(LentBody, "is_over", lambda body: True)
    try:
        # Found by a call of the thread that copies, or of the feed's, whose failure names it. That
        # ends the stream, and with it the loan: which of the two is told first is a race.
        with (
            opened(nodes["lent"], "items", device) as loader,
            pytest.raises(
                (Misuse, RuntimeError), match=r"the source of a copy was (written|unpinned)"
            ),
        ):
            for _ in itertools.islice(loader, 1000):
                pass
    finally:
        device.simulator.abandon()


def test_a_device_that_fails_is_no_other_loaders_matter(nodes: dict[str, Node]) -> None:
    """Both borrow from one node, and each looks at what the other has given back."""
    failing, device = SimulatedDevice(Lazy()), SimulatedDevice(Random(3))
    with (
        opened(nodes["lent"], "items", failing) as other,
        opened(nodes["lent"], "items", device) as loader,
    ):
        for _ in itertools.islice(other, 8):
            pass
        asked = []

        def before(call: str) -> None:
            asked.append(call)
            raise RuntimeError("the driver is gone")

        failing.simulator.before = before
        digests = [record_of(device, b)["digest"] for b in itertools.islice(loader, 40)]
        assert "query" in asked
        failing.simulator.before = None
    assert digests[:4] == shown(nodes["lent"].file, "items", 4)
    failing.simulator.abandon()
    del loader
    finished(device)


@pytest.mark.parametrize("way", WAYS)
def test_a_loop_that_holds_old_batches_gets_more(nodes: dict[str, Node], way: str) -> None:
    """Whatever it holds on the host and on the device, and however little may be pinned."""
    device = SimulatedDevice(Random(5))
    limits = Limits(pinned_bytes=1 << 20)
    with opened(nodes[way], "items", device, limits=limits) as loader:
        held = list(itertools.islice(loader, 60))
        memory = pinned(loader)
        assert memory.arena_bytes + memory.registered_bytes <= 1 << 20
    assert [record_of(device, b)["digest"] for b in held[:6]] == shown(nodes[way].file, "items", 6)


BATCHES = int(os.environ.get("DEVICE_BATCHES", "1000"))
"""How many are read to see that nothing grows; more find slower growth."""


@pytest.mark.parametrize("way", WAYS)
def test_nothing_grows_with_the_run(nodes: dict[str, Node], way: str) -> None:
    """Arena, what is registered, files, threads and memory, while sizes change."""
    device = SimulatedDevice(Random(7))

    with opened(nodes[way], "items", device) as loader:
        batches = iter(loader)
        for batch in itertools.islice(batches, 300):
            body_of(device, batch)
        before, memory_before = state(loader, device), resident()
        for batch in itertools.islice(batches, BATCHES):
            body_of(device, batch)
        # Views of the node's arenas come with what was kept: each has a file, and they are few.
        slack = {"files": 2 * MAX_MAPPINGS}
        for name, now in state(loader, device).items():
            assert now <= before[name] + slack.get(name, 0), name
        assert resident() - memory_before < 32 << 20
    del loader, batches, batch
    finished(device)
