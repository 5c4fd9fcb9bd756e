"""The parts of a distributor that draws by others: their weights, and how they read together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any, ClassVar

from penstock.common.checks import check_whole
from penstock.common.nearest import hint
from penstock.server.core.shares import exact
from penstock.server.roles.distributor import DataDistributor, Target
from penstock.server.roles.distributors.default_windows import SMALL_BYTES, default_groups
from penstock.server.roles.distributors.episodes import EpisodesDistributor
from penstock.server.roles.distributors.map import MapDistributor
from penstock.server.roles.distributors.shuffle import Shuffle
from penstock.server.roles.parameters import declared
from penstock.server.roles.source import IndexedSource, Source
from penstock.wire.errors import InvalidJob

MAX_PARTS = 1000
"""Each is looked at for every draw."""

KEY = "distributor.parts"

Build = Callable[..., Any]
"""`(section, *keys)`: builds the role that a section of a job file describes, below these keys."""


@dataclass(frozen=True)
class MixturePart:
    """A part of a mixture as it was asked for.

    Attributes:
        name: Its name.
        weight: Its weight, above 0; None = it was not given.
        max_epochs: How often its items are drawn at most; None = it was not given.
        distributor: Draws its items.

    Glossary:
        mixture, part: A mixture is a distributor that draws from several parts, each by its share;
            a part has a weight and a distributor of its own, which may be a mixture, too.
    """

    name: str
    weight: Fraction | None
    max_epochs: int | None
    distributor: DataDistributor


@declared
class PartsDistributor(DataDistributor):
    """A distributor that draws by others, each from sources of its own."""

    part_keys: ClassVar[tuple[str, ...]] = ("weight", "distributor")

    parts: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.parts is not None and (not isinstance(self.parts, Mapping) or not self.parts):
            raise InvalidJob(
                f"parts is {self.parts!r}: give weights by name, such as {{web: 0.7, code: 0.3}}",
                key=KEY,
            )
        self._taking: list[MixturePart] = []  # those with a weight above 0; after `bind`

    @classmethod
    def with_roles(cls, parameters: dict[str, Any], make: Build) -> dict[str, Any]:
        """Return a section's parameters with the distributors of its parts built."""
        parts = parameters.get("parts")
        if not isinstance(parts, Mapping):
            return parameters
        built = {
            name: {**part, "distributor": make(part["distributor"], "parts", name, "distributor")}
            if isinstance(part, Mapping) and part.get("distributor") is not None
            else part
            for name, part in parts.items()
        }
        return {**parameters, "parts": built}

    def inner(self) -> Sequence[DataDistributor]:
        """Return the parts' distributors."""
        return [part.distributor for part in self._taking]

    def drawn_from(self) -> Sequence[str]:
        """Return the names of the sources of all parts."""
        return list(dict.fromkeys(name for each in self.inner() for name in each.drawn_from()))

    @property
    def needs_sizes(self) -> bool:
        """Tell whether a part's draws depend on sizes."""
        return any(each.needs_sizes for each in self.inner())


def read_parts(
    parts: Mapping[str, Any] | None, sources: Mapping[str, Source], keys: Sequence[str]
) -> list[MixturePart]:
    """Return the parts that take part, in their order.

    Args:
        parts: By name: a weight, or `weight` and other keys; None = every source is one, by size.
        sources: The job's sources.
        keys: Which keys a part may have.

    Raises:
        InvalidJob: One is not a part; a weight is not a number; all weights are 0.
    """
    asked = dict.fromkeys(sources) if parts is None else parts
    found = [_part(name, each, sources, keys) for name, each in asked.items()]
    taking = [part for part in found if part.weight != 0]
    given = [part.weight is not None for part in taking]
    if any(given) and not all(given):
        name = next(part.name for part in taking if part.weight is None)
        raise InvalidJob(
            f"part {name!r} has no weight, and others have one: give one to each, or to none, and "
            "each then weighs as many items as it has",
            key=f"{KEY}.{name}",
        )
    if not taking:
        raise InvalidJob("no part has a weight above 0: give one", key=KEY)
    if len(taking) > MAX_PARTS:
        raise InvalidJob(
            f"there are {len(taking)} parts, and at most {MAX_PARTS:,} are possible: group them by "
            "a nested mixture",
            key=KEY,
        )
    return taking


