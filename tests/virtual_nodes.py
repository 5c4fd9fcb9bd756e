"""Nodes and ranks in virtual time, over the real functions: what moves, what waits, what is asked.

`deal`, `read_lanes` and `Placement` decide. What is simulated is time, who notices what when, and
how long a replay takes. Ranks do not hear of each other, and differ in when they notice that a node
is gone, or back: they are in `Setting.views` views, each with a placement of its own. All ranks go
at one pace, that of the slowest, as they do in training.

`e2e/test_client_scale.py` compares it with three real nodes; `bench/scale.py` runs it for many.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.nodes import placement, target_nodes
from penstock.client.nodes.dealing import LaneUnits, deal
from penstock.client.nodes.placement import Placement
from penstock.client.nodes.read_lanes import read_lanes
from penstock.client.reading import failover, silence
from penstock.server.node.demand import made_ahead
from penstock.server.rpc import hand_over
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2

BIN_S = 0.1
"""Calls and streams are counted in so wide bins."""

LOOK_AT_NAME_S = 5.0
"""How often `dns:///` is resolved again."""


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        nodes: How many nodes there are, numbered from 0.
        ranks: How many ranks read; each reads one batch of every step.
        lanes: How many lanes the log has; each is a unit of its own.
        snapshot_every: Batches of a lane from one snapshot to the next.
        step_s: How long a step takes.
        batch_s: Seconds of a worker that a batch takes.
        workers: Workers of a node.
        ahead: Steps that ranks accept ahead.
        views: Ranks of one view notice everything at one moment.
        salt: As for `deal`.
        names: The ids of nodes; they need a place for the number.
    """

    nodes: int = 64
    ranks: int = 4096
    lanes: int = 10_000
    snapshot_every: int = 16
    step_s: float = 1.0
    batch_s: float = 0.1
    workers: int = 16
    ahead: int = 2
    views: int = 16
    salt: bytes = b"log"
    names: str = "penstock-{}"

    @cached_property
    def units(self) -> LaneUnits:
        """Return the units of the log's lanes."""
        return LaneUnits(self.lanes, salt=self.salt, snapshot_every=self.snapshot_every)

    @cached_property
    def classes(self) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
        """Return the ranks that read the same lanes, with these lanes."""
        found: dict[frozenset[int], list[int]] = {}
        lanes_of: dict[int, frozenset[int]] = {}
        apart = int(np.gcd(self.ranks, self.lanes))
        for rank in range(self.ranks):
            if rank % apart not in lanes_of:
                share = Share(self.ranks, rank, self.ranks)
                lanes_of[rank % apart] = read_lanes(self.lanes, share)
            found.setdefault(lanes_of[rank % apart], []).append(rank)
        return [(ranks, sorted(lanes)) for lanes, ranks in found.items()]

    @property
    def is_shared(self) -> bool:
        """Whether several ranks read a lane."""
        return self.lanes % self.ranks != 0

    @property
    def is_handed_over(self) -> bool:
        """Whether readers take what a node has made ahead of them while it drains."""
        beyond = made_ahead.AHEAD_PER_WORKER * self.workers
        return (-(-beyond // self.ranks) + 1) * self.step_s <= hand_over.HAND_OVER_S

    def name(self, number: int) -> str:
        """Return the id of a node."""
        return self.names.format(number)


class View:
    """Ranks that notice everything at one moment, and so have equal placements.

    Args:
        setting: What is simulated.
        number: Which of the views it is.
        dealt: `deal`, whose results all views share.
    """

    def __init__(self, setting: Setting, number: int, dealt: placement.Deal) -> None:
        self.ranks = np.arange(number, setting.ranks, setting.views)
        self.placement = Placement(setting.lanes, setting.units.row, dealt)
        self.moved = 0
        self.boundary = 0


class Simulation:
    """A run in virtual time.

    Args:
        setting: What is simulated.
        seed: Decides when each view notices what.

    Attributes:
        now_s: The time.
        moved: Units that moved, as the mean over the views.
        recomputed: Batches that were made once more: accepted by a rank, and lost with a node.
        replanned: Batches that were planned once more: a lane goes on from a snapshot, or two nodes
            plan it, for ranks that move at different boundaries.
        waits_s: For how long training stood still, for each node that was left.
        most_units: The most units that one node had at any time.
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self._rng = setting, random.Random(seed)
        self._draws = np.random.default_rng(seed)
        self.now_s = 0.0
        self._begun_s, self._begun_at = 0.0, 0  # since when it goes on from which position
        self._known = {setting.name(number): setting.workers for number in range(setting.nodes)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.recomputed = self.replanned = 0
        self.waits_s: list[float] = []
        self.most_units = 0
        self._opens: Counter[tuple[str, int]] = Counter()
        self._calls: Counter[tuple[str, int]] = Counter()
        self._class_of = np.zeros(setting.ranks, int)
        for number, (ranks, _) in enumerate(setting.classes):
            self._class_of[list(ranks)] = number
        sizes = [len(lanes) for _, lanes in setting.classes]
        self._pair_class = np.repeat(np.arange(len(sizes)), sizes)
        self._pair_lane = np.concatenate([lanes for _, lanes in setting.classes])

        @lru_cache(maxsize=256)
        def dealt(weights: tuple[tuple[str, int], ...], away: frozenset[str]) -> tuple[str, ...]:
            return deal(setting.lanes, dict(weights), away=away, salt=setting.salt)

        self.views = [
            View(
                setting,
                number,
                lambda _, weights, *, away: dealt(tuple(weights.items()), frozenset(away)),
            )
            for number in range(setting.views)
        ]
        for view in self.views:
            view.placement.know(self._known, 0.0)
            self._settle(view)

    @property
    def moved(self) -> float:
        """Return how many units moved, as the mean over the views."""
        return sum(view.moved for view in self.views) / len(self.views)

    @property
    def position(self) -> int:
        """Return how far training is now."""
        steps = max(0.0, self.now_s - self._begun_s) / self.setting.step_s
        return self._begun_at + int(steps) * self.setting.ranks

    # --- events ---

    def at(self, at_s: float, event: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (at_s, next(self._numbers), event))

    def run(self, until_s: float) -> None:
        """Go on until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = until_s

    def kills(self, number: int) -> None:
        """Have a node die now: connections are refused from now on."""
        self._goes(self.setting.name(number), sum(failover.TRY_AGAIN_S), 0.1)

    def falls_silent(self, number: int) -> None:
        """Have a machine be lost now: nothing comes any more, and nothing ends."""
        self._goes(self.setting.name(number), silence.SILENT_S, failover.TICK_S)

    def drains(self, number: int) -> None:
        """Have a node say now that it shuts down, once it has handed over what it has made."""
        self._goes(self.setting.name(number), 0.0, 0.0, drains=True)

    def _goes(self, name: str, after_s: float, spread_s: float, *, drains: bool = False) -> None:
        setting = self.setting
        gone = [unit for unit, owner in enumerate(self.views[0].placement.owners) if owner == name]
        jitter_s = min(failover.MAX_JITTER_S, failover.JITTER_S * (setting.ranks - 1))
        # What was sent for already, and not taken, is made once more, after the replay.
        offset = self.position // setting.lanes
        replayed = offset % setting.snapshot_every
        ready = setting.ahead * setting.ranks * len(gone) // setting.lanes
        if drains and setting.is_handed_over:
            replayed = ready = 0
        self.recomputed += ready
        self.replanned += replayed * len(gone)
        noticed_s = []
        for view in self.views:
            delay_s = after_s + spread_s * self._rng.random()
            noticed_s.append(delay_s)
            self.at(self.now_s + delay_s, partial(self._leave, view, name, drains))
        if not gone:
            return
        away = {node for node, left in self.views[0].placement.left.items() if left} | {name}
        others = deal(setting.lanes, self._known, away=away, salt=setting.salt)
        most = max(Counter(others[unit] for unit in gone).values())
        lanes_at_once = -(-most // setting.workers)
        replay_s = (replayed + 1) * setting.batch_s * lanes_at_once
        wait_s = max(noticed_s) + jitter_s + replay_s
        self.waits_s.append(wait_s)
        self._begun_at, self._begun_s = self.position, self.now_s + wait_s

    def _leave(self, view: View, name: str, drains: bool) -> None:
        because = feed_pb2.LEFT_DRAINS if drains else feed_pb2.LEFT_BROKE
        view.placement.leave(name, "it is gone", self.now_s, because)
        if drains:
            self._ask(view, name)
        self._settle(view)
        self._look_when_healthy(view)

    def comes_back(self, number: int) -> None:
        """Have a node that was left answer from now on."""
        name = self.setting.name(number)
        for view in self.views:
            # Its ranks ask for themselves; the view notices as one of them does.
            at_s = self.now_s + failover.AGAIN_S * 1.5 * self._rng.random()
            self.at(at_s, partial(self._answers, view, name))
        probes = self._draws.random(self.setting.ranks) * failover.AGAIN_S * 1.5
        self._count(self._calls, [name], probes[:, None] + self.now_s)

    def _answers(self, view: View, name: str) -> None:
        view.placement.answers(name, self.now_s)
        self._ask(view, name)
        self._settle(view)
        self._look_when_healthy(view)

    def joins(self, number: int) -> None:
        """Have a new node be there from now on."""
        name = self.setting.name(number)
        self._known = {**self._known, name: self.setting.workers}
        for view in self.views:
            at_s = self.now_s + LOOK_AT_NAME_S * self._rng.random()
            self.at(at_s, partial(self._knows, view))

    def _knows(self, view: View) -> None:
        view.placement.know(self._known, self.now_s)
        self._settle(view)
        self._look_when_healthy(view)

    # --- a view ---

    def _settle(self, view: View) -> None:
        setting, before = self.setting, view.placement.owners
        position = self.position
        accepted = position + setting.ahead * setting.ranks
        planned = view.placement.planned
        moves = view.placement.settle(self.now_s, position, accepted)
        after = view.placement.owners
        if moves:
            view.moved += len(moves)
            if planned is not None and planned.owners == after:
                self._moved_at(view, planned.position, len(moves))
            self._opened(view, before, after)
        self.most_units = max(self.most_units, max(Counter(after).values()))
        now_planned = view.placement.planned
        if now_planned is not None:
            steps = -(-(now_planned.position - position) // setting.ranks)
            due_s = max(self.now_s, self._begun_s) + max(1, steps) * setting.step_s
            self.at(due_s, partial(self._settle, view))

    def _look_when_healthy(self, view: View) -> None:
        """Have a view look whether nodes are healthy now, when its next look after that is due."""
        wait_s = placement.HEALTHY_S + failover.TICK_S * (1 - self._rng.random())
        self.at(self.now_s + wait_s, partial(self._settle, view))

    def _moved_at(self, view: View, boundary: int, units: int) -> None:
        """Note that two nodes plan units where views move at different boundaries.

        A batch is one rank's, and made where that rank asks for it. A lane that one rank alone
        reads is planned there alone, too.
        """
        view.boundary = boundary
        others = [other.boundary for other in self.views if other is not view]
        nearest = min(abs(boundary - other) for other in others) if others else 0
        if self.setting.is_shared and 0 < nearest <= 2 * self.setting.units.row:
            self.replanned += nearest // self.setting.lanes * units

    def _opened(self, view: View, before: Sequence[str], after: Sequence[str]) -> None:
        """Count the streams that a view's ranks open: where their lanes at a node have changed."""
        setting = self.setting
        names = sorted({*before, *after})
        index = {name: number for number, name in enumerate(names)}
        old = np.array([index[name] for name in before])[self._pair_lane]
        new = np.array([index[name] for name in after])[self._pair_lane]
        changed, used = (np.zeros((len(setting.classes), len(names)), bool) for _ in range(2))
        differs = old != new
        changed[self._pair_class[differs], old[differs]] = True
        changed[self._pair_class[differs], new[differs]] = True
        used[self._pair_class, new] = True
        opened = (changed & used)[self._class_of[view.ranks]]
        jitter_s = min(failover.MAX_JITTER_S, failover.JITTER_S * (setting.ranks - 1))
        times = self.now_s + jitter_s * self._draws.random(opened.shape)
        self._count(self._opens, names, np.where(opened, times, np.nan))

    def _ask(self, view: View, name: str) -> None:
        """Count that a view's ranks ask a node as it drains, or is back."""
        times = self._draws.random((len(view.ranks), 1)) * target_nodes.SOON_S
        self._count(self._calls, [name], times + self.now_s)

    @staticmethod
    def _count(
        counter: Counter[tuple[str, int]], names: Sequence[str], times: NDArray[Any]
    ) -> None:
        """Count times, of shape (ranks, names), in bins."""
        for name, column in zip(names, times.T, strict=True):
            bins = (column[~np.isnan(column)] / BIN_S).astype(int)
            for number, count in zip(*np.unique(bins, return_counts=True), strict=True):
                counter[name, int(number)] += int(count)

    # --- what is told ---

    def streams(self) -> tuple[NDArray[Any], dict[str, int]]:
        """Return how many streams each rank has, and each node."""
        per_rank = np.zeros(self.setting.ranks, int)
        per_node: Counter[str] = Counter()
        for view in self.views:
            owners = view.placement.owners
            index = {name: number for number, name in enumerate(sorted(set(owners)))}
            used = np.zeros((len(self.setting.classes), len(index)), bool)
            at = np.array([index[name] for name in owners])[self._pair_lane]
            used[self._pair_class, at] = True
            ours = used[self._class_of[view.ranks]]
            per_rank[view.ranks] = ours.sum(axis=1)
            per_node.update(dict(zip(index, map(int, ours.sum(axis=0)), strict=True)))
        return per_rank, dict(per_node)

    def busiest_opens(self) -> int:
        """Return the most streams that any node was asked for within a second."""
        return _busiest(self._opens)

    def busiest_calls(self) -> int:
        """Return the most calls of Describe that any node got within a second for what happened."""
        return _busiest(self._calls)


def _busiest(counts: Counter[tuple[str, int]]) -> int:
    width, best = round(1 / BIN_S), 0
    by_name: dict[str, dict[int, int]] = {}
    for (name, number), count in counts.items():
        by_name.setdefault(name, {})[number] = count
    for found in by_name.values():
        for number in found:
            best = max(best, sum(found.get(number + more, 0) for more in range(width)))
    return best


def describe_rate(setting: Setting) -> float:
    """Return calls of Describe a second in all while nothing happens."""
    return setting.ranks * setting.nodes / (0.875 * target_nodes.AGAIN_S)
