"""`penstock cursors`: show, move and delete the groups of a job."""

from __future__ import annotations

import argparse
import sys
import uuid
from typing import Any

from penstock.client.calls.control import Control
from penstock.client.commands.common import Actions, counted, natural, print_json, say
from penstock.client.commands.layout import Column, fitted, screen
from penstock.common.terminal import columns_of, folded
from penstock.wire.errors import GroupInUse, InvalidRequest, UnknownGroup, Unreachable
from penstock.wire.plain import plain, plain_lines
from penstock.wire.v1 import cursors_pb2


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    actions = Actions(
        subparsers,
        "cursors",
        help_text="show and move the cursors of training runs",
        description="A group is one training run that reads a job; its cursor is the first step "
        "that not all of its ranks have finished. seek and restore begin a new generation: a run "
        "that is reading the group now is fenced off and ends with an error. Without an action "
        "the groups are listed.",
        asks_all=True,
    )
    actions.option("--group", metavar="G", help="the training run; list shows all without it")
    actions.add("list", "one line per group", _list)
    actions.add("show", "everything about one group: rows of its ranks, checkpoints", _show)
    seek = actions.add("seek", "go to a step; the run that reads now is fenced off", _seek)
    seek.add_argument("--to-step", type=natural, required=True, metavar="S", help="the next step")
    checkpoint = actions.add("checkpoint", "give a step a permanent name", _checkpoint)
    checkpoint.add_argument("name", metavar="NAME", help="the checkpoint's name")
    checkpoint.add_argument(
        "--step", type=natural, metavar="S", help="the step (default: the group's cursor)"
    )
    restore = actions.add(
        "restore", "go to a named step; the run that reads now is fenced off", _restore
    )
    restore.add_argument("name", metavar="NAME", help="the checkpoint's name")
    delete = actions.add(
        "delete",
        "forget a group and its checkpoints; refused while it is read",
        _delete,
    )
    delete.add_argument("named", nargs="?", metavar="GROUP", help="the training run")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument(
        "--fence", action="store_true", help="end its readers with an error instead of refusing"
    )


def _groups(control: Control, name: str | None) -> list[cursors_pb2.Group]:
    """Return groups, with the readers of all nodes: each node knows only its own.

    A rank has a stream to each node that makes lanes for it, so the most that a node has are
    counted, and not all of them together.

    Raises:
        UnknownGroup: There is no such group.
    """
    groups = control.groups(name)
    nodes = control.each()
    for node in nodes if len(nodes) > 1 else ():
        try:
            found = {group.name: group.readers for group in node.groups(name)}
        except (Unreachable, UnknownGroup):
            continue  # what is read there ends with the node; a group may be deleted meanwhile
        for group in groups:
            group.readers = max(group.readers, found.get(group.name, 0))
    return groups


def _list(control: Control, args: argparse.Namespace) -> int:
    groups = _groups(control, args.group)
    if args.json:
        print_json([to_json(group) for group in groups])
        return 0
    if not groups:
        say(f"no group has read job {args.job!r} yet")
        return 0

    def column(name: str, cells: list[str], *, keep: int = 0, least: int | None = None) -> Column:
        right = name not in ("GROUP", "COMMITTED (UTC)", "BY")
        return Column(name, cells, right, keep, least)

    size = screen()
    columns = [
        column("GROUP", [group.name for group in groups], least=16),
        column("STEP", [f"{group.cursor:,}" for group in groups]),
        column("G", [str(group.batches_per_step) for group in groups], keep=5),
        column("RANKS", [str(group.world_size) for group in groups], keep=6),
        column("READERS", [str(group.readers) for group in groups], keep=7),
        column("COMMITTED (UTC)", [_when(group.committed_at) for group in groups], keep=8),
        column("BY", [group.committed_owner for group in groups], keep=4, least=8),
        column("CHECKPOINTS", [str(len(group.checkpoints)) for group in groups], keep=3),
        column("GENERATION", [str(group.generation) for group in groups], keep=2),
    ]
    say("\n".join(fitted(columns, None if size is None else size[0])))
    return 0


def _show(control: Control, args: argparse.Namespace) -> int:
    (group,) = _groups(control, _group(args))
    if args.json:
        print_json(to_json(group))
        return 0
    say(f"group {group.name!r} of job {group.job!r}")
    say(f"  cursor      step {group.cursor:,} (started at {group.start_step:,})")
    say(f"  step size   {group.batches_per_step} batches")
    ranks = counted(group.world_size, "rank")
    say(f"  generation  {group.generation}, {ranks}, owner {plain(group.owner) or '?'}")
    nodes = len(control.each())
    where = "at this node" if nodes == 1 else f"the most at one of {nodes} nodes"
    say(f"  readers     {group.readers} now, {where}")
    say(f"  committed   {plain(_committed(group))}")
    say(f"  log         {group.log_id.hex()}")
    behind = [f"rank {rank} at step {row:,}" for rank, row in enumerate(group.rows)]
    say(f"  rows        {', '.join(behind) or 'no rank has joined yet'}")
    for checkpoint in group.checkpoints:
        say(f"  checkpoint  {checkpoint.name!r} at step {checkpoint.step:,}")
    return 0


