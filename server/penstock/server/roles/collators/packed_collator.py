"""The collator that packs: documents one after another in rows of T tokens, with their seams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.collators.copying import HIDDEN, DocumentRows, copy_rows, rows_of
from penstock.server.roles.collators.layouts import LAYOUTS, Laid
from penstock.server.roles.collators.sample_arrays import (
    NOTED,
    PAD_ID,
    bad_batch,
    count_noted,
    masked,
    narrowed,
    pad_id,
)
from penstock.server.roles.collators.segments import documents_of, lay_out
from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import BatchSizes, Filling, RowWidth, largest, sums
from penstock.server.roles.number_columns import ColumnCollator, ColumnRows
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.samples import Sample
from penstock.wire.errors import InvalidJob
from penstock.wire.packed_rows import IGNORE_INDEX, PackedRows, made


@declared
class PackedCollator(BatchCollator, ColumnCollator):
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

    The other layouts, `megatron`, `thd`, `indexed`, `neat` and `seams`, are described in
    `penstock.server.roles.collators.layouts`. In `indexed` and `neat` a token on which a sample's
    own `attention_mask` is 0 has the number 0: attention does not see it, its position counts on,
    and it is neither learned nor predicts. The others cannot hide tokens, and refuse such samples.

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
            half of the memory at the trainer; 4 bytes a token travel either way. The Loader hands
            labels over as int64.
        layout: The names and forms of the values: `flash`, `megatron`, `thd`, `indexed`, `neat` or
            `seams`.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "packed"
    version: ClassVar[int | str | None] = 2
    uses_global_rng: ClassVar[bool] = False

    pad_to: Annotated[int | None, AtLeast(1)] = None
    document_multiple: Annotated[int | None, AtLeast(1)] = None
    max_documents: Annotated[int | None, AtLeast(1)] = None
    labels: Annotated[str | None, OneOf(("unshifted", "shifted"))] = None
    pad_value: Annotated[int | None, AtLeast(0)] = None
    ids_dtype: Annotated[str, OneOf(("int64", "int32"))] = "int64"
    layout: Annotated[str, OneOf(tuple(LAYOUTS))] = "flash"

    def __post_init__(self) -> None:
        multiple = self.document_multiple or 1
        if self.pad_to is not None and self.pad_to % multiple:
            raise InvalidJob(
                f"pad_to is {self.pad_to}, which is not a multiple of document_multiple "
                f"{multiple}; make it one",
                key="pad_to",
            )
        self._width = RowWidth(self.pad_to, multiple)
        self._layout = LAYOUTS[self.layout](self.pad_to, self.max_documents, self.ids_dtype)
        if self.document_multiple is not None and not self._layout.learns:
            raise InvalidJob(
                f"document_multiple pads documents, and layout: {self.layout} does not say by how "
                "much: leave it out, or use layout: flash",
                key="document_multiple",
            )
        self.shifts = self._layout.shifts if self.labels is None else self.labels == "shifted"
        # Without it the width is that of the longest row: of a batch of no row, nothing.
        self.pads_empty = self.pad_to is not None

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
                a sample has no `input_ids`, or `labels` of another length, or hides tokens from a
                layout that cannot.
        """
        return made(self._packed(rows, context))

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return what `collate` gives; what follows from ids and segments is left to readers."""
        alone = self.keeps(PackedCollator, "collate")
        return self._packed(rows, context) if alone else self.collate(rows, context)

    def _packed(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values of samples, whose documents are read as columns."""
        documents = DocumentRows(documents_of(rows, context))
        self._check_carried(documents, context)
        samples = list(chain(*rows))
        padding = pad_id(self.pad_value, samples, context)
        count_noted(samples, context)
        return self._laid(documents, padding, len(samples), context)

    def takes_columns(self, columns: Mapping[str, np.dtype[Any] | None]) -> Sequence[str] | None:
        """Return `input_ids`, and `labels` if there are any; None if anything else decides."""
        wanted = [name for name in ("input_ids", "labels") if name in columns]
        if "labels" in columns and not self._layout.learns:
            return None  # they are refused by name where items are taken one by one
        whole = all((dtype := columns[name]) is not None and dtype.kind in "iu" for name in wanted)
        more = {"loss_mask", "attention_mask", PAD_ID, NOTED} & set(columns)
        simple = whole and not more and self.keeps(PackedCollator, "collate")
        return wanted if "input_ids" in wanted and simple else None

    def collate_columns(self, rows: ColumnRows, context: CollateContext) -> dict[str, Any]:
        """Return what `collate_to_send` does for the same samples.

        Raises:
            BadBatch: A row is longer than `pad_to`; there are more documents than `max_documents`.
        """
        return self._laid(rows, self.pad_value or 0, sum(map(len, rows.lengths)), context)

    def _laid(
        self, columns: ColumnRows, padding: int, samples: int, context: CollateContext
    ) -> dict[str, Any]:
        """Return the values of documents, and count their tokens.

        Args:
            columns: Their rows.
            padding: The id on padding.
            samples: How many samples they are of, those without tokens too.
            context: Of the batch.
        """
        lengths = columns.documents() or [np.empty(0, np.int64)]
        segments, width, ends = lay_out(lengths, self._width, context)
        ids = rows_of(padding, (len(lengths), width), columns.dtypes["input_ids"])
        without_gaps = ends if self._width.multiple == 1 else None
        copied = copy_rows(columns, segments, ids, without_gaps, shifted=self.shifts)
        labels, numbers = map(narrowed, copied)
        rows = PackedRows(narrowed(ids), *segments.sent(), labels, numbers, self.shifts)
        tokens = int(segments.lengths.sum())
        learned = tokens - int(np.count_nonzero(segments.lengths))
        if labels is not None:
            learned = int(np.count_nonzero(labels != IGNORE_INDEX))
        context.count("samples", samples)
        context.count("tokens", tokens)
        context.count("loss_tokens", learned)
        context.count("padding_tokens", rows.ids.size - tokens)
        values = self._layout.values(Laid(rows, segments, context))
        return values if rows.can_travel else made(values)

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with -100 in all `labels`, 0 in `loss_mask` and in `row_tokens`."""
        return masked(values)

    def specs(self) -> list[KeySpec]:
        """Return the keys that every batch has."""
        return self._layout.specs()

    def value_layout(self) -> ValueLayout:
        """Return the layout's name, and what the labels are."""
        return ValueLayout(self.layout, self.shifts, IGNORE_INDEX)

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return what `collate` counts, from sizes alone."""
        if self.is_of_user():
            return None
        ends = sums(self._width.rounded(batches.sizes), batches.rows)
        needed = largest(ends, batches.batches)
        width = self._width.of(needed)
        heights = np.diff(batches.batches)
        room = self._layout.max_documents
        documents = None
        if room is not None:
            of_row = sums((batches.sizes > 0).astype(np.int64), batches.rows)
            is_padded = ends < np.repeat(width, heights)
            documents = self._layout.entries(of_row, is_padded, batches.batches)
        tokens = sums(batches.sizes, batches.slots)
        return Filling(tokens, width * heights, needed, width, documents, room)

    def _check_carried(self, documents: DocumentRows, context: CollateContext) -> None:
        if not self._layout.learns and "labels" in documents.dtypes:
            raise bad_batch(
                context,
                f"a sample brings labels or a loss_mask, which layout: {self.layout} does not "
                "carry; use layout: flash, or leave them out of samples",
            )
        if not self._layout.hides and HIDDEN in documents.dtypes:
            raise bad_batch(
                context,
                f"a sample hides tokens by its attention_mask, which the layout {self.layout} "
                "cannot say; use layout: indexed or neat, or leave attention_mask out of samples",
            )
