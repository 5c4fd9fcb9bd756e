"""A bidirectional call keeps its contract, against a real server on a socket."""

from __future__ import annotations

import gc
import re
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

import penstock.client
from penstock.client.calls.conversation import Conversation

METHOD = "/test.Talk/Talk"
DEADLINE_S = 30.0

Open = Callable[[str], Conversation]


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


@pytest.fixture
def opening(talk: Talk) -> Iterator[Open]:
    with grpc.insecure_channel(f"127.0.0.1:{talk.port}") as channel:
        yield lambda order: Conversation(channel, METHOD, order.encode())


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


def test_a_call_waits_for_a_server_that_is_away() -> None:
    """Until it is there: so a reader goes on as soon as its node has been restarted."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    found: list[bytes] = []
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = Conversation(channel, METHOD, b"count 2")
        reading = threading.Thread(target=lambda: found.extend(call))
        reading.start()
        talk = Talk(port)
        reading.join(DEADLINE_S)
        assert [len(message) for message in found] == [1000, 1000]
        talk.stop()


def test_a_call_that_waits_for_a_server_is_cancelled() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = Conversation(channel, METHOD, b"count 1")
        reading = threading.Thread(target=lambda: list(swallow(call)))
        reading.start()
        call.cancel()
        reading.join(DEADLINE_S)
        assert not reading.is_alive()


@pytest.mark.parametrize("order", ["count 3", "fail"])
def test_nothing_is_left_of_a_public_call_that_is_over(talk: Talk, order: str) -> None:
    """Else the collector would find it at exit, where it may wait for a lock for ever."""
    gc.disable()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{talk.port}") as channel:
            call = Conversation(channel, METHOD, order.encode())
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


def test_the_client_uses_what_grpcio_offers_to_everybody() -> None:
    """No private module, and no attribute of its objects that begins with an underscore."""
    package = Path(penstock.client.__file__).parent
    for module in package.rglob("*.py"):
        text = module.read_text()
        assert not re.search(r"cygrpc|grpc\._|(?:channel|_call)\._", text), module


def swallow(call: Conversation) -> Iterator[bytes]:
    """Go on to the end, however it ends."""
    try:
        yield from call
    except grpc.RpcError:
        return
