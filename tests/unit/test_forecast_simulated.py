"""What a plan says of a job that is not planned is what its readers get, to the token."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from penstock.server.commands.plan import report
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.line import Line
from penstock.server.planning.report.other_lanes import with_lanes
from penstock.server.planning.report.plan_report import PlanReport
from penstock.server.planning.report.simulated import simulate
from penstock.server.roles import (
    BestFitPackingBatcher,
    MapDistributor,
    MixtureDistributor,
    PackedCollator,
    PaddedCollator,
    SampleBatcher,
    SimpleBatcher,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch, InvalidJob, PastEnd
from planned_read import Read, SizedItems, tokens_of
from resume.plans import BATCHERS, LENGTHS, ChoosyProcessor, SizedProcessor, raw_items
from truth import Truth

PACKERS = [name for name in BATCHERS if name not in ("simple", "pool")]


def source(count: int = 23) -> SizedItems:
    return SizedItems(
        [
            {"input_ids": [100 * number + k for k in range(LENGTHS[number % len(LENGTHS)])]}
            for number in range(count)
        ]
    )


def make(batcher: SampleBatcher, **options: Any) -> Job:
    given = {"collator": PackedCollator(), "lanes": 3, "seed": 5, **options}
    data = given.pop("data", None) or source()
    distributor = given.pop("distributor", None) or MapDistributor(shuffle="full")
    return Job(data, distributor, None, batcher.clone(), **given)


def planned(job: Job, batches_per_step: int = 4, epochs: int | None = None) -> PlanReport:
    return report(job, (batches_per_step, "option"), [2], (), epochs)


def check_agrees(job: Job, read: Read, epochs: int | None = None) -> PlanReport:
    """Check that a plan says what was read; return it."""
    found = planned(job, epochs=epochs)

    assert (found.batches, found.rows, found.samples) == (read.batches, read.rows, read.samples)
    assert found.packing is not None
    assert found.packing.by_collator
    assert found.packing.tokens == read.counts["tokens"]
    assert found.packing.padding == read.counts["padding_tokens"]
    assert {name: each[0] for name, each in found.sources.items()} == dict(read.sources)
    return found


@pytest.mark.parametrize("batcher", PACKERS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_finite_job_gives_what_its_plan_says(batcher: str, lanes: int) -> None:
    """Every packer, to the end of two epochs: batches, tokens, padding and what was left out."""
    job = make(BATCHERS[batcher], lanes=lanes, epochs=2)
    found = check_agrees(job, read := Read(job))

    assert found.is_all
    assert {name: n for name, n in found.counts.items() if n} == {
        name: n for name, n in read.planner.items() if n
    }
    assert found.held == 0
    assert found.items == 2 * len(LENGTHS)


@pytest.mark.parametrize("batcher", PACKERS)
def test_an_epoch_of_an_endless_job_is_what_its_draws_finish(batcher: str) -> None:
    """Batches whose last sample was drawn in the epoch; what is held is counted beside them."""
    job = make(BATCHERS[batcher], lanes=2)
    found = check_agrees(job, Read(job, 1), 1)

    assert not found.is_all
    assert found.items == len(LENGTHS)


@pytest.mark.parametrize("epochs", [1, None])
def test_a_job_without_a_batch_is_refused_as_a_node_refuses_it(epochs: int | None) -> None:
    """Every sample is too long: a table of zeros would look like a plan."""
    long = SizedItems([{"input_ids": list(range(40))} for _ in range(5)])
    job = make(BestFitPackingBatcher(32, overlong="drop"), data=long, epochs=epochs)

    with pytest.raises(InvalidJob, match=r"gives no batch: .* dropped:overlong: 5; loosen"):
        planned(job)


def test_an_epoch_that_fills_no_batch_yet_is_not_refused() -> None:
    """What its batchers hold comes in the next one."""
    found = planned(make(BestFitPackingBatcher(32), data=source(4)))

    assert (found.batches, found.held) == (0, 4)


@pytest.mark.parametrize("overlong", ["split", "truncate", "drop"])
def test_all_that_was_drawn_is_in_a_batch_or_counted(overlong: str) -> None:
    """Delivered, dropped or held: in an endless job's epoch every token has its place."""
    job = make(BestFitPackingBatcher(32, pool_size=6, overlong=overlong))
    found = planned(job)

    assert found.packing is not None
    assert found.packing.tokens == Read(job, 1).counts["tokens"]
    whole = [length for length in LENGTHS if length <= 32 or overlong != "drop"]
    if overlong == "truncate":
        assert found.counts["batcher:overlong_truncated"] == sum(n > 32 for n in LENGTHS)
    if overlong != "split":  # pieces are samples of their own
        assert found.samples + found.held == len(whole)
        assert found.counts["dropped:overlong"] == len(LENGTHS) - len(whole)


