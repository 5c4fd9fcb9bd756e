"""Parameters of a role, declared once: fields of its class, with the values that make sense.

```python
@declared
class CutSource(FileSource):
    files: Files
    _: KW_ONLY
    block_bytes: Annotated[int, AtLeast(1)] = 4 << 20

    def __post_init__(self) -> None:
        self.open_files(self.files)
```

The constructor takes them in this order, checks them, keeps each under its name and then calls
`__post_init__`. A subclass that is declared, too, takes those of its bases and its own; one that it
declares anew is its own. What a parameter means is said once, in the docstring of the class that
declares it. A role that takes `**arguments` writes its constructor by hand.

A bound has `check(name, value, *, key, optional)`, which refuses a value with `InvalidJob`: `key`
is where it is in the job file, and `optional` says that the parameter may be left out. None is not
given to it where that is the default, or of its type.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from inspect import Parameter, Signature, get_annotations
from types import NoneType
from typing import (
    Any,
    ClassVar,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from penstock.common.checks import check_choice, check_flag, check_whole
from penstock.server.core.shown import shown
from penstock.wire.errors import InvalidJob

Declared = TypeVar("Declared", bound=type[Any])


@dataclass(frozen=True)
class AtLeast:
    """A whole number.

    Attributes:
        least: The smallest one that makes sense.
        meaning: What it means, for the error's sentence; empty = the parameter's name says it.
    """

    least: int
    meaning: str = ""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is not a whole number, or too small."""
        check_whole(name, value, self.least, self.meaning, optional=optional, key=key)


@dataclass(frozen=True)
class NumberUpTo:
    """A number above 0, up to a bound.

    Attributes:
        most: The largest one.
        zero: It may be 0.
    """

    most: float
    zero: bool = False

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= self.most or (value == 0 and not self.zero):
            least = "from 0" if self.zero else "above 0"
            raise InvalidJob(
                f"{name} is {shown(value)}: give a number {least} to {self.most:g}", key=key
            )


@dataclass(frozen=True)
class OneOf:
    """One of a few words.

    Attributes:
        choices: The words.
    """

    choices: tuple[str, ...]

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is not one of them."""
        check_choice(name, value, self.choices, key=key)


@dataclass(frozen=True)
class TrueOrFalse:
    """True or false, and not a text such as "no", which would count as true."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is neither."""
        check_flag(name, value, key=key)


FilePath = str | os.PathLike[str]
PATH = (str, os.PathLike)


@dataclass(frozen=True)
class OfType:
    """A value of some type, where another would fail later and elsewhere.

    Attributes:
        types: What it may be.
        meaning: What to give, for the error's sentence.
    """

    types: tuple[type[Any], ...]
    meaning: str

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is of another type."""
        if not isinstance(value, self.types):
            raise InvalidJob(f"{name} is {value!r}: give {self.meaning}", key=key)


@dataclass(frozen=True)
class NamesByNames:
    """Texts by texts.

    Attributes:
        meaning: What to give, for the error's sentence.
        may_be_empty: None need be given.
    """

    meaning: str
    may_be_empty: bool = True

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse what is not names by names."""
        are_texts = isinstance(value, Mapping) and all(
            isinstance(each, str) for pair in value.items() for each in pair
        )
        if not are_texts or not (value or self.may_be_empty):
            raise InvalidJob(f"{name} is {value!r}: give {self.meaning}", key=key)


@dataclass_transform(eq_default=False)
def declared(cls: Declared) -> Declared:
    """Give a class a constructor for the parameters that it and its bases declare.

    A class attribute `section`, the section of a job file, is put before the parameters' names in
    the keys of errors.

    Args:
        cls: A role. Annotations that are not of a `ClassVar` are its parameters; those after
            `_: KW_ONLY` are given by name.
    """
    parameters = _parameters(cls)
    signature = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters])
    names = [parameter.name for parameter in parameters]
    bounds = [
        (parameter.name, bound, _may_be_none(parameter), parameter.default is None)
        for parameter in parameters
        for bound in getattr(parameter.annotation, "__metadata__", ())
    ]
    section = f"{cls.section}." if hasattr(cls, "section") else ""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}") from None
        given.apply_defaults()
        values = given.arguments
        for name, bound, may_be_none, is_optional in bounds:
            if values[name] is not None or not may_be_none:
                key = f"{section}{name}"
                bound.check(name, values[name], key=key, optional=is_optional)
        for name in names:
            setattr(self, name, values[name])
        if (prepare := getattr(self, "__post_init__", None)) is not None:
            prepare()

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    __init__.__annotations__ = {each.name: each.annotation for each in parameters}
    __init__.__qualname__, __init__.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    cls.__init__ = __init__
    return cls


def _may_be_none(parameter: Parameter) -> bool:
    return parameter.default is None or NoneType in get_args(get_args(parameter.annotation)[0])


def _parameters(cls: type[Any]) -> list[Parameter]:
    """Return the parameters of a class: by position those of its bases come first, by name last."""
    before = getattr(cls.__init__, "__signature__", None)
    inherited = list(before.parameters.values())[1:] if before else []
    hints, own, by_name_only = get_type_hints(cls, include_extras=True), [], False
    for name in get_annotations(cls):
        if hints[name] is KW_ONLY:
            by_name_only = True
        elif get_origin(hints[name]) is not ClassVar:
            kind = Parameter.KEYWORD_ONLY if by_name_only else Parameter.POSITIONAL_OR_KEYWORD
            default = vars(cls).get(name, Parameter.empty)
            own.append(Parameter(name, kind, default=default, annotation=hints[name]))
    names = {each.name for each in own}
    inherited = [each for each in inherited if each.name not in names]
    by_position = [each for each in (*inherited, *own) if each.kind is not Parameter.KEYWORD_ONLY]
    by_name = [each for each in (*own, *inherited) if each.kind is Parameter.KEYWORD_ONLY]
    return [*by_position, *by_name]
