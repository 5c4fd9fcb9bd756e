"""What collators share: array-likes as NumPy, and errors for samples that do not fit together."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.core.shown import shown
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch, MissingExtra
from penstock.wire.packed_rows import IGNORE_INDEX

Array = npt.NDArray[Any]

PAD_ID = "pad_token_id"
"""The key under which a sample tells the id that its tokenizer pads with."""

NOTED = "noted"
"""The key under which a processor adds integers to the counts of the batch that holds a sample."""

MOST_NOTED = 1 << 48
"""What is counted of one sample, so that the sum of a batch fits into a message's int64."""

CHOSEN = ("loss_mask", "token_mask", "row_tokens")
"""Masks of tokens that a loss is taken of, beside `labels`."""


def as_array(value: Any) -> Array | None:
    """Return a number, an array, a tensor or a regular list of numbers as an array.

    Returns:
        Bool, integer, float or complex, of any shape; bfloat16 tensors as `ml_dtypes.bfloat16`. A
        view where possible: not to be written to. None if `value` is something else, such as
        text, None, a dict, or a list that is ragged.
    """
    if isinstance(value, np.ma.MaskedArray):
        return None  # stacking would drop the mask; the wire refuses it by name
    if isinstance(value, np.ndarray):
        return value if _is_numeric(value) else None
    if value is None or isinstance(value, str | bytes | dict):
        return None
    torch = sys.modules.get("torch")  # a tensor can only come from code that has imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(torch, value)
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError):  # a ragged list; a number that no dtype holds
        return None
    if not _is_numeric(array) or _is_rounded(value, array):
        return None
    return array


def _is_rounded(value: Any, array: Array) -> bool:
    """Tell whether NumPy has made floats of whole numbers that no integer dtype holds together."""
    is_large = array.dtype == np.float64 and array.size and np.abs(array).max() >= 2**63
    return bool(is_large) and isinstance(value, list | tuple) and _has_large(value)


def _has_large(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_has_large, values))
    return isinstance(values, int) and abs(values) >= 2**63


def token_ids(sample: Sample, context: CollateContext) -> Array:
    """Return a sample's `input_ids`: integer, (t,), t >= 0.

    Raises:
        BadBatch: It has none, or they are not one row of integers.
    """
    if "input_ids" not in sample:
        raise bad_batch(
            context,
            "a sample has no 'input_ids', only "
            f"{', '.join(map(repr, sample)) or 'nothing'}; name them so in the processor",
        )
    return token_row(sample["input_ids"], "input_ids", context)


def token_row(value: Any, name: str, context: CollateContext) -> Array:
    """Return one integer per token, (t,).

    Raises:
        BadBatch: `value` is not one row of integers.
    """
    array = as_array(value)
    if array is None or array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        what = type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        raise bad_batch(
            context,
            f"{name!r} of a sample is {what}; give one row of integers, shape (tokens,)",
        )
    return array


def flag_row(value: Any, name: str, context: CollateContext) -> Array:
    """Return whether each token is meant: bool, (t,); what is not 0 is.

    Raises:
        BadBatch: `value` is not one row of numbers or booleans.
    """
    array = as_array(value)
    if array is None or array.ndim != 1 or array.dtype.kind not in "biuf":
        what = type(value).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        raise bad_batch(
            context, f"{name!r} of a sample is {what}; give 1 or 0 per token, shape (tokens,)"
        )
    flags: Array = array != 0
    return flags


def narrowed(array: Any) -> Any:
    """Return an integer array as int32 where that holds its numbers, else as it is; None for None.

    Args:
        array: int32, int64 or None.
    """
    if array is None or array.dtype == np.int32:
        return array
    small = array.astype(np.int32)
    return small if (small == array).all() else array


def learned_labels(labels: Array, learned: Array, ignored: int = IGNORE_INDEX) -> Array:
    """Return int64 labels, (t,), with `ignored` where `learned`, bool (t,), is False."""
    return np.where(learned, labels.astype(np.int64), ignored)


