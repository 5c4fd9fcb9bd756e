"""Which of the nodes that answer may be read together: rules without a network and a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from penstock.client.calls.control import why_each
from penstock.client.nodes.known_node import KnownNode, NodeLeftOut
from penstock.wire.errors import NoUsableNode, PenstockError, TlsFailed, Unreachable
from penstock.wire.transports import Transport
from penstock.wire.v1 import feed_pb2

NAMED = 6
"""A list of more addresses is not repeated before the reasons, which name each of them."""


class ReadFrom(NamedTuple):
    """What all nodes of a reader have in common.

    Attributes:
        log_id: The log.
        store: The UUID of the store; empty = nothing is stored for this reader, and any will do.
    """

    log_id: bytes
    store: str


class NodeAnswer(NamedTuple):
    """What a node has answered, at an address.

    Attributes:
        transport: The way to it.
        found: Its reply, or why there is none.
    """

    transport: Transport
    found: feed_pb2.DescribeReply | PenstockError


def common_to_most(answers: Mapping[str, NodeAnswer], *, grouped: bool) -> ReadFrom | None:
    """Return what most nodes have in common; of as many the lower; None = no node has answered.

    Args:
        answers: What was answered, by address.
        grouped: The reader has a group, which lies in a store.
    """
    found = Counter(
        ReadFrom(answer.found.log_id, answer.found.store if grouped else "")
        for answer in answers.values()
        if isinstance(answer.found, feed_pb2.DescribeReply)
    )
    return min(found, key=lambda common: (-found[common], common), default=None)


def settle(
    answers: Mapping[str, NodeAnswer], common: ReadFrom | None, used: Collection[str] = ()
) -> tuple[tuple[KnownNode, ...], tuple[NodeLeftOut, ...]]:
    """Return the nodes that may be read, in the order of their ids, and those that may not.

    Args:
        answers: What was answered, by address.
        common: What all must have; None = nothing was answered.
        used: Addresses that are read already: of two of one node such a one stays.
    """
    left_out: dict[str, str] = {}
    found: dict[str, tuple[str, feed_pb2.DescribeReply]] = {}
    for target in sorted(answers, key=lambda target: (target not in used, target)):
        reply = answers[target].found
        if isinstance(reply, PenstockError):
            left_out[target] = reply.message
            continue
        assert common is not None
        if reply.log_id != common.log_id:
            left_out[target] = (
                f"{target} serves job {reply.job!r} as log {reply.log_id.hex()[:12]}, and the "
                f"other nodes as {common.log_id.hex()[:12]}: give all nodes one job file and the "
                "same data"
            )
            continue
        if common.store and reply.store != common.store:
            left_out[target] = (
                f"{target} has the store {reply.store}, and the other nodes have {common.store}: "
                "give all nodes one store"
            )
            continue
        other = found.get(reply.node_id)
        if other is None:
            found[reply.node_id] = target, reply
            continue
        (low_at, low), (high_at, high) = sorted(
            (other, (target, reply)), key=lambda each: each[1].incarnation
        )
        if low.node == high.node:
            continue  # two addresses of one node
        if low.incarnation == high.incarnation:
            low_at, high_at, high = target, *other
            why = "give each node an id of its own (--node-id)"
        else:
            why = "it began earlier, so it is not read; give each node an id of its own (--node-id)"
        left_out[low_at] = f"{low_at} has the id of {high_at}, {high.node_id}: {why}"
        found[high.node_id] = high_at, high
    usable = tuple(
        KnownNode(
            node_id,
            int(reply.incarnation),
            target,
            answers[target].transport,
            max(1, reply.workers),
            reply.draining,
        )
        for node_id, (target, reply) in sorted(found.items())
    )
    return usable, tuple(NodeLeftOut(target, left_out[target]) for target in sorted(left_out))


def none_is_left(text: str, answers: Mapping[str, NodeAnswer]) -> PenstockError:
    """Return the error for a target none of whose nodes can be read: it names each, with why."""
    errors = {
        target: answer.found
        for target, answer in answers.items()
        if isinstance(answer.found, PenstockError)
    }
    if not errors:
        return Unreachable(f"no node of {text} has answered yet", target=text)
    if len(errors) == 1:
        [error] = errors.values()
        return error
    few = text if len(errors) <= NAMED or "," not in text else "the list"
    sentence = f"none of the {len(errors)} nodes of {few} can be read: {why_each(errors)}"
    kinds = {type(error) for error in errors.values()}
    if len(kinds) == 1:
        return next(iter(errors.values())).reworded(sentence)
    if all(error.status == "UNAVAILABLE" for error in errors.values()):
        return Unreachable(sentence, target=text)
    return NoUsableNode(
        sentence, nodes={target: errors[target].message for target in sorted(errors)}
    )


def is_hopeless(answers: Mapping[str, NodeAnswer]) -> bool:
    """Tell whether every node has answered, and none of them with what passes."""

    def is_final(found: feed_pb2.DescribeReply | PenstockError) -> bool:
        if isinstance(found, TlsFailed):
            return bool(found.is_first)  # it has never worked: nobody is about to renew something
        return isinstance(found, PenstockError) and found.status != "UNAVAILABLE"

    return bool(answers) and all(is_final(answer.found) for answer in answers.values())


def sentences(left_out: Sequence[NodeLeftOut]) -> dict[str, str]:
    """Return why nodes are left out, by address."""
    return {node.target: node.why for node in left_out}
