"""An index is put together from blocks that come in any order, from any number of commands."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from indexes import Here, as_items, made
from penstock.server.job.job import Job
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.make.dealt_blocks import Stretches, all_blocks
from penstock.server.planning.make.making import Engine, MadeIndex, Making, MakingProgress, make
from penstock.server.planning.make.measuring import Measuring
from penstock.server.roles import ProcessContext, RawItemProcessor, Sample
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem, InvalidJob, SourceUnavailable

ITEMS = 1500  # in 6 blocks


class Count(RawItemProcessor):
    """As many tokens as the item says; an item that says less fails."""

    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return them."""
        if self.draws:
            context.rng.integers(2)
        return {"input_ids": [1] * (raw["n"] if raw["n"] >= 0 else 1 // 0)}


def job(items: int = ITEMS, *, failing: int = 0, **options: Any) -> Job:
    rows = [{"n": -1 if n % 200 == 7 and n // 200 < failing else n % 50} for n in range(items)]
    options = {"processor": Count(), "batcher": BestFitPackingBatcher(64), **options}
    return Job(ItemsSource(rows), **options)


def making(path: Path, made_of: Job | None = None) -> tuple[Making, Here]:
    measuring = Measuring(made_of or job())
    return Making(measuring, str(path)), Here(measuring)


def run(it: Making, engine: Engine, **options: Any) -> MadeIndex:
    [found] = make([it], engine, **options)
    return found


def interrupt(path: Path, most: int, made_of: Job | None = None) -> Here:
    """Begin an index, and stop after so many blocks."""
    it, engine = making(path, made_of)
    engine.most = most
    with pytest.raises(InterruptedError):
        run(it, engine)
    return engine


def test_the_order_of_blocks_leaves_no_trace(tmp_path: Path) -> None:
    made(job(), tmp_path / "x")
    it, engine = making(tmp_path / "y")
    engine.backwards = True
    run(it, engine)

    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    index = SizeIndex.open(str(tmp_path / "x"))
    assert as_items(index.sources["main"].read(0, ITEMS)) == [[n % 50] for n in range(ITEMS)]


@pytest.mark.parametrize("most", [1, 3, 5])
def test_a_command_goes_on_where_another_one_was_ended(tmp_path: Path, most: int) -> None:
    """Nothing is measured twice, and the file is the same; nothing is left beside it."""
    made(job(), tmp_path / "x")
    first = interrupt(tmp_path / "y", most)

    it, engine = making(tmp_path / "y")
    done = run(it, engine).done

    assert not {*first.measured} & {*engine.measured}
    assert len(first.measured) + len(engine.measured) == len([*all_blocks({"main": ITEMS})])
    assert done.found == sum(block.stop - block.start for block in first.measured)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]


def test_a_damaged_part_is_measured_again(tmp_path: Path) -> None:
    """A file that a crash of the machine has cut, or one of another format."""
    made(job(), tmp_path / "x")
    first = interrupt(tmp_path / "y", 3)
    names = [tmp_path / "y.parts" / block.name for block in first.measured]
    names[0].write_bytes(names[0].read_bytes()[:-1])
    names[1].write_bytes(b"")

    it, engine = making(tmp_path / "y")
    run(it, engine)

    assert {*engine.measured} & {*first.measured} == {*first.measured[:2]}
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_an_index_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    """Of a job that shares it, too; `force` makes it anew."""
    made(job(), tmp_path / "x")
    before = (tmp_path / "x").stat().st_mtime_ns

    found = made(job(seed=3, lanes=2), tmp_path / "x")

    assert not found.is_new
    assert (tmp_path / "x").stat().st_mtime_ns == before
    it, engine = making(tmp_path / "x")
    assert run(it, engine, force=True).is_new
    assert len(engine.measured) == len([*all_blocks({"main": ITEMS})])


def test_what_is_there_of_another_job_is_thrown_away_by_force_alone(tmp_path: Path) -> None:
    """An index, and the beginning of one."""
    made(job(700), tmp_path / "x")
    interrupt(tmp_path / "y", 1, job(700))
    before = (tmp_path / "x").read_bytes()

    for name, said in (("x", "of another job: sources"), ("y", "the beginning of another index")):
        with pytest.raises(InvalidJob, match=f"{said}.*fingerprint.* differs; .*--force"):
            made(job(), tmp_path / name)

    assert (tmp_path / "x").read_bytes() == before
    for name in ("x", "y"):
        it, engine = making(tmp_path / name)
        run(it, engine, force=True)
        assert SizeIndex.open(str(tmp_path / name)).sources["main"].items == ITEMS
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x", "y"]


def test_a_file_that_is_no_index_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a corpus")
    it, engine = making(tmp_path / "x")

    for force in (False, True):
        with pytest.raises(InvalidJob, match="which is not an index of sizes"):
            run(it, engine, force=force)

    assert (tmp_path / "x").read_text() == "a corpus"


@pytest.mark.parametrize("where", ["its end", "a block"])
def test_a_damaged_index_is_replaced_by_force(tmp_path: Path, where: str) -> None:
    made(job(), tmp_path / "x")
    whole = (tmp_path / "x").read_bytes()
    flipped = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
    (tmp_path / "x").write_bytes(flipped if where == "a block" else whole[:-3])

    with pytest.raises(InvalidJob, match="is damaged"):
        made(job(), tmp_path / "x")
    it, engine = making(tmp_path / "x")
    run(it, engine, force=True)

    assert (tmp_path / "x").read_bytes() == whole


def test_parts_without_their_inputs_are_not_trusted(tmp_path: Path) -> None:
    interrupt(tmp_path / "x", 2)
    told = tmp_path / "x.parts" / "inputs.json"

    for content, said in (("{", "is damaged"), (json.dumps({"inputs": {}}), "differs")):
        told.write_text(content)
        with pytest.raises(InvalidJob, match=said):
            made(job(), tmp_path / "x")
    told.unlink()
    with pytest.raises(InvalidJob, match=r"inputs\.json is missing"):
        made(job(), tmp_path / "x")


def test_what_was_left_after_the_index_was_there_goes_away(tmp_path: Path) -> None:
    """A command that is killed between its last two steps."""
    interrupt(tmp_path / "x", 2)
    made(job(), tmp_path / "y")
    (tmp_path / "y").rename(tmp_path / "x")

    assert not made(job(), tmp_path / "x").is_new
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_parts_that_vanish_are_named(tmp_path: Path) -> None:
    """Another command has made the index meanwhile, and removed them."""
    it, engine = making(tmp_path / "x")

    async def removing(blocks: Any, hears: Any) -> None:
        await engine(blocks, hears)
        (tmp_path / "x.parts" / "0-00000001").unlink()

    with pytest.raises(SourceUnavailable, match=r"x\.parts/0-00000001', is gone or damaged"):
        run(it, removing)


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    made(job(), tmp_path / "of" / "mine" / "x")

    assert SizeIndex.open(str(tmp_path / "of" / "mine" / "x"))


# --- what is told meanwhile -----------------------------------------------------------------------


def test_progress_ends_with_all_items(tmp_path: Path) -> None:
    """It never falls, and says what the finished blocks hold."""
    told: list[tuple[int, int]] = []

    def watch(done: MakingProgress) -> None:
        told.append((done.measured, done.tokens))

    interrupt(tmp_path / "x", 4)
    it, engine = making(tmp_path / "x")
    run(it, engine, watch=watch)

    assert told == sorted(told)
    assert told[0][0] > 0, "what was found is told at first"
    assert told[-1] == (ITEMS, sum(n % 50 for n in range(ITEMS)))


def test_a_block_whose_process_died_is_not_counted_twice(tmp_path: Path) -> None:
    said: list[str] = []
    it, engine = making(tmp_path / "x")

    async def dying(blocks: Any, hears: Any) -> None:
        hears.progressed(blocks[0], 100)
        hears.died(blocks[0], "main[99] in epoch 0 ended a process, with SIGKILL")
        await engine(blocks, hears)

    assert run(it, dying, warn=said.append).done.measured == ITEMS
    assert said == [
        "main[99] in epoch 0 ended a process, with SIGKILL; its block is measured again"
    ]


# --- items that fail ------------------------------------------------------------------------------


def test_items_that_fail_are_counted_over_all_commands(tmp_path: Path) -> None:
    """The budget is the job's: a command that goes on has no new one."""
    several = job(failing=8, on_item_error="quarantine", max_quarantined=7)
    interrupt(tmp_path / "x", 4, several)
    it, engine = making(tmp_path / "x", several)

    with pytest.raises(BadItem, match=r"8 items of job 'job' fail, and max_quarantined = 7"):
        run(it, engine)

    found = made(job(failing=8, on_item_error="quarantine", max_quarantined=8), tmp_path / "x")
    assert found.index.sources["main"].left_out == {"quarantined:index": 8}


# --- random numbers -------------------------------------------------------------------------------


def test_the_seed_is_in_the_inputs_if_processing_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by an earlier command or by this one: an index that drew nothing fits every seed."""
    made(job(), tmp_path / "none")
    monkeypatch.setattr(Count, "draws", True)
    interrupt(tmp_path / "drew", 1)
    monkeypatch.setattr(Count, "draws", False)
    found = made(job(), tmp_path / "drew").index

    assert found.inputs["seed"] == 0
    assert not made(job(seed=1), tmp_path / "none").is_new
    with pytest.raises(InvalidJob, match="the seed that its sizes depend on differs"):
        made(job(seed=1), tmp_path / "drew")


# --- who measures what ----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("turns", ["in turn", "one works alone", "one never works"])
def test_every_block_is_dealt_once(processes: int, turns: str) -> None:
    """Whatever the pace of each process is."""
    blocks = [*all_blocks({"a": 5000, "b": 3000})]
    stretches = Stretches(blocks, processes)
    order = {
        "in turn": range(processes),
        "one works alone": [0],
        "one never works": range(processes - 1) if processes > 1 else [0],
    }[turns]
    found = []
    working = [*order]
    while working:
        for process in [*working]:
            block = stretches.take(process)
            if block is None:
                working.remove(process)
            else:
                found.append(block)

    assert sorted(found) == sorted(blocks)


def test_a_process_gets_neighbours() -> None:
    """What blocks share of storage is decoded once, but at the borders of their stretches."""
    blocks = [*all_blocks({"a": 50_000})]
    stretches = Stretches(blocks, 4)
    own: list[list[int]] = [[], [], [], []]
    for turn in range(2 * len(blocks)):
        if (block := stretches.take(turn % 4)) is not None:
            own[turn % 4].append(block.number)

    jumps = sum(after - number != 1 for mine in own for number, after in pairwise(mine))
    assert sum(map(len, own)) == len(blocks)
    assert jumps <= 3


async def test_an_engine_that_fails_ends_the_making(tmp_path: Path) -> None:
    it, _ = making(tmp_path / "x")

    async def failing(blocks: Any, hears: Any) -> None:
        raise SourceUnavailable("the storage is away", item="x")

    with pytest.raises(SourceUnavailable, match="the storage is away"):
        await asyncio.to_thread(run, it, failing)
    assert not (tmp_path / "x").exists()
