"""What cannot be planned is refused with what to do, and a plan's part of the log id."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planner import open_planner
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import (
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    PackedCollator,
    PaddedCollator,
)
from penstock.server.roles.batchers import (
    BestFitDecreasingPackingBatcher,
    ConcatPackingBatcher,
    PoolPackingBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem, InvalidJob, InvalidRequest, PenstockError
from planned import write_index_of
from resume.lines import Lines
from resume.plans import BlockedSource, ChoosyProcessor, SizedProcessor, raw_items


def job_with(path: Path | str, plan: dict[str, Any] | None = None, **roles: Any) -> Job:
    """Return a job of 23 items with a plan; without a path, without one."""
    parts: dict[str, Any] = {
        "source": ItemsSource(raw_items()),
        "distributor": MapDistributor(),
        "processor": SizedProcessor(),
        "batcher": BestFitDecreasingPackingBatcher(64),
        "collator": PackedCollator(),
        "seed": 5,
        "lanes": 4,
        **roles,
    }
    if parts.get("batch_size"):
        del parts["batcher"], parts["collator"]
    return Job(**parts, plan=Plan(str(path), **(plan or {})) if path else None)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of `job_with`."""
    path = tmp_path_factory.mktemp("index") / "sizes"
    write_index_of(job_with(""), path)
    return path


def read(job: Job, batches: int = 3) -> None:
    """Plan batches of every lane."""
    for lane in range(job.lanes):
        planner = open_planner(job, lane, Items(job))
        for _ in range(batches):
            planner.next()


class Looking(ConcatPackingBatcher):
    """A user's batcher that looks into samples."""

    version: ClassVar[int | str | None] = 1
    needs_content: ClassVar[bool] = True


class Mine(MapDistributor):
    """A user's distributor."""

    version: ClassVar[int | str | None] = 1


BALANCE = {"balance": "tokens"}


@pytest.mark.parametrize(
    ("plan", "roles", "sentence"),
    [
        (BALANCE, {}, "give batches_per_step"),
        (
            BALANCE,
            {
                "batches_per_step": 4,
                "source": BlockedSource(raw_items()),
                "distributor": MapDistributor("blocks", reading_groups=2, window_blocks=1),
            },
            "2 reading groups: give the distributor reading_groups: 1",
        ),
        ({"group_by_length": True}, {}, "give batch_size, or leave it out"),
        (
            {},
            {"distributor": MapDistributor(sample_ratio=0.5, resample=True)},
            "leave resample out, or plan",
        ),
        ({}, {"distributor": Mine()}, "Mine decides them one by one: use {type: map}"),
        ({}, {"batcher": PoolPackingBatcher(64, 5)}, "PoolPackingBatcher looks into samples"),
        ({}, {"batcher": Looking(64)}, "Looking looks into samples"),
    ],
)
def test_what_cannot_be_planned_says_what_to_change(
    plan: dict[str, Any], roles: dict[str, Any], sentence: str, index: Path
) -> None:
    """Before anything is read."""
    job = job_with(index, plan, **roles)

    with pytest.raises(InvalidJob) as caught:
        job.open_plans()

    assert sentence in caught.value.message


def test_mixtures_and_streams_cannot_be_planned(index: Path, tmp_path: Path) -> None:
    """They draw item by item; the sentence names them."""
    two = {"a": ItemsSource(raw_items()), "b": ItemsSource(raw_items())}
    (tmp_path / "x.jsonl").write_text('{"input_ids": [1]}\n')
    for source, distributor in (
        (two, MixtureDistributor({"a": 3, "b": 1})),
        (Lines(str(tmp_path)), IterableDistributor()),
    ):
        job = job_with(index, source=source, distributor=distributor)
        with pytest.raises(InvalidJob, match=r"use \{type: map\}, or leave plan out"):
            job.open_plans()


@pytest.mark.parametrize(
    ("roles", "differs"),
    [
        (
            {"source": ItemsSource(raw_items()[:-1])},
            "sources[0].identity.fingerprint.length differs",
        ),
        ({"source": {"other": ItemsSource(raw_items())}}, "sources[0].name differs"),
        ({"processor": ChoosyProcessor()}, "processor.type differs"),
        ({"batcher": BestFitDecreasingPackingBatcher(64, length_key="number")}, "size.length_of"),
        (
            {"distributor": MapDistributor(where={"number": {"below": 9}})},
            "where differs",
        ),
        ({"seed": 6}, "the seed that its sizes depend on differs"),
    ],
)
def test_an_index_of_something_else_is_refused(
    roles: dict[str, Any], differs: str, index: Path
) -> None:
    """The sentence says what differs, and how to make it anew."""
    job = job_with(index, **roles)

    with pytest.raises(InvalidJob, match="penstockd index FILE JOB --force") as caught:
        job.open_plans()

    assert differs in caught.value.message, caught.value.message


