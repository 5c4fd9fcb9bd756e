"""Batches that the collator cannot make: the error names the one that needs most."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.roles.filling import Misfit
from penstock.wire.errors import BadBatch


def refuse(
    found: Sequence[Misfit], batches: int, lane: int, offset: int, role_set: str = ""
) -> BadBatch:
    """Return the error of batches that cannot be made.

    Args:
        found: Those that cannot; `worst` of them stands at `lane` and `offset`.
        batches: How many were looked at.
        lane: Its lane.
        offset: Its offset.
        role_set: The set of roles whose lane and offset these are; "" = they are the job's.
    """
    most = worst(found)
    many = sum(each.batches for each in found)
    where = f"set {role_set!r}, its lane {lane}, offset {offset}" if role_set else ""
    where = where or f"lane {lane}, offset {offset}"
    of_all = f"{many:,} of {batches:,} batches cannot be made"
    if most.of == "tokens":
        sentence = (
            f"a row of {most.needed:,} tokens does not fit into the {most.room:,} that the "
            f"collator pads rows to, and {of_all}; raise pad_to to {most.needed}, or have the "
            "batcher split or truncate what is longer"
        )
    else:
        sentence = (
            f"there are {most.needed:,} documents, padding among them, and max_documents of the "
            f"collator is {most.room:,}, so {of_all}; raise it to {most.needed}, or let the "
            "batcher put fewer samples into a row"
        )
    return BadBatch(f"{where}: {sentence}", lane=lane, offset=offset)


def worst(found: Sequence[Misfit]) -> Misfit:
    """Return the one that needs most, rows that are too long before documents."""
    return max(found, key=lambda each: (each.of == "tokens", each.needed))
