"""`penstock ping`: is the node there, how fast does it answer, what does it serve."""

from __future__ import annotations

import argparse
import time
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    connected,
    counted,
    print_json,
    say,
)
from penstock.client.commands.layout import screen, wrapped
from penstock.wire.plain import plain


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "ping",
        help="is a loader node there, and what does it serve",
        description="Ask a loader node for its status: exit 0 and one line per job if it answers.",
    )
    add_target(parser)
    add_timeout(parser, 5.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the node says about itself."""
    with connected(address_in(args), "", args.timeout) as control:
        control.status()  # the first call pays for the connection
        began = time.monotonic()
        status = control.status()
        answer_s = time.monotonic() - began
    jobs = [job["name"] for job in status.get("jobs", [])]
    if args.json:
        names = ("version", "node", "uptime_s", "draining")
        found = {name: status.get(name) for name in names}
        print_json({"target": args.target, **found, "jobs": jobs, "answer_s": answer_s})
        return 0
    parts = [
        f"{args.target}: penstock {status.get('version', '?')}",
        f"node {status.get('node', '?')}",
        f"up {status.get('uptime_s', 0):.0f} s",
        *(["shutting down"] if status.get("draining") else []),
        f"answered in {answer_s * 1000:.1f} ms",
    ]
    size = screen()
    say("\n".join(wrapped(parts, None if size is None else size[0])))
    for job in status.get("jobs", []):
        lanes, readers = job.get("lanes", 0), len(job.get("groups", []))
        say(f"  {plain(str(job['name']))}: {counted(lanes, 'lane')}, {counted(readers, 'reader')}")
    return 0
