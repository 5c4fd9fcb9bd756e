"""Mixtures: shares at every draw, in every lane and over lanes; ends, errors, seeking, reading."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.server.commands.mixture_shares import part_rows, part_shares
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    BestFitPackingBatcher,
    Blocks,
    DataDistributor,
    IndexedSource,
    LaneDraws,
    MapDistributor,
    MixtureDistributor,
    PackedCollator,
    RankPartitionedDistributor,
    SampleBatcher,
    SequentialPackingBatcher,
    SimpleBatcher,
    Target,
)
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob, SourceExhausted

SOURCES = {"a": 11, "b": 50, "c": 7, "d": 23}


class Blocked(IndexedSource):
    """Numbers in storage blocks of 500."""

    version = 1

    def __init__(self, count: int, block_bytes: int) -> None:
        self.count, self.block_bytes = count, block_bytes

    def __len__(self) -> int:
        return 500 * self.count

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers."""
        return list(indices)

    def blocks(self) -> Blocks:
        """Return the blocks."""
        nbytes = [self.block_bytes] * self.count
        return Blocks([500] * self.count, nbytes, nbytes)


def bind(
    distributor: DataDistributor,
    lanes: int = 6,
    epochs: int | None = None,
    sources: dict[str, int] | None = None,
) -> Any:
    made = {name: ItemsSource(list(range(n))) for name, n in (sources or SOURCES).items()}
    distributor.bind(made, 5, epochs, lanes)
    return distributor


def size_of(item: ItemRef) -> int:
    """Return a size: unlike for items of a source, and for sources."""
    return {"a": 40, "b": 3, "c": 11, "d": 1}[item.source] + 13 * (item.index % 4)


def step(draws: LaneDraws) -> ItemRef | None:
    item = draws.next()
    if item is not None:
        draws.took(item, size_of(item))
    return item


def take(draws: LaneDraws, count: int) -> list[ItemRef]:
    found = [step(draws) for _ in range(count)]
    return [item for item in found if item is not None]


NESTED = {
    "a": 5,
    "b": {"weight": 3},
    "rest": {
        "weight": 2,
        "distributor": MixtureDistributor({"c": 1, "d": 3}),
    },
}
SHARES = {"a": 0.5, "b": 0.3, "c": 0.05, "d": 0.15}


# --- shares ---


@pytest.mark.parametrize("weights_by", ["items", "tokens"])
def test_every_lane_holds_every_share_at_every_draw(weights_by: str) -> None:
    """To within two items, or two of the largest documents; shares of nested parts multiply."""
    inner = MixtureDistributor({"c": 1, "d": 3}, weights_by=weights_by)
    parts = {**NESTED, "rest": {"weight": 2, "distributor": inner}}
    mixture = bind(MixtureDistributor(parts, weights_by=weights_by), lanes=40)

    for lane in (0, 1, 17, 39):
        draws = mixture.open(lane, 40)
        given: Counter[str] = Counter()
        largest = 1
        for _ in range(300):
            item = step(draws)
            assert item is not None
            size = size_of(item) if weights_by == "tokens" else 1
            given[item.source] += size
            largest = max(largest, size)
            total = sum(given.values())
            for name, share in SHARES.items():
                assert abs(given[name] - share * total) <= 2 * largest


def test_batches_of_lanes_that_follow_each_other_hold_the_shares() -> None:
    """A part of one in twenty is not in every batch of a step at once, and in none of the next."""
    mixture = bind(MixtureDistributor(NESTED), lanes=48)
    lanes = [take(mixture.open(lane, 48), 20) for lane in range(48)]

    for row in range(20):
        for first in (0, 7, 24):
            step_of = Counter(lane[row].source for lane in lanes[first : first + 20])
            for name, share in SHARES.items():
                assert abs(step_of[name] - 20 * share) < 3


def test_lanes_stay_in_one_epoch_of_each_source() -> None:
    """What one lane draws of a source, another one has not: their epochs do not drift apart."""
    mixture = bind(MixtureDistributor({"a": 1, "b": 2, "c": 1}), lanes=6)
    lanes = [mixture.open(lane, 6) for lane in range(6)]

    seen: Counter[ItemRef] = Counter()
    for _ in range(200):
        epochs: dict[str, list[int]] = {}
        for lane in lanes:
            item = step(lane)
            assert item is not None
            seen[item] += 1
            epochs.setdefault(item.source, []).append(item.epoch)
        for name, found in epochs.items():
            draws_of_epoch = SOURCES[name] / 6
            assert max(found) - min(found) <= 1 + 2 / draws_of_epoch
    assert max(seen.values()) == 1


