"""Raw items to samples: errors of a moment are retried, errors of the bytes are judged."""

from __future__ import annotations

import io
import random
import urllib.error
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Quarantined, VerdictBook, content_hash
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles import ProcessContext, RawItemProcessor, Sample
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.collators import PackedCollator
from penstock.server.sources import ItemsSource, ParquetSource, TorchDatasetSource
from penstock.wire.errors import BadItem, InvalidJob, MissingExtra, SourceUnavailable


class Recorder(RawItemProcessor):
    """Does what the raw item says, and notes it."""

    version: ClassVar[int | str | None] = 1
    calls: ClassVar[list[Any]] = []
    fails: ClassVar[dict[Any, list[Exception]]] = {}

    def process(self, raw: Any, context: ProcessContext) -> Sample | list[Sample] | None:
        """Return what `raw` says."""
        self.calls.append(raw)
        if errors := self.fails.get(raw):
            raise errors.pop(0)
        if raw == "filter":
            return None
        if raw == "skip":
            context.skip("too short")
            return {"x": 1}
        if raw == "many":
            return [{"x": 1}, {"x": 2}]
        if raw == "none of many":
            return []
        if raw == "random":
            return {"own": int(context.rng.integers(10**9)), "global": random.random()}
        return {"x": raw}


class BatchRecorder(Recorder):
    """The same, many at once."""

    uses_global_rng: ClassVar[bool] = False


def make(
    raws: list[Any], processor: RawItemProcessor | None = None, **options: Any
) -> tuple[Items, list[ItemRef]]:
    Recorder.calls.clear()
    Recorder.fails.clear()
    job = Job(
        ItemsSource(raws), processor=processor or Recorder(), batch_size=1, lanes=1, **options
    )
    return Items(job), [ItemRef("main", index, 0) for index in range(len(raws))]


def test_what_a_processor_returns_is_what_it_means() -> None:
    """A sample, several, none, none with a reason."""
    items, refs = make(["a", "filter", "skip", "many", "none of many"])

    outcomes = items.samples(refs, "draw")

    assert outcomes == [
        [{"x": "a"}],
        Filtered("none"),
        Filtered("too short"),
        [{"x": 1}, {"x": 2}],
        Filtered("empty"),
    ]


class Together(BatchRecorder):
    """Cannot take several items at once."""

    def process_batch(self, raws: Sequence[Any], contexts: Sequence[ProcessContext]) -> list[Any]:
        """Fail, whatever the items are."""
        raise KeyError("length")


