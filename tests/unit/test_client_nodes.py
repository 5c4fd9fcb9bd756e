"""Targets of several nodes: where addresses come from, which nodes are read, which are left out."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Loader
from penstock.client import cli as reader_cli
from penstock.client.calls.control import Control
from penstock.client.calls.node_address import Address, Tls, Token, address_of
from penstock.client.commands.nodes import render
from penstock.client.nodes.addresses import AddressFile, Origin, ResolvedName, origins
from penstock.client.nodes.target_nodes import TargetNodes, open_nodes
from penstock.client.nodes.usable import (
    NodeAnswer,
    ReadFrom,
    common_to_most,
    none_is_left,
    settle,
)
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    InvalidRequest,
    NoUsableNode,
    PenstockError,
    Unreachable,
)
from penstock.wire.v1 import feed_pb2
from unit.relay import Relay
from unit.served import ServedNode, wait_until
from unit.test_client_transport import offer

READ: dict[str, Any] = {"rank": 0, "world_size": 1, "as_numpy": True, "deadline_s": 60.0}


@pytest.fixture(scope="module")
def served() -> Iterator[list[ServedNode]]:
    """Three nodes of one store."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(node) for node in of_one_store(3, batches=24, lanes=6)]


def of_one_store(count: int, **plan: Any) -> list[ServedNode]:
    """Return nodes that have not begun."""
    nodes = [ServedNode(**plan) for _ in range(count)]
    for node in nodes:
        node.memory = nodes[0].memory
    return nodes


def closed_port() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


@contextlib.contextmanager
def known(target: Any, *, grouped: bool = False, **options: Any) -> Iterator[TargetNodes]:
    """Give the nodes of a target, and close them."""
    address = target if isinstance(target, Address) else address_of(target, environ={})
    nodes = open_nodes(address, "code", grouped=grouped, **options)
    assert isinstance(nodes, TargetNodes)
    try:
        yield nodes
    finally:
        nodes.close()


def describe(nodes: TargetNodes, deadline_s: float = 60.0) -> feed_pb2.DescribeReply:
    """Return what the job is."""
    return nodes.describe(Control(nodes.ways, "code", "several", deadline_s))


def targets(nodes: TargetNodes) -> list[str]:
    """Return where nodes that can be read are."""
    return sorted(node.target for node in nodes.usable)


def resolver(*hosts: str) -> Any:
    """Return what resolves any name to these."""

    def resolve(name: str, port: int, **_: Any) -> list[Any]:
        if not hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", (host, port)) for host in hosts]

    return resolve


# --- where addresses come from ---


@pytest.mark.parametrize("kind", ["text", "list", "file"])
def test_several_nodes_are_read_as_one_is(
    served: list[ServedNode], kind: str, tmp_path: Path
) -> None:
    """Every position once and in order, with the bytes of one node; a group commits at any."""
    addresses = [node.address for node in served]
    target: Any = {"text": ",".join(addresses), "list": addresses}.get(kind)
    if kind == "file":
        (tmp_path / "nodes").write_text("# ours\n" + "\n".join(addresses) + " # the last\n\n")
        target = f"file:{tmp_path / 'nodes'}"
    with Loader(addresses[0], "code", **READ) as loader:
        alone = [(batch.position, batch.info.body.tobytes()) for batch in loader if batch.info]
    with Loader(target, "code", group=f"run-{kind}", **READ) as loader:
        found = [(batch.position, batch.info.body.tobytes()) for batch in loader if batch.info]
        routes = loader.stats()["reconnects"]
        assert loader.commit() == 24

    assert found == alone
    assert [position for position, _ in found] == list(range(24))
    assert routes == 0


def test_a_name_is_resolved_to_all_its_addresses() -> None:
    """By the system, as `localhost` is; each once, and those of IPv6 in brackets."""
    assert "127.0.0.1:7" in ResolvedName("dns:///localhost:7").look()
    name = ResolvedName("dns:///any:7", resolver("10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1"))
    assert name.look() == ["10.0.0.1:7", "10.0.0.2:7", "[fd00::1]:7"]
    assert (
        len(ResolvedName("dns:any:7", resolver(*(f"10.0.0.{n}" for n in range(40)))).look()) == 40
    )