@pytest.mark.parametrize(
    "collator",
    [
        PackedCollator(pad_to=40),
        PackedCollator(document_multiple=8),
        PackedCollator(pad_to=128, document_multiple=4, layout="flash"),
        PaddedCollator(),
        PaddedCollator(pad_to_multiple_of=16),
        PaddedCollator(pad_to=20, truncate=True),
    ],
    ids=["wide", "multiple", "both", "padded", "padded multiple", "cut"],
)
@pytest.mark.parametrize("batcher", ["best_fit_split", "simple"])
def test_padding_is_what_the_collator_counts(batcher: str, collator: Any) -> None:
    """Whatever it pads to, also where the batcher looks at no sizes."""
    if batcher == "simple" and collator.parameters().get("pad_to") == 40:
        collator = PackedCollator(pad_to=70)
    job = make(BATCHERS[batcher], collator=collator, epochs=1)

    check_agrees(job, Read(job))


def test_positions_of_a_finite_job_are_read_in_the_order_of_the_plan() -> None:
    """The columns of batches stand in the order of positions, which skews are computed from."""
    job = make(BATCHERS["best_fit_split"], lanes=4, epochs=1)
    loader, position, tokens = Truth(job), 0, []
    while True:
        try:
            computed = loader.batch(position)
        except PastEnd:
            break
        tokens.append(tokens_of(computed.header))
        position += 1

    found = simulate(job)

    assert found.costs["tokens"].tolist() == tokens
    assert found.positions == len(tokens)


def test_positions_of_an_endless_job_are_those_below_the_first_gap() -> None:
    """Lanes end an epoch at different offsets: beyond the first that does, places are not known."""
    job = make(BATCHERS["best_fit_split"], data=source(120), lanes=4)
    loader, found = Truth(job), simulate(job)
    tokens = [tokens_of(loader.batch(position).header) for position in range(found.positions)]

    assert 0 < found.positions <= len(found.costs["tokens"])
    assert found.costs["tokens"].tolist() == tokens


def test_several_sources_and_mixtures_are_counted_each() -> None:
    """Tokens by source, of a mixture by tokens too, whose draws depend on sizes."""
    parts = {"long": source(30), "short": SizedItems([{"input_ids": [1, 2]}] * 40)}
    for distributor in (
        MapDistributor(),
        MixtureDistributor({"long": 1, "short": 1}, weights_by="tokens"),
    ):
        job = make(BATCHERS["best_fit_split"], data=parts, distributor=distributor, lanes=2)
        found = check_agrees(job, Read(job, 1), 1)

        assert sum(tokens for _, tokens in found.sources.values()) == found.packing.tokens  # type: ignore[union-attr]


def test_a_joint_job_has_batches_of_all_its_sets() -> None:
    """Each as its own collator pads them."""
    job = JointJob(
        {
            "rows": RoleSet(source(40), batcher=BATCHERS["best_fit_split"].clone()),
            "few": RoleSet(source(9), collator=PaddedCollator(), batch_size=2, ratio=2),
        },
        choice="batch",
        lanes=2,
        epochs=1,
    )
    job.role_sets[0].collator = PackedCollator()
    read = Read(job)
    found = planned(job)

    assert (found.batches, found.samples) == (read.batches, read.samples)
    assert found.packing is not None
    assert found.packing.tokens == read.counts["tokens"]
    assert found.packing.padding == read.counts["padding_tokens"]


def test_nothing_is_read() -> None:
    """A plan asks the source for sizes alone."""
    data = source()
    planned(make(BATCHERS["best_fit_split"], data=data, epochs=1))

    assert data.fetched == 0


def test_another_number_of_lanes_is_planned_as_that_job_is() -> None:
    """The table's rows are what jobs with so many lanes say of themselves."""
    job = make(BATCHERS["best_fit_decreasing"], epochs=1, lanes=2)
    found = report(job, (2, "option"), [2], (1, 2, 5))

    for row in found.other_lanes:
        other = planned(make(BATCHERS["best_fit_decreasing"], epochs=1, lanes=row.lanes))
        assert (row.batches, row.packing) == (other.batches, other.packing)
    assert [row.lanes for row in found.other_lanes] == [1, 2, 5]
    assert planned(job).batches == found.batches, "the job itself stays what it was"


