"""Checkpoints of a group, and going to one or to any step."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.store.records import Moved
from penstock.server.store.rows import Add, Change, CheckpointRow, GenerationRow, GroupRow
from penstock.server.store.rules.arguments import MOVED
from penstock.server.store.rules.fence import listed
from penstock.server.store.rules.group_rules import by_step, new_generation
from penstock.wire.errors import CheckpointExists, UnknownCheckpoint


def checkpoint(
    group: GroupRow, asked: CheckpointRow, stands: CheckpointRow | None
) -> tuple[CheckpointRow, list[Change]]:
    """Give a step a permanent name.

    Args:
        group: The group.
        asked: What is to be added.
        stands: The checkpoint of that name; None = there is none.

    Raises:
        CheckpointExists: The name belongs to another step.
    """
    if stands is None:
        return asked, [Add(asked)]
    if stands.step != asked.step:
        raise CheckpointExists(
            f"checkpoint {asked.name!r} of group {group.name!r} stands at step {stands.step}, and "
            f"checkpoints never change: give step {asked.step} another name",
            name=asked.name,
            step=stands.step,
        )
    return stands, []


def unknown(group: GroupRow, name: str, checkpoints: Sequence[CheckpointRow]) -> UnknownCheckpoint:
    """Return the error for a checkpoint that a group does not have."""
    names = [row.name for row in by_step(checkpoints)]
    return UnknownCheckpoint(
        f"group {group.name!r} of job {group.job!r} has no checkpoint {name!r}; it has "
        f"{listed(names)}",
        group=group.name,
        name=name,
        names=names[:50],
    )


def move(
    current: GenerationRow,
    done: GenerationRow | None,
    step: int,
    *,
    checkpoint: str = "",
    request_id: str,
    owner: str,
    now: str,
) -> tuple[Moved, list[Change]]:
    """Go to a step by a new generation, which has no ranks and a token that no rank can present.

    Args:
        current: The latest generation of the group.
        done: The generation that the same request has made before; None = none.
        step: Where to go.
        checkpoint: The checkpoint of that step; empty = it is a seek.
        request_id: A repeated request moves nothing; an empty id always moves.
        owner: Who moves it, for people.
        now: The store's time.
    """
    if done is not None:
        return Moved(done.generation, done.start_step), []
    number = current.generation + 1
    token = MOVED + (request_id or f"#{number}")
    how = "restore" if checkpoint else "seek"
    row = GenerationRow(
        current.group_id, number, token, 0, step, owner, how, checkpoint, request_id, now
    )
    return Moved(number, step), new_generation(row)
