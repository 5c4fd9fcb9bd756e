"""What processing gave for items whose other pieces lie in later batches of the same lane."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.server.core.refs import ItemRef
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles.samples import Sample
from penstock.server.usercode.held_bytes import held_bytes


def outcomes_in_lane(
    known: Items,
    lane: int,
    items: Sequence[ItemRef],
    later: Collection[ItemRef],
    coming: Sequence[ItemRef] = (),
) -> list[list[Sample] | Filtered | Bad]:
    """Return as `Items.outcomes` for a maker; what was kept for the lane is not processed again.

    Args:
        known: Fetches and processes what is not kept.
        lane: The lane.
        items: The items, each once.
        later: Those of them that later batches of the lane need: they are kept for these, as
            long as there is room.
        coming: As for `Items.outcomes`.

    Raises:
        SourceUnavailable: A read failed to the deadline.
    """
    kept = known.keeper().take_outcomes((lane, item) for item in items)
    missing = [item for item in items if (lane, item) not in kept]
    coming = [item for item in coming if known.keeper().lacks((lane, item))]
    if missing:
        found = dict(zip(missing, known.outcomes(missing, "exit", coming), strict=True))
    else:
        found = {}
        known.read_ahead(coming)
    for item in later:
        if (lane, item) in kept:
            known.keeper().keep_outcome((lane, item), *kept[lane, item])
        elif isinstance(outcome := found.get(item), list):
            known.keeper().keep_outcome((lane, item), outcome, held_bytes(outcome))
    return [found[item] if item in found else kept[lane, item][0] for item in items]
