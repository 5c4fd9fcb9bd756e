"""The keys under which packed rows reach a trainer: a class for each family of kernels.

| layout | keys | who takes them |
|---|---|---|
| `flash` | `cu_seq_lens_q`, `max_length_q`, `document_ids`, ... | transformers, flash-attn, flex |
| `megatron` | `tokens`, `loss_mask`, `cu_seqlens`, `max_seqlen`, ... | Megatron-LM, NeMo |
| `thd` | `seq_lens`, `seq_lens_padded`, `qkv_format`, ... | NeMo Automodel, Transformer Engine |
| `indexed` | `attention_mask` of document numbers, ... | LLaMA-Factory, NeMo Automodel |
| `neat` | those of `indexed`, and `_packed_seq_ids` | NeMo Automodel's neat packing |
| `seams` | `input_ids`, `cu_seq_lens_q`, `row_tokens`, ... | `penstock.client.packed.complete` |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.roles.collator import KeySpec
from penstock.server.roles.collators.sample_arrays import bad_batch
from penstock.server.roles.collators.segments import Lengths, Segments
from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import largest, sums
from penstock.wire.errors import InvalidJob
from penstock.wire.packed_rows import Derived, PackedRows, Rule

NO_LENGTH = -1000
"""What fills `seq_lens` after a row's last document, as NeMo Automodel has it."""


class Laid(NamedTuple):
    """Packed rows, before a layout names what is made of them: B rows of T tokens, n segments.

    Attributes:
        rows: Their ids, and labels and numbers of documents where these do not follow.
        segments: Where documents and padding lie.
        context: Of the batch.
    """

    rows: PackedRows
    segments: Segments
    context: CollateContext


