"""What a node sees of readers, for the number of nodes: what they ask for and how they wait."""

from __future__ import annotations

import threading

from penstock.client import Loader
from unit.served import ServedNode, wait_until

LANES, HELD, LONG_S = 3, 9, 0.1


def test_a_node_learns_for_how_long_a_loop_has_waited_and_for_which_units() -> None:
    """The loop waits for an item that is held up, and says so with what it accepts next."""
    with ServedNode(lanes=LANES) as node:
        streams = node.service.streams
        node.gate.held = {HELD}
        assert _seen(node, 0.0)["units_asked"] == 0

        with Loader(
            node.address, "code", rank=0, world_size=1, prefetch=2, as_numpy=True
        ) as loader:
            batches = iter(loader)
            next(batches)
            [(_, stream)] = streams.numbered()
            threading.Thread(target=_release, args=(node,), daemon=True).start()
            for _ in range(HELD + 6):
                next(batches)

            wait_until(lambda: stream.loop_waited_s >= LONG_S, "the loader has said it")
            assert stream.loop_waited_s <= loader.stats()["wait_s"] + 0.01
            seen = _seen(node, 5.0)
            assert (seen["units"], seen["units_asked"]) == (LANES, LANES)

        wait_until(lambda: not streams, "the reader has gone")
        assert _seen(node, 10.0)["units_asked"] == 0
        assert _seen(node, 15.0)["wanted_nodes"] == 0


def _seen(node: ServedNode, at_s: float) -> dict[str, float]:
    node.service.wanted.look(at_s)
    return node.service.wanted.figures("code")


def _release(node: ServedNode) -> None:
    """Let the item through as soon as the reader has waited for it for long enough to be seen."""
    wait_until(lambda: HELD in node.gate.waiting, "the item is held up")
    streams = node.service.streams
    wait_until(lambda: any(one.stalled_s() > 2 * LONG_S for one in streams), "the reader waits")
    node.gate.released.set()