def _part(name: str, asked: Any, sources: Mapping[str, Source], keys: Sequence[str]) -> MixturePart:
    key = f"{KEY}.{name}"
    section = asked if isinstance(asked, Mapping) else {"weight": asked}
    for word in section:
        if word not in keys:
            raise InvalidJob(
                f"{word!r} is not a key of part {name!r}: {hint(str(word), keys)}", key=key
            )
    weight = section.get("weight")
    whole = None if weight is None else exact(weight)
    if weight is not None and (whole is None or whole < 0):
        raise InvalidJob(
            f"the weight of part {name!r} is {weight!r}: give a number above 0, or 0 to leave it "
            "out",
            key=key,
        )
    limit = section.get("max_epochs")
    if limit is not None:
        check_whole("max_epochs", limit, 1, f"the max_epochs of part {name!r}", key=key)
    given = section.get("distributor")
    if given is not None and not isinstance(given, DataDistributor):
        raise InvalidJob(
            f"the distributor of part {name!r} is {given!r}: give a DataDistributor, such as "
            "MapDistributor(source=...)",
            key=key,
        )
    if given is None and name not in sources and whole != 0:
        raise InvalidJob(
            f"part {name!r} has no distributor and is not the name of a source "
            f"({hint(name, sources)}): name a source, for example with "
            "distributor: {type: map, source: NAME}",
            key=key,
        )
    # A copy: what it is bound to belongs to this one.
    return MixturePart(name, whole, limit, MapDistributor() if given is None else given.clone())


def bind_part(
    part: MixturePart, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
) -> None:
    """Bind a part's distributor; to the source of the part's name, unless it says which it takes.

    Raises:
        InvalidJob: As its own `bind` does; names the part.
    """
    own = part.distributor
    says_which = isinstance(own, PartsDistributor) or getattr(own, "source", None) is not None
    if part.name in sources and not says_which:
        sources = {part.name: sources[part.name]}
    try:
        own.bind(sources, seed, epochs, lanes)
    except InvalidJob as error:
        key = str(error.fields.get("key") or "")
        inner = key.partition("distributor")[2]
        raise InvalidJob(
            f"part {part.name!r}: {error.message}", key=f"{KEY}.{part.name}.distributor{inner}"
        ) from error


def check_ends(part: MixturePart, epochs: int, lanes: int) -> None:
    """Refuse a part that is to be drawn so often, and does not say that it ends then.

    Raises:
        InvalidJob: It does not.
    """
    own = part.distributor
    if not own.ends_by_epochs and own.draws(0, lanes) is None:
        raise InvalidJob(
            f"part {part.name!r} is to end after {epochs} epochs, and {type(own).__name__} does "
            "not say that it does: leave out its max_epochs and the job's epochs",
            key=f"{KEY}.{part.name}",
        )


def leaves(distributor: DataDistributor) -> list[DataDistributor]:
    """Return the distributors that draw items themselves."""
    inner = distributor.inner()
    return [leaf for each in inner for leaf in leaves(each)] if inner else [distributor]