def _seek(control: Control, args: argparse.Namespace) -> int:
    moved = control.seek(_group(args), args.to_step, uuid.uuid4().hex)
    return _moved(args, moved)


def _restore(control: Control, args: argparse.Namespace) -> int:
    moved = control.restore(_group(args), args.name, uuid.uuid4().hex)
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
    made = control.checkpoint(_group(args), args.name, args.step)
    if args.json:
        print_json({"name": made.name, "step": made.step, "log_id": made.log_id.hex()})
    else:
        say(f"checkpoint {made.name!r} of group {args.group!r} is step {made.step:,}")
    return 0


def _delete(control: Control, args: argparse.Namespace) -> int:
    if args.named is not None and args.group not in (None, args.named):
        raise InvalidRequest(
            f"two groups are named, --group {args.group} and {args.named}: name one"
        )
    args.group = args.named if args.group is None else args.group
    (group,) = _groups(control, _group(args))
    if group.readers and not args.fence:
        raise _in_use(group)
    uncounted = _uncounted(control)
    if args.yes and uncounted:
        print(uncounted, file=sys.stderr)
    if not (args.yes or _confirmed(group, args.fence, uncounted)):
        say(f"group {group.name!r} is as it was")
        return 1
    try:
        gone = control.delete(group.name, group.generation, fence=args.fence)
    except GroupInUse as error:  # a reader has come in the meantime
        raise _in_use(group) from error
    if args.json:
        print_json(
            {
                "group": group.name,
                "cursor": group.cursor,
                "generation": group.generation,
                "checkpoints": len(group.checkpoints),
                "fenced": gone.fenced,
            }
        )
        return 0
    fenced = f"; {counted(gone.fenced, 'reader')} ended with an error" if gone.fenced else ""
    say(f"group {group.name!r} of job {group.job!r} is deleted{fenced}")
    return 0


def _in_use(group: cursors_pb2.Group) -> GroupInUse:
    now = f"{counted(group.readers, 'reader')} now" if group.readers else "readers again"
    return GroupInUse(
        f"group {group.name!r} of job {group.job!r} has {now} (generation {group.generation}, "
        f"begun by {group.owner or 'an unnamed caller'}), and nothing was deleted: stop them "
        "first, or add --fence, which ends them with an error",
        job=group.job,
        group=group.name,
        readers=group.readers,
    )


def _uncounted(control: Control) -> str:
    """Return a sentence where other nodes may have readers that nobody has counted."""
    nodes = control.each()
    if len(nodes) > 1 or not control.status().get("store", {}).get("shared"):
        return ""
    return (
        "Readers at other nodes of this store were not counted: name all nodes, so that a group "
        "that is read there is not deleted."
    )


def _confirmed(group: cursors_pb2.Group, fence: bool, uncounted: str) -> bool:
    """Ask on a terminal whether a group is to be deleted.

    Raises:
        InvalidRequest: There is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        raise InvalidRequest(
            f"nothing was deleted: add --yes to delete group {group.name!r} without being asked"
        )
    readers = ""
    if fence and group.readers:
        readers = f" {counted(group.readers, 'reader').capitalize()} will end with an error."
    what = (
        f"group {group.name!r} of job {group.job!r}: step {group.cursor:,}, "
        f"{counted(len(group.checkpoints), 'checkpoint')}, committed {_committed(group)}."
        f"{readers}\n{uncounted}{' ' if uncounted else ''}"
        "Its next start begins at step 0, unless it brings a state. Delete it? [y/N]"
    )
    print(folded(plain_lines(what), columns_of(sys.stderr)), end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _group(args: argparse.Namespace) -> str:
    """Return the group that an action is about.

    Raises:
        InvalidRequest: No group is named.
    """
    if args.group is None:
        how = "name it" if args.action == "delete" else "add --group G"
        raise InvalidRequest(f"cursors {args.action} needs a group: {how}")
    return str(args.group)


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
        "committed_by": group.committed_by,
        "committed_owner": group.committed_owner,
        "readers": group.readers,
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


def _committed(group: cursors_pb2.Group) -> str:
    if not group.committed_at:
        return "never"
    by = f" by {group.committed_owner}" if group.committed_owner else ""
    return f"{_when(group.committed_at)} UTC{by}"


def _when(committed_at: str) -> str:
    return committed_at.replace("T", " ")[:16] if committed_at else "never"
