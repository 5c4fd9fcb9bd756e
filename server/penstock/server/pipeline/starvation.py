"""A lane that draws and draws, and gets no sample or finishes no batch, is stopped by name."""

from __future__ import annotations

from collections.abc import Callable

from penstock.server.job.job import Job, LaneRoles
from penstock.wire.errors import LaneStarved

MIN_DRAWS_WITHOUT_SAMPLE, STARVED_EPOCHS = 1000, 4
"""A lane is starved after so many whole epochs' draws, and no fewer draws than these: a lane's own
part of an epoch may be a handful of items, and that a strict filter rejects all of them is chance.
"""

MIN_DRAWS_WITHOUT_BATCH, MAX_DRAWS = 100_000, 1_000_000
"""A batcher may hold many samples before it finishes a batch, but not for ever: the lane of a small
job stops after the first number, and no lane draws more than the second."""


class Starvation:
    """Watches the draws of one lane.

    Args:
        job: The job.
        lane: The lane.
        part: Whose draws of it.

    Attributes:
        without_sample: Draws since the last one that gave a sample.
        without_batch: Draws since the last one that finished a batch.
    """

    def __init__(self, job: Job, lane: int, part: LaneRoles) -> None:
        self._job, self._lane, self._roles = job, lane, part.roles
        self.begin()

    def begin(self) -> None:
        """Count from here: nothing was drawn in vain."""
        self.without_sample = self.without_batch = 0

    def has_room(self, draws: int) -> bool:
        """Tell whether so many draws more cannot starve the lane, each of which gives a sample."""
        return self.without_batch + draws <= MIN_DRAWS_WITHOUT_BATCH

    def drew(
        self,
        draws: int,
        *,
        accepted: bool,
        finished: bool,
        counts: Callable[[], dict[str, int]],
    ) -> None:
        """Note a draw, or several that each gave a sample: these only where there `has_room`.

        Args:
            draws: How many.
            accepted: The last gave a sample that was kept.
            finished: It finished a batch.
            counts: Asked what the lane has counted, for the reasons.

        Raises:
            LaneStarved: As many draws as several epochs have gave none.
        """
        self.without_sample = 0 if accepted else self.without_sample + 1
        self.without_batch = 0 if finished else self.without_batch + draws
        if (
            self.without_sample <= MIN_DRAWS_WITHOUT_SAMPLE
            and self.without_batch <= MIN_DRAWS_WITHOUT_BATCH
        ):
            return  # whatever an epoch has
        if self._roles.epochs is not None:
            return  # a finite lane ends by itself
        epoch = self._roles.distributor.epoch_draws(1)
        many = MAX_DRAWS if epoch is None else STARVED_EPOCHS * epoch
        starved = self.without_sample > min(max(many, MIN_DRAWS_WITHOUT_SAMPLE), MAX_DRAWS)
        stuck = self.without_batch > min(max(many, MIN_DRAWS_WITHOUT_BATCH), MAX_DRAWS)
        if starved or stuck:
            reasons = counts()
            drawn = self.without_sample if starved else self.without_batch
            raise LaneStarved(
                f"lane {self._lane} of job {self._job.name!r} drew {drawn} items in a row without "
                f"{'one sample' if starved else 'finishing a batch'} ({_words(reasons)}); loosen "
                "the filter, or look at the data",
                lane=self._lane,
                drawn=drawn,
                reasons=reasons,
            )


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()) if count)