def test_a_temperature_brings_parts_nearer_to_each_other() -> None:
    """Without weights each part weighs as many items as it has, and so it does by default."""
    assert bind(MixtureDistributor()).rotation.weights == (11, 50, 7, 23)
    square = bind(MixtureDistributor({"a": None, "c": None}, temperature=2))
    assert square.rotation.weights[0] / square.rotation.weights[1] == pytest.approx((11 / 7) ** 0.5)
    chosen = MapDistributor(source="b", sample_ratio=0.1)
    sized = bind(MixtureDistributor({"a": None, "b": {"distributor": chosen}}))
    assert sized.rotation.weights == (11, 5), "what is drawn of it counts"


def test_targets_and_what_was_given_have_the_same_names() -> None:
    """`part/inner` for the parts of parts; targets are shares of the whole."""
    mixture = bind(MixtureDistributor(NESTED, weights_by="tokens"))
    draws = mixture.open(2, 6)
    drawn = take(draws, 100)

    targets, counts = mixture.targets(), draws.counts()

    assert targets == [
        Target("a", "tokens", 0.5),
        Target("b", "tokens", 0.3),
        Target("rest", "tokens", 0.2),
        Target("rest/c", "items", 0.05),
        Target("rest/d", "items", pytest.approx(0.15)),
    ]
    assert set(counts) == {f"{kind}:{t.part}" for kind in ("items", "tokens") for t in targets}
    assert counts["items:rest/d"] == sum(item.source == "d" for item in drawn)
    assert counts["tokens:a"] == sum(size_of(item) for item in drawn if item.source == "a")
    assert counts["items:a"] + counts["items:b"] + counts["items:rest"] == 100


def test_one_corpus_is_split_by_a_column() -> None:
    """Parts of one source, by conditions that cannot both hold."""
    items = [{"language": ("en", "de", "fr")[n % 3]} for n in range(30)]
    mixture = MixtureDistributor(
        {
            "english": {"weight": 1, "distributor": MapDistributor(where={"language": "en"})},
            "other": {
                "weight": 3,
                "distributor": MapDistributor(where={"language": {"not": "en"}}),
            },
        }
    )
    mixture.bind({"main": ItemsSource(items)}, 5, None, 2)

    drawn = [item for lane in range(2) for item in take_any(mixture.open(lane, 2), 40)]

    assert Counter(item.index % 3 == 0 for item in drawn) == {True: 20, False: 60}
    assert len(set(drawn)) == 80


def take_any(draws: LaneDraws, count: int) -> list[ItemRef]:
    found = [draws.next() for _ in range(count)]
    return [item for item in found if item is not None]


# --- ends ---


@pytest.mark.parametrize("weights_by", ["items", "tokens"])
def test_a_part_leaves_after_its_max_epochs_and_the_others_go_on(weights_by: str) -> None:
    """By their own shares; a part without a limit begins again."""
    parts = {"a": {"weight": 2, "max_epochs": 2}, "b": 1, "c": 1}
    mixture = bind(MixtureDistributor(parts, weights_by), lanes=1)
    draws = mixture.open(0, 1)

    drawn = take(draws, 300)

    assert Counter(item.index for item in drawn if item.source == "a") == dict.fromkeys(
        range(11), 2
    )
    rest = [item for item in drawn[150:] if item.source != "a"]
    assert len(rest) == 150
    weighed = Counter[str]()
    for item in rest:
        weighed[item.source] += size_of(item) if weights_by == "tokens" else 1
    assert weighed["b"] / weighed["c"] == pytest.approx(1, rel=0.05)


def test_with_epochs_everything_is_drawn_so_often() -> None:
    """And a part with max_epochs as often as that; then the lane is over, and knows it before."""
    parts = {"a": {"weight": 1, "max_epochs": 3}, "b": 1, "rest": NESTED["rest"]}
    mixture = bind(MixtureDistributor(parts), lanes=4, epochs=2)

    drawn = [item for lane in range(4) for item in take(mixture.open(lane, 4), 300)]

    times = {"a": 3, "b": 2, "c": 2, "d": 2}
    expected = [
        (s, n) for s, count in SOURCES.items() for n in range(count) for _ in range(times[s])
    ]
    assert sorted((item.source, item.index) for item in drawn) == sorted(expected)
    assert sum(mixture.draws(lane, 4) for lane in range(4)) == len(drawn)


