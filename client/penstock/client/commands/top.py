"""`penstock top`: what a node does, live."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    bytes_text,
    connected,
    counted,
    positive_seconds,
    print_json,
    say,
    table,
)
from penstock.wire.errors import Unreachable
from penstock.wire.terminal import plain

DESCRIPTION = """\
Show the jobs, readers and workers of a loader node, refreshed every second; end it with Ctrl-C.

  ready     batches that are made and not yet taken by everybody who wants them
  produced  batches made since the node started; again: those of them made more than once
  next      the position that the reader is sent next
  ahead     how many positions beyond it the reader accepts
  batches   what it was sent; the rates are those of the time since the last refresh
  waited    how long it stood with room and nothing was ready for it, all waits together"""

CLEAR = "\x1b[H\x1b[2J"


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "top",
        help="watch a loader node live",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    add_timeout(parser)
    parser.add_argument("--once", action="store_true", help="print once and end")
    parser.add_argument(
        "--json", action="store_true", help="print the node's status as a JSON object per refresh"
    )
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between refreshes (default: 1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table again and again."""
    before: Mapping[str, Any] | None = None
    before_at = 0.0
    live = sys.stdout.isatty() and not args.once and not args.json
    text = ""
    if live:
        print(f"waiting for {args.target} ...", flush=True)
    with connected(args.target, "", args.timeout) as control:
        while True:
            try:
                status = control.status()
            except Unreachable as error:
                if not live or before is None:
                    raise
                away_s = time.monotonic() - before_at
                print(CLEAR, end="")
                say(f"{error.message}\nfrom {away_s:.0f} s ago:\n\n{text}")
                continue  # it has waited already
            now = time.monotonic()
            if args.json:
                print_json(status)
            else:
                text = render(args.target, status, before, now - before_at)
                print(CLEAR if live else "", end="")
                say(text)
            if args.once:
                return 0
            before, before_at = status, now
            time.sleep(args.interval)


def render(
    target: str, status: Mapping[str, Any], before: Mapping[str, Any] | None, elapsed_s: float
) -> str:
    """Return the table of one status.

    Args:
        target: Where the node is.
        status: What it said.
        before: What it said last time; None = nothing to make rates of.
        elapsed_s: The time between the two, in seconds.
    """
    workers = status.get("workers", [])
    busy = sum(bool(worker.get("busy")) for worker in workers)
    draining = ", shutting down" if status.get("draining") else ""
    lines = [
        f"{target}: penstock {plain(str(status.get('version', '?')))}, "
        f"node {plain(str(status.get('node', '?')))}, "
        f"up {status.get('uptime_s', 0):.0f} s{draining}; {busy} of {len(workers)} workers busy"
    ]
    sent_before = _sent(before) if before else {}
    for job in status.get("jobs", []):
        lines += [
            "",
            f"job {plain(str(job['name']))}  log {plain(str(job.get('log_id', '')))[:12]}  "
            f"{counted(job.get('lanes', 0), 'lane')}"
            f"  ready {job.get('ready_batches', 0)} batches, "
            f"{bytes_text(job.get('ready_bytes', 0))}"
            f"  produced {job.get('produced', 0):,} (again: {job.get('recomputed', 0):,})",
        ]
        readers = job.get("groups", [])
        if not readers:
            lines.append("  nobody reads it")
            continue
        rows = [["  group", "rank", "next", "ahead", "batches", "batches/s", "rate", "waited"]]
        for reader in readers:
            key = _key(job, reader)
            batches, nbytes = reader.get("sent_batches", 0), reader.get("sent_bytes", 0)
            rate = ["", ""]
            if key in sent_before and elapsed_s > 0:
                rate[0] = f"{max(0, batches - sent_before[key][0]) / elapsed_s:.1f}"
                moved = max(0, nbytes - sent_before[key][1]) / elapsed_s
                rate[1] = f"{bytes_text(moved)}/s"
            ahead = reader.get("horizon", 0) - reader.get("next", 0)
            waiting = reader.get("waiting_s", 0)
            rows.append(
                [
                    f"  {reader.get('group') or '(ephemeral)'}",
                    f"{reader.get('rank', 0)}/{reader.get('world_size', 1)}",
                    f"{reader.get('next', 0):,}",
                    str(ahead),
                    f"{batches:,}",
                    *rate,
                    f"{waiting:.1f} s" if waiting else "",
                ]
            )
        lines.append(table(rows, frozenset(range(1, 8))))
    return "\n".join(lines)


def _sent(status: Mapping[str, Any]) -> dict[tuple[Any, ...], tuple[int, int]]:
    return {
        _key(job, reader): (reader.get("sent_batches", 0), reader.get("sent_bytes", 0))
        for job in status.get("jobs", [])
        for reader in job.get("groups", [])
    }


def _key(job: Mapping[str, Any], reader: Mapping[str, Any]) -> tuple[Any, ...]:
    return job["name"], reader.get("group"), reader.get("rank"), reader.get("world_size")
