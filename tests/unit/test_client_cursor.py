"""Groups, states and moves: where reading begins, what a checkpoint holds, what a commit counts."""

from __future__ import annotations

import itertools
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import write_job_file
from penstock.client import Loader
from penstock.server.job.job import Job
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources import ItemsSource
from penstock.server.store.rows import GroupRow, TimelineRow
from penstock.wire.errors import (
    BadState,
    CheckpointExists,
    CommitOutOfRange,
    InvalidRequest,
    JobChanged,
    NotStarted,
    OtherStore,
    PastEnd,
    PositionFar,
    StaleGeneration,
    StepSizeMismatch,
    WorldSizeMismatch,
)
from unit.relay import Relay
from unit.served import DEADLINE_S, ServedNode


@pytest.fixture
def node() -> Iterator[ServedNode]:
    with ServedNode() as served:
        yield served


def reader(node: ServedNode | Relay, **options: Any) -> Loader:
    given = {"rank": 0, "world_size": 1, "as_numpy": True, "group": "run", "deadline_s": 20.0}
    return Loader(node.address, "code", **given | options)


def positions(loader: Loader, count: int) -> list[int]:
    return [batch.position for batch in itertools.islice(loader, count)]


# --- groups and commits ---


def test_a_group_goes_on_at_its_cursor_in_a_new_generation(node: ServedNode) -> None:
    with reader(node, batches_per_step=2) as loader:
        assert positions(loader, 5) == [0, 1, 2, 3, 4]
        assert loader.commit() == 2
        token = node.group().token

    with reader(node) as loader:
        assert positions(loader, 2) == [4, 5]

    assert node.group().generation == 2
    assert node.group().token != token


def test_a_commit_counts_what_was_yielded_not_what_was_prefetched(node: ServedNode) -> None:
    with reader(node, batches_per_step=2, prefetch=8) as loader:
        cursors = [loader.commit() for _ in itertools.islice(loader, 6)]

    assert cursors == [0, 1, 1, 2, 2, 3]


def test_the_groups_cursor_is_the_slowest_ranks(node: ServedNode) -> None:
    common: dict[str, Any] = {"world_size": 2, "batches_per_step": 4, "attempt": "a"}
    with reader(node, rank=0, **common) as first, reader(node, rank=1, **common) as second:
        positions(first, 4)
        assert first.commit() == 0
        positions(second, 2)
        assert second.commit() == 1
        assert first.commit(step=2) == 2
        assert node.group().rows == (2, 2)


def test_where_reading_resumes_is_logged_with_who_committed(
    node: ServedNode, caplog: pytest.LogCaptureFixture
) -> None:
    with reader(node) as loader:
        positions(loader, 12)
        loader.commit()
    with caplog.at_level(logging.INFO, "penstock"), reader(node) as loader:
        positions(loader, 1)

    assert re.search(
        "group 'run' of job 'code': resuming at step 12, committed "
        r"\d{4}-\d\d-\d\d \d\d:\d\d by generation 1",
        caplog.text,
    )


