"""The rules of a store in small worlds, enumerated completely.

Every sequence of what two attempts and an operator may do, to a bounded depth, and each invariant
after each of them. Equal worlds are met once: what may follow is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import Memory, MemoryStore, Store
from penstock.server.store.in_memory import MemoryTables
from penstock.server.store.records import (
    BeginAnswer,
    BeginRequest,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Halt,
    JobRecord,
    Moved,
    Seen,
    SnapshotRecord,
)
from penstock.server.store.rows import (
    CheckpointRow,
    CursorRow,
    GenerationRow,
    GroupRow,
    HaltRow,
    SnapshotRow,
    TimelineRow,
    VerdictRow,
)
from penstock.server.store.rules import (
    group_rules as groups,
)
from penstock.server.store.rules import (
    lane_records as lanes,
)
from penstock.server.store.rules import (
    verdict_rules as verdicts,
)
from penstock.server.store.tables import Tables, finish
from penstock.wire.errors import LogDiverged, PenstockError, StaleGeneration, UnknownGroup
from penstock.wire.order import Order

LOG = bytes(32)
JOB = JobRecord("code", LOG, {"lanes": 2})


OF_A_GROUP = (GroupRow, TimelineRow, GenerationRow, CursorRow, CheckpointRow)


class TimelessTables(MemoryTables):
    """Rows without times, so that equal worlds are equal."""

    def now(self) -> str:
        """Return no time."""
        return "now"


class Timeless(MemoryStore):
    """A store whose changes a test takes back itself, see `MemoryTables.take_back`."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.tables = TimelessTables(memory)

    async def transact(self, transaction: Callable[[Tables], Coroutine[Any, Any, Any]]) -> Any:
        """Run it over the rows."""
        return finish(transaction(self.tables))


class Holder(NamedTuple):
    """A process that has begun: it will try to commit for ever."""

    token: str
    generation: int


class World(NamedTuple):
    """What the test knows beside the store.

    Attributes:
        holder: Who alone may write; None = nobody.
        processes: All that have ever begun.
        used: The tokens that have begun the group since it was made.
        highest: The highest generation that was ever answered.
        moves: The first answer to a move, by its request.
    """

    holder: Holder | None = None
    processes: frozenset[Holder] = frozenset()
    used: frozenset[str] = frozenset()
    highest: int = 0
    moves: tuple[tuple[str, Moved], ...] = ()


Operation = Callable[[Store], Coroutine[Any, Any, Any]]


class Action(NamedTuple):
    """Something that somebody may do now."""

    name: str
    who: Holder | None
    operation: Operation


def begin(token: str, world_size: int, start: int | None) -> Action:
    request = BeginRequest(JOB, "run", token, 0, world_size, 2, start_step=start)
    return Action(f"begin {token}", None, lambda store: store.begin(request))


def commit(who: Holder, rank: int, step: int, all_rows: bool) -> Action:
    return Action(
        "commit",
        who,
        lambda store: store.commit("code", "run", *who, rank, step, all_rows=all_rows),
    )


def seek(step: int, request_id: str) -> Action:
    return Action(
        f"move {request_id}",
        None,
        lambda store: store.seek("code", "run", step, request_id, "ada"),
    )


def restore(request_id: str) -> Action:
    return Action(
        f"move {request_id}",
        None,
        lambda store: store.restore("code", "run", "c", request_id, "ada"),
    )


def checkpoint(step: int | None) -> Action:
    return Action(
        "checkpoint" if step is None else f"checkpoint {step}",
        None,
        lambda store: store.checkpoint("code", "run", "c", step),
    )


def delete(generation: int | None) -> Action:
    return Action(
        "delete",
        None,
        lambda store: store.delete_group("code", "run", generation),
    )


ALWAYS = (
    begin("a", 1, None),
    begin("a", 2, None),
    begin("b", 2, None),
    begin("b", 1, 3),
    seek(1, "x"),
    seek(2, ""),
    restore("y"),
    checkpoint(None),
    checkpoint(2),
    delete(None),
    delete(1),
)


