"""Tokens and scopes on a real node: who makes which call, and what it is answered."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from certificates import Authority
from harness import READ_DEADLINE_S, Server, as_penstock, call_command, serving
from harness import write_job_file as write
from invariants import eventually
from penstock.client import Loader, Tls
from penstock.server.access.caller import Caller
from penstock.server.access.callers import Access, hash_of
from penstock.server.app import check_exposed
from penstock.server.jobs.load import load
from penstock.server.rpc.status import seen_by
from penstock.wire import PROTOCOL
from penstock.wire.errors import Forbidden, InvalidJob, InvalidRequest, Unauthenticated
from penstock.wire.v1 import cursors_pb2, feed_pb2

FAR = 200
"""A step that is more than `max_replay` batches of a lane from the start."""

JOB = {
    "lanes": 2,
    "batches_per_step": 2,
    "max_replay": 100,
    "source": {"type": "items", "items": [{"x": [n, n]} for n in range(40)]},
    "batch_size": 2,
}
JOBS = {"code": JOB, "secret": JOB}

TOKENS: dict[str, dict[str, Any]] = {
    "look": {"scopes": ["read"], "jobs": ["code"], "groups": ["run-*"]},
    "text": {"scopes": ["read+text"], "jobs": ["code"]},
    "train": {"scopes": ["commit"], "jobs": ["code"], "groups": ["run-*"]},
    "boss": {"scopes": ["admin"]},
    "past": {"scopes": ["admin"], "expires": "2020-01-31"},
    "one": {"scopes": ["read"], "streams": 1, "lanes": 2, "horizon": 1},
    "narrow": {"scopes": ["read"], "lanes": 1},
}


def token_of(name: str) -> str:
    return f"pst_{name}-secret-of-the-test"


def entries(**more: dict[str, Any]) -> str:
    """Return a file of the tokens above."""
    listed = [
        {"name": name, "sha256": hash_of(token_of(name)), **fields}
        for name, fields in {**TOKENS, **more}.items()
    ]
    return yaml.safe_dump({"tokens": listed})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "tokens.yaml").write_text(entries())
    file = write(folder / "jobs.yaml", JOBS, tokens="tokens.yaml", metrics="127.0.0.1:0")
    with serving(file) as server:
        yield server


class Shown:
    """Calls with a token, by generated stubs alone.

    Args:
        server: The node.
        name: Whose token; None = none.
    """

    def __init__(self, server: Server, name: str | None) -> None:
        self._server = server
        self.metadata = () if name is None else (("authorization", f"Bearer {token_of(name)}"),)

    def call(self, method: str, request: Any, reply: Any) -> Any:
        """Make a call with one message."""
        call = self._server.channel.unary_unary(
            f"/penstock.wire.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        try:
            return call(request, timeout=READ_DEADLINE_S, metadata=self.metadata)
        except grpc.RpcError as error:
            raise as_penstock(error) from None

    def read(self, **fields: Any) -> list[feed_pb2.ReadReply]:
        """Open a stream, and return what comes until two batches are there."""
        call = self._server.channel.stream_stream(
            "/penstock.wire.v1.Feed/Read",
            request_serializer=feed_pb2.ReadRequest.SerializeToString,
            response_deserializer=feed_pb2.ReadReply.FromString,
        )
        opening = feed_pb2.Open(**{"protocol": PROTOCOL, "job": "code", "horizon": 2, **fields})
        replies = []
        try:
            stream = call(
                iter([feed_pb2.ReadRequest(open=opening)]),
                timeout=READ_DEADLINE_S,
                metadata=self.metadata,
            )
            replies.extend(stream)
        except grpc.RpcError as error:
            raise as_penstock(error) from None
        return replies


CALLS: dict[str, Any] = {
    "status": lambda who: who.call("Feed/Status", feed_pb2.StatusRequest(), feed_pb2.StatusReply),
    "describe": lambda who: who.call(
        "Feed/Describe",
        feed_pb2.DescribeRequest(protocol=PROTOCOL, job="code"),
        feed_pb2.DescribeReply,
    ),
    "describe another job": lambda who: who.call(
        "Feed/Describe",
        feed_pb2.DescribeRequest(protocol=PROTOCOL, job="secret"),
        feed_pb2.DescribeReply,
    ),
    "read": lambda who: who.read(),
    "read in a group": lambda who: who.read(group="run-1"),
    "read another job": lambda who: who.read(job="secret"),
    "read in another group": lambda who: who.read(group="other"),
    "list": lambda who: who.call(
        "Cursors/List", cursors_pb2.ListRequest(job="code"), cursors_pb2.ListReply
    ),
    "begin": lambda who: who.call("Cursors/Begin", _begin("run-1"), cursors_pb2.BeginReply),
    "begin another group": lambda who: who.call(
        "Cursors/Begin", _begin("other"), cursors_pb2.BeginReply
    ),
    "begin far away": lambda who: who.call(
        "Cursors/Begin",
        _begin(f"run-{time.monotonic_ns()}", start_step=FAR),
        cursors_pb2.BeginReply,
    ),
    "checkpoint": lambda who: who.call(
        "Cursors/Checkpoint",
        cursors_pb2.CheckpointRequest(job="code", group="run-1", name="a", step=1),
        cursors_pb2.CheckpointReply,
    ),
    "seek": lambda who: who.call("Cursors/Seek", _seek(3), cursors_pb2.MoveReply),
    "seek far away": lambda who: who.call("Cursors/Seek", _seek(FAR), cursors_pb2.MoveReply),
    "verdicts": lambda who: who.call(
        "Cursors/ListVerdicts",
        cursors_pb2.ListVerdictsRequest(job="code"),
        cursors_pb2.ListVerdictsReply,
    ),
    "release": lambda who: who.call(
        "Cursors/ReleaseItem",
        cursors_pb2.ReleaseItemRequest(job="code", index=1),
        cursors_pb2.ReleaseItemReply,
    ),
    "delete": lambda who: who.call(
        "Cursors/Delete",
        cursors_pb2.DeleteRequest(job="code", group="run-1", fence=True),
        cursors_pb2.DeleteReply,
    ),
    "nonsense": lambda who: who.call(
        "Feed/Nonsense", feed_pb2.StatusRequest(), feed_pb2.StatusReply
    ),
}


def _begin(group: str, **fields: Any) -> cursors_pb2.BeginRequest:
    return cursors_pb2.BeginRequest(
        protocol=PROTOCOL,
        job="code",
        group=group,
        token=f"t{time.monotonic_ns()}",
        world_size=1,
        **fields,
    )


def _seek(step: int) -> cursors_pb2.SeekRequest:
    return cursors_pb2.SeekRequest(
        job="code", group="run-1", step=step, request_id=f"{step}-{time.monotonic_ns()}"
    )


YES, NO, NAME = "yes", "forbidden", "unauthenticated"

TABLE: dict[str, tuple[str, ...]] = {
    #                          look  text  train boss  past  unknown, none
    "status": (YES, YES, YES, YES, NAME, NAME, NAME),
    "describe": (YES, YES, YES, YES, NAME, NAME, NAME),
    "describe another job": (NO, NO, NO, YES, NAME, NAME, NAME),
    "read": (YES, YES, YES, YES, NAME, NAME, NAME),
    "read in a group": (YES, YES, YES, YES, NAME, NAME, NAME),
    "read another job": (NO, NO, NO, YES, NAME, NAME, NAME),
    "read in another group": (NO, YES, NO, YES, NAME, NAME, NAME),
    "list": (YES, YES, YES, YES, NAME, NAME, NAME),
    "begin": (NO, NO, YES, YES, NAME, NAME, NAME),
    "begin another group": (NO, NO, NO, YES, NAME, NAME, NAME),
    "begin far away": (NO, NO, NO, YES, NAME, NAME, NAME),
    "checkpoint": (NO, NO, YES, YES, NAME, NAME, NAME),
    "seek": (NO, NO, YES, YES, NAME, NAME, NAME),
    "seek far away": (NO, NO, NO, YES, NAME, NAME, NAME),
    "verdicts": (NO, YES, NO, NO, NAME, NAME, NAME),
    "release": (NO, NO, NO, "unknown_verdict", NAME, NAME, NAME),
    "delete": (NO, NO, NO, YES, NAME, NAME, NAME),
}
WHO = ("look", "text", "train", "boss", "past", "unknown", None)


@pytest.mark.parametrize("who", WHO)
def test_who_may_make_which_call(node: Server, who: str | None) -> None:
    """The whole table, in the order in which a run and its operator make them."""
    shown, found, told = Shown(node, who), {}, []
    if who in ("look", "text", "past", "unknown", None):
        CALLS["begin"](Shown(node, "boss"))

    for name in TABLE:
        try:
            CALLS[name](shown)
            found[name] = YES
        except Exception as error:  # whatever it is, the table says it
            found[name] = getattr(error, "code", repr(error))
            told.append(str(error))

    assert token_of(str(who)) not in "".join(told)
    assert found == {name: answers[WHO.index(who)] for name, answers in TABLE.items()}


def test_nobody_knows_a_method_that_is_not_there(node: Server) -> None:
    """It is refused to strangers, and else answered as by any node."""
    with pytest.raises(Unauthenticated):
        CALLS["nonsense"](Shown(node, None))
    with pytest.raises(grpc.RpcError) as caught:
        CALLS["nonsense"](Shown(node, "look"))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_refusal_names_the_scope_and_what_there_is(node: Server) -> None:
    with pytest.raises(Forbidden, match=r"'look' cannot commit: that needs the scope commit, and"):
        Shown(node, "look").call(
            "Cursors/Commit", cursors_pb2.CommitRequest(), cursors_pb2.CommitReply
        )
    with pytest.raises(Forbidden, match=r"'look' is for jobs code, and not for job 'secret'"):
        CALLS["describe another job"](Shown(node, "look"))
    with pytest.raises(Unauthenticated, match=r"'past' expired: it was valid until 2020-01-31"):
        CALLS["status"](Shown(node, "past"))
    with pytest.raises(Unauthenticated, match=r"asks for a token: pass token= or set PENSTOCK_TO"):
        CALLS["status"](Shown(node, None))


def test_what_a_caller_is_not_for_is_not_shown(node: Server) -> None:
    """Jobs and groups of others: in lists, in the status, and in what Describe names."""
    boss, look = Shown(node, "boss"), Shown(node, "look")
    for group in ("run-5", "hidden"):
        boss.call("Cursors/Begin", _begin(group), cursors_pb2.BeginReply)

    groups = {group.name for group in CALLS["list"](look).groups}
    status = json.loads(CALLS["status"](look).json)

    assert "run-5" in groups
    assert "hidden" not in groups
    assert "hidden" in {group.name for group in CALLS["list"](boss).groups}
    assert [job["name"] for job in status["jobs"]] == ["code"]
    assert list(CALLS["describe"](look).jobs) == ["code"]


def test_which_items_are_in_a_batch_needs_text(node: Server) -> None:
    """The batch itself is the same."""
    found = {}
    for name in ("look", "text"):
        headers = [r.header for r in Shown(node, name).read() if r.HasField("header")]
        found[name] = headers

    assert [len(header.samples) for header in found["text"]] == [2, 2]
    assert [len(header.samples) for header in found["look"]] == [0, 0]
    assert {h.crc32c for h in found["text"]} == {h.crc32c for h in found["look"]}


def test_which_item_a_reader_waits_for_needs_text(tmp_path: Path) -> None:
    """In the status, as in the stream; that it waits, and at which stage, `read` is for."""
    (tmp_path / "roles.py").write_text(
        "import pathlib, time\n\n\ndef waits(row):\n"
        "    while not (pathlib.Path(__file__).parent / 'go').exists():\n"
        "        time.sleep(0.01)\n    return row\n"
    )
    (tmp_path / "tokens.yaml").write_text(entries())
    job = {**JOB, "processor": {"function": "./roles.py:waits"}}
    file = write(tmp_path / "jobs.yaml", {"code": job, "secret": job}, tokens="tokens.yaml")
    with serving(file) as server:

        def waits(name: str) -> dict[str, Any] | None:
            status = json.loads(CALLS["status"](Shown(server, name)).json)
            [reader] = next(each for each in status["jobs"] if each["name"] == "code")["groups"]
            found: dict[str, Any] | None = reader["waits_for"]
            return found

        reading = threading.Thread(target=Shown(server, "text").read)
        reading.start()
        try:
            eventually(
                lambda: any(
                    group["waits_for"] and group["waits_for"]["stage"] == "process"
                    for job in json.loads(CALLS["status"](Shown(server, "text")).json)["jobs"]
                    for group in job["groups"]
                ),
                60,
                "the role is at its item",
            )
            seen = {name: waits(name) for name in ("text", "look")}
        finally:
            (tmp_path / "go").touch()
            reading.join()

    assert seen["text"] is not None
    assert seen["text"]["item"]
    assert seen["look"] == {**seen["text"], "item": ""}


def test_health_is_open_and_reflection_is_off(node: Server) -> None:
    health = health_pb2_grpc.HealthStub(node.channel)
    reply = health.Check(health_pb2.HealthCheckRequest(), timeout=READ_DEADLINE_S)
    call = node.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    )

    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([b""]), timeout=READ_DEADLINE_S, metadata=Shown(node, "boss").metadata))

    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- bounds ---


def test_a_caller_has_so_many_streams_and_lanes(node: Server) -> None:
    token = token_of("one")
    with Loader(node.address, "code", rank=0, world_size=1, token=token) as first:
        batches = iter(first)
        taken = [next(batches).position for _ in range(20)]  # with a horizon of one
        with (
            pytest.raises(Forbidden, match=r"'one' may have 1 streams, and this stream would make"),
            Loader(node.address, "code", rank=0, world_size=1, token=token) as second,
        ):
            next(iter(second))
        taken += [next(batches).position for _ in range(20)]
        [group] = [
            group
            for job in _status(node)["jobs"]
            for group in job["groups"]
            if not group["group"] and group["next"] >= 40
        ]
    assert taken == list(range(40))
    assert group["horizon"] - group["next"] <= 1
    with pytest.raises(Forbidden, match=r"'narrow' may read 1 lanes in a stream, and this one w"):
        Shown(node, "narrow").read()
    assert len(Shown(node, "narrow").read(lanes=[1])) >= 2


def _status(node: Server) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(CALLS["status"](Shown(node, "boss")).json)
    return status


def scrape(node: Server) -> dict[str, float]:
    """Return the value of each series of a node."""
    [ready] = node.events("ready")
    with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        series: float(value)
        for series, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_metrics_go_by_the_names_of_tokens(node: Server) -> None:
    with contextlib.suppress(Unauthenticated):
        CALLS["status"](Shown(node, "unknown"))
    with contextlib.suppress(Forbidden):
        CALLS["delete"](Shown(node, "text"))
    Shown(node, "text").read()

    found = scrape(node)

    assert found['penstock_calls_refused_total{code="unauthenticated",token=""}'] >= 1
    assert found['penstock_calls_refused_total{code="forbidden",token="text"}'] >= 1
    assert found['penstock_token_sent_bytes_total{token="text"}'] > 0
    assert found['penstock_token_streams{token="boss"}'] == 0


# --- what changes while the node runs ---


def test_the_file_is_read_again(tmp_path: Path) -> None:
    """Who is added is let in, who is taken out is not, and a mistake in it changes nothing.

    A client whose own file has another token by then reads on.
    """
    path, own = tmp_path / "tokens.yaml", tmp_path / "own"
    path.write_text(entries())
    own.write_text(token_of("train"))
    settings = {"tokens": "tokens.yaml", "metrics": "127.0.0.1:0"}
    file = write(tmp_path / "jobs.yaml", {"code": JOB, "secret": JOB}, **settings)
    with serving(file) as server, contextlib.ExitStack() as stack:
        with pytest.raises(Unauthenticated):
            CALLS["status"](Shown(server, "late"))
        shown = (token_of("train"), own)
        loaders = [
            stack.enter_context(Loader(server.address, "code", rank=0, world_size=1, token=token))
            for token in shown
        ]
        gone, renewed = map(iter, loaders)
        next(gone)
        taken = [next(renewed).position]
        path.write_text("tokens: [{name: x, scopes: [reed], sha256: " + "0" * 64 + "}]")
        [told] = server.events(
            "the file of tokens has changed and cannot be used: what it said before holds", 1
        )
        next(gone)
        own.write_text(token_of("late"))
        late = entries(late={"scopes": ["read"]})
        path.write_text(late.replace(hash_of(token_of("train")), "f" * 64))
        server.events("the file of tokens has changed", 1)
        with pytest.raises(Unauthenticated, match="the token is not one of this node"):
            collections.deque(gone, maxlen=0)
        while loaders[1].stats()["reconnects"] == 0:
            taken.append(next(renewed).position)
        taken += [next(renewed).position for _ in range(200)]
        CALLS["status"](Shown(server, "late"))
        scraped = scrape(server)
        everything = "".join(server.lines)

    assert taken == list(range(len(taken)))
    assert "tokens.yaml:1: tokens[0].scopes is ['reed']: give a list of read" in told["error"]
    assert not any(token_of(name) in everything for name in (*TOKENS, "late"))
    # Before the first refusal: `increase()` would not see a counter that begins with it.
    assert scraped['penstock_calls_refused_total{code="forbidden",token="late"}'] == 0


def test_a_client_reads_the_file_of_its_token_for_each_call(node: Server, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token_of("look") + "\n")
    with Loader(node.address, "code", rank=0, world_size=1, group="run-1", token=path) as loader:
        with pytest.raises(Forbidden, match="begin a run"):
            loader.commit()
        path.write_text(token_of("train") + "\n")
        assert loader.commit() >= 0
    by_flag = call_command("penstock", "ping", node.address, "--token-file", str(path))
    assert by_flag.returncode == 0, by_flag.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TOKEN", token_of("look"))
        by_variable = call_command("penstock", "ping", node.address)
        # A process that reads with a token may start a node of its own.
        own = call_command("penstock", "cat", f"local:{node.file}", "code", "--count", "1")
    assert by_variable.returncode == own.returncode == 0, by_variable.stderr + own.stderr
    refused = call_command("penstock", "ping", node.address)
    assert refused.stderr.endswith("[unauthenticated]\n")


# --- no token without TLS ---


def test_no_token_leaves_the_machine_without_tls(tmp_path: Path) -> None:
    for target in ("node:50051", "10.0.0.7:50051", "dns:///penstock:50051"):
        with pytest.raises(
            InvalidRequest, match=r"would travel readable .*tls=Tls\(ca=FILE\)"
        ) as no:
            Loader(target, "code", token="pst_very-secret")
        assert "very-secret" not in str(no.value)
        Loader(target, "code", token="pst_very-secret", tls=Tls(ca="ca.pem"))
    for target in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/x", "dns:///localhost:1"):
        loader = Loader(target, "code", token="pst_very-secret")
        assert "very-secret" not in repr(loader)
        assert "very-secret" not in repr(loader._options)
    file = write(tmp_path / "jobs.yaml", JOBS, listen="0.0.0.0:0", insecure=True, tokens="t.yaml")
    with pytest.raises(
        InvalidRequest, match=r"server\.tokens on .* without TLS: tokens would trav"
    ):
        check_exposed(load(str(file), environ={}).server)


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("", "token is empty"),
        ("a b", "token does not hold a token"),
        ("x" * 2000, "token does not hold a token"),
        ("pst_\N{SNOWMAN}", "token does not hold a token"),
        (7, "token: pass the token as a text, or the Path of a file"),
        (Path("no-such-file"), "the token's file no-such-file: No such file"),
    ],
)
def test_a_token_that_cannot_be_is_refused_by_the_client(token: Any, sentence: str) -> None:
    with (
        pytest.raises(InvalidRequest, match=sentence),
        Loader("127.0.0.1:1", "code", token=token) as loader,
    ):
        next(iter(loader))


def test_names_in_client_certificates_stand_for_tokens(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    pair, known = ca.sign("node"), ca.sign("trainer-7", ["run-7.trainers"])
    other = ca.sign("somebody", ["else.where"])
    (tmp_path / "tokens.yaml").write_text(
        "tokens:\n- {name: trainers, certificate: '*.trainers', scopes: [commit]}\n"
        f"- {{name: boss, sha256: {hash_of(token_of('boss'))}, scopes: [admin]}}\n"
    )
    tls = {**pair._asdict(), "client_ca": ca.path}
    file = write(tmp_path / "jobs.yaml", {"code": JOB}, tokens="tokens.yaml", tls=tls)
    with serving(file) as server:

        def shows(cert: Any, token: str | None = None) -> Loader:
            shown = Tls(ca=ca.path, cert=cert.cert, key=cert.key)
            return Loader(
                server.address, "code", group="g", tls=shown, token=token, rank=0, world_size=1
            )

        with shows(known) as loader:
            next(iter(loader))
            assert loader.commit() == 0
            with pytest.raises(Forbidden, match=r"'trainers' cannot move group 'g' from step 0"):
                loader.seek(FAR)
        with (
            shows(other) as loader,
            pytest.raises(Unauthenticated, match=r"the certificate of else"),
        ):
            next(iter(loader))
        with shows(other, token_of("boss")) as loader:
            loader.seek(FAR)


# --- bad input ---

ENTRY = "name: a, sha256: " + "a" * 64 + ", scopes: [read]"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "- {name: a, token: pst_plain, scopes: [read]}",
            r"tokens\[0\]\.token: a file of tokens ho",
        ),
        (
            "- {name: a, sha256: pst_plain, scopes: [read]}",
            r":2: tokens\[0\]\.sha256 is not a hash",
        ),
        ("- {name: a, scopes: [read]}", r"tokens\[0\]\.sha256 is missing: give the hash"),
        (f"- {{{ENTRY}, certificate: x}}", r"sha256 and certificate are both given"),
        (f"- {{{ENTRY}}}\n- {{{ENTRY}}}", r":3: tokens\[1\]\.name is 'a' again"),
        (f"- {{{ENTRY}}}\n- {{{ENTRY.replace(': a,', ': b,')}}}", r"sha256 is that of 'a', too"),
        ("- {name: a, sha256: x, scope: [read]}", r"sha256 is not a hash"),
        (
            f"- {{{ENTRY.replace('[read]', '[write]')}}}",
            r"scopes is \['write'\]: give a list of rea",
        ),
        (
            f"- {{{ENTRY}, jobs: [cod]}}",
            r"tokens\[0\]\.jobs\[0\] is 'cod', and matches no job of t",
        ),
        (f"- {{{ENTRY}, expires: soon}}", r"tokens\[0\]\.expires is 'soon': give a day"),
        (
            f"- {{{ENTRY}, expires: '2027-02-31'}}",
            r"tokens\[0\]\.expires is '2027-02-31': give a d",
        ),
        (f"- {{{ENTRY}, streams: 0}}", r"tokens\[0\]\.streams is 0: give null or a whole number"),
        (f"- {{{ENTRY}, stream: 1}}", r"stream is not a key of tokens\[0\]: did you mean streams"),
        ("- 7", r"tokens\[0\] is not an entry"),
        ("  a: b", r"tokens is not a list"),
    ],
)
def test_a_file_of_tokens_that_is_wrong_is_refused_with_its_line(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """Where the value stands, and never with what may be a token."""
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens:\n{text}\n")

    with pytest.raises(InvalidJob, match=sentence) as caught:
        Access(path, ["code"])

    assert "pst_plain" not in str(caught.value)
    assert "tokens.yaml:" in str(caught.value)


def test_a_missing_file_of_tokens_keeps_the_node_from_starting(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"none\.yaml"):
        Access(tmp_path / "none.yaml", ["code"])


def test_strange_metadata_is_answered_and_costs_nothing(node: Server, record_property: Any) -> None:
    """Whatever stands in the place of a token."""
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    draw = random.Random(seed)
    call = node.channel.unary_unary("/penstock.wire.v1.Feed/Status")
    letters = "".join(map(chr, range(33, 127))) + "   "
    values = [
        "",
        "Bearer",
        "Bearer ",
        "bearer x",
        "Basic eDp5",
        "Bearer " + "a" * 5000,
        "Bearer \t",
    ]
    values += ["Bearer " + "".join(draw.choices(letters, k=draw.randrange(80))) for _ in range(150)]
    for value in values:
        with pytest.raises(grpc.RpcError) as caught:
            call(draw.randbytes(9), timeout=30, metadata=(("authorization", value.strip()),))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED, value
    good = Shown(node, "boss").metadata
    for kind in ("Basic", "Token", "", "Bearer:"):  # a good token, and not as one is shown
        with pytest.raises(grpc.RpcError, match="is not `Bearer TOKEN`: pass token="):
            call(
                b"", timeout=30, metadata=(("authorization", f"{kind} {token_of('boss')}".strip()),)
            )
    assert call(b"", timeout=30, metadata=(*good, ("x-more-bin", b"\x00\xff")))
    with pytest.raises(grpc.RpcError) as caught:  # the first one counts
        call(b"", timeout=30, metadata=(("authorization", "Bearer x"), *good))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# --- making tokens ---


def test_a_token_is_printed_once_and_works(tmp_path: Path) -> None:
    """The file has its hash alone, and what stood there before stays as it was written."""
    path = tmp_path / "tokens.yaml"
    path.write_text("# ours\ntokens:\n")
    made = call_command(
        *("penstockd", "token", "new", str(path), "run-7", "--scope", "commit"),
        *("--job", "code", "--group", "run-7*", "--expires", "2099-01-31"),
    )
    again = call_command("penstockd", "token", "new", str(path), "run-7")
    listed = call_command("penstockd", "token", "list", str(path))
    fresh = call_command("penstockd", "token", "new", str(tmp_path / "new.yaml"), "x")

    token = made.stdout.strip()
    assert re.fullmatch(r"pst_[\w-]{43}", token)
    assert token not in path.read_text() + made.stderr + listed.stdout
    assert path.read_text().startswith("# ours\ntokens:\n")
    caller = Access(path, ["code"]).of_token(token)
    assert (caller.name, caller.jobs, caller.groups) == ("run-7", ("code",), ("run-7*",))
    assert caller.ends == datetime(2099, 2, 1, tzinfo=UTC)
    assert again.returncode == 2
    assert "name is 'run-7' again" in again.stderr
    assert not again.stdout
    assert "run-7: read, commit; jobs code; groups run-7*; token" in listed.stdout
    assert fresh.returncode == 0
    assert os.stat(tmp_path / "new.yaml").st_mode & 0o007 == 0


def test_a_day_is_whole(tmp_path: Path) -> None:
    """A token is valid on the day that its file names, in UTC, and not on the next."""
    path = tmp_path / "tokens.yaml"
    today = datetime.now(UTC)
    for day, valid in ((today, True), (today - timedelta(days=1), False)):
        path.write_text(
            f"tokens: [{{{ENTRY.replace('a' * 64, hash_of('t'))}, expires: '{day:%Y-%m-%d}'}}]"
        )
        with contextlib.nullcontext() if valid else pytest.raises(Unauthenticated):
            Access(path, ["code"]).of_token("t")


def test_the_last_day_that_there_is_never_ends(tmp_path: Path) -> None:
    """People write it where they mean for ever; no day follows it."""
    path = tmp_path / "tokens.yaml"
    path.write_text(f"tokens: [{{{ENTRY.replace('a' * 64, hash_of('t'))}, expires: '9999-12-31'}}]")

    assert Access(path, ["code"]).of_token("t").name == "a"


@pytest.mark.parametrize(
    ("jobs", "stage", "sees"),
    [
        (("code",), "process", True),
        (("code",), "queued", False),
        (("*",), "queued", True),
        (("code", "*"), "queued", True),
    ],
)
def test_an_item_of_another_job_is_not_named(
    jobs: tuple[str, ...], stage: str, *, sees: bool
) -> None:
    """What holds up a queued batch may be an item of a job that a token is not for."""
    group = {"group": "", "waits_for": {"lane": 0, "offset": 0, "stage": stage, "item": "x[1]"}}
    shown = seen_by(
        Caller(jobs=jobs), {"jobs": [{"name": "code", "groups": [group], "cursors": {}}]}
    )

    assert (shown["jobs"][0]["groups"][0]["waits_for"]["item"] == "x[1]") is sees
