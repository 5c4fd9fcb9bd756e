"""A job in Python: what holds together, what does not, how many batches there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.core.canonical import canonical
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.node.workers.count import ensure_counted
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.sample_planner import SamplePlanner
from penstock.server.roles import (
    BestFitPackingBatcher,
    DataDistributor,
    DefaultBatchCollator,
    IdentityProcessor,
    PackedCollator,
    RawItemProcessor,
    SimpleBatcher,
    Source,
)
from penstock.server.roles.processors import FunctionProcessor, TokenizeProcessor
from penstock.server.sources import HfSource, ItemsSource, ParquetSource
from penstock.wire.errors import Counting, InvalidJob, LogDiverged


def items(count: int) -> ItemsSource:
    return ItemsSource(items=[{"x": number} for number in range(count)])


class Weighted(RawItemProcessor):
    """A user's processor with a parameter that is no plain value."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def process(self, raw: Any, context: Any) -> Any:
        """Return the item as it is."""
        return raw


class Renamed(IdentityProcessor):
    """A user's change of a built-in: its samples have other keys than the items."""

    def process(self, raw: Any, context: Any) -> Any:
        """Return the item under another name."""
        return {"ids": raw["x"]}


def write_words(folder: Path) -> str:
    from tokenizers import Tokenizer, models

    path = folder / "tokenizer.json"
    Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).save(str(path))
    return str(path)


