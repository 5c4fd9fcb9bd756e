"""The iterator of a Loader, step by step: an object, see `penstock.client.loop.batches`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.client.calls.background_thread import log_in_background
from penstock.client.loop.batches import Batches
from penstock.client.loop.loader_report import describe
from penstock.client.loop.pass_lengths import Lengths
from penstock.client.loop.passes import Passes
from penstock.client.loop.reader import LoopReader, counts_in
from penstock.client.loop.steps import Batch, Step
from penstock.client.run.options import Options
from penstock.client.run.ranks import WorldRank, mesh_dimensions
from penstock.client.session.session import Session
from penstock.wire.errors import InvalidRequest

logger = logging.getLogger("penstock")


class ReaderSteps:
    """Cuts what a reader gives into steps: a `StepSource`.

    Args:
        reader: Of the Loader.
        options: What the Loader was given.
    """

    def __init__(self, reader: LoopReader, options: Options) -> None:
        self._reader, self._options = reader, options

    def next(self) -> Step | None:
        """Return the step that holds the next batch, None past the end."""
        reader = self._reader
        if reader.peek() is None:
            return None
        share, due = reader.started().share, reader.at.next
        index = share.step(due)
        return Step(self, index, share.positions(index), due, reader.given_of(index))

    def skip_rest(self, index: int) -> None:
        """Leave out what was not taken of step `index`."""
        reader = self._reader
        session = reader.started()
        before = reader.at.tally.skipped_batches
        while session.share.step(reader.at.next) == index and reader.peek() is not None:
            at = reader.at
            tally = at.tally._replace(skipped_batches=at.tally.skipped_batches + 1)
            reader.at = at._replace(next=session.share.nth_after(at.next, 1), tally=tally)
        if skipped := reader.at.tally.skipped_batches - before:
            log_in_background(
                logger.warning,
                "job %r: the training loop did not take %d batches of step %d: skipped",
                session.job,
                skipped,
                index,
            )

    @property
    def world_rank(self) -> WorldRank:
        """Which data-parallel rank this is, of how many."""
        self._reader.check()
        return self._reader.opener.world_rank

    def batches_of(self, index: int) -> Iterator[Batch]:
        """Return the batches of step `index` that are still to be given."""
        return Batches(self._reader, None, index)

    def counts_ahead(self, index: int) -> dict[int, Mapping[str, int]]:
        """Wait until the rest of step `index` is here, and return its counts by position."""
        found: dict[int, Mapping[str, int]] = {}
        reader = self._reader
        for position in reader.started().share.positions(index):
            at = reader.at
            if position >= at.next:
                is_first = not at.tally.batches
                delivery = reader.intake.take(reader.feed(), position, is_first=is_first)
                if delivery is None:
                    break
                found[position] = counts_in(delivery.header)
        return found

    def dp_process_group(self) -> Any:
        """Return the mesh's data-parallel process group; None = all processes.

        Raises:
            InvalidRequest: The mesh has several data-parallel dimensions.
        """
        ranks = self._options.ranks
        if ranks.mesh is None:
            return None
        names = mesh_dimensions(ranks.mesh, ranks.dp)
        if len(names) > 1:
            raise InvalidRequest(
                f"counts over the mesh dimensions {', '.join(names)} need a process group of "
                "them: pass process_group="
            )
        return ranks.mesh.get_group(names[0])


class Steps:
    """Iterates a Loader's steps. It can be used again after any exception."""

    def __init__(self, reader: LoopReader, options: Options, passes: Passes) -> None:
        self._reader, self._options, self._passes = reader, options, passes
        self._source = ReaderSteps(reader, options)
        self._is_begun = self._is_over = False
        self._given: tuple[Session, int] | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __repr__(self) -> str:
        """Return one line about where the Loader stands; asks nobody."""
        return f"<Steps of {describe(self._reader, self._options).removeprefix('<')}"

    def __len__(self) -> int:
        """Return how many steps a whole pass has, for a progress bar's total.

        Raises:
            TypeError: The job is endless, or it is not known yet where it ends.
        """
        return Lengths(self._reader, self._options).steps()

    def __next__(self) -> Step:
        reader = self._reader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            self._passes.begin()
            self._is_begun = True
        # If the loop's body has moved the Loader there is nothing to skip.
        if self._given is not None and reader.at.session is self._given[0]:
            self._source.skip_rest(self._given[1])
        step = self._source.next()
        session = reader.at.session
        if step is None or session is None:
            self._passes.end()
            self._is_over = True
            raise StopIteration
        before, given = self._given, (session, step.index)
        try:
            self._given = given
            return step
        except BaseException:
            self._given = before
            raise
