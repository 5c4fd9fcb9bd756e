"""What is written for a class: the names of its parameters are checked, and their types."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from penstock.server.config.location import Location
from penstock.server.core.shown import shown_at
from penstock.server.roles.role import Role

Remedy = Callable[[str, Collection[str]], str]


def constructor_parameters(cls: type[Role]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class's constructor by name, `self` left out."""
    if cls.__init__ is object.__init__:  # its signature says that it takes anything
        return {}
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])


def check_parameters(
    cls: type[Role], parameters: Mapping[str, Any], location: Location, remedy: Remedy
) -> None:
    """Check the names of a constructor's parameters, and of a built-in their types.

    Args:
        cls: The class.
        parameters: What is written for it.
        location: Where that is written.
        remedy: Returns the end of a sentence about a name that is none of the known ones.

    Raises:
        InvalidJob: Names the key, and what is known or expected there.
    """
    _check_names(cls, parameters, location, remedy)
    _check_types(cls, parameters, location)


def _check_names(
    cls: type[Role], parameters: Mapping[str, Any], location: Location, remedy: Remedy
) -> None:
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
            instead = cls.replaced_params.get(name) or remedy(str(name), named)
            raise at.error(f"{at.key} is not a parameter of {_called(cls)}: {instead}")
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
