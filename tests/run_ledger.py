"""Conservation over all attempts of one run: what became of every batch that a rank was given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from invariants import Attempts, Generation


class KeptSteps(NamedTuple):
    """Steps of one attempt that are part of the run as it stands.

    Attributes:
        attempt: The number of the attempt, from 0.
        start: The first step.
        end: The first step after them.
    """

    attempt: int
    start: int
    end: int


@dataclass
class RunLedger:
    """Every batch that was given is accounted for once.

    What an attempt was given below the step where it ended was committed, or lies before a state
    that was loaded, so it is trained; the rest died with the attempt. What is trained is part of
    the run until the run goes back before it.

    Args:
        batches_per_step: G of the group.
        lanes: Of the job, whose log is endless.

    Attributes:
        generations: All attempts, in order.
        given: Batches that ranks were given.
        trained: Those of them below the step where their attempt ended.
        died: The others.
        rewound: Those that were trained, before the run went back.
    """

    batches_per_step: int
    lanes: int
    generations: list[Generation] = field(default_factory=list)
    given: int = 0
    trained: int = 0
    died: int = 0
    rewound: int = 0
    _kept: list[KeptSteps] = field(default_factory=list)
    _end: int = 0

    def end(self, attempt: Generation, step: int) -> None:
        """Enter an attempt that is over.

        Args:
            attempt: What it did.
            step: Where it ended: the group's cursor then, or the state that was loaded after it.
        """
        Attempts(self.batches_per_step, [attempt]).check(step)
        end = step * self.batches_per_step
        self.generations.append(attempt)
        for positions in attempt.delivered.values():
            trained = sum(position < end for position in positions)
            self.given += len(positions)
            self.trained += trained
            self.died += len(positions) - trained
        self._kept.append(KeptSteps(len(self.generations) - 1, attempt.start_step, step))
        self._end = step

    def begin(self, step: int, *, moved: bool) -> None:
        """Enter where the next attempt begins.

        Args:
            step: Its first step.
            moved: A seek or a state has said so; else it is where the last one ended.
        """
        assert moved or step == self._end, f"it begins at step {step}, and not at {self._end}"
        assert step <= self._end, f"steps {self._end} to {step} were left out"
        kept = []
        for span in self._kept:
            end = min(span.end, step)
            gone = span.end - max(end, span.start)
            self.rewound += gone * self.batches_per_step
            if span.start < end:
                kept.append(span._replace(end=end))
        self._kept = kept
        self._end = step

    def check(self) -> None:
        """Check that the run, as it stands, holds each batch of each lane once, in its order."""
        offsets: dict[int, list[int]] = {lane: [] for lane in range(self.lanes)}
        for span in self._kept:
            start, end = span.start * self.batches_per_step, span.end * self.batches_per_step
            found = sorted(
                position
                for positions in self.generations[span.attempt].delivered.values()
                for position in positions
                if start <= position < end
            )
            for position in found:
                offsets[position % self.lanes].append(position // self.lanes)
        in_the_run = self._end * self.batches_per_step
        for lane, found in offsets.items():
            expected = list(range(len(range(lane, in_the_run, self.lanes))))
            assert found == expected, (
                f"lane {lane}: {_difference(found, expected)}, of {len(expected)} batches"
            )
        assert self.given == self.trained + self.died
        assert self.trained == in_the_run + self.rewound, (
            f"{self.trained} batches were trained, {in_the_run} are in the run and {self.rewound} "
            "were rewound"
        )


def _difference(found: list[int], expected: list[int]) -> str:
    """Say what is there more than once, or is missing."""
    counts = Counter(found)
    missing = [offset for offset in expected if not counts[offset]]
    repeated = [offset for offset, count in counts.items() if count > 1]
    return f"offsets {missing[:5]} are missing, {repeated[:5]} are repeated, {found[:5]} are first"


__all__ = ["RunLedger"]
