"""`penstock top`: what a node does, live."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    bytes_text,
    counted,
    positive_seconds,
    print_json,
    say,
)
from penstock.client.commands.every_node import EveryNode, every_node, merged
from penstock.client.commands.layout import Column, cut, fitted, screen, short_number, wrapped
from penstock.client.commands.text import duration
from penstock.common.terminal import folded
from penstock.wire.errors import Unreachable
from penstock.wire.plain import plain

DESCRIPTION = """\
Show the jobs, readers and workers of loader nodes, refreshed every second; end
it with Ctrl-C. A rank that reads from several nodes is one line.

  step       the step of the next batch that the reader is sent
  cursor     the first step that not all ranks of the group have committed;
             - if there is none
  tokens/s   what it was sent in a second, without padding, over the last 10 s
  batches/s  the same in batches
  waited     total time that it could take a batch and none was ready
  rate       the same as tokens/s in bytes
  ahead      how many positions beyond the next one the reader accepts
  next       the position that it is sent next
  batches    how many it was sent
  ready      batches that are made and not yet taken by every reader
  produced   batches made since the node started; again: those of them that
             were made more than once

A terminal that is too narrow for all columns of a reader leaves the last ones
of this list out. One that is too low for all readers shows a group as one line:
the sum of its rates, the step of its slowest reader, and the slowest readers."""

CLEAR, HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[2J", "\x1b[H", "\x1b[K", "\x1b[J"
DIM, NORMAL = "\x1b[2m", "\x1b[0m"

NAME_SHARE = 4
"""A group's name may be cut to a quarter of the line before columns are left out."""

SLOWEST = 8
"""How many readers of a group are shown, at most, where there is no room for all of them."""

RATE_S = 10.0
"""Rates are over so many seconds: readers whose steps take longer than a refresh move, too."""

