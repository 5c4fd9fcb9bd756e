"""What puts samples into rows, and rows into batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.roles import role_state
from penstock.server.roles.role import Role, asked
from penstock.server.roles.samples import Sample
from penstock.wire.errors import InvalidJob


@dataclass(frozen=True)
class BatcherFacts:
    """What a batcher promises of itself: each saves time, or lets a tool say more.

    What it leaves out is safe: nothing is taken for granted then.

    Attributes:
        sizes_kept: The least and largest size of samples that `add` neither drops nor refuses: up
            to a sample that finishes a batch, it then gets many at once, without a look at what was
            dropped. None = something else decides it, or may.
        may_split: False promises that a sample is in one place, whole or shortened, and never in
            pieces of which others are elsewhere; it lets any worker make any batch of a planned
            job.
        may_refuse: False promises that `add` never raises; it saves a copy of the state before an
            item of several samples.
        length_key: The value of a sample whose length is its size; None = sizes are something else.
            Where a source has it as a column, batches are planned from its lengths alone.
        samples_of_batch: How many samples each batch has, whatever they are, so that a lane starts
            at any offset by arithmetic; None = something else decides it.
        drops_tail: With `samples_of_batch`, those of a last batch that is not full are dropped.
        row_limit: What the sizes of a row may sum to. A sample that turns out larger than was told
            stays in its row if there is so much room, and where a job says `later_within` it may
            join another. None = no row takes more than it was planned with.
        row_counts: The same of what samples count: the place of each count that is limited, and its
            limit.
        pool: How many samples it chooses from; None = it has no pool.
        most_held: How many samples it may hold, where that is known and not `pool` alone.
    """

    sizes_kept: tuple[int, float] | None = None
    may_split: bool = True
    may_refuse: bool = True
    length_key: str | None = None
    samples_of_batch: int | None = None
    drops_tail: bool = False
    row_limit: int | None = None
    row_counts: tuple[tuple[int, int], ...] = ()
    pool: int | None = None
    most_held: int | None = None

    def batches(self, draws: int) -> int | None:
        """Return how many batches so many samples make, flush included; None = unknown."""
        if self.samples_of_batch is None:
            return None
        more = 0 if self.drops_tail else self.samples_of_batch - 1
        return (draws + more) // self.samples_of_batch

    def draws_before(self, offset: int) -> int | None:
        """Return how many samples precede batch `offset`, where nothing but arithmetic says it."""
        return None if self.samples_of_batch is None else offset * self.samples_of_batch


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

    _penstock_measures: tuple[str, ...] | None = None  # what refs count, where a job says it

    @property
    def needs_sizes(self) -> bool:
        """Tell whether sizes are looked at; most subclasses that do not say `needs_sizes = False`.

        Between two calls the answer is the same.
        """
        return True

    @abstractmethod
    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample (its size is `ref.size`); return the batches it finished, in order."""

    def flush(self) -> list[Rows]:
        """Return what is left when the lane is over."""
        return []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples that are held and not yet in a finished batch, in any order."""
        return role_state.find_refs(self)

    def size_of(self, sample: Sample) -> int:
        """Return the size of a processed sample: by default `len(sample["input_ids"])`."""
        return len(sample["input_ids"])

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

    def facts(self) -> BatcherFacts:
        """Return what is promised; by default nothing. Between two calls it is the same."""
        return BatcherFacts()

    def take_measures(self, measures: Sequence[str]) -> None:
        """Take the names of what samples count, in the order of `SampleRef.counts`.

        Called where a job is built; clones have them, too.
        """
        self._penstock_measures = tuple(measures)

    def clone(self) -> Any:
        """Return a fresh batcher with the same parameters, and the same names of counts."""
        made = super().clone()
        if self._penstock_measures is not None:
            made.take_measures(self._penstock_measures)
        return made

    def state(self) -> Any:
        """Return the state, JSON-able and canonical."""
        return role_state.capture(self)

    def restore(self, state: Any) -> None:
        """Take back what `state` gave; called on a fresh batcher with the same parameters."""
        role_state.restore(self, state)


def facts_of(batcher: SampleBatcher) -> BatcherFacts:
    """Return what holds of a batcher: a promise that a user's class inherits may not.

    Raises:
        InvalidJob: A user's `facts` fails, or gives something else.
    """
    found = asked(batcher, "facts")
    if not isinstance(found, BatcherFacts):
        raise InvalidJob(
            f"{batcher.code_of('facts')} gave {found!r}: return BatcherFacts(...)", key="batcher"
        )
    if not batcher.is_of_user() or "facts" in vars(type(batcher)):
        return found
    return replace(found, sizes_kept=None, may_split=True, may_refuse=True, samples_of_batch=None)


def rule_of_sizes(batcher: SampleBatcher) -> Any:
    """Return what `size_of` gives, JSON-able: batchers that agree can share an index of sizes.

    `{"length_of": NAME}` is the length of a value of the sample, and None a size of 0. Of a user's
    class that overrides `size_of` it is the identity of the whole batcher.
    """
    if (key := facts_of(batcher).length_key) is not None:
        return {"length_of": key} if batcher.needs_sizes else None
    if batcher.keeps(SampleBatcher, "size_of"):
        return {"length_of": "input_ids"}
    return {"batcher": batcher.identity()}
