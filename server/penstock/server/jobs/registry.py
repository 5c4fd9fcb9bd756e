"""From `type:` in a job file to a role: finding the class, checking its parameters, building it."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from penstock.server.core.shown import shown, shown_at
from penstock.server.jobs.location import Location
from penstock.server.jobs.misplaced import remedy_in_role
from penstock.server.roles.base import (
    BatchCollator,
    DataDistributor,
    IndexedSource,
    RawItemProcessor,
    SampleBatcher,
    Source,
    StreamSource,
)
from penstock.server.roles.batchers import BUILTIN_BATCHERS
from penstock.server.roles.collators import BUILTIN_COLLATORS, FunctionCollator
from penstock.server.roles.distributors import BUILTIN_DISTRIBUTORS
from penstock.server.roles.function import FunctionRole
from penstock.server.roles.processors import BUILTIN_PROCESSORS, FunctionProcessor
from penstock.server.roles.role import Role
from penstock.server.sources import BUILTIN_SOURCES
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_line, user_traceback
from penstock.server.usercode.imports import is_file_spec, load_attribute
from penstock.wire.errors import InvalidJob, PenstockError
from penstock.wire.nearest import hint


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


class Numbered(NamedTuple):
    """What a name with a number means.

    Attributes:
        cls: The class.
        parameter: Which parameter the number is.
        number: The number.
    """

    cls: type[Role]
    parameter: str
    number: int


def numbered(kind: Kind, name: str) -> Numbered | None:
    """Return what `window_10` means: a built-in and one of its parameters; None = another name."""
    stem, _, number = name.rpartition("_")
    cls = kind.builtins.get(stem)
    if cls is None or not cls.numbered_by or not number.isdecimal() or not number.isascii():
        return None
    return Numbered(cls, cls.numbered_by, int(number))


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
    check_parameters(cls, parameters, location)

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


def constructor_parameters(cls: type[Role]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor by name, `self` left out."""
    if cls.__init__ is object.__init__:  # its signature says that it takes anything
        return {}
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


def check_parameters(cls: type[Role], parameters: Mapping[str, Any], location: Location) -> None:
    """Check the names of a constructor's parameters, and of a built-in their types.

    Raises:
        InvalidJob: Names the key, and what is known or expected there.
    """
    _check_names(cls, parameters, location)
    _check_types(cls, parameters, location)


def _check_names(cls: type[Role], parameters: Mapping[str, Any], location: Location) -> None:
    """Refuse parameters that the constructor lacks; name required ones that are not given."""
    accepted = constructor_parameters(cls)
    named = {
        name: parameter
        for name, parameter in accepted.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    for name in parameters:
        if name not in named and not takes_any:
            at = location.at(str(name))
            raise at.error(
                f"{at.key} is not a parameter of {_called(cls)}: {remedy_in_role(str(name), named)}"
            )
    missing = [
        name
        for name, parameter in named.items()
        if parameter.default is parameter.empty and name not in parameters
    ]
    if missing:
        given = f" (given are {', '.join(parameters)})" if parameters else ""
        raise location.error(
            f"{location.key}: {_called(cls)} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not given{given}"
        )


def _called(cls: type[Role]) -> str:
    """Return what a job file calls a class: a built-in by its type."""
    return str(vars(cls).get("type_name") or cls.__name__)


_ADAPTER = ConfigDict(strict=True, arbitrary_types_allowed=True)


def _check_types(cls: type[Role], parameters: Mapping[str, Any], location: Location) -> None:
    """Check values against the annotations of a built-in's constructor.

    A user's class is only called: its annotations may be stricter than what it accepts.
    """
    if not cls.__module__.startswith("penstock."):
        return
    try:
        hints = typing.get_type_hints(cls.__init__)
    except NameError:  # an annotation of a package that is only imported for type checkers
        return
    for name, value in parameters.items():
        wanted = hints.get(name, Any)
        try:
            # As JSON: what a file can say is exactly JSON, and lists then pass for tuples.
            TypeAdapter(wanted, config=_ADAPTER).validate_json(json.dumps(value))
        except ValidationError:
            at = location.at(name)
            raise at.error(
                f"{at.key} is {shown_at(name, value)}: give {describe_type(wanted)}"
            ) from None
        except (PydanticUserError, TypeError):
            continue  # no schema for this annotation: the constructor decides


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "Sequence": "a list",
    "dict": "keys and values",
    "Mapping": "keys and values",
    "NoneType": "null",
    "PathLike": "a path",
}


def describe_type(wanted: Any) -> str:
    """Return a type as the words of an error message."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin is typing.Annotated:
        return describe_type(arguments[0])
    if origin is typing.Union or type(wanted).__name__ == "UnionType":
        words = dict.fromkeys(describe_type(argument) for argument in arguments)
        return " or ".join(word for word in words if word)
    name = getattr(origin or wanted, "__name__", str(wanted))
    word = _WORDS.get(name, "" if name == "Callable" else name)
    if name in ("list", "Sequence") and arguments:
        return f"a list of {describe_type(arguments[0]).removeprefix('a ')} values"
    return word


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


__all__ = [
    "FUNCTIONS",
    "KINDS",
    "Kind",
    "Numbered",
    "absolute",
    "build",
    "check_parameters",
    "constructor_parameters",
    "describe_type",
    "numbered",
    "resolve",
    "resolve_path",
]
