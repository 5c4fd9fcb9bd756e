"""What every packing function asks of its arguments."""

from __future__ import annotations

from collections.abc import Sequence


def check_lengths(lengths: Sequence[int], capacity: int) -> None:
    """Refuse arguments that no packing can answer.

    Raises:
        ValueError: The capacity is below 1, or a length is negative.
    """
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: a pack holds at least 1")
    for index, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"lengths[{index}] is {length}: a length is 0 or more")


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return the indices by falling length; equal lengths keep their order."""
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


__all__ = ["check_lengths", "longest_first"]
