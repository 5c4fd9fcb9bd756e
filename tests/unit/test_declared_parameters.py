"""Parameters that a role declares as fields: its constructor, its checks, what tools see of it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

from penstock.server.jobs.registry import KINDS
from penstock.server.roles.parameters import (
    AtLeast,
    NamesByNames,
    OfType,
    OneOf,
    TrueOrFalse,
    declared,
)
from penstock.server.roles.role import Role
from penstock.server.sources import JsonlSource, TokensSource
from penstock.wire.errors import InvalidJob


@declared
class Base(Role):
    """A role.

    Args:
        limit: The most.
    """

    section: ClassVar[str] = "batcher"

    name: str
    _: KW_ONLY
    limit: Annotated[int | None, AtLeast(1, "what it takes")] = None


@declared
class Derived(Base):
    """Another one."""

    kind: Annotated[str, OneOf(("one", "two"))] = "one"
    _: KW_ONLY
    strict: Annotated[bool, TrueOrFalse()] = False
    names: Annotated[Sequence[str], OfType((list, tuple), "a list of names")] = ()
    rename: Annotated[dict[str, str] | None, NamesByNames("names by names", False)] = None
    found: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self.both = f"{self.name}, {self.kind}"


def test_a_subclass_takes_the_parameters_of_its_bases_and_its_own() -> None:
    """Positions of bases come first, names last; nothing else that is annotated is one."""
    made = Derived("a", "two", limit=3)

    assert str(inspect.signature(Derived)).startswith("(name: str, kind: ")
    assert list(inspect.signature(Derived).parameters) == [
        "name",
        "kind",
        "strict",
        "names",
        "rename",
        "limit",
    ]
    assert typing.get_type_hints(Derived.__init__)["limit"] == int | None
    assert (made.both, made.limit, made.strict) == ("a, two", 3, False)
    assert made.parameters() == {"name": "a", "kind": "two", "limit": 3}
    assert made.clone().parameters() == made.parameters()


@pytest.mark.parametrize(
    ("given", "said", "key"),
    [
        ({"limit": 0}, "limit is 0: give what it takes as a whole number of at least 1", "limit"),
        ({"limit": True}, "limit is True: give what it takes as a whole number", "limit"),
        ({"kind": "tow"}, "kind is 'tow': choose one of one, two; did you mean two?", "kind"),
        ({"kind": None}, "kind is None: choose one of one, two", "kind"),
        ({"strict": "no"}, "strict is 'no': write true or false", "strict"),
        ({"names": "a"}, "names is 'a': give a list of names", "names"),
        ({"rename": {}}, "rename is {}: give names by names", "rename"),
        ({"rename": {"a": 1}}, "rename is {'a': 1}: give names by names", "rename"),
        ({"rename": "a"}, "rename is 'a': give names by names", "rename"),
    ],
)
def test_a_value_out_of_bounds_is_refused(given: dict[str, Any], said: str, key: str) -> None:
    """One sentence, with the parameter's key in a job file; `__post_init__` is not reached."""
    with pytest.raises(InvalidJob) as caught:
        Derived("a", **given)

    assert caught.value.message.startswith(said)
    assert caught.value.key == f"batcher.{key}"


def test_what_a_constructor_does_not_take_is_named() -> None:
    """In Python's words, and the class."""
    with pytest.raises(TypeError, match="Derived: missing a required argument: 'name'"):
        Derived()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="Derived: got an unexpected keyword argument 'knd'"):
        Derived("a", knd=1)  # type: ignore[call-arg]


def test_a_users_subclass_is_checked_by_the_constructor_that_it_calls(tmp_path: Path) -> None:
    """Whatever its own constructor takes: bounds are those of the class that declares them."""
    (tmp_path / "a.jsonl").write_text("1\n2\n")

    class Mine(JsonlSource):
        def __init__(self, folder: str, size: int) -> None:
            super().__init__(folder, block_bytes=size)

    assert list(Mine(str(tmp_path), 64).fetch([1])) == [2]
    with pytest.raises(InvalidJob, match="block_bytes is 0: give a whole number of at least 1"):
        Mine(str(tmp_path), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_bound_of_a_builtin_is_in_the_words_of_the_table(kind: str) -> None:
    """A value that no bound allows is refused before any file is looked at."""
    for cls in KINDS[kind].builtins.values():
        for name, parameter in inspect.signature(cls.__init__).parameters.items():
            for bound in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(bound, AtLeast | NamesByNames | OfType | OneOf | TrueOrFalse):
                    required = {
                        each: 9 if kind == "batcher" else "x"
                        for each, its in list(inspect.signature(cls).parameters.items())
                        if its.default is its.empty
                    }
                    with pytest.raises(InvalidJob, match=f"^{name} is -1000: ") as caught:
                        cls(**{**required, name: -1000})
                    assert caught.value.key in (name, f"{kind}.{name}")


def test_defaults_are_within_their_bounds() -> None:
    """Also the one that a subclass inherits."""
    checked = 0
    for name, parameter in inspect.signature(TokensSource.__init__).parameters.items():
        for bound in getattr(parameter.annotation, "__metadata__", ()):
            if parameter.default is not None:
                bound.check(name, parameter.default, key=name, optional=False)
                checked += 1
    assert checked == 3
