"""The same blocks, measured by the machines of a Ray cluster: `penstockd index --engine ray`.

Ray Data deals runs of neighbouring blocks to its tasks. A task measures nothing itself: it starts
the process that a command without Ray would start, in the environment of the workers. So what a
cluster, or its user, has set for Ray's own processes decides no size, and an item that ends a
process ends none of Ray's.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.server.files.filesystems import require
from penstock.server.planning.make.dealt_blocks import BlockTask
from penstock.server.planning.make.measuring_pool import Answer, Hears, MeasuringPool
from penstock.server.process.ray_errors import ray_errors
from penstock.wire.errors import PenstockError, Unreachable
from penstock.wire.sent_errors import decode_error, encode_error

RUN_BLOCKS = 8
"""Blocks of a task, at most: to start its process takes a second, and what a killed command has of
a run that is not finished is lost."""

CONNECTS = "RAY_ENABLE_AUTO_CONNECT"
"""The variable that says whether Ray starts by itself when it is asked for something, even by
threads of its own that have not heard of its end."""

REMEDY = (
    "check that all of its machines run, and that each has the same versions of Ray, Python and "
    "penstock as this one; then run the command again, which goes on where it was"
)

CONNECT_S = 10.0
"""How long a cluster may take to accept a connection. Ray itself looks for one for many minutes."""

TASKS_PER_CPU = 4
"""Tasks for each core of the cluster, where there are blocks enough: items differ, so runs do."""


def ray_engine(
    name: str,
    definition: bytes,
    inputs: Mapping[int, Mapping[str, Any]],
    item_deadline_s: float,
    workers: int | None = None,
) -> Callable[[Sequence[BlockTask], Hears], Any]:
    """Return what measures blocks on Ray: the cluster that `ray.init` finds, else this machine.

    That is the one that `RAY_ADDRESS` names, or that was started on this machine.

    Args:
        name: The job's name, for messages.
        definition: The job's definition; what it names must be there on every machine.
        inputs: What the sizes depend on, by the number of each set of roles that is measured:
            every machine must find the same.
        item_deadline_s: How long a process may be at an item.
        workers: Tasks at the same time; None = as many as the cluster has cores.

    Raises:
        MissingExtra: Ray is not installed.
        Unreachable: From what is returned: no Ray answers where `RAY_ADDRESS` says that one is, or
            Ray fails, as it does on a machine without penstock.
    """
    # Ray reads it when it is imported. Where the job's code has done that already, what Ray's own
    # threads ask of it after its end would start another one.
    ends_for_good = "ray" not in sys.modules
    os.environ[CONNECTS] = "0"
    ray, data = require("ray", extra="ray"), require("ray.data", extra="ray")
    measure = partial(measure_run, name, definition, inputs, item_deadline_s)

    async def run(blocks: Sequence[BlockTask], hears: Hears) -> None:
        started_here = not ray.is_initialized()
        found: Iterator[Any] = iter(())
        taking: asyncio.Future[Any] | None = None
        try:
            if started_here:
                _start(ray)
            with ray_errors(REMEDY):
                data.DataContext.get_current().enable_progress_bars = False
                # The command says how far it is, and what has failed.
                logging.getLogger("ray.data").setLevel(logging.CRITICAL)
                runs = list(runs_of(blocks, int(ray.cluster_resources().get("CPU", 1))))
                rows = data.from_items(
                    [{"run": run} for run in runs], override_num_blocks=len(runs)
                )
                measured = rows.flat_map(measure, concurrency=workers)
                # Nothing is fetched ahead: Ray would keep the last run back until there is another.
                found = iter(
                    measured.iter_batches(
                        batch_size=None, batch_format="pyarrow", prefetch_batches=0
                    )
                )
            while True:
                taking = asyncio.ensure_future(asyncio.to_thread(next, found, None))
                with ray_errors(REMEDY):
                    table = await asyncio.shield(taking)
                if table is None:
                    break
                for row in table.to_pylist():
                    await _keep(row, hears)
        finally:
            try:
                if taking is not None and not taking.done():
                    # The command is stopped while a thread waits for the next run, in a generator
                    # that cannot be closed meanwhile. The end of Ray ends the run, and the wait.
                    # Where Ray must not end yet, the run is waited for.
                    if started_here and ends_for_good:
                        ray.shutdown()
                    await asyncio.gather(taking, return_exceptions=True)
                close = getattr(found, "close", None)
                if close is not None:  # after an error: what was not taken yet is not to be made
                    close()
            finally:
                if started_here:
                    ray.shutdown()

    return run


def _start(ray: Any) -> None:
    """Connect to the cluster there is, or start a Ray on this machine.

    Raises:
        KeyboardInterrupt: The command was told to end.
        Unreachable: The cluster does not answer, or does not let this command in.
    """
    address = os.environ.get("RAY_ADDRESS", "auto")
    with ray_errors(REMEDY):
        try:
            _look_for(address)
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
        except ConnectionError as error:
            raise Unreachable(
                f"RAY_ADDRESS is {address!r}, and no Ray lets this command in there ({error}): "
                "check the address; if the cluster asks for a token, set RAY_AUTH_MODE=token; or "
                "unset RAY_ADDRESS, for a Ray of this machine",
                target=address,
            ) from error
        except SystemExit:  # of Ray's own handler of SIGTERM
            raise KeyboardInterrupt from None
    # Ray's handler would end the command by a SystemExit, as code of a role might.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _look_for(address: str) -> None:
    """Connect to an address, if it is one of a host and a port.

    Raises:
        ConnectionError: Nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # auto, local
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as error:  # the latter of a port that cannot be
        raise ConnectionError(str(error)) from error


