"""How long a loop waits for copies that a device takes 5 ms for, with and without `Ahead`.

The device does one copy after another, each for `COPY_S`, and costs the host nothing else; a step
takes `STEP_S`. With `Ahead` the Loader copies the batches that are next while the loop works;
without it the loop copies each batch when it takes it, and waits. What is timed is from asking for
a batch until its bytes are there. One row has no device, and one a simulated one, whose copies take
no time: what it waits beyond that is the simulator's own work, which takes turns with the loop's.
A way has `STEPS` steps in a round, the first `WARM` of them uncounted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from free_device import Paced
from support import compare, constant, interleaved, node, ranged

from penstock.client import Limits, Loader
from penstock.client.arrive import Cast
from penstock.client.testing import Eager, SimulatedDevice

COPY_S, STEP_S = 0.005, 0.020
STEPS, WARM, NBYTES = 210, 10, 4096


def run() -> None:
    """Print the table."""
    with node({"copies": constant(NBYTES)}, workers=1) as (address, _):
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "without, copied by the loop": partial(_figures, _without, address)
        }
        for depth in (1, 2):
            ways[f"with, {depth} ahead"] = partial(_figures, _ahead, address, depth)
        ways["with, 2 ahead, and a cast on arrival"] = partial(_figures, _ahead, address, 2, _cast)
        ways["without a device"] = partial(_figures, _plain, address)
        ways["with, 2 ahead, simulated, copies of 0 ms"] = partial(
            _figures, _ahead, address, 2, None, lambda: SimulatedDevice(Eager(), tensors=True)
        )
        results = interleaved(ways)
    compare(
        f"Copies of {COPY_S * 1000:.0f} ms beside steps of {STEP_S * 1000:.0f} ms: ms that the "
        "loop waits for a batch",
        "Ahead",
        results,
        ranged("median", "p50_ms", ".2f"),
        ranged("p99", "p99_ms", ".2f"),
    )


def _figures(way: Callable[..., Iterator[None]], *arguments: Any) -> dict[str, float]:
    batches, waits = way(*arguments), []
    for _ in range(STEPS):
        began = time.monotonic()
        next(batches)
        waits.append(time.monotonic() - began)
        time.sleep(STEP_S)
    batches.close()  # type: ignore[attr-defined]
    counted = np.array(waits[WARM:]) * 1000
    return {"p50_ms": float(np.median(counted)), "p99_ms": float(np.quantile(counted, 0.99))}


def _ahead(
    address: str,
    depth: int,
    arrive: Any = None,
    make: Callable[[], Any] | None = None,
) -> Iterator[None]:
    device, limits = Paced(COPY_S) if make is None else make(), Limits(device_batches=depth)
    with Loader(
        address, "copies", rank=0, world_size=1, device=device, limits=limits, arrive=arrive
    ) as loader:
        for _ in loader:
            yield


def _plain(address: str) -> Iterator[None]:
    with Loader(address, "copies", rank=0, world_size=1, as_numpy=True) as loader:
        for _ in loader:
            yield


def _cast(values: dict[str, Any]) -> dict[str, Any]:
    return {name: Cast("float32")(value) for name, value in values.items()}


def _without(address: str) -> Iterator[None]:
    device = Paced(COPY_S)
    pinned = device.pin(2 * NBYTES)
    with Loader(address, "copies", rank=0, world_size=1, as_numpy=True) as loader:
        for batch in loader:
            pinned[: batch.nbytes] = batch.body
            device.copy(device.allocate(batch.nbytes, "loop"), pinned, batch.nbytes, "loop")
            device.synchronize(device.record("loop"))
            yield


if __name__ == "__main__":
    run()
