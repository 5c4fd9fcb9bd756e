"""`penstock quarantine`: which items a job leaves out, and how to release them."""

from __future__ import annotations

import argparse
import contextlib
import re
from typing import Any

from penstock.client.calls.control import Control
from penstock.client.commands.common import Actions, print_json, say
from penstock.common.text_table import Table
from penstock.wire.item_numbers import number_text, parse_number
from penstock.wire.order import MAX_POSITION
from penstock.wire.plain import plain
from penstock.wire.v1 import cursors_pb2

_NUMBER = r"\d{1,19}(?::\d{1,10})?"
_ITEM = re.compile(rf"(?:(?P<source>.+)\[(?P<inner>{_NUMBER})\]|(?P<index>{_NUMBER}))")


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    actions = Actions(
        subparsers,
        "quarantine",
        help_text="which items a job leaves out, and why; release them",
        description="With `on_item_error: quarantine` an item that fails twice in the same way is "
        "left out, by a verdict that every node obeys. A verdict holds from an offset that no "
        "reader has been given yet; so does a release. Without an action the verdicts are listed.",
    )
    actions.add("list", "what is left out, and why", _list)
    release = actions.add(
        "release", "let an item be drawn again, after everything that was planned", _release
    )
    release.add_argument(
        "item", type=item, metavar="ITEM", help="SOURCE[INDEX], or INDEX where there is one source"
    )
    actions.add(
        "export", "one line per item that is left out: source, index, epoch, stage, reason", _export
    )


def item(text: str) -> tuple[str, int]:
    """Parse an item, for argparse: its source, empty where none is given, and its number."""
    found = _ITEM.fullmatch(text)
    index = -1
    if found is not None:
        with contextlib.suppress(ValueError):  # a shard or row that no number can name
            index = parse_number(found["inner"] or found["index"])
    if found is None or not 0 <= index <= MAX_POSITION:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an item: write SOURCE[INDEX], as `list` shows it, or INDEX "
            "(SHARD:ROW of a stream)"
        )
    return found["source"] or "", index


def _list(control: Control, args: argparse.Namespace) -> int:
    verdicts = control.verdicts()
    if args.json:
        print_json([to_json(verdict) for verdict in verdicts])
        return 0
    if not verdicts:
        say(f"no item of job {args.job!r} was ever left out")
        return 0
    heads = ("NUMBER", "ITEM", "EPOCHS", "STAGE", "LANE", "FROM OFFSET", "RELEASED", "REASON")
    rows = [
        [
            str(verdict.number),
            f"{plain(verdict.source)}[{number_text(verdict.index)}]",
            _epochs(verdict),
            plain(verdict.stage),
            str(verdict.lane),
            f"{verdict.offset:,}, others {verdict.above:,}",
            f"from {verdict.released:,}" if verdict.HasField("released") else "",
            plain(verdict.reason),
        ]
        for verdict in verdicts
    ]
    say("\n".join(Table(rows, heads, frozenset((0, 4))).lines()))
    return 0


def _release(control: Control, args: argparse.Namespace) -> int:
    verdicts = control.release(*args.item)
    if args.json:
        print_json([to_json(verdict) for verdict in verdicts])
        return 0
    for verdict in verdicts:
        name = f"{plain(verdict.source)}[{number_text(verdict.index)}]"
        if verdict.every_epoch:
            say(
                f"{name} is drawn again from offset {verdict.released:,} of every lane on "
                f"(verdict {verdict.number}); batches before that stay without it"
            )
        else:
            say(
                f"{name} was left out of epoch {verdict.epoch} only, and stays out of it (verdict "
                f"{verdict.number}); it no longer counts"
            )
    return 0


def _export(control: Control, args: argparse.Namespace) -> int:
    held = [verdict for verdict in control.verdicts() if not verdict.HasField("released")]
    if args.json:
        for verdict in held:
            print_json(to_json(verdict))
        return 0
    lines = {
        "\t".join(
            [
                plain(verdict.source),
                str(verdict.index),
                "all" if verdict.every_epoch else str(verdict.epoch),
                plain(verdict.stage),
                plain(verdict.reason),
            ]
        ): None
        for verdict in held
    }
    for line in lines:
        print(line, flush=True)  # not shortened, with tabs: for scripts
    return 0


def _epochs(verdict: cursors_pb2.Verdict) -> str:
    return "all" if verdict.every_epoch else f"{verdict.epoch} (random draws)"


def to_json(verdict: cursors_pb2.Verdict) -> dict[str, Any]:
    """Return a verdict as JSON-able values."""
    return {
        "number": verdict.number,
        "source": verdict.source,
        "index": verdict.index,
        "epoch": verdict.epoch,
        "every_epoch": verdict.every_epoch,
        "stage": verdict.stage,
        "lane": verdict.lane,
        "offset": verdict.offset,
        "above": verdict.above,
        "released": verdict.released if verdict.HasField("released") else None,
        "content_hash": verdict.content_hash,
        "reason": verdict.reason,
    }
