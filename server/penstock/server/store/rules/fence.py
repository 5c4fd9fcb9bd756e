"""Who may write to a group: only its latest attempt.

Glossary:
    generation: The number that the store gives to an attempt of a group. Older generations are
        fenced: they can no longer commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.server.store.rows import GenerationRow, GroupRow
from penstock.wire.errors import StaleGeneration, UnknownGroup


def unknown(job: str, name: str, names: Sequence[str]) -> UnknownGroup:
    """Return the error for a group that is not there.

    Args:
        job: Its job.
        name: The name that was given.
        names: The existing groups of the job.
    """
    return UnknownGroup(
        f"job {job!r} has no group {name!r}; it has {listed(names)}: a group begins when its "
        "first reader opens it",
        job=job,
        group=name,
        groups=list(names[:50]),
    )


def gone(job: str, name: str, names: Sequence[str], generation: int) -> UnknownGroup:
    """Return the error for an attempt whose group is not there any more."""
    return replace(
        unknown(job, name, names),
        message=f"group {name!r} of job {job!r}, of which this attempt is generation {generation}, "
        "is not in the store any more: it was deleted, or the store is another one; start the "
        "run again, with its state or start=, to begin the group anew",
        generation=generation,
    )


def check(group: GroupRow, current: GenerationRow, token: str, generation: int) -> None:
    """Let the latest attempt of a group pass, and nobody else.

    Raises:
        StaleGeneration: The token or the generation is another.
    """
    if token != current.token or generation != current.generation:
        raise stale(group, current, generation)


def stale(group: GroupRow, current: GenerationRow, generation: int) -> StaleGeneration:
    """Return the error for an attempt that is over: who holds the group, and since when."""
    who = current.owner or "an unnamed caller"
    if current.made_by in ("begin", "state"):
        what = (
            f"is read by generation {current.generation} (world size {current.world_size}, started "
            f"by {who}), and this attempt is generation {generation}: stop this process, or begin "
            "again with a new attempt token to take over"
        )
    else:
        target = f"step {current.start_step}"
        if current.made_by == "restore":
            verb, target = "restored", f"checkpoint {current.checkpoint!r}, {target},"
        else:
            verb = "moved"
        what = (
            f"was {verb} to {target} by {who} (generation {current.generation}), and this attempt "
            f"is generation {generation}: restart or reopen to read on from there"
        )
    return StaleGeneration(
        f"group {group.name!r} of job {group.job!r} {what}",
        generation=generation,
        current=current.generation,
        owner=current.owner,
        job=group.job,
        group=group.name,
    )


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: at most ten."""
    if not names:
        return "none"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(map(repr, names[:10])) + more
