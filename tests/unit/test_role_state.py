"""What a snapshot cannot give back is refused by name, before it is missed."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.core.refs import ItemRef, Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import Sample, SampleBatcher
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob

REF = SampleRef(ItemRef("main", 7, 0), 0, 3)


class Keeps(SampleBatcher):
    """A batcher that does to itself what a test says."""

    version: ClassVar[int | str | None] = 1
    needs_sizes: ClassVar[bool] = False

    def __init__(
        self, budget: int = 4, weights: list[int] | None = None, table: Any = None, do: Any = None
    ) -> None:
        self.budget, self.weights, self.table, self.do = budget, weights, table, do
        self.held: list[SampleRef] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Every sample is a group."""
        self.do(self)
        return [[[ref]]]


def lower(batcher: Any) -> None:
    batcher.budget -= 1


def append(batcher: Any) -> None:
    batcher.weights.append(1)


def write(batcher: Any) -> None:
    batcher.table[0] += 1


def remove(batcher: Any) -> None:
    del batcher.weights


@pytest.mark.parametrize(
    ("do", "name"), [(lower, "budget"), (append, "weights"), (write, "table"), (remove, "weights")]
)
def test_a_parameter_that_has_changed_is_refused_by_name(do: Any, name: str) -> None:
    """It would be left out of every snapshot, and other batches would follow a restart."""
    template = Keeps(8, [1, 2], np.zeros(3), do)
    batcher, other = template.clone(), template.clone()
    assert batcher.state() == other.state() == {"held": []}

    batcher.add(REF)

    with pytest.raises(InvalidJob, match=rf"Keeps\.{name} has changed since the constructor"):
        batcher.state()
    assert other.state() == {"held": []}, "what one lane does to its parameters reached another"


class Counts:
    """A user's helper without a `__dict__`."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def step(self) -> None:
        """Change."""
        self.number += 1


class Defaults(Keeps):
    """Defaults that all instances share, as Python has them."""

    def __init__(
        self,
        do: Any = None,
        weights: Any = [],  # noqa: B006
        table: Any = Counter(),  # noqa: B006
        counts: Any = None,
    ) -> None:
        super().__init__(weights=weights, table=table, do=do)
        self.counts = Counts() if counts is None else iter(counts)


@pytest.mark.parametrize(
    ("do", "name"),
    [
        (append, "weights"),
        (lambda batcher: batcher.table.update("a"), "table"),
        (lambda batcher: batcher.counts.step(), "counts"),
    ],
)
def test_what_defaults_and_helpers_hold_is_refused_alike(do: Any, name: str) -> None:
    """A list that is a default reaches no other lane; an object with slots is looked into."""
    batcher = Defaults(do).clone()
    assert batcher.state() == {"budget": 4, "held": []}

    batcher.add(REF)

    with pytest.raises(InvalidJob, match=rf"Defaults\.{name} has changed since the constructor"):
        batcher.state()


def test_an_iterator_under_a_parameters_name_is_refused() -> None:
    """How far it has come is seen by nobody."""
    with pytest.raises(InvalidJob, match=r"Defaults\.counts"):
        Defaults(counts=range(9)).clone().state()


class Lowers(Keeps):
    """Its budget shrinks with every sample."""

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample, and change what was given."""
        self.budget -= 1
        return [[[ref]]]


def test_a_planner_refuses_the_snapshot_and_so_does_its_replay() -> None:
    """The lane stops by name at its first snapshot, wherever it began."""
    job = Job(ItemsSource([1, 2, 3]), batcher=Lowers(), lanes=1)
    planner = SamplePlanner(job, 0, Items(job))
    first = planner.snapshot()
    planner.next()

    with pytest.raises(InvalidJob, match=r"Lowers\.budget"):
        planner.snapshot()
    planner.restore(first)
    planner.next()
    with pytest.raises(InvalidJob, match=r"Lowers\.budget"):
        planner.snapshot()


def test_parameters_of_any_kind_that_stay_as_they_are_do_not_matter() -> None:
    """A constructor may make of a parameter what it likes, anew each time."""

    class Plain:
        def __init__(self) -> None:
            self.values = [1, 2]

    class Reads(Keeps):
        def __init__(self, table: Any = None, nan: float = 0.0, weights: Any = None) -> None:
            super().__init__(table=[table, {"x": np.full(3, np.nan)}])
            self.nan, self.weights = float("nan"), Plain()

    batcher = Reads("given").clone()

    assert batcher.state() == {"budget": 4, "do": None, "held": []}
    batcher.weights.values.append(3)
    with pytest.raises(InvalidJob, match=r"Reads\.weights"):
        batcher.state()


@pytest.mark.parametrize(
    ("alias", "said"),
    [
        (lambda held: {"left": held, "right": held}, r"Keeps\.left and Keeps\.right hold one"),
        (lambda held: {"rows": [held, held]}, r"Keeps\.rows and Keeps\.rows hold one"),
        (lambda held: {"a": (held,), "b": {1: held}}, r"Keeps\.a and Keeps\.b hold one"),
    ],
)
def test_one_list_in_two_places_is_refused(alias: Any, said: str) -> None:
    """It would come back as two, and what is put into one would be missing in the other."""
    for held in ([], [REF], {}, deque([1])):
        batcher = Keeps()
        vars(batcher).update(alias(held))

        with pytest.raises(InvalidJob, match=said):
            batcher.state()


def test_one_tuple_or_ref_in_two_places_is_the_same_after_a_restart() -> None:
    """Nothing can be put into it."""
    batcher = Keeps()
    batcher.held = [REF, REF]
    vars(batcher).update(left=(1, REF), right=(1, REF))

    restored = batcher.clone()
    restored.restore(batcher.state())

    assert restored.state() == batcher.state()


@pytest.mark.parametrize("value", [Counter("a"), defaultdict(list), {1, 2}, np.int64(3)], ids=repr)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    """A Counter that returns as a dict fails only after a restart."""
    batcher = Keeps()
    vars(batcher).update(kept=value)

    with pytest.raises(InvalidJob, match=rf"Keeps\.kept is of type {type(value).__name__}"):
        batcher.state()


class Slotted(Keeps):
    """Some of its state is not in its `__dict__`."""

    __slots__ = ("__own", "left")

    def __init__(self) -> None:
        super().__init__()
        self.left, self.__own = 3, [REF]


def test_slots_are_state_like_other_attributes() -> None:
    state = Slotted().state()

    assert state["left"] == 3
    assert state["_Slotted__own"] == [{"ref": REF.to_json()}]
    assert list(Slotted().pending) == [REF]


class Shared(Keeps):
    """Its list belongs to the class: a classic slip."""

    bins: ClassVar[list[SampleRef]] = []


def test_samples_that_the_class_holds_are_refused() -> None:
    """Every lane would draw from them, and no snapshot has them."""
    batcher = Shared()
    assert "bins" not in batcher.state()
    batcher.bins.append(REF)

    with pytest.raises(InvalidJob, match=r"Shared\.bins belongs to the class"):
        batcher.state()
    batcher.bins.clear()
