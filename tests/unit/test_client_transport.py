# ruff: noqa: D102 - stand-ins have the methods of what they stand for
"""Targets: one string for every way to a node, and a sentence for each that is none."""

from __future__ import annotations

import re
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.client import Loader
from penstock.client.calls.grpc_transport import GrpcTransport, error_from_rpc, open_transport
from penstock.wire.errors import (
    ERRORS,
    Internal,
    InvalidRequest,
    MissingExtra,
    PenstockError,
    ProtocolMismatch,
    Unreachable,
)
from penstock.wire.sent_errors import ERROR_METADATA_KEY, encode_error
from penstock.wire.transports import Endpoint
from unit.served import ServedNode


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("penstock", "write host:port"),
        ("penstock:", "write host:port"),
        ("penstock:http", "write host:port"),
        ("penstock:70000", "write host:port"),
        ("http://penstock:50051", "write host:port"),
        ("", "write host:port"),
        ("penstock.yaml", "spawn:penstock.yaml"),
        ("/run/penstock.sock", "unix:/run/penstock.sock is"),
        ("127.0.0.1", "it has no port"),
        ("https://penstock:50051", "no scheme and no path"),
        ("a:1,b:2", "this takes one"),
        (["a:1", "b:2"], "this takes one"),
        ([], "write host:port"),
    ],
)
def test_a_target_that_is_none_is_refused_with_examples(target: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        open_transport(target)


@pytest.mark.parametrize(
    "target", ["node:50051", "127.0.0.1:1", "[::1]:1", "dns:///n:1", "unix:/tmp/x", ["node:1"]]
)
def test_addresses_are_opened_without_contact(target: Any) -> None:
    transport = open_transport(target)
    transport.close()
    transport.close()

    assert isinstance(transport, GrpcTransport)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("127.0.0.1:{port}", "Connection refused"),
        ("unix:{folder}/none.sock", "No such file or directory"),
        ("dns:///no-such-host.invalid:5", "(Domain name not found|.*lookup.*)"),
    ],
)
def test_no_connection_is_told_once(target: str, why: str, tmp_path: Path) -> None:
    """The target, the reason, the remedy; gRPC's own sentence has status and address twice."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    target = target.format(port=port, folder=tmp_path)
    transport = open_transport(target)

    with pytest.raises(Unreachable) as caught:
        transport.unary("Feed/Status", b"", 20)

    transport.close()
    said = caught.value.message
    assert re.fullmatch(
        rf"no answer from {re.escape(target)} \({why}( at \S+)?\); "
        "check the address and that penstockd runs there",
        said,
    ), said


def test_the_way_to_a_node_that_was_dropped_leads_nowhere() -> None:
    """A stream that opens there fails as one to a node that is away: another way may be found."""
    with ServedNode(batches=2) as node:
        transport = open_transport(node.address)
        transport.unary("Feed/Status", b"", 20)
        transport.close()
        with pytest.raises(Unreachable, match="no node is known to be there"):
            transport.unary("Feed/Status", b"", 20)
        with pytest.raises(Unreachable, match="no node is known to be there"):
            transport.read(b"")


class Entry:
    """An installed entry point."""

    def __init__(self, opener: Any) -> None:
        self._opener = opener

    def load(self) -> Any:
        if isinstance(self._opener, Exception):
            raise self._opener
        return self._opener


def offer(monkeypatch: pytest.MonkeyPatch, openers: dict[str, Any]) -> None:
    real = metadata.entry_points

    def entry_points(**select: str) -> Any:
        if select.get("group") != "penstock.transports":
            return real(**select)  # torch asks, too, when it is first imported
        name = select["name"]
        return [Entry(openers[name])] if name in openers else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_a_node_that_was_started_for_us_is_read_and_ended_with_the_loader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An entry point may return an address: the Loader reads there and closes it once."""
    with ServedNode(batches=2) as node:
        asked, closed = [], []

        def opener(rest: str, **wanted: object) -> Endpoint:
            asked.append((rest, wanted))
            return Endpoint(node.address, lambda: closed.append(rest))

        offer(monkeypatch, {"spawn": opener})
        with Loader("spawn:job.yaml?workers=2", "code", rank=0, world_size=1) as loader:
            assert [batch.position for batch in loader] == [0, 1]
            assert closed == []
        loader.close()

    assert asked == [("job.yaml?workers=2", {"job": "code", "grouped": False})]
    assert closed == ["job.yaml?workers=2"]


def test_a_transport_of_another_package_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with ServedNode(batches=2) as node:
        transport = open_transport(node.address)
        offer(monkeypatch, {"local": lambda _rest, **_wanted: transport})

        with Loader("local:job.yaml", "code", rank=0, world_size=1) as loader:
            assert len(list(loader)) == 2


@pytest.mark.parametrize("openers", [{}, {"local": ModuleNotFoundError("no module aiohttp")}])
def test_a_missing_server_half_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, openers: dict[str, Any]
) -> None:
    offer(monkeypatch, openers)

    with pytest.raises(MissingExtra, match=r"penstock\[server\]"):
        open_transport("local:job.yaml")


def test_a_unix_socket_is_read(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'node.sock'}"
    with (
        ServedNode(batches=2, listen=address),
        Loader(address, "code", rank=0, world_size=1) as loader,
    ):
        assert len(list(loader)) == 2


class RpcError(grpc.RpcError):
    """What gRPC raises: a status, its details, and what the server sent beside them."""

    def __init__(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing


@pytest.mark.parametrize("cls", list(ERRORS.values()), ids=lambda cls: cls.code)
def test_every_error_of_the_table_comes_back_as_itself(cls: type[PenstockError]) -> None:
    status = grpc.StatusCode[cls.status]
    trailing = [
        ("other", "x"),
        (ERROR_METADATA_KEY, encode_error(cls.with_fields("a sentence", {"rank": 3}))),
    ]

    found = error_from_rpc(RpcError(status, "", trailing), "node:1")

    assert type(found) is cls
    assert (found.message, found.fields) == ("a sentence", {"rank": 3})


@pytest.mark.parametrize(
    ("code", "details", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, "refused", Unreachable),
        (grpc.StatusCode.CANCELLED, "", Unreachable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", Unreachable),
        (grpc.StatusCode.UNKNOWN, "Stream removed", Unreachable),
        (grpc.StatusCode.INTERNAL, "RST_STREAM closed stream", Unreachable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests", Unreachable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max", Internal),
        (grpc.StatusCode.UNKNOWN, "Exception calling application", Internal),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service", ProtocolMismatch),
    ],
)
def test_a_bare_status_becomes_what_it_amounts_to(
    code: grpc.StatusCode, details: str, cls: type[PenstockError]
) -> None:
    for trailing in (None, (), [("other", "x")]):
        found = error_from_rpc(RpcError(code, details, trailing), "node:1")
        assert type(found) is cls
        assert "node:1" in found.message
