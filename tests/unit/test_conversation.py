"""Both ways to hold a bidirectional call keep one contract, against a real server on a socket."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from penstock.client import Loader, conversation
from penstock.client.conversation import Call, Conversation, PlainConversation, converse
from unit.fake_feed import FakeNode, values_of

METHOD = "/test.Talk/Talk"
DEADLINE_S = 30.0

Open = Callable[[str], Call]


class Talk:
    """A server whose first message says what it shall do: `count N`, `echo`, `fail` or `wait`."""

    def __init__(self, port: int = 0) -> None:
        self.heard: list[bytes] = []
        self.ended = threading.Event()
        self._changed = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        handler = grpc.stream_stream_rpc_method_handler(self._talk)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Talk", {"Talk": handler}),)
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def _talk(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        order, *rest = next(requests).split()
        context.add_callback(self.ended.set)
        if order == b"count":
            yield from (str(number).encode() * 1000 for number in range(int(rest[0])))
        elif order == b"fail":
            yield b"one"
            context.set_trailing_metadata((("why-bin", b"\0\1"), ("who", "me")))
            context.abort(grpc.StatusCode.DATA_LOSS, "it is gone")
        elif order == b"wait":
            yield b"waiting"
            self._hear(requests)
        else:
            yield from requests

    def _hear(self, requests: Iterator[bytes]) -> None:
        try:
            for request in requests:
                with self._changed:
                    self.heard.append(request)
                    self._changed.notify_all()
        except grpc.RpcError:
            return  # the client has cancelled

    def wait_for(self, message: bytes) -> None:
        """Wait until this was heard."""
        with self._changed:
            assert self._changed.wait_for(lambda: message in self.heard, DEADLINE_S)

    def stop(self) -> None:
        """Cut every call."""
        self._server.stop(0).wait()


@pytest.fixture
def talk() -> Iterator[Talk]:
    server = Talk()
    yield server
    server.stop()


@pytest.fixture(params=[Conversation, PlainConversation])
def opening(request: pytest.FixtureRequest, talk: Talk) -> Iterator[Open]:
    with grpc.insecure_channel(f"127.0.0.1:{talk.port}") as channel:
        yield lambda order: request.param(channel, METHOD, order.encode())


def test_messages_come_in_order_and_then_it_is_over(opening: Open) -> None:
    call = opening("count 500")

    assert list(call) == [str(n).encode() * 1000 for n in range(500)]
    assert list(call) == []
    call.cancel()
    call.send(b"nobody listens")
    assert list(call) == []


def test_an_error_comes_behind_what_was_sent_and_with_its_metadata(opening: Open) -> None:
    call = opening("fail")

    assert next(call) == b"one"
    for _ in range(2):  # and again, for who asks again
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.DATA_LOSS
        assert error.details() == "it is gone"
        assert {tuple(pair) for pair in error.trailing_metadata()} == {
            ("why-bin", b"\0\1"),
            ("who", "me"),
        }


def test_the_last_message_is_always_sent(opening: Open, talk: Talk) -> None:
    """Those before it may be left out, for each says all that the earlier ones said."""
    call = opening("wait")
    reading = threading.Thread(target=list, args=(swallow(call),))
    reading.start()
    sent = [str(number).encode() for number in range(200)]
    for message in sent:
        call.send(message)

    talk.wait_for(sent[-1])
    call.cancel()
    reading.join(DEADLINE_S)
    assert not reading.is_alive()
    assert talk.heard == sorted(talk.heard, key=int)
    assert set(talk.heard) <= set(sent)


def test_what_is_sent_is_answered(opening: Open) -> None:
    call = opening("echo")
    for number in range(100):
        call.send(str(number).encode())
        assert next(call) == str(number).encode()
    call.cancel()
    assert list(swallow(call)) == []


def test_threads_may_send_while_another_reads(opening: Open) -> None:
    call = opening("echo")

    def send() -> None:
        for _ in range(100):
            call.send(b"x")

    def say_the_end() -> None:
        for sender in senders:
            sender.join()
        call.send(b"end")

    senders = [threading.Thread(target=send) for _ in range(4)]
    for thread in (*senders, threading.Thread(target=say_the_end)):
        thread.start()

    answers = iter(call.__next__, b"end")
    assert set(answers) <= {b"x"}
    call.cancel()
    assert list(swallow(call)) == []


def test_cancel_ends_a_wait_and_tells_the_server(opening: Open, talk: Talk) -> None:
    call = opening("wait")
    assert next(call) == b"waiting"
    ended: list[grpc.StatusCode] = []

    def read() -> None:
        try:
            next(call)
        except grpc.RpcError as error:
            ended.append(error.code())

    reading = threading.Thread(target=read)
    reading.start()
    call.cancel()
    call.cancel()
    reading.join(DEADLINE_S)

    assert ended == [grpc.StatusCode.CANCELLED]
    assert talk.ended.wait(DEADLINE_S)


def test_a_server_that_goes_away_ends_the_call(opening: Open, talk: Talk) -> None:
    call = opening("wait")
    assert next(call) == b"waiting"
    talk.stop()

    with pytest.raises(grpc.RpcError):
        next(call)


@pytest.mark.parametrize("cls", [Conversation, PlainConversation])
def test_a_call_waits_for_a_server_that_is_away(cls: type[Any]) -> None:
    """Until it is there: so a reader goes on as soon as its node has been restarted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found: list[bytes] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = cls(channel, METHOD, b"count 2")
        reading = threading.Thread(target=lambda: found.extend(call))
        reading.start()
        talk = Talk(port)
        reading.join(DEADLINE_S)
        assert [len(message) for message in found] == [1000, 1000]
        talk.stop()


