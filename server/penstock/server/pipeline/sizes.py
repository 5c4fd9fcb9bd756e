"""The size of a sample, as its batcher counts it, and what else it counts: asked here alone."""

from __future__ import annotations

from operator import index as whole

from penstock.server.core.refs import ItemRef
from penstock.server.core.shown import shown
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.retry import Calls
from penstock.server.roles.samples import MAX_SIZE, Sample, SampleSizes, wrong_counts
from penstock.server.usercode.contained import contained
from penstock.wire.errors import BadBatch, PenstockError


def sizes_of(
    calls: Calls,
    roles: RoleSet,
    item: ItemRef,
    sample: Sample,
    *,
    lane: int | None = None,
    offset: int | None = None,
) -> int | SampleSizes:
    """Return the size of a sample, with its counts where the processor has `measures`.

    Args:
        calls: Says what an error of a role means.
        roles: Whose batcher is asked.
        item: The sample's item, for errors.
        sample: What processing gave.
        lane: The lane of the batch that is planned or made; None = there is none yet.
        offset: Its offset.

    Raises:
        BadBatch: The batcher finds no size, or the processor no counts, or such as cannot be.
        SourceUnavailable: It fails with an error that may be gone in a moment.
    """
    batcher = roles.batcher
    try:
        found = contained(lambda: whole(batcher.size_of(sample)))
    except PenstockError:
        raise
    except Exception as error:
        what = f"{batcher.code_of('size_of')} finds no size of a sample of item {item}"
        failure = calls.failure(error, what, lane, offset)
        has = ", ".join(sample) or "no values"
        raise failure.reworded(f"{failure.message}; the sample has {has}") from error
    if not 0 <= found <= MAX_SIZE:
        raise BadBatch(
            f"{batcher.code_of('size_of')} gave {found} for a sample of item {item} of job "
            f"{calls.job.name!r}: a size is from 0 to 2^63 - 1",
            lane=lane,
            offset=offset,
        )
    if not roles.measures:
        return found
    return SampleSizes(found, counts_of(calls, roles, item, sample, lane=lane, offset=offset))


def counts_of(
    calls: Calls,
    roles: RoleSet,
    item: ItemRef,
    sample: Sample,
    *,
    lane: int | None = None,
    offset: int | None = None,
) -> tuple[int, ...]:
    """Return what a sample counts beside its size, as its processor says; arguments as above."""
    if not roles.measures:
        return ()
    processor = roles.processor
    try:
        found = contained(lambda: processor.counts(sample))
        wrong = contained(lambda: wrong_counts(found, roles.measures))
    except PenstockError:
        raise
    except Exception as error:
        what = f"{processor.code_of('counts')} fails on a sample of item {item}"
        raise calls.failure(error, what, lane, offset) from error
    if wrong is not None:
        raise BadBatch(
            f"{processor.code_of('counts')} gave {shown(found)} for a sample of item {item} of "
            f"job {calls.job.name!r}: {wrong}",
            lane=lane,
            offset=offset,
        )
    return tuple(map(whole, found))
