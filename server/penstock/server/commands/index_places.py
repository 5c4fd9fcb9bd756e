"""Which indexes of sizes a command is about: one for each set of roles, and where each lies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.planning.make.making import Making
from penstock.wire.errors import InvalidJob, InvalidRequest

_NAME = re.compile(r"[\w-]+")
"""What names of sets look like, and URLs do not."""


class Wanted(NamedTuple):
    """An index that shall be made.

    Attributes:
        roles: The set of roles that it is for.
        url: Where it shall lie.
        options: Options of the filesystem.
    """

    roles: RoleSet
    url: str
    options: dict[str, Any]


def indexes_of(job: Job, sets: Sequence[str], outputs: Sequence[str]) -> list[Wanted]:
    """Return which indexes a command shall make, in the order of the job's sets.

    Args:
        job: The job.
        sets: The sets that are asked for by name; none = all that say where theirs lies.
        outputs: Places that are given, see `places_of`.

    Raises:
        InvalidRequest: A set or a place cannot be meant so, or a place would not last.
        InvalidJob: Nothing says where an index shall lie.
    """
    by_name = {roles.name: roles for roles in job.role_sets}
    for name in sets:
        _check_set(job, name)
    asked = [name for name in by_name if name in sets or not sets]
    places = places_of(job, "output", outputs, asked)
    for name in places:
        if name not in asked:
            raise InvalidRequest(
                f"--output gives a place for set {name!r}, and --role-set asks for "
                f"{', '.join(asked)} alone: add --role-set {name}, or leave the place out",
                field="output",
                value=places[name],
            )
    found = []
    for name in asked:
        roles, plan = by_name[name], by_name[name].plan
        if name in places:
            # Options are for the place that the job names, and may not suit another.
            same = plan is not None and plan.index == places[name]
            options = plan.storage_options if plan is not None and same else {}
            found.append(Wanted(roles, places[name], options))
        elif plan is not None:
            found.append(Wanted(roles, plan.index, plan.storage_options))
        elif sets or not name:
            raise _no_place(job, name)
    if not found:
        raise InvalidJob(
            f"no set of roles of job {job.name!r} says where its index of sizes lies: give "
            f"--output NAME=URL with the name of a set ({', '.join(by_name)}), or the sets a plan",
            key="plan.index",
        )
    for wanted in found:
        if wanted.url.startswith("memory://"):
            raise InvalidRequest(
                f"{wanted.url!r} lies in the memory of this command, and would be gone when it "
                "ends: give a path, or the URL of a store that outlives it",
                field="output",
                value=wanted.url,
            )
    return found


def _no_place(job: Job, name: str) -> InvalidJob:
    if not name:
        return InvalidJob(
            f"job {job.name!r} does not say where its index of sizes lies: give --output, or "
            "the job a plan",
            key="plan.index",
        )
    return InvalidJob(
        f"set {name!r} of job {job.name!r} does not say where its index of sizes lies: give "
        f"--output {name}=URL, or the set a plan",
        key="plan.index",
    )


def _check_set(job: Job, name: str) -> None:
    names = [roles.name for roles in job.role_sets]
    if names == [""]:
        raise InvalidRequest(
            f"--role-set names {name!r}, and job {job.name!r} has one set of roles without a name: "
            "leave the option out",
            field="role_set",
            value=name,
        )
    if name not in names:
        raise InvalidRequest(
            f"--role-set names {name!r}, and the sets of job {job.name!r} are {', '.join(names)}: "
            "give one of these",
            field="role_set",
            value=name,
        )


def places_of(
    job: Job, option: str, values: Sequence[str], asked: Sequence[str]
) -> Mapping[str, str]:
    """Return what an option says of places of indexes, by the name of the set of roles.

    Of a joint job a value is `NAME=URL`; a URL alone will do where one set is asked for.

    Args:
        job: The job.
        option: The option's name, for errors.
        values: What was given.
        asked: The names of the sets that are asked for.

    Raises:
        InvalidRequest: A value does not say for which set it is; or a set has two.
    """
    names = [roles.name for roles in job.role_sets]
    found: dict[str, str] = {}
    for value in values:
        name, equals, url = value.partition("=")
        if not equals or name not in names:
            # Where one set is asked for a place may hold `=`; but `NAME=` of no set is a slip.
            is_slip = equals and names != [""] and _NAME.fullmatch(name)
            if len(asked) > 1 or is_slip:
                otherwise = "; a file whose name begins like that has ./ before it"
                raise InvalidRequest(
                    f"--{option} is {value!r}, and job {job.name!r} has several sets of roles: "
                    f"write NAME=URL, where NAME is {' or '.join(names)}"
                    f"{otherwise if is_slip else ''}",
                    field=option,
                    value=value,
                )
            name, url = asked[0], value
        if name in found or not url:
            whose = f" for set {name!r}" if name else ""
            what = f"twice{whose}" if name in found else f"without a place{whose}"
            raise InvalidRequest(
                f"--{option} is given {what}: give it once, with a path or a URL",
                field=option,
                value=value,
            )
        found[name] = url
    return found


def check_apart(job: Job, wanted: Sequence[Wanted], makings: Sequence[Making]) -> None:
    """Refuse two sets of roles whose indexes have one place: each would replace the other's.

    Raises:
        InvalidJob: With both names.
    """
    seen: dict[str, str] = {}
    for (roles, url, _), making in zip(wanted, makings, strict=True):
        other = seen.setdefault(making.place.full_url, roles.name)
        if other != roles.name:
            raise InvalidJob(
                f"sets {other!r} and {roles.name!r} of job {job.name!r} name one place for their "
                f"indexes of sizes, {url!r}: give each set its own",
                key="plan.index",
            )
