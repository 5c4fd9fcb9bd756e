"""Checks that the files of a job are unchanged, when a run begins and not while it reads.

While a run reads, a file that is away is waited for: a mount may be back in a moment. A run that
begins has nothing to lose, and is told at once which file is missing or was replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import NamedTuple

from penstock.server.job.job import Job
from penstock.server.roles.role import asked

FRESH_S = 2.0
"""Seconds for which an answer is reused: the ranks of a run begin together."""

LOOK_S = 5.0
"""Seconds to wait for a filesystem; after that, reading will show what is wrong."""


class _Look(NamedTuple):
    began_at: float
    done: asyncio.Future[None]


class Present:
    """Looks for the files of jobs, in a thread, once for all simultaneous callers."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    async def check(self, job: Job) -> None:
        """Refuse a job whose sources have lost a file, or have another in its place.

        Raises:
            SourceChanged: Names the file.
            PenstockError: What else a source says.
        """
        loop = asyncio.get_running_loop()
        look = self._looks.get(job.name)
        if look is None or self._is_over(look, loop.time()):
            look = self._looks[job.name] = _Look(loop.time(), _in_thread(job, loop))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(look.done), LOOK_S)

    @staticmethod
    def _is_over(look: _Look, now: float) -> bool:
        """Tell whether an answer is too old; a refusal is never reused."""
        if not look.done.done():
            return False
        return look.done.exception() is not None or now - look.began_at > FRESH_S


def _in_thread(job: Job, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Begin to look; the thread does not delay the exit, however long a filesystem takes."""
    found: asyncio.Future[None] = loop.create_future()
    found.add_done_callback(lambda done: done.exception())  # the caller may be gone

    def look() -> None:
        error: Exception | None = None
        try:
            for source in job.sources.values():
                asked(source, "check_present")
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(_settle, found, error)

    threading.Thread(target=look, name="penstock-present", daemon=True).start()
    return found


def _settle(found: asyncio.Future[None], error: Exception | None) -> None:
    if found.cancelled():
        return
    if error is None:
        found.set_result(None)
    else:
        found.set_exception(error)
