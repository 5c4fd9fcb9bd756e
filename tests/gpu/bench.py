"""Each driver of CUDA that finds a device here, as a table and as JSON.

    python tests/gpu/bench.py --json figures.json

The first table is of the port's calls; every byte that a way has brought is compared. The second is
of a `Loader` that reads from a node beside it over a Unix socket, so that the device copies from
the node's memory: how fast it reads, and how long a loop of `STEP_S` a step waits at depth 2 until
the batch's bytes are there. Where no driver finds a device, one sentence says so, and everything is
done on a simulated device, whose figures say that this program works and nothing of a GPU.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "bench")]

from support import HERE, serving, table, write_job  # noqa: E402 - of `make bench`

from penstock.client import Limits, Loader  # noqa: E402
from penstock.client.arrive import Cast  # noqa: E402
from penstock.client.bodies.buffers import BufferPool, Lease, Pinner  # noqa: E402
from penstock.client.bodies.lifetimes import Passing  # noqa: E402
from penstock.client.device.copier import Copier, Copy  # noqa: E402
from penstock.client.device.driver import Driver  # noqa: E402
from penstock.client.device.pinned import PinnedMemory  # noqa: E402
from penstock.client.testing import Eager, SimulatedDevice  # noqa: E402
from penstock.wire.errors import PenstockError  # noqa: E402
from unit.devices import ANSWERING, LACKS, bytes_of, on_host  # noqa: E402

STEP_S = 0.020

Figures = dict[str, Any]


class Sizes(NamedTuple):
    """How much is measured.

    Attributes:
        body: Bytes of a body.
        copies: How many are copied by each way.
        small: How many bodies of 4 KiB are copied, to see what the host does for each.
        batches: How many batches a Loader reads as fast as it can.
        steps: How many a loop takes that waits `STEP_S` in each step.
    """

    body: int = 8 << 20
    copies: int = 100
    small: int = 2000
    batches: int = 300
    steps: int = 200


SIMULATED = Sizes(64 << 10, 20, 100, 50, 10)
"""A simulated device looks at every byte of a source at every call."""


# --- what the port does ---


class Registered:
    """Memory of others that is registered: a `Lent`."""

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self._array = array

    def source(self, pinner: Pinner, end: Passing) -> NDArray[np.uint8]:
        """Return it; whoever unregisters it waits for every copy first."""
        return self._array


def shared(nbytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return memory as a node lends it, to write to, and as it is registered: shared, read-only."""
    descriptor = os.memfd_create("lent")
    try:
        os.ftruncate(descriptor, nbytes)
        writable = mmap.mmap(descriptor, nbytes)
        readable = mmap.mmap(descriptor, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return np.frombuffer(writable, np.uint8), np.frombuffer(readable, np.uint8)


class Calls:
    """A driver's calls, one after another, on a thread that may wait for the device."""

    def __init__(self, driver: Driver, sizes: Sizes) -> None:
        self._driver, self._sizes = driver, sizes
        self._stream = driver.open()
        self._port = driver.port
        self._pinned = PinnedMemory(driver.port, 64 * sizes.body)
        self._copier = Copier(driver.port, self._stream, self._pinned)

    def pinning(self) -> Figures:
        """Seconds per GB for an arena of 8 bodies."""
        began, nbytes = time.perf_counter(), 8 * self._sizes.body
        self._port.pin(nbytes)[:: mmap.PAGESIZE] = 1
        return {"pin_s_per_gb": (time.perf_counter() - began) / nbytes * 1e9}

    def from_arena(self) -> Figures:
        """GB per second of bodies that landed in pinned memory."""
        pool = BufferPool(1, memory=self._pinned)
        return {"arena_gb_per_s": self._rate(pool.lease)}

    def staged(self) -> Figures:
        """GB per second of bodies that landed in plain memory."""
        return {"staged_gb_per_s": self._rate(BufferPool(1).lease)}

    def lent(self) -> Figures:
        """Seconds per GB to register a node's memory, and GB per second of bodies there."""
        writable, readable = shared(4 * self._sizes.body)
        began = time.perf_counter()
        self._port.register(readable)
        took_s = time.perf_counter() - began
        turns = iter(range(1 << 30))
        found: list[Copy] = []

        def lease(nbytes: int) -> Lease:
            start = next(turns) % 4 * nbytes
            if len(found) >= 4:
                self._port.synchronize(found[-4].event)
            place = slice(start, start + nbytes)
            return Lease(writable[place], [], lent=Registered(readable[place]))

        rate = self._rate(lease, found)
        self._port.unregister(readable)
        return {
            "register_s_per_gb": took_s / readable.nbytes * 1e9,
            "registered_gb_per_s": rate,
        }

    def small(self) -> Figures:
        """Microseconds that the host works for each copy of 4 KiB."""
        pool, copies = BufferPool(1, memory=self._pinned), self._sizes.small
        ready: deque[Copy] = deque()
        began = time.thread_time()
        for _ in range(copies):
            ready.append(self._copier.copy(pool.lease(4096)))
            self._copier.receive(ready[-1], self._driver.current())
            if len(ready) > 4:
                self._port.synchronize(ready.popleft().event)
        return {"host_us_per_copy": (time.thread_time() - began) / copies * 1e6}

    def on_arrival(self) -> Figures:
        """Whether integers that are cast there have NumPy's bits."""
        lease = BufferPool(1, memory=self._pinned).lease(4000)
        here = lease.array.view(np.int32)
        here[:] = np.arange(-500, 500)
        expected = here.astype(np.int64)
        copy = self._copier.copy(lease)
        value = self._driver.values(copy.memory)("int32", (1000,), 0, 4000)
        found, arrived = self._copier.follow(copy, self._driver, lambda: Cast("int64")(value))
        self._copier.receive(arrived, self._driver.current())
        return {"cast_is_right": bool(np.array_equal(on_host(found), expected))}

    def _rate(self, lease: Callable[[int], Lease], copies: list[Copy] | None = None) -> float:
        """Copy bodies of another byte each, and compare what came."""
        copies, nbytes, count = [] if copies is None else copies, self._sizes.body, 0
        took_s = 0.0
        while count < self._sizes.copies:
            copies.clear()
            began = time.perf_counter()
            numbers = range(count, min(count + 8, self._sizes.copies))
            for number in numbers:
                body = lease(nbytes)
                body.array[:] = number % 251
                copies.append(self._copier.copy(body))
                del body
            self._port.synchronize(copies[-1].event)
            took_s += time.perf_counter() - began
            for number, copy in zip(numbers, copies, strict=True):
                self._copier.receive(copy, self._driver.current())
                found = bytes_of(self._driver, copy, nbytes)
                if not (found == number % 251).all():
                    raise RuntimeError(f"copy {number} has brought other bytes")
            count += len(numbers)
        return nbytes * count / took_s / 1e9


PARTS = ("pinning", "from_arena", "staged", "lent", "small", "on_arrival")


def figures_of_calls(driver: Driver, sizes: Sizes) -> Figures:
    """Return what the port does; what a part could not do is said in place of its figures."""
    calls, found = Calls(driver, sizes), Figures()

    def work() -> None:
        for name in PARTS:
            try:
                found.update(getattr(calls, name)())
            except (PenstockError, RuntimeError) as error:  # the others are measured all the same
                found[f"{name}_failed"] = str(error)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()
    return found


# --- what a Loader does ---


def figures_of_loader(address: str, options: Mapping[str, Any], sizes: Sizes) -> Figures:
    """Return how fast a Loader reads, and how long a loop waits for batches that are there."""
    waits, limits = [], Limits(device_batches=2)
    with Loader(address, "bodies", rank=0, world_size=1, limits=limits, **options) as loader:
        batches = iter(loader)
        for batch in islice(batches, 20):
            first(batch)
        began, used = time.perf_counter(), cpu_s()
        for batch in islice(batches, sizes.batches):
            first(batch)
        took_s, used = time.perf_counter() - began, cpu_s() - used
        nbytes = batch.nbytes * sizes.batches
        for _ in range(sizes.steps):
            began = time.perf_counter()
            first(next(batches))
            waits.append((time.perf_counter() - began) * 1000)
            time.sleep(STEP_S)
        counts = loader.stats()
    return {
        "gb_per_s": nbytes / took_s / 1e9,
        "cpu_s_per_gb": used / nbytes * 1e9,
        "wait_p50_ms": float(np.quantile(waits, 0.5)),
        "wait_p99_ms": float(np.quantile(waits, 0.99)),
        "stats": {name: counts[name] for name in counts if name.startswith(("wait_", "pinned_"))},
    }


def first(batch: Any) -> None:
    """Have the host know that a batch is there, and compare its last byte."""
    data = batch["data"]
    last = int(on_host(data[-1:])[0])
    if last != (len(data) - 1) % 256:
        raise RuntimeError(f"position {batch.position} has other bytes")


def cpu_s() -> float:
    """Return how long this process has worked."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# --- all of it ---


def about(name: str) -> Figures:
    """Return what was measured: the library, CUDA, and the device."""
    if name == "torch":
        import torch

        found = torch.cuda.get_device_properties(torch.device("cuda"))
        return {"torch": torch.__version__, "cuda": torch.version.cuda, "device": found.name}
    if name == "cupy":
        import cupy

        runtime = cupy.cuda.runtime
        found = runtime.getDeviceProperties(0)["name"]
        cuda, driver = runtime.runtimeGetVersion(), runtime.driverGetVersion()
        return {"cupy": cupy.__version__, "cuda": cuda, "driver": driver, "device": found.decode()}
    return {"device": "the host's memory"}


def sentence() -> str:
    """Return what answers here, and what does not."""
    lacking = "; ".join(f"{name}: {why}" for name, why in LACKS.items() if why)
    if not ANSWERING:
        return f"No driver reaches a device of CUDA here ({lacking}): what follows is simulated."
    return f"Measured: {', '.join(ANSWERING)}." + (f" Left out: {lacking}." if lacking else "")


def measure(sizes: Sizes) -> Figures:
    """Return the figures of each driver that answers, or of a simulated device."""
    drivers: dict[str, Callable[[], Driver]] = dict(ANSWERING)
    if not drivers:
        drivers = {"simulated": lambda: SimulatedDevice(Eager())}
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        name: partial(lambda make: {"device": make()}, make) for name, make in drivers.items()
    }
    if "torch" in LACKS and not LACKS["torch"].startswith("torch is not installed"):
        plain = {"device": "cuda", "memory": "plain"} if "torch" in ANSWERING else {"device": "cpu"}
        ways["plain, by torch"] = lambda: plain
    else:
        ways["plain, by NumPy"] = lambda: {"as_numpy": True}
    found = {
        name: {"about": about(name), "calls": figures_of_calls(make(), sizes)}
        for name, make in drivers.items()
    }
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        job = {
            "lanes": 4,
            "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
            "batch_size": 1,
            "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": sizes.body},
        }
        file, listen = write_job(Path(folder), {"bodies": job}), f"unix:{folder}/node.sock"
        with serving(file, "--workers", "1", listen=listen) as (address, _):
            loaders = {
                name: figures_of_loader(address, options(), sizes) for name, options in ways.items()
            }
    return {
        "date": time.strftime("%Y-%m-%d"),
        "host": {"python": platform.python_version(), "kernel": platform.release()},
        "sentence": sentence(),
        "sizes": sizes._asdict(),
        "drivers": found,
        "loaders": loaders,
    }


ROWS = {
    "pin_s_per_gb": "pinning, s/GB",
    "register_s_per_gb": "registering a node's memory, s/GB",
    "arena_gb_per_s": "copies from the arena, filling included, GB/s",
    "registered_gb_per_s": "copies from a node's memory, filling included, GB/s",
    "staged_gb_per_s": "copies that are staged, filling included, GB/s",
    "host_us_per_copy": "the host's work for a copy of 4 KiB, us",
    "cast_is_right": "a cast on arrival has NumPy's bits",
}

COLUMNS = {
    "gb_per_s": ("GB/s", ".3f"),
    "cpu_s_per_gb": ("CPU s/GB", ".3f"),
    "wait_p50_ms": ("wait p50 ms", ".2f"),
    "wait_p99_ms": ("wait p99 ms", ".2f"),
}


def show(found: Figures) -> None:
    """Print the tables."""
    drivers = found["drivers"]
    print(found["sentence"])
    for name, said in drivers.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in said['about'].items())}")
        for key, why in said["calls"].items():
            if key.endswith("_failed"):
                print(f"{name}: {key.removesuffix('_failed')} failed: {why}")
    table(
        f"The port's calls, with bodies of {found['sizes']['body']:,} bytes",
        ("", *drivers),
        [
            (text, *(shown(said["calls"].get(key)) for said in drivers.values()))
            for key, text in ROWS.items()
        ],
    )
    table(
        f"A Loader over a Unix socket, and steps of {STEP_S * 1000:.0f} ms",
        ("", *(title for title, _ in COLUMNS.values())),
        [
            (name, *(f"{said[key]:{form}}" for key, (_, form) in COLUMNS.items()))
            for name, said in found["loaders"].items()
        ],
    )


def shown(figure: float | bool | None) -> str:
    """Return a figure of the first table."""
    if figure is None:
        return "-"
    return ("yes" if figure else "no") if isinstance(figure, bool) else f"{figure:.3f}"


def main(arguments: list[str]) -> int:
    """Measure, print, and write JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures are written, too")
    given = parser.parse_args(arguments)
    found = measure(Sizes() if ANSWERING else SIMULATED)
    show(found)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