def actions(world: World) -> Iterator[Action]:
    """Yield all that may happen in a world: every process that ever began may still commit."""
    yield from ALWAYS
    for who in sorted(world.processes):
        yield commit(who, 0, 2, False)
        yield commit(who, 1, 4, False)
        yield commit(who, 0, 3, True)
        yield commit(who._replace(token="c"), 0, 5, False)  # its number is right


class Explorer:
    """Goes through all sequences of actions, depth first, each taken back afterwards."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.met: set[Any] = set()
        self.steps = 0

    def state(self) -> tuple[Any, ...]:
        """Return all rows."""
        tables = self.memory.tables.values()
        return tuple(tuple(map(table.rows.__getitem__, table.keys)) for table in tables)

    def record(self) -> GroupRecord | None:
        """Return the group as the store shows it."""
        try:
            [record] = finish(Timeless(self.memory).groups("code", "run"))
        except UnknownGroup:
            return None
        return record

    def explore(self, world: World, depth: int) -> None:
        """Do every action here, check it, and go on behind it."""
        state = self.state()
        if depth == 0 or (state, world, depth) in self.met:
            return
        self.met.add((state, world, depth))
        before = self.record()
        for action in actions(world):
            self.steps += 1
            store = Timeless(self.memory)
            try:
                answer = finish(action.operation(store))
            except PenstockError as error:
                store.tables.take_back()
                assert self.state() == state, "an error changes nothing"
                check_refused(world, action, error)
                continue
            after = self.record()
            next_world = check(world, action, answer, before, after)
            self.check_rows(after)
            self.check_repeated(action, answer)
            self.explore(next_world, depth - 1)
            store.tables.take_back()
        assert self.state() == state

    def check_rows(self, record: GroupRecord | None) -> None:
        """The latest generation has a row per rank, and nothing is left of a group that is gone."""
        tables = self.memory.tables
        if record is None:
            assert not any(tables[kind].rows for kind in OF_A_GROUP)
            return
        assert len(record.rows) == record.world_size
        assert record.cursor == min(record.rows, default=record.start_step)
        numbers = [row.generation for row in tables[GenerationRow].rows.values()]
        assert record.generation == max(numbers)
        assert {row.generation for row in tables[CursorRow].rows.values()} <= set(numbers)

    def check_repeated(self, action: Action, answer: Any) -> None:
        """A call whose answer was lost is made again: nothing happens, and the answer agrees."""
        if action.name in ("move ", "delete"):
            return
        state, again = self.state(), Timeless(self.memory)
        repeated = finish(action.operation(again))
        if isinstance(answer, BeginAnswer):
            assert repeated.joined
            repeated, answer = repeated.generation, answer.generation
        assert repeated == answer
        assert self.state() == state
        again.tables.take_back()


def check_refused(world: World, action: Action, error: PenstockError) -> None:
    """Who holds the group is never refused as an older attempt, nor is its group unknown."""
    if action.who is not None and action.who == world.holder:
        assert not isinstance(error, StaleGeneration | UnknownGroup), action.name


def check(
    world: World,
    action: Action,
    answer: Any,
    before: GroupRecord | None,
    after: GroupRecord | None,
) -> World:
    """Hold an answer against the invariants, and return what is known after it."""
    if isinstance(answer, Committed):
        assert action.who == world.holder, "a fenced attempt has written"
        assert before is not None
        assert after is not None
        assert all(new >= old for new, old in zip(after.rows, before.rows, strict=True))
        assert after.generation == before.generation
        assert answer.cursor == after.cursor >= before.cursor
        return world
    if isinstance(answer, CheckpointRecord):
        assert before is not None
        assert after is not None
        assert set(before.checkpoints) <= set(after.checkpoints), "a checkpoint has changed"
        assert (after.rows, after.cursor) == (before.rows, before.cursor)
        asked_step = before.cursor if action.name == "checkpoint" else int(action.name[11:])
        assert answer.step == asked_step
        assert answer in after.checkpoints
        return world
    if isinstance(answer, GroupRecord):
        assert (answer, after) == (before, None)
        return world._replace(holder=None, used=frozenset())
    assert after is not None
    if isinstance(answer, Moved):
        return check_moved(world, action, answer, after)
    assert isinstance(answer, BeginAnswer)
    who = Holder(answer.token, answer.generation)
    if answer.joined:
        assert who == world.holder
        assert before == after
        return world
    assert answer.generation > world.highest, "a generation was given twice"
    assert answer.token not in world.used, "an old attempt has begun again"
    asked = 3 if action.name == "begin b" and answer.start_step == 3 else None
    assert answer.start_step in (asked, 0 if before is None else before.cursor)
    assert after.cursor == answer.start_step
    return world._replace(
        holder=who,
        processes=world.processes | {who},
        used=world.used | {who.token},
        highest=answer.generation,
    )


def check_moved(world: World, action: Action, moved: Moved, after: GroupRecord) -> World:
    """A move is a new generation that nobody holds, unless its request has moved before."""
    request = action.name.removeprefix("move ")
    first = dict(world.moves).get(request)
    if request and first is not None and moved.generation <= world.highest:
        assert moved == first
        return world
    assert moved.generation > world.highest, "a generation was given twice"
    assert (after.generation, after.cursor, after.rows) == (moved.generation, moved.step, ())
    moves = {**dict(world.moves), request: moved}
    return world._replace(holder=None, highest=moved.generation, moves=tuple(sorted(moves.items())))


def test_no_short_history_breaks_an_invariant() -> None:
    """All sequences of 6 begins, commits, moves, checkpoints and deletions, of all that began.

    A fenced attempt never writes, cursors fall by a move alone, generations strictly rise, also
    over a deletion, checkpoints do not change, an error changes nothing, and a retry is harmless.
    """
    explorer = Explorer()

    explorer.explore(World(), 6)

    assert explorer.steps > 50_000
    assert explorer.state() == Explorer().state()


def test_old_history_is_forgotten_and_the_latest_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of so many generations and the tokens of so many more; what is kept stays fenced."""
    for rows, tokens in itertools.product((1, 2, 3), (3, 4)):
        monkeypatch.setattr(groups, "KEPT_ROWS", rows)
        monkeypatch.setattr(groups, "KEPT_TOKENS", tokens)
        memory = Memory()
        for number in range(1, 9):
            finish(begin(f"t{number}", 2, None).operation(Timeless(memory)))

            held = {row.generation for row in memory.tables[CursorRow].rows.values()}
            assert held == set(range(max(1, number - rows + 1), number + 1))
            for old in range(max(1, number - tokens + 1), number):
                with pytest.raises(StaleGeneration):
                    finish(begin(f"t{old}", 2, None).operation(Timeless(memory)))


