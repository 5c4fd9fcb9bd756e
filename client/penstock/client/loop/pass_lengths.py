"""How long a pass of a Loader is, as far as that is known: for `len()` and progress bars."""

from __future__ import annotations

from collections.abc import Callable

from penstock.client.loop.reader import LoopReader
from penstock.client.run.options import Options
from penstock.wire.order import Share, Tail

ENDLESS = (
    ": train by a number of steps (max_steps of a Trainer, a break in a loop), or give the job "
    'epochs: 1; evaluate with mode="eval" and max_steps=; where a torch Dataset is asked for, '
    "penstock.client.frameworks.data.LoaderDataset(loader) is one, without a length"
)
"""What to do about a job that has no length."""


class Lengths:
    """Counts the steps and batches of a whole pass.

    Args:
        reader: Of the Loader.
        options: What the Loader was given.
    """

    def __init__(self, reader: LoopReader, options: Options) -> None:
        self._reader, self._options = reader, options

    def steps(self) -> int:
        """Return how many steps a whole pass has.

        Raises:
            TypeError: The job is endless, or it is not known yet where it ends.
        """
        return self._known(self._count_steps)

    def batches(self) -> int:
        """Return how many batches this rank has in a whole pass.

        Raises:
            TypeError: As `steps`.
        """
        return self._known(lambda: self._batches(self._count_steps()))

    def _batches(self, steps: int | None) -> int | None:
        return None if steps is None else steps * self._share().batches_per_rank

    def _count_steps(self) -> int | None:
        """Return how many steps a whole pass has; None = endless, or not known yet.

        Nothing begins for it without a length, or before the state that is waited for is loaded:
        frameworks ask before that.
        """
        batches, options = self._reader.opener.count_batches(), self._options
        if batches is None:
            return options.max_steps
        return options.cut(Tail(batches, self._share().batches_per_step, options.tail_pad).steps)

    def _share(self) -> Share:
        reader, at = self._reader, self._reader.at
        awaits_state = at.session is None and at.start is None
        return reader.opener.share() if awaits_state else reader.started().share

    def _known(self, count: Callable[[], int | None]) -> int:
        self._reader.check()
        found = count()
        if found is not None:
            return found
        job, info = self._options.job, self._reader.opener.info
        if not info.finite:
            raise TypeError(f"job {job!r} is endless, so its Loader has no len(){ENDLESS}")
        so_far = f" ({info.counted_so_far})" if info.counted_so_far else ""
        raise TypeError(
            f"job {job!r} has a length that is not known yet{so_far}, so its Loader has no len(): "
            "ask again later; a job with a plan, made of an index of sizes, has it at once"
        )
