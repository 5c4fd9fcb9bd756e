"""The collator that packs: documents one after another in rows of T tokens, with their seams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.server.roles.base import BatchCollator, KeySpec, Layout, Sample
from penstock.server.roles.collators.arrays import (
    IGNORE_INDEX,
    Array,
    bad_batch,
    masked,
)
from penstock.server.roles.collators.segments import lay_out
from penstock.server.roles.context import CollateContext
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import InvalidJob


class PackedCollator(BatchCollator):
    """Lay the documents of every row one after another and say where the seams are.

    Gives, for B rows of T tokens:

    * `input_ids`: (B, T).
    * `labels`: (B, T), a document's own or a copy of its `input_ids`. Unshifted: -100 on padding
      and on the first token of every document, else the last token of one would predict the first
      of the next. Shifted: the label of a token is the token that follows it; -100 on padding
      and on the last token of every document.
    * `position_ids`: (B, T), from 0 in every document, and in the padding.
    * `cu_seq_lens_q`, `cu_seq_lens_k`: int32 (n + 1,), where each of the n documents starts in the
      flattened rows, then B * T. What is left of a row is a document of its own; so they are
      strictly increasing, but for the repeats of `max_documents`.
    * `max_length_q`, `max_length_k`: ints, the longest of these documents, padding too.
    * `document_ids`: int32 (B, T), the number of a token's document in its row, from 1; 0 on
      padding. Every mask derives from it: two tokens of a row see each other where their numbers
      are equal and not 0.

    A piece of a split document is a document: its positions start at 0 and its first label is
    masked. Keys other than `input_ids` and `labels` are not carried. Documents of no tokens take no
    place. A row that quarantine has emptied is padding.

    Counts: `samples`, `tokens`, `loss_tokens` (labels other than -100), `padding_tokens`.

    Args:
        pad_to: The length T of every row, in tokens; a longer row is an error. None = the longest
            row of each batch. A fixed length gives static shapes, for torch.compile and CUDA
            graphs, and costs padding.
        document_multiple: Pads every document to a multiple of this many tokens, and cu_seq_lens
            counts that padding to the document; it comes after the document's own tokens, so causal
            attention does not see it. Context parallelism needs 2 x cp; a larger multiple costs
            padding. None = 1.
        max_documents: The most documents of a batch, the padding of a row counted as one; more are
            an error. cu_seq_lens then always has this many entries and one more, the last value
            repeated: static shapes for torch.compile and CUDA graphs. None = as many entries as the
            batch needs.
        labels: `unshifted` for models that shift labels themselves (transformers), or `shifted`.
        pad_value: The id on padding in `input_ids`.
        ids_dtype: The dtype of `input_ids`, `labels` and `position_ids`: `int64`, or `int32` for
            half of the bytes on the wire. The Loader hands labels over as int64 either way.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "packed"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False

    def __init__(
        self,
        pad_to: int | None = None,
        document_multiple: int | None = None,
        max_documents: int | None = None,
        labels: str = "unshifted",
        pad_value: int = 0,
        ids_dtype: str = "int64",
    ) -> None:
        for name, value in (
            ("pad_to", pad_to),
            ("document_multiple", document_multiple),
            ("max_documents", max_documents),
        ):
            if value is not None:
                check_whole(name, value, 1, optional=True)
        check_whole("pad_value", pad_value, 0, optional=True)
        if pad_to is not None and pad_to % (document_multiple or 1):
            raise InvalidJob(
                f"pad_to is {pad_to}, which is not a multiple of document_multiple "
                f"{document_multiple}; make it one",
                key="pad_to",
            )
        self.pad_to = pad_to
        self.document_multiple = document_multiple
        self.max_documents = max_documents
        self.labels = check_choice("labels", labels, ("unshifted", "shifted"))
        self.pad_value = pad_value
        self.ids_dtype = check_choice("ids_dtype", ids_dtype, ("int64", "int32"))
        # Without it the width is that of the longest row: of a batch of no row, nothing.
        self.pads_empty = pad_to is not None

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the packed values.

        Raises:
            BadBatch: A row is longer than `pad_to`; there are more documents than `max_documents`;
                a sample has no `input_ids`, or `labels` of another length.
        """
        segments, width = lay_out(rows, self.pad_to, self.document_multiple, context)
        shape = (max(1, len(rows)), width)
        starts = np.array([segment.start for segment in segments])
        sizes = np.array([segment.size for segment in segments])
        area = shape[0] * width

        input_ids = np.full(area, self.pad_value, dtype=self.ids_dtype)
        labels = np.full(area, IGNORE_INDEX, dtype=self.ids_dtype)
        document_ids = np.zeros(area, dtype=np.int32)
        tokens = 0
        for segment in segments:
            if segment.ids is None:
                continue
            own = segment.ids if segment.labels is None else segment.labels
            length = len(segment.ids)
            document = slice(segment.start, segment.start + length)
            input_ids[document] = segment.ids
            document_ids[document] = segment.number
            first_label = segment.start + (self.labels == "unshifted")
            labels[first_label : first_label + length - 1] = own[1:]
            tokens += length

        cu_seq_lens = self._cu_seq_lens(starts, area, context)
        position_ids = np.arange(area, dtype=self.ids_dtype)
        position_ids -= np.repeat(starts, sizes).astype(self.ids_dtype)
        longest = int(sizes.max())

        context.count("samples", sum(map(len, rows)))
        context.count("tokens", tokens)
        context.count("loss_tokens", int(np.count_nonzero(labels != IGNORE_INDEX)))
        context.count("padding_tokens", area - tokens)
        return {
            "input_ids": input_ids.reshape(shape),
            "labels": labels.reshape(shape),
            "position_ids": position_ids.reshape(shape),
            "cu_seq_lens_q": cu_seq_lens,
            "cu_seq_lens_k": cu_seq_lens.copy(),
            "max_length_q": longest,
            "max_length_k": longest,
            "document_ids": document_ids.reshape(shape),
        }

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with -100 in all `labels`; nothing of `values` is changed."""
        return masked(values)

    def specs(self) -> list[KeySpec]:
        """Return the eight keys that every batch has."""
        shape = (-1, self.pad_to or -1)
        seams = (-1 if self.max_documents is None else self.max_documents + 1,)
        return [
            *(KeySpec(name, dtype=self.ids_dtype, shape=shape) for name in ("input_ids", "labels")),
            KeySpec(
                "position_ids",
                dtype=self.ids_dtype,
                shape=shape,
                least=0,
                most=None if self.pad_to is None else self.pad_to - 1,
            ),
            *(
                KeySpec(name, dtype="int32", shape=seams, least=0)
                for name in ("cu_seq_lens_q", "cu_seq_lens_k")
            ),
            *(
                KeySpec(name, kind="int", place="host", least=0, most=self.pad_to)
                for name in ("max_length_q", "max_length_k")
            ),
            KeySpec("document_ids", dtype="int32", shape=shape, least=0),
        ]

    def value_layout(self) -> Layout:
        """Return that documents are packed, and what their labels are."""
        return Layout("packed", self.labels == "shifted", IGNORE_INDEX)

    def _cu_seq_lens(self, starts: Array, area: int, context: CollateContext) -> Array:
        entries = len(starts) if self.max_documents is None else self.max_documents
        if len(starts) > entries:
            raise bad_batch(
                context,
                f"there are {len(starts)} documents, padding among them, and max_documents is "
                f"{entries}; raise it, or let the batcher put fewer samples into a row",
            )
        cu_seq_lens: Array = np.full(entries + 1, area, dtype=np.int32)
        cu_seq_lens[: len(starts)] = starts
        return cu_seq_lens


__all__ = ["PackedCollator"]
