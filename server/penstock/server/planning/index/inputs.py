"""What sizes depend on: an index fits every job that agrees in it, whatever else its roles do.

Seed, lanes, epochs, the kind of batcher, rows, padding and the collator are not part of it. The
seed is, of jobs whose processing may draw random numbers; `penstockd index` leaves it out again if
nothing drew any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.server.core.canonical import canonical
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.index.index_file import MEASURES
from penstock.server.roles.batcher import rule_of_sizes
from penstock.server.roles.condition import Kept
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.source import IndexedSource, indexed
from penstock.wire.errors import InvalidJob

SEED = "seed"

FORMAT = 1
"""Version of the rules by which samples are counted and measured."""


def index_inputs(roles: RoleSet, seed: int) -> dict[str, Any]:
    """Return what an index of sizes for a job must have been made of, JSON-able.

    Args:
        roles: The job's set of roles.
        seed: The job's seed.

    Returns:
        `format`; `sources`, each with its name and its identity; `where`, if there is a condition;
        `processor`, its identity; `media`, what identifies those that items name, if any; `size`,
        what the size of a sample is (`size_rule`); `measures`, what samples count beside it, if
        anything; and `seed` where processing may draw random numbers.

    Raises:
        InvalidJob: The job cannot be planned: see `indexed_sources`.
    """
    sources = indexed_sources(roles)
    found: dict[str, Any] = {
        "format": FORMAT,
        "sources": [
            {"name": name, "identity": source.identity()} for name, source in sources.items()
        ],
        "processor": roles.processor.identity(),
        "size": size_rule(roles),
    }
    if roles.media is not None and (media := roles.media.identity()):
        found["media"] = media
    assert isinstance(roles.distributor, MapDistributor)
    chosen = roles.distributor.choice.parameters()
    if "where" in chosen:
        found["where"] = {"version": chosen["selection"], "condition": chosen["where"]}
    if roles.measures:
        found[MEASURES] = roles.measures
    if may_draw(roles):
        found[SEED] = seed
    # As it comes back out of a file: roles may hold tuples.
    plain: dict[str, Any] = json.loads(canonical(found))
    return plain


def indexed_sources(roles: RoleSet) -> dict[str, IndexedSource]:
    """Return the sources that a job draws from, in its order.

    Raises:
        InvalidJob: Its distributor is not `map`.
    """
    distributor = roles.distributor
    if not isinstance(distributor, MapDistributor) or not distributor.keeps(MapDistributor):
        raise InvalidJob(
            f"distributor is {_called(distributor)}: an index of sizes is for jobs whose "
            "distributor is map; use that, with `where` and `sample_ratio` if you need them",
            key="distributor",
        )
    names = distributor.drawn_from()
    return dict(zip(names, indexed(roles.sources, names, distributor), strict=True))


def _called(distributor: DataDistributor) -> str:
    return str(vars(type(distributor)).get("type_name") or type(distributor).__name__)


def kept_items(roles: RoleSet, name: str) -> Kept | None:
    """Return which items of a source have positions in the index; None = all of them."""
    assert isinstance(roles.distributor, MapDistributor)
    return roles.distributor.choice.kept(name)


def size_rule(roles: RoleSet) -> Any:
    """Return what the size of a sample is in an index.

    `{"length_of": NAME}`; None = 0; `{"length_of": NAME, "else": 0}`: 0 for samples without such a
    value; or the identity of a user's batcher, whose `size_of` says it. A batcher that looks at no
    sizes gets lengths all the same, where samples have any: reports count their tokens.
    """
    rule = rule_of_sizes(roles.batcher)
    if roles.batcher.needs_sizes or not isinstance(rule, dict) or "length_of" not in rule:
        return rule
    known = [
        roles.processor.keys_of_samples(source.columns_of_items())
        for source in indexed_sources(roles).values()
    ]
    has = {None if keys is None else rule["length_of"] in keys for keys in known}
    if has == {True}:
        return rule
    return None if has == {False} else {**rule, "else": 0}


def may_draw(roles: RoleSet) -> bool:
    """Tell whether what processing gives may depend on random numbers, and so on the seed."""
    processor = roles.processor
    return (
        processor.is_of_user()
        or processor.uses_global_rng
        or any(source.uses_global_rng for source in roles.sources.values())
    )


def check_inputs(url: str, inputs: Mapping[str, Any], roles: RoleSet, seed: int) -> None:
    """Refuse an index that was made for something else than a job.

    Args:
        url: Where it lies.
        inputs: What it was made of.
        roles: The job's set of roles.
        seed: The job's seed.

    Raises:
        InvalidJob: Says what differs.
    """
    if differs := differences(inputs, index_inputs(roles, seed)):
        raise InvalidJob(
            f"the index {url!r} does not fit this job: {differs[0]} differs; make it anew with "
            "`penstockd index FILE JOB --force`, or name another in plan.index or by --index",
            key="plan.index",
        )


def differences(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return in words what of an index's inputs is not what a job needs, the first one first."""
    if SEED not in made:  # nothing drew random numbers, so the sizes are those of every seed
        wanted = {key: value for key, value in wanted.items() if key != SEED}
    names = {SEED: "the seed that its sizes depend on"}
    return [
        names.get(path.partition(".")[0], path.removesuffix(".identity"))
        for path in _paths(made, wanted, "")
    ]


def _paths(one: Any, other: Any, where: str) -> list[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted(one.keys() | other.keys())
        return [
            path
            for key in keys
            for path in _paths(one.get(key, ...), other.get(key, ...), f"{where}.{key}".lstrip("."))
        ]
    if _is_list(one) and _is_list(other) and len(one) == len(other):
        return [
            path
            for number, (a, b) in enumerate(zip(one, other, strict=True))
            for path in _paths(a, b, f"{where}[{number}]")
        ]
    return [] if type(one) is type(other) and one == other else [where]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