def test_a_name_gives_its_nodes_and_is_what_certificates_are_for(
    served: list[ServedNode],
) -> None:
    port = served[0].address.rpartition(":")[2]
    with known(f"dns:///nodes:{port}", resolve=resolver("127.0.0.1")) as nodes:
        assert describe(nodes).lanes == 6
        assert targets(nodes) == [served[0].address]

    tls = Tls(ca="ca.pem")
    for given, name in ((tls, "nodes"), (Tls(ca="ca.pem", name="other"), "other")):
        found = origins(address_of("dns:///nodes:1", given, environ={}), resolve=resolver("::1"))
        assert isinstance(found, list)
        assert found[0].credentials.tls == Tls(ca="ca.pem", name=name)


def test_credentials_hold_for_every_address() -> None:
    """And a token goes nowhere without TLS but to this machine, whatever part of a list it is."""
    with pytest.raises(InvalidRequest, match="would travel readable"):
        address_of("127.0.0.1:1,b:2", token="secret", environ={})
    found = origins(address_of(["a:1", "b:2"], Tls(ca="ca.pem"), "secret", environ={}))
    assert isinstance(found, list)
    assert {origin.credentials.token for origin in found} == {Token("secret")}
    assert {origin.credentials.tls for origin in found} == {Tls(ca="ca.pem")}


def test_a_file_is_read_again_when_it_has_changed(served: list[ServedNode], tmp_path: Path) -> None:
    """What is written is read within a second; a line that is none leaves nodes as they were."""
    file = tmp_path / "nodes"
    file.write_text(served[0].address)
    with known(f"file:{file}") as nodes:
        describe(nodes)
        assert targets(nodes) == [served[0].address]

        replace(file, f"{served[1].address}\n{served[2].address}\n")
        wait_until(lambda: len(targets(nodes)) == 2, "the new nodes")
        assert targets(nodes) == sorted([served[1].address, served[2].address])

        replace(file, "nonsense\n")
        replace(file, f"{served[0].address}\n")
        wait_until(lambda: targets(nodes) == [served[0].address], "the first node")


