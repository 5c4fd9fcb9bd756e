"""What was delivered, compared with what `local:` computes: identical, lost, repeated.

It uses only the files of a run, so it can be run again:
`python -m penstock.client.demo.verdict FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.wire.errors import BadState
from penstock.wire.order import Share

PLAN = "run.json"
REFERENCE = "local"


@dataclass(frozen=True)
class Plan:
    """What a run was meant to do; written before it begins.

    Attributes:
        batches_per_step: G.
        until_step: The first step that was not to be read.
        world_sizes: Of each generation, in order.
        reference_world_size: How many ranks read `local:`.
    """

    batches_per_step: int
    until_step: int
    world_sizes: list[int]
    reference_world_size: int

    def save(self, folder: Path) -> None:
        """Write it into the folder of the run."""
        (folder / PLAN).write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> Plan:
        """Read it from the folder of a run.

        Raises:
            BadState: There is none.
        """
        try:
            return Plan(**json.loads((folder / PLAN).read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise BadState(f"{folder} is not a folder of a demo's run: {error}") from error


def rank_name(generation: int, rank: int) -> str:
    """Return the name of a rank's files: `rank-1-0` is rank 0 of generation 1."""
    return f"rank-{generation}-{rank}"


def reference_name(rank: int) -> str:
    """Return the name of a reference rank's files."""
    return f"{REFERENCE}-{rank}"


@dataclass
class Verdict:
    """The result of a run, in positions.

    Attributes:
        wanted: How many positions the run was to deliver: [0, wanted).
        identical: Positions that were counted once, with the reference's digest.
        lost: Positions of finished steps that no rank got.
        repeated: Positions that were delivered twice within a generation, or again after their step
            was finished.
        different: Positions that were delivered with other bytes than `local:` computes.
        unverified: Delivered, and the reference has none of that position.
        again: Delivered in a step that its generation did not finish, and again after it.
        problems: What else is wrong, one sentence each.
        starts: The first step of each generation.
        ranks: How many rank processes read.
    """

    wanted: int
    identical: int = 0
    lost: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    different: list[int] = field(default_factory=list)
    unverified: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ranks: int = 0

    @property
    def is_good(self) -> bool:
        """Whether every position was counted once, with the reference's bytes."""
        wrong = (self.lost, self.repeated, self.different, self.unverified, self.problems)
        return self.identical == self.wanted > 0 and not any(wrong)


@dataclass(frozen=True)
class _Rank:
    """What a rank has recorded."""

    share: Share
    started: dict[str, Any] | None
    batches: list[tuple[int, str]]
    finished: int | None  # the last step whose commit was answered


def judge(folder: Path) -> Verdict:
    """Compare every batch of a run with the reference.

    A generation answers for the steps from its start to the start of the next one: those count.
    What it delivered beyond was of steps that it had not finished, so the next generation reads
    them again; a training run goes back to its checkpoint there. These are told apart, and compared
    too.

    Args:
        folder: The files of a run.

    Raises:
        BadState: It is not the folder of a run.
    """
    plan = Plan.load(folder)
    verdict = Verdict(wanted=plan.until_step * plan.batches_per_step)
    generations = [
        [
            _load(folder, rank_name(number, rank), Share(plan.batches_per_step, rank, world_size))
            for rank in range(world_size)
        ]
        for number, world_size in enumerate(plan.world_sizes, start=1)
    ]
    reference_ranks = [
        _load(folder, reference_name(rank), share)
        for rank in range(plan.reference_world_size)
        for share in [Share(plan.batches_per_step, rank, plan.reference_world_size)]
    ]
    reference = {position: digest for rank in reference_ranks for position, digest in rank.batches}
    verdict.ranks = sum(map(len, generations))
    _check_logs([*(rank for ranks in generations for rank in ranks), *reference_ranks], verdict)
    for number, ranks in enumerate(generations, start=1):
        verdict.starts.append(_start(number, ranks, verdict))
    ends = [*verdict.starts[1:], plan.until_step]
    counted: set[int] = set()
    for ranks, start, end in zip(generations, verdict.starts, ends, strict=True):
        counted |= _account(ranks, start, end, plan.batches_per_step, reference, verdict)
    _check_commits(generations, verdict)
    verdict.lost = sorted(set(range(verdict.wanted)) - counted)
    bad = {*verdict.repeated, *verdict.different, *verdict.unverified}
    verdict.identical = len(counted - bad)
    return verdict