class PackedLayout(ABC):
    """Names the values of packed rows.

    Class attributes:
        shifts: Whether labels are shifted where the job does not say.
        hides: Whether a token within a document can be hidden from attention.
        learns: Whether labels and document numbers are among the values.
        has_seams: Whether there is an array whose length `max_documents` fixes.

    Args:
        pad_to: The width of rows; None = it differs.
        max_documents: Fixes the length of arrays of seams; None = it differs.
        ids_dtype: Of ids, labels and positions.

    Glossary:
        layout: The keys and forms under which packed rows reach a trainer: `flash`, `megatron`,
            `thd`, `indexed`, `neat`, `seams`.
    """

    shifts: ClassVar[bool] = False
    hides: ClassVar[bool] = False
    has_seams: ClassVar[bool] = True
    learns: ClassVar[bool] = True

    def __init__(self, pad_to: int | None, max_documents: int | None, ids_dtype: str) -> None:
        self.width = -1 if pad_to is None else pad_to
        self.max_documents, self.ids_dtype = max_documents, ids_dtype
        if max_documents is not None and not self.has_seams:
            raise InvalidJob(
                "max_documents fixes the length of an array of seams, and this layout has none: "
                "leave it out",
                key="max_documents",
            )

    @abstractmethod
    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the named values; those that follow from the rows are `Derived`.

        Raises:
            BadBatch: There are more documents than `max_documents`.
        """

    @abstractmethod
    def specs(self) -> list[KeySpec]:
        """Return the keys that every batch has, in the order of `values`."""

    def entries(
        self, documents: Lengths, is_padded: npt.NDArray[np.bool_], batches: Lengths
    ) -> Lengths:
        """Return how many entries `max_documents` must leave room for, from sizes alone.

        Args:
            documents: int64 (R,): how many documents each row has.
            is_padded: (R,): something is left of the row.
            batches: int64 (B + 1,): where each batch begins in rows, then their number.

        Returns:
            int64 (B,).
        """
        return sums(documents + is_padded, batches)

    def _rows(self, name: str, dtype: str = "", **bounds: int | None) -> KeySpec:
        return KeySpec(name, dtype=dtype or self.ids_dtype, shape=(-1, self.width), **bounds)  # type: ignore[arg-type]

    def _positions_spec(self) -> KeySpec:
        return self._rows("position_ids", least=0, most=None if self.width < 0 else self.width - 1)

    def _made(self, laid: Laid, rule: int, dtype: str = "") -> Derived:
        """Return a value of an element per token, (B, T)."""
        return Derived(laid.rows, rule, dtype or self.ids_dtype, laid.rows.ids.shape)

    def _seams(self, laid: Laid) -> Derived:
        """Return where segments start in the flattened rows, int32 (n + 1,)."""
        entries = _room(len(laid.segments.starts), self.max_documents, "", laid.context)
        return Derived(laid.rows, Rule.SEAMS, "int32", (entries + 1,))

    def _longest(self, laid: Laid) -> int:
        """Return the tokens of the longest segment."""
        return int(laid.segments.sizes.max())

    def _seams_spec(self, name: str) -> KeySpec:
        entries = -1 if self.max_documents is None else self.max_documents + 1
        return KeySpec(name, dtype="int32", shape=(entries,), least=0)


class Flash(PackedLayout):
    """What transformers' `DataCollatorWithFlattening` gives, and `document_ids`."""

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the eight values."""
        longest = self._longest(laid)
        return {
            "input_ids": self._made(laid, Rule.IDS),
            "labels": self._made(laid, Rule.LABELS),
            "position_ids": self._made(laid, Rule.POSITIONS),
            "cu_seq_lens_q": self._seams(laid),
            "cu_seq_lens_k": self._seams(laid),
            "max_length_q": longest,
            "max_length_k": longest,
            "document_ids": self._made(laid, Rule.DOCUMENTS, "int32"),
        }

    def specs(self) -> list[KeySpec]:
        """Return the eight keys."""
        most = None if self.width < 0 else self.width
        return [
            self._rows("input_ids"),
            self._rows("labels"),
            self._positions_spec(),
            *map(self._seams_spec, ("cu_seq_lens_q", "cu_seq_lens_k")),
            *(
                KeySpec(name, kind="int", place="host", least=0, most=most)
                for name in ("max_length_q", "max_length_k")
            ),
            self._rows("document_ids", "int32", least=0),
        ]


class Seams(PackedLayout):
    """The tokens and where documents begin: what `penstock.client.packed.complete` takes.

    `input_ids`, `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k` as in `flash`,
    and `row_tokens`, int32 (B,): the tokens of each row that are not padding. A quarter of the
    memory of `flash`: the trainer makes its other values on its own device. Samples must bring no
    `labels` or `loss_mask`, and documents have no padding of their own (`document_multiple`).
    """

    learns = False

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the six values."""
        longest = self._longest(laid)
        height, width = laid.rows.ids.shape
        tokens = np.bincount(
            laid.segments.starts // width, weights=laid.segments.lengths, minlength=height
        )
        return {
            "input_ids": self._made(laid, Rule.IDS),
            "cu_seq_lens_q": self._seams(laid),
            "cu_seq_lens_k": self._seams(laid),
            "max_length_q": longest,
            "max_length_k": longest,
            "row_tokens": tokens.astype(np.int32),
        }

    def specs(self) -> list[KeySpec]:
        """Return the six keys."""
        most = None if self.width < 0 else self.width
        return [
            self._rows("input_ids"),
            *map(self._seams_spec, ("cu_seq_lens_q", "cu_seq_lens_k")),
            *(
                KeySpec(name, kind="int", place="host", least=0, most=most)
                for name in ("max_length_q", "max_length_k")
            ),
            KeySpec("row_tokens", dtype="int32", shape=(-1,), least=0, most=most),
        ]


