"""Parts by their weights: every lane draws from all of them, each at its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

from typing_extensions import override

from penstock.server.core.refs import ItemRef
from penstock.server.core.shares import Rotation, exact, next_part, whole_weights
from penstock.server.roles.distributor import Target
from penstock.server.roles.distributors.mixture_parts import (
    PartsDistributor,
    bind_part,
    check_apart,
    check_ends,
    part_identity,
    part_targets,
    read_alike,
    read_parts,
    weights_of,
)
from penstock.server.roles.draws import LaneDraws, NumberedDraws
from penstock.server.roles.parameters import OneOf, declared
from penstock.server.roles.reading import Reading
from penstock.server.roles.source import Source
from penstock.wire.errors import InvalidJob, SourceExhausted

MAX_PERIOD = 1 << 16
"""Draws that are gone through to seek, at most: tens of milliseconds."""


@declared
class MixtureDistributor(PartsDistributor):
    """Draws from parts by their weights, in every lane; a part may be a mixture itself.

    Of the parts that have had no more than their share, the one comes next that would first lack a
    whole item. So at every draw of a lane each part's share is exact to within two items, or two of
    the largest documents, and over lanes that follow each other it is as exact: lane l begins l
    draws further in the rotation of the parts. Each part has its own order and its own epochs: each
    of its items comes once per epoch over all lanes.

    Args:
        parts: The parts by name: a weight, or `weight`, `distributor` and `max_epochs`. A part
            draws from the source of its name, unless its `distributor` names another: `map` with
            `where` and `sample_ratio`, a nested `mixture`, or any other. Weights are relative; 0
            leaves a part out. Without weights each part weighs as many items as it has. Default:
            every source of the job.
        weights_by: What the weights are shares of: `items`, or `tokens`, the sizes that the batcher
            counts. With tokens an item is drawn once the sizes of those before it are known, so
            lanes are restored from snapshots alone; with items any draw is reached at once, if the
            weights as whole numbers add up to at most 65,536.
        temperature: Raises each weight to 1 / temperature: 1 keeps them, larger ones bring the
            parts nearer to each other, as is usual for languages.
        exhausted: What happens when a part was drawn as often as its `max_epochs` says, which is
            else the job's `epochs`. `repeat` leaves the part out from then on, and the others share
            its weight; a part without a limit begins again and again. `stop` ends the lane. `error`
            stops the job, with an error that names the part; without a limit that is after one
            epoch.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "mixture"
    version: ClassVar[int | str | None] = 1
    ends_by_epochs: ClassVar[bool] = True
    part_keys: ClassVar[tuple[str, ...]] = ("weight", "distributor", "max_epochs")

    weights_by: Annotated[str, OneOf(("items", "tokens"))] = "items"
    temperature: float = 1.0
    exhausted: Annotated[str, OneOf(("repeat", "stop", "error"))] = "repeat"

    def __post_init__(self) -> None:
        super().__post_init__()
        degree = exact(self.temperature)
        if degree is None or degree <= 0:
            raise InvalidJob(
                f"temperature is {self.temperature!r}: give a number above 0; 1 keeps the weights",
                key="distributor.temperature",
            )
        self._degree = degree
        self.limits: list[int | None] = []
        self.rotation = Rotation([1])

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources and seed, and bind the parts to theirs.

        Raises:
            InvalidJob: The parts do not fit the sources or each other.
        """
        super().bind(sources, seed, epochs, lanes)
        self._taking = read_parts(self.parts, sources, self.part_keys)
        once = None if self.exhausted == "repeat" else 1
        self.limits = [part.max_epochs or epochs or once for part in self._taking]
        self._check_end(epochs)
        for part, limit in zip(self._taking, self.limits, strict=True):
            bind_part(part, sources, seed, limit, lanes)
            if limit is not None:
                check_ends(part, limit, lanes)
        check_apart(self._taking)
        read_alike(self.inner(), lanes)
        self.rotation = Rotation(whole_weights(weights_of(self._taking), self._degree))

    def _check_end(self, epochs: int | None) -> None:
        """Refuse a job without `epochs` whose lanes would end, and one with them that would fail.

        Raises:
            InvalidJob: Says what to change.
        """
        if epochs is not None and self.exhausted == "error":
            raise InvalidJob(
                f"exhausted: error lets the job fail where a part is used up, and epochs: {epochs} "
                "lets it end there: use epochs: null, or another word for exhausted",
                key="distributor.exhausted",
            )
        how = ""
        if self.exhausted == "stop":
            how = "exhausted: stop ends a lane with its first part"
        elif self.exhausted == "repeat" and None not in self.limits:
            how = "every part has max_epochs, so lanes end"
        if how and epochs is None:
            raise InvalidJob(
                f"{how}, and the job has no epochs: give the job epochs, which is how often a part "
                "without max_epochs is drawn",
                key="epochs",
            )

    def readings(self) -> Sequence[Reading]:
        """Return how the storage blocks of every part are read."""
        return [
            reading._replace(share=reading.share * weight / self.rotation.period)
            for each, weight in zip(self.inner(), self.rotation.weights, strict=True)
            for reading in each.readings()
        ]

    @property
    def needs_sizes(self) -> bool:
        """Tell whether draws depend on sizes, here or in a part."""
        return self.weights_by == "tokens" or super().needs_sizes

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the parts that take part; after `bind`."""
        return [part.name for part in self._taking]

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the draws of one lane."""
        return MixtureDraws(self, lane, lanes, lane)

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has, if all parts end and tell how many they have."""
        return self._draws_from(lane, lanes, lane)

    def _draws_from(self, lane: int, lanes: int, start: int) -> int | None:
        """Return the same of a lane that begins `start` draws further in the rotation."""
        if None in self.limits:
            return None
        before = self.rotation.counts(start)
        counts = [
            inner._draws_from(lane, lanes, before[number])
            if isinstance(inner, MixtureDistributor)
            else inner.draws(lane, lanes)
            for number, inner in enumerate(self.inner())
        ]
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return None
        if self.exhausted == "repeat":
            return sum(known)
        if self.weights_by == "tokens" or self.rotation.period > MAX_PERIOD:
            return None
        # The lane is over where a part would come once more than it has items.
        return min(self.rotation.place(p, before[p] + known[p]) for p in range(len(known))) - start

    def targets(self) -> Sequence[Target]:
        """Return the share that each part shall have, and the parts of parts."""
        found: list[Target] = []
        for part, weight in zip(self._taking, self.rotation.weights, strict=True):
            found += part_targets(part, self.weights_by, weight / self.rotation.period)
        return found

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with weights as whole numbers."""
        parameters = super().parameters()
        parameters.pop("parts", None)
        parameters.pop("temperature", None)
        # A list: their order decides which of two alike comes first.
        parameters["parts"] = [
            part_identity(part, weight, part.max_epochs)
            for part, weight in zip(self._taking, self.rotation.weights, strict=False)
        ]
        return parameters


class MixtureDraws(LaneDraws):
    """The draws of one lane from all parts; the state is what each was given, and its own state.

    Args:
        distributor: The mixture, bound.
        lane: The lane.
        lanes: How many there are.
        start: How far in the rotation of the parts it begins.
    """

    def __init__(self, distributor: MixtureDistributor, lane: int, lanes: int, start: int) -> None:
        self._mixture = distributor
        self._weights = distributor.rotation.weights
        self._by_tokens = distributor.weights_by == "tokens"
        self._start = start
        before = distributor.rotation.counts(start)
        self._before = before
        self._inner: list[LaneDraws] = [
            # A part of a part begins where the lanes before this one have come in that part.
            MixtureDraws(inner, lane, lanes, before[number])
            if isinstance(inner, MixtureDistributor)
            else inner.open(lane, lanes)
            for number, inner in enumerate(distributor.inner())
        ]
        self._runs: bool = not self._by_tokens and all(
            draws._runs if isinstance(draws, MixtureDraws) else type(draws) is NumberedDraws
            for draws in self._inner
        )
        self._begin()

    def _begin(self) -> None:
        parts = range(len(self._inner))
        self._drawn = [0 for _ in parts]
        self._tokens = [0 for _ in parts]
        self._largest = 1
        self._live = list(parts)
        self._states: list[Any] = [draws.state() for draws in self._inner]
        self._last = 0

    # --- drawing ---

    def next(self) -> ItemRef | None:
        """Return the next item, or None when the lane is over.

        Raises:
            SourceUnavailable: A part cannot be read at this moment.
            SourceExhausted: A part has no more items, and that is an error.
        """
        while self._live:
            part = self._choose(self._drawn, self._tokens, self._live)
            item = self._inner[part].next()
            if item is not None:
                self._drawn[part] += 1
                self._states[part] = self._inner[part].state()
                self._last = part
                return item
            if self._mixture.exhausted == "stop":
                return None
            if self._mixture.exhausted == "error":
                raise self._used_up(part)
            self._live.remove(part)
        return None

    def _choose(self, drawn: Sequence[int], tokens: Sequence[int], live: Sequence[int]) -> int:
        if not self._by_tokens:
            given = [had + before for had, before in zip(drawn, self._before, strict=True)]
            return next_part(self._weights, given, 1, live)
        # The lane begins as if it had drawn items of the mean size before.
        mean = max(1, sum(tokens) // max(1, sum(drawn)))
        given = [had + mean * before for had, before in zip(tokens, self._before, strict=True)]
        return next_part(self._weights, given, max(self._largest, mean), live)

    def took(self, item: ItemRef, size: int) -> None:
        """Count the tokens of the last draw."""
        part = self._last
        self._tokens[part] += size
        self._largest = max(self._largest, size)
        inner = self._inner[part]
        inner.took(item, size)
        if isinstance(inner, MixtureDraws):
            self._states[part] = inner.state()

    def peek(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming items.

        With weights by tokens these come, but others may come between them: which part is next is
        foreseen by the mean size of its items.
        """
        drawn, tokens = list(self._drawn), list(self._tokens)
        mean = sum(tokens) // max(1, sum(drawn))
        sizes = [had // n if n else mean for had, n in zip(tokens, drawn, strict=True)]
        order: list[int] = []
        while self._live and len(order) < count:
            part = self._choose(drawn, tokens, self._live)
            order.append(part)
            drawn[part] += 1
            tokens[part] += max(1, sizes[part]) if self._by_tokens else 0
        coming = {part: iter(self._inner[part].peek(n)) for part, n in Counter(order).items()}
        found: list[ItemRef] = []
        for part in order:
            item = next(coming[part], None)
            if item is None:  # used up, or nobody knows yet
                break
            found.append(item)
        return found

    def run(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming items; [] where sizes, or draws of another kind, decide."""
        return self.peek(count) if self._runs else []

    def counts(self) -> dict[str, int]:
        """Return `items:PART` and `tokens:PART`, what each part has given, by its path."""
        found: dict[str, int] = {}
        for number, name in enumerate(self._mixture.names):
            found[f"items:{name}"] = self._drawn[number]
            found[f"tokens:{name}"] = self._tokens[number]
            for inner, count in self._inner[number].counts().items():
                kind, _, path = inner.partition(":")
                found[f"{kind}:{name}/{path}"] = count
        return found

    def _used_up(self, part: int) -> SourceExhausted:
        name, limit = self._mixture.names[part], self._mixture.limits[part]
        return SourceExhausted(
            f"part {name!r} of the mixture is used up after {limit} epochs and "
            f"{self._drawn[part]:,} draws of a lane, and exhausted: error says to stop there; "
            "give the part more max_epochs, or say exhausted: repeat",
            part=name,
            epochs=limit or 0,
            drawn=self._drawn[part],
        )

    # --- going elsewhere ---

    def state(self) -> Any:
        """Return what each part was given, and its state."""
        found: dict[str, Any] = {"drawn": list(self._drawn), "parts": list(self._states)}
        if any(self._tokens):
            found["tokens"], found["largest"] = list(self._tokens), self._largest
        if len(self._live) < len(self._inner):
            found["live"] = list(self._live)
        return found

    @override
    def restore(self, state: Any) -> None:
        parts = len(self._inner)
        self._drawn = [int(count) for count in state["drawn"]]
        self._tokens = [int(count) for count in state.get("tokens", [0] * parts)]
        self._largest = int(state.get("largest", 1))
        self._live = list(state.get("live", range(parts)))
        for draws, now, then in zip(self._inner, self._states, state["parts"], strict=True):
            if now != then:
                draws.restore(then)
        self._states = list(state["parts"])

    def can_seek(self) -> bool:
        """Tell whether items are counted, the rotation is short, and the parts can seek."""
        return (
            not self._by_tokens
            and self._mixture.rotation.period <= MAX_PERIOD
            and all(limit is None for limit in self._mixture.limits)
            and all(draws.can_seek() for draws in self._inner)
        )

    @override
    def seek(self, k: int) -> None:
        counts = self._mixture.rotation.counts(self._start + k)
        self._begin()
        for part, draws in enumerate(self._inner):
            self._drawn[part] = counts[part] - self._before[part]
            draws.seek(self._drawn[part])
            self._states[part] = draws.state()
