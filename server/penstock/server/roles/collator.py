"""What turns rows into named values, and what is known of these beforehand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import BatchSizes, Filling
from penstock.server.roles.role import Role
from penstock.server.roles.samples import Sample


@dataclass(frozen=True)
class KeySpec:
    """What is known about a value of every batch before one is made.

    Attributes:
        name: Its name.
        kind: tensor, list, int, float, bool, str, bytes or json.
        dtype: NumPy's name of the dtype, or bfloat16; empty if it is not a tensor.
        shape: -1 = differs between batches.
        optional: Whether some batches lack it.
        place: `device`, or `host` for what the trainer reads in Python.
        least: No element is below it; None = not known.
        most: No element is above it; None = not known.

    Glossary:
        place: Where in memory a value belongs: on the device, or on the host.
    """

    name: str
    kind: str = "tensor"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    optional: bool = False
    place: str = "device"
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class ValueLayout:
    """How samples lie in a batch's values, for those that show or train on them.

    Attributes:
        name: `padded` (a sample per row), or how documents are packed in rows: `flash`, `megatron`,
            `thd`, `indexed`, `neat`, `seams`; empty = not known.
        labels_shifted: The label of a token is the token that follows it.
        ignore_index: The label that losses leave out; None = it is not known whether there are
            labels.
    """

    name: str = ""
    labels_shifted: bool = False
    ignore_index: int | None = None


class BatchCollator(Role, ABC):
    """Turns rows of samples into named values. Pure; fixes names, dtypes, order and layout.

    Class attributes:
        uses_global_rng: The generators of random, numpy and torch are seeded before each batch;
            False promises not to use them.
        pads_empty: True promises that `collate` makes of rows that are all empty a batch of padding
            with the keys, dtypes and shapes of every other batch. Otherwise it never gets such
            rows: a batch that quarantine has emptied is collated from samples of zeros in the
            shapes of a real one, and then given to `blank`.
        fixed_keys: False says that the samples decide which keys a batch has. Most trainers need
            the same ones in every batch.

    Glossary:
        collator: Turns rows into named values.
    """

    uses_global_rng: ClassVar[bool] = True
    pads_empty: bool = False
    fixed_keys: ClassVar[bool] = True

    @abstractmethod
    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values of one batch.

        Args:
            rows: The rows of the batch, each a list of samples. A row may be empty where items were
                quarantined; all of them only with `pads_empty`.
            context: Lane, offset, random generator, counts.
        """

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return what `collate` gives; values may be `penstock.wire.packed_rows.Derived`.

        These follow from the token ids of packed rows, so the trainer's process makes them. Nodes
        call this; `packed` overrides it, for itself and for subclasses that keep its `collate`.
        """
        return self.collate(rows, context)

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a batch of the same shapes that must not train: by default the values as they are.

        The header marks it as padding and its counts are zero, whatever this returns.
        """
        return values

    def specs(self) -> list[KeySpec]:
        """Return what is known of the values before any is made; empty = nothing is known."""
        return []

    def value_layout(self) -> ValueLayout:
        """Return how samples lie in the values; by default nothing is known of it."""
        return ValueLayout()

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return how full batches are that samples of these sizes make; None = it is not known.

        What it says is what `collate` counts as `tokens` and `padding_tokens`. `penstockd plan`
        asks for it; `size` is here the length of a sample's `input_ids`.
        """
        return None