def check_apart(parts: Sequence[MixturePart]) -> None:
    """Refuse parts that would draw the same item: it is known by source, number and epoch.

    Raises:
        InvalidJob: Two draw from one source, and no `where` keeps them apart.
    """
    drawing = [(part.name, leaf) for part in parts for leaf in leaves(part.distributor)]
    drawn_from = [leaf.drawn_from() for _, leaf in drawing]
    by_source: dict[str, list[int]] = {}
    for number, sources in enumerate(drawn_from):
        for source in sources:
            by_source.setdefault(source, []).append(number)
    # Only those that share a source: there may be a thousand parts, each with one of its own.
    pairs = {pair for numbers in by_source.values() for pair in combinations(numbers, 2)}
    for first, second in sorted(pairs):
        (name, one), (other_name, other) = drawing[first], drawing[second]
        shared = [source for source in drawn_from[first] if source in drawn_from[second]]
        what = f"source {shared[0]!r}"
        if isinstance(one, MapDistributor) and isinstance(other, MapDistributor):
            met = one.choice.meets(other.choice)
            if met is None:
                continue
            what = f"item {met.index} of source {met.source!r}"
        between = (
            f"parts {name!r} and {other_name!r} both draw"
            if name != other_name
            else f"two distributors of part {name!r} draw"
        )
        raise InvalidJob(
            f"{between} {what}: give each a source of its own, or a `where` that the other one's "
            "items do not meet",
            key=KEY,
        )


def shuffles(distributors: Sequence[DataDistributor]) -> list[Shuffle]:
    """Return the shuffles of all that read storage blocks by groups of lanes."""
    found = (leaf for each in distributors for leaf in leaves(each))
    every = [leaf.shuffling for leaf in found if isinstance(leaf, MapDistributor)]
    return [each for each in every if each.groups is not None]


def read_alike(distributors: Sequence[DataDistributor], lanes: int) -> None:
    """Let all that read storage blocks read them by the same groups of lanes.

    Every lane draws from all of them, so a group holds a window of blocks of each.

    Raises:
        InvalidJob: Two ask for another number of groups.
    """
    reading = [each for each in shuffles(distributors) if each.lanes == lanes]
    groups = [each.groups for each in reading if each.groups is not None]
    if len(groups) < 2:
        return
    asked = sorted({each.reading_groups for each in reading if each.reading_groups is not None})
    if len(asked) > 1:
        raise InvalidJob(
            f"parts ask for reading_groups {' and '.join(map(str, asked))}: all parts are read by "
            "the same groups of lanes, so give one number",
            key=KEY,
        )
    block_of_each = sum(each.block_bytes for each in groups)
    window = max((each.window_blocks or 0 for each in reading), default=0) or None
    is_small = sum(each.held * each.block_bytes for each in groups) <= SMALL_BYTES
    if asked:
        number = asked[0]
    elif is_small and window is None:
        number = 1
    else:
        number = default_groups(lanes, max(each.held for each in groups), block_of_each, window)
    for each, own in zip(reading, groups, strict=True):
        each.beside(number, own.held if number == 1 and is_small else None, block_of_each)


def weights_of(parts: Sequence[MixturePart]) -> list[Fraction]:
    """Return the parts' weights: as given, else how many items each has.

    Raises:
        InvalidJob: None are given, and how many items a part has is not known.
    """
    return [_items(part) if part.weight is None else part.weight for part in parts]


def _items(part: MixturePart) -> Fraction:
    total = 0
    for leaf in leaves(part.distributor):
        if isinstance(leaf, MapDistributor | EpisodesDistributor):
            total += leaf.epoch_draws(1)
            continue
        for name in leaf.drawn_from():
            source = leaf.sources[name]
            if not isinstance(source, IndexedSource):
                raise InvalidJob(
                    f"part {part.name!r} has no weight, and how many items source {name!r} holds "
                    "is not known before it is read: give each part a weight",
                    key=f"{KEY}.{part.name}",
                )
            total += len(source)
    return Fraction(total)


def part_targets(part: MixturePart, by: str, share: float) -> list[Target]:
    """Return the target of a part, and those of its own parts as shares of the whole."""
    inner = part.distributor.targets()
    nested = [Target(f"{part.name}/{each.part}", each.by, share * each.share) for each in inner]
    return [Target(part.name, by, share), *nested]


def part_identity(part: MixturePart, weight: int, limit: int | None) -> dict[str, Any]:
    """Return what of a part decides bytes."""
    found = {"name": part.name, "weight": weight, "distributor": part.distributor.identity()}
    return found if limit is None else {**found, "max_epochs": limit}
