"""What `penstockd check` says of mixtures: the shares that parts shall have, and those they had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line


@dataclass(frozen=True)
class PartShare:
    """A part of a mixture in the batches that were made.

    Attributes:
        part: Its name; of a part of a part `outer/inner`.
        by: What it is a share of: `items` or `tokens`.
        target: The share that it shall have.
        actual: The share that it had.
        items: How many items it gave.
        tokens: How many tokens these have; 0 where nobody counts them.
    """

    part: str
    by: str
    target: float
    actual: float
    items: int
    tokens: int


def part_shares(job: Job, lines: Sequence[Line]) -> list[PartShare]:
    """Return what each part of the job's mixtures gave to lines so far.

    Of a part of a part only where both are weighed alike: else its share of the whole is not given.
    """
    found: list[PartShare] = []
    for roles in job.role_sets:
        targets = {target.part: target for target in roles.distributor.targets()}
        counts: Counter[str] = Counter()
        for line in lines:
            if any(part.roles is roles for part in job.lane_roles(line.lane)):
                counts.update(line.planner.counts())
        for target in targets.values():
            above = [targets[name].by for name in _outer(target.part)]
            whole = sum(counts[f"{target.by}:{name}"] for name in targets if "/" not in name)
            if whole and set(above) <= {target.by}:
                items, tokens = counts[f"items:{target.part}"], counts[f"tokens:{target.part}"]
                actual = counts[f"{target.by}:{target.part}"] / whole
                found.append(PartShare(target.part, target.by, target.share, actual, items, tokens))
    return found


def part_rows(shares: Sequence[PartShare]) -> Iterator[tuple[str, str]]:
    """Yield a row of text for each part."""
    for share in shares:
        tokens = f", {share.tokens:,} tokens" if share.tokens else ""
        yield (
            f"part {share.part}",
            f"{share.actual:.4f} of the {share.by}, to be {share.target:.4f} "
            f"({share.items:,} items{tokens})",
        )


def _outer(part: str) -> list[str]:
    """Return the paths of the parts that a part is in."""
    names = part.split("/")
    return ["/".join(names[:count]) for count in range(1, len(names))]
