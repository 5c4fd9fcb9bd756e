"""A whole loader node in this process: the real gRPC service over a real node and a memory store.

Only its workers differ from a server's: each is a thread instead of a process, so that a test can
hold one up in the middle of an item. What is read of it is made by real roles, of a small job whose
every value is a function of its position.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from structlog.testing import capture_logs

from penstock.server.job.job import Job
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.supply.worker_pool import Hear, Lose
from penstock.server.node.workers.link import ServerGone
from penstock.server.roles import (
    BatchCollator,
    IndexedSource,
    MapDistributor,
    RawItemProcessor,
)
from penstock.server.roles.collator import KeySpec
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.samples import Sample
from penstock.server.rpc.service import Service
from penstock.server.store import Memory, MemoryStore
from penstock.server.store.records import GroupRecord
from penstock.wire.packed_rows import Derived, PackedRows
from penstock.wire.v1 import feed_pb2
from unit.inline_workers import InlineNode, InlineWorker

T = TypeVar("T")

DEADLINE_S = 60.0

ITEMS = 1 << 20
"""Items of an endless job: no test reads so far."""


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = 30.0) -> None:
    """Wait for something that another thread is about to do."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s"
        threading.Event().wait(0.005)


# --- the job ---


def values_of(position: int, nbytes: int) -> dict[str, Any]:
    """Return the values of one batch of `make_job`: a function of its position alone."""
    count = nbytes // 8
    return {
        "input_ids": np.arange(position, position + count, dtype=np.int64).reshape(1, count),
        "mask": np.array([position % 2 == 0, True]),
        "cut": np.int64(position),
        "grid": np.array([[position, 2]], np.int32),
        "name": f"batch {position}",
        "extra": {"position": position},
        "parts": [np.array([position], np.float32), None, 3],
    }


