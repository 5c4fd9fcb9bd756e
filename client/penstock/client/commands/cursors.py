"""`penstock cursors`: where the groups of a job stand, and moving them."""

from __future__ import annotations

import argparse
import uuid
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    connected,
    counted,
    natural,
    print_json,
    say,
    table,
)
from penstock.client.control import Control
from penstock.wire.errors import InvalidRequest
from penstock.wire.terminal import plain
from penstock.wire.v1 import cursors_pb2


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cursors",
        help="where training runs stand; seek, checkpoint, restore",
        description="A group is one training run that reads a job; its cursor is the first step "
        "that not all of its ranks have finished. seek and restore begin a new generation: a run "
        "that is reading the group now is fenced off and ends with an error.",
    )
    add_target(parser)
    parser.add_argument("job", metavar="JOB", help="the name of a job of the node")
    parser.add_argument("--group", metavar="G", help="the training run; list shows all without it")
    add_timeout(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")

    def action(name: str, help_text: str) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = actions.add_parser(
            name, help=help_text, description=help_text[:1].upper() + help_text[1:] + "."
        )
        # The same options again, so that they may follow the action too.
        found.add_argument("--group", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        found.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"
        )
        return found

    action("list", "one line per group")
    action("show", "everything about one group: rows of its ranks, checkpoints")
    seek = action("seek", "go to a step; the run that reads now is fenced off")
    seek.add_argument("--to-step", type=natural, required=True, metavar="S", help="the next step")
    checkpoint = action("checkpoint", "name a step for good")
    checkpoint.add_argument("name", metavar="NAME", help="the checkpoint's name")
    checkpoint.add_argument(
        "--step", type=natural, metavar="S", help="the step (default: the group's cursor)"
    )
    restore = action("restore", "go to a named step; the run that reads now is fenced off")
    restore.add_argument("name", metavar="NAME", help="the checkpoint's name")


def run(args: argparse.Namespace) -> int:
    """Do what is asked and print the outcome."""
    if args.group is None and args.action != "list":
        raise InvalidRequest(f"cursors {args.action} needs a group: add --group G")
    with connected(args.target, args.job, args.timeout) as control:
        return _ACTIONS[args.action](control, args)


def _list(control: Control, args: argparse.Namespace) -> int:
    groups = control.groups(args.group)
    if args.json:
        print_json([to_json(group) for group in groups])
        return 0
    if not groups:
        say(f"no group has read job {args.job!r} yet")
        return 0
    rows = [["GROUP", "CURSOR", "STEP SIZE", "RANKS", "GENERATION", "COMMITTED", "OWNER"]]
    rows += [
        [
            group.name,
            f"{group.cursor:,}",
            str(group.batches_per_step),
            str(group.world_size),
            str(group.generation),
            _when(group.committed_at),
            group.owner,
        ]
        for group in groups
    ]
    say(table(rows, frozenset((1, 2, 3, 4))))
    return 0


def _show(control: Control, args: argparse.Namespace) -> int:
    (group,) = control.groups(args.group)
    if args.json:
        print_json(to_json(group))
        return 0
    say(f"group {group.name!r} of job {group.job!r}")
    say(f"  cursor      step {group.cursor:,} (started at {group.start_step:,})")
    say(f"  step size   {group.batches_per_step} batches")
    ranks = counted(group.world_size, "rank")
    say(f"  generation  {group.generation}, {ranks}, owner {plain(group.owner) or '?'}")
    say(f"  committed   {plain(_when(group.committed_at))}")
    say(f"  log         {group.log_id.hex()}")
    behind = [f"rank {rank} at step {row:,}" for rank, row in enumerate(group.rows)]
    say(f"  rows        {', '.join(behind) or 'no rank has joined yet'}")
    for checkpoint in group.checkpoints:
        say(f"  checkpoint  {checkpoint.name!r} at step {checkpoint.step:,}")
    return 0


def _seek(control: Control, args: argparse.Namespace) -> int:
    moved = control.seek(args.group, args.to_step, uuid.uuid4().hex)
    return _moved(args, moved)


def _restore(control: Control, args: argparse.Namespace) -> int:
    moved = control.restore(args.group, args.name, uuid.uuid4().hex)
    return _moved(args, moved)


def _moved(args: argparse.Namespace, moved: cursors_pb2.MoveReply) -> int:
    if args.json:
        print_json({"group": args.group, "step": moved.step, "generation": moved.generation})
    else:
        say(
            f"group {args.group!r} is now at step {moved.step:,} (generation {moved.generation}); "
            "start its ranks again to go on there"
        )
    return 0


def _checkpoint(control: Control, args: argparse.Namespace) -> int:
    made = control.checkpoint(args.group, args.name, args.step)
    if args.json:
        print_json({"name": made.name, "step": made.step, "log_id": made.log_id.hex()})
    else:
        say(f"checkpoint {made.name!r} of group {args.group!r} is step {made.step:,}")
    return 0


_ACTIONS = {
    "list": _list,
    "show": _show,
    "seek": _seek,
    "checkpoint": _checkpoint,
    "restore": _restore,
}


def to_json(group: cursors_pb2.Group) -> dict[str, Any]:
    """Return everything about a group as JSON-able values."""
    return {
        "group": group.name,
        "job": group.job,
        "log_id": group.log_id.hex(),
        "cursor": group.cursor,
        "rows": list(group.rows),
        "start_step": group.start_step,
        "batches_per_step": group.batches_per_step,
        "generation": group.generation,
        "world_size": group.world_size,
        "owner": group.owner,
        "committed_at": group.committed_at,
        "checkpoints": [
            {
                "name": checkpoint.name,
                "step": checkpoint.step,
                "log_id": checkpoint.log_id.hex(),
                "made_at": checkpoint.made_at,
            }
            for checkpoint in group.checkpoints
        ],
    }


def _when(committed_at: str) -> str:
    return committed_at.replace("T", " ")[:16] + " UTC" if committed_at else "never"
