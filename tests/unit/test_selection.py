"""Conditions on columns, subsets and over-sampling: exact counts, and nothing twice in a pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.reading import Blocks
from penstock.server.sources import ItemsSource, ParquetSource
from penstock.server.sources.hf import HfSource
from penstock.server.sources.row_groups import RowGroupReader
from penstock.wire.errors import InvalidJob

LANES = 6


class Blocked(ItemsSource):
    """Items in storage blocks."""

    version = 1

    def __init__(self, items: Sequence[Any], sizes: Sequence[int]) -> None:
        super().__init__(items)
        self.sizes_of_blocks = sizes

    def blocks(self) -> Blocks:
        """Return their sizes."""
        return Blocks(self.sizes_of_blocks)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"n": n, "language": ("en", "de", None)[n % 3], "score": n / count} for n in range(count)
    ]


def sources(count: int, *, blocked: bool) -> dict[str, Any]:
    if not blocked:
        return {"main": ItemsSource(rows(count))}
    sizes = [4] * (count // 4) + ([count % 4] if count % 4 else [])
    return {"main": Blocked(rows(count), sizes)}


def epochs_of(distributor: MapDistributor, count: int) -> list[list[ItemRef]]:
    """Return what each epoch draws, over all lanes, in the order of the draws."""
    found: list[list[ItemRef]] = []
    for epoch in range(count):
        numbers = range(epoch * distributor.items, (epoch + 1) * distributor.items)
        drawn = [distributor.draw(g % LANES, LANES, g // LANES) for g in numbers]
        found.append([item for item in drawn if item is not None])
    return found


def bound(count: int, blocked: bool, **parameters: Any) -> MapDistributor:
    distributor = MapDistributor(**parameters)
    distributor.bind(sources(count, blocked=blocked), 7, None, LANES)
    return distributor


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    ("items", "ratio", "draws"),
    [
        (10, 2.0, 20),
        (10, 1.5, 15),
        (10, 0.5, 5),
        (10, 0.01, 1),
        (10, 1.05, 10),
        (100, 0.29, 29),
        (100, 2.29, 229),
        (7, 3, 21),
        (23, 0.37, 8),
    ],
)
def test_a_ratio_gives_exactly_so_many_draws(
    items: int, ratio: float, draws: int, blocked: bool
) -> None:
    """Each item as often as the whole part says, and some of them once more; no pass has it twice.

    Without `resample` it is the same part in every epoch.
    """
    distributor = bound(items, blocked, sample_ratio=ratio)

    assert distributor.items == draws
    epochs = epochs_of(distributor, 3)
    chosen = []
    for drawn in epochs:
        assert len(drawn) == draws
        counts = Counter(item.index for item in drawn)
        assert set(counts.values()) <= {int(ratio), int(ratio) + 1}
        assert len(counts) == (items if ratio >= 1 else draws)
        chosen.append(counts)
    assert chosen[0] == chosen[1] == chosen[2]
    every = [item for drawn in epochs for item in drawn]
    assert len(set(every)) == len(every), "an item is known by source, number and pass"


def test_more_copies_of_blocks_than_memory_holds_are_refused() -> None:
    """Before the first of them is made: the error says how many there would be."""
    many = {"main": Blocked(rows(1000), [1] * 1000)}

    with pytest.raises(InvalidJob, match=r"makes 2,000,000 copies of storage blocks"):
        MapDistributor(sample_ratio=2000).bind(many, 7, None, LANES)


@pytest.mark.parametrize("blocked", [False, True])
def test_resample_draws_another_part_in_every_epoch(blocked: bool) -> None:
    """So that all items come in time; the count stays what it was."""
    distributor = bound(30, blocked, sample_ratio=0.1, resample=True)

    epochs = epochs_of(distributor, 90)

    assert {len({item.index for item in drawn}) for drawn in epochs} == {3}
    assert {item.index for drawn in epochs for item in drawn} == set(range(30))
    assert all(item.epoch == epoch for epoch, drawn in enumerate(epochs) for item in drawn)


def test_copies_of_an_item_are_spread_over_the_epoch() -> None:
    """A copy of a block is a block of its own: the same item does not follow itself."""
    distributor = bound(400, True, sample_ratio=3, shuffle="blocks", window_blocks=2)

    [drawn] = epochs_of(distributor, 1)
    places: dict[int, list[int]] = {}
    for place, item in enumerate(drawn):
        places.setdefault(item.index, []).append(place)
    apart = [later - one for found in places.values() for one, later in pairwise(found)]
    assert np.median(apart) > 100


def test_every_source_has_its_own_ratio() -> None:
    """By name; one that is not named is drawn once."""
    distributor = MapDistributor(sample_ratio={"b": 0.5, "c": 2})
    parts = {name: ItemsSource(rows(count)) for name, count in (("a", 5), ("b", 8), ("c", 3))}
    distributor.bind(parts, 7, None, LANES)

    [drawn] = epochs_of(distributor, 1)

    assert Counter(item.source for item in drawn) == {"a": 5, "b": 4, "c": 6}


CONDITIONS: list[tuple[dict[str, Any], Any]] = [
    ({"language": "en"}, lambda row: row["language"] == "en"),
    ({"language": ["en", None]}, lambda row: row["language"] != "de"),
    ({"language": {"not": "en"}}, lambda row: row["language"] != "en"),
    ({"language": {"not": None}}, lambda row: row["language"] is not None),
    ({"language": {"above": "de"}}, lambda row: row["language"] == "en"),
    ({"score": {"min": 0.5, "below": 0.75}}, lambda row: 0.5 <= row["score"] < 0.75),
    ({"n": [3, 4, 5, 6], "language": "de"}, lambda row: row["n"] == 4),
    ({"n": {"max": 4.5}}, lambda row: row["n"] <= 4),
]


@pytest.mark.parametrize(
    ("where", "keeps"), CONDITIONS, ids=[json.dumps(where) for where, _ in CONDITIONS]
)
def test_only_what_a_condition_keeps_is_drawn(where: Any, keeps: Any, tmp_path: Path) -> None:
    """Over lists, Parquet and `datasets` alike, though the column is not read into items."""
    every = rows(40)
    pq.write_table(pa.Table.from_pylist(every), tmp_path / "a.parquet", row_group_size=7)
    expected = {n for n, row in enumerate(every) if keeps(row)}
    opened = [
        ItemsSource(every),
        ParquetSource(str(tmp_path / "*.parquet"), columns=["n"]),
        HfSource("parquet", data_files=str(tmp_path / "a.parquet"), columns=["n"]),
    ]
    identities = set()
    for source in opened:
        distributor = MapDistributor(where=where)
        distributor.bind({"main": source}, 7, None, LANES)
        [first, second] = epochs_of(distributor, 2)
        assert {item.index for item in first} == {item.index for item in second} == expected
        assert len(first) == len(second) == len(expected)
        identities.add(json.dumps(distributor.parameters()["where"], sort_keys=True))
    assert len(identities) == 1


def test_a_subset_of_what_is_kept_is_counted_of_that() -> None:
    """The ratio comes after the condition."""
    distributor = bound(30, True, where={"language": "en"}, sample_ratio=1.5)

    [drawn] = epochs_of(distributor, 1)

    assert len(drawn) == 15
    assert {item.index for item in drawn} == set(range(0, 30, 3))


def test_a_second_start_reads_no_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a condition keeps is noted with the hashes of the files, and workers are given it."""
    monkeypatch.setenv("PENSTOCK_HASH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("penstock.server.files.catalog._kept", [])
    monkeypatch.setattr("penstock.server.files.catalog.SETTLED_S", -1.0)
    pq.write_table(pa.Table.from_pylist(rows(40)), tmp_path / "a.parquet", row_group_size=7)
    condition = Condition({"language": "en"})

    first = ParquetSource(str(tmp_path / "a.parquet"), columns=["n"])
    kept = first.matching(condition)
    first.fingerprint()
    second = ParquetSource(str(tmp_path / "a.parquet"), columns=["n"])
    monkeypatch.setattr(RowGroupReader, "alone", None)  # it would fail to read

    assert np.array_equal(second.matching(condition).bits, kept.bits)


def test_every_way_to_write_a_condition_is_one() -> None:
    """In the log id: order and single values do not count."""
    one = Condition({"a": ["x", 1], "b": {"min": 2, "not": 3}})
    other = Condition({"b": {"not": [3], "min": 2}, "a": [1, "x"]})

    assert json.dumps(one.to_json()) == json.dumps(other.to_json())


def test_true_is_not_one_and_text_is_not_a_number() -> None:
    """In Python as in Arrow."""
    values = [True, False, None]
    assert Condition({"a": True}).holds("a", values).tolist() == [True, False, False]
    assert Condition({"a": 1}).holds("a", values).tolist() == [False, False, False]
    arrow = pa.array(values)
    assert Condition({"a": True}).holds("a", arrow).tolist() == [True, False, False]
    assert Condition({"a": 1}).holds("a", arrow).tolist() == [False, False, False]
    assert Condition({"a": {"not": 1}}).holds("a", arrow).tolist() == [True, True, True]
    words = pa.array(["x", "y"]).dictionary_encode()
    assert Condition({"a": "y"}).holds("a", words).tolist() == [False, True]


@pytest.mark.parametrize("length", [0, 1, 8, 4095, 4096, 4097, 20_000])
def test_the_n_th_kept_item_is_found(length: int) -> None:
    """Among any number, as by a list of them."""
    mask = np.random.default_rng(length).random(length) < 0.3
    kept, places = Kept.of(mask), np.flatnonzero(mask)

    assert len(kept) == len(places)
    for number in range(0, len(places), max(1, len(places) // 50)):
        assert kept[number] == places[number]
    for item in range(0, length + 1, max(1, length // 50)):
        assert kept.before(item) == int(mask[:item].sum())
    assert kept.meets(Kept.of(~mask)) is None
    if len(places):
        assert kept.meets(kept) == places[0]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"where": {}}, r"where is \{\}: give columns with what their values must be"),
        ({"where": {"language": []}}, "where.language is an empty list: no item would be left"),
        ({"where": {"language": {"mim": 3}}}, "where.language.mim is not a test: did you mean"),
        ({"where": {"score": {"min": None}}}, "where.score.min is None: give a number or text"),
        (
            {"where": {"score": {"min": "a"}}},
            "which are float: ask for such a value in place of 'a'",
        ),
        ({"where": {"language": "fr"}}, "where keeps none of the 10 items of source 'main'"),
        ({"where": {"lang": "en"}}, "'lang', which source 'main' .* did you mean 'language'"),
        ({"sample_ratio": 0}, "sample_ratio is 0: give a number above 0"),
        ({"sample_ratio": float("nan")}, "sample_ratio is nan"),
        ({"sample_ratio": {"mian": 2}}, "sample_ratio names a source 'mian'"),
        ({"resample": 1}, "resample is 1: write true or false"),
    ],
)
def test_what_cannot_be_is_one_sentence(parameters: dict[str, Any], sentence: str) -> None:
    """With the value, and what to give in its place."""
    with pytest.raises(InvalidJob, match=sentence):
        bound(10, False, **parameters)


def test_a_job_without_any_of_it_is_the_log_that_it_was() -> None:
    """A ratio of 1 chooses nothing; another one, a condition and `resample` are other logs."""

    def log(**parameters: Any) -> bytes:
        job = Job(ItemsSource(rows(10)), MapDistributor(**parameters), batch_size=2, lanes=2)
        return job.log_id

    assert log() == log(sample_ratio=1) == log(sample_ratio={"main": 1.0}, resample=True)
    ways = [{}, {"where": {"n": {"min": 0}}}, {"sample_ratio": 0.5}, {"sample_ratio": 2}]
    ways.append({"sample_ratio": 0.5, "resample": True})
    assert len({log(**way) for way in ways}) == len(ways)