def pad_id(given: int | None, samples: Iterable[Sample], context: CollateContext) -> int:
    """Return the id on padding: what the job says, else the samples' `pad_token_id`, else 0.

    Raises:
        BadBatch: The samples have several, or one that is not a whole number.
    """
    if given is not None:
        return given
    found = {sample[PAD_ID] for sample in samples if sample.get(PAD_ID) is not None}
    if len(found) > 1 or not all(isinstance(one, int | np.integer) for one in found):
        raise bad_batch(
            context,
            f"the samples have the {PAD_ID}s {', '.join(map(repr, sorted(found, key=repr)))}; give "
            "them one whole number, or set pad_value",
        )
    return int(found.pop()) if found else 0


def count_noted(samples: Iterable[Sample], context: CollateContext) -> None:
    """Add what processors noted about their samples, `noted: {name: n}`, to the batch's counts.

    Raises:
        BadBatch: A name is not text, or a number not whole, or larger than a message has room for.
    """
    for sample in samples:
        if NOTED in sample and isinstance(noted := sample[NOTED], Mapping):
            for name, number in noted.items():
                if not isinstance(name, str) or not _is_count(number):
                    raise bad_batch(
                        context,
                        f"{NOTED!r} of a sample has {shown(name)}: {shown(number)}; give whole "
                        "numbers by names",
                    )
                context.count(name, context.counts.get(name, 0) + int(number))


def not_stacked(samples: Sequence[Sample]) -> list[str]:
    """Return the keys that are notes for the batch's counts, and no values."""
    for sample in samples:
        if NOTED in sample and isinstance(sample[NOTED], Mapping):
            return [NOTED]
    return []


def _is_count(number: Any) -> bool:
    return (
        isinstance(number, int | np.integer)
        and not isinstance(number, bool)
        and abs(int(number)) < MOST_NOTED
    )


def masked(values: dict[str, Any], ignored: int = IGNORE_INDEX) -> dict[str, Any]:
    """Return `values` with nothing to learn: `labels` all `ignored`, 0 where masks chose tokens.

    Labels that are not integers are kept, and nothing of `values` is changed.
    """
    blank = dict(values)
    labels = values.get("labels")
    if isinstance(labels, np.ndarray) and labels.dtype.kind == "i":
        blank["labels"] = np.full_like(labels, ignored)
    for name in CHOSEN:
        if isinstance(values.get(name), np.ndarray):
            blank[name] = np.zeros_like(values[name])
    return blank


def bad_batch(context: CollateContext, sentence: str) -> BadBatch:
    """Return the error of a batch whose samples do not fit together."""
    return BadBatch(
        f"lane {context.lane}, offset {context.offset}: {sentence}",
        lane=context.lane,
        offset=context.offset,
    )


def named(samples: Sequence[Sample], name: str, context: CollateContext) -> list[Any]:
    """Return one value of every sample.

    Raises:
        BadBatch: A sample has no value of that name.
    """
    for number, sample in enumerate(samples):
        if name not in sample:
            raise bad_batch(
                context,
                f"sample {number} of {len(samples)} has no {name!r}, only "
                f"{', '.join(map(repr, sample)) or 'nothing'}; give every sample the same keys",
            )
    return [sample[name] for sample in samples]


def _is_numeric(array: Array) -> bool:
    # Kind V with a name of its own: bfloat16 and the float8 types of ml_dtypes.
    return array.dtype.kind in "biufc" or (
        array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.name[:4] != "void"
    )


def _tensor(torch: Any, tensor: Any) -> Array | None:
    if tensor.layout != torch.strided:
        return None  # the wire refuses it by name
    tensor = tensor.detach().cpu()
    if tensor.dtype != torch.bfloat16:
        array: Array = tensor.numpy()
        return array
    try:
        import ml_dtypes
    except ImportError:
        raise MissingExtra(
            "bfloat16 tensors need the package ml_dtypes; "
            "install it with: pip install 'penstock[server]'",
            package="ml_dtypes",
            extra="server",
        ) from None
    bits: Array = tensor.contiguous().view(torch.int16).numpy()
    found: Array = bits.view(ml_dtypes.bfloat16)
    return found
