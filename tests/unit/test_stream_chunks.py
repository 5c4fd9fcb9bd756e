"""How many bytes of a batch go into one message."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from penstock.server.node.demand.peers import Peers
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.rpc.call import ConsumerCall
from penstock.server.rpc.streams import OpenRead
from penstock.server.rpc.unsent import MUCH_BYTES, Unsent
from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES, WIDE_CHUNK_BYTES, frame
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2

MB = 1_000_000


def stream(unsent: Unsent | None = None) -> OpenRead:
    """Return a stream that has sent nothing."""
    # A reader that takes nothing asks nothing else of its log.
    log = cast(Any, SimpleNamespace(job=None, peers=Peers(), readers=set()))
    reader = StreamDemand(log, Share(1, 0, 1), None, 0, None, lambda: None)
    return OpenRead(feed_pb2.Open(), reader, asyncio.Event(), unsent=unsent)


def test_the_first_large_batch_goes_in_the_fewest_messages() -> None:
    """One of a size is enough for the consumer's malloc; chunks of 1 MiB are faster."""
    one = stream()

    assert [one.chunk_bytes(300, 8 * MB) for _ in range(3)] == [8 * MB, CHUNK_BYTES, CHUNK_BYTES]
    assert one.chunk_bytes(300, 100 * MB) == CHUNK_BYTES  # nothing is twice as wide


def test_bundles_are_wide_until_one_was() -> None:
    """For malloc, too: a stream of small batches has no large one."""
    one = stream()
    wide = one.bundle_bytes

    one.note_bundle(wide // 4)
    assert one.bundle_bytes == wide > CHUNK_BYTES
    one.note_bundle(wide // 2)
    assert one.bundle_bytes == CHUNK_BYTES


class _Stuck(ConsumerCall):
    """A call whose consumer takes nothing."""

    def __init__(self) -> None:
        super().__init__(None)

    async def write(self, data: bytes) -> None:
        """Wait forever."""
        await asyncio.Event().wait()


async def test_no_message_is_wide_while_streams_take_nothing() -> None:
    """Else each stream that nobody reads held a wide one; and when they are gone all is as before.

    A size of which no batch was wide may still be.
    """
    unsent, message = Unsent(), bytes(8 * MB)
    one = stream(unsent)
    count = -(-MUCH_BYTES // len(message))
    stuck = [asyncio.ensure_future(unsent.write(_Stuck(), message)) for _ in range(count)]
    await asyncio.sleep(0)
    assert unsent.nbytes >= MUCH_BYTES
    assert one.chunk_bytes(300, 8 * MB) == one.bundle_bytes == CHUNK_BYTES

    stuck.pop().cancel()
    await asyncio.sleep(0)

    assert one.bundle_bytes > CHUNK_BYTES
    assert one.chunk_bytes(300, 8 * MB) == 8 * MB
    for write in stuck:
        write.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    assert unsent.nbytes == 0


def test_sizes_that_grow_are_followed_by_doubling() -> None:
    """A batch that is a little larger than all before it is no reason; small ones never are."""
    one = stream()
    sizes = [0, MB, 2 * MB, 3 * MB, 5 * MB, 9 * MB, 64 * MB]

    found = [one.chunk_bytes(300, size) for size in sizes]

    assert found == [
        CHUNK_BYTES,
        CHUNK_BYTES,
        2 * MB,
        CHUNK_BYTES,
        5 * MB,
        CHUNK_BYTES,
        CHUNK_BYTES,
    ]
    assert stream().chunk_bytes(300, 64 * MB) == WIDE_CHUNK_BYTES


def test_every_message_keeps_the_limit_whatever_the_header() -> None:
    """The first message holds header and chunk together."""
    body = bytes(20 * MB)
    for header_bytes in (0, 300, 7 << 20, 9 << 20, frame.MAX_HEADER_BYTES):
        header = bytes(header_bytes)
        chunk = stream().chunk_bytes(header_bytes, len(body))

        messages = frame.batch_messages(header, 1 << 31, 1 << 62, body, chunk_bytes=chunk)

        assert max(map(len, messages)) <= MAX_MESSAGE_BYTES
