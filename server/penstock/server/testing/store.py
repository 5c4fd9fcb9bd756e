"""What every store promises, whatever it is made of: a suite for pytest and pytest-asyncio.

```python
import pytest

pytest.register_assert_rewrite("penstock.server.testing.store")

from penstock.server.testing.store import StoreContract


class TestMyStore(StoreContract):
    def make(self, folder):
        return MyStore(folder / "my.db")
```
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import Store
from penstock.server.store.records import (
    BeginAnswer,
    BeginRequest,
    Committed,
    Followed,
    Halt,
    JobRecord,
    Latest,
    Lead,
    LogChanges,
    Moved,
    Reserved,
    Seen,
    SnapshotRecord,
    Witness,
)
from penstock.wire import errors
from penstock.wire.order import Order

PLAN: dict[str, Any] = {
    "seed": 7,
    "lanes": 2,
    "source": {"type": "parquet", "files": [["a.parquet", 10, "aa"], ["b.parquet", 11, "bb"]]},
    "batcher": {"type": "best_fit", "parameters": {"max_tokens": 4096}},
}
LOG = bytes(range(32))
JOB = JobRecord("code", LOG, PLAN)
ORDER = Order(2)
NOTHING = Seen(ORDER)
"""A process that has planned nothing yet."""


def ask(token: str = "t1", world_size: int = 2, rank: int = 0, **changes: Any) -> BeginRequest:
    """Return a request for group `run` that names only what a test is about."""
    request = BeginRequest(
        job=JOB, group="run", token=token, rank=rank, world_size=world_size, owner=f"host-{token}"
    )
    return replace(request, **changes)


def changed(plan: dict[str, Any]) -> JobRecord:
    """Return a job of the same name that has another plan, and another log."""
    return JobRecord("code", b"\xff" * 32, plan)


class StoreContract(ABC):
    """The suite: a subclass makes stores, always over the same data for the same folder.

    Attributes:
        history_calls: How many begins, commits and seeks the histories have that are compared with
            the model, in every order: 2,401 histories of 4. With 3 it takes a tenth of the time,
            enough where the store keeps the rules of `penstock.server.store` and only writes rows.
    """

    history_calls: ClassVar[int] = 4

    @abstractmethod
    def make(self, folder: Path) -> Store:
        """Return a store that is not open, over the data that belongs to `folder`."""

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """Give an open, empty store."""
        store = self.make(tmp_path)
        await store.open()
        yield store
        await store.close()

    # --- libraries ---

    async def test_the_first_versions_of_a_log_are_the_recorded_ones(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Each name is recorded once per log, even if another version comes later."""
        first = await store.note_libraries(LOG, {"numpy": "2.1.0", "Python": "3.11.2"})
        later = await store.note_libraries(LOG, {"numpy": "1.26.4", "torch": "2.9.0"})
        other = await store.note_libraries(b"\1" * 32, {"numpy": "1.26.4"})
        with pytest.raises(errors.InvalidRequest, match="version"):
            await store.note_libraries(LOG, {"datasets": "v" * 1000})
        await store.close()

        again = self.make(tmp_path)
        await again.open()
        kept = await again.note_libraries(LOG, {})
        await again.close()

        assert first == {"numpy": "2.1.0", "Python": "3.11.2"}
        assert later == kept == {**first, "torch": "2.9.0"}
        assert other == {"numpy": "1.26.4"}

    # --- begin ---

    async def test_a_first_begin_starts_generation_one_at_zero(self, store: Store) -> None:
        """Where there is no cursor, every rank starts at step 0 of generation 1."""
        begun = await store.begin(ask(world_size=3, rank=2))

        expected = BeginAnswer(
            1, 3, "world_size", 0, False, "", 0, token="t1", timeline=((0, JOB.log_id),)
        )
        assert begun == expected
        (group,) = await store.groups("code")
        assert (group.rows, group.cursor, group.token) == ((0, 0, 0), 0, "t1")

    async def test_a_rank_that_starts_again_alone_joins_the_attempt_that_has_moved(
        self, store: Store
    ) -> None:
        """It comes with the token alone, and is told what the attempt is called now."""
        for token, start in (("t1", None), ("t1#1", 7), ("t1#2", 20)):
            for rank in range(2):
                await store.begin(ask(token, 2, rank=rank, start_step=start))
        await store.commit("code", "run", "t1#2", 3, 1, 23, all_rows=False)

        again = await store.begin(ask("t1", 2, rank=1))

        assert (again.generation, again.token, again.joined) == (3, "t1#2", True)
        assert again.start_step == 23
        with pytest.raises(errors.StaleGeneration):
            await store.begin(ask("t1#1", 2))
        assert (await store.begin(ask("t", 2))).generation == 4
        with pytest.raises(errors.StaleGeneration):
            await store.begin(ask("t1", 2))

    @pytest.mark.parametrize(
        ("asked", "default", "expected"),
        [(8, 4, (8, "request")), (None, 4, (4, "job")), (None, None, (2, "world_size"))],
    )
    async def test_the_first_begin_decides_the_step_size_for_good(
        self, store: Store, asked: int | None, default: int | None, expected: tuple[int, str]
    ) -> None:
        """Request, else job, else world size; later begins read it from the group."""
        request = ask(batches_per_step=asked, default_batches_per_step=default)

        first = await store.begin(request)
        later = await store.begin(ask("t2", 1, default_batches_per_step=64))

        assert (first.batches_per_step, first.batches_per_step_from) == expected
        assert (later.batches_per_step, later.batches_per_step_from) == (expected[0], "group")

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (ask(rank=2), errors.RankOutOfRange),
            (ask(rank=-1), errors.RankOutOfRange),
            (ask(world_size=0), errors.RankOutOfRange),
            (ask(world_size=-3), errors.RankOutOfRange),
            (ask(world_size=1 << 40), errors.InvalidRequest),
            (ask(world_size=7, batches_per_step=12), errors.UnevenStep),
            (ask(batches_per_step=0), errors.InvalidRequest),
            (ask(start_step=-1), errors.InvalidRequest),
            (ask(start_step=1 << 63), errors.InvalidRequest),
            (ask(token=""), errors.InvalidRequest),
            (ask(token="moved:x"), errors.InvalidRequest),
            (ask(group=""), errors.InvalidRequest),
            (ask(group="g" * 1000), errors.InvalidRequest),
            (ask(group="\udcff"), errors.InvalidRequest),
            (ask(store="another"), errors.OtherStore),
        ],
    )
    async def test_a_begin_that_cannot_be_leaves_nothing_behind(
        self, store: Store, request_: BeginRequest, error: type[errors.PenstockError]
    ) -> None:
        """A refused begin is one sentence, and the group is not there afterwards."""
        with pytest.raises(error):
            await store.begin(request_)

        assert await store.groups("code") == []

    async def test_a_rank_joins_its_attempt_at_its_own_row(self, store: Store) -> None:
        """A rank that restarts within an attempt goes on where it stood itself."""
        begun = await store.begin(ask())
        await store.commit("code", "run", "t1", begun.generation, 1, 5)

        again = await store.begin(ask(rank=1))

        assert (again.generation, again.start_step, again.joined) == (1, 5, True)
        assert again.committed_by == 1
        assert again.committed_at.endswith("Z")

    async def test_ranks_of_one_attempt_must_agree(self, store: Store) -> None:
        """Another world size, start or step size within an attempt is refused."""
        await store.begin(ask(start_step=4))

        with pytest.raises(errors.WorldSizeMismatch, match="world size 2") as sizes:
            await store.begin(ask(world_size=3, rank=1))
        with pytest.raises(errors.InvalidRequest, match="started at step 4"):
            await store.begin(ask(rank=1, start_step=5))
        with pytest.raises(errors.StepSizeMismatch):
            await store.begin(ask(rank=1, batches_per_step=4))

        assert sizes.value.fields == {"world_size": 3, "expected": 2}
        assert (await store.begin(ask(rank=1, start_step=4))).joined

    async def test_an_older_attempt_is_told_who_holds_the_group(self, store: Store) -> None:
        """The fenced rank learns the generation and the owner that took over."""
        await store.begin(ask("t1"))
        await store.begin(ask("t2"))

        with pytest.raises(errors.StaleGeneration, match="host-t2") as caught:
            await store.begin(ask("t1", rank=1))

        assert caught.value.fields == {
            "job": "code",
            "group": "run",
            "generation": 1,
            "current": 2,
            "owner": "host-t2",
        }

    async def test_an_uneven_world_size_leaves_the_running_attempt_alone(
        self, store: Store
    ) -> None:
        """A restart that cannot be does not fence the attempt that runs."""
        await store.begin(ask(world_size=4, batches_per_step=12))

        with pytest.raises(errors.UnevenStep):
            await store.begin(ask("t2", world_size=5))

        await store.check_token("code", "run", "t1", 1)

    async def test_the_state_of_this_store_is_welcome(self, store: Store) -> None:
        """A run that names this very store begins."""
        assert (await store.begin(ask(store=store.uuid))).generation == 1

    async def test_every_short_history_agrees_with_the_model(self, store: Store) -> None:
        """All sequences of begins, commits and seeks: answers and cursors are the model's."""
        alphabet: list[tuple[Any, ...]] = [
            ("begin", "a", 1, None),
            ("begin", "a", 2, None),
            ("begin", "b", 1, None),
            ("begin", "b", 1, 3),
            ("commit", "a", 0, 2),
            ("commit", "b", 0, 4),
            ("seek", 1),
        ]
        histories = list(itertools.product(alphabet, repeat=self.history_calls))

        async def compare(number: int, history: tuple[tuple[Any, ...], ...]) -> None:
            group, model = f"g{number}", Model()
            for index, action in enumerate(history):
                expected = model.apply(action)
                got = await apply(store, group, action, model.asked, f"r{index}")
                assert got == expected, f"{history[: index + 1]}: {got}, the model says {expected}"
            if model.generations:
                (record,) = await store.groups("code", group)
                assert record.cursor == model.cursor(), history
                assert list(record.rows) == model.generations[-1].rows, history

        for start in range(0, len(histories), 512):
            chunk = enumerate(histories[start : start + 512], start)
            await asyncio.gather(*(compare(number, history) for number, history in chunk))

    # --- commits ---

    async def test_a_commit_is_a_max_write_of_one_row(self, store: Store) -> None:
        """Rows move forward alone; the cursor is the least of them; lower steps change nothing."""
        await store.begin(ask())

        answers = [
            await store.commit("code", "run", "t1", 1, rank, step)
            for rank, step in [(0, 5), (0, 3), (1, 2), (1, 9), (0, 5)]
        ]

        assert answers == [(0, 5), (0, 5), (2, 2), (5, 9), (5, 5)]
        assert all(isinstance(answer, Committed) for answer in answers)

    async def test_one_rank_may_commit_for_all(self, store: Store) -> None:
        """`all_rows` lifts every row that is below the step, and no other."""
        await store.begin(ask(world_size=3))
        await store.commit("code", "run", "t1", 1, 2, 9)

        answer = await store.commit("code", "run", "t1", 1, 0, 7, all_rows=True)

        assert answer == Committed(cursor=7, row=7)
        (group,) = await store.groups("code")
        assert group.rows == (7, 7, 9)

    @pytest.mark.parametrize(
        ("token", "generation", "rank", "step", "error"),
        [
            ("t1", 1, 2, 5, errors.RankOutOfRange),
            ("t1", 1, -1, 5, errors.RankOutOfRange),
            ("t1", 1, 0, -1, errors.CommitOutOfRange),
            ("t1", 1, 0, 1 << 63, errors.CommitOutOfRange),
            ("t1", 2, 0, 5, errors.StaleGeneration),
            ("t0", 1, 0, 5, errors.StaleGeneration),
        ],
    )
    async def test_a_commit_that_cannot_be_writes_nothing(
        self,
        store: Store,
        token: str,
        generation: int,
        rank: int,
        step: int,
        error: type[errors.PenstockError],
    ) -> None:
        """Rank, step, token and generation must all be right."""
        await store.begin(ask())

        with pytest.raises(error):
            await store.commit("code", "run", token, generation, rank, step, all_rows=True)

        (group,) = await store.groups("code")
        assert (group.rows, group.committed_at) == ((0, 0), "")

    async def test_the_cursor_is_exact_through_changes_of_the_world_size(
        self, store: Store
    ) -> None:
        """8 -> 7 -> 8 ranks: rows of ended attempts neither hold the cursor back nor lift it."""
        cursor = 0
        for number, world_size in enumerate((8, 7, 8, 1, 8), 1):
            token = f"t{number}"
            begun = await store.begin(ask(token, world_size, batches_per_step=56))
            assert begun.start_step == cursor
            for rank in range(world_size):
                answer = await store.commit("code", "run", token, number, rank, cursor + 50 + rank)
                assert answer.cursor >= cursor, "never below the generation's start"
            cursor += 50
            (group,) = await store.groups("code")
            assert (group.cursor, len(group.rows)) == (cursor, world_size)

    async def test_a_start_elsewhere_is_a_new_generation(self, store: Store) -> None:
        """A new attempt may start below the cursor, and then that is the cursor."""
        await store.begin(ask())
        await store.commit("code", "run", "t1", 1, 0, 100, all_rows=True)

        begun = await store.begin(ask("t2", start_step=40))

        assert (begun.generation, begun.start_step, begun.committed_by) == (2, 40, 1)
        assert (await store.groups("code"))[0].cursor == 40

    async def test_commits_at_once_all_count(self, store: Store) -> None:
        """What concurrent callers were answered is what the rows say."""
        await store.begin(ask(world_size=16))

        answers = await asyncio.gather(
            *(store.commit("code", "run", "t1", 1, rank, 3 + rank) for rank in range(16))
        )

        assert [answer.row for answer in answers] == list(range(3, 19))
        assert (await store.groups("code"))[0].rows == tuple(range(3, 19))

    async def test_a_refused_caller_does_not_disturb_those_beside_it(self, store: Store) -> None:
        """Errors among concurrent operations undo only their own."""
        await store.begin(ask(world_size=8))

        answers = await asyncio.gather(
            *(
                store.commit("code", "run", "t1" if rank % 2 else "old", 1, rank, 6)
                for rank in range(8)
            ),
            return_exceptions=True,
        )

        kinds = [type(answer) for answer in answers]
        assert kinds == [errors.StaleGeneration, Committed] * 4
        assert (await store.groups("code"))[0].rows == (0, 6) * 4

    async def test_a_cancelled_caller_leaves_the_store_whole(self, store: Store) -> None:
        """Whoever stops waiting gets nothing or everything, and the next caller is served."""
        await store.begin(ask())
        tasks = [
            asyncio.ensure_future(store.commit("code", "run", "t1", 1, 0, step, all_rows=True))
            for step in range(1, 20)
        ]
        await asyncio.sleep(0)  # each has asked; none is answered yet
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        answer = await store.commit("code", "run", "t1", 1, 0, 30)

        assert answer.row == 30
        rows = (await store.groups("code"))[0].rows
        assert rows[0] == 30
        assert 0 <= rows[1] < 20

    # --- a changed job ---

    async def test_a_changed_job_is_refused_with_what_differs(self, store: Store) -> None:
        """The sentence names keys with old and new values, and both ways on."""
        await store.begin(ask())
        plan = {
            **PLAN,
            "seed": 8,
            "source": {
                "type": "parquet",
                "files": [["a.parquet", 10, "xx"], ["b.parquet", 11, "bb"], ["c.parquet", 1, "cc"]],
            },
            "batcher": {"type": "best_fit", "parameters": {"max_tokens": 8192}},
        }

        with pytest.raises(errors.JobChanged) as caught:
            await store.begin(ask("t2", job=changed(plan)))

        assert caught.value.fields["differences"] == [
            "batcher.parameters.max_tokens: 4096 → 8192",
            "seed: 7 → 8",
            "source.files: 1 file added (c.parquet), 1 changed (a.parquet)",
        ]
        assert "seed: 7 → 8" in caught.value.message
        assert "another group name" in caught.value.message
        await store.check_token("code", "run", "t1", 1)

    async def test_a_long_difference_is_cut_in_the_sentence(self, store: Store) -> None:
        """Five differences are told, the rest is counted."""
        await store.begin(ask())
        plan = PLAN | {f"key{index}": index for index in range(8)}

        with pytest.raises(errors.JobChanged, match="; and 3 more") as caught:
            await store.begin(ask("t2", job=changed(plan)))

        assert len(caught.value.fields["differences"]) == 8

    async def test_equal_plans_with_other_log_ids_still_differ(self, store: Store) -> None:
        """The log id decides; the sentence then names the two ids."""
        await store.begin(ask())

        with pytest.raises(errors.JobChanged, match=r"log id: 000102030405\.\.\. → ffffffffffff"):
            await store.begin(ask("t2", job=changed(PLAN)))

    async def test_a_changed_job_is_free_for_another_group(self, store: Store) -> None:
        """The first way on: another group name; and the second: the job as it was."""
        await store.begin(ask())

        other = await store.begin(ask(job=changed({"seed": 8}), group="run-2"))

        assert other.generation == 1
        assert (await store.begin(ask("t2"))).generation == 2

    async def test_jobs_of_many_pasts_stay_readable(self, store: Store) -> None:
        """However often the job file was edited, a group's own plan is still compared with."""
        await store.begin(ask())
        for number in range(50):
            await store.register_job(
                JobRecord("code", number.to_bytes(32, "big"), {"seed": number})
            )

        with pytest.raises(errors.JobChanged, match="seed: 7 → 99"):
            await store.begin(ask("t2", job=changed({**PLAN, "seed": 99})))

    # --- checkpoints, restore, seek ---

    async def test_a_log_has_the_definition_that_was_registered_last(self, store: Store) -> None:
        """Of whatever name; who registers it without one takes none away."""
        assert await store.definition(JOB.log_id) is None
        for name, definition in (("code", b"first"), ("twin", b"\x00last"), ("code", b"")):
            await store.register_job(replace(JOB, name=name, definition=definition))

        assert await store.definition(JOB.log_id) == b"\x00last"
        assert await store.definition(bytes(32)) is None

    async def test_a_checkpoint_never_changes(self, store: Store) -> None:
        """Its name and step again is a success; another step is an error that names both."""
        await store.begin(ask())
        made = await store.checkpoint("code", "run", "warm", 12)
        await store.commit("code", "run", "t1", 1, 0, 99, all_rows=True)

        again = await store.checkpoint("code", "run", "warm", 12)
        with pytest.raises(errors.CheckpointExists, match="step 12") as caught:
            await store.checkpoint("code", "run", "warm", None)

        assert (made.step, made.log_id) == (12, LOG)
        assert again == made
        assert caught.value.fields == {"name": "warm", "step": 12}
        assert (await store.groups("code"))[0].checkpoints == (made,)

    async def test_a_checkpoint_without_a_step_is_the_cursor(self, store: Store) -> None:
        """The cursor is the least row, not the committer's."""
        await store.begin(ask())
        await store.commit("code", "run", "t1", 1, 0, 9)
        await store.commit("code", "run", "t1", 1, 1, 6)

        assert (await store.checkpoint("code", "run", "here", None)).step == 6

    async def test_a_restore_fences_those_that_read(self, store: Store) -> None:
        """After it no commit of theirs counts, and the sentence says who moved where."""
        await store.begin(ask())
        await store.checkpoint("code", "run", "good", 900)
        await store.commit("code", "run", "t1", 1, 0, 1000, all_rows=True)

        moved = await store.restore("code", "run", "good", "req-1", "ada@desk")

        assert moved == Moved(generation=2, step=900)
        with pytest.raises(errors.StaleGeneration, match=r"restored to .*step 900.* by ada@desk"):
            await store.commit("code", "run", "t1", 1, 0, 1001)
        with pytest.raises(errors.StaleGeneration, match="restart or reopen"):
            await store.check_token("code", "run", "t1", 1)
        (group,) = await store.groups("code")
        assert (group.cursor, group.rows, group.world_size) == (900, (), 0)
        begun = await store.begin(ask("t2", world_size=1))
        assert (begun.generation, begun.start_step) == (3, 900)

    async def test_a_repeated_request_moves_once(self, store: Store) -> None:
        """A retry gets the first answer, even after a new attempt took the group on."""
        await store.begin(ask())
        await store.checkpoint("code", "run", "good", 3)
        first = await store.seek("code", "run", 7, "req-1", "ada")
        restored = await store.restore("code", "run", "good", "req-2", "ada")
        await store.begin(ask("t2"))

        assert await store.seek("code", "run", 7, "req-1", "ada") == first == Moved(2, 7)
        assert await store.restore("code", "run", "good", "req-2", "ada") == restored == Moved(3, 3)
        await store.check_token("code", "run", "t2", 4)
        assert await store.seek("code", "run", 7, "", "ada") == Moved(5, 7)
        assert await store.seek("code", "run", 7, "", "ada") == Moved(6, 7)

    @pytest.mark.parametrize("step", [-1, 1 << 63])
    async def test_steps_that_cannot_be_are_refused(self, store: Store, step: int) -> None:
        """Neither a seek nor a checkpoint takes them."""
        await store.begin(ask())

        with pytest.raises(errors.InvalidRequest):
            await store.seek("code", "run", step, "r", "ada")
        with pytest.raises(errors.InvalidRequest):
            await store.checkpoint("code", "run", "x", step)

    async def test_names_that_are_no_text_are_refused(self, store: Store) -> None:
        """A lone surrogate from a command line is a caller's mistake, wherever it comes in."""
        await store.begin(ask())
        calls: list[Callable[[], Any]] = [
            lambda: store.groups("code", "\udcff"),
            lambda: store.seek("code", "run", 1, "\udcff", "ada"),
            lambda: store.seek("code", "run", 1, "r", "\udcff"),
            lambda: store.checkpoint("code", "run", "\udcff", 1),
            lambda: store.checkpoint("code", "run", "", 1),
        ]

        for call in calls:
            with pytest.raises(errors.InvalidRequest, match=r"can be printed|is empty"):
                await call()

        assert (await store.groups("code"))[0].generation == 1

    async def test_an_unknown_name_lists_those_there_are(self, store: Store) -> None:
        """Groups and checkpoints alike."""
        await store.begin(ask())
        await store.checkpoint("code", "run", "good", 3)

        with pytest.raises(errors.UnknownCheckpoint, match="'good'") as checkpoint:
            await store.restore("code", "run", "bad", "r", "ada")
        calls: list[Callable[[], Any]] = [
            lambda: store.groups("code", "walk"),
            lambda: store.seek("code", "walk", 1, "r", "ada"),
            lambda: store.restore("code", "walk", "good", "r", "ada"),
            lambda: store.checkpoint("code", "walk", "x", 1),
        ]
        for call in calls:
            with pytest.raises(errors.UnknownGroup, match="'run'"):
                await call()
        # Who holds a token had a group once.
        for call in (
            lambda: store.commit("code", "walk", "t1", 1, 0, 1),
            lambda: store.check_token("code", "walk", "t1", 1),
        ):
            with pytest.raises(errors.UnknownGroup, match=r"'walk'.*is not in the store any more"):
                await call()

        assert checkpoint.value.fields == {"group": "run", "name": "bad", "names": ["good"]}

    async def test_groups_are_listed_by_name(self, store: Store) -> None:
        """Every group of the job, and none of another job."""
        for group in ("b", "a", "c"):
            await store.begin(ask(group=group))
        await store.begin(ask(job=JobRecord("other", LOG, PLAN), group="z"))

        assert [group.name for group in await store.groups("code")] == ["a", "b", "c"]
        assert [group.name for group in await store.groups("none")] == []

    async def test_history_is_bounded_and_still_fences(self, store: Store) -> None:
        """After hundreds of attempts the first token is still old, and the last one joins."""
        for number in range(200):
            await store.begin(ask(f"t{number}"))

        with pytest.raises(errors.StaleGeneration):
            await store.begin(ask("t0"))
        assert (await store.begin(ask("t199", rank=1))).joined

    # --- snapshots ---

    async def test_the_nearest_snapshot_is_the_last_at_or_below(self, store: Store) -> None:
        """For every offset, per log and lane."""
        offsets = (0, 3, 4, 9)
        await store.put_snapshots(
            [SnapshotRecord(LOG, 1, offset, b"s%d" % offset) for offset in offsets]
        )

        for offset in range(12):
            found = await store.nearest_snapshot(LOG, 1, offset)
            expected = max(o for o in offsets if o <= offset)
            assert found == SnapshotRecord(LOG, 1, expected, b"s%d" % expected)
        assert await store.nearest_snapshot(LOG, 0, 9) is None
        assert await store.nearest_snapshot(bytes(32), 1, 9) is None

    async def test_no_snapshot_below_the_first(self, store: Store) -> None:
        """None means: replay from the start of the lane."""
        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"x")])

        assert await store.nearest_snapshot(LOG, 0, 4) is None

    async def test_a_snapshot_stays_as_it_is(self, store: Store) -> None:
        """The same bytes again is a success; other bytes are a diverged log and store nothing."""
        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"x")])
        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"x")])

        with pytest.raises(errors.LogDiverged) as caught:
            await store.put_snapshots(
                [SnapshotRecord(LOG, 0, 6, b"z"), SnapshotRecord(LOG, 0, 5, b"y")]
            )

        assert set(caught.value.fields) == {"what", "ours", "theirs"}
        assert caught.value.fields["ours"] != caught.value.fields["theirs"]
        assert await store.nearest_snapshot(LOG, 0, 9) == SnapshotRecord(LOG, 0, 5, b"x")

    async def test_a_dropped_snapshot_makes_room_for_a_good_one(self, store: Store) -> None:
        """Dropping twice is harmless; then other bytes may come."""
        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"bad")])
        await store.drop_snapshot(LOG, 0, 5)
        await store.drop_snapshot(LOG, 0, 5)

        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"good")])

        assert await store.nearest_snapshot(LOG, 0, 5) == SnapshotRecord(LOG, 0, 5, b"good")

    async def test_a_long_run_keeps_what_readers_come_back_to(self, store: Store) -> None:
        """100,000 snapshots of one lane: few stay, the near ones for cursors and checkpoints do."""
        await store.begin(ask(batches_per_step=2))  # 2 lanes: step s stands at offset s
        await store.commit("code", "run", "t1", 1, 0, 70_001, all_rows=True)
        await store.checkpoint("code", "run", "then", 33_333)

        for start in range(0, 100_000, 500):
            await store.put_snapshots(
                [SnapshotRecord(LOG, 0, o, b"%d" % o) for o in range(start, start + 500)]
            )

        found = await self.offsets(store, 0, 100_000)
        assert len(found) <= 512
        assert {69_998, 69_999, 70_000, 70_001} <= set(found)
        assert 33_333 in found
        assert found[-4:] == [99_996, 99_997, 99_998, 99_999]
        gaps = [after - before for before, after in itertools.pairwise(found)]
        assert max(gaps) <= 100_000 / 128
        assert found[0] == 0

    async def offsets(self, store: Store, lane: int, below: int) -> list[int]:
        """Return every offset that has a snapshot, through the contract alone."""
        found: list[int] = []
        at = below
        while (snapshot := await store.nearest_snapshot(LOG, lane, at)) is not None:
            found.append(snapshot.offset)
            at = snapshot.offset - 1
        return found[::-1]

    # --- verdicts and ends ---

    async def test_the_first_verdict_holds(self, store: Store) -> None:
        """A second one about the same item and stage gets the first back."""
        item = ItemRef("main", 17, 2)
        first = Verdict("draw", item, "aa", "cannot decode", number=1)

        assert await store.add_verdict(LOG, first, NOTHING) == first
        assert await store.add_verdict(LOG, first._replace(reason="other"), NOTHING) == first
        exit_stage = first._replace(stage="exit", reason="other", number=2)
        assert await store.add_verdict(LOG, exit_stage, NOTHING) == exit_stage
        assert await store.verdicts(LOG) == [first, exit_stage]
        assert await store.verdicts(bytes(32)) == []

    async def test_verdicts_are_numbered_in_the_order_of_their_making(self, store: Store) -> None:
        """Per log, from 1 on; one about raw bytes is one for every epoch."""
        made = [
            await store.add_verdict(
                LOG, Verdict("draw", ItemRef("main", index, epoch), "00", "r", every), NOTHING
            )
            for index, every in ((2, True), (10, False))
            for epoch in (3, 0, 1)
        ]

        assert [verdict.number for verdict in made] == [1, 1, 1, 2, 3, 4]
        assert await store.verdicts(LOG) == [made[0], *made[3:]]
        other = await store.add_verdict(bytes(32), made[0], NOTHING)
        assert other.number == 1

    async def test_a_verdict_holds_above_what_was_given_in_other_lanes(self, store: Store) -> None:
        """In its own lane from its offset on; a lane that meets it below has a verdict of its own.

        Lanes run ahead of each other: what they were given with the item they keep.
        """
        item = ItemRef("main", 7, 1)
        seen = Seen(ORDER, planned=3, asked=9)
        held = await store.add_verdict(LOG, Verdict("draw", item, "", "r", True, 0, 3), seen)

        assert (held.offset, held.above) == (3, 9)
        later = item._replace(epoch=5)
        assert [held.holds(later, 0, offset) for offset in (2, 3, 10)] == [False, True, True]
        assert [held.holds(later, 1, offset) for offset in (3, 8, 9)] == [False, False, True]
        left = held._replace(stage="exit")  # its neighbours in the lane may have been made before
        assert [left.holds(later, 0, offset) for offset in (2, 3, 4, 9)] == [
            False, True, False, True,
        ]  # fmt: skip
        below = await store.add_verdict(LOG, Verdict("draw", later, "", "r", True, 1, 5), seen)
        assert (below.number, below.lane, below.offset) == (2, 1, 5)
        again = Verdict("draw", later, "", "r", True, 1, 20)
        assert (await store.add_verdict(LOG, again, seen)).number == 1

    @pytest.mark.parametrize("how", ["row", "checkpoint", "snapshot", "node"])
    async def test_a_verdict_below_what_was_given_is_refused(self, store: Store, how: str) -> None:
        """A group's commit, its checkpoint, a snapshot, or a batch made here: the log diverged."""
        await store.begin(ask(batches_per_step=2))  # 2 lanes: step s stands at offset s
        seen = NOTHING
        if how in ("row", "checkpoint"):
            await store.commit("code", "run", "t1", 1, 0, 6, all_rows=True)
        if how == "checkpoint":
            await store.checkpoint("code", "run", "then", 6)
            for number in range(70):  # its rows are forgotten
                await store.seek("code", "run", 0, f"{number}", "me")
        if how == "snapshot":
            await store.put_snapshots([SnapshotRecord(LOG, 1, 6, b"x")])
        if how == "node":
            seen = Seen(ORDER, planned=6)
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "ValueError", True, 1, 5)

        with pytest.raises(errors.LogDiverged, match=r"main\[7\]") as caught:
            await store.add_verdict(LOG, bad, seen)
        assert caught.value.fields["lane"] == 1
        assert await store.verdicts(LOG) == []
        made = await store.add_verdict(LOG, bad._replace(offset=6), seen)
        assert (made.offset, made.above) == (6, 6)

    async def test_who_is_ahead_says_nothing_of_the_batches_of_others(self, store: Store) -> None:
        """Rank 0 has committed its batches of lane 0; nobody was given those of lane 1."""
        await store.begin(ask(batches_per_step=2))
        await store.commit("code", "run", "t1", 1, 0, 50)
        await store.commit("code", "run", "t1", 1, 1, 3)
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "r", True, 1, 3)

        assert (await store.add_verdict(LOG, bad, NOTHING)).above == 50
        with pytest.raises(errors.LogDiverged):
            await store.add_verdict(
                LOG, bad._replace(item=ItemRef("main", 8, 1), lane=0, offset=49), NOTHING
            )

    async def test_a_group_that_starts_far_on_was_given_nothing_before(self, store: Store) -> None:
        """Bad items on the way to its first step are found like any others."""
        await store.begin(ask(batches_per_step=2, start_step=5000))
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "r", True, 1, 3)

        assert (await store.add_verdict(LOG, bad, NOTHING)).number == 1

    async def test_a_group_that_resumes_from_a_state_was_given_what_is_below(
        self, store: Store
    ) -> None:
        """It names the store that its state came from: it has read here, committed or not."""
        await store.begin(ask(batches_per_step=2, start_step=6, store=store.uuid))
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "r", True, 1, 5)

        with pytest.raises(errors.LogDiverged, match=r"main\[7\]"):
            await store.add_verdict(LOG, bad, NOTHING)
        assert (await store.add_verdict(LOG, bad._replace(offset=6), NOTHING)).number == 1

    async def test_what_was_committed_is_not_changed_on_exit(self, store: Store) -> None:
        """At stage `exit` the batch itself counts: others do not move."""
        await store.begin(ask(batches_per_step=2, start_step=10))
        await store.commit("code", "run", "t1", 1, 0, 20, all_rows=True)
        bad = Verdict("exit", ItemRef("main", 7, 1), "", "r", True, 1, 15)

        with pytest.raises(errors.LogDiverged, match="position 31"):
            await store.add_verdict(LOG, bad, Seen(ORDER, planned=99))
        for number, offset in enumerate((9, 20)):
            item = ItemRef("main", number, 0)
            await store.add_verdict(LOG, bad._replace(item=item, offset=offset), NOTHING)

    async def test_a_released_item_is_out_below_and_back_above(self, store: Store) -> None:
        """What was given without it stays so; a second release is none; it may fail again."""
        item = ItemRef("main", 7, 1)
        bad = Verdict("draw", item, "", "r", True, 0, 3)
        await store.add_verdict(LOG, bad, Seen(ORDER, asked=4))

        [released] = await store.release_verdicts(LOG, "main", 7, Seen(ORDER, asked=30))
        assert released.released == 30
        assert [released.holds(item, 0, offset) for offset in (2, 3, 29, 30)] == [
            False, True, True, False,
        ]  # fmt: skip
        assert await store.verdicts(LOG) == [released]
        assert await store.release_verdicts(LOG, "main", 7, NOTHING) == [released]
        assert await store.release_verdicts(LOG, "main", 8, NOTHING) == []
        assert (await store.add_verdict(LOG, bad._replace(offset=31), NOTHING)).number == 2

    async def test_nothing_is_released_into_a_log_that_was_given_whole(self, store: Store) -> None:
        """A release that could change nothing says so, and what would."""
        finite = Seen(Order(2, (5, 6)), asked=6)
        await store.add_verdict(LOG, Verdict("exit", ItemRef("main", 7, 0), "", "r"), finite)

        with pytest.raises(errors.LogDiverged, match="read a new log"):
            await store.release_verdicts(LOG, "main", 7, finite)
        assert [verdict.released for verdict in await store.verdicts(LOG)] == [None]
        assert await store.release_verdicts(LOG, "main", 7, finite._replace(asked=5)) != []
        drawn = Verdict("draw", ItemRef("main", 8, 0), "", "r", True, 0, 3)
        await store.add_verdict(LOG, drawn, finite._replace(asked=4))
        with pytest.raises(errors.LogDiverged, match="were counted without it"):
            await store.release_verdicts(LOG, "main", 8, finite._replace(asked=4))

    async def test_verdicts_come_in_pages(self, store: Store) -> None:
        """After a number, so many."""
        for index in range(5):
            await store.add_verdict(LOG, Verdict("exit", ItemRef("m", index, 0), "", "r"), NOTHING)

        numbers = [verdict.number for verdict in await store.verdicts(LOG, after=1, limit=3)]
        assert numbers == [2, 3, 4]

    async def test_the_budget_counts_items_of_all_lanes_and_stages(self, store: Store) -> None:
        """Once each, however many lanes meet them; what is released counts no more."""
        seen = Seen(ORDER, asked=9)
        first = Verdict("draw", ItemRef("main", 0, 0), "", "r", True, 0, 1)
        await store.add_verdict(LOG, first, seen, 2)
        await store.add_verdict(LOG, first._replace(lane=1), seen, 2)
        await store.add_verdict(LOG, Verdict("exit", ItemRef("main", 1, 0), "", "r"), seen, 2)
        third = Verdict("size", ItemRef("main", 2, 0), "", "r")

        with pytest.raises(errors.BadItem, match="max_quarantined = 2") as caught:
            await store.add_verdict(LOG, third, seen, 2)
        assert caught.value.fields["reason"] == "quarantine budget spent"
        await store.release_verdicts(LOG, "main", 0, seen)
        assert (await store.add_verdict(LOG, third, seen, 2)).number == 4

    async def test_a_reason_may_hold_a_strange_file_name(self, store: Store) -> None:
        """What UTF-8 cannot hold is replaced, not a crash of the lane."""
        verdict = Verdict("draw", ItemRef("main", 1, 0), "aa", "no file \udcff.jpg")

        assert (await store.add_verdict(LOG, verdict, NOTHING)).reason == "no file ?.jpg"

    async def test_a_lane_ends_once(self, store: Store) -> None:
        """The same end again is a success, another one a diverged log."""
        await store.add_lane_ends(LOG, {1: 40})
        await store.add_lane_ends(LOG, {1: 40, 0: 41})
        with pytest.raises(errors.LogDiverged) as caught:
            await store.add_lane_ends(LOG, {2: 7, 1: 39})

        assert caught.value.lane == 1
        assert await store.lane_ends(LOG) == {0: 41, 1: 40}
        assert await store.lane_ends(bytes(32)) == {}

    # --- what others have done ---

    async def test_changes_of_a_log_are_numbered_together(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Verdicts made, released, and halts: who knows the first n asks for the rest."""
        item = ItemRef("main", 7, 1)
        made = await store.add_verdict(LOG, Verdict("exit", item, "", "r", True), NOTHING)
        halt = await store.add_halt(LOG, Halt(1, 4, "bad_item", "why", {"item": [1]}, "node-a"))
        [released] = await store.release_verdicts(LOG, "main", 7, NOTHING)
        other = await store.add_halt(bytes(32), Halt(0, 0, "internal", "a bug", {}, "node-b"))
        await store.close()
        again = self.make(tmp_path)
        await again.open()

        assert made.number == 1
        assert halt == Halt(1, 4, "bad_item", "why", {"item": [1]}, "node-a", 2, halt.made_at)
        assert halt.made_at.endswith("Z")
        assert other.change == 1
        assert await again.changes(LOG, 0) == LogChanges(3, [released], [halt])
        assert await again.changes(LOG, 1) == LogChanges(3, [released], [halt])
        assert await again.changes(LOG, 2) == LogChanges(3, [released], [halt])
        assert (
            await again.changes(LOG, 3) == await again.changes(LOG, None) == LogChanges(3, [], [])
        )
        assert await again.changes(b"\1" * 32, 0) == LogChanges(0, [], [])
        await again.close()

    async def test_the_latest_generations_are_told_for_many_groups_at_once(
        self, store: Store
    ) -> None:
        """Of attempts and of moves; a group that is not there has none."""
        await store.begin(ask(start_step=4))
        await store.begin(ask(group="moved"))
        await store.seek("code", "moved", 9, "", "ada")

        found = await store.latest([("code", "moved"), ("code", "gone"), ("code", "run")])

        assert found == [Latest(2, "ada", "seek", 9), None, Latest(1, "host-t1", "begin", 4)]

    async def test_one_look_tells_of_every_log_and_group_that_has_changed(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Numbers of changes, generations, and a group that is gone; they survive reopening."""
        other, groups = b"\1" * 32, [("code", "run"), ("code", "moved"), ("code", "gone")]
        nothing = await store.followed([LOG, other], groups)
        for _, group in groups:
            await store.begin(ask(group=group))
        await store.begin(ask(rank=1))  # it joins, so nothing has changed
        await store.seek("code", "moved", 9, "once", "ada")
        await store.seek("code", "moved", 9, "once", "ada")
        await store.delete_group("code", "gone")
        await store.add_verdict(LOG, Verdict("exit", ItemRef("main", 7, 1), "", "r"), NOTHING)
        await store.add_halt(LOG, Halt(1, 4, "bad_item", "why", {}, "node-a"))
        await store.release_verdicts(LOG, "main", 7, NOTHING)
        before = await store.followed([LOG, other], groups)
        await store.commit("code", "run", "t1", 1, 0, 5)
        await store.close()
        again = self.make(tmp_path)
        await again.open()

        assert nothing == Followed({LOG: 0, other: 0}, dict.fromkeys(groups), 0, 0)
        assert before.changes == {LOG: 3, other: 0}
        assert before.generations == dict(zip(groups, (1, 2, None), strict=True))
        assert await again.followed([LOG, other], groups) == before
        assert await again.followed([], []) == Followed({}, {}, 0, 0)
        await again.begin(ask("t2", group="gone"))
        assert (await again.followed([], groups)).generations[groups[2]] == 2
        await again.close()

    async def test_of_two_nodes_of_an_id_the_later_one_has_the_higher_number(
        self, store: Store
    ) -> None:
        """And the earlier one can say that it runs on, which the later one then finds."""
        first = await store.begin_node("a")
        second = await store.begin_node("a")
        other = await store.begin_node("b")
        await store.outlive("a", first.incarnation)
        third = await store.begin_node("a")
        await store.outlive("a", second.incarnation)
        await store.outlive("a", first.incarnation)

        assert (first.incarnation, second.incarnation, other.incarnation) == (1, 2, 1)
        assert (second.outlived, third.outlived) == (0, 1)
        assert await store.followed([], [], "a") == Followed({}, {}, 3, 2)
        assert await store.followed([], [], "b") == Followed({}, {}, 1, 0)

    async def test_a_lane_stays_stopped_until_its_node_begins_again(self, store: Store) -> None:
        """Then others find that something has changed, and the halts that still stand."""
        mine = await store.add_halt(LOG, Halt(1, 4, "bad_item", "why", {}, "a"))
        other = await store.add_halt(LOG, Halt(0, 2, "bad_item", "why", {}, "b"))
        before = await store.changes(LOG, 0)
        await store.lift_halts(LOG, "c")
        await store.lift_halts(b"\1" * 32, "a")
        unchanged = await store.followed([LOG], [])
        await store.lift_halts(LOG, "a")

        assert before == LogChanges(2, [], [mine, other])
        assert unchanged.changes == {LOG: 2}
        assert await store.changes(LOG, 2) == LogChanges(3, [], [other])
        assert (await store.add_halt(LOG, mine)).change == 4

    async def test_a_verdict_holds_above_all_that_nodes_have_reserved(self, store: Store) -> None:
        """Reservations only rise, and answer with every verdict that was made before."""
        first = await store.reserve(LOG, {0: Lead(3, 100), 1: Lead(0, 50)}, 0)
        lower = await store.reserve(LOG, {0: Lead(2, 60), 1: Lead(7, 80)}, 0)
        other = await store.reserve(b"\1" * 32, {0: Lead(0, 900)}, 0)
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "r", True, lane=1, offset=9)
        made = await store.add_verdict(LOG, bad, NOTHING)
        after = await store.reserve(LOG, {1: Lead(9, 200)}, 0)
        knowing = await store.reserve(LOG, {1: Lead(9, 200)}, after.changes.change)
        [released] = await store.release_verdicts(LOG, "main", 7, NOTHING)

        assert first == Reserved({0: 100, 1: 50}, LogChanges(0, [], []))
        assert lower.leads == {0: 100, 1: 80}
        assert other.leads == {0: 900}
        assert made.above == 100
        assert after == Reserved({1: 200}, LogChanges(1, [made], []))
        assert knowing.changes == LogChanges(1, [], [])
        assert released.released == 200

    async def test_a_verdict_never_moves_what_another_node_says_it_has_planned(
        self, store: Store
    ) -> None:
        """What was only reserved may have been planned: the same bytes fail there alike."""
        await store.reserve(LOG, {1: Lead(9, 200)}, 0)
        bad = Verdict("draw", ItemRef("main", 7, 1), "", "r", True, lane=1, offset=8)
        with pytest.raises(errors.LogDiverged, match="a node has made the batches of that lane up"):
            await store.add_verdict(LOG, bad, NOTHING)

        assert (await store.add_verdict(LOG, bad._replace(offset=9), NOTHING)).above == 200
        elsewhere = bad._replace(lane=0, item=ItemRef("main", 8, 1))
        assert (await store.add_verdict(LOG, elsewhere, NOTHING)).above == 200

    async def test_witnesses_are_recorded_once_and_compared(self, store: Store) -> None:
        """Whoever records another digest is told what is recorded, and by whom."""
        one, two = (Witness(lane, 0, bytes([lane]) * 32, b"e") for lane in (0, 1))
        assert await store.put_witnesses(LOG, [one, two]) == []
        assert await store.put_witnesses(LOG, [one._replace(environment=b"f")]) == []
        other = two._replace(digest=b"\7" * 32, environment=b"f")

        assert await store.put_witnesses(LOG, [one, other]) == [two]
        assert await store.some_witnesses(LOG, 8) == [one, two]
        assert await store.some_witnesses(b"\1" * 32, 8) == []

    async def test_few_witnesses_stand_for_a_long_log(self, store: Store) -> None:
        """Of many lanes a few are asked for: the latest and the first; and a lane keeps few."""
        for start in range(0, 700, 100):
            of_lane = [Witness(3, 64 * n, b"d" * 32, b"e") for n in range(start, start + 100)]
            await store.put_witnesses(LOG, of_lane)
        rest = [Witness(lane, at, b"d" * 32, b"e") for lane in (5, 8, 9) for at in (0, 128)]
        await store.put_witnesses(LOG, rest)

        found = await store.some_witnesses(LOG, 4)

        assert sorted((each.lane, each.offset) for each in found) == [
            (3, 0),
            (3, 64 * 699),
            (5, 0),
            (8, 128),
        ]
        assert 134 <= len(await store.some_witnesses(LOG, 1000)) <= 512 + 6
        assert len(await store.some_witnesses(LOG, 20)) == 20

    async def test_environments_of_a_log_are_recorded_once_each(self, store: Store) -> None:
        """By their hash, with what they are."""
        await store.add_environment(LOG, b"a" * 32, {"numpy": "2.1", "Python": "3.11"})
        await store.add_environment(LOG, b"a" * 32, {"numpy": "2.1", "Python": "3.11"})
        await store.add_environment(LOG, b"b" * 32, {"numpy": "1.26"})

        assert await store.environments(LOG) == {
            b"a" * 32: {"Python": "3.11", "numpy": "2.1"},
            b"b" * 32: {"numpy": "1.26"},
        }
        assert await store.environments(bytes(32)) == {}

    # --- durability ---

    async def test_everything_answered_is_there_after_reopening(self, tmp_path: Path) -> None:
        """Groups, rows, checkpoints, moves, snapshots, verdicts, ends, and the identity."""
        store = self.make(tmp_path)
        await store.open()
        await store.begin(ask(start_step=3))
        await store.commit("code", "run", "t1", 1, 1, 8)
        await store.checkpoint("code", "run", "good", 5)
        await store.begin(ask(group="run-2"))
        await store.seek("code", "run-2", 44, "req", "ada")
        await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"x" * 100_000)])
        bad = Verdict("draw", ItemRef("main", 1, 0), "aa", "r", offset=99)
        await store.add_verdict(LOG, bad, NOTHING)
        await store.add_lane_ends(LOG, {1: 40})
        before = await everything(store)
        uuid = store.uuid
        await store.close()
        await store.close()

        again = self.make(tmp_path)
        await again.open()

        assert await everything(again) == before
        assert again.uuid == uuid
        assert (await again.begin(ask(rank=1))).start_step == 8
        with pytest.raises(errors.JobChanged, match="seed: 7 → 8"):
            await again.begin(ask("t2", job=changed({**PLAN, "seed": 8})))
        await again.close()

    # --- deleting a group ---

    async def test_a_deleted_group_is_gone_and_its_name_is_free(
        self, store: Store, tmp_path: Path
    ) -> None:
        """Cursor, generations and checkpoints go with it; others stay; also after a restart."""
        for group in ("run", "other"):
            await store.begin(ask(group=group, world_size=1))
            await store.commit("code", group, "t1", 1, 0, 5)
            await store.checkpoint("code", group, "best", 3)
        [before] = await store.groups("code", "run")
        [other] = await store.groups("code", "other")

        gone = await store.delete_group("code", "run")
        await store.close()
        again = self.make(tmp_path)
        await again.open()

        assert gone == before
        assert (gone.cursor, [checkpoint.name for checkpoint in gone.checkpoints]) == (5, ["best"])
        assert await again.groups("code") == [other]
        for call in (
            again.delete_group("code", "run"),
            again.checkpoint("code", "run", "best", None),
            again.restore("code", "run", "best", "", "ada"),
            again.batches_per_step("code", "run"),
        ):
            with pytest.raises(errors.UnknownGroup, match="it has 'other'"):
                await call
        begun = await again.begin(ask("t2", world_size=2, batches_per_step=8))
        assert (begun.generation, begun.start_step, begun.batches_per_step) == (2, 0, 8)
        assert (await again.groups("code", "run"))[0].checkpoints == ()
        assert await again.groups("code", "other") == [other]
        await again.close()

    async def test_a_run_whose_group_was_deleted_is_told_what_happened(self, store: Store) -> None:
        """Its commits and reads get one sentence; under a new group of the name it is fenced."""
        await store.begin(ask(world_size=1))
        await store.begin(ask("t2", world_size=1))
        await store.delete_group("code", "run")

        for call in (
            store.commit("code", "run", "t2", 2, 0, 5),
            store.check_token("code", "run", "t2", 2),
        ):
            with pytest.raises(
                errors.UnknownGroup, match=r"generation 2, is not in the store any more: it was de"
            ):
                await call
        await store.begin(ask("t3", world_size=1))
        with pytest.raises(errors.StaleGeneration):
            await store.commit("code", "run", "t2", 2, 0, 5)
        assert (await store.groups("code", "run"))[0].cursor == 0

    @pytest.mark.parametrize("name", ["run", "run 2"])
    async def test_a_new_group_begins_above_all_that_were_deleted(
        self, store: Store, tmp_path: Path, name: str
    ) -> None:
        """So who outlived its group is fenced in the next one, also if both have one token."""
        for token in ("t1", "t2", "t3"):
            await store.begin(ask(token, world_size=1))
        await store.begin(ask("other", group="other"))
        await store.delete_group("code", "run")
        await store.delete_group("code", "other")
        await store.close()
        again = self.make(tmp_path)
        await again.open()

        begun = await again.begin(ask("t3", world_size=1, group=name))

        assert (begun.generation, begun.start_step, begun.joined) == (4, 0, False)
        with pytest.raises(errors.StaleGeneration, match=r"by generation 4 .* is generation 3"):
            await again.commit("code", name, "t3", 3, 0, 9)
        with pytest.raises(errors.StaleGeneration):
            await again.check_token("code", name, "t3", 3)
        with pytest.raises(errors.StaleGeneration):  # a retry whose first answer was lost
            await again.delete_group("code", name, 3)
        assert (await again.groups("code", name))[0].cursor == 0
        assert (await again.begin(ask("t3", world_size=1, group=name))).joined
        assert (await again.commit("code", name, "t3", 4, 0, 2)).cursor == 2
        assert (await again.seek("code", name, 1, "", "ada")).generation == 5
        await again.close()

    async def test_only_the_generation_that_was_looked_at_is_deleted(self, store: Store) -> None:
        """Somebody who begins between a look and a deletion keeps the group."""
        await store.begin(ask(world_size=1))
        await store.begin(ask("t2", world_size=1))

        with pytest.raises(errors.StaleGeneration, match="at generation 2 now, begun by host-t2"):
            await store.delete_group("code", "run", 1)

        assert len(await store.groups("code")) == 1
        assert (await store.delete_group("code", "run", 2)).generation == 2

    async def test_snapshots_that_a_deleted_group_alone_needed_are_collected(
        self, store: Store
    ) -> None:
        """Those at its checkpoints go at once, as far as the archive does not want them."""
        await store.register_job(JOB)
        for group, step in (("run", 0), ("other", 701)):
            await store.begin(ask(group=group, world_size=2, start_step=step))
        named = range(1, 800, 2)
        await asyncio.gather(
            *(store.checkpoint("code", "run", f"at {step}", step) for step in named)
        )
        records = [SnapshotRecord(LOG, 0, offset, b"%d" % offset) for offset in range(1, 1200)]
        await store.put_snapshots(records)

        async def kept() -> set[int]:
            looks = (store.nearest_snapshot(LOG, 0, offset) for offset in range(1, 1200))
            return {found.offset for found in await asyncio.gather(*looks) if found is not None}

        before = await kept()
        await store.delete_group("code", "run")
        after = await kept()

        assert before >= set(named)
        assert len(after) <= 256 + 4 + 4, "the archive, the newest, those at the other cursor"
        assert after >= {698, 699, 700, 701, 1196, 1197, 1198, 1199}
        assert max(b - a for a, b in itertools.pairwise(sorted(after))) <= 8

    async def test_who_committed_last_is_known_after_others_began(self, store: Store) -> None:
        """A generation that has not committed yet is not its author."""
        await store.begin(ask(world_size=1))
        [fresh] = await store.groups("code", "run")
        await store.commit("code", "run", "t1", 1, 0, 5)
        await store.begin(ask("t2", world_size=1))

        [group] = await store.groups("code", "run")

        assert (fresh.committed_by, fresh.committed_owner) == (0, "")
        assert (group.generation, group.owner) == (2, "host-t2")
        assert (group.committed_by, group.committed_owner) == (1, "host-t1")

    async def test_a_probe_tells_whether_the_store_takes_writes(self, store: Store) -> None:
        """It changes nothing; what it fails with is told to its caller alone."""
        told: list[errors.PenstockError] = []
        store.watch(told.append)
        await store.begin(ask())
        before = await everything(store)

        await store.probe()

        assert await everything(store) == before
        await store.close()
        with pytest.raises(errors.StoreUnavailable):
            await store.probe()
        assert told == []

    async def test_two_stores_are_told_apart(self, tmp_path: Path) -> None:
        """Each has an identity of its own, from its creation on."""
        uuids = set()
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            store = self.make(tmp_path / name)
            await store.open()
            uuids.add(store.uuid)
            await store.close()

        assert len(uuids) == 2
        assert "" not in uuids

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        """Late callers at a shutdown get a name, not a hang."""
        await store.close()

        with pytest.raises(errors.StoreUnavailable, match="not open"):
            await store.groups("code")


