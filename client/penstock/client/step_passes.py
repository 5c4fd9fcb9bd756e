"""The iterator of a Loader, step by step; see `penstock.client.passes` for why it is an object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.client.run.session import Session
from penstock.client.steps import Step

if TYPE_CHECKING:
    from penstock.client.reader import Reader


class Steps:
    """Iterates a Loader's steps. It can be used again after any exception."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._is_begun = self._is_over = False
        self._given: tuple[Session, int] | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __repr__(self) -> str:
        """Return one line about where the Loader stands; asks nobody."""
        return f"<Steps of {self._reader.describe().removeprefix('<')}"

    def __len__(self) -> int:
        """Return how many steps a whole pass has, for a progress bar's total.

        Raises:
            TypeError: The job is endless, or it is not known yet where it ends.
        """
        return self._reader.length(self._reader.count_steps)

    def __next__(self) -> Step:
        reader = self._reader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            reader.begin_pass()
            self._is_begun = True
        # If the loop's body has moved the Loader there is nothing to skip.
        if self._given is not None and reader.at.session is self._given[0]:
            reader.skip_rest(self._given[1])
        step = reader.next_step()
        session = reader.at.session
        if step is None or session is None:
            reader.end_pass()
            self._is_over = True
            raise StopIteration
        before, given = self._given, (session, step.index)
        try:
            self._given = given
            return step
        except BaseException:
            self._given = before
            raise


__all__ = ["Steps"]
