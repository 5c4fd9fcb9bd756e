"""What puts samples into rows, and rows into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.server.core.refs import Row, Rows, SampleRef
from penstock.server.roles import role_state
from penstock.server.roles.role import Role

if TYPE_CHECKING:
    pass
from penstock.server.roles.samples import Sample


def _length(value: Any) -> int | None:
    if isinstance(value, (str, bytes)):
        return None
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) == 1 else None


class SampleBatcher(Role, ABC):
    """Forms batches of rows from a stream of samples: one per lane, in order, on refs and sizes.

    Its attributes between calls must be plain: numbers, strings, lists, tuples, deques, dicts and
    `SampleRef`s in attributes. `state` and `restore` carry exactly these; samples themselves never.

    Class attributes:
        needs_sizes: False promises that sizes are not looked at: they may be 0. A property, where
            parameters decide it.
        needs_content: True asks for the sample in `add`, which may look at it and must not keep it.

    Glossary:
        batcher: Puts samples into rows, and rows into batches.
    """

    needs_content: ClassVar[bool] = False

    @property
    def needs_sizes(self) -> bool:
        """Tell whether sizes are looked at; most subclasses that do not say `needs_sizes = False`.

        Between two calls the answer is the same.
        """
        return True

    @abstractmethod
    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample (its size is `ref.size`); return the batches it finished, in order."""

    def add_run(self, refs: Sequence[SampleRef]) -> tuple[int, list[Rows]]:
        """Take samples that come one after another, up to the first that finishes a batch.

        It gives and leaves behind what `add` does, one by one. It stops before a sample that it
        would leave out or refuse, which `add` is given then: it is accounted for by itself.

        Args:
            refs: The samples; at least one.

        Returns:
            How many it has taken, and the batches that the last of them finished.
        """
        least, most = self.sizes_kept() or (0, -1)
        for taken, ref in enumerate(refs):
            if not least <= ref.size <= most:
                return taken, []
            if batches := self.add(ref):
                return taken + 1, batches
        return len(refs), []

    def sizes_kept(self) -> tuple[int, float] | None:
        """Return the least and largest size of samples that `add` neither drops nor refuses.

        None = something else decides it, or may.
        """
        return None

    def takes_runs(self) -> bool:
        """Tell whether `add_run` may stand for `add`: a user's class has it itself, if so."""
        if self.needs_content:
            return False
        if self.is_of_user():  # what it inherits does not know of what it overrides
            return "add_run" in vars(type(self))
        return self.sizes_kept() is not None

    def flush(self) -> list[Rows]:
        """Return what is left when the lane is over."""
        return []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples that are held and not yet in a finished batch, in any order."""
        return role_state.find_refs(self)

    def chooses_from(self) -> int | None:
        """Return how many samples its pool holds, from which it chooses; None = it has none."""
        return None

    def most_held(self) -> int | None:
        """Return how many samples it may hold, where that is known and not its pool alone."""
        return self.chooses_from()

    @property
    def may_split(self) -> bool:
        """Tell whether pieces of one sample may come to several batches.

        False promises that no ref has a span that begins or ends within its sample; it lets any
        worker make any batch of a planned job.
        """
        return True

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: then its state is copied before an item of several samples.

        False promises that it takes every sample; it saves that copy.
        """
        return True

    def check_keys(self, keys: Iterable[str]) -> None:  # optional
        """Refuse samples that lack a value that this needs; called if their keys are known.

        Raises:
            InvalidJob: Every sample would fail.
        """

    def size_of(self, sample: Sample) -> int:
        """Return the size of a processed sample: by default `len(sample["input_ids"])`."""
        return len(sample["input_ids"])

    def size_rule(self) -> Any:
        """Return what `size_of` gives, JSON-able: batchers that agree can share an index of sizes.

        `{"length_of": NAME}` is the length of a value of the sample, and None a size of 0. By
        default of a subclass that overrides `size_of` it is the identity of the whole batcher.
        """
        if self.keeps(SampleBatcher, "size_of"):
            return {"length_of": "input_ids"}
        return {"batcher": self.identity()}

    def length_column(self) -> str | None:
        """Return the value of a sample whose length is its size; None = sizes are something else.

        Where a source has it as a column, batches are planned from its lengths alone.
        """
        return None

    def spare(self, row: Row) -> int:
        """Return by how much the samples of a row may together exceed their sizes.

        Where sizes are told before items are processed, one may turn out larger: it stays in its
        row if there is so much room, and else it is a bad item. By default there is none.
        """
        return 0

    def joins(self, row: Row, ref: SampleRef) -> bool:
        """Tell whether a sample may join a row when that is packed; its state must not matter.

        Where a job says `later_within`, a sample that was larger than told takes room that is left
        in another row. By default no sample may.

        Args:
            row: What lies in it, each with the size that it turned out to have.
            ref: The sample, of its real size.
        """
        return False

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out since the lane's start.

        A sample that `add` takes and counts here will be in no batch: this alone decides it, not
        the name of a count. Use a few reasons, the same for every lane; those that are known
        beforehand are present from the start, at 0.
        """
        return {}

    def counters(self) -> dict[str, int]:
        """Return other counts since the lane's start, for example truncated samples."""
        return {}

    def batches(self, draws: int) -> int | None:
        """Return how many batches `draws` samples make, flush included; None = unknown."""
        return None

    def draws_before(self, offset: int) -> int | None:
        """Return how many samples precede batch `offset`, if nothing is held across that border.

        If this is known a lane starts at any offset in O(1).
        """
        return None

    def state(self) -> Any:
        """Return the state, JSON-able and canonical."""
        return role_state.capture(self)

    def restore(self, state: Any) -> None:
        """Take back what `state` gave; called on a fresh batcher with the same parameters."""
        role_state.restore(self, state)
