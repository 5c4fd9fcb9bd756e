"""What was delivered, compared with what `local:` computes: identical, lost, repeated.

It uses only the files of a run, so it can be asked again:
`python -m penstock.client.demo.account FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from penstock.wire.errors import BadState
from penstock.wire.order import Share


@dataclass(frozen=True)
class DemoRun:
    """What a run was meant to do; written before its ranks are killed.

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
        (folder / "run.json").write_text(json.dumps(asdict(self)) + "\n")

    @staticmethod
    def load(folder: Path) -> DemoRun:
        """Read it from the folder of a run.

        Raises:
            BadState: There is none.
        """
        try:
            return DemoRun(**json.loads((folder / "run.json").read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise BadState(f"{folder} is not a folder of a demo's run: {error}") from error


def rank_name(generation: int, rank: int) -> str:
    """Return the name of a rank's files: `rank-1-0` is rank 0 of generation 1."""
    return f"rank-{generation}-{rank}"


def reference_name(rank: int) -> str:
    """Return the name of a reference rank's files."""
    return f"local-{rank}"


def group_file(folder: Path, generation: int) -> Path:
    """Return where the group lies as it was after a generation: `penstock cursors show --json`."""
    return folder / f"group-{generation}.json"


@dataclass
class Account:
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
class _Delivered:
    """What a rank has printed: position and digest of each batch."""

    share: Share
    batches: list[tuple[int, str]]

    @property
    def steps(self) -> list[int]:
        return [self.share.step(position) for position, _ in self.batches]


def account_of(folder: Path) -> Account:
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
    run = DemoRun.load(folder)
    size = run.batches_per_step
    account = Account(wanted=run.until_step * size)
    generations = [
        [_load(folder, rank_name(number, r), Share(size, r, count)) for r in range(count)]
        for number, count in enumerate(run.world_sizes, start=1)
    ]
    count = run.reference_world_size
    reference = {
        position: digest
        for rank in range(count)
        for position, digest in _load(
            folder, reference_name(rank), Share(size, rank, count)
        ).batches
    }
    account.ranks = sum(map(len, generations))
    account.starts = [_start(number, ranks, account) for number, ranks in enumerate(generations, 1)]
    _check_group(folder, account)
    counted: set[int] = set()
    bounds = pairwise([*account.starts, run.until_step])
    for ranks, (start, end) in zip(generations, bounds, strict=True):
        delivered = _compare(ranks, reference, account)
        first, last = start * size, end * size
        account.repeated += sorted(p for p, n in delivered.items() if n > 1 or p < first)
        account.again += sorted(position for position in delivered if position >= last)
        counted |= {position for position in delivered if first <= position < last}
    for ranks, after in zip(generations, account.starts[1:], strict=False):
        # A rank commits a step before it prints a batch of the next.
        committed = min(max(rank.steps, default=0) for rank in ranks)
        if after < committed:
            account.problems.append(
                f"step {committed} was committed by all ranks, and the next generation started at "
                f"step {after}"
            )
    account.lost = sorted(set(range(account.wanted)) - counted)
    bad = {*account.repeated, *account.different, *account.unverified}
    account.identical = len(counted - bad)
    return account


def _load(folder: Path, name: str, share: Share) -> _Delivered:
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return _Delivered(share, [(int(each["position"]), str(each["digest"])) for each in records])


def _check_group(folder: Path, account: Account) -> None:
    """Check what the node said of the group after each generation."""
    paths = [group_file(folder, number) for number, _ in enumerate(account.starts, 1)]
    groups = [json.loads(path.read_text()) for path in paths if path.exists()]
    logs = sorted({str(group["log_id"]) for group in groups})
    if len(logs) > 1:
        account.problems.append(f"several logs were read: {', '.join(name[:12] for name in logs)}")
    for start, group in zip(account.starts[1:], groups, strict=False):
        if start != group["cursor"]:
            account.problems.append(
                f"the cursor was at step {group['cursor']}, and the next generation started at "
                f"step {start}"
            )


def _start(number: int, ranks: Sequence[_Delivered], account: Account) -> int:
    known = sorted({min(rank.steps) for rank in ranks if rank.batches})
    if len(known) != 1 or not all(rank.batches for rank in ranks):
        account.problems.append(
            f"the ranks of generation {number} did not all start, or not at one step: {known}"
        )
    return known[0] if known else 0


def _compare(
    ranks: Sequence[_Delivered], reference: dict[int, str], account: Account
) -> Counter[int]:
    """Compare a generation with the reference; return how often each position was delivered."""
    delivered: Counter[int] = Counter()
    for rank in ranks:
        for position, digest in rank.batches:
            delivered[position] += 1
            if not rank.share.owns(position):
                account.problems.append(
                    f"rank {rank.share.rank} of {rank.share.world_size} was given position "
                    f"{position}, which is another's"
                )
            if position not in reference:
                account.unverified.append(position)
            elif reference[position] != digest:
                account.different.append(position)
    return delivered


def report(account: Account) -> list[str]:
    """Return the result as lines for people."""
    lines = [
        f"{account.wanted:,} batches were to be read, by {account.ranks} rank processes in "
        f"{len(account.starts)} generations",
        f"  {'identical':<10}{account.identical:>8,}   the same SHA-256 as local: computes",
        f"  {'lost':<10}{len(account.lost):>8,}{_named(account.lost)}",
        f"  {'repeated':<10}{len(account.repeated):>8,}{_named(account.repeated)}",
    ]
    for name, found in (("different", account.different), ("unverified", account.unverified)):
        if found:
            lines.append(f"  {name:<10}{len(found):>8,}{_named(found)}")
    if account.again:
        batches = "1 batch" if len(account.again) == 1 else f"{len(account.again)} batches"
        lines += [
            f"{batches} of an unfinished step had been delivered before the ranks were killed;",
            "that step was read again from its start, as a run does that resumes at its checkpoint",
        ]
    lines += [f"problem: {sentence}" for sentence in account.problems]
    return lines


def _named(positions: Sequence[int]) -> str:
    if not positions:
        return ""
    shown = ", ".join(str(position) for position in positions[:8])
    return f"   position{'s' if len(positions) > 1 else ''} {shown}" + (
        ", ..." if len(positions) > 8 else ""
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at a run that was kept; 0 = every batch identical, none lost, none repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.client.demo.account",
        description="Look at a run of `penstock demo --keep` once more, from its files alone.",
    )
    parser.add_argument("folder", type=Path)
    try:
        account = account_of(parser.parse_args(arguments).folder)
    except BadState as error:
        sys.stderr.write(f"penstock: error: {error} [{error.code}]\n")
        return 2
    sys.stdout.write("\n".join(report(account)) + "\n")
    return 0 if account.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
