"""What every kind of server checks and answers first: Describe, and Read's open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import NamedTuple

from penstock.server.job.job import Job, find_job
from penstock.server.pipeline.known_order import SoFar
from penstock.server.pipeline.planner import seekable_lanes
from penstock.server.roles.collator import ValueLayout
from penstock.server.store.rules.arguments import check_text
from penstock.wire import MAX_TOKEN, PROTOCOL
from penstock.wire.errors import (
    BadFrame,
    InvalidRequest,
    JobChanged,
    PastEnd,
    ProtocolMismatch,
)
from penstock.wire.numbering import Numbering
from penstock.wire.order import MAX_POSITION, Cut, Share, Tail
from penstock.wire.parse import parse
from penstock.wire.v1 import feed_pb2

VERSION = version("penstock")

_PLACES = {"device": feed_pb2.PLACE_DEVICE, "host": feed_pb2.PLACE_HOST}


def check_protocol(client: int) -> None:
    """Refuse a peer of another version of the wire.

    Raises:
        ProtocolMismatch: With both versions.
    """
    if client != PROTOCOL:
        raise ProtocolMismatch(
            f"the client speaks version {client} of the wire and this server version {PROTOCOL} "
            f"(penstock {VERSION}); install the same penstock on both sides",
            client=client,
            server=PROTOCOL,
        )


def describe(
    jobs: Mapping[str, Job],
    request: feed_pb2.DescribeRequest,
    *,
    node: str,
    node_id: str,
    store: str,
    incarnation: int = 0,
    max_body_bytes: int = 0,
    workers: int = 0,
    draining: bool = False,
    unchecked: bool = False,
    numbered: Callable[[Job], Numbering] = Job.numbering,
    count: Callable[[Job], SoFar | None] = lambda _: None,
) -> feed_pb2.DescribeReply:
    """Answer Describe, from the plan and what is known of where lanes end: it never waits for data.

    Args:
        jobs: The jobs.
        request: The request.
        node: As the reply has it.
        node_id: The same.
        store: The same.
        incarnation: The same.
        max_body_bytes: The same.
        workers: The same.
        draining: The same.
        unchecked: The same.
        numbered: Gives what is known of a job's order.
        count: Has a finite job counted for a while; says how far that is, None = it was done.

    Raises:
        ProtocolMismatch, UnknownJob: As they say.
        InvalidJob: The job turned out to hold no batch.
    """
    check_protocol(request.protocol)
    reply = feed_pb2.DescribeReply(
        protocol=PROTOCOL,
        server_version=VERSION,
        node=node,
        node_id=node_id,
        store=store,
        jobs=sorted(jobs),
        incarnation=incarnation,
        workers=workers,
        draining=draining,
        unchecked=unchecked,
    )
    if not request.job and len(jobs) != 1:
        return reply
    name = request.job or next(iter(jobs))
    job = find_job(jobs, name)
    reply.job, reply.log_id, reply.lanes = name, job.log_id, job.lanes
    reply.batches_per_step = job.batches_per_step or 0
    reply.max_body_bytes = max_body_bytes
    reply.units.extend(job.units)
    reply.snapshot_every = 0 if all(seekable_lanes(job)) else job.snapshot_every
    if request.count and not numbered(job).is_complete and (so_far := count(job)) is not None:
        reply.counting, reply.counted_so_far = so_far.is_going_on, so_far.text
    numbering = numbered(job)
    job.check_not_empty(numbering)
    reply.finite = numbering.is_finite
    if numbering.batches is not None:
        reply.batches = numbering.batches
    _put_layout(reply, job.value_layout())
    for of_set, share in job.shares().items():
        _put_layout(reply.sets.add(name=of_set, share=share), job.layout_of(of_set))
    for spec in job.specs():
        key = reply.keys.add(
            name=spec.name,
            kind=spec.kind,
            dtype=spec.dtype,
            shape=spec.shape,
            optional=spec.optional,
            place=_PLACES[spec.place],
        )
        if spec.least is not None:
            key.min = spec.least
        if spec.most is not None:
            key.max = spec.most
    return reply


def _put_layout(said: feed_pb2.DescribeReply | feed_pb2.SetSpec, layout: ValueLayout) -> None:
    said.layout, said.labels_shifted = layout.name, layout.labels_shifted
    if layout.ignore_index is not None:
        said.ignore_index = layout.ignore_index


class OpenedRead(NamedTuple):
    """An opened Read: what it wants, checked.

    Attributes:
        job: The job.
        share: The rank's positions.
        cut: How a finite log is cut into steps for this reader; None = endless.
        start: No position below this is sent.
        lanes: Lanes wanted from this node; None = all.
        numbering: What is known of the log's order; it learns while the stream is open.
        given_from: Own positions from here to `start` were given before; None = none.
    """

    job: Job
    share: Share
    cut: Cut | None
    start: int
    lanes: frozenset[int] | None
    numbering: Numbering
    given_from: int | None = None

    @property
    def tail(self) -> Tail | None:
        """Return where the log ends for this reader; None = nowhere, or it is not known yet."""
        return self.numbering.tail(self.cut)

    def check_start(self) -> None:
        """Refuse a reader that begins past the end, as soon as that is known.

        Raises:
            InvalidJob: The job turned out to hold no batch.
            PastEnd: With where the end is.
        """
        self.job.check_not_empty(self.numbering)
        tail = self.tail
        # Whoever has all of its positions, and has not heard the end, begins at the next own one.
        if tail is not None and self.start > self.share.at_or_after(tail.end):
            raise PastEnd(
                f"position {self.start} lies past the end: job {self.job.name!r} holds "
                f"{tail.batches} batches, {tail.steps} steps of {tail.batches_per_step}; start at "
                f"step {tail.steps} at most, or move the group's cursor there with seek",
                position=self.start,
                batches=tail.batches,
                steps=tail.steps,
            )

    def given(self) -> dict[int, int]:
        """Return by lane the offset below which the reader says that it was given batches."""
        found: dict[int, int] = {}
        if self.given_from is None:
            return found
        # Batches that were given before were numbered by recorded ends.
        order = self.numbering.order
        end = self.start if order.batches is None else min(self.start, order.batches)
        # The lanes of a rank's positions repeat after at most so many; there is no need to look
        # further.
        share = self.share
        apart = share.world_size if share.is_even else share.batches_per_step
        window = min(self.job.lanes * apart, MAX_LOOKED)
        for position in range(end - 1, max(self.given_from, end - window) - 1, -1):
            if share.owns(position):
                lane, offset = order.lane_offset(position)
                found[lane] = max(found.get(lane, 0), offset + 1)
        return found


MAX_LOOKED = 1 << 17
"""Positions looked at for what a reader was given: more lanes and ranks than that are not known."""


def open_read(
    jobs: Mapping[str, Job],
    request: feed_pb2.Open,
    numbered: Callable[[Job], Numbering] = Job.numbering,
) -> OpenedRead:
    """Check the first message of a Read.

    Args:
        jobs: The jobs.
        request: The message.
        numbered: Gives what is known of a job's order.

    Raises:
        ProtocolMismatch, UnknownJob, RankOutOfRange, UnevenStep: As they say.
        InvalidRequest: A name or a number is invalid.
        JobChanged: The consumer expects another log.
        PastEnd: It starts past the end.
    """
    check_protocol(request.protocol)
    job = find_job(jobs, request.job)
    # They appear in messages, in the status and in metrics as long as the reader is there.
    check_text("group", request.group)
    check_text("attempt token", request.token, MAX_TOKEN)
    if request.log_id and request.log_id != job.log_id:
        raise JobChanged(
            f"job {request.job!r} is now log {job.log_id.hex()[:12]}, and the reader expects log "
            f"{request.log_id.hex()[:12]}: the job's plan or its data changed; read under another "
            "group name, or put the old job back",
            job=request.job,
            differences=["log id"],
        )
    world_size = request.world_size or 1
    share = Share(
        request.batches_per_step or job.batches_per_step or world_size,
        request.rank,
        world_size,
        uneven=request.uneven,
    )
    job.check_steps(share.batches_per_step)
    if not max(request.start, request.horizon, share.batches_per_step) <= MAX_POSITION:
        raise InvalidRequest(
            f"start {request.start}, horizon {request.horizon}, batches_per_step "
            f"{share.batches_per_step}: positions go up to {MAX_POSITION}",
            field="start",
            value=request.start,
        )
    numbering = numbered(job)
    pad = request.tail == feed_pb2.TAIL_PAD
    cut = Cut(share.batches_per_step, pad) if numbering.is_finite else None
    given_from = request.given_from if request.HasField("given_from") else None
    lanes = _lanes(job, request.lanes)
    opening = OpenedRead(job, share, cut, request.start, lanes, numbering, given_from)
    opening.check_start()
    return opening


def opened(opening: OpenedRead, node: str, *, lends: bool = False) -> feed_pb2.ReadReply:
    """Return the message that answers an opening; `lends` = bodies may be lent."""
    message = feed_pb2.Opened(
        log_id=opening.job.log_id,
        lanes=opening.job.lanes,
        batches_per_step=opening.share.batches_per_step,
        node=node,
        lends=lends,
    )
    if opening.numbering.batches is not None:
        message.batches = opening.numbering.batches
    return feed_pb2.ReadReply(opened=message)


def ended(tail: Tail, dropped_samples: int) -> feed_pb2.ReadReply:
    """Return the message that ends a finite log; `dropped_samples` = those that fill no step."""
    return feed_pb2.ReadReply(
        end=feed_pb2.End(
            batches=tail.batches,
            steps=tail.steps,
            dropped_batches=tail.dropped,
            dropped_samples=dropped_samples,
        )
    )


def draining() -> feed_pb2.ReadReply:
    """Return the message that tells a consumer that the node shuts down."""
    text = "this node is shutting down; read on from another, or from this one when it is back"
    return feed_pb2.ReadReply(draining=feed_pb2.Draining(detail=text))


def parse_open(data: bytes) -> feed_pb2.Open:
    """Return the first message of a consumer.

    Raises:
        BadFrame: It is another message.
    """
    message = parse(feed_pb2.ReadRequest, data)
    if message.WhichOneof("kind") != "open":
        raise BadFrame("the first message of a Read must be `open`")
    return message.open


def parse_horizon(data: bytes) -> feed_pb2.Horizon:
    """Return any later message of a consumer.

    Raises:
        BadFrame: It is another message.
    """
    message = parse(feed_pb2.ReadRequest, data)
    if message.WhichOneof("kind") != "horizon":
        raise BadFrame("after `open` a consumer sends only `horizon`")
    return message.horizon


def _lanes(job: Job, lanes: Iterable[int]) -> frozenset[int] | None:
    wanted = frozenset(lanes)
    if wanted and max(wanted) >= job.lanes:
        raise InvalidRequest(
            f"lane {max(wanted)} is not one of the {job.lanes} lanes of job {job.name!r}",
            field="lane",
            value=max(wanted),
        )
    return wanted or None