# --- verdicts ---


def test_no_verdict_changes_what_a_rank_was_given() -> None:
    """For all rows of two ranks, starts, places and snapshots: what holds, holds above all given.

    Two lanes, steps of two batches: rank r reads lane r, and step s stands at offset s.
    """
    order, item, made = Order(2), ItemRef("main", 7, 0), 0
    for start, first, second, state in itertools.product(
        range(3), range(4), range(4), (False, True)
    ):
        rows = {0: max(start, first), 1: max(start, second)}
        run = verdicts.Run(2, 2, 0 if state else start, rows)
        positions = [order.lane_offset(position) for position in range(12) if run.gave(position)]
        for stage, lane, offset, stored, planned, asked in itertools.product(
            ("draw", "exit"), (0, 1), range(5), (0, 2), (0, 3), (0, 4)
        ):
            given = verdicts.Given([run], [], stored, stored)
            new = Verdict(stage, item, "", "r", True, lane, offset)
            seen = Seen(order, planned, asked)
            try:
                verdict, _ = verdicts.add(
                    LOG, new, seen, given, out=(), limit=None, last_number=0, last_change=0
                )
            except LogDiverged:
                hit = [at for at in positions if at[0] == lane and at[1] >= offset]
                if stage == "exit":
                    hit = [at for at in hit if at[1] == offset]
                assert hit or planned > offset or (stage == "draw" and stored > offset)
                continue
            made += 1
            assert not [at for at in positions if verdict.holds(item, *at)]
            assert verdict.holds(item, lane, offset)
            assert all(verdict.holds(item, one, 9) for one in (0, 1))
            assert not verdict.holds(item, 1 - lane, max(0, stored, asked) - 1)
    assert made > 1000


