"""A user's function as a collator: what `collator: {function: ./data.py:collate}` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators.sample_arrays import as_array, masked
from penstock.server.roles.context import CollateContext
from penstock.server.roles.role import Role
from penstock.server.roles.samples import Sample
from penstock.server.roles.user_function import FunctionRole
from penstock.wire.packed_rows import IGNORE_INDEX


class FunctionCollator(FunctionRole, BatchCollator):
    """Call a function for every batch, as torch calls a `collate_fn`: `function(samples)`.

    `samples` is the list of the batch's samples in their order, each a dict that the function may
    change. Of a batch of several rows they are the samples of the first row, then of the second:
    where rows matter, write a collator of your own. The function returns a dict of named values:
    arrays, tensors, and whatever else a batch may hold.

    It is called as `function(samples, context)` where it has a parameter of that name, or a second
    one without a default: `context.rng` is the batch's own generator, `context.count(name, n)` adds
    a number that travels with the batch. The global generators of random, numpy and torch are
    seeded before each batch, unless the function says that it draws nothing from them:
    `collate.uses_global_rng = False`.

    A batch that quarantine has emptied is made of samples of zeros, in the shapes of a real one. In
    every padding batch integer `labels` are -100, whatever the function gave.

    Counts: `samples`; where the function gives arrays of token ids as `input_ids`: `tokens`, with
    an `attention_mask` of their shape those under it, and the others as `padding_tokens`; with
    integer `labels` beside them `loss_tokens`, those other than -100. What the function counts
    itself under these names stays.
    """

    kind: ClassVar[str] = "collator"
    base: ClassVar[type[Role]] = BatchCollator
    example: ClassVar[str] = "./data.py:collate"

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return what the function returns for the samples of all rows.

        Raises:
            Exception: Whatever the function raises.
            TypeError: It did not return a dict.
        """
        # Copies: functions pop keys, and a sample may be read again, for another piece of it.
        samples = [dict(sample) for row in rows for sample in row]
        count = len(samples)  # before the function empties the list
        result = self.call(samples, context)
        if not isinstance(result, Mapping):
            raise TypeError(
                f"{self.parameters()['function']} returned {_described(result)}; return a dict of "
                "named values, such as {'image': images, 'label': labels}"
            )
        values = dict(result)
        for name, number in {"samples": count, **_token_counts(values)}.items():
            context.counts.setdefault(name, number)
        return values

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with -100 in all integer `labels`; nothing of `values` is changed."""
        labels = _array_of(values.get("labels"))
        return values if labels is None else masked({**values, "labels": labels})


def _described(result: Any) -> str:
    if isinstance(result, list | tuple):
        return f"a {type(result).__name__} of {len(result)}"
    return "None" if result is None else f"a {type(result).__name__}"


def _array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return an array or a tensor as an array; lists stay lists on the wire, and are not arrays."""
    return as_array(value) if hasattr(value, "__array__") else None


def _token_counts(values: Mapping[str, Any]) -> dict[str, int]:
    ids = _array_of(values.get("input_ids"))
    if ids is None or ids.dtype.kind not in "iu":
        return {}
    mask, labels = (_array_of(values.get(name)) for name in ("attention_mask", "labels"))
    counts = {"tokens": ids.size}
    if mask is not None and mask.shape == ids.shape:
        counts["tokens"] = int(np.count_nonzero(mask))
        counts["padding_tokens"] = ids.size - counts["tokens"]
    if labels is not None and labels.shape == ids.shape and labels.dtype.kind == "i":
        counts["loss_tokens"] = int(np.count_nonzero(labels != IGNORE_INDEX))
    return counts
