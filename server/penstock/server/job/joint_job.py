"""A job of several sets of roles: each batch comes from one of them, and says from which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from penstock.common.checks import check_choice
from penstock.server.job.job import MAX_SOURCE_NAME, SOURCE_NAME, Job, LaneRoles
from penstock.server.job.role_set import DEFAULT_LANES, RoleSet, deal_lanes, joint_specs, name_taken
from penstock.server.job.set_choice import Choices, by_largest_remainder, shares_in_block
from penstock.server.roles.collator import KeySpec
from penstock.wire.errors import InvalidJob, InvalidRequest
from penstock.wire.value_types import DATASET_NAME

CHOICES = ("step", "batch", "lane")


class JointJob(Job):
    """A job whose batches come from several sets of roles, each batch from one of them.

    The sets may differ in everything, from the source to the collator. The log is one: with one log
    id, one cursor, one budget of items that are left out. Each batch has a value `dataset_name`,
    the name of its set.

    Args:
        sets: The sets of roles by name, with their ratios; `source` of a set that has only one gets
            the name of the set, and no two sets have a source of the same name. The names, their
            order and the ratios are part of the log id.
        seed, lanes, epochs, on_item_error, max_quarantined: As for `Job`.
        batches_per_step: As for `Job`; with `choice: step` it is required, and is part of the log
            id. A group's own must divide it.
        max_replay, snapshot_every, name: As for `Job`.
        choice: What is of one set. `step`: all batches of a step, on all ranks; which set it is
            follows from the seed and the step, and sets have exactly their shares in every so many
            steps. `batch`: each batch is chosen for itself, so that a step holds several sets.
            `lane`: lanes are dealt to the sets, so that every step holds them in the same
            proportion, as evenly as whole batches allow. With `step` and `batch` each lane has a
            line of every set, which takes the memory of that many pools.

    Raises:
        InvalidJob: The plan does not hold together; says what to change.
    """

    def __init__(
        self,
        sets: Mapping[str, RoleSet],
        *,
        choice: str = "step",
        seed: int = 0,
        lanes: int = DEFAULT_LANES,
        epochs: int | None = None,
        batches_per_step: int | None = None,
        on_item_error: str = "stop",
        max_quarantined: int = 1000,
        max_replay: int = 100_000,
        snapshot_every: int = 16,
        name: str = "job",
    ) -> None:
        if not sets:
            raise InvalidJob("there is no set of roles: give at least one", key="joint")
        check_choice("choice", choice, CHOICES)
        policies = (batches_per_step, on_item_error, max_quarantined, max_replay, snapshot_every)
        self._take_numbers(name, seed, lanes, epochs, *policies)
        self.chosen_by = choice
        self._check_choice(sets)
        _check_apart(sets)
        ratios = [roles.ratio for roles in sets.values()]
        own = by_largest_remainder(ratios, lanes) if choice == "lane" else [lanes] * len(sets)
        role_sets = tuple(
            roles.placed(count, key, number)
            for number, ((key, roles), count) in enumerate(zip(sets.items(), own, strict=True))
        )
        self._shares = own if choice == "lane" else shares_in_block(ratios)
        self._specs = joint_specs(role_sets)
        self._together = (batches_per_step or 1) if choice == "step" else 1
        self._choices = Choices(self._shares, lanes, self._together, seed)
        if choice == "lane":
            self._lane_roles = _dealt(role_sets)
        else:
            self._lane_roles = [
                tuple(LaneRoles(roles, lane) for roles in role_sets) for lane in range(lanes)
            ]
        balanced = [
            name for name, roles in sets.items() if roles.plan and roles.plan.balance is not None
        ]
        if balanced:
            raise InvalidJob(
                f"the plan of {balanced[0]!r} balances steps, and steps of a joint job have "
                "batches of several sets: leave balance out",
                key=f"joint.{balanced[0]}.plan.balance",
            )
        self._take_roles(role_sets)

    def _check_choice(self, sets: Mapping[str, RoleSet]) -> None:
        if self.chosen_by == "step" and self.batches_per_step is None:
            raise InvalidJob(
                "choice: step chooses a set for each step, so the job must say how many batches a "
                "step has: give batches_per_step, or choice: batch",
                key="batches_per_step",
            )
        if self.chosen_by == "lane" and self.lanes < len(sets):
            raise InvalidJob(
                f"choice: lane deals {self.lanes} lanes to {len(sets)} sets of roles: give at "
                "least a lane for each",
                key="lanes",
            )
        repeated = [name for name, roles in sets.items() if roles.exhausted == "repeat"]
        if self.epochs is None or not repeated:
            return
        if self.chosen_by == "lane":
            raise InvalidJob(
                f"the lanes of {repeated[0]!r} would never end, since it is repeated: with choice: "
                "lane and epochs let every set say exhausted: stop",
                key=f"joint.{repeated[0]}.exhausted",
            )
        if len(repeated) == len(sets):
            raise InvalidJob(
                f"epochs: {self.epochs} ends the job where a set is exhausted, and all of them are "
                "repeated: let one say exhausted: stop, or use epochs: null",
                key="epochs",
            )

    def lane_roles(self, lane: int) -> Sequence[LaneRoles]:
        """Return the sets of roles that make batches of a lane, with its number in each."""
        return self._lane_roles[lane]

    @override
    def choice(self, lane: int, offset: int) -> int:
        return 0 if self.chosen_by == "lane" else self._choices.at(lane, offset)

    @override
    def uses(self, lane: int, offset: int) -> Sequence[int]:
        return (offset,) if self.chosen_by == "lane" else self._choices.uses(lane, offset)

    def known_end(self, lane: int) -> int | None:
        """Return how many batches a lane holds, where arithmetic says it.

        It is over where the set that is chosen has nothing more.
        """
        if self.chosen_by == "lane":
            return super().known_end(lane)
        ends: list[int] = []
        for number, part in enumerate(self._lane_roles[lane]):
            if part.roles.epochs is None:
                continue
            batches = part.batches
            if batches is None:
                return None
            ends.append(self._choices.offset_of_use(lane, number, batches))
        return min(ends, default=None)

    def check_steps(self, batches_per_step: int) -> None:
        """Refuse steps that would hold batches of several sets where a step shall hold one.

        Raises:
            InvalidRequest: With the numbers that do not.
        """
        own = self._together
        if self.chosen_by == "step" and own % batches_per_step:
            fitting = [number for number in range(1, own + 1) if own % number == 0]
            raise InvalidRequest(
                f"batches_per_step is {batches_per_step}, and job {self.name!r} chooses a set of "
                f"roles for every {own} batches: a step would hold several sets; use "
                f"{', '.join(map(str, fitting))}, or choice: batch in the job",
                field="batches_per_step",
                value=batches_per_step,
            )

    def labelled(self, values: dict[str, Any], role_set: int) -> dict[str, Any]:
        """Return the values of a batch with the name of the set that made it.

        Raises:
            InvalidJob: They have a value of that name.
        """
        roles = self.role_sets[role_set]
        if DATASET_NAME in values:
            raise name_taken(roles)
        return {**values, DATASET_NAME: roles.name}

    def shares(self) -> dict[str, float]:
        """Return which part of all batches each set makes, before any set is exhausted."""
        total = sum(self._shares)
        return {
            roles.name: share / total
            for roles, share in zip(self.role_sets, self._shares, strict=True)
        }

    def _check_names(self) -> None:
        for roles in self.role_sets:
            if not SOURCE_NAME.fullmatch(roles.name):
                raise InvalidJob(
                    f"{roles.name!r} is not a name for a set of roles: use letters, digits and "
                    f"underscores, and no digit first, at most {MAX_SOURCE_NAME} characters",
                    key="joint",
                )
        super()._check_names()
        if len(self.sources) < sum(len(roles.sources) for roles in self.role_sets):
            raise InvalidJob(
                "two sets of roles have a source of the same name: an item is known by the name of "
                "its source, so give each its own",
                key="joint",
            )

    def specs(self) -> Sequence[KeySpec]:
        """Return what is known about the values of a batch, whichever set has made it."""
        return self._specs

    def _identity(self) -> dict[str, Any]:
        sets = {
            roles.name: {
                "number": roles.number,
                "share": share,
                "exhausted": roles.exhausted,
                **roles.identity(),
            }
            for roles, share in zip(self.role_sets, self._shares, strict=True)
        }
        return {"sets": sets, "choice": self.chosen_by, "together": self._together}


def _dealt(role_sets: Sequence[RoleSet]) -> list[tuple[LaneRoles, ...]]:
    """Return for each lane the set that has it."""
    given = [0] * len(role_sets)
    found: list[tuple[LaneRoles, ...]] = []
    for number in deal_lanes([roles.lanes for roles in role_sets]):
        found.append((LaneRoles(role_sets[number], given[number]),))
        given[number] += 1
    return found


def _check_apart(sets: Mapping[str, RoleSet]) -> None:
    """Refuse a distributor or a source of two sets: it is bound to the lanes of one."""
    seen: dict[int, str] = {}
    for name, roles in sets.items():
        for role in (roles.distributor, *roles.sources.values()):
            other = seen.setdefault(id(role), name)
            if other != name:
                raise InvalidJob(
                    f"{type(role).__name__} is the same object in the sets {other!r} and {name!r}: "
                    "make one for each, since it keeps what it reads and draws for its own lanes",
                    key="joint",
                )