@pytest.mark.parametrize("lanes", [1, 4, 7])
def test_stop_ends_a_lane_with_its_first_part(lanes: int) -> None:
    """At the draw that arithmetic names, nested stops too; with tokens nobody knows it before."""
    nested = MixtureDistributor({"c": 2, "d": 1}, exhausted="stop")
    parts = {"a": 1, "b": 2, "rest": {"weight": 1, "distributor": nested}}
    mixture = bind(MixtureDistributor(parts, exhausted="stop"), lanes=lanes, epochs=3)

    for lane in range(lanes):
        count = mixture.draws(lane, lanes)
        draws = mixture.open(lane, lanes)
        assert len(take(draws, count)) == count
        assert draws.next() is draws.next() is None
    by_tokens = bind(MixtureDistributor(parts, "tokens", exhausted="stop"), epochs=1)
    assert by_tokens.draws(0, 6) is None


def test_error_names_the_part_that_is_used_up() -> None:
    """After its max_epochs, else after one; asked again it is the same error."""
    mixture = bind(
        MixtureDistributor({"a": {"weight": 1, "max_epochs": 2}, "b": 1}, exhausted="error")
    )
    draws = mixture.open(0, 6)
    take(draws, 8)

    for _ in range(2):
        with pytest.raises(
            SourceExhausted, match="part 'a' of the mixture is used up after 2 epoc"
        ):
            draws.next()


# --- going elsewhere ---


def test_seeking_leads_where_drawing_leads() -> None:
    """To the same state and the same draws, in every lane, over several periods."""
    mixture = bind(MixtureDistributor(NESTED))
    for lane in range(6):
        draws = mixture.open(lane, 6)
        assert draws.can_seek()
        for k in range(50):
            sought = mixture.open(lane, 6)
            sought.seek(k)
            assert json.dumps(sought.state()) == json.dumps(draws.state())
            assert take_any(sought, 3) == mixture_draws(mixture, lane)[k : k + 3]
            draws.next()


def mixture_draws(mixture: MixtureDistributor, lane: int) -> list[ItemRef]:
    return take_any(mixture.open(lane, 6), 60)


def test_a_far_position_is_reached_by_arithmetic_where_items_are_counted() -> None:
    """A job with `batch_size` goes a million batches on at once; its snapshots count no sizes."""
    items = [{"input_ids": [n] * (1 + n % 5)} for n in range(40)]
    job = Job(
        {"a": ItemsSource(items), "b": ItemsSource(items[:7])},
        MixtureDistributor({"a": 0.31, "b": 0.69}),
        batch_size=1,
        collator=PackedCollator(),
        lanes=3,
    )
    near, far = Line(job, 1), Line(job, 1)
    for _ in range(30):
        near.advance()
    far.skip_to(30)

    assert near.planner.snapshot() == far.planner.snapshot()
    far.skip_to(1_000_000)
    assert far.advance().offset == 1_000_000
    counts = far.counters()
    assert counts["items:a"] == pytest.approx(310_000, abs=2)


@pytest.mark.parametrize(
    "batcher", [SimpleBatcher(4), SequentialPackingBatcher(max_samples_per_batch=4)]
)
def test_weights_by_tokens_are_kept_where_the_batcher_counts_none(
    batcher: SampleBatcher,
) -> None:
    """Counting samples needs no sizes; the mixture does, so they are asked for."""
    items = [{"input_ids": [n] * (1 + n % 5)} for n in range(40)]
    job = Job(
        {"a": ItemsSource(items), "b": ItemsSource([{"input_ids": [1] * 60}])},
        MixtureDistributor({"a": 1, "b": 1}, weights_by="tokens"),
        batcher=batcher,
        collator=PackedCollator(),
        lanes=2,
    )
    line = Line(job, 1)
    for _ in range(50):
        line.advance()

    counts = line.counters()
    assert counts["items:a"] > 10 * counts["items:b"]
    assert counts["tokens:a"] / counts["tokens:b"] == pytest.approx(1, rel=0.15)