class Grudging(ItemsSource):
    """Gives items one by one only."""

    version = 1

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Fail for several."""
        if len(indices) > 1:
            raise IndexError("one, please")
        return super().fetch(indices)


def test_an_error_that_goes_away_is_told_once() -> None:
    """Nothing failed for good, so nothing stops; but a role that does so is worth a look."""
    told: list[str] = []
    items, refs = make(["a", "b", "c"], Together())
    items.warn = told.append
    Recorder.fails.update(b=[ValueError("by chance")])

    for _ in range(3):
        assert items.samples(refs, "draw") == [[{"x": "a"}], [{"x": "b"}], [{"x": "c"}]]

    first, second = told
    assert "Together.process(), the first of two tries of item main[1] in epoch 0, failed" in first
    assert "ValueError: by chance" in first
    assert "Together.process_batch() failed" in second
    assert "KeyError: 'length'" in second


def test_a_source_that_gives_no_two_items_at_once_is_told() -> None:
    told: list[str] = []
    job = Job(Grudging(["a", "b"]), batch_size=1, lanes=1)
    items = Items(job)
    items.warn = told.append

    assert items.raws([ItemRef("main", index, 0) for index in (0, 1)]) == ["a", "b"]
    [sentence] = told
    assert "Grudging.fetch() of several items failed" in sentence


def test_an_item_that_is_judged_is_not_told_as_well() -> None:
    """A bad item among others has its verdict and its name already."""
    told: list[str] = []
    items, refs = make(["a", "bad"], BatchRecorder(), on_item_error="quarantine")
    items.warn = told.append
    Recorder.fails.update(bad=[ValueError("always")] * 3)

    samples, verdict = items.samples(refs, "draw")

    assert samples == [{"x": "a"}]
    assert isinstance(verdict, Quarantined)
    assert told == []


@pytest.mark.parametrize("cls", [Recorder, BatchRecorder])
def test_an_item_that_fails_twice_is_bad_and_named(cls: type[Recorder]) -> None:
    """Once may be chance and is forgiven; the second failure is a property of the bytes."""
    items, refs = make(["a", "once", "twice"], cls())
    Recorder.fails.update(
        once=[ValueError("1")] * (2 if cls is BatchRecorder else 1), twice=[ValueError("2")] * 3
    )

    assert items.samples(refs[:2], "draw") == [[{"x": "a"}], [{"x": "once"}]]
    with pytest.raises(BadItem, match=r"main\[2\] in epoch 0 .* fails in .*Recorder") as caught:
        items.samples(refs, "draw")

    assert caught.value.fields["item"] == ["main", 2, 0]
    assert caught.value.fields["reason"] == "ValueError: 2"
    assert "raise errors.pop(0)" in caught.value.fields["traceback"]


def test_a_verdict_is_durable_before_the_outcome_is_known() -> None:
    """The insert is asked first; what holds is what it answers, and a known verdict is obeyed."""
    inserted: list[Verdict] = []

    def insert(verdict: Verdict) -> Verdict:
        inserted.append(verdict)
        return verdict._replace(reason="somebody was first")

    items, refs = make(["a", "bad"], on_item_error="quarantine")
    items.verdicts = VerdictBook((), insert)
    Recorder.fails.update(bad=[ValueError("damaged")] * 2)

    first = items.samples(refs, "exit")
    again = items.samples(refs, "exit")

    assert inserted == [
        Verdict("exit", refs[1], content_hash("bad"), "ValueError: damaged", every_epoch=True),
    ]
    assert first == again
    assert isinstance(first[1], Quarantined)
    assert first[1].verdict.reason == "somebody was first"
    assert Recorder.calls == ["a", "bad", "bad", "a"]


def test_a_bad_item_whose_text_is_not_unicode_is_judged_like_any_other() -> None:
    """JSON has texts with half a surrogate pair; the verdict names the raw item by a hash."""
    damaged, other = "cut \ud800", "cut \udfff"
    items, refs = make(["a", damaged], on_item_error="quarantine")
    Recorder.fails.update({damaged: [ValueError("not Unicode")] * 2})

    found = items.samples(refs, "draw")

    assert isinstance(found[1], Quarantined)
    assert found[1].verdict.content_hash == content_hash(damaged)
    assert content_hash(damaged) != content_hash(other)


def test_errors_of_a_moment_are_retried_and_never_judged() -> None:
    """A flaky mount costs time; no verdict, no error, the same sample."""
    items, refs = make(["a"], on_item_error="quarantine")
    Recorder.fails.update(a=[OSError(5, "EIO"), TimeoutError(), ConnectionResetError()])
    stages: list[str] = []
    items.progress = lambda stage, item: stages.append(stage)

    assert items.samples(refs, "draw") == [[{"x": "a"}]]

    assert stages.count("retrying") == 3
    assert items.verdicts.find("draw", refs[0]) is None


def test_the_deadline_of_retries_names_the_item() -> None:
    """Then it is `SourceUnavailable`, under either policy."""
    for policy in ("stop", "quarantine"):
        items, refs = make(["a"], on_item_error=policy)
        items.retry_deadline_s = 0.1
        Recorder.fails.update(a=[OSError(5, "EIO")] * 100)
        with pytest.raises(SourceUnavailable, match=r"main\[0\] in epoch 0") as caught:
            items.samples(refs, "draw")
        assert caught.value.fields["item"] == ["main", 0, 0]


def unreachable() -> urllib.error.URLError:
    """Return what `urlopen` raises where nobody listens: an OSError without an errno."""
    return urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))


@pytest.mark.parametrize("error", [unreachable(), MemoryError("no memory")], ids=repr)
def test_what_may_be_gone_in_a_moment_is_never_a_verdict(error: Exception) -> None:
    """Not after two tries, and not after the deadline: the item comes when it can be had."""
    items, refs = make(["a"], on_item_error="quarantine")
    items.retry_deadline_s = 0.1
    Recorder.fails.update(a=[error] * 1000)
    with pytest.raises(SourceUnavailable, match=r"main\[0\] in epoch 0"):
        items.samples(refs, "draw")

    Recorder.fails.update(a=[error] * 3)
    items.retry_deadline_s = 60

    assert items.samples(refs, "draw") == [[{"x": "a"}]]


class Opens(RawItemProcessor):
    """Reads a file of its own."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return what is in the file."""
        return {"x": Path(raw).read_bytes()}


