"""What a planned job says about its plan, checked."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self

from penstock.common.checks import check_flag, check_whole
from penstock.server.planning.log.cost_expression import Expression
from penstock.wire.errors import InvalidJob

PLAN_VERSION = 2
"""Version of the arithmetic of planned logs, part of the log id of each."""

DEFAULT_WINDOW = 262_144
"""Samples: rows packed from so many are as full as those of a whole corpus, and a window of them
takes about 15 MB in each worker."""

COSTS = ("tokens", "squares", "samples", "rows", "longest", "padded")
"""What the cost of a batch is an expression of."""


class _AnyName(Collection[str]):
    """All names, of which `COSTS` are shown."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)

    def __iter__(self) -> Iterator[str]:
        return iter(COSTS)

    def __len__(self) -> int:
        return len(COSTS)


class PlanParameters:
    """Batches are packed from an index of sizes, over large windows, before anything is read.

    Args:
        index: The file that `penstockd index` writes: a path relative to the job file, or a URL.
            The hash of its content is part of the log id.
        window: How many samples are packed together. A larger window leaves less padding with small
            packs, and costs each worker memory, about 60 bytes a sample, and time at its beginning.
            One as large as an epoch packs the whole corpus at once. Default: 262,144; with
            `shuffle: blocks` those of `window_blocks / 2` storage blocks, since lanes of a group
            may be in two windows at a time.
        group_by_length: With `batch_size`, put samples of like sizes into one batch, so that little
            is padded: a window is sorted by size and cut into batches, which come in random order.
        balance: What a batch costs to train on, as an expression, such as `tokens + squares /
            8192`: the batches of a step then cost alike, and within a step they come sorted by
            cost, so that ranks wait little for each other at each micro batch. A group's own
            `batches_per_step` must divide the job's. None = batches come in random order. Names:
            `tokens`, `squares` (the sum of the squared sizes of its samples), `samples`, `rows`,
            `longest` (the tokens of its longest row) and `padded` (`rows * longest`); and the
            processor's measures, such as `media_tokens`, summed over the samples of the batch.
        storage_options: Options of fsspec for the index, such as credentials.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    def __init__(
        self,
        index: str,
        window: int | None = None,
        group_by_length: bool = False,
        balance: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(index, str) or not index:
            raise InvalidJob(
                f"index is {index!r}: give the path or the URL of an index of sizes, which "
                "`penstockd index` writes",
                key="plan.index",
            )
        self.index = index
        self.window = DEFAULT_WINDOW if window is None else window
        self.window_given = window is not None
        check_whole("window", self.window, 1, "the samples that are packed together")
        self.group_by_length = check_flag("group_by_length", group_by_length)
        self._balance = balance
        # Which names there are is known with the processor: see `counting`.
        self.balance = None if balance is None else Expression(balance, _AnyName(), "plan.balance")
        self.storage_options = dict(storage_options or {})

    def counting(self, measures: Sequence[str]) -> Self:
        """Return this plan for samples that count so much beside their sizes.

        Raises:
            InvalidJob: `balance` has a name that is neither a measure nor one of `COSTS`.
        """
        found = copy.copy(self)
        if self._balance is not None:
            found.balance = Expression(self._balance, (*COSTS, *measures), "plan.balance")
        return found

    def parameters(self) -> dict[str, Any]:
        """Return what of it decides bytes, but for the index and what the data decides."""
        found: dict[str, Any] = {"version": PLAN_VERSION}
        if self.group_by_length:
            found["group_by_length"] = True
        if self.balance is not None:
            found["balance"] = self.balance.to_json()
        return found
