"""A list as a source: what is in its fingerprint, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.sources import ItemsSource
from penstock.server.sources.item_list import canonical_bytes
from penstock.wire.errors import InvalidJob

ALIKE = [
    None,
    False,
    True,
    0,
    1,
    -1,
    2**70,
    0.0,
    -0.0,
    1.0,
    float("inf"),
    "",
    "1",
    "ab",
    "\ud800",
    b"",
    b"1",
    b"ab",
    [],
    (),
    {},
    [[]],
    [1, [2]],
    [[1], 2],
    [1, 2],
    (1, 2),
    ["a", "b"],
    ["ab"],
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    np.array(1),
    np.array([1, 2]),
    np.array([[1, 2]]),
    np.array([1, 2], np.int32),
    np.array([1, 2], ">i8"),
    np.array([1.0, 2.0]),
]


def test_values_that_differ_have_different_bytes() -> None:
    """No two of these, many of them equal to Python, are alike to the fingerprint."""
    encoded = {canonical_bytes(value, "items[0]") for value in ALIKE}

    assert len(encoded) == len(ALIKE)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(items=st.lists(plain, min_size=1, max_size=4))
def test_the_fingerprint_is_a_function_of_the_values(items: list[Any]) -> None:
    """Two equal lists built apart have one fingerprint; one more item gives another."""
    source, twin = ItemsSource(items), ItemsSource(eval(repr(items), {"inf": float("inf")}))

    assert source.identity() == twin.identity()
    assert ItemsSource([*items, None]).identity() != source.identity()


def test_an_array_is_its_bytes_wherever_it_lies() -> None:
    """Strides and owners do not matter; values do."""
    whole = np.arange(10)

    assert canonical_bytes(whole[::2], "") == canonical_bytes(whole[::2].copy(), "")
    assert canonical_bytes(whole[::2], "") != canonical_bytes(whole[1::2], "")


def test_changing_the_list_afterwards_changes_nothing() -> None:
    """The source holds the items that it was given."""
    items: list[Any] = [1, 2]
    source = ItemsSource(items)

    items.append(3)

    assert len(source) == 2
    assert source.fetch([1]) == [2]


@pytest.mark.parametrize("items", ["text", b"bytes", 7, None, {"a": 1}])
def test_what_is_no_list_is_refused(items: Any) -> None:
    """The class that was given is in the sentence."""
    with pytest.raises(InvalidJob, match=f"items is of type {type(items).__name__}"):
        ItemsSource(items)


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array([object()])])
def test_a_value_without_canonical_bytes_is_named(value: Any) -> None:
    """Where the value stands is in the sentence, and what to do."""
    source = ItemsSource([{"a": [0, value]}])

    with pytest.raises(InvalidJob, match=r"items\[0\]\['a'\]\[1\] is of type .*torch source"):
        source.fingerprint()