def test_lanes_of_a_mixture_leave_the_job_as_it_is() -> None:
    """Its parts are bound to the lanes of one job."""
    parts = {"long": source(30), "short": source(20)}
    nested = MixtureDistributor(
        {"a": {"weight": 2, "distributor": MapDistributor(source="long")}, "short": 1}
    )
    job = make(BATCHERS["concat"], data=parts, distributor=nested, lanes=3)
    before = job.log_id

    other = with_lanes(job, 5)

    assert other.lanes == 5
    assert simulate(other).tally.batches > 0
    assert make(BATCHERS["concat"], data=parts, distributor=nested, lanes=3).log_id == before


def test_batches_that_nobody_can_make_are_refused() -> None:
    """A row that is longer than the collator's: a reader would meet it, too."""
    job = make(BATCHERS["best_fit_split"], collator=PackedCollator(pad_to=20), epochs=1)

    with pytest.raises(BadBatch, match=r"lane \d, offset \d+: a row of 32 tokens does not fit "):
        planned(job)


def test_more_documents_than_there_is_room_for_are_refused() -> None:
    """The batch is named that needs most, as whoever makes it is told."""
    collator = PackedCollator(max_documents=3)
    job = make(BATCHERS["best_fit_split"], collator=collator, epochs=1)

    with pytest.raises(BadBatch) as caught:
        planned(job)

    said = re.match(r"lane (\d), offset (\d+): there are (\d+) documents", caught.value.message)
    assert said is not None
    lane, offset, needed = map(int, said.groups())
    line = Line(job, lane)
    plans = [line.advance() for _ in range(offset + 1)]
    with pytest.raises(BadBatch, match=f"there are {needed} documents"):
        line.make(plans[-1])
    assert planned(
        make(BATCHERS["best_fit_split"], collator=PackedCollator(max_documents=needed), epochs=1)
    ).batches


def test_without_sizes_batches_are_counted_and_no_tokens() -> None:
    """Where the batcher counts samples, and nothing tells their sizes."""
    data = ItemsSource([{"label": number} for number in range(23)])
    job = make(SimpleBatcher(4), data=data, collator=None, epochs=1, lanes=2)
    found = planned(job)

    assert found.batches == Read(job).batches
    assert found.packing is None
    assert list(found.ranks[0].skews) == ["samples"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"processor": ChoosyProcessor()}, "whether and how many samples an item gives"),
        ({"processor": SizedProcessor()}, r"SizedProcessor.size\(\) looks at whole items"),
        ({}, "neither the source nor IdentityProcessor tells them"),
    ],
    ids=["filter", "whole items", "nobody"],
)
def test_sizes_that_are_not_known_are_a_reason_to_make_an_index(
    options: dict[str, Any], said: str
) -> None:
    """One sentence, with the command that makes one."""
    job = Job(
        ItemsSource(raw_items()),
        batcher=BATCHERS["concat"].clone(),
        lanes=2,
        name="mine",
        **options,
    )

    with pytest.raises(InvalidJob, match=said) as caught:
        planned(job)
    assert "penstockd index FILE mine --output" in caught.value.message


def test_a_batcher_that_looks_into_samples_cannot_be_planned() -> None:
    """Its sentence names it."""
    with pytest.raises(InvalidJob, match="PoolPackingBatcher of job"):
        planned(make(BATCHERS["pool"]))


def test_skew_is_the_largest_above_the_mean() -> None:
    """Reckoned again without arrays, for each micro index and for steps."""
    job = make(BATCHERS["best_fit_split"], lanes=4, epochs=3)
    found = report(job, (4, "option"), [2, 4])
    tokens = simulate(job).costs["tokens"].tolist()
    for ranks in found.ranks:
        world, micro, whole = ranks.world_size, [], []
        for start in range(0, len(tokens) // 4 * 4, 4):
            step = tokens[start : start + 4]
            for first in range(0, 4, world):
                met = step[first : first + world]
                micro.append(max(met) * world / sum(met) - 1)
            sums = [sum(step[rank::world]) for rank in range(world)]
            whole.append(max(sums) * world / sum(sums) - 1)
        skew = ranks.skews["tokens"]
        assert skew is not None
        for values, said in ((micro, skew.micro), (whole, skew.step)):
            ordered = sorted(values)
            assert said.mean == pytest.approx(np.mean(values))
            assert said.most == pytest.approx(ordered[-1])
            assert said.p95 == pytest.approx(ordered[-(-len(values) * 95 // 100) - 1])
