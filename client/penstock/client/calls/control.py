"""All calls but the stream: they are short, safe to repeat, and repeated until a deadline."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import Message

from penstock.client.calls.background_thread import Patience, in_background, log_in_background
from penstock.client.calls.backoff import Backoff
from penstock.client.calls.call_spans import traced
from penstock.client.calls.node_status import parse_status
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    BadFrame,
    Counting,
    PenstockError,
    ProtocolMismatch,
    StoreUnavailable,
    TlsFailed,
    Unreachable,
)
from penstock.wire.parse import parse
from penstock.wire.transports import Transport
from penstock.wire.v1 import cursors_pb2, feed_pb2

logger = logging.getLogger("penstock")

LOG_FIRST_S, LOG_EVERY_S = 2.0, 30.0
"""When a wait for an unreachable node is logged first, and how often after that."""

CALL_S = 30.0
"""The time-out of a single try, in seconds: none of these calls waits for data."""

OTHER_S = 10.0
"""The same where another node can be asked."""

ReplyT = TypeVar("ReplyT", bound=Message)


class Way(NamedTuple):
    """A node that can be called.

    Attributes:
        target: Where it is, for messages.
        transport: The way to it.
    """

    target: str
    transport: Transport


Ways: TypeAlias = Callable[[], Sequence[Way]]
"""The nodes that can be called now; raises `Unreachable`, with why, where there is none."""


@dataclass(frozen=True)
class Member:
    """A rank in an attempt of a group.

    Attributes:
        group: The group's name.
        token: What all ranks of the attempt present.
        rank: Below `world_size`.
        world_size: W.
        uneven: Ranks that get fewer batches of a step than others get fillers.
    """

    group: str
    token: str
    rank: int
    world_size: int
    uneven: bool = False


class Control:
    """The calls of one client about one job: to any node, and to the next one if it is away.

    Args:
        nodes: The connection to the node, or what gives those that can be called.
        job: The job's name.
        target: Where the node is, for messages.
        deadline_s: Seconds for which an unreachable node is called again.

    Attributes:
        job: The job's name.
        deadline_s: The same.
    """

    def __init__(self, nodes: Transport | Ways, job: str, target: str, deadline_s: float) -> None:
        only = None if callable(nodes) else [Way(target, nodes)]
        self._ways: Ways = nodes if callable(nodes) else lambda: only or []
        self.job, self._target = job, target
        self.deadline_s = deadline_s
        self._last = ""  # the node that has answered last

    def each(self) -> list[Control]:
        """Return the calls to each of the nodes that can be called now.

        Raises:
            Unreachable: There is none.
        """
        return [
            Control(way.transport, self.job, way.target, self.deadline_s) for way in self._ways()
        ]

    def describe(self, *, count: bool = False) -> feed_pb2.DescribeReply:
        """Return what the job is.

        Args:
            count: Have the node find out where a finite job ends; it answers at once.

        Raises:
            UnknownJob: The node has no such job.
            ProtocolMismatch: The node speaks another version of the wire.
            Unreachable: No answer within the deadline.
        """
        request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job=self.job, count=count)
        reply = self.call("Feed/Describe", request, feed_pb2.DescribeReply)
        check_protocol(reply, self._target)
        return reply

    def begin(
        self, member: Member, *, batches_per_step: int | None, start_step: int | None, store: str
    ) -> cursors_pb2.BeginReply:
        """Start or join an attempt of a group.

        Args:
            member: The rank, with the token of the attempt.
            batches_per_step: G; None = the group's, or the job's.
            start_step: Where the attempt begins; None = at the group's cursor.
            store: The UUID of the store that a state comes from; empty = of any.

        Raises:
            StaleGeneration, WorldSizeMismatch, StepSizeMismatch, JobChanged, OtherStore: See there.
            Unreachable: No answer within the deadline.
        """
        request = cursors_pb2.BeginRequest(
            protocol=PROTOCOL,
            job=self.job,
            group=member.group,
            token=member.token,
            rank=member.rank,
            world_size=member.world_size,
            batches_per_step=batches_per_step or 0,
            start_step=start_step,
            owner=owner(),
            store=store,
            uneven=member.uneven,
        )
        return traced(
            "begin",
            lambda: self.call("Cursors/Begin", request, cursors_pb2.BeginReply),
            job=self.job,
            group=member.group,
            rank=member.rank,
        )

    def commit(
        self, member: Member, generation: int, step: int, *, all_rows: bool
    ) -> cursors_pb2.CommitReply:
        """Move a rank's row, or every row, to `step`.

        Raises:
            StaleGeneration: A newer attempt has taken over.
            Unreachable: No answer within the deadline; the commit may or may not have happened.
        """
        request = cursors_pb2.CommitRequest(
            job=self.job,
            group=member.group,
            token=member.token,
            generation=generation,
            rank=member.rank,
            step=step,
            all_rows=all_rows,
        )
        return traced(
            "commit",
            lambda: self.call("Cursors/Commit", request, cursors_pb2.CommitReply),
            job=self.job,
            group=member.group,
            rank=member.rank,
            step=step,
        )

    def checkpoint(self, group: str, name: str, step: int | None) -> cursors_pb2.CheckpointReply:
        """Give a step a permanent name; None = the group's cursor.

        Raises:
            CheckpointExists: The name belongs to another step.
            UnknownGroup: There is no such group.
        """
        request = cursors_pb2.CheckpointRequest(job=self.job, group=group, name=name, step=step)
        return self.call("Cursors/Checkpoint", request, cursors_pb2.CheckpointReply)

    def restore(self, group: str, name: str, request_id: str) -> cursors_pb2.MoveReply:
        """Go to a checkpoint: a new generation, which fences all current readers of the group.

        Raises:
            UnknownGroup, UnknownCheckpoint: There is no such group or name.
        """
        request = cursors_pb2.RestoreRequest(
            job=self.job, group=group, name=name, request_id=request_id, owner=owner()
        )
        return self.call("Cursors/Restore", request, cursors_pb2.MoveReply)

    def seek(self, group: str, step: int, request_id: str) -> cursors_pb2.MoveReply:
        """Go to a step: a new generation, which fences all current readers of the group.

        Raises:
            UnknownGroup: There is no such group.
        """
        request = cursors_pb2.SeekRequest(
            job=self.job, group=group, step=step, request_id=request_id, owner=owner()
        )
        return self.call("Cursors/Seek", request, cursors_pb2.MoveReply)

    def groups(self, group: str | None = None) -> list[cursors_pb2.Group]:
        """Return one group, or every group of the job.

        Raises:
            UnknownGroup: There is no such group.
        """
        request = cursors_pb2.ListRequest(job=self.job, group=group or "")
        found: list[cursors_pb2.Group] = []
        while True:
            page = self.call("Cursors/List", request, cursors_pb2.ListReply)
            for part in page.groups:
                if found and found[-1].name == part.name:
                    found[-1].checkpoints.extend(part.checkpoints)
                else:
                    found.append(part)
            if not page.next_page_token:
                return found
            if page.next_page_token == request.page_token:
                raise BadFrame(f"{self._target} gives the same page of groups again and again")
            request.page_token = page.next_page_token

    def delete(self, group: str, generation: int, *, fence: bool) -> cursors_pb2.DeleteReply:
        """Delete a group; return what it was. A later start under its name begins a new group.

        Args:
            group: Its name.
            generation: The generation that it had when the caller looked; any other is refused.
            fence: End its readers; without it, a group with readers is not deleted.

        Raises:
            GroupInUse: It has readers.
            StaleGeneration: It has a newer generation.
        """
        request = cursors_pb2.DeleteRequest(
            job=self.job, group=group, generation=generation, fence=fence, owner=owner()
        )
        return self.call("Cursors/Delete", request, cursors_pb2.DeleteReply)

    def verdicts(self) -> list[cursors_pb2.Verdict]:
        """Return every verdict about the job's items, released ones too, by number."""
        found: list[cursors_pb2.Verdict] = []
        while True:
            after = found[-1].number if found else 0
            request = cursors_pb2.ListVerdictsRequest(job=self.job, after=after)
            reply = self.call("Cursors/ListVerdicts", request, cursors_pb2.ListVerdictsReply)
            found += reply.verdicts
            if not reply.more or not reply.verdicts:
                return found

    def release(self, source: str, index: int) -> list[cursors_pb2.Verdict]:
        """Let an item be drawn again; return the verdicts about it, all released.

        Raises:
            UnknownVerdict: The item is not in quarantine.
            LogDiverged: The log has no batch left that could hold the item.
        """
        request = cursors_pb2.ReleaseItemRequest(job=self.job, source=source, index=index)
        reply = self.call("Cursors/ReleaseItem", request, cursors_pb2.ReleaseItemReply)
        return list(reply.verdicts)

    def status(self) -> dict[str, Any]:
        """Return what the node is doing now: the JSON object of `Feed.Status`."""
        reply = self.call("Feed/Status", feed_pb2.StatusRequest(), feed_pb2.StatusReply)
        try:
            return parse_status(reply.json)
        except ValueError as error:
            raise BadFrame(
                f"{self._target} sent a status that cannot be read ({error}): check that both "
                "sides run the same version"
            ) from error

    def call(self, method: str, request: Message, reply: type[ReplyT]) -> ReplyT:
        """Call one method, again while the node cannot be reached.

        Safe where a signal handler raises: the call is made in the background, and may be made once
        more.

        Raises:
            PenstockError: What the server says is wrong.
            Unreachable: No answer within the deadline.
        """
        return in_background(lambda patience: self._call(method, request, reply, patience))

    def _call(
        self, method: str, request: Message, reply: type[ReplyT], patience: Patience
    ) -> ReplyT:
        began = time.monotonic()
        backoff, log_at = Backoff(), LOG_FIRST_S
        payload = request.SerializeToString()
        answered: StoreUnavailable | Counting | None = None
        while True:
            away: PenstockError | None = None
            failed: dict[str, PenstockError] = {}
            try:
                ways = sorted(self._ways(), key=lambda way: way.target != self._last)
            except Unreachable as error:
                ways, away = [], error
            for way in ways:
                left = self.deadline_s - (time.monotonic() - began)
                if failed and left <= 0:
                    break
                if failed and patience.acquire(blocking=False):
                    raise _none_answers(failed)  # the caller does not wait any more
                most = CALL_S if len(ways) == 1 else OTHER_S
                try:
                    answer = way.transport.unary(method, payload, max(0.1, min(most, left)))
                    self._last = way.target
                    return parse(reply, answer, f"{way.target} answers {method}")
                except (StoreUnavailable, Counting) as error:
                    away = answered = error
                except Unreachable as error:
                    if isinstance(error, TlsFailed) and error.is_first and len(ways) == 1:
                        raise  # it has never worked, so nobody is about to renew something
                    # The node did answer: it waits for its store as before, longer than is left.
                    timed_out = bool(error.timed_out)
                    away = answered if answered is not None and timed_out else error
                failed[way.target] = away
            assert away is not None
            if len(failed) > 1:
                away = _none_answers(failed)
            wait = backoff.next_s()
            waited = time.monotonic() - began
            if waited + wait >= self.deadline_s:
                raise _gave_up(away, self._target, method, waited) from None
            if waited >= log_at:
                log_at = waited + LOG_EVERY_S
                left = self.deadline_s - waited
                log_in_background(
                    logger.warning, "%s; trying for %.0f s more (%s)", away, left, method
                )
            if patience.acquire(timeout=wait):
                raise away  # the caller does not wait any more