@pytest.mark.parametrize("source", ["parquet", "hf", "items"])
def test_what_the_schema_knows_is_refused_before_any_item_is_read(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong column, a column of numbers, a length of something that samples do not have."""
    rows = [{"text": "a", "n": 1, "ids": [1, 2]}]
    made: Source = ItemsSource(rows)
    if source != "items":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        made = ParquetSource(str(tmp_path / "a.parquet"))
    if source == "hf":
        import datasets

        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        made = HfSource("parquet", data_files=str(tmp_path / "a.parquet"))
    words = write_words(tmp_path)

    def refused(**roles: Any) -> InvalidJob | None:
        batcher = roles.pop("batcher", SimpleBatcher(1))
        try:
            Job(made, batcher=batcher, collator=DefaultBatchCollator(), **roles)
        except InvalidJob as error:
            return error
        return None

    wrong = refused(processor=TokenizeProcessor(words, "txt"))
    assert wrong is not None
    assert "processor.column is 'txt', and the items have 'text', 'n', 'ids'" in str(wrong)
    assert wrong.fields["key"] == "processor.column"
    assert refused(processor=TokenizeProcessor(words, "text")) is None
    numbers = refused(processor=TokenizeProcessor(words, "ids"))
    if source == "items":  # a list has no schema: the first item tells
        assert numbers is None
    else:
        assert re.search("column 'ids' holds list<.*int64>, and tokenize needs", str(numbers))
    assert refused(batcher=BestFitPackingBatcher(8, length_key="ids")) is None
    size = refused(batcher=BestFitPackingBatcher(8, length_key="idz"))
    assert size is not None
    assert "length_key is 'idz', but the processor's samples have 'text', 'n', 'ids'" in str(size)
    tokens = refused(
        processor=TokenizeProcessor(words, "text"),
        batcher=BestFitPackingBatcher(8, length_key="ids"),
    )
    assert "the processor's samples have 'input_ids'" in str(tokens)


def test_what_a_users_processor_makes_is_not_guessed() -> None:
    """A subclass of a built-in may make samples of other keys."""
    Job(
        items(3),
        processor=Renamed(),
        batcher=BestFitPackingBatcher(8, length_key="ids"),
        collator=DefaultBatchCollator(),
    )


@pytest.mark.parametrize(
    ("arguments", "key", "says"),
    [
        ({}, "batcher", "neither batcher nor batch_size is given"),
        ({"batch_size": 1, "batcher": SimpleBatcher(1)}, "batch_size", "batcher are both given"),
        ({"batch_size": 1, "lanes": 0}, "lanes", "lanes is 0"),
        ({"batch_size": 1, "epochs": 0}, "epochs", "epochs is 0"),
        (
            {"batch_size": 1, "on_item_error": "skip"},
            "on_item_error",
            "choose one of stop, quarantine",
        ),
        ({"batch_size": 0}, "batch_size", "batch_size is 0"),
    ],
)
def test_a_plan_that_does_not_hold_together_is_refused(
    arguments: dict[str, Any], key: str, says: str
) -> None:
    """Each contradiction is one sentence with the key."""
    with pytest.raises(InvalidJob, match=says) as caught:
        Job(items(3), **arguments)

    assert caught.value.fields["key"] == key


@pytest.mark.parametrize("count", range(1, 9))
@pytest.mark.parametrize("lanes", range(1, 6))
@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_finite_job_knows_its_batches(
    count: int, lanes: int, batch_size: int, epochs: int
) -> None:
    """Lane by lane, the draws of all epochs over the batch size, rounded up."""
    job = Job(items(count), batch_size=batch_size, lanes=lanes, epochs=epochs)
    draws = [len(range(lane, count * epochs, lanes)) for lane in range(lanes)]

    assert job.order.ends == tuple(-(-drawn // batch_size) for drawn in draws)


def test_an_endless_job_has_no_end() -> None:
    """Epochs None goes on."""
    assert Job(items(3), batch_size=1, lanes=2).order.batches is None


def test_a_finite_job_of_a_packer_is_counted() -> None:
    """Each item gives one sample, and yet arithmetic does not say how many rows they make."""
    tokens = ItemsSource([{"input_ids": [1] * n} for n in (2, 5, 8, 3, 3, 11)])
    batcher = BestFitPackingBatcher(8)
    job = Job(tokens, batcher=batcher, collator=PackedCollator(), lanes=2, epochs=1)
    with pytest.raises(Counting, match="how many the items make is known after one pass"):
        _ = job.order

    ensure_counted(job)

    plans = [list(iter(SamplePlanner(job, lane, Items(job)).next, None)) for lane in range(2)]
    assert job.order.ends == tuple(map(len, plans))
    spans = [ref for lane in plans for plan in lane for row in plan.rows for ref in row]
    assert sum(ref.size for ref in spans) == 32


def test_a_distributor_that_may_go_on_for_ever_is_refused_with_epochs() -> None:
    """It neither says how many draws a lane has nor promises that they end."""

    class Endless(DataDistributor):
        def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
            return ItemRef("main", k % 3, 0)

    job = Job(items(3), Endless(), batch_size=1, epochs=1)

    with pytest.raises(InvalidJob, match=r"Endless does not say that its do: .*ends_by_epochs"):
        job.check_end()


def test_a_finite_job_whose_items_give_any_number_of_samples_is_counted() -> None:
    """Until then nobody is told a length; then it is that of the planned batches, lane by lane."""
    function = FunctionProcessor(lambda raw: [raw] * (raw["x"] % 3))
    job = Job(items(20), processor=function, batch_size=3, lanes=3, epochs=2)
    with pytest.raises(Counting, match="'job' are not counted yet"):
        _ = job.order

    ensure_counted(job)

    plans = [list(iter(SamplePlanner(job, lane, Items(job)).next, None)) for lane in range(3)]
    assert job.order.ends == tuple(map(len, plans))
    assert sum(len(plan.rows) for lane in plans for plan in lane) == 2 * sum(
        number % 3 for number in range(20)
    )


@pytest.mark.parametrize("counted", [1, 99])
def test_a_lane_that_was_miscounted_stops_by_name(counted: int) -> None:
    """It neither ends early nor leaves out what comes after its end."""
    function = FunctionProcessor(lambda raw: [raw])
    job = Job(items(20), processor=function, batch_size=3, lanes=2, epochs=1)
    job.set_lane_ends([counted, 4])
    planner = SamplePlanner(job, 0, Items(job))

    with pytest.raises(LogDiverged, match=f"lane 0 of job 'job' was counted to hold {counted}"):
        list(iter(planner.next, None))

    assert planner.offset == min(counted - 1, 4)


def test_a_parameter_without_a_json_form_is_named() -> None:
    """A role's parameters make the log id, so each must have one canonical form."""
    job = Job(items(3), processor=Weighted(np.ones(3)), batch_size=1)

    with pytest.raises(InvalidJob, match=r"processor\.parameters\.weights is of type ndarray"):
        _ = job.log_id


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, 1.5]}, b'{"a":[true,null,1.5],"b":1}'),
        ({"k": (1, 2)}, b'{"k":[1,2]}'),
        ({"k": "ü"}, '{"k":"ü"}'.encode()),
        ({"k": 10**30}, b'{"k":1000000000000000000000000000000}'),
    ],
)
def test_a_plan_has_one_canonical_text(value: Any, text: bytes) -> None:
    """Golden: it never changes, for log ids are stored."""
    assert canonical(value) == text


def test_the_log_id_is_pinned() -> None:
    """Golden: the same job has the same log id in every version of this order format."""
    job = Job(items(3), batch_size=2, seed=7, lanes=4)

    assert job.log_id.hex() == ("9f27ab540f7994590d41e15339b67982676a88c70be230991bf72f0bf3455d33")


@pytest.mark.parametrize("column", ["_text_tokens", "mm_inputs_meta"])
def test_columns_of_counts_that_are_not_used_are_said(tmp_path: Path, column: str) -> None:
    """Where tokens are counted, once for each column; items without the column say nothing."""
    pq.write_table(pa.Table.from_pylist([{"text": "a", column: 1}]), tmp_path / "a.parquet")
    words = write_words(tmp_path)

    def said(processor: Any, columns: list[str] | None = None) -> list[str]:
        source = ParquetSource(str(tmp_path / "a.parquet"), columns=columns)
        return Job(source, processor=processor, batch_size=1).cautions()

    [sentence] = said(TokenizeProcessor(words))
    assert f"the column {column}, which is not used: tokens are counted from the" in sentence
    assert said(TokenizeProcessor(words), ["text"]) == []
    assert said(None) == []
