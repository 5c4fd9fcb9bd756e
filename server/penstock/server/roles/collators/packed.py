"""The collator that packs: documents one after another in rows of T tokens, with their seams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.server.roles.base import BatchCollator, KeySpec, Layout, Sample
from penstock.server.roles.collators.arrays import (
    IGNORE_INDEX,
    count_noted,
    masked,
    pad_id,
)
from penstock.server.roles.collators.layouts import LAYOUTS, Laid
from penstock.server.roles.collators.segments import lay_out, seen, targets
from penstock.server.roles.context import CollateContext
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import InvalidJob


class PackedCollator(BatchCollator):
    """Lay the documents of every row one after another and say where the seams are.

    Gives, for B rows of T tokens, in the layout `flash`, which models of transformers take:

    * `input_ids`: (B, T).
    * `labels`: (B, T), a document's own or a copy of its `input_ids`. Unshifted: -100 on padding
      and on the first token of every document, else the last token of one would predict the first
      of the next. Shifted: the label of a token is the token that follows it; -100 on padding
      and on the last token of every document. A sample's `loss_mask` sets labels to -100 where it
      is 0.
    * `position_ids`: (B, T), from 0 in every document, and in the padding.
    * `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (n + 1,), where each of the n documents starts in the
      flattened rows, then B * T. What is left of a row is a document of its own; so they are
      strictly increasing, but for the repeats of `max_documents`.
    * `max_length_q`, `max_length_k`: ints, the longest of these documents, padding too.
    * `document_ids`: int32 (B, T), the number of a token's document in its row, from 1; 0 on
      padding. Every mask derives from it: two tokens of a row see each other where their numbers
      are equal and not 0.

    `layouts.py` says what the other layouts give. In `indexed` and `neat` a sample's own
    `attention_mask` hides tokens, which are then neither learned nor predict; the others refuse it.

    A piece of a split document is a document: its positions start at 0 and its first label is
    masked. Other keys of samples are not carried. Documents of no tokens take no place. A row that
    quarantine has emptied is padding; a padding batch has no labels but -100, and no `loss_mask`.

    Counts: `samples`, `tokens`, `loss_tokens` (labels other than -100), `padding_tokens`; and what
    samples have `noted`.

    Args:
        pad_to: The length T of every row, in tokens; a longer row is an error. None = the longest
            row of each batch. A fixed length gives static shapes, for torch.compile and CUDA
            graphs, and costs padding.
        document_multiple: Pads every document to a multiple of this many tokens, and the seams
            count that padding to the document; it comes after the document's own tokens, so causal
            attention does not see it. Context parallelism needs 2 x cp; a larger multiple costs
            padding. None = 1.
        max_documents: The most documents of a batch, the padding of a row counted as one; more are
            an error. cu_seq_lens then always has this many entries and one more, the last value
            repeated: static shapes for torch.compile and CUDA graphs. In `thd`, the most of a row.
            None = as many entries as the batch needs.
        labels: `unshifted` for models that shift labels themselves (transformers), or `shifted`.
            None = `unshifted` in the layouts `flash` and `indexed`, `shifted` in the others.
        pad_value: The id on padding in `input_ids`. None = the samples' `pad_token_id`, else 0.
        ids_dtype: The dtype of ids, labels, positions and indexed masks: `int64`, or `int32` for
            half of the bytes on the wire. The Loader hands labels over as int64 either way.
        layout: The names and forms of the values: `flash`, `megatron`, `thd`, `indexed` or `neat`.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "packed"
    version: ClassVar[int | str | None] = 2
    uses_global_rng: ClassVar[bool] = False

    def __init__(
        self,
        pad_to: int | None = None,
        document_multiple: int | None = None,
        max_documents: int | None = None,
        labels: str | None = None,
        pad_value: int | None = None,
        ids_dtype: str = "int64",
        layout: str = "flash",
    ) -> None:
        for name, value, least in (
            ("pad_to", pad_to, 1),
            ("document_multiple", document_multiple, 1),
            ("max_documents", max_documents, 1),
            ("pad_value", pad_value, 0),
        ):
            if value is not None:
                check_whole(name, value, least, optional=True)
        if pad_to is not None and pad_to % (document_multiple or 1):
            raise InvalidJob(
                f"pad_to is {pad_to}, which is not a multiple of document_multiple "
                f"{document_multiple}; make it one",
                key="pad_to",
            )
        self.pad_to = pad_to
        self.document_multiple = document_multiple
        self.pad_value = pad_value
        self.ids_dtype = check_choice("ids_dtype", ids_dtype, ("int64", "int32"))
        self.layout = check_choice("layout", layout, tuple(LAYOUTS))
        self._layout = LAYOUTS[layout](pad_to, max_documents, ids_dtype)
        if labels is not None:
            check_choice("labels", labels, ("unshifted", "shifted"))
        self.shifts = self._layout.shifts if labels is None else labels == "shifted"
        # Without it the width is that of the longest row: of a batch of no row, nothing.
        self.pads_empty = pad_to is not None

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes: `labels` only where the layout has others."""
        found = super().parameters()
        if self.shifts == self._layout.shifts:
            found.pop("labels", None)
        return found

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the packed values.

        Raises:
            BadBatch: A row is longer than `pad_to`; there are more documents than `max_documents`;
                a sample has no `input_ids`, `labels` of another length, or hidden tokens that the
                layout cannot hide.
        """
        segments, width = lay_out(rows, self.pad_to, self.document_multiple, context)
        shape = (max(1, len(rows)), width)
        area = shape[0] * width
        padding = pad_id(self.pad_value, (sample for row in rows for sample in row), context)

        input_ids = np.full(area, padding, dtype=self.ids_dtype)
        labels = np.full(area, IGNORE_INDEX, dtype=self.ids_dtype)
        document_ids = np.zeros(area, dtype=np.int32)
        tokens = 0
        for start, _, document, number in segments:
            if document is None:
                continue
            length = len(document.ids)
            here = slice(start, start + length)
            input_ids[here] = document.ids
            document_ids[here] = number * seen(document, self._layout.hides, context)
            first_label = start + (not self.shifts)
            labels[first_label : first_label + length - 1] = targets(document)
            tokens += length

        for row in rows:
            count_noted(row, context)
        context.count("samples", sum(map(len, rows)))
        context.count("tokens", tokens)
        context.count("loss_tokens", int(np.count_nonzero(labels != IGNORE_INDEX)))
        context.count("padding_tokens", area - tokens)
        laid = Laid(
            input_ids.reshape(shape),
            labels.reshape(shape),
            document_ids.reshape(shape),
            segments,
            context,
        )
        return self._layout.values(laid)

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with -100 in all `labels` and 0 in `loss_mask`."""
        return masked(values)

    def specs(self) -> list[KeySpec]:
        """Return the keys that every batch has."""
        return self._layout.specs()

    def value_layout(self) -> Layout:
        """Return the layout's name, and what the labels are."""
        return Layout(self.layout, self.shifts, IGNORE_INDEX)


__all__ = ["PackedCollator"]
