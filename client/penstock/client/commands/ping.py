"""`penstock ping`: is the node there, how fast does it answer, what does it serve."""

from __future__ import annotations

import argparse
import time
from typing import Any

from penstock.client.calls.control import Control
from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    counted,
    print_json,
    say,
)
from penstock.client.commands.every_node import NodeNow, every_node
from penstock.client.commands.layout import screen, wrapped
from penstock.wire.plain import plain


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "ping",
        help="are loader nodes there, and what do they serve",
        description="Ask loader nodes for their status: exit 0, and a line for each of their jobs, "
        "if one answers; of those that do not it is said why.",
    )
    add_target(parser)
    add_timeout(parser, 5.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what each node says about itself."""
    address = address_in(args)
    with every_node(address, args.timeout) as nodes:
        found = nodes.now()  # the first call pays for the connection
        answers = [_ask(now, args.timeout) for now in found]
        left_out = nodes.left_out
    if args.json:
        printed = [found for found, _ in answers]
        several = {"target": args.target, "nodes": printed}
        several["left_out"] = [{"address": node.target, "why": node.why} for node in left_out]
        is_one = len(printed) == 1 and not left_out
        print_json({**printed[0], "target": args.target} if is_one else several)
        return 0
    for told, lines in answers:
        whose = args.target if len(answers) == 1 and not left_out else told["target"]
        _print(whose, told, lines)
    for node in left_out:
        say(node.why if node.target in node.why else f"{node.target}: {node.why}", error=True)
    return 0


def _ask(now: NodeNow, timeout_s: float) -> tuple[dict[str, Any], list[str]]:
    """Return what a node says, and a line for each of its jobs."""
    control = Control(now.node.transport, "", now.node.target, timeout_s)
    began = time.monotonic()
    status = control.status()
    answer_s = time.monotonic() - began
    told = {name: status.get(name) for name in ("version", "node", "uptime_s", "draining")}
    jobs = status.get("jobs", [])
    lines = [
        f"  {plain(str(job['name']))}: {counted(job.get('lanes', 0), 'lane')}, "
        f"{counted(len(job.get('groups', [])), 'reader')}"
        for job in jobs
    ]
    names = [job["name"] for job in jobs]
    return {"target": now.node.target, **told, "jobs": names, "answer_s": answer_s}, lines


def _print(target: str, told: dict[str, Any], lines: list[str]) -> None:
    parts = [
        f"{target}: penstock {told['version'] or '?'}",
        f"node {told['node'] or '?'}",
        f"up {told['uptime_s'] or 0:.0f} s",
        *(["shutting down"] if told["draining"] else []),
        f"answered in {told['answer_s'] * 1000:.1f} ms",
    ]
    size = screen()
    say("\n".join([*wrapped(parts, None if size is None else size[0]), *lines]))