def test_every_rank_of_a_fresh_start_says_that_it_starts(
    node: ServedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that join rank 0 resume nothing; one that comes back to its own row does."""
    common: dict[str, Any] = {"world_size": 2, "batches_per_step": 4, "attempt": "a"}
    with caplog.at_level(logging.INFO, "penstock"):
        for rank in range(2):
            with reader(node, rank=rank, **common) as loader:
                positions(loader, 2)
        first = caplog.text
        with reader(node, rank=1, **common) as loader:
            positions(loader, 2)
            loader.commit()
        caplog.clear()
        with reader(node, rank=1, **common) as loader:
            positions(loader, 1)

    assert first.count("starting at step 0, nothing committed yet") == 2
    assert "resuming at step 0" not in first
    assert "resuming at step 1, committed" in caplog.text


def test_an_older_attempt_is_fenced(node: ServedNode) -> None:
    with reader(node) as old, reader(node) as new:
        positions(old, 2)
        positions(new, 1)

        with pytest.raises(StaleGeneration):
            old.commit()
        assert new.commit() == 1


def test_two_world_sizes_in_one_attempt_are_refused(node: ServedNode) -> None:
    with reader(node, attempt="a", batches_per_step=2) as first:
        positions(first, 1)
        with (
            reader(node, attempt="a", world_size=2) as second,
            pytest.raises(WorldSizeMismatch),
        ):
            positions(second, 1)


def test_a_group_keeps_its_step_size(node: ServedNode) -> None:
    with reader(node, batches_per_step=4) as loader:
        assert loader.batches_per_step == 4
    with reader(node, world_size=2, attempt="b") as loader:
        assert loader.batches_per_step == 4
    with reader(node, batches_per_step=3) as loader, pytest.raises(StepSizeMismatch):
        positions(loader, 1)


def test_a_checkpoint_names_exactly_the_step_that_is_given(node: ServedNode) -> None:
    with reader(node) as loader:
        positions(loader, 5)
        loader.commit()
        assert loader.checkpoint("step-3", step=3) == 3
        assert loader.checkpoint("now") == 5
        with pytest.raises(CheckpointExists):
            loader.checkpoint("step-3", step=4)
        with pytest.raises(InvalidRequest, match=r"checkpoint\(5\): pass a name first"):
            loader.checkpoint(5)  # type: ignore[arg-type]


def test_commits_outlast_a_node_that_is_away_for_a_moment(node: ServedNode) -> None:
    with Relay(node.address) as relay, reader(relay) as loader:
        positions(loader, 3)
        relay.faults.unavailable = 2
        assert loader.commit() == 3


# --- starts ---


def test_a_start_at_a_step_is_a_new_generation_there(node: ServedNode) -> None:
    with reader(node, batches_per_step=2) as loader:
        positions(loader, 8)
        loader.commit()
    with reader(node, start=1) as loader:
        assert positions(loader, 2) == [2, 3]
    assert node.group().cursor == 1


def test_a_start_from_the_state_waits_for_it(node: ServedNode) -> None:
    with reader(node) as loader:
        positions(loader, 3)
        state = loader.state_dict()
    with reader(node, start="state") as loader:
        with pytest.raises(NotStarted, match="load_state_dict"):
            next(iter(loader))
        with pytest.raises(NotStarted):
            loader.state_dict()
        loader.load_state_dict(state)
        assert positions(loader, 1) == [3]
    with reader(node, start="state") as loader:
        loader.seek(step=2)
        assert positions(loader, 1) == [2]


# --- states ---


@pytest.mark.parametrize("world", [1, 2, 3, 6])
@pytest.mark.parametrize("group", [None, "run"])
def test_a_state_at_a_boundary_is_the_same_on_every_rank_and_loads_anywhere(
    node: ServedNode, world: int, group: str | None
) -> None:
    states = []
    for rank in range(world):
        options = {"rank": rank, "world_size": world, "batches_per_step": 6, "attempt": "a"}
        with reader(node, group=group, **options) as loader:
            positions(loader, 2 * 6 // world)
            states.append(loader.state_dict())

    assert all(state == states[0] for state in states)
    assert states[0]["step"] == 2
    for other in (1, 2, 3):
        seen = []
        for rank in range(other):
            options = {"rank": rank, "world_size": other, "attempt": f"b{other}"}
            with reader(node, group=group, **options) as loader:
                loader.load_state_dict(states[0])
                seen += positions(loader, 6 // other)
        assert sorted(seen) == list(range(12, 18))


@pytest.mark.parametrize("taken", range(9))
def test_a_state_taken_anywhere_loads_at_the_same_world_size(node: ServedNode, taken: int) -> None:
    """Also within a step, also after a state was loaded before: the next batch is the next one."""
    options: dict[str, Any] = {"rank": 1, "world_size": 2, "batches_per_step": 6}
    own = list(range(1, 100, 2))
    with reader(node, attempt="a", **options) as loader:
        positions(loader, taken)
        state = loader.state_dict()
    with reader(node, attempt="b", **options) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert positions(loader, 4) == own[taken : taken + 4]
        loader.load_state_dict(state)
        assert positions(loader, 4) == own[taken : taken + 4]


def test_a_state_within_a_step_is_refused_at_another_world_size(node: ServedNode) -> None:
    with reader(node, batches_per_step=6) as loader:
        positions(loader, 8)
        state = loader.state_dict()

    assert (state["step"], state["consumed"], state["world_size"]) == (1, 2, 1)
    with (
        reader(node, world_size=2, attempt="b") as loader,
        pytest.raises(BadState, match=r"seek\(step=1\) or seek\(step=2\)"),
    ):
        loader.load_state_dict(state)


def test_a_loaded_state_is_a_generation_of_its_own_with_a_token_alike_on_all_ranks(
    node: ServedNode,
) -> None:
    """The cursor stands later; the trainer's checkpoint is the truth and moves it back."""
    common: dict[str, Any] = {"world_size": 2, "batches_per_step": 2, "attempt": "a"}
    with reader(node, rank=0, **common) as first, reader(node, rank=1, **common) as second:
        positions(first, 3)
        positions(second, 3)
        state = second.state_dict()
        positions(first, 2)
        first.commit(step=5)

        for loader, rank in ((first, 0), (second, 1)):
            loader.load_state_dict(state)
            assert positions(loader, 1) == [6 + rank]

    assert node.group().token == "a#1"
    assert node.group().generation == 2
    assert node.group().cursor == 3


def test_a_rank_that_joins_again_with_a_state_starts_at_the_state(node: ServedNode) -> None:
    """Not at its row, which may be ahead of the model."""
    with reader(node, attempt="a") as loader:
        loader.seek(step=3)
        positions(loader, 2)
        state = loader.state_dict()
        positions(loader, 4)
        loader.commit()

    with reader(node, attempt="a2") as loader:
        loader.load_state_dict(state)
        assert positions(loader, 1) == [5]


def good_state(node: ServedNode, **changes: Any) -> dict[str, Any]:
    state = {
        "format": 1,
        "job": "code",
        "log_id": node.log_id.hex(),
        "store": node.memory.uuid,
        "group": "run",
        "batches_per_step": 2,
        "step": 3,
        "consumed": 0,
        "world_size": 1,
    }
    return state | changes


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"format": 2}, BadState, "format 2"),
        ({"job": "other"}, BadState, "'other'"),
        ({"batches_per_step": 4}, BadState, "steps of 4"),
        ({"step": "3"}, BadState, "'step' is '3'"),
        ({"step": -1}, BadState, "impossible numbers: step -1"),
        ({"step": 1 << 62}, BadState, "impossible numbers: step"),
        ({"batches_per_step": 0}, BadState, "of 0 batches each"),
        ({"consumed": -1}, BadState, "-1 consumed"),
        ({"consumed": 2}, BadState, "2 consumed of a step in which each of 1 ranks has 2"),
        ({"consumed": 1, "world_size": 2}, BadState, "1 consumed of a step"),
        ({"world_size": 0}, BadState, "read by 0 ranks"),
        ({"world_size": -2}, BadState, "read by -2 ranks"),
        ({"world_size": 3, "consumed": 1}, BadState, "in which each of 3 ranks has 1"),
        ({"log_id": "ff" * 32}, JobChanged, "ffffffffffff"),
        ({"timeline": [[0, "aa"], [9, "bb"]]}, BadState, "a run that has read 2 logs, one after"),
        ({"timeline": [[0, "ff" * 32]]}, BadState, "'timeline' is .*'ffff"),
        ({"timeline": [[7, "aa"]]}, BadState, r"'timeline' is \[\[7, 'aa'\]\], and its log is"),
        ({"timeline": []}, BadState, r"'timeline' is \[\]"),
        ({"timeline": [0]}, BadState, r"'timeline' is \[0\]"),
        ({"timeline": "aa"}, BadState, "'timeline' is 'aa'"),
        ({"store": "elsewhere"}, OtherStore, "elsewhere"),
    ],
)
def test_a_state_that_does_not_fit_says_what_differs(
    node: ServedNode, changes: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with reader(node, batches_per_step=2) as loader, pytest.raises(error, match=sentence):
        loader.load_state_dict(good_state(node, **changes))


@pytest.mark.parametrize("entry", [list, tuple])
def test_a_state_has_the_logs_of_its_run(node: ServedNode, entry: type[Any]) -> None:
    """One today, from step 0 on; a state from before timelines loads, and gets one."""
    log_id = node.log_id.hex()
    with reader(node, batches_per_step=2) as loader:
        loader.load_state_dict(good_state(node))
        state = loader.state_dict()

    assert state == good_state(node, timeline=[[0, log_id]])
    with reader(node, batches_per_step=2, attempt="again") as loader:
        loader.load_state_dict({**state, "timeline": [entry((0, log_id))]})
        assert loader.state_dict() == state


def test_a_group_of_several_logs_is_refused_by_name(node: ServedNode) -> None:
    """As a server with revisions may have it."""
    with reader(node, attempt="a") as loader:
        positions(loader, 1)
    [group] = node.memory.tables[GroupRow].rows.values()
    later = TimelineRow(group.id, 7, node.log_id)
    node.memory.tables[TimelineRow].put((group.id, 7), later)

    with (
        reader(node, attempt="b") as loader,
        pytest.raises(
            JobChanged, match=r"several logs, one after the other \(\w{12} from step 0, "
        ),
    ):
        next(iter(loader))


@pytest.mark.parametrize("state", [{}, None])
def test_what_is_no_state_is_refused(node: ServedNode, state: Any) -> None:
    with reader(node, batches_per_step=2) as loader, pytest.raises(BadState, match="not a state"):
        loader.load_state_dict(state)


def test_a_state_of_another_store_loads_where_a_start_is_named(node: ServedNode) -> None:
    with reader(node, start=3) as loader:
        loader.load_state_dict(good_state(node, store="elsewhere"))
        assert positions(loader, 1) == [6]
    with reader(node, group=None) as loader:
        loader.load_state_dict(good_state(node, store="elsewhere", group=None))
        assert positions(loader, 1) == [6]


def test_states_of_an_evaluation_are_not_loaded(node: ServedNode) -> None:
    with reader(node, group=None, mode="eval", max_steps=2) as loader:
        with pytest.raises(InvalidRequest, match="step 0"):
            loader.load_state_dict(good_state(node))
        with pytest.raises(InvalidRequest, match="step 0"):
            loader.seek(step=1)


# --- mark and seek ---


def test_marks_correct_what_counts_for_frameworks_that_hold_a_batch_ahead(node: ServedNode) -> None:
    with reader(node, batches_per_step=2) as loader:
        batches = iter(loader)
        ahead = next(batches)
        for _ in range(5):
            trained, ahead = ahead, next(batches)
            loader.mark(trained.position)
        assert ahead.position == 5
        assert loader.state_dict()["step"] == 2
        assert loader.state_dict()["consumed"] == 1
        assert loader.commit() == 2
        with pytest.raises(InvalidRequest, match=r"mark\(6\)"):
            loader.mark(6)


@pytest.mark.parametrize("peeked", [0, 2])
def test_marks_without_a_position_count_the_batches_of_a_pass(
    node: ServedNode, peeked: int
) -> None:
    """Each is one batch more, from where the pass began; more than were yielded are refused."""
    with reader(node, rank=1, world_size=2, batches_per_step=4, attempt="a") as loader:
        positions(loader, peeked)
        batches = iter(loader)
        for _ in range(6):
            next(batches)
        for _ in range(5):
            loader.mark()
        state = loader.state_dict()
        loader.mark()
        with pytest.raises(InvalidRequest, match=r"mark\(\d+\)"):
            loader.mark()

    assert (state["step"], state["consumed"]) == divmod(peeked + 5, 2)


def test_a_mark_before_the_first_batch_is_refused(node: ServedNode) -> None:
    with reader(node) as loader, pytest.raises(InvalidRequest, match="has not yielded"):
        loader.mark()


def test_batches_that_a_framework_has_fetched_and_dropped_are_read_again(node: ServedNode) -> None:
    """A pass that begins after marks begins at the first batch that was not marked."""
    with reader(node) as loader:
        seen = []
        for count in (3, 1, 4):
            batches = iter(loader)
            for _ in range(count):
                seen.append(next(batches).position)
                loader.mark()
            next(batches)  # held ahead, and dropped with its iterator

        assert seen == list(range(8))
        assert loader.state_dict()["step"] == 8 // loader.batches_per_step
        assert loader.commit() == 8 // loader.batches_per_step


def test_frameworks_that_skip_by_themselves_are_told_what_to_use(node: ServedNode) -> None:
    with reader(node) as loader:
        assert not hasattr(loader, "dataset")
        with pytest.raises(AttributeError, match=r"LoaderTrainer.*frameworks\.md"):
            _ = loader.dataset


def test_a_mark_of_another_ranks_position_is_refused(node: ServedNode) -> None:
    with reader(node, group=None, world_size=2, batches_per_step=2) as loader:
        positions(loader, 3)
        with pytest.raises(InvalidRequest, match=r"mark\(1\)"):
            loader.mark(1)


def test_a_seek_moves_the_group_at_once_and_reading_goes_on_there(node: ServedNode) -> None:
    with reader(node, batches_per_step=2, attempt="a") as loader:
        assert positions(loader, 5) == [0, 1, 2, 3, 4]
        tokens = [node.group().token]
        loader.seek(step=1)
        assert node.group().cursor == 1
        assert positions(loader, 3) == [2, 3, 4]
        tokens.append(node.group().token)
        loader.seek(step=50)
        assert positions(loader, 1) == [100]
        tokens.append(node.group().token)
    assert tokens == ["a", "a#1", "a#2"]


def test_a_rank_that_starts_again_alone_after_a_seek_joins(node: ServedNode) -> None:
    """With the same attempt; it goes on at its own row, and moves on together with the others."""
    options: dict[str, Any] = {"attempt": "a", "world_size": 2, "batches_per_step": 4}
    with reader(node, rank=0, **options) as first:
        with reader(node, rank=1, **options) as second:
            both = (first, second)
            assert [positions(loader, 2) for loader in both] == [[0, 2], [1, 3]]
            for loader in both:
                loader.seek(step=5)
            assert [positions(loader, 4)[-1] for loader in both] == [26, 27]
            assert [loader.commit() for loader in both] == [5, 7]

        with reader(node, rank=1, **options) as again:
            assert positions(again, 2) == [29, 31]
            assert again.commit() == 7
            first.seek(step=2)
            again.seek(step=2)
            assert positions(first, 1) + positions(again, 1) == [8, 9]

    assert node.group().token == "a#2"
    assert node.group().generation == 3


def test_an_attempt_is_not_named_like_one_that_has_moved(node: ServedNode) -> None:
    with reader(node, attempt="a#3") as loader, pytest.raises(InvalidRequest, match="leave '#'"):
        loader.seek(1)


def test_a_seek_that_is_refused_leaves_the_loader_where_it_stood() -> None:
    with ServedNode(batches=20) as node:
        for group in ("run", None):
            with reader(node, batches_per_step=2, group=group) as loader:
                assert positions(loader, 3) == [0, 1, 2]
                with pytest.raises(PastEnd, match="step 11 lies past the end"):
                    loader.seek(step=11)
                assert positions(loader, 2) == [3, 4]


def filtering_job(gate: threading.Event) -> Job:
    """Return a finite job of 14 batches, which nobody knows until the gate is open."""

    def kept(raw: dict[str, int]) -> dict[str, int] | None:
        assert gate.wait(DEADLINE_S)
        return raw if raw["x"] % 3 else None

    return Job(
        {"corpus": ItemsSource([{"x": n} for n in range(40)])},
        processor=FunctionProcessor(kept),
        batch_size=2,
        lanes=2,
        epochs=1,
        batches_per_step=2,
        name="code",
    )


def test_a_cursor_past_an_end_that_nobody_knew_is_a_clear_error() -> None:
    """It is taken while the end is not known; then each open says so, and a seek mends it."""
    gate = threading.Event()
    with ServedNode(filtering_job(gate)) as node:
        with reader(node) as loader:
            loader.seek(step=100)
            gate.set()
            with pytest.raises(PastEnd, match="position 200 lies past the end") as error:
                next(iter(loader))
        assert "14 batches, 7 steps of 2; start at step 7 at most, or move" in error.value.message

        with reader(node) as loader, pytest.raises(PastEnd) as error:
            next(iter(loader))
        assert error.value.message == (
            "the cursor of group 'run' is at step 100, which lies past the end: job 'code' holds "
            "14 batches, 7 steps of 2; seek(step=7) moves it to the end, and a lower step is read "
            "again from there"
        )

        with reader(node) as loader:
            with pytest.raises(PastEnd, match="step 8 lies past the end"):
                loader.seek(step=8)
            loader.seek(step=6)
            with pytest.raises(CommitOutOfRange, match="step 8 lies past the end"):
                loader.commit(step=8)
            assert positions(loader, 3) == [12, 13]


def test_what_no_reader_could_be_given_is_refused_wherever_a_step_is_named(tmp_path: Path) -> None:
    """Else the group's cursor would stay there, and every start of the run fail."""
    job = {
        "lanes": 2,
        "source": {"type": "items", "items": [{"input_ids": [1] * n} for n in range(1, 8)]},
        "batcher": {"type": "best_fit", "max_tokens": 8, "pool_size": 2},
        "collator": {"type": "packed"},
        "max_replay": 10,
        "snapshot_every": 4,
    }
    far = {**job, "max_replay": 1000}
    # Far beyond what a node makes ahead of a reader, from where a step would be near.
    file = write_job_file(tmp_path / "jobs.yaml", {"main": far})
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": 4, "group": "run"}
    with Loader(f"local:{file}", "main", **options) as loader:
        assert positions(loader, 1) == [0]
        assert loader.checkpoint("far", step=200) == 200
    write_job_file(tmp_path / "jobs.yaml", {"main": job})
    with Loader(f"local:{file}", "main", **options) as loader:
        first = positions(loader, 4)
        with pytest.raises(PositionFar, match="max_replay = 10"):
            loader.seek(step=200)
        assert positions(loader, 4) == [4, 5, 6, 7]
        with pytest.raises(PositionFar, match="max_replay = 10"):
            loader.checkpoint("further", step=600)
        with pytest.raises(PositionFar, match="max_replay = 10"):
            loader.commit(step=600)
        control = loader._opener.control
        with pytest.raises(PositionFar, match="max_replay = 10"):
            control.restore("run", "far", "")
        with pytest.raises(PositionFar, match="max_replay = 10"):
            control.seek("run", 200, "")
        assert loader.commit() == 2
        loader.seek(step=4)
        assert positions(loader, 1) == [16]
        assert positions(loader, 15) == list(range(17, 32))
        # What was read here is within reach, whether or not a snapshot of it is stored yet.
        assert loader.commit(step=8) == 8
        assert loader.checkpoint("near", step=9) == 9

    assert first == [0, 1, 2, 3]


def test_a_seek_inside_the_loop_is_followed_by_the_loop(node: ServedNode) -> None:
    with reader(node, batches_per_step=2) as loader:
        indices = []
        for step in loader.steps():
            indices.append(step.index)
            if len(indices) == 2:
                loader.seek(step=1)
                continue
            if len(indices) == 4:
                break
            list(step)

    assert indices == [0, 1, 1, 2]


def test_an_ephemeral_reader_seeks_to_any_position(node: ServedNode) -> None:
    with reader(node, group=None, rank=1, world_size=2, batches_per_step=4) as loader:
        loader.seek(position=6)
        assert positions(loader, 2) == [7, 9]
        loader.seek(step=1)
        assert positions(loader, 2) == [5, 7]
        for wrong in ({}, {"step": 1, "position": 2}, {"step": -1}):
            with pytest.raises(InvalidRequest):
                loader.seek(**wrong)
    with reader(node) as loader, pytest.raises(InvalidRequest, match="stands at steps"):
        loader.seek(position=3)