@pytest.mark.parametrize(
    "roles",
    [
        {"lanes": 9},
        {"epochs": 3},
        {"batcher": ConcatPackingBatcher(32, rows=3)},
        {"batches_per_step": 3},
        {"collator": PaddedCollator()},
        {"distributor": MapDistributor(sample_ratio=2.5)},
        {"on_item_error": "quarantine"},
    ],
)
def test_an_index_serves_jobs_that_measure_alike(roles: dict[str, Any], index: Path) -> None:
    """Lanes, epochs, the batcher's kind and what a collator does leave sizes as they are."""
    job = job_with(index, **roles)

    job.open_plans()

    read(job)


def test_a_missing_index_says_how_to_make_it(tmp_path: Path) -> None:
    """Whether it was never made, or is a folder, or something else."""
    with pytest.raises(InvalidJob, match=r"no index of sizes at .* make it with `penstockd"):
        job_with(tmp_path / "none").open_plans()
    (tmp_path / "text").write_text("no index" * 100)
    with pytest.raises(InvalidJob, match="is not an index of sizes"):
        job_with(tmp_path / "text").open_plans()
    with pytest.raises(PenstockError):
        job_with(tmp_path).open_plans()


def test_an_index_that_is_cut_or_changed_is_never_used(index: Path, tmp_path: Path) -> None:
    """Any byte that is another one, and any end: an error, before a batch depends on it."""
    data, chance = index.read_bytes(), random.Random(1)
    damaged = tmp_path / "damaged"
    ends = [*range(0, 64), *chance.sample(range(len(data)), 60)]
    places = [*range(120), *chance.sample(range(len(data)), 80), *range(len(data) - 60, len(data))]

    for bytes_there in (
        *(data[:end] for end in ends),
        *(data[:n] + bytes([data[n] ^ 1]) + data[n + 1 :] for n in places if n < len(data)),
    ):
        damaged.write_bytes(bytes_there)
        with pytest.raises(InvalidJob, match=r"is damaged|is not an index|version|ends before"):
            read(job_with(damaged))


def test_a_block_that_is_damaged_is_found_when_it_is_read(tmp_path: Path) -> None:
    """And not before: opening reads the footer alone. What else there is goes on."""
    path = tmp_path / "sizes"
    write_index_of(job_with(""), path)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)

    job = job_with(path)
    job.open_plans()
    planner = open_planner(job, 0, Items(job))
    for _ in range(2):
        with pytest.raises(InvalidJob, match="block 0 of source 'main' does not have the hash"):
            planner.next()
        assert planner.offset == 0


def test_an_index_of_no_sample_is_refused(tmp_path: Path) -> None:
    """Without reading its blocks, with the reasons."""

    class Nothing(ChoosyProcessor):
        version: ClassVar[int | str | None] = 1

        def process(self, raw: Any, context: Any) -> Any:
            context.skip("too short" if raw["number"] % 2 else "too long")

    write_index_of(job_with("", processor=Nothing()), tmp_path / "sizes")

    for epochs in (None, 2):
        with pytest.raises(InvalidJob) as caught:
            job_with(tmp_path / "sizes", processor=Nothing(), epochs=epochs).open_plans()
        assert "none of the 23 items in the index" in caught.value.message
        assert "(filtered:too long: 12, filtered:too short: 11)" in caught.value.message


def test_an_index_without_failing_items_is_for_jobs_that_leave_them_out(tmp_path: Path) -> None:
    """As many as the job allows: where nothing may fail, nothing is missing unnoticed."""
    quarantine = {"processor": ChoosyProcessor(), "on_item_error": "quarantine"}
    write_index_of(job_with("", **quarantine), tmp_path / "sizes")
    read(job_with(tmp_path / "sizes", **quarantine))

    with pytest.raises(
        InvalidJob, match="leaves out 1 items that fail, and the job may leave out 0"
    ):
        job_with(tmp_path / "sizes", processor=ChoosyProcessor()).open_plans()
    with pytest.raises(
        InvalidJob, match="leaves out 1 items that fail, and the job may leave out 0"
    ):
        job_with(tmp_path / "sizes", **quarantine, max_quarantined=0).open_plans()


def test_a_finite_job_whose_plan_leaves_all_out_is_refused(tmp_path: Path) -> None:
    """By its order, with what an epoch has."""
    few = {"source": ItemsSource([item for item in raw_items() if len(item["input_ids"]) > 9])}
    small = BestFitDecreasingPackingBatcher(9, overlong="drop")
    write_index_of(job_with("", batcher=small, **few), tmp_path / "sizes")

    job = job_with(tmp_path / "sizes", batcher=small, epochs=2, **few)

    with pytest.raises(InvalidJob, match="an epoch has drawn: 14, dropped:overlong: 14; lower the"):
        _ = job.order


