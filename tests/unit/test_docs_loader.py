"""docs/loader.md is the Loader: each parameter, call, attribute and statistic, with its default."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from penstock.client import Limits, Loader, Ranks
from penstock.client.loop.steps import _BATCH_ATTRIBUTES, Step
from penstock.server.jobs.docstrings import argument_docs

PAGE = (Path(__file__).parents[2] / "docs" / "loader.md").read_text()


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table below a heading, its head left out."""
    [section] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    found = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return found[2:]


def names(title: str) -> list[str]:
    """Return the names in the first column of a table, without their parameters."""
    return [re.sub(r"\(.*", "", row[0].strip("`")) for row in rows(title)]


@pytest.mark.parametrize(
    ("title", "taker"), [("Parameters", Loader), ("Ranks", Ranks), ("Limits", Limits)]
)
def test_the_page_names_every_parameter_with_its_default(title: str, taker: type) -> None:
    """In the order of the signature."""
    parameters = [
        parameter
        for parameter in inspect.signature(taker).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD  # what a Loader refuses with a remedy
    ]

    def shown(value: object) -> str:
        if isinstance(value, Limits):
            return f"`{type(value).__name__}()`"
        return "" if value is inspect.Parameter.empty else f"`{value!r}`".replace("'", '"')

    assert [(name.strip("`"), default) for name, default, _ in rows(title)] == [
        (parameter.name, shown(parameter.default)) for parameter in parameters
    ]


@pytest.mark.parametrize(
    ("title", "taker"), [("Parameters", Loader), ("Ranks", Ranks), ("Limits", Limits)]
)
def test_the_page_says_of_a_parameter_what_its_docstring_says(title: str, taker: type) -> None:
    """One sentence in one place: the docstring is its home, the page a copy."""
    meanings = argument_docs(inspect.getdoc(taker))

    assert {name.strip("`"): meaning for name, _, meaning in rows(title)} == meanings


def test_the_page_names_every_statistic() -> None:
    loader = Loader("127.0.0.1:1", "code", rank=0, world_size=1)

    assert names("`stats()`") == list(loader.stats())


def test_the_page_names_every_attribute_of_a_batch() -> None:
    assert names("A batch") == list(_BATCH_ATTRIBUTES)


def test_the_page_names_every_call() -> None:
    """Those that users make; `dataset` only says why there is none."""
    public = {name for name in vars(Loader) if not name.startswith("_")}
    listed = names("Reading") + names("Position and cursor")
    reading = [re.sub(r"^(iter|len)\(.*", "", name) for name in listed]
    calls = [name for name in reading if name not in ("iter", "len")]

    assert set(calls) == public - {"dataset"}
    assert len(calls) == len(set(calls))
    for name in calls:
        if callable(getattr(Loader, name)):
            given = re.findall(r"(\w+)(?=[,)=])", re.findall(rf"`{name}(\(.*?\))`", PAGE)[0])
            wanted = [p for p in inspect.signature(getattr(Loader, name)).parameters if p != "self"]
            assert [word for word in given if word != "None"] == wanted, name


def test_the_page_names_what_a_step_has() -> None:
    [sentence] = re.findall(r"^A step has .*$", PAGE, re.M)

    for name in (name for name in vars(Step) if not name.startswith("_")):
        assert f"`{name}" in sentence, name