class Numbers(IndexedSource):
    """The numbers from 0 on, as items."""

    version: ClassVar[int] = 1
    gives_fresh_items: ClassVar[bool] = True

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the indices."""
        return list(indices)


class Gate:
    """Where workers wait with an item that is held.

    Attributes:
        held: The items.
        waiting: Those that a worker waits with.
        released: Lets all of them through, once and for all.
    """

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.waiting: set[int] = set()
        self.released = threading.Event()

    def pass_through(self, item: int) -> None:
        """Wait while an item is held."""
        if item in self.held:
            self.waiting.add(item)
            assert self.released.wait(DEADLINE_S), "a test holds an item up for ever"


class Positions(RawItemProcessor):
    """Makes a sample of a number.

    Args:
        gate: Where it waits.
        bad: Items that cannot be decoded.
    """

    version: ClassVar[int] = 1
    uses_global_rng: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = True

    def __init__(self, gate: Gate | None = None, bad: Sequence[int] = ()) -> None:
        self.gate, self.bad = gate, bad

    def parameters(self) -> dict[str, Any]:
        """Return nothing: who waits, and who refuses, decides no bytes."""
        return {}

    def process(self, raw: int, context: ProcessContext) -> Sample:
        """Return the number under its name."""
        if self.gate is not None:
            self.gate.pass_through(raw)
        if raw in self.bad:
            raise ValueError("it is no picture")
        return {"position": raw}


class Values(BatchCollator):
    """Makes the values of a batch of its position.

    Args:
        nbytes: About the size of the body.
        given: Values that every batch has, instead of those.
        host: Names of values that stay off the device.
        packed: Its ids travel as packed rows.
    """

    version: ClassVar[int] = 1
    uses_global_rng: ClassVar[bool] = False

    def __init__(
        self,
        nbytes: int,
        given: Mapping[str, Any] | None = None,
        host: Sequence[str] = ("grid",),
        packed: bool = False,
    ) -> None:
        self.nbytes, self.given, self.host, self.packed = nbytes, given, host, packed

    def parameters(self) -> dict[str, Any]:
        """Return what can be written down."""
        return {"nbytes": self.nbytes}

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values, and count tokens by which a batch is known."""
        [[sample]] = rows
        position = sample["position"]
        context.count("tokens", 10 + position)
        context.count("samples", 2)
        return dict(self.given) if self.given is not None else values_of(position, self.nbytes)

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return the values, with ids that readers make of packed rows, where that is asked for."""
        values = self.collate(rows, context)
        if self.packed:
            ids = values["input_ids"].astype(np.int32)
            seams = np.array([0, ids.size], np.int32)
            lying = PackedRows(ids, seams, np.array([ids.size], np.int32))
            values["input_ids"] = Derived(lying, feed_pb2.RULE_IDS, "int64", ids.shape)
        return values

    def specs(self) -> list[KeySpec]:
        """Return what stays off the device."""
        return [KeySpec(name, place="host") for name in self.host]


def make_job(
    *,
    batches: int | None = None,
    lanes: int = 3,
    batches_per_step: int | None = None,
    nbytes: int = 64,
    seed: int = 0,
    gate: Gate | None = None,
    bad: Sequence[int] = (),
    given: Mapping[str, Any] | None = None,
    host: Sequence[str] = ("grid",),
    packed: bool = False,
) -> Job:
    """Return a job whose batch at position p is `values_of(p, nbytes)`.

    Args:
        batches: How many; None = endless.
        lanes: How many lanes.
        batches_per_step: The job file's default; None = none.
        nbytes: About the size of one body.
        seed: Makes it another log.
        gate: Where workers wait with its items.
        bad: Positions that cannot be made.
        given: Values that every batch has, instead of those.
        host: Names of values that stay off the device.
        packed: Ids travel as packed rows.
    """
    return Job(
        source={"corpus": Numbers(batches or ITEMS)},
        distributor=MapDistributor(shuffle="none", source="corpus"),
        processor=Positions(gate, bad),
        collator=Values(nbytes, given, host, packed),
        batch_size=1,
        lanes=lanes,
        epochs=None if batches is None else 1,
        batches_per_step=batches_per_step,
        seed=seed,
        name="code",
    )


# --- the node ---


class ThreadWorker(InlineWorker):
    """A worker with a thread of its own: the event loop goes on while a role holds it up."""

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(BrokenPipeError, ServerGone):  # the node has closed its end
            self.side.link.begin()
            self.side.run()

    def close(self) -> None:
        """End the thread."""
        super().close()
        if self.started:
            self._thread.join(DEADLINE_S)


class ThreadNode(InlineNode):
    """A node whose workers are threads."""

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> ThreadWorker:
        return ThreadWorker(number, hear, lose)


class ServedNode:
    """One node that serves the job `code`; a context manager.

    Args:
        job: The job; None = `make_job(**plan)`.
        listen: The address; a port of 0 = a free one.
        memory: The store's, with that of another node; None = its own.
        node_id: Its id; empty = host and address.
        plan: See `make_job`.

    Attributes:
        gate: Where its workers wait with items that a test holds.
        said: What the node has logged.
        service: Its gRPC side, of the present life.
    """

    def __init__(
        self,
        job: Job | None = None,
        *,
        listen: str = "127.0.0.1:0",
        memory: Memory | None = None,
        node_id: str = "",
        **plan: Any,
    ) -> None:
        self.gate = Gate()
        self.plan = plan
        self.job = job or make_job(gate=self.gate, **plan)
        self.address = listen
        self.memory, self.node_id = memory or Memory(), node_id
        self.store: MemoryStore
        self.service: Service
        self.said: list[Any] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = contextlib.AsyncExitStack()
        self._outer = contextlib.ExitStack()

    # --- life ---

    def __enter__(self) -> ServedNode:
        self.said = self._outer.enter_context(capture_logs())
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="served", daemon=True)
        thread.start()
        self._outer.callback(self._end, self._loop, thread)
        try:
            self.start()
        except BaseException:
            self._outer.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.released.set()
        try:
            self.stop()
        finally:
            self._outer.close()
        bugs = [line for line in self.said if line["event"].startswith("a bug")]
        assert not bugs, bugs

    @staticmethod
    def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()

    def start(self) -> None:
        """Begin a life: another incarnation, over the same store, at the same address."""
        self._run(self._start())

    def stop(self) -> None:
        """Cut every stream and close the port."""
        self._run(self._open.aclose())

    def drain(self, grace_s: float = DEADLINE_S) -> None:
        """End as at SIGTERM: hand over what is made, save, and close the port."""
        self._run(self._drain(grace_s))
        self.stop()

    async def _drain(self, grace_s: float) -> None:
        await asyncio.gather(self.service.drain(grace_s), self.service.node.drain(grace_s))

    async def _start(self) -> None:
        store = self.store = MemoryStore(self.memory)
        await store.open()
        self._open.push_async_callback(store.close)
        node = ThreadNode({"code": self.job}, store, workers=1, bound_bytes=256 << 20)
        self._open.push_async_callback(node.close, 0.0)
        await node.start()
        self.metrics = Metrics("test")
        service = self.service = Service(node, store, self.metrics, node_id=self.node_id)
        self.address = await service.start(self.address)
        self._open.push_async_callback(service.stop, 0.0)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine gives that runs in the node's event loop."""
        return self._run(coroutine)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    # --- what tests look at and do ---

    @property
    def log_id(self) -> bytes:
        """Return the log that it serves."""
        return self.job.log_id

    def group(self, name: str = "run") -> GroupRecord:
        """Return what the store holds of a group."""

        async def look() -> GroupRecord:
            store = MemoryStore(self.memory)
            await store.open()
            [record] = await store.groups("code", name)
            return record

        return self._run(look())

    def change_job(self, **plan: Any) -> None:
        """Serve another job under the same name, from the next start on."""
        self.plan |= plan
        self.job = make_job(gate=self.gate, **self.plan)


__all__ = [
    "Gate",
    "ServedNode",
    "make_job",
    "values_of",
    "wait_until",
]
