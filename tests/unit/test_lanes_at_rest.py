"""A lane that nobody reads at a node gives its memory back within a minute."""

from __future__ import annotations

from penstock.server.node.supply.rest import LOOK_S, REST_S, Rest
from penstock.server.store import MemoryStore
from penstock.wire.order import Share
from resume.plans import make_job
from unit.inline_workers import InlineNode


async def test_lines_plans_and_batches_of_lanes_without_a_reader_are_freed() -> None:
    """Of a lane that is read they stay, also of one whose reader is back in time."""
    assert REST_S + LOOK_S < 60
    store = MemoryStore()
    await store.open()
    job = make_job("best_fit_split", "full", "choosy", 4)
    node = InlineNode({"job": job}, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    [hand] = node.hands
    log = node.log(job)
    rest = Rest(node.logs, node.dispatch.lines, node.life)

    async def read(lanes: list[int], start: int, stop: int) -> object:
        reader = node.open(job, Share(4, 0, 1), None, start, lanes, lambda: None)
        node.extend(reader, stop)
        for _ in range((stop - start) // 4 * len(lanes)):
            while (entry := node.take(reader)) is None:
                await node.settle()
                hand.answer_one()
            node.sent(reader, entry)
        while hand.answer_one():
            await node.settle()
        return reader

    def held() -> set[int]:
        lines = hand.side.lines.by_number.values()
        assert sum(len(lane.lines) for lane in log.lanes) == len(lines)
        return {lane.lane for lane in log.lanes if lane.lines or lane.plans}

    try:
        first = await read([0, 1], 0, 40)
        await read([2, 3], 0, 40)  # it stays
        node.leave(first)  # type: ignore[arg-type]
        assert held() == {0, 1, 2, 3}
        kept = {key.lane for key in log.cached.batches}
        rest.look(100.0)
        rest.look(100.0 + REST_S - 1)
        assert held() == {0, 1, 2, 3}
        again = await read([0], 40, 44)
        rest.look(100.0 + REST_S)
        node.leave(again)  # type: ignore[arg-type]
        rest.look(100.0 + REST_S)
        while hand.answer_one():
            await node.settle()

        assert held() == {0, 2, 3}
        assert 1 in kept
        assert 1 not in {key.lane for key in log.cached.batches}
        assert await read([1], 40, 60) is not None  # it is planned again
    finally:
        await node.close()
        await store.close()