def _load(folder: Path, name: str, share: Share) -> _Rank:
    path = folder / f"{name}.jsonl"
    started, finished = None, None
    batches: list[tuple[int, str]] = []
    if path.exists():
        # What follows the last newline was cut off by a SIGKILL: it does not count.
        for line in path.read_bytes().split(b"\n")[:-1]:
            record = json.loads(line)
            if record["event"] == "started":
                started = record
            elif record["event"] == "batch":
                batches.append((int(record["position"]), str(record["digest"])))
            elif record["event"] == "finished":
                finished = int(record["step"])
    return _Rank(share, started, batches, finished)


def _check_logs(ranks: Sequence[_Rank], verdict: Verdict) -> None:
    logs = sorted({str(rank.started["log_id"]) for rank in ranks if rank.started is not None})
    if len(logs) > 1:
        verdict.problems.append(f"several logs were read: {', '.join(name[:12] for name in logs)}")


def _start(number: int, ranks: Sequence[_Rank], verdict: Verdict) -> int:
    starts = {None if rank.started is None else int(rank.started["step"]) for rank in ranks}
    known = sorted(step for step in starts if step is not None)
    if len(starts) != 1 or not known:
        verdict.problems.append(
            f"the ranks of generation {number} did not all start, or not at one step: {known}"
        )
    return known[0] if known else 0


def _account(
    ranks: Sequence[_Rank],
    start: int,
    end: int,
    batches_per_step: int,
    reference: dict[int, str],
    verdict: Verdict,
) -> set[int]:
    """Compare a generation; return the positions that count."""
    delivered: Counter[int] = Counter()
    for rank in ranks:
        for position, digest in rank.batches:
            delivered[position] += 1
            if not rank.share.owns(position):
                verdict.problems.append(
                    f"rank {rank.share.rank} of {rank.share.world_size} was given position "
                    f"{position}, which is another's"
                )
            if position not in reference:
                verdict.unverified.append(position)
            elif reference[position] != digest:
                verdict.different.append(position)
    first, last = start * batches_per_step, end * batches_per_step
    verdict.repeated += sorted(
        position for position, times in delivered.items() if times > 1 or position < first
    )
    verdict.again += sorted(position for position in delivered if position >= last)
    return {position for position in delivered if first <= position < last}


def _check_commits(generations: Sequence[Sequence[_Rank]], verdict: Verdict) -> None:
    """Check that no generation starts before the steps that all ranks had committed."""
    for ranks, start, after in zip(generations, verdict.starts, verdict.starts[1:], strict=False):
        committed = min(start if r.finished is None else r.finished + 1 for r in ranks)
        if after < committed:
            verdict.problems.append(
                f"step {committed} was committed by all ranks, and the next generation started at "
                f"step {after}"
            )


def report(verdict: Verdict) -> list[str]:
    """Return the result as lines for people."""
    lines = [
        f"{verdict.wanted:,} batches were to be read, by {verdict.ranks} rank processes in "
        f"{len(verdict.starts)} generations",
        f"  {'identical':<10}{verdict.identical:>8,}   the same SHA-256 as local: computes",
        f"  {'lost':<10}{len(verdict.lost):>8,}{_named(verdict.lost)}",
        f"  {'repeated':<10}{len(verdict.repeated):>8,}{_named(verdict.repeated)}",
    ]
    if verdict.different:
        lines.append(f"  {'different':<10}{len(verdict.different):>8,}{_named(verdict.different)}")
    if verdict.unverified:
        lines.append(
            f"  {'unverified':<10}{len(verdict.unverified):>8,}{_named(verdict.unverified)}"
        )
    if verdict.again:
        batches = "1 batch" if len(verdict.again) == 1 else f"{len(verdict.again)} batches"
        lines += [
            f"{batches} of an unfinished step had been delivered before the ranks were killed;",
            "that step was read again from its start, as a run does that resumes at its checkpoint",
        ]
    lines += [f"problem: {sentence}" for sentence in verdict.problems]
    return lines


def _named(positions: Sequence[int]) -> str:
    if not positions:
        return ""
    shown = ", ".join(str(position) for position in positions[:8])
    return f"   position{'s' if len(positions) > 1 else ''} {shown}" + (
        ", ..." if len(positions) > 8 else ""
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a run that was kept; 0 = every batch identical, none lost, none repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.client.demo.verdict",
        description="Judge a run of `penstock demo --keep` once more, from its files alone.",
    )
    parser.add_argument("folder", type=Path)
    try:
        verdict = judge(parser.parse_args(arguments).folder)
    except BadState as error:
        sys.stderr.write(f"penstock: error: {error} [{error.code}]\n")
        return 2
    sys.stdout.write("\n".join(report(verdict)) + "\n")
    return 0 if verdict.is_good else 1


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["Plan", "Verdict", "judge", "main", "rank_name", "reference_name", "report"]
