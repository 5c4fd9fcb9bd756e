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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import grpc
from support import (
    HERE,
    Results,
    in_child,
    interleaved,
    median,
    ratio,
    serving,
    spread,
    table,
    write_job,
)

from penstock.server.access.callers import hash_of
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
        table(
            f"Ready batches over TLS: {title}",
            ("way", "GB/s", "range", "of plain", "trainer s/GB", "others"),
            [_row(way, results) for way in NAMES if way in results],
        )
    rounds = tokens()
    table(
        "A call of Describe (goal: the check of a token at most 100 us)",
        ("node", "us a call", "range"),
        [
            (name, f"{median(found, 'us'):.0f}", spread(found, "us", ".0f"))
            for name, found in rounds.items()
        ],
    )


def _row(way: str, results: Results) -> tuple[str, ...]:
    rounds = results[way]
    return (
        NAMES[way],
        f"{median(rounds, 'gb_per_s'):.2f}",
        spread(rounds, "gb_per_s", ".2f"),
        ratio(results, way, "plain", "gb_per_s"),
        f"{median(rounds, 'trainer_s_per_gb'):.2f}",
        f"{median(rounds, 'server_s_per_gb'):.2f}",
    )


def measure(size: int, count: int, warm: int) -> Results:
    """Return each way's rounds."""
    numbers = ("0", str(count), str(warm), "0")
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
            address, pid = stack.enter_context(_node(size, tls, MESSAGES.get(way)))
            read = partial(in_child, "transfer_client", "penstock", address, str(pid), *numbers)
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


@contextlib.contextmanager
def _node(
    size: int, tls: Mapping[str, str] | None, message_bytes: int | None = None, **more: str
) -> Iterator[tuple[str, int]]:
    """Serve the batch; yield address and process id."""
    job = {
        "lanes": 8,
        "source": {"type": "items", "items": [{"x": 1}] * 8},
        "batcher": {"type": "simple", "batch_size": 1},
        "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": size},
    }
    program = ["-m", "penstock.server.cli"]
    with tempfile.TemporaryDirectory() as folder:
        if message_bytes is not None:
            script = Path(folder) / "node.py"
            script.write_text(
                "from penstock.server.rpc import streams\n"
                f"streams.CHUNK_BYTES = {message_bytes}\n"
                "from penstock.server.cli import main\n"
                "if __name__ == '__main__':\n    main()\n"
            )
            program = [str(script)]
        settings = {**more, **({} if tls is None else {"tls": dict(tls)})}
        job_file = write_job(Path(folder), {"data": job}, **settings)
        with serving(job_file, "--workers", "1", program=program) as (address, process):
            yield address, process.pid


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
