"""The collator that pads: one sample per row, all rows of one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.collators.default import stack_samples
from penstock.server.roles.collators.sample_arrays import (
    CHOSEN,
    PAD_ID,
    Array,
    as_array,
    bad_batch,
    count_noted,
    flag_row,
    learned_labels,
    masked,
    not_stacked,
    pad_id,
    token_ids,
    token_row,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import BatchSizes, Filling, NumbersT, RowWidth, largest, sums
from penstock.server.roles.parameters import AtLeast, OfType, OneOf, TrueOrFalse, declared
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch, InvalidJob
from penstock.wire.packed_rows import IGNORE_INDEX

_ALIGNED = (
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "special_tokens_mask",
    *CHOSEN,
)


@declared
class PaddedCollator(BatchCollator):
    """Pad samples on the right to one length T, the longest of the batch or a fixed one.

    Gives, B = number of samples:

    * `input_ids`: int64 (B, T).
    * `attention_mask`: int64 or bool (B, T), 1 on tokens and 0 on padding; a sample's own is kept.
    * `labels`: int64 (B, T), a sample's own, or a copy of its `input_ids` but for the first token,
      which no token predicts; `label_pad` there, on padding, and where a sample's `loss_mask` is 0.
      Unshifted: models of transformers shift by themselves.
    * `token_type_ids`, `position_ids`, `special_tokens_mask`, `token_mask`, `loss_mask` and the
      keys of `sequences`, where the samples have them: padded with 0 along the first axis, in their
      own dtype.
    * All other keys: as `DefaultBatchCollator` stacks them.

    A batch that quarantine has emptied is made of zeros, in the shapes of a real one. A padding
    batch has `label_pad` in all `labels`, and 0 in `token_mask` and `loss_mask`.

    Counts: `samples`, `tokens`, `loss_tokens` (labels other than `label_pad`), `padding_tokens`;
    with `truncate` also `truncated_samples` and `truncated_tokens`; and what samples have `noted`.

    Args:
        pad_to: The length T of every batch, in tokens; a longer sample is an error, unless
            `truncate` is set. None = the longest sample of each batch. A fixed length gives static
            shapes, for torch.compile and CUDA graphs, and costs padding.
        pad_to_multiple_of: Rounds T up to a multiple of this, such as 8 or 64, which some kernels
            are faster with; FP8 needs 16. None = 1.
        pad_value: The id on padding in `input_ids`. None = the samples' `pad_token_id`, else 0.
        label_pad: The label on padding.
        sequences: The names of further values that have an entry per token, and are padded too.
        make_labels: Copy `input_ids` to `labels` where a sample has none. With false, `labels` that
            are a single value per sample (classes) are stacked, (B,).
        labels: `unshifted`, or `shifted` for models that do not shift: the label of a token is then
            the token that follows it, and that of a sample's last token `label_pad`.
        truncate: Cut what of a sample is longer than `pad_to`, on the right, and count it.
        mask_dtype: The dtype of `attention_mask`: `int64` or `bool`.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "padded"
    version: ClassVar[int | str | None] = 2
    uses_global_rng: ClassVar[bool] = False

    pad_to: Annotated[int | None, AtLeast(1)] = None
    pad_to_multiple_of: Annotated[int | None, AtLeast(1)] = None
    pad_value: Annotated[int | None, AtLeast(0)] = None
    label_pad: Annotated[int, AtLeast(IGNORE_INDEX)] = IGNORE_INDEX
    sequences: Annotated[Sequence[str], OfType((list, tuple), "a list of keys")] = ()
    make_labels: Annotated[bool, TrueOrFalse()] = True
    labels: Annotated[str, OneOf(("unshifted", "shifted"))] = "unshifted"
    truncate: Annotated[bool, TrueOrFalse()] = False
    mask_dtype: Annotated[str, OneOf(("int64", "bool"))] = "int64"

    def __post_init__(self) -> None:
        multiple = self.pad_to_multiple_of or 1
        if self.pad_to is not None and self.pad_to % multiple:
            raise InvalidJob(
                f"pad_to is {self.pad_to}, which is not a multiple of pad_to_multiple_of "
                f"{multiple}; give one of the two",
                key="pad_to",
            )
        if self.truncate and self.pad_to is None:
            raise InvalidJob("truncate cuts samples to pad_to, which is not given", key="truncate")
        self.shifts = self.labels == "shifted"
        self._width = RowWidth(self.pad_to, multiple)

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the padded values; the samples of all rows, one below the other.

        Raises:
            BadBatch: A sample has no `input_ids`, is longer than `pad_to`, or has a sequence of
                another length than them; or the other keys do not stack.
        """
        samples = [sample for row in rows for sample in row]
        ids = [token_ids(sample, context) for sample in samples]
        lengths = [len(row) for row in ids]
        longest = max(lengths, default=0)
        height, width = _height(len(samples), len(rows)), self._width.of(longest)
        if longest > width and not self.truncate:
            raise self._too_long(lengths.index(longest), longest, context)
        kept = [min(length, width) for length in lengths]

        padding = pad_id(self.pad_value, samples, context)
        values: dict[str, Any] = {
            "input_ids": _pad(ids, (height, width), padding, np.dtype(np.int64))
        }
        present = {name for sample in samples for name in sample}
        if "attention_mask" in present:
            values["attention_mask"] = self._sequence(
                "attention_mask", samples, lengths, width, context
            )
        else:
            on_tokens = np.arange(width) < np.array(kept or [0] * height)[:, None]
            values["attention_mask"] = on_tokens.astype(self.mask_dtype)
        if self.make_labels or not all(_is_class(sample.get("labels")) for sample in samples):
            labels = self._labels(samples, ids, context)
            if self.shifts:
                labels = [np.append(row[1:], self.label_pad) for row in labels]
            values["labels"] = _pad(labels, (height, width), self.label_pad, np.dtype(np.int64))
            context.count("loss_tokens", int(np.count_nonzero(values["labels"] != self.label_pad)))
        for name in (*_ALIGNED[1:], *self.sequences):
            if name in present and name not in values:
                values[name] = self._sequence(name, samples, lengths, width, context)
        values |= stack_samples(
            samples, context, leave_out=(*values, PAD_ID, *not_stacked(samples))
        )
        self._count(samples, lengths, kept, height * width, context)
        return values

    def _count(
        self,
        samples: Sequence[Sample],
        lengths: list[int],
        kept: list[int],
        area: int,
        context: CollateContext,
    ) -> None:
        count_noted(samples, context)
        context.count("samples", len(samples))
        context.count("tokens", sum(kept))
        context.count("padding_tokens", area - sum(kept))
        if self.truncate:
            cut = sum(whole > part for whole, part in zip(lengths, kept, strict=True))
            context.count("truncated_samples", cut)
            context.count("truncated_tokens", sum(lengths) - sum(kept))

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with `label_pad` in all `labels`, and 0 where masks chose tokens."""
        return masked(values, self.label_pad)

    def specs(self) -> list[KeySpec]:
        """Return the keys that every batch has."""
        shape = (-1, self.pad_to or -1)
        mask = KeySpec("attention_mask", dtype=self.mask_dtype, shape=shape, least=0, most=1)
        names = ("input_ids", "labels") if self.make_labels else ("input_ids",)
        ids, *labels = (KeySpec(name, dtype="int64", shape=shape) for name in names)
        return [ids, mask, *labels]

    def value_layout(self) -> ValueLayout:
        """Return that samples are padded, and which labels count."""
        return ValueLayout("padded", self.shifts, self.label_pad if self.make_labels else None)

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return what `collate` counts, from sizes alone."""
        if self.is_of_user():
            return None
        longest = largest(batches.sizes, batches.slots)
        width = self._width.of(longest)
        kept = batches.sizes
        if self.truncate and self.pad_to is not None:
            kept = np.minimum(kept, self.pad_to)
        height = _height(np.diff(batches.slots), np.diff(batches.batches))
        needed = np.zeros_like(longest) if self.truncate else longest
        return Filling(sums(kept, batches.slots), height * width, needed, width)

    def _too_long(self, sample: int, length: int, context: CollateContext) -> BadBatch:
        return bad_batch(
            context,
            f"sample {sample} has {length} tokens and pad_to is {self.pad_to}; "
            f"cut samples in the processor (max_length: {self.pad_to}), set truncate: true, or "
            "raise pad_to",
        )

    def _labels(
        self, samples: Sequence[Sample], ids: list[Array], context: CollateContext
    ) -> list[Array]:
        labels = []
        for number, (sample, tokens) in enumerate(zip(samples, ids, strict=True)):
            if "labels" not in sample and self.make_labels:
                made = np.concatenate([[self.label_pad], tokens[1:]])[: len(tokens)]
                labels.append(self._learned(sample, number, made, context))
                continue
            if self.make_labels and _is_class(sample["labels"]):
                raise bad_batch(
                    context,
                    f"'labels' of sample {number} is one value for the whole sample; give one per "
                    "token, or set make_labels: false to have such labels stacked",
                )
            own = _aligned(sample, "labels", number, len(tokens), context)
            row = token_row(own, "labels", context)
            labels.append(self._learned(sample, number, row, context))
        return labels

    def _learned(
        self, sample: Sample, number: int, labels: Array, context: CollateContext
    ) -> Array:
        if "loss_mask" not in sample:
            return labels
        learned = _aligned(sample, "loss_mask", number, len(labels), context)
        return learned_labels(labels, flag_row(learned, "loss_mask", context), self.label_pad)

    def _sequence(
        self,
        name: str,
        samples: Sequence[Sample],
        lengths: list[int],
        width: int,
        context: CollateContext,
    ) -> Array:
        parts = [
            _aligned(sample, name, number, length, context)
            for number, (sample, length) in enumerate(zip(samples, lengths, strict=True))
        ]
        # An empty list has no dtype of its own, nor does it say what an entry looks like.
        told = [number for number, part in enumerate(parts) if len(part)] or [0]
        first = parts[told[0]]
        for number in told:
            part = parts[number]
            if part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
                raise bad_batch(
                    context,
                    f"{name!r} is {first.dtype} of shape {first.shape} in sample {told[0]} and "
                    f"{part.dtype} of shape {part.shape} in sample {number}; only the first axis "
                    "may differ",
                )
        dtype = np.dtype(self.mask_dtype) if name == "attention_mask" else first.dtype
        return _pad(parts, (len(parts), width, *first.shape[1:]), 0, dtype)


def _height(samples: NumbersT, rows: NumbersT) -> NumbersT:
    """Return how many rows values have, of a batch or of each of many: one for each sample."""
    height: NumbersT = samples + (samples == 0) * (rows + (rows == 0))
    return height


def _is_class(value: Any) -> bool:
    """Tell whether a label belongs to the sample as a whole."""
    array = as_array(value)
    return array is None or array.ndim == 0


def _aligned(sample: Sample, name: str, number: int, length: int, context: CollateContext) -> Array:
    array = as_array(sample.get(name))
    if array is None or array.ndim == 0 or len(array) != length:
        what = (
            "missing"
            if name not in sample
            else f"a {type(sample[name]).__name__}"
            if array is None
            else f"of shape {array.shape}"
        )
        raise bad_batch(
            context,
            f"{name!r} of sample {number} is {what}, and its 'input_ids' have {length} tokens; "
            "give one entry per token in every sample",
        )
    return array


def _pad(rows: Sequence[Array], shape: tuple[int, ...], value: int, dtype: np.dtype[Any]) -> Array:
    padded: Array = np.full(shape, value, dtype=dtype)
    for number, row in enumerate(rows):
        if len(row):  # an empty list does not say what an entry looks like
            padded[number, : len(row)] = row[: shape[1]]
    return padded
