"""From `type:` in a job file to a role: finding the class, checking its parameters, building it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from penstock.common.nearest import hint
from penstock.server.config.class_parameters import check_parameters
from penstock.server.config.location import Location
from penstock.server.core.shown import shown
from penstock.server.jobs.misplaced import remedy_in_role
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import BUILTIN_BATCHERS
from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators import BUILTIN_COLLATORS, FunctionCollator
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors import BUILTIN_DISTRIBUTORS
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors import BUILTIN_PROCESSORS, FunctionProcessor
from penstock.server.roles.role import Role
from penstock.server.roles.source import IndexedSource, Source, StreamSource
from penstock.server.roles.user_function import FunctionRole
from penstock.server.sources import BUILTIN_SOURCES
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_line, user_traceback
from penstock.server.usercode.imports import is_file_spec, load_attribute
from penstock.wire.errors import InvalidJob, PenstockError


@dataclass(frozen=True)
class Kind:
    """One of the five things that a job is made of.

    Attributes:
        name: Its key in a job file.
        base: What a class must be to serve as one.
        builtins: The classes that penstock brings, by their names in job files.
    """

    name: str
    base: type[Role]
    builtins: Mapping[str, type[Role]]

    @property
    def group(self) -> str:
        """The entry point group in which installed packages offer more of them."""
        return f"penstock.{self.name}s"

    def entry_points(self) -> dict[str, EntryPoint]:
        """Return what installed packages offer, by name."""
        return {point.name: point for point in entry_points(group=self.group)}


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("source", Source, BUILTIN_SOURCES),
        Kind("distributor", DataDistributor, BUILTIN_DISTRIBUTORS),
        Kind("processor", RawItemProcessor, BUILTIN_PROCESSORS),
        Kind("batcher", SampleBatcher, BUILTIN_BATCHERS),
        Kind("collator", BatchCollator, BUILTIN_COLLATORS),
    )
}

FUNCTIONS: dict[str, type[FunctionRole]] = {
    cls.kind: cls for cls in (FunctionProcessor, FunctionCollator)
}
"""The roles that `function:` makes in the place of `type:`, by their key in a job file."""


def resolve(kind: Kind, name: str, location: Location) -> type[Role]:
    """Return the class that a `type:` names.

    Built-in names come first: an installed package cannot change what a job file means.

    Args:
        kind: Which role.
        name: A built-in, an entry point, `package.module:Class` or `./file.py:Class`.
        location: Where the role stands in the job file.

    Raises:
        InvalidJob: Nothing has that name, its import fails, or the class is not such a role.
    """
    at = location.at("type")
    if name in kind.builtins:
        return kind.builtins[name]
    if (counted := numbered(kind, name)) is not None:
        return counted.cls
    offered = kind.entry_points()
    if name in offered:
        try:
            found = contained(offered[name].load)
        except Exception as error:
            raise at.error(
                f"the {kind.name} {name!r} of {offered[name].value} cannot be imported: "
                f"{error_line(error)}",
                InvalidJob("", traceback=user_traceback(error)),
            ) from error
    elif ":" in name:
        try:
            found = load_attribute(resolve_path(name, location.base))
        except InvalidJob as error:
            raise at.error(f"{at.key}: {error.message}", error) from error
    else:
        known = [*kind.builtins, *offered]
        remedy = hint(name, known)
        raise at.error(
            f"{at.key}: there is no {kind.name} {shown(name)}: {remedy}"
            + ("" if remedy.startswith("known") else f" (known are {', '.join(sorted(known))})")
            + "; your own is named as ./file.py:Class or package.module:Class"
        )
    if (
        inspect.isclass(found)
        and issubclass(found, Source)
        and not issubclass(found, IndexedSource | StreamSource)
        and inspect.isabstract(found)
    ):
        raise at.error(
            f"{name!r} is derived from Source itself, and gives items neither by number nor as a "
            "stream: derive it from penstock.server.roles.IndexedSource or StreamSource"
        )
    if not (inspect.isclass(found) and issubclass(found, kind.base)):
        what = f"a {type(found).__name__}"
        if inspect.isclass(found):
            what = f"the class {found.__name__}"
        base = IndexedSource if kind.base is Source else kind.base
        remedy = f"derive it from penstock.server.roles.{base.__name__}"
        if kind.name in FUNCTIONS and callable(found) and not inspect.isclass(found):
            remedy = (
                f"write function: {name} in place of processor:"
                if kind.name == "processor"
                else f"write {kind.name}: {{function: {name}}}"
            )
        if kind.name == "source" and callable(found):
            remedy = (
                f"for a Dataset with __len__ and __getitem__ write {{type: torch, factory: "
                f"{name}}}, else derive it from penstock.server.roles.IndexedSource"
            )
        raise at.error(f"{name!r} is {what} and no {kind.name}: {remedy}")
    return found


class NumberedName(NamedTuple):
    """What a name with a number means.

    Attributes:
        cls: The class.
        parameter: Which parameter the number is.
        number: The number.
    """

    cls: type[Role]
    parameter: str
    number: int


def numbered(kind: Kind, name: str) -> NumberedName | None:
    """Return what `window_10` means: a built-in and one of its parameters; None = another name."""
    stem, _, number = name.rpartition("_")
    cls = kind.builtins.get(stem)
    if cls is None or not cls.numbered_by or not number.isdecimal() or not number.isascii():
        return None
    return NumberedName(cls, cls.numbered_by, int(number))


def build(kind: Kind, spec: Mapping[str, Any], location: Location) -> Any:
    """Return the role that a section of a job file describes.

    Args:
        kind: Which role.
        spec: `type`, and the constructor's parameters beside it.
        location: Where it stands.

    Raises:
        InvalidJob: The class or a parameter is wrong, or the constructor raises.
    """
    parameters = dict(spec)
    name = parameters.pop("type", None)
    if name is None and kind.name in FUNCTIONS and "function" in parameters:
        cls: type[Role] = FUNCTIONS[kind.name]
    elif name is None:
        raise location.error(
            f"{location.key} has no type: give one of {', '.join(sorted(kind.builtins))}, "
            "or your own as ./file.py:Class"
        )
    else:
        cls = resolve(kind, name, location)
        if (counted := numbered(kind, name)) is not None:
            if counted.parameter in parameters:
                at = location.at(counted.parameter)
                raise at.error(f"{at.key} is given, and {name} has it in its name: leave one out")
            parameters[counted.parameter] = counted.number
    check_parameters(cls, parameters, location, remedy_in_role)

    def inner(section: Any, *keys: str) -> Any:
        """Return a role of the same kind, which a parameter of this one describes."""
        at = location.at(*keys)
        if isinstance(section, str):
            section = {"type": section}
        if not isinstance(section, Mapping):
            raise at.error(f"{at.key} is {shown(section)}: give a type, with its parameters")
        return build(kind, section, at)

    parameters = cls.with_roles(parameters, inner)
    for path_param in {*cls.path_params, *(["function"] if cls in FUNCTIONS.values() else [])}:
        if path_param in parameters:
            parameters[path_param] = absolute(parameters[path_param], location.base)
    try:
        role = contained(lambda: cls(**parameters))
        # A file that is not a tokenizer, a function that is missing: found here, where the key is
        # known. A source's identity reads data, and is checked with the log id.
        contained(role.check_identity)
    except PenstockError as error:
        key = str(error.fields.get("key") or "").removeprefix(f"{kind.name}.")
        if isinstance(error, InvalidJob) and error.spec is not None:  # which parameter names it?
            key = next((k for k, v in parameters.items() if v == error.spec), key)
        at = location.at(key) if key in spec else location
        if not isinstance(error, InvalidJob):
            raise error.reworded(f"{at.key}: {error.message}") from error
        # Many messages begin with the parameter's name, which the path then completes.
        sentence = (
            f"{location.key}.{error.message}"
            if error.message.startswith(f"{key} ") and at is not location
            else f"{at.key}: {error.message}"
        )
        raise at.error(sentence, error) from error
    except Exception as error:
        source = user_line(error)
        raise location.error(
            f"{location.key}: {cls.__name__} cannot be built: {error_line(error)}"
            + (f" ({source})" if source else ""),
            InvalidJob("", traceback=user_traceback(error)),
        ) from error
    return role


# --- paths ---

_MODULE_ATTRIBUTE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def resolve_path(value: str, base: Path) -> str:
    """Return a path of a job file as an absolute one, relative to the folder `base`.

    `scheme://...` and `package.module:name` are not paths and stay unchanged, as does the `:name`
    after a `.py` file.
    """
    path, colon, name = value.rpartition(":")
    if "://" in value or (_MODULE_ATTRIBUTE.fullmatch(value) and not is_file_spec(path)):
        return value
    if colon and path.endswith(".py"):
        return f"{resolve_path(path, base)}:{name}"
    # Not Path.resolve(): a link to the data is as good as the data.
    return str(base / Path(value).expanduser())


def absolute(value: Any, base: Path) -> Any:
    """Return `value` with every path in it made absolute: a string, a list, or a dict of them."""
    if isinstance(value, str):
        return resolve_path(value, base)
    if isinstance(value, list):
        return [absolute(inner, base) for inner in value]
    if isinstance(value, dict):
        return {key: absolute(inner, base) for key, inner in value.items()}
    return value
