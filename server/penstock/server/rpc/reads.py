"""A `Feed/Read` from its first message to its end: it is opened, listened to and ended here.

`penstock.server.rpc.read` sends its batches.
"""

from __future__ import annotations

import asyncio

from penstock.server.access.caller import CALLER, Caller
from penstock.server.rpc.call import EOF, ConsumerCall, HungUp
from penstock.server.rpc.edge import Edge
from penstock.server.rpc.event_log import UNCHECKED
from penstock.server.rpc.opening import draining, open_read, opened, parse_horizon, parse_open
from penstock.server.rpc.read import SHUTTING_DOWN, Sender
from penstock.server.rpc.streams import OpenRead
from penstock.wire.errors import (
    Forbidden,
    Internal,
    PenstockError,
    StaleGeneration,
    StoreUnavailable,
)
from penstock.wire.v1 import feed_pb2

CHECK_DEADLINE_S = 10.0


class Reads:
    """Serves reads, each from its first message to its end.

    Args:
        edge: The parts of the node that they work with.
    """

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.node, self.streams, self.hand_over = edge.node, edge.streams, edge.hand_over

    async def serve(self, call: ConsumerCall, peer: str) -> None:
        """Answer a call to its end.

        Args:
            call: The call.
            peer: Where it comes from, as gRPC says it.

        Raises:
            HungUp: The consumer is gone.
            PenstockError: The read cannot be served.
        """
        first = await call.read()
        if first is EOF:
            return
        request = parse_open(first)
        caller = CALLER.get()
        self._check(caller, request)
        opening = open_read(self.node.jobs, request, self.node.numbering)
        lanes = len(opening.lanes or range(opening.job.lanes))
        if caller.lanes is not None and lanes > caller.lanes:
            raise too_many(caller, "lanes", lanes, caller.lanes)
        if self.hand_over.has_begun:
            # A client that was sent away reconnects at once: accepting it would keep the node up.
            await call.write(draining().SerializeToString())
            return
        await self._check_token(request)
        if not request.token and opening.given_from is None:
            await self._edge.present.check(opening.job)  # it begins: nothing was given yet
        wake = asyncio.Event()
        self.node.note_given(opening.job, opening.given())
        reader = self.node.open(
            opening.job,
            opening.share,
            opening.cut,
            opening.start,
            opening.lanes,
            wake.set,
            host_of(peer),
        )
        lender = self._edge.lending.find(request.borrower)
        stream = OpenRead(request, reader, wake, peer, lender, self.streams.unsent, caller)
        number = self.streams.add(stream)
        self._edge.following.look_soon()
        listening = asyncio.ensure_future(self._listen(stream, call))
        listening.add_done_callback(lambda _: wake.set())
        try:
            self.streams.joined(stream)
            reply = opened(opening, self.node.incarnation, lends=stream.lender is not None)
            await call.write(reply.SerializeToString())
            stream.accepts = request.horizon
            self.node.extend(reader, stream.horizon, request.next, request.bytes_limit)
            sender = Sender(self._edge, stream, opening, call, listening)
            stream.ending = await sender.run()
        except asyncio.CancelledError:
            if self.hand_over.has_begun:
                stream.ending = SHUTTING_DOWN
            raise
        except Exception as error:
            stream.ending = _why(error)
            raise
        finally:
            # First what must not fail: a reader that stays would want its batches forever.
            self.node.leave(reader)
            listening.cancel()
            self.streams.remove(number)
            await asyncio.gather(listening, return_exceptions=True)

    def _check(self, caller: Caller, request: feed_pb2.Open) -> None:
        """Refuse a job or a group that the caller is not for, and a stream too many.

        Raises:
            Forbidden: See there.
        """
        caller.check(request.job, request.group)
        if caller.streams is not None:
            now = sum(stream.caller.name == caller.name for stream in self.streams)
            if now >= caller.streams:
                raise too_many(caller, "streams", now + 1, caller.streams)

    async def _check_token(self, request: feed_pb2.Open) -> None:
        if not request.group or not request.token:
            return
        try:
            async with asyncio.timeout(CHECK_DEADLINE_S):
                await self._edge.store.check_token(
                    request.job, request.group, request.token, request.generation
                )
        except StaleGeneration as error:
            self.streams.refused(error, "Read")
            raise
        except (StoreUnavailable, TimeoutError) as error:
            # Reading goes on without the store, for a while; commits will tell whether this attempt
            # was fenced.
            self._edge.following.check_away()
            self.streams.events.tell(
                UNCHECKED,
                level="warning",
                job=request.job,
                group=request.group,
                rank=request.rank,
                error=str(error) or f"the store did not answer within {CHECK_DEADLINE_S:.0f} s",
            )

    async def _listen(self, stream: OpenRead, call: ConsumerCall) -> None:
        """Take the consumer's horizons until it hangs up."""
        while True:
            data = await call.read()
            if data is EOF:
                return
            moved = parse_horizon(data)
            stream.note_finished(moved.finished_step)
            stream.note_loop_waited(moved.waited_ms)
            stream.accepts = max(stream.accepts, moved.horizon)
            self.node.extend(stream.reader, stream.horizon, moved.next, moved.bytes_limit)
            stream.wake.set()


def too_many(caller: Caller, bound: str, wanted: int, limit: int) -> Forbidden:
    """Return the error for a stream beyond what a caller may have."""
    return Forbidden(
        f"{caller.name!r} may have {limit:,} {bound}, and this stream would make it {wanted:,}; "
        "end another one, or ask the operator of the node"
        if bound == "streams"
        else f"{caller.name!r} may read {limit:,} {bound} in a stream, and this one wants "
        f"{wanted:,}; ask the operator of the node",
        name=caller.name,
        bound=bound,
        limit=limit,
    )


def host_of(peer: str) -> str:
    """Return the host of a peer as gRPC names it, without its port.

    All that read over a Unix socket are one host: `unix:`.
    """
    kind, _, address = peer.partition(":")
    return kind if kind.startswith("unix") else address.rpartition(":")[0]


def _why(error: Exception) -> str:
    """Return, in a word or two, why a stream ends with an error."""
    if isinstance(error, StaleGeneration):
        return "fenced"
    if isinstance(error, HungUp):
        return "hung up"
    return error.code if isinstance(error, PenstockError) else Internal.code
