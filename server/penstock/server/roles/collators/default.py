"""The collator that stacks: what `torch.utils.data.default_collate` does, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators.sample_arrays import (
    Array,
    as_array,
    bad_batch,
    count_noted,
    named,
    not_stacked,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.wire.joined import Joined, joined
from penstock.wire.packed_rows import made

_SCALARS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}


class DefaultBatchCollator(BatchCollator):
    """Stack the samples of a batch, key by key, in the order of the first sample's keys.

    * Arrays, tensors, images and regular lists of numbers of one shape `s` and one dtype become an
      array of shape `(B, *s)`, B = number of samples.
    * Python's bool, int and float become arrays of shape `(B,)`, of bool, int64 and float64, as in
      torch. A float among ints makes the whole batch float64.
    * Text, bytes, None, dicts and lists of these become a list of B values, as they are.

    A batch that quarantine has emptied is made of zeros, in the shapes of a real one; one that it
    has thinned has fewer samples.

    Counts: `samples`; `tokens`, where there are `input_ids`; what processors noted of samples.
    """

    type_name: ClassVar[str] = "default"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the stacked values; the samples of all rows, one after another.

        Raises:
            BadBatch: The samples differ in their keys, or under one key in shape or dtype.
        """
        return made(self._stacked(rows, context))

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return what `collate` gives; large arrays are stacked as they are written."""
        alone = self.keeps(DefaultBatchCollator, "collate")
        return self._stacked(rows, context) if alone else self.collate(rows, context)

    def _stacked(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        samples = [sample for row in rows for sample in row]
        noted = not_stacked(samples)
        values = _stack_all(samples, context, noted)
        if noted:
            count_noted(samples, context)
        context.count("samples", len(samples))
        if isinstance(ids := values.get("input_ids"), np.ndarray | Joined):
            context.count("tokens", ids.size)
        return values


def stack_samples(
    samples: Sequence[Sample], context: CollateContext, leave_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Return every value of the samples stacked, as `DefaultBatchCollator` says.

    Raises:
        BadBatch: The samples differ in their keys, or under one key in shape or dtype.
    """
    return made(_stack_all(samples, context, leave_out))


def _stack_all(
    samples: Sequence[Sample], context: CollateContext, leave_out: Sequence[str]
) -> dict[str, Any]:
    if not samples:
        return {}
    names = [name for name in samples[0] if name not in leave_out]
    for number, sample in enumerate(samples):
        for name in sample:
            if name not in samples[0] and name not in leave_out:
                raise bad_batch(
                    context,
                    f"sample {number} of {len(samples)} has {name!r}, which the first has not; "
                    "give every sample the same keys, with None for a value that it lacks",
                )
    return {name: _stack(name, named(samples, name, context), context) for name in names}


def _stack(name: str, values: list[Any], context: CollateContext) -> Array | Joined | list[Any]:
    kinds = {type(value) for value in values}
    if kinds <= _SCALARS.keys() and (len(kinds) == 1 or kinds == {int, float}):
        dtype = _SCALARS[float if float in kinds else kinds.pop()]
        try:
            return np.array(values, dtype=dtype)
        except OverflowError:
            raise bad_batch(
                context, f"{name!r} has {_widest(values)}, which no int64 holds; send it as text"
            ) from None
    arrays: list[Array] = []
    for value in values:
        array = as_array(value)
        if array is None:
            return list(values)
        arrays.append(array)
    first = arrays[0]
    for number, array in enumerate(arrays):
        if array.shape != first.shape:
            raise bad_batch(
                context,
                f"{name!r} has shape {first.shape} in sample 0 and {array.shape} in sample "
                f"{number}; pad to one length with the collator padded (PaddedCollator; sequences: "
                f"[{name}] adds a key to what it pads), keep each sample's own with the collator "
                "lists, or make them alike in the processor",
            )
        if array.dtype != first.dtype:
            raise bad_batch(
                context,
                f"{name!r} has dtype {first.dtype} in sample 0 and {array.dtype} in sample "
                f"{number}; make them alike in the processor: a batch's dtype must not depend "
                "on its samples",
            )
    return joined(arrays, stack=True)


def _widest(values: list[int]) -> int:
    return max(values, key=abs)