async def _keep(row: dict[str, Any], hears: Hears) -> None:
    """Take a row of `measure_run`.

    Raises:
        PenstockError: It is one.
    """
    if row["error"]:
        raise decode_error(row["error"])
    bad = [(item, why) for item, why in json.loads(row["bad"])]
    await hears.finished(
        BlockTask(*json.loads(row["block"])), Answer(row["data"], row["drew"], bad)
    )


def runs_of(blocks: Sequence[BlockTask], cpus: int) -> Iterator[str]:
    """Yield runs of neighbouring blocks, as JSON."""
    length = max(1, min(RUN_BLOCKS, len(blocks) // max(1, TASKS_PER_CPU * cpus)))
    for start in range(0, len(blocks), length):
        yield json.dumps(blocks[start : start + length])


class _KeptReports:
    """Keeps what a run's process tells, for the row that goes back."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    async def finished(self, block: BlockTask, answer: Answer) -> None:
        """Keep a block."""
        told = {"block": json.dumps(block), "bad": json.dumps(answer.bad), "drew": answer.drew}
        self.rows.append({**told, "data": answer.data, "error": b""})

    def progressed(self, block: BlockTask, done: int) -> None:
        """Tell nobody: rows go back when all of a run is measured."""

    def died(self, block: BlockTask, how: str) -> None:
        """Tell nobody: the process's block is measured again."""


def measure_run(
    name: str,
    definition: bytes,
    inputs: Mapping[int, Mapping[str, Any]],
    item_deadline_s: float,
    row: dict[str, str],
) -> list[dict[str, Any]]:
    """Return a row for each block of a run; Ray calls this, in a process of its own.

    An error is a row, too: Ray would wrap it, and try the task again.
    """
    blocks = [BlockTask(*each) for each in json.loads(row["run"])]
    kept = _KeptReports()
    try:
        asyncio.run(MeasuringPool(name, definition, inputs, 1, item_deadline_s).run(blocks, kept))
    except PenstockError as error:
        none = {"block": "null", "bad": "[]", "drew": False, "data": b""}
        kept.rows.append({**none, "error": encode_error(error)})
    return kept.rows