def test_check_says_what_parts_shall_have_and_had() -> None:
    """In what they are weighed by; of parts of parts where both are weighed alike."""
    items = [{"input_ids": [n] * (1 + n % 5)} for n in range(40)]
    inner = MixtureDistributor({"b": 1, "c": 3}, "tokens")
    other = MixtureDistributor({"d": 1, "e": 1})
    job = Job(
        {name: ItemsSource(items) for name in "abcde"},
        MixtureDistributor(
            {
                "a": 2,
                "rest": {"weight": 1, "distributor": inner},
                "others": {"weight": 1, "distributor": other},
            },
            "tokens",
        ),
        batch_size=4,
        collator=PackedCollator(),
        lanes=2,
    )
    lines = [Line(job, lane) for lane in range(2)]
    for line in lines:
        line.skip_to(40)

    shares = part_shares(job, lines)

    assert [share.part for share in shares] == ["a", "rest", "rest/b", "rest/c", "others"]
    assert [share.target for share in shares] == [0.5, 0.25, 0.0625, 0.1875, 0.25]
    for share in shares:
        assert share.actual == pytest.approx(share.target, abs=0.02)
    assert [name for name, _ in part_rows(shares)][1] == "part rest"
    assert "of the tokens, to be 0.2500 (" in dict(part_rows(shares))["part others"]


# --- lanes of their own ---


def test_whole_lanes_go_to_parts_and_any_run_of_lanes_holds_the_shares() -> None:
    """Each lane draws from one part, which deals its items to its own lanes."""
    parts = {"a": 5, "b": 2, "off": 0, "c": 1}
    distributor = bind(RankPartitionedDistributor(parts), lanes=48)

    of = [
        next(iter({item.source for item in take(distributor.open(n, 48), 20)})) for n in range(48)
    ]
    assert Counter(of) == {"a": 30, "b": 12, "c": 6}
    for first in range(48 - 8):
        held = Counter(of[first : first + 8])
        assert abs(held["a"] - 5) < 2
        assert abs(held["b"] - 2) < 2
        assert abs(held["c"] - 1) < 2
    assert distributor.targets()[0] == Target("a", "lanes", 0.625)
    first_epoch = Counter(
        item.index
        for lane, name in enumerate(of)
        if name == "b"
        for item in take(distributor.open(lane, 48), 6)
        if item.epoch == 0
    )
    assert first_epoch == dict.fromkeys(range(50), 1)


# --- reading ---


@pytest.mark.parametrize("kind", [MixtureDistributor, RankPartitionedDistributor])
def test_parts_that_read_blocks_share_the_memory_of_one(kind: Any) -> None:
    """And the lanes of a reading group are the same in every part that a lane draws from."""
    sources = {name: Blocked(400, 8 << 20) for name in "abcd"}
    one = MapDistributor()
    one.bind({"a": sources["a"]}, 5, None, 48)
    alone = one.reading()
    assert alone is not None
    distributor = kind({"a": 1, "b": 1, "c": 1, "d": 1})
    job = Job(sources, distributor, batch_size=4, lanes=48)

    readings = job.readings()

    assert [reading.sources for reading in readings] == [("a",), ("b",), ("c",), ("d",)]
    taken = sum(reading.held * reading.block_bytes for reading in readings)
    assert taken <= 1.3 * max(alone.held * alone.block_bytes, 2 << 30)
    assert sum(len(lanes) for lanes in job.lanes_together()) == 48
    assert len(job.lanes_together()) >= 16
    for lanes in job.lanes_together():
        for reading in readings:
            assert len({reading.group(lane) for lane in lanes}) == 1


def test_small_parts_are_shuffled_whole() -> None:
    """As small sources are that are drawn from alone."""
    sources = {"a": Blocked(4, 1 << 20), "b": Blocked(3, 1 << 20)}
    job = Job(sources, MixtureDistributor({"a": 1, "b": 1}), batch_size=4, lanes=12)

    assert job.reading_groups == [None] * 12
    assert [reading.held for reading in job.readings()] == [4, 3]


# --- identity and errors ---


def log_id(distributor: DataDistributor, **of_job: Any) -> bytes:
    sources = {name: ItemsSource(list(range(n))) for name, n in SOURCES.items()}
    return Job(sources, distributor, batch_size=1, lanes=6, **of_job).log_id


def test_what_draws_otherwise_is_another_log() -> None:
    """Weights count as proportions; the order of the parts decides between two alike."""
    assert log_id(MixtureDistributor({"a": 0.5, "b": 1.5})) == log_id(
        MixtureDistributor({"a": {"weight": 1}, "b": 3, "c": 0})
    )
    ways = [
        MixtureDistributor({"a": 1, "b": 1}),
        MixtureDistributor({"b": 1, "a": 1}),
        MixtureDistributor({"a": 1, "b": 2}),
        MixtureDistributor({"a": 1, "b": 1}, "tokens"),
        MixtureDistributor({"a": 1, "b": {"weight": 1, "max_epochs": 2}}),
        MixtureDistributor({"a": 1, "b": {"distributor": MapDistributor("none"), "weight": 1}}),
        RankPartitionedDistributor({"a": 1, "b": 1}),
    ]
    assert len({log_id(way) for way in ways[:3]} | {log_id(way) for way in ways[4:]}) == 6


