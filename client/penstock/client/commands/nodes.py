"""`penstock nodes`: every node of a target, what it does, and why one is left out."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    bytes_text,
    positive_seconds,
    print_json,
    say,
)
from penstock.client.commands.every_node import NodeNow, every_node
from penstock.client.commands.layout import Column, fitted, screen, short_number
from penstock.client.commands.text import duration
from penstock.client.nodes.known_node import NodeLeftOut

DESCRIPTION = """\
Ask every node of a target what it does: exit 0 if one of them answers.

  node       its id, which units are dealt to
  units      how many of all units of its jobs; lanes that read the same
             storage are one
  readers    open streams
  tokens/s   what it sent in the interval, without padding; rate: in bytes
  busy       how many of its workers have work
  store      the first characters of its store's UUID: a group needs one store

A terminal that is too narrow leaves the last columns out."""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "nodes",
        help="the nodes of a target, and why one is left out",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    add_timeout(parser, 5.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=1.0,
        metavar="SECONDS",
        help="over how long rates are measured (default: 1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line for each node."""
    with every_node(address_in(args), args.timeout) as nodes:
        nodes.describe()
        before = {now.node.node_id: now for now in nodes.now()}
        began = time.monotonic()
        time.sleep(args.interval)
        found = nodes.now()
        over_s = time.monotonic() - began
        units, left_out = nodes.units(found), nodes.left_out
    rows = [_row(now, before.get(now.node.node_id), over_s, units) for now in found]
    if args.json:
        why = [{"address": node.target, "why": node.why} for node in left_out]
        print_json({"target": args.target, "nodes": rows, "left_out": why})
        return 0
    size = screen()
    say(render(rows, left_out, None if size is None else size[0]))
    return 0


def _row(
    now: NodeNow, before: NodeNow | None, over_s: float, units: Mapping[str, int]
) -> dict[str, Any]:
    workers = now.status.get("workers", [])
    row = {
        "node": now.node.node_id,
        "address": now.node.target,
        "version": now.version,
        "environment": now.status.get("environment"),
        "uptime_s": now.status.get("uptime_s", 0),
        "draining": now.node.draining or bool(now.status.get("draining")),
        "store": now.store,
        "workers": len(workers),
        "busy": sum(bool(worker.get("busy")) for worker in workers),
        "units": units.get(now.node.node_id, 0),
        "readers": len(_readers(now)),
    }
    for counter, name in (("sent_tokens", "tokens_per_s"), ("sent_bytes", "bytes_per_s")):
        had = {} if before is None else _readers(before)
        grown = sum(
            max(0, reader.get(counter, 0) - had[key].get(counter, 0))
            for key, reader in _readers(now).items()
            if key in had
        )
        row[name] = round(grown / over_s, 1)
    return row


def _readers(now: NodeNow) -> dict[tuple[str, Any], Mapping[str, Any]]:
    return {
        (str(job["name"]), reader.get("id")): reader
        for job in now.status.get("jobs", [])
        for reader in job.get("groups", [])
    }


def render(
    rows: Sequence[Mapping[str, Any]], left_out: Sequence[NodeLeftOut], width: int | None = None
) -> str:
    """Return the table of nodes, and below it what is wrong with them, and why others are left out.

    Args:
        rows: The nodes.
        left_out: Those that are not read.
        width: Cells of a line at most; None = no limit.
    """

    def column(name: str, cells: Sequence[str], keep: int) -> Column:
        return Column(name, cells, right=True, keep=keep)

    columns = [
        Column("node", [str(row["node"]) for row in rows], least=16),
        Column("address", [str(row["address"]) for row in rows], keep=1),
        column("units", [f"{row['units']:,}" for row in rows], 0),
        column("readers", [f"{row['readers']:,}" for row in rows], 0),
        column("tokens/s", [short_number(row["tokens_per_s"]) for row in rows], 8),
        column("rate", [f"{bytes_text(row['bytes_per_s'])}/s" for row in rows], 7),
        column("busy", [f"{row['busy']}/{row['workers']}" for row in rows], 6),
        column("up", [duration(row["uptime_s"]) for row in rows], 5),
        Column("version", [str(row["version"]) for row in rows], keep=4),
        Column("store", [str(row["store"])[:8] for row in rows], keep=2),
    ]
    if any(row["environment"] for row in rows):
        shown = [str(row["environment"] or "")[:12] for row in rows]
        columns.append(Column("environment", shown, keep=3))
    if any(row["draining"] for row in rows):
        columns.insert(2, Column("", ["draining" if row["draining"] else "" for row in rows]))
    lines = fitted(columns, width) if rows else []
    stores = Counter(str(row["store"]) for row in rows)
    most = max(stores.values(), default=0)
    common = min((store for store, count in stores.items() if count == most), default="")
    lines += [
        f"note: {row['address']} has the store {str(row['store'])[:8]}, and the other nodes have "
        f"{common[:8]}: readers with a group leave it out; give all nodes one store"
        for row in rows
        if row["store"] and row["store"] != common
    ]
    for node in left_out:
        why = node.why if node.target in node.why else f"{node.target}: {node.why}"
        lines.append(f"left out: {why}")
    return "\n".join(lines)