def replace(file: Path, text: str) -> None:
    """Write a file anew, as careful programs do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "No such file"),
        ("", "it has no address"),
        ("# none\n\n", "it has no address"),
        ("a:1\n\nb\n", "line 3: 'b' is not the address of a loader node \\(it has no port\\)"),
        ("x" * (1 << 20) + "\n", "larger than 1 MiB"),
    ],
)
def test_a_file_that_names_no_nodes_is_refused(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "nodes"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidRequest, match=sentence):
        AddressFile(str(file)).look()
    with (
        Loader(f"file:{file}", "code", **READ) as loader,
        pytest.raises(InvalidRequest, match=sentence),
    ):
        loader.state_dict()


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("dns:///name", "write host:port"),
        ("dns://server/name:1", "write dns:///name:port"),
        ("a:1,b", "it has no port"),
        ("a:1,local:job.yaml", "'local:job.yaml' is a node of this process's own"),
        (["a:1", "http://b:1"], "no scheme and no path"),
        (["a:1", "unix:"], "write host:port"),
    ],
)
def test_a_part_of_a_target_that_is_none_is_refused(target: Any, sentence: str) -> None:
    with (
        Loader(target, "code", **READ) as loader,
        pytest.raises(InvalidRequest, match=sentence),
    ):
        loader.state_dict()


class EnginePlaces:
    """Where an engine has placed nodes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.every_s, self.addresses, self.is_closed = 0.05, list(addresses), False

    def look(self) -> Sequence[str]:
        """Return where they are."""
        if not self.addresses:
            raise Unreachable("the engine is away")
        return tuple(self.addresses)

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def test_an_engine_tells_where_its_nodes_are(
    served: list[ServedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an entry point; while it is away its nodes stay, and it is closed with the Loader."""
    placed = EnginePlaces([node.address for node in served[:2]])
    asked: list[Any] = []
    offer(monkeypatch, {"ray": lambda rest, **wanted: asked.append((rest, wanted)) or placed})

    with Loader("ray:mine", "code", **READ) as loader:
        assert [batch.position for batch in loader] == list(range(24))
        placed.addresses = []
        assert [batch.position for batch in loader] == list(range(24))
    assert placed.is_closed
    assert asked == [("mine", {"job": "code", "grouped": False})]

    with known("ray:mine") as nodes:
        placed.addresses = [served[2].address]
        describe(nodes)
        placed.addresses = [served[0].address, served[2].address]
        wait_until(lambda: len(nodes.usable) == 2, "the node that has come")


# --- which nodes are read ---


def test_a_node_that_is_named_twice_counts_once(served: list[ServedNode]) -> None:
    address = served[0].address
    alias = address.replace("127.0.0.1", "localhost")
    with known([address, address, alias, served[1].address]) as nodes:
        describe(nodes)
        wait_until(lambda: len(nodes.usable) == 2, "both nodes")
        assert not nodes.left_out


def test_a_dead_address_is_left_out_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """One of three: the others are read; it is said once, and when it is there it is read, too."""
    first, last = of_one_store(2, batches=6)
    last.address = closed_port()
    caplog.set_level(logging.INFO, "penstock")
    with first, known([first.address, last.address]) as nodes:
        describe(nodes)
        assert targets(nodes) == [first.address]
        wait_until(lambda: nodes.left_out, "the dead address")
        [left_out] = nodes.left_out
        assert left_out.target == last.address
        assert "Connection refused" in left_out.why
        with last:
            wait_until(lambda: len(nodes.usable) == 2, "the node that has come")
            assert not nodes.left_out
    said = [record.message for record in caplog.records if "is left out" in record.message]
    assert len(said) == 1
    assert f"{last.address} is left out: no answer from {last.address}" in said[0]


@pytest.mark.parametrize("count", [2, 39])
def test_a_name_that_leads_to_dead_addresses_too(served: list[ServedNode], count: int) -> None:
    """One of three, or one of 40: what answers is read, and the rest is named."""
    host, _, port = served[0].address.rpartition(":")
    dead = [f"127.0.1.{number}" for number in range(1, count + 1)]
    with known(f"dns:///nodes:{port}", resolve=resolver(host, *dead)) as nodes:
        describe(nodes)
        assert targets(nodes) == [served[0].address]
        wait_until(lambda: len(nodes.left_out) == count, "every dead address")


@pytest.mark.parametrize("count", [3, 8])
def test_one_lane_and_several_nodes(count: int) -> None:
    """One of them makes it, and the others nothing."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node) for node in of_one_store(count, batches=9, lanes=1)]
        with Loader([node.address for node in nodes], "code", **READ) as loader:
            assert [batch.position for batch in loader] == list(range(9))
        made = [node.service.node.logs[node.log_id].produced for node in nodes]

    assert sorted(made) == [0] * (count - 1) + [9]


def test_a_node_of_another_protocol_is_left_out_by_name() -> None:
    """With both versions, and what to do; the others are read."""

    def newer(data: bytes) -> bytes:
        reply = feed_pb2.DescribeReply.FromString(data)
        reply.protocol = PROTOCOL + 1
        return reply.SerializeToString()

    with contextlib.ExitStack() as stack:
        old, new = (stack.enter_context(node) for node in of_one_store(2, batches=24, lanes=6))
        relay = stack.enter_context(Relay(new.address))
        relay.rewrite["Feed/Describe"] = newer
        with known([old.address, relay.address]) as nodes:
            describe(nodes)
            wait_until(lambda: nodes.left_out, "the newer node")
            assert targets(nodes) == [old.address]
            [left_out] = nodes.left_out
            assert left_out.target == relay.address
            assert f"version {PROTOCOL + 1}" in left_out.why
            assert f"version {PROTOCOL}" in left_out.why
            assert "install the same penstock on both sides" in left_out.why
        with Loader([old.address, relay.address], "code", **READ) as loader:
            assert [batch.position for batch in loader] == list(range(24))


def test_nodes_of_another_store_or_log_are_left_out_by_name() -> None:
    """What most nodes have is read; without a group nothing lies in a store, and any will do."""
    with contextlib.ExitStack() as stack:
        one, other = (stack.enter_context(node) for node in of_one_store(2, batches=6))
        stranger = stack.enter_context(ServedNode(batches=6))
        another = stack.enter_context(ServedNode(batches=6, seed=3))
        everyone = [stranger.address, another.address, one.address, other.address]
        with known(everyone, grouped=True) as nodes:
            describe(nodes)
            wait_until(lambda: len(nodes.left_out) == 2, "both strangers")
            assert targets(nodes) == sorted([one.address, other.address])
            why = {left_out.target: left_out.why for left_out in nodes.left_out}
            assert "give all nodes one store" in why[stranger.address]
            assert "give all nodes one job file" in why[another.address]
        with known(everyone) as nodes:
            describe(nodes)
            wait_until(lambda: len(nodes.usable) == 3, "nodes of any store")


def test_a_start_without_a_node_is_refused_and_names_each() -> None:
    """One of them serves no such job, and one is away: the sentence has both."""
    dead = closed_port()
    with ServedNode(batches=6) as node:
        with (
            Loader([node.address, dead], "other", **{**READ, "deadline_s": 1.0}) as loader,
            pytest.raises(NoUsableNode) as caught,
        ):
            loader.state_dict()
        assert set(caught.value.nodes or {}) == {node.address, dead}
        for part in (dead, "Connection refused", "there is no job 'other'", node.address):
            assert part in caught.value.message
        with (
            Loader([node.address, node.address], "other", **READ) as loader,
            pytest.raises(PenstockError) as unknown,
        ):
            loader.state_dict()
        assert unknown.value.code == "unknown_job"


def test_dead_addresses_are_all_named() -> None:
    """A busy machine may need more than one short deadline to have asked 40 of them."""
    dead = [closed_port() for _ in range(40)]
    with Loader(dead, "code", **{**READ, "deadline_s": 2.0}) as loader:

        def are_named() -> bool:
            with pytest.raises(Unreachable) as caught:
                loader.state_dict()
            return all(address in caught.value.message for address in dead)

        wait_until(are_named, "every address is named", 60.0)


def test_of_a_node_that_breaks_the_others_that_are_read_are_not_asked(
    served: list[ServedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a lost node would have every rank ask every node at once; a dead address is asked."""
    monkeypatch.setattr("penstock.client.nodes.target_nodes.SPARED_S", 0.0)
    dead = closed_port()
    with known([*(node.address for node in served), dead]) as nodes:
        describe(nodes)
        nodes.wait_asked(60.0)
        broken, *others = nodes.usable
        before = {target: asked.asked_at for target, asked in nodes._nodes.items()}
        due = {other.target: nodes._nodes[other.target].due_at for other in others}

        nodes.look_again(broken.node_id)

        for target in (broken.target, dead):
            wait_until(
                lambda target=target: nodes._nodes[target].asked_at > before[target],
                f"{target} is asked again",
                60.0,
            )
        assert due == {other.target: nodes._nodes[other.target].due_at for other in others}


def test_a_name_without_an_address_is_said_with_the_reason() -> None:
    with (
        known("dns:///nowhere:1", resolve=resolver()) as nodes,
        pytest.raises(Unreachable, match=r"has no address .*not known"),
    ):
        describe(nodes, 0.5)


def test_addresses_that_a_name_does_not_tell_for_once_are_kept(served: list[ServedNode]) -> None:
    """Name servers tell some of many addresses; what is not told three times is gone."""
    placed = EnginePlaces([served[0].address, served[1].address])
    origin = Origin("dns:///n:1", placed, address_of("dns:///n:1", environ={}), holds=3)
    nodes = TargetNodes([origin], "dns:///n:1", "code", grouped=False)
    try:
        describe(nodes)
        wait_until(lambda: len(nodes.usable) == 2, "both")
        seen = threading.Event()
        looks: list[int] = []

        def look() -> Sequence[str]:
            looks.append(len(nodes.usable))
            if len(looks) > 8:
                seen.set()
            return [served[1].address]

        placed.look = look  # type: ignore[method-assign]
        assert seen.wait(60.0)
        wait_until(lambda: targets(nodes) == [served[1].address], "only one is told")
        assert looks[:3] == [2, 2, 2]
    finally:
        nodes.close()


def test_reading_goes_on_where_a_node_has_gone(tmp_path: Path) -> None:
    """The only node is back at another address, as a Pod is; nothing is lost or repeated."""
    file = tmp_path / "nodes"
    with ServedNode(batches=3000, lanes=6) as node:
        file.write_text(node.address)
        with Loader(f"file:{file}", "code", group="run", **READ) as loader:
            batches = iter(loader)
            found = [next(batches).position for _ in range(100)]
            node.stop()
            node.address = "127.0.0.1:0"
            node.start()
            replace(file, node.address)
            found += [batch.position for batch in batches]
            assert loader.commit() == 3000
            assert loader.stats()["reconnects"] >= 1

    assert found == list(range(3000))


# --- short calls ---


def test_a_call_goes_to_the_next_node_where_one_is_away() -> None:
    """A group is begun at one node and committed at another: they have one store."""
    first, last = of_one_store(2, batches=6)
    with first, last, Loader([first.address, last.address], "code", group="run", **READ) as loader:
        assert next(iter(loader)).position == 0
        first.stop()
        assert loader.commit() == 1
        first.start()
        last.stop()
        assert loader.commit() == 1
        last.start()


def test_the_error_of_a_call_names_every_node() -> None:
    first, last = of_one_store(2, batches=6)
    options = {**READ, "deadline_s": 1.5}
    with first, last, Loader([first.address, last.address], "code", group="r", **options) as loader:
        loader.state_dict()
        addresses = first.address, last.address
        first.stop()
        last.stop()
        with pytest.raises(Unreachable) as caught:
            loader.commit()
        assert all(address in caught.value.message for address in addresses)
        first.start()
        last.start()


# --- rules ---


def told(node_id: str, node: str = "", **more: Any) -> feed_pb2.DescribeReply:
    """Return a reply of a node."""
    given = {"log_id": b"log", "store": "s", "incarnation": 1, "workers": 2} | more
    return feed_pb2.DescribeReply(protocol=PROTOCOL, node_id=node_id, node=node or node_id, **given)


def answers(**replies: feed_pb2.DescribeReply | PenstockError) -> dict[str, NodeAnswer]:
    """Return what addresses have answered."""
    return {target: NodeAnswer(None, reply) for target, reply in replies.items()}  # type: ignore[arg-type]


def test_of_two_nodes_of_one_id_the_later_incarnation_is_read() -> None:
    """Whichever is read already, and in whatever order they are told."""
    found = answers(
        a=told("n", "first", incarnation=1),
        b=told("n", "second", incarnation=2, draining=True),
        c=told("m"),
    )
    for used in ((), ("a",), ("b",)):
        usable, left_out = settle(found, ReadFrom(b"log", "s"), used)
        assert [(node.node_id, node.target) for node in usable] == [("m", "c"), ("n", "b")]
        assert usable[1].draining
        assert [(node.target, node.why) for node in left_out] == [
            (
                "a",
                "a has the id of b, n: it began earlier, so it is not read; give each node an id "
                "of its own (--node-id)",
            )
        ]


def test_two_nodes_that_were_given_one_id_are_told_apart() -> None:
    """Nobody knows which is the later one: the one that is read stays, and the other is named."""
    found = answers(a=told("n", "first"), b=told("n", "second"))
    for used, stays, goes in (((), "a", "b"), (("b",), "b", "a")):
        usable, [left_out] = settle(found, ReadFrom(b"log", "s"), used)
        assert [node.target for node in usable] == [stays]
        assert left_out.target == goes
        assert "give each node an id of its own" in left_out.why


def test_nodes_that_fail_alike_are_named_with_one_reason() -> None:
    """Each once; the one that fails in another way has its own."""
    away = {f"h:{port}": Unreachable(f"no answer from h:{port} (why)") for port in range(100, 140)}
    found = answers(**away, other=Unreachable("it shuts down"))

    said = none_is_left(",".join(found), found).message

    assert said == (
        "none of the 41 nodes of the list can be read: "
        f"no answer from {', '.join(away)} (why); other: it shuts down"
    )


def test_what_most_nodes_have_is_read_and_of_as_many_the_lower() -> None:
    """So every reader finds the same, in whatever order nodes answer."""
    one, two = told("x", log_id=b"1"), told("y", log_id=b"2")
    assert common_to_most(answers(a=two, b=one), grouped=False) == ReadFrom(b"1", "")
    assert common_to_most(answers(a=two, b=one, c=two), grouped=True) == ReadFrom(b"2", "s")
    assert common_to_most(answers(a=Unreachable("away")), grouped=True) is None
    assert math.isinf(origins_of("a:1,b:1")[0].addresses.every_s)


def origins_of(target: str) -> list[Origin]:
    """Return the origins of a target."""
    found = origins(address_of(target, environ={}))
    assert isinstance(found, list)
    return found


# --- the end ---


def threads() -> list[str]:
    """Return the threads that look for nodes."""
    return [each.name for each in threading.enumerate() if each.name == "penstock-nodes"]


def test_the_thread_ends_with_its_loader(served: list[ServedNode]) -> None:
    """Closed or collected; a target of one address never has one."""
    addresses = [node.address for node in served]
    with Loader(addresses[0], "code", **READ) as loader:
        next(iter(loader))
        assert not threads()
    loader = Loader(addresses, "code", **READ)
    next(iter(loader))
    assert len(threads()) == 1
    loader.close()
    loader.close()
    assert not threads()

    loader = Loader(addresses, "code", **READ)
    next(iter(loader))
    del loader
    gc.collect()
    wait_until(lambda: not threads(), "the end of the thread")


def test_a_loader_that_was_never_used_has_nothing_to_end() -> None:
    with Loader(["a:1", "b:2"], "code", **READ):
        pass
    assert not threads()


def test_commands_about_groups_take_several_nodes(
    served: list[ServedNode], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any node of the store answers, also where the first one of the target is away."""
    with Loader(served[0].address, "code", group="named", **READ) as loader:
        next(iter(loader))
        loader.commit()
    target = ",".join([closed_port(), served[1].address, served[2].address])

    assert reader_cli.main(["cursors", target, "code", "list", "--json"]) == 0

    assert '"named"' in capsys.readouterr().out


def test_a_node_with_another_store_is_named_below_the_table() -> None:
    """Readers without a group read it, and those with one leave it out: that is said."""
    row = {
        **{"units": 1, "readers": 0, "tokens_per_s": 0, "bytes_per_s": 0, "busy": 0, "workers": 1},
        **{"uptime_s": 1, "version": "0", "environment": None, "draining": False},
    }
    rows = [
        row | {"node": name, "address": f"{name}:1", "store": store * 12}
        for name, store in (("a", "one"), ("b", "two"), ("c", "one"))
    ]

    shown = render(rows, [])

    assert shown.splitlines()[4:] == [
        "note: b:1 has the store twotwotw, and the other nodes have oneoneon: readers with a group "
        "leave it out; give all nodes one store"
    ]
    assert "note" not in render(rows[:1], [])