GONE_AFTER_S = 2.0
"""A node that does not answer for this long is shown as gone, and polled further."""


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
    parser.add_argument(
        "--once", action="store_true", help="print once, after an interval to measure, and end"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the status as a JSON object per refresh: counters, no rates",
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
    if args.json:
        return _print_objects(args)
    # A dumb terminal, as in an editor or a file, cannot be drawn over: it gets table after table.
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not args.once:
        return _watch(args)
    with every_node(address_in(args), args.timeout) as nodes:
        samples = StatusSamples(_status(nodes))
        while True:
            time.sleep(args.interval)
            samples.add(_status(nodes))
            size = screen()
            say(render(args.target, samples, None if size is None else size[0]))
            if args.once:
                return 0
            say("")


def _print_objects(args: argparse.Namespace) -> int:
    with every_node(address_in(args), args.timeout) as nodes:
        while True:
            print_json(_status(nodes))
            if args.once:
                return 0
            time.sleep(args.interval)


def _watch(args: argparse.Namespace) -> int:
    """Redraw the table in place; a node's last status stays, dimmed, while it is gone."""
    print(f"waiting for {plain(args.target)} ...", flush=True)
    with every_node(address_in(args), args.timeout) as nodes:
        samples = StatusSamples(_status(nodes))
        print(CLEAR, end="")
        nodes.timeout_s = GONE_AFTER_S
        gone = ""
        while True:
            _draw(args.target, samples, gone)
            time.sleep(args.interval)
            try:
                samples.add(_status(nodes))
                gone = ""
            except Unreachable as error:
                gone = error.message


def _status(nodes: EveryNode) -> Mapping[str, Any]:
    """Return the status of the node, or that of all together, with a line for each.

    Raises:
        PenstockError: None answers.
    """
    found = nodes.now()
    if len(found) == 1 and not nodes.left_out:
        return found[0].status
    lines = [
        {
            "node": now.node.node_id,
            "address": now.node.target,
            "uptime_s": now.status.get("uptime_s", 0),
            "workers": _workers(now.status.get("workers", [])),
            "draining": bool(now.status.get("draining")),
            "readers": sum(len(job.get("groups", [])) for job in now.status.get("jobs", [])),
        }
        for now in found
    ]
    why = [{"address": node.target, "why": node.why} for node in nodes.left_out]
    return {**merged(found), "nodes": lines, "left_out": why}


def _draw(target: str, samples: StatusSamples, gone: str) -> None:
    """Draw at most a screenful, without clearing the screen first."""
    width, height = screen() or (80, 24)
    head: list[str] = []
    if gone:
        away_s = time.monotonic() - samples.at
        sentence = folded(plain(gone), width).split("\n")
        head = [*(cut(line, width) for line in sentence), f"Its status {away_s:.0f} s ago:", ""]
    room = max(1, height - 1 - len(head))
    lines = render(target, samples, width, room).split("\n")
    if len(lines) > room:
        left_out = len(lines) - room + 1
        lines = [*lines[: room - 1], cut(f"... and {counted(left_out, 'line')} more", width)]
    if gone:
        lines = [f"{DIM}{line}{NORMAL}" for line in lines]
    picture = "".join(f"{line}{REST_OF_LINE}\n" for line in [*head, *lines])
    print(f"{HOME}{picture}{REST_OF_SCREEN}", end="", flush=True)


class StatusSamples:
    """The last statuses of a node, from which rates are computed.

    Args:
        status: The first status.
        at: When it was, in seconds; None = now.
    """

    def __init__(self, status: Mapping[str, Any], at: float | None = None) -> None:
        self.status, self.at = status, time.monotonic() if at is None else at
        self._past = deque([(self.at, _readers(status))])

    def add(self, status: Mapping[str, Any], at: float | None = None) -> None:
        """Take the next status; a node that was restarted counts from 0 again."""
        now = time.monotonic() if at is None else at
        if status.get("node") != self.status.get("node"):
            self._past.clear()
        self._past.append((now, _readers(status)))
        # One that is older than the time stays, so that rates are over all of it.
        while len(self._past) > 2 and self._past[1][0] <= now - RATE_S:
            self._past.popleft()
        self.status, self.at = status, now

    def rate(self, job: str, reader: Mapping[str, Any], counter: str) -> float | None:
        """Return by how much a reader's counter grew in a second; None = nothing to compare.

        It is compared with the oldest status that has the reader.
        """
        if counter not in reader:
            return None
        key = _key(job, reader)
        for at, readers in self._past:
            if at < self.at and (before := readers.get(key)) is not None:
                grown: float = reader[counter] - before.get(counter, 0)
                return max(0.0, grown / (self.at - at))
        return None


def render(
    target: str, samples: StatusSamples, width: int | None = None, height: int | None = None
) -> str:
    """Return the table of a node's status, safe for a terminal.

    Args:
        target: Where the node is.
        samples: Its last statuses.
        width: Cells of a line at most; None = no limit.
        height: How many lines there are; if they are too few for all readers, a group gets one line
            and lines for its slowest readers, so that no group hides another. The table may still
            be longer.
    """
    lines = _table(target, samples, width, None)
    slowest = SLOWEST
    while height is not None and len(lines) > height and slowest >= 0:
        lines = _table(target, samples, width, slowest)
        slowest -= 1
    return "\n".join(lines)


def _table(
    target: str, samples: StatusSamples, width: int | None, slowest: int | None
) -> list[str]:
    status = samples.status
    lines = (
        _nodes(target, status, width)
        if "nodes" in status
        else wrapped(
            [
                f"{target}: penstock {status.get('version', '?')}",
                f"node {status.get('node', '?')}",
                f"up {duration(status.get('uptime_s', 0))}",
                _workers(status.get("workers", [])),
                *(["shutting down"] if status.get("draining") else []),
            ],
            width,
        )
    )
    for job in sorted(status.get("jobs", []), key=lambda job: str(job["name"])):
        lines += ["", *_job(job, samples, width, slowest)]
    return lines


def _nodes(target: str, status: Mapping[str, Any], width: int | None) -> list[str]:
    """Return the lines about several nodes."""
    nodes, left_out = status["nodes"], status["left_out"]
    away = f" of {len(nodes) + len(left_out)}" if left_out else ""
    lines = wrapped(
        [
            f"{target}: {len(nodes)}{away} nodes",
            f"penstock {status.get('version', '?')}",
            _workers(status.get("workers", [])),
        ],
        width,
    )
    lines += fitted(
        [
            Column("  node", [f"  {node['node']}" for node in nodes], least=18),
            Column("address", [node["address"] for node in nodes], keep=1, least=12),
            Column("readers", [f"{node['readers']:,}" for node in nodes], right=True),
            Column("up", [duration(node["uptime_s"]) for node in nodes], right=True, keep=2),
            Column(
                "",
                [
                    node["workers"] + (", shutting down" if node["draining"] else "")
                    for node in nodes
                ],
                least=20,
            ),
        ],
        width,
    )
    for node in left_out:
        why = plain(
            node["why"] if node["address"] in node["why"] else f"{node['address']}: {node['why']}"
        )
        lines += (
            [f"  left out: {why}"]
            if width is None
            else folded(f"  left out: {why}", width).split("\n")
        )
    return lines


def _workers(workers: Sequence[Mapping[str, Any]]) -> str:
    """Return how many workers have work, and how many of them are at each stage."""
    busy = [str(worker.get("stage", "")) for worker in workers if worker.get("busy")]
    stages = ", ".join(f"{count} {stage}" for stage, count in Counter(busy).most_common() if stage)
    return f"{len(busy)} of {len(workers)} workers busy" + (f": {stages}" if stages else "")


class ReaderRow(NamedTuple):
    """A line about a reader, or about all readers of a group.

    Attributes:
        group: The name of the group.
        rank: The rank and the world size, or the number of ranks.
        reader: The reader; for a group the slowest one.
        tokens: In a second; None = not known yet.
        batches: In a second.
        nbytes: In a second.
        sent: How many batches.
        waited_s: Seconds of waiting; for a group the longest.
    """

    group: str
    rank: str
    reader: Mapping[str, Any]
    tokens: float | None
    batches: float | None
    nbytes: float | None
    sent: int
    waited_s: float


def _job(
    job: Mapping[str, Any], samples: StatusSamples, width: int | None, slowest: int | None
) -> list[str]:
    name = job["name"]
    readers = sorted(
        job.get("groups", []),
        key=lambda reader: (
            str(reader.get("group", "")),
            reader.get("rank", 0),
            reader.get("id", 0),
        ),
    )
    known = [
        rate
        for reader in readers
        if (rate := samples.rate(name, reader, "sent_tokens")) is not None
    ]
    lines = wrapped(
        [
            f"job {name}",
            f"log {str(job.get('log_id', ''))[:12]}",
            counted(job.get("lanes", 0), "lane"),
            f"ready {job.get('ready_batches', 0)} batches, {bytes_text(job.get('ready_bytes', 0))}",
            f"produced {job.get('produced', 0):,} (again: {job.get('recomputed', 0):,})",
            *([f"{short_number(sum(known))} tokens/s"] if known else []),
        ],
        width,
    )
    if not readers:
        return [*lines, "  nobody reads it"]
    cursors = job.get("cursors", {})
    rows: list[ReaderRow] = []
    for _, found in groupby(readers, key=lambda reader: str(reader.get("group", ""))):
        rows += _group(name, [*found], samples, slowest)

    def column(head: str, cells: list[str], keep: int = 0) -> Column:
        return Column(head, cells, right=True, keep=keep)

    least = 10 if width is None else max(10, width // NAME_SHARE)
    columns = [
        Column("  group", [f"  {row.group}" for row in rows], least=least),
        column("rank", [row.rank for row in rows]),
        column("step", [f"{_step(row.reader):,}" for row in rows], 8),
        column("cursor", [_cursor(cursors, row.reader) for row in rows], 9),
        column("tokens/s", [_rate(row.tokens) for row in rows], 7),
        column("batches/s", [_rate(row.batches) for row in rows], 6),
        column("waited", [duration(row.waited_s, "") for row in rows], 5),
        column(
            "rate", ["" if row.nbytes is None else f"{bytes_text(row.nbytes)}/s" for row in rows], 4
        ),
        column("ahead", [f"{_ahead(row.reader)}" for row in rows], 3),
        column("next", [f"{row.reader.get('next', 0):,}" for row in rows], 2),
        column("batches", [f"{row.sent:,}" for row in rows], 1),
    ]
    return [*lines, *fitted(columns, width)]


def _group(
    job: str, readers: Sequence[Mapping[str, Any]], samples: StatusSamples, slowest: int | None
) -> list[ReaderRow]:
    """Return the rows of a group: all its readers, or one for all and the slowest of them.

    Args:
        job: The job's name.
        readers: Of the group, by rank.
        samples: For the rates.
        slowest: How many readers get a row of their own beside the group's; None = all of them.
    """

    def row(reader: Mapping[str, Any], group: str) -> ReaderRow:
        return ReaderRow(
            group,
            f"{reader.get('rank', 0)}/{reader.get('world_size', 1)}",
            reader,
            samples.rate(job, reader, "sent_tokens"),
            samples.rate(job, reader, "sent_batches"),
            samples.rate(job, reader, "sent_bytes"),
            reader.get("sent_batches", 0),
            reader.get("waiting_s", 0),
        )

    group = str(readers[0].get("group") or "(ephemeral)")
    rows = [row(reader, group) for reader in readers]
    if slowest is None or len(rows) <= slowest + 1:
        return rows
    behind = sorted(rows, key=lambda reader_row: (_step(reader_row.reader), -reader_row.waited_s))
    whole = ReaderRow(
        group,
        f"all {len(rows)}",
        behind[0].reader,
        _sum(reader_row.tokens for reader_row in rows),
        _sum(reader_row.batches for reader_row in rows),
        _sum(reader_row.nbytes for reader_row in rows),
        sum(reader_row.sent for reader_row in rows),
        max(reader_row.waited_s for reader_row in rows),
    )
    return [whole, *(reader_row._replace(group="  slowest") for reader_row in behind[:slowest])]


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _rate(rate: float | None) -> str:
    return "" if rate is None else short_number(rate)


def _ahead(reader: Mapping[str, Any]) -> int:
    return int(reader.get("horizon", 0) - reader.get("next", 0))


def _step(reader: Mapping[str, Any]) -> int:
    return int(reader.get("next", 0) // max(1, reader.get("batches_per_step", 1)))


def _cursor(cursors: Mapping[str, Any], reader: Mapping[str, Any]) -> str:
    step = cursors.get(str(reader.get("group", "")))
    return "-" if step is None else f"{step:,}"


def _readers(status: Mapping[str, Any]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    return {
        _key(job["name"], reader): reader
        for job in status.get("jobs", [])
        for reader in job.get("groups", [])
    }


def _key(job: str, reader: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("id", "group", "rank", "world_size")
    return job, *(reader.get(name) for name in names)