def test_no_release_changes_what_a_rank_was_given() -> None:
    """Whatever a rank was given without the item stays so, and above all that it is back."""
    order, item = Order(2), ItemRef("main", 7, 0)
    for first, second, offset, asked in itertools.product(range(4), range(4), range(3), (0, 5)):
        row = VerdictRow(LOG, 1, "draw", "main", 7, 0, 1, 0, offset, offset, -1, "", "r", 1)
        before = verdicts.verdict_of(row)
        run = verdicts.Run(2, 2, 0, {0: first, 1: second})
        given = verdicts.Given([run], [], 0)

        [after], [change] = verdicts.release(LOG, [row], Seen(order, 0, asked), given, 6)

        assert change.row.change == 7
        assert not after.holds(item, 0, 9)
        for position in range(8):
            if run.gave(position):
                at = order.lane_offset(position)
                assert before.holds(item, *at) == after.holds(item, *at)
        assert verdicts.release(LOG, [change.row], Seen(order), given, 7) == ([after], [])


# --- changes of a log ---


def test_changes_of_a_log_are_counted_without_gaps_or_repeats() -> None:
    """Whatever is made, released or halted, in any order of 5: who asks since n misses nothing."""
    seen = Seen(Order(2))

    def made(index: int) -> Operation:
        verdict = Verdict("exit", ItemRef("main", index, 0), "", "r", True, 0, 0)
        return lambda store: store.add_verdict(LOG, verdict, seen, None)

    def released(store: Store) -> Coroutine[Any, Any, Any]:
        return store.release_verdicts(LOG, "main", 0, seen)

    def halted(store: Store) -> Coroutine[Any, Any, Any]:
        return store.add_halt(LOG, Halt(0, 1, "bad_item", "why", {"a": 1}, "n"))

    def changes(memory: Memory, after: int) -> Any:
        return finish(Timeless(memory).changes(LOG, after))

    for history in itertools.product((made(0), made(1), released, halted), repeat=5):
        memory, last = Memory(), 0
        for operation in history:
            before = finish(Timeless(memory).verdicts(LOG))
            halts = len(memory.tables[HaltRow].rows)
            finish(operation(Timeless(memory)))
            changed = [one for one in finish(Timeless(memory).verdicts(LOG)) if one not in before]
            found = changes(memory, last)
            assert found.verdicts == changed
            new = len(memory.tables[HaltRow].rows) - halts
            stands = len(memory.tables[HaltRow].rows) if found.change > last else 0
            assert len(found.halts) == stands
            assert found.change == last + len(found.verdicts) + new
            last = found.change
            assert changes(memory, last) == (last, [], [])


def test_halts_are_bounded() -> None:
    """A lane that stops again and again does not grow the store, and the count goes on."""
    memory = Memory()
    halt = Halt(0, 1, "bad_item", "\udcff", {}, "n")
    for number in range(1, 600):
        made = finish(Timeless(memory).add_halt(LOG, halt))
        assert (made.change, made.message) == (number, "?")

    assert len(memory.tables[HaltRow].rows) == lanes.KEPT_HALTS


# --- retention ---


def test_every_resume_of_a_crowded_lane_finds_a_snapshot_near() -> None:
    """For every place of a cursor and of a checkpoint over 600 snapshots of a lane."""
    rows = [SnapshotRecord(LOG, 0, offset, b"") for offset in range(0, 1200, 2)]
    memory = Memory()
    finish(Timeless(memory).put_snapshots(rows[:500]))
    snapshots = finish(TimelessTables(memory).all(SnapshotRow, LOG, 0))
    for cursor, named in itertools.product(range(0, 1000, 37), range(0, 1000, 41)):
        kept, changes = lanes.thin(snapshots, [cursor], [named])

        dropped = {change.prefix[2] for change in changes if len(change.prefix) == 3}
        left = {row.offset for row in snapshots} - dropped
        assert len(left) == kept
        assert cursor // 2 * 2 in left
        assert named // 2 * 2 in left