def test_a_missing_file_of_a_processor_is_named_as_the_processors(tmp_path: Path) -> None:
    """Not as the storage of the source: its path and its line are what people need."""
    items, refs = make([str(tmp_path / "x.jpg")], Opens(), on_item_error="quarantine")
    items.retry_deadline_s = 0.1

    with pytest.raises(SourceUnavailable) as caught:
        items.samples(refs, "draw")

    assert "could not be finished by Opens.process()" in caught.value.message
    assert f"No such file or directory: '{tmp_path / 'x.jpg'}'" in caught.value.message
    assert "check what that code reads" in caught.value.message
    assert "Path(raw).read_bytes()" in caught.value.fields["traceback"]
    (tmp_path / "x.jpg").write_bytes(b"here")
    assert items.samples(refs, "draw") == [[{"x": b"here"}]]


def test_an_image_that_is_none_is_a_bad_item() -> None:
    """Pillow raises an OSError of its own for bytes that are no image."""

    class Decodes(Opens):
        def process(self, raw: Any, context: ProcessContext) -> Sample:
            return {"x": Image.open(io.BytesIO(raw))}

    items, refs = make([b"no image"], Decodes(), on_item_error="quarantine")

    [outcome] = items.samples(refs, "draw")

    assert isinstance(outcome, Quarantined)
    assert outcome.verdict.reason.startswith("UnidentifiedImageError: cannot identify image")


class Unspeakable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise KeyError("text")


class Ending(Exception):
    """Its text ends the process."""

    def __str__(self) -> str:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Ending(), "Ending: (it has no text: its str() raises SystemExit)"),
        (Unspeakable(), "Unspeakable: (it has no text: its str() raises KeyError)"),
        (ValueError("name \udcff"), "ValueError: name \\udcff"),
        (ValueError("x" * (5 << 20)), "... (5240909 more characters)"),
    ],
    ids=["an end", "no text", "half a pair", "5 MB"],
)
def test_whatever_an_error_says_its_item_and_type_are_named(error: Exception, said: str) -> None:
    """In the sentence, the traceback and the verdict: bounded, and whole Unicode."""
    items, refs = make(["a"])
    Recorder.fails.update(a=[error] * 4)
    with pytest.raises(BadItem) as caught:
        items.samples(refs, "draw")
    items.job.on_item_error = "quarantine"
    [outcome] = items.samples(refs, "draw")

    assert "item main[0] in epoch 0 of job 'job' fails in Recorder.process() with" in str(
        caught.value
    )
    assert said in caught.value.message
    assert type(error).__name__ in caught.value.fields["traceback"]
    assert isinstance(outcome, Quarantined)
    assert type(error).__name__ in outcome.verdict.reason
    for text, limit in (
        (caught.value.message, 3000),
        (caught.value.fields["traceback"], 15_000),
        (outcome.verdict.reason, 200),
    ):
        assert len(text) <= limit
        assert text.encode()