@pytest.mark.parametrize(
    ("distributor", "sentence"),
    [
        (lambda: MixtureDistributor({}), r"parts is \{\}: give weights by name"),
        (lambda: MixtureDistributor({"a": -1}), "the weight of part 'a' is -1: give a number"),
        (lambda: MixtureDistributor({"a": "x"}), "the weight of part 'a' is 'x'"),
        (lambda: MixtureDistributor({"a": 0}), "no part has a weight above 0"),
        (lambda: MixtureDistributor({"a": 1, "b": None}), "part 'b' has no weight, and others"),
        (lambda: MixtureDistributor({"a": {"wight": 1}}), "'wight' is not a key of part 'a'"),
        (lambda: MixtureDistributor({"x": 1}), "part 'x' has no distributor and is not the name"),
        (
            lambda: MixtureDistributor({"a": {"weight": 1, "max_epochs": 0}}),
            "give the max_epochs of part 'a' as a whole number of at least 1",
        ),
        (lambda: MixtureDistributor({"a": 1}, "token"), "weights_by is 'token'"),
        (lambda: MixtureDistributor({"a": 1}, temperature=0), "temperature is 0: give a number"),
        (lambda: MixtureDistributor({"a": 1}, exhausted="stop"), "exhausted: stop ends a lane"),
        (
            lambda: MixtureDistributor({"a": {"weight": 1, "max_epochs": 2}}),
            "every part has max_epochs, so lanes end, and the job has no epochs",
        ),
        (
            lambda: MixtureDistributor(
                {"a": 1, "x": {"weight": 1, "distributor": MapDistributor(source="a")}}
            ),
            "parts 'a' and 'x' both draw item 0 of source 'a': give each a source of its own",
        ),
        (
            lambda: MixtureDistributor(
                {"a": 1, "x": {"weight": 1, "distributor": MapDistributor(source="zzz")}}
            ),
            "part 'x': the distributor draws from a source 'zzz'",
        ),
        (
            lambda: MixtureDistributor({"a": {"weight": 1, "distributor": "map"}}),
            "the distributor of part 'a' is 'map': give a DataDistributor",
        ),
        (lambda: RankPartitionedDistributor({"a": {"max_epochs": 1}}), "is not a key of part 'a'"),
        (lambda: RankPartitionedDistributor([1]), r"parts is \[1\]: give weights by name"),
    ],
)
def test_what_cannot_be_is_one_sentence(distributor: Any, sentence: str) -> None:
    """With the value, the part, and what to give."""
    with pytest.raises(InvalidJob, match=sentence):
        bind(distributor())


def test_more_parts_than_lanes_cannot_have_their_own() -> None:
    """A mixture can."""
    with pytest.raises(InvalidJob, match="4 parts need a lane each, and the job has 3"):
        bind(RankPartitionedDistributor(), lanes=3)


def test_a_failing_job_does_not_end() -> None:
    """`exhausted: error` with epochs would count to a failure."""
    with pytest.raises(InvalidJob, match="exhausted: error lets the job fail"):
        bind(MixtureDistributor({"a": 1}, exhausted="error"), epochs=1)


def test_packed_rows_hold_the_shares_of_tokens() -> None:
    """What the batcher counts is what is weighed: pieces of split documents and all."""
    job = Job(
        {
            "long": ItemsSource([{"input_ids": [1] * (50 + n)} for n in range(20)]),
            "short": ItemsSource([{"input_ids": [2] * (1 + n % 9)} for n in range(90)]),
        },
        MixtureDistributor({"long": 1, "short": 1}, weights_by="tokens"),
        batcher=BestFitPackingBatcher(64, pool_size=8),
        collator=PackedCollator(pad_to=64),
        lanes=2,
    )
    line = Line(job, 0)
    tokens: Counter[str] = Counter()
    for _ in range(120):
        for row in line.advance().rows:
            for ref in row:
                tokens[ref.item.source] += ref.size

    assert tokens["long"] / tokens["short"] == pytest.approx(1, rel=0.05)
