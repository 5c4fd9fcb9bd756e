"""Where an iteration of a Loader begins and ends, and its iterator, batch by batch.

The iterator is an object, not a generator: a generator that has raised an exception is exhausted,
which a loop would take for the end of the data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from penstock.client.aside import tell
from penstock.client.frameworks.notice import reader_ahead
from penstock.client.options import Options
from penstock.client.reader import Reader
from penstock.client.run.session import Session
from penstock.client.steps import Batch
from penstock.wire.errors import InvalidRequest, PastEnd

logger = logging.getLogger("penstock")


class Passes:
    """Begins and ends the iterations of a Loader.

    Args:
        reader: Of the Loader.
        options: What the Loader was given.
    """

    def __init__(self, reader: Reader, options: Options) -> None:
        self._reader, self._options = reader, options
        self._holds_ahead: str | None = None  # the warning about a framework that never marks

    def begin(self) -> None:
        """Decide where a new iteration begins.

        Raises:
            InvalidRequest: A pass of `mode="eval"` would be endless.
            PastEnd: The group has been read to its end.
        """
        reader, options = self._reader, self._options
        session = reader.started()
        if options.is_eval:
            if not session.is_finite and options.max_steps is None:
                raise InvalidRequest(
                    f'job {session.job!r} is endless, and mode="eval" reads whole passes: pass '
                    "max_steps=, or give the job epochs: 1"
                )
            reader.read_from(session.share.at_or_after(0))
        elif (counted := reader.counted) != reader.at.next:
            # A framework has dropped a batch that it fetched ahead: it is read again.
            reader.read_from(counted, marked=reader.at.marked)
        elif reader.at.is_over:
            if session.group:
                raise PastEnd(
                    f"group {session.group!r} has read all {_steps(session)} steps of job "
                    f"{session.job!r}, and a group reads each step once: for more passes give the "
                    "job more epochs: or read with group=None; to read it again, seek(step=0)",
                    batches=session.batches,
                )
            reader.read_from(session.share.at_or_after(0))
        reader.at = reader.at._replace(pass_first=reader.at.next)
        if not options.is_eval:
            self._holds_ahead = reader_ahead(has_length=session.batches is not None)

    def end(self) -> None:
        """Note that an iteration has come to the end."""
        at = self._reader.at
        self._reader.at = at._replace(is_over=True)
        session = at.session
        if session is None or self._options.is_eval or at.next != session.first or at.is_over:
            return
        if session.group:
            whose, way = (
                f"group {session.group!r} of job {session.job!r}",
                "seek(step=0) reads it again",
            )
        else:
            whose, way = f"this reader of job {session.job!r}", "the next pass begins at step 0"
        tell(
            logger.warning,
            "%s begins at the end of %s steps: nothing is left; %s",
            whose,
            _steps(session),
            way,
        )

    def notice_ahead(self) -> None:
        """Warn once that a state counts a batch which a framework holds and has not trained on."""
        sentence = self._holds_ahead
        if sentence is not None and self._reader.at.marked is None:
            self._holds_ahead = None
            tell(logger.warning, "job %r: %s", self._options.job, sentence)


class Batches:
    """Iterates a Loader, or one step of it. It can be used again after any exception.

    Args:
        reader: Of the Loader.
        passes: Begins and ends the iteration; None = this is one of a step.
        index: The step; None = all.
    """

    def __init__(self, reader: Reader, passes: Passes | None, index: int | None = None) -> None:
        self._reader, self._passes, self._index = reader, passes, index
        self._is_begun = self._is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        reader = self._reader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            if self._passes is not None:
                self._passes.begin()
            self._is_begun = True
        offered = reader.offer(self._index)
        if offered is None:
            if self._passes is not None:
                self._passes.end()
            self._is_over = True
            raise StopIteration
        # The batch is given by one assignment, and nothing comes after it but the return: CPython
        # runs signal handlers after calls and backward jumps, so not between the two.
        batch, after = offered
        before = reader.at
        try:
            reader.at = after
            return batch
        except BaseException:
            reader.at = before
            raise


def _steps(session: Session) -> str:
    return f"{session.steps:,}" if session.steps is not None else "its"


__all__ = ["Batches", "Passes"]