@pytest.mark.parametrize("cls", [Recorder, BatchRecorder])
def test_a_package_that_is_not_installed_is_no_items_fault(cls: type[Recorder]) -> None:
    """Another node may have it: that is told at once, and is never a verdict."""
    items, refs = make(["a"], cls(), on_item_error="quarantine")
    Recorder.fails.update(a=[ModuleNotFoundError("No module named 'cv2'", name="cv2")] * 9)

    with pytest.raises(MissingExtra, match=r"process\(\) of job 'job' fails .*'cv2'") as caught:
        items.samples(refs, "draw")

    assert caught.value.fields["package"] == "cv2"
    assert items.verdicts.find("draw", refs[0], 0, 0) is None


def test_a_setup_that_fails_is_named_and_one_of_a_moment_retried() -> None:
    """It is the job's mistake, with the user's line: no bug of anybody else."""

    class SetUp(Recorder):
        failures: ClassVar[list[Exception]] = [TimeoutError(), ValueError("no such model")]

        def setup(self) -> None:
            if self.failures:
                raise self.failures.pop(0)

    items, refs = make(["a"], SetUp())
    with pytest.raises(InvalidJob, match=r"SetUp.setup\(\) of job 'job' fails .* no such model"):
        items.samples(refs, "draw")

    assert items.samples(refs, "draw") == [[{"x": "a"}]]


def test_what_is_random_depends_on_the_item_alone() -> None:
    """Alone, among others, in another order, after other draws: the same numbers."""
    raws = ["random"] * 6
    items, refs = make(raws)
    together = items.samples(refs, "draw")

    for order in (refs[::-1], refs[3:] + refs[:3]):
        random.seed(1)
        np.random.seed(2)
        assert dict(zip(order, items.samples(order, "exit"), strict=True)) == dict(
            zip(refs, together, strict=True)
        )
    assert [items.samples([ref], "draw")[0] for ref in refs] == together
    assert len({str(outcome) for outcome in together}) == 6
    other_epoch = [ref._replace(epoch=1) for ref in refs]
    assert items.samples(other_epoch, "draw") != together


class KeepsRows:
    """A Dataset in memory that gives out its own rows."""

    def __init__(self) -> None:
        self.rows = [
            {
                "array": np.zeros(4),
                "tensor": torch.zeros(4),
                "nested": [{"list": [0]}, (np.zeros(2),)],
                "image": Image.new("L", (2, 2)),
                "objects": np.array([[0]], dtype=object),
            }
            for _ in range(6)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class WritesInPlace(RawItemProcessor):
    """Writes into everything that it is given."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Add to each value in place."""
        raw["array"] += 1
        raw["tensor"].add_(1)
        raw["nested"][0]["list"].append(1)
        raw["nested"][1][0][:] += 1
        raw["image"].putpixel((0, 0), raw["image"].getpixel((0, 0)) + 1)
        raw["objects"][0, 0] += 1
        raw["new"] = True
        return raw


class OwnRows(ItemsSource):
    """A source of the user's that copies nothing."""

    version: ClassVar[int | str | None] = 1
    gives_fresh_items: ClassVar[bool] = False

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows themselves."""
        return [self._items[index] for index in indices]


@pytest.mark.parametrize("kind", ["torch", "own"])
def test_a_processor_that_writes_into_items_changes_no_source(kind: str) -> None:
    """Every fetch gives the same, whatever was looked at before, ahead or again."""
    rows = KeepsRows()
    source = TorchDatasetSource(dataset=rows) if kind == "torch" else OwnRows(rows.rows)
    items = Items(Job(source, processor=WritesInPlace(), batch_size=1, lanes=1))
    refs = [ItemRef("main", index, 0) for index in (0, 1, 0)]

    first = [content_hash(samples) for samples in items.samples(refs[:2], "draw")]
    again = [content_hash(samples) for samples in items.samples(refs, "exit")]

    assert again == [*first, first[0]]
    [sample] = items.samples(refs[:1], "draw")
    assert isinstance(sample, list)
    assert sample[0]["image"].getpixel((0, 0)) == 1
    assert sample[0]["objects"].tolist() == [[1]]
    assert "new" not in rows.rows[0]
    assert not rows.rows[0]["array"].any()


class Broken(ItemsSource):
    """Item 2 cannot be fetched, whatever comes with it."""

    version: ClassVar[int | str | None] = 1

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the items."""
        if 2 in indices:
            raise ValueError("row group 2 is damaged")
        return super().fetch(indices)


def test_a_source_that_fails_on_one_item_spoils_no_other() -> None:
    """The one is found, judged and named; its neighbours are processed."""
    Recorder.calls.clear()
    Recorder.fails.clear()
    refs = [ItemRef("main", index, 0) for index in range(4)]
    stop = Items(Job(Broken(list("abcd")), processor=Recorder(), batch_size=1, lanes=1))
    with pytest.raises(BadItem, match=r"main\[2\].*row group 2 is damaged"):
        stop.samples(refs, "draw")
    leave_out = Items(
        Job(
            Broken(list("abcd")),
            processor=Recorder(),
            batch_size=1,
            lanes=1,
            on_item_error="quarantine",
        )
    )

    outcomes = leave_out.samples(refs, "draw")

    assert [isinstance(outcome, Quarantined) for outcome in outcomes] == [False, False, True, False]
    assert outcomes[3] == [{"x": "d"}]


def test_the_hash_of_raw_bytes_tells_values_apart() -> None:
    """Types, shapes and nesting count; the order of a dict's keys does not."""
    values: list[Any] = [
        b"1", "1", 1, 1.0, True, None, [1], [[1]], (1,), {"a": 1}, {"a": "1"}, {"b": 1},
        np.array([1]), np.array([1], "int32"), np.array([[1]]), ["a", "b"], ["ab"], [],
    ]  # fmt: skip

    hashes = {content_hash(value) for value in values}

    assert len(hashes) == len(values)
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})