class Megatron(PackedLayout):
    """What Megatron-LM's packed datasets give.

    `tokens`, `labels`, `loss_mask` (float32, 0 where the label is -100), `position_ids`, and
    `cu_seqlens` and `max_seqlen` (int32, no dimensions), those of `flash`.
    """

    shifts = True

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the six values."""
        return {
            "tokens": self._made(laid, Rule.IDS),
            "labels": self._made(laid, Rule.LABELS),
            "loss_mask": self._made(laid, Rule.LEARNED, "float32"),
            "position_ids": self._made(laid, Rule.POSITIONS),
            "cu_seqlens": self._seams(laid),
            "max_seqlen": np.array(self._longest(laid), dtype=np.int32),
        }

    def specs(self) -> list[KeySpec]:
        """Return the six keys."""
        return [
            self._rows("tokens"),
            self._rows("labels"),
            self._rows("loss_mask", "float32", least=0, most=1),
            self._positions_spec(),
            self._seams_spec("cu_seqlens"),
            KeySpec("max_seqlen", dtype="int32", shape=(), place="host", least=0),
        ]


class ThdLayout(PackedLayout):
    """What NeMo Automodel's packing for Transformer Engine gives.

    `input_ids`, `labels`, `position_ids`, which go on counting in the padding; `seq_lens` and
    `seq_lens_padded`, int64 (B, documents): the tokens of each document without and with padding,
    what is left of the row counted to its last; -1000 after the last; and `qkv_format`, "thd". A
    row of padding is one document.
    """

    shifts = True

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the six values."""
        rows = self._documents(laid)
        entries = _room(max(map(len, rows)), self.max_documents, " in a row", laid.context)
        lengths = np.full((2, len(rows), entries), NO_LENGTH, dtype=np.int64)
        for number, row in enumerate(rows):
            lengths[0, number, : len(row)] = [length for length, _ in row]
            lengths[1, number, : len(row)] = [padded for _, padded in row]
        return {
            "input_ids": self._made(laid, Rule.IDS),
            "labels": self._made(laid, Rule.LABELS),
            "position_ids": self._made(laid, Rule.POSITIONS_ON),
            "seq_lens": lengths[0],
            "seq_lens_padded": lengths[1],
            "qkv_format": "thd",
        }

    def entries(
        self, documents: Lengths, is_padded: npt.NDArray[np.bool_], batches: Lengths
    ) -> Lengths:
        """Return the documents of the row that has most: padding belongs to the last of each."""
        return largest(np.maximum(documents, 1), batches)

    def specs(self) -> list[KeySpec]:
        """Return the six keys."""
        entries = -1 if self.max_documents is None else self.max_documents
        return [
            self._rows("input_ids"),
            self._rows("labels"),
            self._positions_spec(),
            *(
                KeySpec(name, dtype="int64", shape=(-1, entries), least=NO_LENGTH)
                for name in ("seq_lens", "seq_lens_padded")
            ),
            KeySpec("qkv_format", kind="str", place="host"),
        ]

    def _documents(self, laid: Laid) -> list[list[tuple[int, int]]]:
        """Return length, and length with padding, of each row's documents.

        What is left of a row belongs to its last document. A row of padding alone is one document
        of T tokens: kernels get no sequence of none.
        """
        height, width = laid.rows.ids.shape
        rows: list[list[tuple[int, int]]] = [[] for _ in range(height)]
        starts, sizes, lengths = (array.tolist() for array in laid.segments)
        for start, size, length in zip(starts, sizes, lengths, strict=True):
            row = rows[start // width]
            if not length and row:
                before, padded = row.pop()
                row.append((before, padded + size))
            else:
                row.append((length or size, size))
        return rows


class Indexed(PackedLayout):
    """A mask that holds the number of each token's document, from 1, and 0 on padding.

    `input_ids`, `labels`, `position_ids`, 0 in the padding, and `attention_mask` (B, T), the
    document numbers.
    """

    hides = True
    has_seams = False

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the four values."""
        return {
            "input_ids": self._made(laid, Rule.IDS),
            "labels": self._made(laid, Rule.LABELS),
            "position_ids": self._made(laid, Rule.POSITIONS_REAL),
            "attention_mask": self._made(laid, Rule.DOCUMENTS),
        }

    def specs(self) -> list[KeySpec]:
        """Return the four keys."""
        return [
            self._rows("input_ids"),
            self._rows("labels"),
            self._positions_spec(),
            self._rows("attention_mask", least=0),
        ]


class Neat(Indexed):
    """The keys of NeMo Automodel's collator for neat packing; `attention_mask` is the indexed one.

    There `_packed_seq_ids` is left out where a batch has one document only; here it is always
    there, because the keys of all batches of a job are the same.
    """

    shifts = True

    def values(self, laid: Laid) -> dict[str, Any]:
        """Return the five values."""
        numbers = self._made(laid, Rule.DOCUMENTS)
        return {**super().values(laid), "_packed_seq_ids": numbers}

    def specs(self) -> list[KeySpec]:
        """Return the five keys."""
        return [*super().specs(), self._rows("_packed_seq_ids", least=0)]


LAYOUTS: dict[str, type[PackedLayout]] = {
    "flash": Flash,
    "megatron": Megatron,
    "thd": ThdLayout,
    "indexed": Indexed,
    "neat": Neat,
    "seams": Seams,
}
"""What `layout:` of the packed collator may name."""


def _room(documents: int, most: int | None, where: str, context: CollateContext) -> int:
    """Return how many entries an array of documents has."""
    if most is None:
        return documents
    if documents > most:
        raise bad_batch(
            context,
            f"there are {documents} documents{where}, padding among them, and max_documents is "
            f"{most}; raise it, or let the batcher put fewer samples into a row",
        )
    return most
