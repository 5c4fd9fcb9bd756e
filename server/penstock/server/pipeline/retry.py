"""Calls of roles' code: what may be gone in a moment is tried again, all else is named.

`SourceUnavailable` is about the moment: retried with backoff to a deadline, never quarantined. What
fails twice on the same bytes is about the bytes.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.roles.role import Role
from penstock.server.usercode.contained import as_exception
from penstock.server.usercode.frames import error_line, user_traceback
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import (
    BadBatch,
    BadItem,
    MissingExtra,
    PenstockError,
    SourceUnavailable,
)

logger = logging.getLogger("penstock")

T = TypeVar("T")

RETRY_DEADLINE_S = 60.0
"""How long a source may be unavailable before this node gives up on an item."""

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.05, 5.0

Progress = Callable[[str, ItemRef | None], None]
"""Told (stage, item) before anything that may take long or crash."""


class RoleCall(NamedTuple):
    """A role's code that is called for an item, as errors name it.

    Attributes:
        code: The role.
        method: Which of its methods.
        reading: It brings bytes and does not decode them: an error without an errno is about
            reading then, and not about the bytes.
        what_for: Words after its name.
    """

    code: Role
    method: str
    reading: bool = False
    what_for: str = ""

    @property
    def role(self) -> str:
        """Return the name of the code, as its author knows it."""
        return self.code.code_of(self.method) + self.what_for


class Calls:
    """Calls the roles of one job in one process.

    Args:
        job: The job.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        may_wait: Asked before a retry; False ends it, with the error, for those who wait behind.
        warn: Told, as a sentence, what people should know of although nothing failed for good.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        self.job = job
        self.progress: Progress = progress or (lambda stage, item: None)
        self.retry_deadline_s = retry_deadline_s
        self.may_wait: Callable[[], bool] = lambda: True
        self.warn: Callable[[str], None] = logger.warning
        self._warned: set[tuple[str, type[Exception]]] = set()
        self._retries: Counter[str] = Counter()

    def take_retries(self) -> dict[str, int]:
        """Return how often something was tried again since the last time, by `RETRIES`."""
        taken = dict(self._retries)
        self._retries.clear()
        return taken

    def retried(self, call: Callable[[], T], what: RoleCall, item: ItemRef | None = None) -> T:
        """Call; retry what may be gone in a moment, with backoff to the deadline.

        Raises:
            SourceUnavailable: It was not gone by then; names the item, and the role where that was
                doing more than to read.
            MissingExtra: It imports what this machine has not: that is no item's fault.
            Exception: Whatever else the role raises, at once.
        """
        failed_s, backoff_s = None, FIRST_BACKOFF_S
        while True:
            try:
                return call()
            except ImportError as missing:
                raise MissingExtra(
                    f"{what.role} of job {self.job.name!r} fails with {error_line(missing)}; "
                    "install it wherever this job is computed",
                    package=missing.name or "",
                    extra="",
                    traceback=user_traceback(missing),
                ) from missing
            except BaseException as raised:
                error = as_exception(raised)
                if not is_transient(error, reading=what.reading):
                    if error is raised:
                        raise
                    raise error from raised
                now = time.monotonic()
                failed_s = failed_s or now
                if now + backoff_s > failed_s + self.retry_deadline_s or not self.may_wait():
                    raise self._unavailable(what, item, error, now - failed_s) from error
                self._retries["unavailable"] += 1
                self.progress("retrying", item)
                time.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def twice(
        self,
        call: Callable[[], T],
        what: RoleCall,
        item: ItemRef,
        final: type[Exception] | tuple[type[Exception], ...],
    ) -> T:
        """Call, and again if it fails: once may be chance, the same bytes twice are the bytes.

        Args:
            call: Calls a role's own code.
            what: Which code.
            item: What it is called for.
            final: Errors that a second try would not change.
        """
        try:
            return self.retried(call, what, item)
        except final:
            raise
        except Exception as error:
            self._retries["second_try"] += 1
            found = self.retried(call, what, item)
            self.tell_of(what, error, item)
            return found

    def tell_of(self, what: RoleCall, error: Exception, item: ItemRef | None = None) -> None:
        """Warn of an error that went away: nothing is wrong with the data, but maybe with a role.

        Once for each kind of error: a role that always does so must not fill the log.
        """
        where = "" if item is None else f", the first of two tries of item {item},"
        self.tell_once(what, error, f"{what.role}{where} failed, and what came after it did not")

    def tell_once(self, what: RoleCall, error: Exception, said: str) -> None:
        """Warn of an error that ends nothing, once for each kind of it; not of a temporary one."""
        kind = what.role, type(error)
        if kind not in self._warned and not is_transient(error, reading=what.reading):
            self._warned.add(kind)
            self.warn(f"job {self.job.name!r}: {said}: {error_line(error)}")

    def failure(
        self, error: Exception, what: str, lane: int | None, offset: int | None
    ) -> PenstockError:
        """Return what an error means that a role raised where no item is judged.

        It is not called again here: its state may be half changed.

        Args:
            error: What it raised, other than a `PenstockError`, which says enough.
            what: What fails where, as the beginning of a sentence; `of job ... with ...` follows.
            lane: The lane of the batch that it was called for; None = of no batch.
            offset: Its offset.

        Returns:
            `SourceUnavailable` for what may be gone in a moment, so that whoever reads tries again;
            else `BadBatch` with the user's line.
        """
        cls = SourceUnavailable if is_transient(error) else BadBatch
        return cls(
            f"{what} of job {self.job.name!r} with {error_line(error)}",
            lane=lane,
            offset=offset,
            traceback=user_traceback(error),
        )

    def bad_item(self, stage: str, what: RoleCall, item: ItemRef, error: Exception) -> BadItem:
        """Return the error of an item on which a role's code fails."""
        if isinstance(error, BadItem) and error.item is not None:
            return error
        reason = error.message if isinstance(error, PenstockError) else error_line(error)
        return BadItem(
            f"item {item} of job {self.job.name!r} fails in {what.role} with {reason}; fix the "
            "role or the data, or set on_item_error: quarantine",
            item=list(item),
            stage=stage,
            reason=reason,
            traceback=user_traceback(error),
        )

    def damaged(self, item: ItemRef, error: BadItem) -> BadItem:
        """Name the item of bytes that its source has read and cannot decode."""
        return replace(
            error,
            message=f"item {item} of job {self.job.name!r}: {error.message}; put an undamaged copy "
            "of the file there, or set on_item_error: quarantine",
            item=list(item),
            stage=error.stage or "draw",
            reason=error.reason or error.message,
        )

    def _unavailable(
        self, what: RoleCall, item: ItemRef | None, error: Exception, tried_s: float
    ) -> SourceUnavailable:
        where = f"job {self.job.name!r}"
        if item is not None:
            where = f"item {item} of {where}"
        said = error.message if isinstance(error, PenstockError) else error_line(error)
        if isinstance(error, MemoryError):
            what_failed, remedy = "found no memory", "give this node more memory, or fewer workers"
        elif what.reading:
            what_failed, remedy = "could not be read", "check the storage, then read again"
        else:
            what_failed = f"could not be finished by {what.role}"
            remedy = "check what that code reads, as this node finds it, then read again"
        return SourceUnavailable(
            f"{where} {what_failed}, and was tried for {tried_s:.0f} s: {said}; {remedy}",
            item=None if item is None else list(item),
            role=None if what.reading else what.role,
            traceback=None if what.reading else user_traceback(error),
        )
