"""Where an iteration of a Loader begins and ends."""

from __future__ import annotations

import logging

from penstock.client.calls.background_thread import log_in_background
from penstock.client.loop.lookahead_notice import reader_ahead
from penstock.client.loop.reader import LoopReader
from penstock.client.run.options import Options
from penstock.client.session.session import Session
from penstock.wire.errors import InvalidRequest, PastEnd

logger = logging.getLogger("penstock")


class Passes:
    """Begins and ends the iterations of a Loader.

    Args:
        reader: Of the Loader.
        options: What the Loader was given.
    """

    def __init__(self, reader: LoopReader, options: Options) -> None:
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
        log_in_background(
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
            log_in_background(logger.warning, "job %r: %s", self._options.job, sentence)


def _steps(session: Session) -> str:
    return f"{session.steps:,}" if session.steps is not None else "its"