def test_careful_work_notes_every_item_by_itself() -> None:
    """Where many are processed at once, a crash is blamed on the first: careful work names it."""
    items, refs = make(["a", "b", "c"], BatchRecorder())
    noted: list[Any] = []
    items.progress = lambda stage, item: noted.append(item) if stage == "process" else None

    items.samples(refs, "draw")
    items.careful = True
    items.samples(refs, "draw")

    assert noted == [refs[0], *refs]
    assert items.processed == 6


class Dice(RawItemProcessor):
    """Fails, with or without a throw before."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Fail as `raw` says."""
        if raw == "own":
            context.rng.random()
        elif raw == "python":
            random.random()
        elif raw == "numpy":
            np.random.normal()
        elif raw == "torch":
            pytest.importorskip("torch").rand(1)
        raise ValueError(raw)


def test_only_what_draws_chance_is_about_one_epoch() -> None:
    """The same raw bytes fail in every epoch, where nothing random was drawn before they did."""
    raws = ["plain", "own", "python", "numpy", "torch", "plain"]
    pytest.importorskip("torch")
    items, refs = make(raws, Dice(), on_item_error="quarantine")

    outcomes = items.samples(refs, "exit")

    verdicts = [outcome.verdict for outcome in outcomes if isinstance(outcome, Quarantined)]
    every = [verdict.every_epoch for verdict in verdicts]
    assert every == [True, False, False, False, False, True]
    later = [ref._replace(epoch=3) for ref in refs]
    found = [items.verdicts.find("exit", ref) is not None for ref in later]
    assert found == every


def test_columns_of_every_source_are_read_ahead(tmp_path: Path) -> None:
    """Not only those of the first."""
    for name in "ab":
        table = pa.table({"input_ids": [[7] * 5] * 40})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10)
    sources = {name: ParquetSource(str(tmp_path / f"{name}.parquet")) for name in "ab"}
    job = Job(sources, None, None, BestFitPackingBatcher(max_tokens=32), PackedCollator(), lanes=1)
    items = Items(job)

    items._read_aside([ItemRef("a", 1, 0), ItemRef("b", 2, 0)])

    assert all(source.read_bytes() for source in sources.values())
