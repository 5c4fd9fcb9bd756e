"""The nodes of a target: found, asked what they serve, and asked again, on one thread.

A target of one address has one node, which is called as it is. The addresses of any other are told
by its origins, again and again, and each is asked to describe the job: see `usable` for which may
be read together. The thread takes no part in reading: whoever reads looks at `usable`.
"""

from __future__ import annotations

import logging
import math
import queue
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.client.calls.background_thread import SLICE_S, Patience, in_background
from penstock.client.calls.backoff import Backoff
from penstock.client.calls.control import Control, Way, check_protocol
from penstock.client.calls.grpc_transport import GrpcTransport
from penstock.client.calls.node_address import Address
from penstock.client.nodes.addresses import Origin, Resolve, check_address, origins
from penstock.client.nodes.known_node import KnownNode, KnownNodes, NodeLeftOut
from penstock.client.nodes.usable import (
    NodeAnswer,
    ReadFrom,
    common_to_most,
    is_hopeless,
    none_is_left,
    sentences,
    settle,
)
from penstock.wire import PROTOCOL
from penstock.wire.errors import PenstockError, Unreachable
from penstock.wire.parse import parse
from penstock.wire.plain import plain_lines
from penstock.wire.transports import Transport
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

ASK_S = 5.0
"""How long a node has to describe a job."""

STRAGGLERS_S = 2.0
"""How long the others are waited for when the first node has answered at the start: most of them
decide which log and store are read."""

AGAIN_S = 60.0
"""How often a node that is read is asked again, and one that serves something else."""

AWAY_S = 10.0
"""How often one that is away is asked, at last."""

SOON_S = 0.2
"""Within how much time nodes are asked when a stream has broken: ranks notice it all at once."""

SPARED_S = 1.0
"""For how long nobody is asked again for that: streams break one after another."""

ASKED_AT_ONCE = 16

JOIN_S = 5.0


class LoaderNodes(KnownNodes, Protocol):
    """The nodes of a Loader."""

    def ways(self) -> Sequence[Way]:
        """Return the nodes that can be called now.

        Raises:
            Unreachable: There is none.
        """
        ...

    def describe(self, control: Control) -> feed_pb2.DescribeReply:
        """Return what the job is, once a node can be read; `control` calls these nodes.

        Raises:
            PenstockError: None can be.
        """
        ...

    def wait_usable(self, deadline_s: float) -> Sequence[KnownNode]:
        """Return the nodes that can be read, once there is one; `describe` has been called.

        Raises:
            PenstockError: There is none within the deadline; it says why of each.
        """
        ...

    def close(self) -> None:
        """End what is open; idempotent. It takes locks: call it in the background."""
        ...


def open_nodes(
    address: Address,
    job: str,
    *,
    grouped: bool,
    resolve: Resolve = socket.getaddrinfo,
    says: bool = True,
) -> OneNode | TargetNodes:
    """Return the nodes of a target; nothing is called yet.

    Args:
        address: The target, with the credentials that hold for all its nodes.
        job: The job that they are to serve; empty = any.
        grouped: They are to have one store.
        resolve: What resolves names.
        says: Log which nodes are read, and which are left out, whenever that changes.

    Raises:
        InvalidRequest, MissingExtra: See `origins`.
    """
    found = origins(address, job, grouped=grouped, resolve=resolve)
    if isinstance(found, list):
        return TargetNodes(found, address.text, job, grouped=grouped, says=says)
    return OneNode(found, address.text)


class OneNode:
    """A target of one node, which is waited for wherever it is called.

    Args:
        transport: The way to it.
        target: Where it is.
    """

    def __init__(self, transport: Transport, target: str) -> None:
        self.usable: Sequence[KnownNode] = ()
        self.left_out: Sequence[NodeLeftOut] = ()
        self.is_one = True
        self._way, self._store = Way(target, transport), ""

    def ways(self) -> Sequence[Way]:
        """Return it."""
        return [self._way]

    def describe(self, control: Control) -> feed_pb2.DescribeReply:
        """Return what it says."""
        info = control.describe()
        self._store = info.store
        answers = {self._way.target: NodeAnswer(self._way.transport, info)}
        self.usable, _ = settle(answers, ReadFrom(info.log_id, ""))
        return info

    def wait_usable(self, deadline_s: float) -> Sequence[KnownNode]:
        """Return it: reading waits for it by itself."""
        return self.usable

    def store(self, node: KnownNode) -> str:
        """Return the UUID of its store, as it has told; for people."""
        return self._store

    def look_again(self, node_id: str = "") -> None:
        """Do nothing: it is where it was."""

    def close(self) -> None:
        """Close the way to it."""
        self._way.transport.close()


