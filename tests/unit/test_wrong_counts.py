"""Counts that a processor of a job gave, and that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.server.roles.samples import wrong_counts


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
