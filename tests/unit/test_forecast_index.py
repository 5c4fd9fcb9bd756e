"""A plan from an index of sizes: filters, several samples of an item, items that fail."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexes import Here
from penstock.server.commands.plan import report
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.planning.index.block import QUARANTINED, ItemSizes, filtered
from penstock.server.planning.index.index_file import (
    SizeIndex,
    SourceBlocks,
    blocks_of,
    write_index,
)
from penstock.server.planning.index.inputs import index_inputs, kept_items
from penstock.server.planning.make.making import Making
from penstock.server.planning.make.making import make as make_index
from penstock.server.planning.make.measuring import Measuring
from penstock.server.planning.report.index_lookup import IndexLookup
from penstock.server.planning.report.plan_report import PlanReport
from penstock.server.roles import (
    BestFitPackingBatcher,
    IdentityProcessor,
    IndexedSource,
    MapDistributor,
    PackedCollator,
    PaddedCollator,
    SampleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadItem, InvalidJob
from planned_read import Read, SizedItems
from resume.plans import BATCHERS, LENGTHS, ChoosyProcessor, SizedProcessor


def items(count: int = 23) -> ItemsSource:
    return ItemsSource(
        [
            {
                "number": number,
                "kind": "ab"[number % 2],
                "input_ids": [100 * number + k for k in range(LENGTHS[number % len(LENGTHS)])],
            }
            for number in range(count)
        ]
    )


def make(batcher: SampleBatcher, **options: Any) -> Job:
    given = {"collator": PackedCollator(), "lanes": 3, "seed": 5, "name": "mine", **options}
    data = given.pop("data", None) or items()
    distributor = given.pop("distributor", None) or MapDistributor(shuffle="full")
    processor = given.pop("processor", None) or ChoosyProcessor()
    return Job(data, distributor, processor, batcher.clone(), **given)


def index_of(job: Job, folder: Path) -> str:
    """Write the index of a job, made by running its processor, and return where it lies."""
    [roles] = job.role_sets
    url, sources = str(folder / "sizes.index"), []
    for name, source in roles.sources.items():
        assert isinstance(source, IndexedSource)
        kept = kept_items(roles, name)
        numbers = range(len(source)) if kept is None else np.flatnonzero(kept.mask()).tolist()
        refs = [ItemRef(name, number, 0) for number in numbers]
        sizes: list[int] = []
        counts, left_out = [], {}
        for position, outcome in enumerate(Items(job).outcomes(refs, "draw")):
            if isinstance(outcome, Filtered):
                left_out[position] = filtered(outcome.reason)
            elif isinstance(outcome, Bad):
                left_out[position] = QUARANTINED
            found = [] if position in left_out else outcome
            assert isinstance(found, list)
            sizes += [roles.batcher.size_of(sample) for sample in found]
            counts.append(len(found))
        told = ItemSizes(np.array(counts, np.uint32), np.array(sizes, np.int64), left_out)
        sources.append(SourceBlocks(name, len(refs), blocks_of(told)))
    write_index(url, index_inputs(roles, job.seed), sources)
    return url


def planned(job: Job, url: str | None, epochs: int | None = None) -> PlanReport:
    return report(job, (4, "option"), [2], (job.lanes,), epochs, [] if url is None else [url])


def check_agrees(job: Job, read: Read, found: PlanReport) -> None:
    assert (found.batches, found.rows, found.samples) == (read.batches, read.rows, read.samples)
    assert found.packing is not None
    assert found.packing.tokens == read.counts["tokens"]
    assert found.packing.padding == read.counts["padding_tokens"]


@pytest.mark.parametrize("batcher", [name for name in BATCHERS if name != "pool"])
def test_filters_and_several_samples_are_planned(batcher: str, tmp_path: Path) -> None:
    """A finite job whose processor does all that a processor may: to the token, and each reason."""
    collator = PaddedCollator() if batcher == "simple" else PackedCollator()
    job = make(BATCHERS[batcher], epochs=2, on_item_error="quarantine", collator=collator)
    found = planned(job, index_of(job, tmp_path))
    read = Read(job)

    check_agrees(job, read, found)
    assert {name: n for name, n in found.counts.items() if n} == {
        name: n for name, n in read.planner.items() if n
    }
    assert found.counts["filtered:every seventh"] == 2 * 3
    assert found.counts["quarantined:draw"] == 2


def test_an_endless_job_is_planned_for_an_epoch(tmp_path: Path) -> None:
    """As many batches as its draws finish, and the rest is held."""
    job = make(BATCHERS["best_fit_split"], on_item_error="quarantine", data=items(60))
    found = planned(job, index_of(job, tmp_path), 1)

    check_agrees(job, Read(job, 1), found)
    assert found.held > 0


def test_items_that_a_condition_keeps_are_found_in_the_index(tmp_path: Path) -> None:
    """It has positions for these alone; each is drawn as often as `sample_ratio` says."""
    distributor = MapDistributor(where={"kind": "b"}, sample_ratio=1.5)
    job = make(BATCHERS["concat"], distributor=distributor, epochs=1, on_item_error="quarantine")
    found = planned(job, index_of(job, tmp_path))

    check_agrees(job, Read(job), found)
    assert found.items == 11 + 11 // 2


def test_several_sources_have_their_own_sizes(tmp_path: Path) -> None:
    """Each item is looked up in its source."""
    data = {"one": items(30), "other": items(9)}
    job = make(BATCHERS["first_fit"], data=data, epochs=1, on_item_error="quarantine")
    read = Read(job)
    found = planned(job, index_of(job, tmp_path))

    check_agrees(job, read, found)
    assert {name: samples for name, (samples, _) in found.sources.items()} == dict(read.sources)


def test_sizes_that_whole_items_tell_come_from_the_index(tmp_path: Path) -> None:
    """Nothing is read for them."""
    job = make(BATCHERS["best_fit_drop"], processor=SizedProcessor(), epochs=1)
    url, read = index_of(job, tmp_path), Read(job)
    found = planned(job, url)

    check_agrees(job, read, found)
    assert found.sizes_from == "index"


def test_what_is_left_out_takes_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every item is known why, though the file is read in several pieces."""
    items, step = 60_000, 1024
    data = ItemsSource([{"input_ids": [1]}] * items)
    job = make(BATCHERS["simple"], data=data, collator=PaddedCollator())
    reasons = [filtered("short"), filtered("long"), QUARANTINED]
    left_out = {n: reasons[n // step % 3] for n in range(items) if n % 3}
    counts = (np.arange(items) % 3 == 0).astype(np.uint32)
    told = ItemSizes(counts, np.ones(counts.sum(), np.int64), left_out)
    url = str(tmp_path / "sizes.index")
    source = SourceBlocks("main", items, blocks_of(told))
    write_index(url, index_inputs(job.role_sets[0], job.seed), [source])
    index = SizeIndex.open(url)
    index.sources["main"].kept_bytes = 0
    monkeypatch.setattr("penstock.server.planning.report.index_lookup.READ_ITEMS", 7000)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lookup = IndexLookup(index, job.role_sets[0], job.seed, job.name)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert taken < 30 * items
    for number in range(0, items, 101):
        outcome = lookup.outcome(ItemRef("main", number, 0))
        why = left_out.get(number)
        if why is None:
            assert isinstance(outcome, list)
        elif why == QUARANTINED:
            assert isinstance(outcome, Bad)
        else:
            assert outcome == Filtered(why.removeprefix("filtered:"))


def test_an_item_that_fails_stops_the_plan_as_it_stops_the_job(tmp_path: Path) -> None:
    """Where the job does not leave such items out."""
    job = make(BestFitPackingBatcher(32), epochs=1)
    url = index_of(job, tmp_path)

    with pytest.raises(BadItem, match=r"main\[11\] in epoch 0 of job 'mine' fails"):
        planned(job, url)


def test_an_index_of_other_data_is_refused(tmp_path: Path) -> None:
    """By name of what differs."""
    url = index_of(make(BATCHERS["concat"]), tmp_path)

    with pytest.raises(InvalidJob, match="does not fit this job: sources"):
        planned(make(BATCHERS["concat"], data=items(24)), url)


def test_an_index_that_nobody_needs_changes_nothing(tmp_path: Path) -> None:
    """Where the source tells sizes planners ask it, and so does the plan."""
    data = SizedItems([{"input_ids": list(range(length))} for length in LENGTHS])
    job = make(BATCHERS["concat"], epochs=1, data=data, processor=IdentityProcessor())

    assert planned(job, index_of(job, tmp_path)).to_json() == planned(job, None).to_json()


def test_each_set_of_a_joint_job_has_its_own_index(tmp_path: Path) -> None:
    """Both have filters and several samples of an item; one set may go without its index."""
    batchers = {"a": BATCHERS["best_fit_split"], "b": BATCHERS["concat"]}
    sets = {
        name: RoleSet(items(40), None, ChoosyProcessor(), batcher.clone(), PackedCollator())
        for name, batcher in batchers.items()
    }
    job = JointJob(sets, choice="lane", lanes=3, epochs=1, on_item_error="quarantine", name="both")
    places = []
    for roles in job.role_sets:
        measuring = Measuring(job, role_set=roles.number)
        make_index([Making(measuring, str(tmp_path / roles.name))], Here(measuring))
        places.append(f"{roles.name}={tmp_path / roles.name}")

    found = report(job, (3, "option"), [3], (job.lanes,), None, places)

    check_agrees(job, Read(job), found)
    with pytest.raises(InvalidJob, match=r"of set 'b' of job 'both' are not known .* b=URL"):
        report(job, (3, "option"), [3], (), None, places[:1])
    with pytest.raises(InvalidJob, match="does not fit this job"):
        report(job, (3, "option"), [3], (), None, [f"a={tmp_path / 'b'}", places[1]])
