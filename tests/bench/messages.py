"""What a ticket and its answer cost as bytes: the CPU time of writing and of reading each.

Alone, and 20 in a frame, as they go where batches are cheap. The server process does both for every
batch of every reader. To compare an older state, run this with its code in turn, as
`small_batches.py` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from support import interleaved, median, spread, table

from penstock.server.node.protocol.channel import (
    FROM_SERVER,
    FROM_WORKER,
    Kinds,
    MessageDecoder,
    encode,
)
from penstock.server.node.protocol.messages import Body, Done, Make, Produce, Snapshot

LOG, COUNT = bytes(range(32)), 20_000

MESSAGES: dict[str, tuple[Kinds, Any]] = {
    "Produce": (FROM_SERVER, Produce(70_000, LOG, 3, 70_000, False, 5, False)),
    "Make, a plan of 2 KB": (
        FROM_SERVER,
        Make(70_000, LOG, 3, 70_000, False, False, bytes(2000)),
    ),
    "Done": (
        FROM_WORKER,
        Done(
            70_000,
            Body(0, 1 << 20, 200_000, 200_000),
            bytes(180),
            None,
            {"samples": 8, "tokens": 16_384},
            False,
            (),
            {},
        ),
    ),
    "Done, a plan of 2 KB and a snapshot": (
        FROM_WORKER,
        Done(
            70_000,
            Body(0, 1 << 20, 200_000, 200_000),
            bytes(180),
            bytes(2000),
            {"samples": 8, "tokens": 16_384},
            False,
            (Snapshot(70_000, bytes(2000)),),
            {"filtered:too short": 1},
        ),
    ),
}
"""What it is -> who hears it, and one."""


def run() -> None:
    """Print the table."""
    ways = {
        f"{name}, {together} together": partial(_measure, kinds, [message] * together)
        for name, (kinds, message) in MESSAGES.items()
        for together in (1, 20)
    }
    results = interleaved(ways)
    rows = [
        [
            name,
            f"{median(rounds, 'encode'):.2f} us {spread(rounds, 'encode', '.2f')}",
            f"{median(rounds, 'decode'):.2f} us {spread(rounds, 'decode', '.2f')}",
        ]
        for name, rounds in results.items()
    ]
    table(
        "Messages between server process and worker: CPU time for each",
        ["", "encode", "decode"],
        rows,
    )


def _measure(kinds: Kinds, messages: list[Any]) -> dict[str, float]:
    decoder, data = MessageDecoder(kinds), bytes(encode(messages)[0])
    assert decoder.feed(data) == messages
    return {
        "encode": _each_us(lambda: encode(messages), len(messages)),
        "decode": _each_us(lambda: decoder.feed(data), len(messages)),
    }


def _each_us(do: Callable[[], object], together: int) -> float:
    times = COUNT // together
    began = time.process_time()
    for _ in range(times):
        do()
    return (time.process_time() - began) / (times * together) * 1e6


if __name__ == "__main__":
    run()
