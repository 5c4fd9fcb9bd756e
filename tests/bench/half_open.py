"""Ten thousand connections that never finish a handshake, beside a reader: what they cost a node.

They are opened at once, say a byte every now and then, and stay until the node has closed them all.
`files` is how many files the server process had open at most; `MB` its own memory before, at most,
and after a reader has left, when malloc gives back what it keeps.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

from support import HERE, ROUNDS, Column, compare, interleaved, middle, serving, spread, write_job

from penstock.client import Loader, Tls

sys.path.append(str(HERE.parent))

from certificates import Authority
from crowd import HELLO, PREFACE, Crowd, Took, room_for, took

COUNT = 10_000
BEFORE_S, GIVEN_BACK_S = 3.0, 8.0
OPENINGS = {"nothing": b"", "half a preface": PREFACE, "half a hello": HELLO}


def run() -> None:
    """Print the table."""
    ways = {
        f"{port}, {opening}": partial(_round, port == "TLS", OPENINGS[opening])
        for port in ("plain", "TLS")
        for opening in OPENINGS
    }
    with room_for(COUNT):
        results = interleaved(ways)
    titles = ("before", "with", "files", "MB", "most", "after")
    keys = ("before", "during", "files", "mb_before", "mb_most", "mb_after")
    compare(
        f"{COUNT:,} connections that say this and no more: a reader's batches/s before and with "
        f"them, files and MB of the server process, and after how many seconds all were closed; "
        f"median of {ROUNDS} rounds",
        "port, say",
        results,
        *(middle(title, key, ",.0f") for title, key in zip(titles, keys, strict=True)),
        Column(("closed s",), lambda found, way: [spread(found[way], "closed_s", ".1f")]),
    )


def _round(is_tls: bool, opening: bytes) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        authority = Authority(folder)
        more = {"tls": authority.sign("node")._asdict()} if is_tls else {}
        source = {"type": "items", "items": [{"x": [n, n]} for n in range(64)]}
        job_file = write_job(folder, {"job": {"source": source, "batch_size": 1}}, **more)
        with serving(job_file) as (address, process):
            taken, stop = [0], threading.Event()
            tls = Tls(ca=authority.path) if is_tls else None

            def read() -> None:
                with Loader(address, "job", tls=tls, rank=0, world_size=1) as loader:
                    for _ in loader:
                        taken[0] += 1
                        if stop.wait(0.001):  # a step
                            return

            reader = threading.Thread(target=read)
            reader.start()
            while not taken[0]:
                time.sleep(0.01)
            began, seen = time.monotonic(), taken[0]
            time.sleep(BEFORE_S)
            found = {"before": (taken[0] - seen) / (time.monotonic() - began)}
            most = before = took(process.pid)
            began, seen = time.monotonic(), taken[0]
            with Crowd(address, COUNT, (opening,)) as crowd:
                while crowd.open_ones():
                    crowd.say(1)
                    most = Took(*map(max, most, took(process.pid)))
                    time.sleep(0.5)
            found["closed_s"] = time.monotonic() - began
            found["during"] = (taken[0] - seen) / found["closed_s"]
            stop.set()
            reader.join()
            time.sleep(GIVEN_BACK_S)
            found |= {"files": most.files, "mb_before": before.mb, "mb_most": most.mb}
            return {**found, "mb_after": took(process.pid).mb}


__all__ = ["run"]
