"""Calls the collator: seeded if it draws, retried after temporary errors, its errors named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.server.core.refs import BatchPlan
from penstock.server.pipeline.retry import Calls, RoleCall
from penstock.server.roles.context import CollateContext, batch_key
from penstock.server.roles.samples import Sample
from penstock.server.usercode.frames import error_line, user_traceback
from penstock.server.usercode.seeding import BorrowedGlobals
from penstock.wire.errors import BadBatch, PenstockError, SourceUnavailable
from penstock.wire.packed_rows import made


class Collating:
    """Calls the collator of one job in one process.

    Args:
        calls: What roles are called with.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls, self._job = calls, calls.job
        self._whats = [RoleCall(roles.collator, "collate") for roles in calls.job.role_sets]
        self._globals = BorrowedGlobals()

    def collate(
        self, rows: Sequence[Sequence[Sample]], plan: BatchPlan
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the values of a batch and its counts, `samples` and those that the collator adds.

        Args:
            rows: Its samples.
            plan: Its lane and offset, and its items for errors.

        Raises:
            BadBatch: The collator fails on these samples.
            SourceUnavailable: What it reads is away.
        """
        collator = self._job.role_sets[plan.role_set].collator
        self._calls.progress("collate", None)
        try:
            what = self._whats[plan.role_set]
            values, counted = self._calls.retried(lambda: self._collate(rows, plan), what)
        except SourceUnavailable:
            raise
        except BadBatch as error:
            raise error.reworded(f"job {self._job.name!r}, {error.message}") from error
        except Exception as error:
            text = f"{error_line(error)}; fix the collator, or the samples that it gets"
            if isinstance(error, PenstockError):
                text = error.message
            items = [str(ref.item) for row in plan.rows for ref in row]
            shown = ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
            raise BadBatch(
                f"{collator.code_of()} fails on the batch at lane {plan.lane}, "
                f"offset {plan.offset} of job {self._job.name!r} ({shown}): {text}",
                lane=plan.lane,
                offset=plan.offset,
                traceback=user_traceback(error),
            ) from error
        return values, {"samples": sum(map(len, rows)), **counted}

    def blank(self, values: dict[str, Any], plan: BatchPlan) -> dict[str, Any]:
        """Return the values of a padding batch, with nothing in `values` changed.

        Raises:
            BadBatch: The collator fails on them.
            SourceUnavailable: What it reads is away.
        """
        collator = self._job.role_sets[plan.role_set].collator
        try:
            return collator.blank(made(values))
        except PenstockError:
            raise
        except Exception as error:
            place = f"lane {plan.lane}, offset {plan.offset}"
            what = f"{collator.code_of()} fails on blank(), at {place},"
            raise self._calls.failure(error, what, plan.lane, plan.offset) from error

    def _collate(
        self, rows: Sequence[Sequence[Sample]], plan: BatchPlan
    ) -> tuple[dict[str, Any], dict[str, int]]:
        job, collator = self._job, self._job.role_sets[plan.role_set].collator
        context = CollateContext(job.seed, plan.lane, plan.offset)
        if collator.uses_global_rng:
            with self._globals as borrowed:
                borrowed.seed(batch_key(job.seed, plan.lane, plan.offset))
                values = collator.collate_to_send(rows, context)
        else:
            values = collator.collate_to_send(rows, context)
        # NumPy's integers, which a sum gives, cannot be in a message.
        return values, {name: int(value) for name, value in context.counts.items()}
