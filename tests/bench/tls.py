"""What TLS and tokens cost: ready batches from a node to arrays, on one machine.

The node and its reader share the processors, so both ends of the encryption are in each figure. The
cipher is the one that gRPC's two ends agree on in TLS 1.3; nothing chooses it. The rows with
messages of other sizes are why they stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from support import (
    HERE,
    Results,
    against,
    compare,
    constant,
    in_child,
    interleaved,
    middle,
    node,
    ranged,
)

from penstock.server.access import hash_of
from penstock.wire import PROTOCOL
from penstock.wire.v1 import feed_pb2

sys.path.append(str(HERE.parent))

from certificates import Authority

SIZES = {
    "8 MB (goal: mTLS at least 0.65x of plain)": (8_000_000, 200, 60),
    "200 KB (goal: mTLS at least 0.60x of plain)": (200_000, 4_000, 800),
}
"""Title -> bytes, batches, batches to warm up with."""

NAMES = {
    "plain": "TCP, plain",
    "tls": "TLS, node's certificate",
    "mtls": "mTLS",
    "small": "mTLS, messages of 256 KiB",
    "large": "mTLS, messages of 4 MiB",
}
MESSAGES = {"small": 256 << 10, "large": 4 << 20}

CALLS = 3_000


def run() -> None:
    """Print the tables."""
    for title, (size, count, warm) in SIZES.items():
        results = measure(size, count, warm)
        compare(
            f"Ready batches over TLS: {title}",
            "way",
            results,
            ranged("GB/s", "gb_per_s", ".2f"),
            against("of plain", "plain", "gb_per_s"),
            middle("trainer s/GB", "trainer_s_per_gb", ".2f"),
            middle("others", "server_s_per_gb", ".2f"),
            names={way: name for way, name in NAMES.items() if way in results},
        )
    compare(
        "A call of Describe (goal: the check of a token at most 100 us)",
        "node",
        tokens(),
        ranged("us a call", "us", ".0f"),
    )


def measure(size: int, count: int, warm: int) -> Results:
    """Return each way's rounds."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ca = Authority(folder)
        own, client = ca.sign("node")._asdict(), ca.sign("trainer", ["trainer"])
        mutual = {**own, "client_ca": ca.path}
        shown = {"PENSTOCK_TLS_CA": ca.path}
        both = {**shown, "PENSTOCK_TLS_CERT": client.cert, "PENSTOCK_TLS_KEY": client.key}
        nodes = {"plain": (None, {}), "tls": (own, shown), "mtls": (mutual, both)}
        if size > 1 << 20:
            nodes |= dict.fromkeys(MESSAGES, (mutual, both))
        ways: dict[str, Callable[[], Mapping[str, float]]] = {}
        for way, (tls, environ) in nodes.items():
            served = stack.enter_context(_node(size, tls, MESSAGES.get(way)))
            read = partial(in_child, "transfer_client", "penstock", *served, 0, count, warm, 0)
            ways[way] = partial(_with, environ, read)
        return interleaved(ways)


def _with(
    environ: Mapping[str, str], call: Callable[[], Mapping[str, float]]
) -> Mapping[str, float]:
    before = dict(os.environ)
    os.environ.update(environ)
    try:
        return call()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _node(
    size: int, tls: Mapping[str, str] | None, message_bytes: int | None = None, **more: str
) -> contextlib.AbstractContextManager[tuple[str, int]]:
    """Serve the batch; yield address and process id."""
    given: dict[str, Any] = {**more, **({} if tls is None else {"tls": dict(tls)})}
    if message_bytes is not None:
        given["program"] = (
            "from penstock.server.rpc import streams\n"
            f"streams.CHUNK_BYTES = {message_bytes}\n"
            "from penstock.server.cli import main\n"
            "if __name__ == '__main__':\n    main()\n"
        )
    return node({"data": constant(size)}, workers=1, **given)


def tokens() -> Results:
    """Return what a short call takes at a node without tokens and at one with them."""
    token = "pst_of-the-bench"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = folder / "tokens.yaml"
        path.write_text(f"tokens: [{{name: a, sha256: {hash_of(token)}, scopes: [read]}}]\n")
        open_to_all, _ = stack.enter_context(_node(8, None))
        asking, _ = stack.enter_context(_node(8, None, tokens=str(path)))
        ways: dict[str, Callable[[], Mapping[str, float]]] = {
            "asks nobody": partial(_call, open_to_all, token),
            "asks for a token": partial(_call, asking, token),
        }
        return interleaved(ways)


def _call(address: str, token: str) -> Mapping[str, float]:
    request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="data").SerializeToString()
    metadata = (("authorization", f"Bearer {token}"),)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/penstock.wire.v1.Feed/Describe")
        for _ in range(200):
            call(request, metadata=metadata)
        began = time.perf_counter()
        for _ in range(CALLS):
            call(request, metadata=metadata)
        return {"us": (time.perf_counter() - began) / CALLS * 1e6}


if __name__ == "__main__":
    run()