_PLACE = "\0"


def why_each(failed: Mapping[str, PenstockError]) -> str:
    """Return why nodes failed, as one sentence: those that failed alike are named together.

    Args:
        failed: Target -> its error.
    """
    alike: dict[str, list[str]] = {}
    for target in sorted(failed):
        said = failed[target].message
        if target not in said:
            said = f"{target}: {said}"
        alike.setdefault(said.replace(target, _PLACE), []).append(target)
    return "; ".join(said.replace(_PLACE, ", ".join(targets)) for said, targets in alike.items())


def _none_answers(failed: dict[str, PenstockError]) -> PenstockError:
    """Return one error for all nodes, of the kind of the last that had answered."""
    kinds = sorted(failed.values(), key=lambda error: isinstance(error, Unreachable))
    return kinds[0].reworded(f"none of {len(failed)} nodes could do it: {why_each(failed)}")


def _gave_up(error: PenstockError, target: str, method: str, waited: float) -> PenstockError:
    if not isinstance(error, Unreachable):
        return error
    tried = f", tried for {waited:.0f} s" if waited >= 1 else ""
    return type(error)(
        f"{error.message} ({method}{tried})", target=target, waited_s=round(waited, 3)
    )


def check_protocol(reply: feed_pb2.DescribeReply, target: str) -> None:
    """Refuse a node of another version.

    Raises:
        ProtocolMismatch: It speaks another version of the wire.
    """
    if reply.protocol != PROTOCOL:
        raise ProtocolMismatch(
            f"{target} (penstock {reply.server_version}) speaks version {reply.protocol} of the "
            f"wire and this client version {PROTOCOL}: install the same penstock on both sides",
            client=PROTOCOL,
            server=reply.protocol,
        )


def owner() -> str:
    """Return who makes the call, for people: host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"
