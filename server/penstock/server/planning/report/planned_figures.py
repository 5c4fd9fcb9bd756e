"""The figures of a planned job: window by window, by array code.

In every epoch a window has the same batches in another order, so one epoch tells all of them; where
the batcher does not look at sizes each epoch has other samples in its batches, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.log.planned_log import PlannedLog, planned_log
from penstock.server.planning.report.figures import Figures, Processing
from penstock.server.planning.report.known_sizes import INDEX, collates_by_size
from penstock.server.planning.report.misfits import refuse, worst
from penstock.server.planning.report.skew import Costs
from penstock.server.planning.report.window_figures import WindowFigures, WindowKey, add_up
from penstock.server.roles.filling import BatchSizes, Numbers
from penstock.wire.errors import BadBatch

MUCH = 1.2
"""That samples are processed several times is told from so many times the processing on."""

AddUp = Callable[[RoleSet, Sequence[WindowKey], int], WindowFigures]
"""Adds up windows, as `add_up` does."""


def figures_of_planned(job: Job, epochs: int | None = None, add: AddUp = add_up) -> Figures:
    """Return the figures of a planned job.

    Args:
        job: The job, of one set of roles.
        epochs: How many epochs; None = all of a finite job, 1 of an endless one.
        add: Adds up windows.

    Raises:
        BadBatch: The collator cannot make a batch; names the one that needs most.
        BadItem, InvalidJob, SourceUnavailable: As `add_up`.
    """
    [roles] = job.role_sets
    log = planned_log(roles)
    is_all = job.epochs is not None and (epochs is None or epochs >= job.epochs)
    drawn = (job.epochs or 1) if epochs is None or is_all else epochs
    found = add(roles, _windows(log), drawn if log.fills_differ else 1)
    for (group, number), costs in found.costs.items():
        batches = len(next(iter(costs.values())))
        chains = found.chains.get((group, number))
        log.streams[group].learn(number, batches, costs.get("balance"), chains)
    if found.misfits:
        raise _misfits(found, roles)
    tally, times = found.tally, 1 if log.fills_differ else drawn
    if times > 1:
        tally = tally.repeated(times)
    counts = {name: count * drawn for name, count in sorted(found.counts.items())}
    sources = {
        name: (int(samples) * times, int(tokens) * times)
        for name, samples, tokens in zip(found.names, found.samples, found.tokens, strict=True)
    }
    positions = tally.batches if is_all else _gapless(log, roles, drawn)
    processing = _processing(roles, found)
    return Figures(
        INDEX if tally.tokens else "none",
        tally,
        _by_position(log, roles, found, is_all=is_all and drawn == 1),
        positions,
        is_all,
        drawn,
        counts,
        0,
        sources,
        is_planned=True,
        processing=processing,
        notes=(
            *_much(processing),
            *_notes(log, found, drawn, is_all, tally.batches - positions),
        ),
    )


def check_fits(roles: RoleSet, epochs: int | None, add: AddUp = add_up) -> None:
    """Refuse a planned set with a row or a batch of more documents than the collator has room for.

    All of its windows are packed for that, so nothing is done where the collator has room for any
    number.

    Args:
        roles: The set of roles, planned.
        epochs: How many epochs there are; None = no end: the first one is looked at.
        add: Adds up windows.

    Raises:
        BadBatch: A batch cannot be made; names the one that needs most.
        BadItem, InvalidJob, SourceUnavailable: As `add_up`.
    """
    log, one = planned_log(roles), np.array([0, 1])
    # Asked of a batch of one token: no collator is ever asked of no batch.
    filling = roles.collator.filling(BatchSizes(one[1:], one, one))
    if filling is None or filling.max_documents is None or not collates_by_size(roles.batcher):
        return
    found = add(roles, _windows(log), (epochs or 1) if log.fills_differ else 1)
    if found.misfits:
        raise _misfits(found, roles)


def _misfits(found: WindowFigures, roles: RoleSet) -> BadBatch:
    """Return the error of batches that cannot be made."""
    log = planned_log(roles)
    # In the order of windows, not that in which they were added up: of equals the first is named.
    ordered = sorted(found.misfits, key=lambda each: (each[1], each[2], each[0].batch))
    every = [misfit for misfit, *_ in ordered]
    most = worst(every)
    (group, window), epoch = next((key, epoch) for misfit, key, epoch in ordered if misfit is most)
    lane, offset = log.stands(group, epoch, window, most.batch)
    return refuse(every, found.tally.batches, lane, offset, roles.name)


def _windows(log: PlannedLog) -> list[WindowKey]:
    return [
        (group, number)
        for group, stream in enumerate(log.streams)
        for number in range(stream.windows)
    ]


def _gapless(log: PlannedLog, roles: RoleSet, epochs: int) -> int:
    """Return how many positions the first epochs fill without a gap."""
    lanes = roles.lanes
    return min(log.batches_of(lane, epochs) * lanes + lane for lane in range(lanes))


def _by_position(
    log: PlannedLog, roles: RoleSet, found: WindowFigures, *, is_all: bool
) -> Mapping[str, Costs]:
    """Return the costs of the first epoch's batches by position, up to the first gap."""
    groups, lanes = len(log.streams), roles.lanes
    parts: list[dict[str, npt.NDArray[Any]]] = []
    places: list[Numbers] = []
    for group, stream in enumerate(log.streams):
        if not stream.windows:  # there are more groups than storage blocks: its lanes have none
            continue
        windows, batches = stream.order.of_epoch(0)
        own = [found.costs[group, number] for number in range(stream.windows)]
        counts = [stream.count(number) for number in range(stream.windows)]
        flat = np.cumsum([0, *counts])[windows] + batches
        # One by one: of 10^8 samples a column has millions of numbers.
        parts.append({name: np.concatenate([of[name] for of in own])[flat] for name in own[0]})
        offsets, turns = np.divmod(np.arange(len(flat)), lanes // groups)
        places.append(offsets * lanes + turns * groups + group)
    if groups == 1:
        return parts[0] if parts else {}
    every = np.concatenate(places)
    order = np.argsort(every, kind="stable")
    if not is_all:
        order = order[: _gapless(log, roles, 1)]
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def _processing(roles: RoleSet, found: WindowFigures) -> Processing | None:
    """Return how often samples are processed, where pieces of one are in several batches."""
    if not found.chains or roles.columns:
        return None
    return Processing(found.processed / found.once, found.kept)


def _much(processing: Processing | None) -> Iterator[str]:
    """Yield that samples are processed several times, where it is much, and what to do."""
    if processing is not None and processing.times > MUCH:
        yield (
            f"samples are processed {processing.times:.1f} times, since many have pieces in the "
            "batches of several lanes: with fewer lanes, or a larger window, each lane has more "
            "batches of a window; without balance any batch may stand in any lane; and ready token "
            "ids need no processing"
        )


def _notes(
    log: PlannedLog, found: WindowFigures, epochs: int, is_all: bool, beyond: int
) -> Iterator[str]:
    """Yield what the figures are not."""
    if not is_all:
        order = (
            "other samples in each batch" if log.fills_differ else "other samples of these sizes"
        )
        yield f"the log goes on after this: the next epoch has {order}"
        if beyond:
            yield (
                "reading groups have different numbers of batches: steps leave out the last "
                f"{beyond:,}, between which there are gaps"
            )
    if epochs > 1:
        yield "cost skew is that of the first epoch: in others the same batches meet others"
    if found.by_chance and epochs > 1 and not log.fills_differ and len(found.names) > 1:
        yield (
            "which samples are left out or split differs from epoch to epoch: samples and tokens "
            "by source are those of the first, times the epochs"
        )
