"""Counts that a processor of a job gave, and that are none."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import BestFitPackingBatcher, IdentityProcessor
from penstock.server.roles.samples import Sample, wrong_counts
from penstock.server.sources import ItemsSource
from penstock.wire.errors import BadBatch, InvalidJob


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (None, "its measures are images, so give 1 counts"),
        (5, "its measures are images, so give 1 counts"),
        (np.array(5), "its measures are images, so give 1 counts"),
        (((1, 2), 3), "its measures are images, so give 1 counts"),
        ((), "its measures are images, so give 1 counts"),
        ((1, 2), "its measures are images, so give 1 counts"),
        ((-1,), "images is -1: give a number from 0"),
        ((2**63,), "images is 9223372036854775808: give a number from 0"),
        ((True,), "images is True: give a whole number"),
        ((1.5,), "images is 1.5: give a whole number"),
    ],
)
def test_counts_that_are_none_are_named(counts: Any, said: str) -> None:
    """Whatever stands there: the error is the processor's, and no crash."""
    assert said in (wrong_counts(counts, ["images"]) or "")


def test_counts_of_any_whole_numbers_are_right() -> None:
    """As tuples, lists and arrays."""
    for counts in ((3,), [3], np.array([3]), (np.int64(3),)):
        assert wrong_counts(counts, ["images"]) is None


class Counting(IdentityProcessor):
    """Says of one item something else than the numbers of its two measures."""

    version: ClassVar[int | str | None] = 1
    said: ClassVar[Any] = None
    names: ClassVar[Any] = ("images", "patches")

    @property
    def measures(self) -> Any:
        """Return what a test wants."""
        return self.names

    def counts(self, sample: Sample) -> Any:
        """Return what a test wants of item 2."""
        if self.said == "raise":
            raise ZeroDivisionError("none")
        return self.said if sample["n"] == 2 else (1, 2)


def job() -> Job:
    items = [{"input_ids": [1] * 5, "n": number} for number in range(5)]
    batcher = BestFitPackingBatcher(12, limits={"images": 3}, overlong="drop")
    return Job(ItemsSource(items), processor=Counting(), batcher=batcher, lanes=1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("raise", "counts.* fails on a sample of item .* with ZeroDivisionError: none"),
        (None, "gave null for a sample of item .*: its measures are images, patches, so give 2"),
        ((float("nan"), 1), "images is nan: give a whole number"),
        ({"patches": 1, "seconds": 2}, "images is 'patches': give a whole number"),
        (("1", "2"), "images is '1': give a whole number"),
        ((True, 1), "images is True: give a whole number"),
        ((1,), "so give 2 counts"),
        ((1, 2, 3), "so give 2 counts"),
        ((-1, 2), "images is -1: give a number from 0"),
        ((2**63, 2), "give a number from 0 to"),
        ("x" * 10**6, "so give 2 counts"),
    ],
)
def test_counts_of_one_sample_that_are_none_name_its_item(
    given: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one sample to the next a processor may say something else."""
    monkeypatch.setattr(Counting, "said", given)

    line = Line(job(), 0)

    with pytest.raises(BadBatch, match=said) as caught:
        [line.make(line.advance()) for _ in range(5)]

    assert len(caught.value.message) < 500


@pytest.mark.parametrize("names", ["images", ("a", "a"), (1,), ("",), None])
def test_measures_that_are_no_names_are_refused(
    names: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single text among them, which would be as many measures as it has letters."""
    monkeypatch.setattr(Counting, "names", names)

    with pytest.raises(InvalidJob, match="measures"):
        job()