async def everything(store: Store) -> list[Any]:
    """Return all that the contract lets one see of the test data."""
    return [
        await store.groups("code"),
        [await store.nearest_snapshot(LOG, 0, offset) for offset in range(10)],
        await store.verdicts(LOG),
        await store.lane_ends(LOG),
    ]


# --- the rules of generations, in their shortest form ---


class ModelGeneration:
    """One attempt, or one move where it has no rows."""

    def __init__(self, token: str, start: int, world_size: int) -> None:
        self.token, self.start, self.rows = token, start, [start] * world_size


class Model:
    """A group: what `apply` answers is what a store must answer."""

    def __init__(self) -> None:
        self.generations: list[ModelGeneration] = []
        self.asked: dict[str, int] = {}

    def cursor(self) -> int:
        """Return the least row, or the start where there are none."""
        last = self.generations[-1]
        return min(last.rows, default=last.start)

    def apply(self, action: tuple[Any, ...]) -> Any:
        """Do one action and return its answer, an error as its class."""
        name, *rest = action
        return getattr(self, name)(*rest)

    def begin(self, token: str, world_size: int, start: int | None) -> Any:
        """Rank 0 begins."""
        known = [generation.token for generation in self.generations]
        if token in known[:-1]:
            return errors.StaleGeneration
        if known and token == known[-1]:
            last = self.generations[-1]
            if len(last.rows) != world_size:
                return errors.WorldSizeMismatch
            if start not in (None, last.start):
                return errors.InvalidRequest
            return (len(known), last.rows[0], True)
        at = start if start is not None else self.cursor() if known else 0
        self.generations.append(ModelGeneration(token, at, world_size))
        self.asked[token] = len(self.generations)
        return (len(self.generations), at, False)

    def commit(self, token: str, rank: int, step: int) -> Any:
        """A rank commits with the generation that its token once got."""
        if not self.generations:
            return errors.UnknownGroup
        last = self.generations[-1]
        if last.token != token:
            return errors.StaleGeneration
        if rank >= len(last.rows):
            return errors.RankOutOfRange
        last.rows[rank] = max(last.rows[rank], step)
        return (self.cursor(), last.rows[rank])

    def seek(self, step: int) -> Any:
        """Somebody moves the group."""
        if not self.generations:
            return errors.UnknownGroup
        self.generations.append(ModelGeneration("", step, 0))
        return (len(self.generations), step)


async def apply(
    store: Store, group: str, action: tuple[Any, ...], asked: dict[str, int], request_id: str
) -> Any:
    """Do to a store what `Model.apply` does to the model; errors by class."""
    name, *rest = action
    try:
        if name == "begin":
            token, world_size, start = rest
            begun = await store.begin(
                ask(token, world_size, group=group, batches_per_step=2, start_step=start)
            )
            return (begun.generation, begun.start_step, begun.joined)
        if name == "commit":
            token, rank, step = rest
            return await store.commit("code", group, token, asked.get(token, 0), rank, step)
        return await store.seek("code", group, rest[0], request_id, "ada")
    except errors.PenstockError as error:
        return type(error)