class _AskedNode:
    """An address, on the thread of its target.

    Attributes:
        transport: The way to it.
        due_at: When it is asked next; infinite = it is being asked.
        asked_at: When it was asked last.
        answer: The last answer; None = there is none yet.
        failures: How often it has failed in a row.
        misses: How many looks have not found it.
    """

    def __init__(self, address: Address) -> None:
        # What is away may come back at another address: it is not waited for at this one.
        self.transport: Transport = GrpcTransport(address, waits=False)
        self.backoff = Backoff(0.1, AWAY_S)
        self.due_at, self.asked_at = 0.0, -math.inf
        self.answer: NodeAnswer | None = None
        self.failures = self.misses = 0


class _ToldNode(NamedTuple):
    """A node's answer, from the thread that has asked it."""

    target: str
    node: _AskedNode
    found: feed_pb2.DescribeReply | PenstockError


class _LookAgain(NamedTuple):
    """Somebody wants to know more, see `KnownNodes.look_again`."""

    node_id: str


_CLOSE = "close"


class TargetNodes:
    """The nodes of a target of several addresses, or of one that may come to have others.

    Args:
        origins: Where addresses come from.
        text: The target, for messages.
        job: The job that they are to serve.
        grouped: They are to have one store.
        says: Log what changes.

    Attributes:
        usable: See `KnownNodes`.
        left_out: The same.
    """

    def __init__(
        self,
        origins: Sequence[Origin],
        text: str,
        job: str,
        *,
        grouped: bool,
        says: bool = True,
    ) -> None:
        self.usable: Sequence[KnownNode] = ()
        self.left_out: Sequence[NodeLeftOut] = ()
        self.is_one = False
        self._origins, self._text, self._job, self._grouped = list(origins), text, job, grouped
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._guard = threading.Lock()  # taken in the background alone
        self._thread: threading.Thread | None = None
        self._closed = False
        # Set by the thread; replaced as wholes.
        self._answers: dict[str, NodeAnswer] = {}
        self._common: ReadFrom | None = None
        self._failure: PenstockError | None = None  # of the origins, while they tell nothing
        self._is_hopeless = threading.Event()  # whoever waits for a node waits in vain
        self._has_asked_all = False
        self._changed = threading.Condition()
        # The thread's own.
        self._nodes: dict[str, _AskedNode] = {}
        self._gone: list[_AskedNode] = []
        self._look_at = [0.0 for _ in self._origins]
        self._of_origin: list[dict[str, int]] = [{} for _ in self._origins]
        self._asking = 0
        self._first_at = math.inf
        self._says, self._whose = says, f"job {job!r}: " if job else ""
        self._said: dict[str, str] = {}
        self._said_usable: tuple[str, ...] = ()
        self._said_look = [""] * len(self._origins)
        self._random = random.Random()  # ranks must not ask in step

    # --- from any thread ---

    def look_again(self, node_id: str = "") -> None:
        """See `KnownNodes`."""
        self._events.put(_LookAgain(node_id))  # written in C: it takes no lock of Python code

    def ways(self) -> Sequence[Way]:
        """See `LoaderNodes`."""
        if not self.usable:
            self.start()
            self.look_again()
            with self._changed:
                self._changed.wait_for(self._is_decided, SLICE_S)
        found = [Way(node.target, node.transport) for node in self.usable if not node.draining]
        found = found or [Way(node.target, node.transport) for node in self.usable]
        if not found:
            error = self._none()
            if isinstance(error, Unreachable) or self._is_hopeless.is_set():
                raise error
            raise Unreachable(error.message, target=self._text)  # others have not answered yet
        return found

    def describe(self, control: Control) -> feed_pb2.DescribeReply:
        """See `LoaderNodes`."""

        def describe(patience: Patience) -> feed_pb2.DescribeReply:
            self.start()
            for node in self._wait_usable(control.deadline_s, patience):
                if (found := self._described(node)) is not None:
                    return found
            raise self._none()

        return in_background(describe)

    def wait_usable(self, deadline_s: float) -> Sequence[KnownNode]:
        """See `LoaderNodes`."""
        if self.usable:
            return self.usable
        return in_background(lambda patience: self._wait_usable(deadline_s, patience))

    def close(self) -> None:
        """End the thread, and the ways to all nodes; idempotent."""
        with self._guard:
            self._closed, thread = True, self._thread
        self._events.put(_CLOSE)
        if thread is None:
            self._close_all()
        elif thread is not threading.current_thread():
            thread.join(JOIN_S)

    def wait_asked(self, deadline_s: float) -> None:
        """Wait until every address has answered, or has not, at most for so long: for people."""

        def wait(_: Patience) -> None:
            self.start()
            with self._changed:
                self._changed.wait_for(lambda: self._has_asked_all, deadline_s)

        in_background(wait)

    def store(self, node: KnownNode) -> str:
        """Return the UUID of a node's store, as it has told last; for people."""
        found = self._described(node)
        return "" if found is None else found.store

    def _described(self, node: KnownNode) -> feed_pb2.DescribeReply | None:
        answer = self._answers.get(node.target)
        found = None if answer is None else answer.found
        return None if isinstance(found, PenstockError) else found

    # --- whoever waits for a node, in the background ---

    def _wait_usable(self, deadline_s: float, patience: Patience) -> Sequence[KnownNode]:
        end = time.monotonic() + deadline_s
        while not (usable := self.usable):
            left = end - time.monotonic()
            if left <= 0 or self._is_hopeless.is_set() or patience.acquire(blocking=False):
                raise self._none(deadline_s - left)
            with self._changed:
                self._changed.wait_for(self._is_decided, min(SLICE_S, left))
        return usable

    def _is_decided(self) -> bool:
        return bool(self.usable) or self._is_hopeless.is_set()

    def start(self) -> None:
        """Begin to look, once. It takes a lock: call it in the background."""
        with self._guard:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="penstock-nodes", daemon=True
                )
                self._thread.start()

    def _none(self, waited_s: float | None = None) -> PenstockError:
        failure = self._failure
        answers = self._answers
        if failure is not None and not answers:
            error = failure
        else:
            left = {
                node.target: NodeAnswer(answers[node.target].transport, Unreachable(node.why))
                for node in self.left_out
                if node.target in answers
                and isinstance(answers[node.target].found, feed_pb2.DescribeReply)
            }
            error = none_is_left(self._text, {**answers, **left})
        if waited_s is not None and isinstance(error, Unreachable):
            tried = f" (tried for {waited_s:.0f} s)" if waited_s >= 1 else ""
            error = type(error)(error.message + tried, target=self._text, waited_s=waited_s)
        return error

    # --- its own thread ---

    def _run(self) -> None:
        try:
            while True:
                now = time.monotonic()
                self._look(now)
                self._ask(now)
                event = self._wait()
                if event is _CLOSE:
                    return
                if isinstance(event, _LookAgain):
                    self._hurry(event.node_id)
                elif isinstance(event, _ToldNode):
                    self._take(event)
                self._publish()
        except Exception as error:  # the edge of the thread: whoever waits is told
            logger.exception("a bug: job %r is read from the nodes known so far", self._job)
            self._failure = Unreachable(f"the nodes of {self._text} are not looked for: {error}")
            self._give_up()
        finally:
            self._close_all()

    def _wait(self) -> Any:
        """Return what happens next, or None when something is due."""
        due = [*self._look_at, *(node.due_at for node in self._nodes.values())]
        if self._common is None:
            due.append(self._first_at + STRAGGLERS_S)
        wait = min(due, default=math.inf) - time.monotonic()
        try:
            return self._events.get(timeout=max(0.0, min(wait, 3600.0)))
        except queue.Empty:
            return None

    def _look(self, now: float) -> None:
        """Have the origins that are due tell their addresses."""
        for number, origin in enumerate(self._origins):
            if now < self._look_at[number]:
                continue
            self._look_at[number] = now + origin.addresses.every_s
            known = self._of_origin[number]
            try:
                told = dict.fromkeys(origin.addresses.look(), 0)
                for target in told:
                    self._add(target, origin)
            except PenstockError as error:
                self._note_look(number, error.message)
                self._failure = error
                if not known and error.status != "UNAVAILABLE" and self._common is None:
                    self._give_up()
                self._look_at[number] = min(self._look_at[number], now + 1.0)
                continue
            self._note_look(number, "")
            self._failure = None
            for target, misses in known.items():
                if target not in told and misses < origin.holds:
                    told[target] = misses + 1
            self._of_origin[number] = told
        wanted = {target for told in self._of_origin for target in told}
        for target in [target for target in self._nodes if target not in wanted]:
            self._gone.append(self._nodes.pop(target))
        for node in list(self._gone):
            # Streams on it go on as long as they do.
            if node.due_at != math.inf and getattr(node.transport, "is_idle", True):
                self._gone.remove(node)
                node.transport.close()

    def _add(self, target: str, origin: Origin) -> None:
        if target not in self._nodes:
            check_address(target, f"{origin.text}: ")
            self._nodes[target] = _AskedNode(origin.credentials.at(target))

    def _note_look(self, number: int, why: str) -> None:
        """Log once why addresses are not told, where others are known."""
        if why != self._said_look[number]:
            self._said_look[number] = why
            if why and self._says and self._of_origin[number]:
                logger.warning(
                    "%s%s; nodes stay those that were known before",
                    self._whose,
                    plain_lines(why),
                )

    def _hurry(self, node_id: str) -> None:
        now = time.monotonic()
        # The others that are read have open streams, which say more than an answer does.
        spared = {node.target for node in self.usable if node_id and node.node_id != node_id}
        for number, origin in enumerate(self._origins):
            if math.isfinite(origin.addresses.every_s):
                self._look_at[number] = min(self._look_at[number], now)
        for target, node in self._nodes.items():
            if target not in spared and node.due_at != math.inf and now - node.asked_at > SPARED_S:
                node.due_at = min(node.due_at, now + SOON_S * self._random.random())

    def _ask(self, now: float) -> None:
        """Have the nodes that are due asked, each on a thread of its own."""
        for target, node in self._nodes.items():
            if node.due_at <= now and self._asking < ASKED_AT_ONCE:
                node.due_at, node.asked_at = math.inf, now
                self._asking += 1
                ask = _asker(target, node, self._job, self._events.put)
                threading.Thread(target=ask, name="penstock-ask", daemon=True).start()

    def _take(self, told: _ToldNode) -> None:
        self._asking -= 1
        _, node, found = told
        now = time.monotonic()
        node.due_at = now + AGAIN_S * self._random.uniform(0.75, 1.0)
        if isinstance(found, feed_pb2.DescribeReply):
            node.failures = 0
            node.backoff.reset()
            self._first_at = min(self._first_at, now)
        else:
            node.failures += 1
            if found.status == "UNAVAILABLE":
                node.due_at = now + node.backoff.next_s()
            was_read = node.answer is not None and not isinstance(node.answer.found, PenstockError)
            if was_read and node.failures == 1 and found.status == "UNAVAILABLE":
                return  # a busy node may be late once: its streams say whether it is there
        node.answer = NodeAnswer(node.transport, found)

    def _publish(self) -> None:
        answers = {
            target: node.answer for target, node in self._nodes.items() if node.answer is not None
        }
        if self._common is None:
            late = time.monotonic() >= self._first_at + STRAGGLERS_S
            if len(answers) == len(self._nodes) or late:
                self._common = common_to_most(answers, grouped=self._grouped)
        self._answers = answers
        if self._common is None:
            errors = {
                target: answer
                for target, answer in answers.items()
                if isinstance(answer.found, PenstockError)
            }
            self.left_out = settle(errors, None)[1]
            if self._nodes and len(answers) == len(self._nodes):
                self._has_asked_all = True
                if is_hopeless(answers):
                    self._is_hopeless.set()
                self._notify()
            return
        used = {node.target for node in self.usable}
        usable, self.left_out = settle(answers, self._common, used)
        if usable != self.usable:
            self.usable = usable
            self._notify()
        self._say()
        if len(answers) == len(self._nodes) and not self._has_asked_all:
            self._has_asked_all = True
            self._notify()

    def _give_up(self) -> None:
        self._is_hopeless.set()
        self._has_asked_all = True
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _say(self) -> None:
        """Log what has changed."""
        if not self._says:
            return
        usable = tuple(node.target for node in self.usable)
        if usable != self._said_usable:
            self._said_usable = usable
            logger.info(
                "%s%s can be read: %s",
                self._whose,
                "1 node" if len(usable) == 1 else f"{len(usable)} nodes",
                plain_lines(", ".join(usable) or "none"),
            )
        left_out = sentences(self.left_out)
        for target, why in left_out.items():
            if self._said.get(target) != why:
                logger.warning("%s%s is left out: %s", self._whose, target, plain_lines(why))
        self._said = left_out

    def _close_all(self) -> None:
        for origin in self._origins:
            origin.addresses.close()
        for node in [*self._nodes.values(), *self._gone]:
            node.transport.close()


def _asker(
    target: str, node: _AskedNode, job: str, tell: Callable[[_ToldNode], None]
) -> Callable[[], None]:
    def ask() -> None:
        request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job=job)
        found: feed_pb2.DescribeReply | PenstockError
        try:
            answer = node.transport.unary("Feed/Describe", request.SerializeToString(), ASK_S)
            found = parse(feed_pb2.DescribeReply, answer, f"{target} answers Feed/Describe")
            check_protocol(found, target)
        except PenstockError as error:
            found = error
        tell(_ToldNode(target, node, found))

    return ask
