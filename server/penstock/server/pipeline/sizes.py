"""The size of a sample, as its batcher counts it: asked here, for whoever needs it."""

from __future__ import annotations

from operator import index as whole

from penstock.server.core.refs import ItemRef
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.retry import Calls
from penstock.server.roles.samples import MAX_SIZE, Sample
from penstock.server.usercode.contained import contained
from penstock.wire.errors import BadBatch, PenstockError


def size_of(
    calls: Calls,
    roles: RoleSet,
    item: ItemRef,
    sample: Sample,
    *,
    lane: int | None = None,
    offset: int | None = None,
) -> int:
    """Return the size of a sample.

    Args:
        calls: Says what an error of a role means.
        roles: Whose batcher is asked.
        item: The sample's item, for errors.
        sample: What processing gave.
        lane: The lane of the batch that is planned or made; None = there is none yet.
        offset: Its offset.

    Raises:
        BadBatch: The batcher finds no size, or one that cannot be.
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
    return found