@pytest.mark.parametrize("cls", [Conversation, PlainConversation])
def test_a_call_that_waits_for_a_server_is_cancelled(cls: type[Any]) -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = cls(channel, METHOD, b"count 1")
        reading = threading.Thread(target=lambda: list(swallow(call)))
        reading.start()
        call.cancel()
        reading.join(DEADLINE_S)
        assert not reading.is_alive()


def test_a_call_may_be_cancelled_from_within_itself(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may end a Loader anywhere, on the thread that reads for it, too."""
    calls: list[Call] = []
    take = Conversation._take

    def collect(self: Conversation, operations: Any) -> bytes | None:
        calls[0].cancel()
        return take(self, operations)

    monkeypatch.setattr(Conversation, "_take", collect)
    calls.append(opening("wait"))
    reading = threading.Thread(target=list, args=(swallow(calls[0]),), daemon=True)
    reading.start()
    calls[0].cancel()  # for the conversation that has no `_take`
    reading.join(5)

    assert not reading.is_alive()


class Interrupted(Exception):
    """What a signal handler raises."""


def test_a_wait_that_is_broken_off_ends_the_call(talk: Talk) -> None:
    """GRPC has destroyed the queue by then: nobody may ask it for more."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{talk.port}") as channel:
            call = Conversation(channel, METHOD, b"wait")
            assert next(call) == b"waiting"
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(Interrupted):
                next(call)
            for _ in range(2):
                with pytest.raises(grpc.RpcError, match="Interrupted"):
                    next(call)
            call.send(b"nobody listens")
            call.cancel()
    finally:
        signal.signal(signal.SIGUSR1, before)


FORK = """
import os, signal, sys
from penstock.client import Loader
from unit.fake_feed import FakeNode

loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    os._exit(7)
print(next(batches).info.position)
loader.close()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_a_parent_goes_on_behind_a_fork_of_grpc_with_fork_support() -> None:
    """What gRPC does to its channels in the child is its own: it does not always come back."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["GRPC_ENABLE_FORK_SUPPORT"] = "1"
    with FakeNode(batches=40, nbytes=4096) as node:
        command = [sys.executable, "-c", FORK, node.address]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)

    assert output.split() == ["1"]


@pytest.mark.parametrize("order", ["count 3", "fail"])
def test_nothing_is_left_of_a_public_call_that_is_over(talk: Talk, order: str) -> None:
    """Else the collector would find it at exit, where it may wait for a lock for ever."""
    gc.disable()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{talk.port}") as channel:
            call = PlainConversation(channel, METHOD, order.encode())
            public = weakref.ref(call._call)
            kept: list[BaseException] = []
            while not kept:
                try:
                    next(call)
                except (grpc.RpcError, StopIteration) as error:
                    kept.append(error)
            assert public() is None
            call.cancel()
    finally:
        gc.enable()


def test_hundreds_of_calls_leave_nothing_behind(opening: Open) -> None:
    """Every event of a call is taken, so the channel closes at once: the fixture does."""
    for number in range(300):
        call = opening(f"count {number % 7}")
        if number % 3 == 0:
            call.cancel()
        list(swallow(call))


@pytest.mark.parametrize("known", [True, False])
def test_the_version_of_grpc_decides_and_a_loader_sees_no_difference(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "IS_KNOWN", known)
    with FakeNode(batches=40, nbytes=4096) as node:
        with grpc.insecure_channel(node.address) as channel:
            call = converse(channel, "/penstock.wire.v1.Feed/Read", b"")
            assert isinstance(call, Conversation if known else PlainConversation)
            call.cancel()
            list(swallow(call))
        with Loader(node.address, "code", rank=0, world_size=1, as_numpy=True) as loader:
            for position, batch in enumerate(loader):
                expected = values_of(position, 4096)["input_ids"]
                assert batch["input_ids"].tolist() == expected.tolist()
        assert position == 39


def test_this_version_of_grpc_was_tried() -> None:
    """Where this fails: run the tests with the new version, and move KNOWN_GRPC."""
    assert conversation.IS_KNOWN


PROBE = """
import os, sys
import penstock.client
import grpc
print(os.environ.get("GRPC_EXPERIMENTS"))
grpc.insecure_channel("127.0.0.1:1").close()
"""


@pytest.mark.parametrize("given", [None, "call_tracer_in_transport"])
def test_importing_the_client_leaves_no_trace(given: str | None) -> None:
    """Not in the environment, where child processes would find it, and not on the terminal."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("GRPC_EXPERIMENTS", None)
    if given is not None:
        environment["GRPC_EXPERIMENTS"] = given
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == str(given)
    assert done.stderr == ""


def swallow(call: Call) -> Iterator[bytes]:
    """Go on to the end, however it ends."""
    try:
        yield from call
    except grpc.RpcError:
        return
