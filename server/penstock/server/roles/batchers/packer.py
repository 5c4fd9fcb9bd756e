"""What all packing batchers share: the size of a sample, counts of what was left out, checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.server.roles.base import Sample, SampleBatcher
from penstock.wire.errors import InvalidJob


class PackingBatcher(SampleBatcher):
    """A batcher that looks at sizes, and counts what it does to samples that do not fit.

    A subclass has `length_key` among its constructor's parameters, calls `super().__init__` with it
    and names its reasons for dropping a sample, and its other counts.
    """

    def __init__(self, length_key: str, dropped: Sequence[str], counts: Sequence[str] = ()) -> None:
        if not isinstance(length_key, str) or not length_key:
            raise InvalidJob(
                f"length_key is {length_key!r}: name the value of a sample whose length is its "
                "size, for example length_key: input_ids",
                key="length_key",
            )
        self.length_key = length_key
        self._dropped = dict.fromkeys(dropped, 0)
        self._counts = dict.fromkeys(counts, 0)

    def check_keys(self, keys: Iterable[str]) -> None:
        """Refuse samples without a value `length_key`.

        Raises:
            InvalidJob: Names the keys that they have.
        """
        if self.needs_sizes and self.length_key not in keys:
            raise self._no_length(keys)

    def size_of(self, sample: Sample) -> int:
        """Return the length of the sample's value `length_key`.

        Raises:
            InvalidJob: The sample has no such value.
        """
        try:
            value = sample[self.length_key]
        except KeyError:
            raise self._no_length(sample) from None
        return len(value)

    def length_column(self) -> str | None:
        """Return `length_key`."""
        return self.length_key if self.keeps(PackingBatcher, "size_of") else None

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out; every reason is there from the start."""
        return dict(self._dropped)

    def _no_length(self, keys: Iterable[str]) -> InvalidJob:
        return InvalidJob(
            f"length_key is {self.length_key!r}, but the processor's samples have "
            f"{', '.join(map(repr, keys)) or 'no values'}: name one of these",
            key="batcher.length_key",
        )

    def counters(self) -> dict[str, int]:
        """Return counts since the lane's start; every name is there from the start."""
        return dict(self._counts)


__all__ = ["PackingBatcher"]