@pytest.mark.parametrize("policy", ["stop", "quarantine"])
def test_a_sample_that_may_not_be_cut_stops_the_job(policy: str, index: Path) -> None:
    """All that is planned depends on it, so no policy leaves it out; the item is named."""
    batcher = BestFitDecreasingPackingBatcher(64, overlong="error")
    job = job_with(index, batcher=batcher, on_item_error=policy)

    with pytest.raises(BadItem, match=r"main\[11\] in epoch 0: 70 tokens do not fit") as caught:
        read(job)

    assert caught.value.item == ["main", 11, 0]


@pytest.mark.parametrize(("window", "lanes"), [(1, 3), (10**15, 3), (1 << 62, 1), (7, 500)])
def test_windows_and_lanes_of_any_number_work(window: int, lanes: int, index: Path) -> None:
    """One sample each, all at once, and more lanes than there are batches."""
    for epochs in (None, 2):
        job = job_with(index, {"window": window}, lanes=lanes, epochs=epochs)
        read(job, 2)
        if epochs:
            assert job.order.batches == sum(job.known_end(lane) or 0 for lane in range(lanes))


def test_a_joint_job_does_not_balance(index: Path) -> None:
    """Its steps have batches of several sets."""
    balanced = RoleSet(
        ItemsSource(raw_items()), batch_size=2, plan=Plan(str(index), balance="tokens")
    )

    with pytest.raises(InvalidJob, match="the plan of 'a' balances steps") as caught:
        JointJob({"a": balanced}, batches_per_step=4)

    assert caught.value.key == "joint.a.plan.balance"


def test_balanced_steps_are_read_whole_or_in_even_parts(index: Path) -> None:
    """A reader's other global batch would cut across them; without balance any will do."""
    balanced = job_with(index, BALANCE, batches_per_step=12)

    for number in (1, 2, 3, 4, 6, 12):
        balanced.check_steps(number)
    for number in (5, 8, 24):
        with pytest.raises(InvalidRequest, match="balances steps of 12 batches: use 1, 2, 3, 4, 6"):
            balanced.check_steps(number)
    job_with(index, batches_per_step=12).check_steps(5)


# --- the log id -----------------------------------------------------------------------------------


def test_the_log_id_covers_the_plan(index: Path, tmp_path: Path) -> None:
    """What decides bytes and nothing else: not where the index lies, and no default."""
    shutil.copy(index, tmp_path / "copy")
    write_index_of(job_with("", seed=6), tmp_path / "other")
    write_index_of(job_with("", batch_size=2), tmp_path / "simple")
    blocks = {
        "source": BlockedSource(raw_items()),
        "distributor": MapDistributor("blocks", reading_groups=1, window_blocks=2),
    }
    write_index_of(job_with("", **blocks), tmp_path / "blocks")

    def log_id(path: Path | str = index, plan: dict[str, Any] | None = None, **roles: Any) -> bytes:
        return job_with(path, plan, **roles).log_id

    def simple(**plan: Any) -> bytes:
        return log_id(tmp_path / "simple", plan, batch_size=2, batches_per_step=6)

    different: list[Callable[[], bytes]] = [
        lambda: log_id(""),
        lambda: log_id(),
        lambda: log_id(seed=6, path=tmp_path / "other"),
        lambda: log_id(plan={"window": 5}),
        lambda: log_id(plan={"balance": "tokens"}, batches_per_step=4),
        lambda: log_id(plan={"balance": "tokens"}, batches_per_step=6),
        lambda: log_id(plan={"balance": "squares"}, batches_per_step=4),
        lambda: simple(),
        lambda: simple(group_by_length=True),
        lambda: simple(group_by_length=True, balance="padded"),
        lambda: log_id(tmp_path / "blocks", **blocks),
        lambda: log_id(tmp_path / "blocks", {"window": 3}, **blocks),
    ]
    assert len({make() for make in different}) == len(different)
    same = [
        log_id(tmp_path / "copy"),
        log_id(plan={"window": None, "group_by_length": False, "balance": None}),
        log_id(plan={"window": 262_144}),
        log_id(batches_per_step=4),
        log_id(batches_per_step=6),
        log_id(f"file://{index}"),
    ]
    assert set(same) == {log_id()}
    assert log_id("", batches_per_step=4) == log_id("")
    spaced = log_id(plan={"balance": "( tokens )"}, batches_per_step=4)
    assert spaced == log_id(plan={"balance": "tokens"}, batches_per_step=4)


def test_the_log_id_follows_the_sizes(tmp_path: Path) -> None:
    """Another size of one item is another index, and another log."""
    ids = set()
    for last in (13, 14):
        items = raw_items()
        items[-1] = {"number": 22, "input_ids": [1] * last}
        path = tmp_path / f"{last}"
        write_index_of(job_with("", source=ItemsSource(items)), path)
        ids.add(SizeIndex.open(str(path)).root)
    assert len(ids) == 2
