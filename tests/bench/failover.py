"""How long ranks wait when one of three nodes goes.

Four ranks read a job that packs small documents through a pool from three nodes, each with a store
of its own: so a node that takes lanes over has no snapshot of them, and replays them from the
start, which is the worst that can be. At one position a node is killed, or stopped. What is
measured is the longest wait of any rank for a batch from there on. Beside it stands the replay
itself: how long ranks wait that begin at that position, at nodes that have made nothing yet. Each
of these replays four lanes; of the four of a node that goes, the two others replay two each.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from support import HERE, interleaved, median, serving, spread, table, write_job

from penstock.client.bodies.buffers import BufferPool
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.fixed_nodes import FixedNodes
from penstock.client.nodes.known_node import KnownNode
from penstock.client.reading.feed import Feed, WantedPositions
from penstock.client.reading.route_set import Prefetch
from penstock.client.session.session import Session
from penstock.wire.order import Share

NODES, RANKS, LANES, POSITION, MORE = 3, 4, 12, 24_000, 240

JOB = {
    "lanes": LANES,
    "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
    "function": f"{HERE / 'cheap.py'}:document",
    "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 64},
    "collator": {"type": "packed", "pad_to": 64},
}


def run() -> None:
    """Print the table."""
    results = interleaved(
        {
            "replay of its lanes, no fault": partial(_round, None),
            "SIGKILL": partial(_round, signal.SIGKILL),
            "SIGSTOP": partial(_round, signal.SIGSTOP),
        }
    )
    table(
        "One of three nodes goes: the longest wait of four ranks "
        "(goal: SIGKILL 2 s above the replay, SIGSTOP 15 s more)",
        ("what", "longest wait, s", "range"),
        [
            (name, f"{median(rounds, 'wait_s'):.2f}", spread(rounds, "wait_s", ".2f"))
            for name, rounds in results.items()
        ],
    )


def _round(fault: signal.Signals | None) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pst-")))
            file = write_job(folder, {"cheap": JOB}, workers=1, store=f"sqlite:///{folder}/s.db")
            nodes.append(stack.enter_context(serving(file)))
        addresses = [address for address, _ in nodes]
        if fault is None:
            return {"wait_s": _longest(addresses, POSITION, None)}
        process = nodes[1][1]

        def goes() -> None:
            process.send_signal(fault)

        try:
            return {"wait_s": _longest(addresses, POSITION - MORE, goes)}
        finally:
            process.send_signal(signal.SIGCONT)


def _longest(addresses: list[str], start: int, goes: Callable[[], None] | None) -> float:
    waits, barrier = [0.0] * RANKS, threading.Barrier(RANKS, action=goes)

    def read(rank: int) -> None:
        share = Share(LANES, rank, RANKS)
        with _feed(addresses, share, start) as feed:
            measured = goes is None
            for position in share.walk(start):
                if position >= start + 2 * MORE:
                    return
                if goes is not None and not measured and position >= start + MORE:
                    barrier.wait()
                    measured = True
                feed.release(position, 0)
                began = time.monotonic()
                feed.take(position, 120.0)
                if measured:
                    waits[rank] = max(waits[rank], time.monotonic() - began)

    ranks = [threading.Thread(target=read, args=(rank,)) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    return max(waits)


@contextlib.contextmanager
def _feed(addresses: list[str], share: Share, start: int) -> Iterator[Feed]:
    with contextlib.ExitStack() as stack:
        nodes = []
        for address in addresses:
            transport = open_transport(address)
            stack.callback(transport.close)
            nodes.append(KnownNode(address, 0, address, transport, 1))
        info = Control(nodes[0].transport, "cheap", addresses[0], 60.0).describe()
        session = Session(
            addresses[0],
            "cheap",
            ((0, info.log_id),),
            "",
            None,
            share,
            LaneUnits(LANES, snapshot_every=16),
        )
        wanted = WantedPositions(start, None, Prefetch(4, 1 << 24), 1 << 24)
        feed = Feed(FixedNodes(nodes), session, wanted, BufferPool(9))
        try:
            yield feed
        finally:
            feed.cancel()
            feed.join(20.0)
