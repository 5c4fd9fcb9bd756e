"""The pages that say which built-in role suits what: complete, with a command for their figures."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from penstock.server.jobs.registry import KINDS

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
PAGES = {
    "source": "sources",
    "distributor": "distributors",
    "processor": "processors",
    "batcher": "batchers",
    "collator": "collators",
}


def benches() -> set[str]:
    """The names that `make bench NAMES=` knows."""
    tree = ast.parse((HOME / "tests" / "bench" / "run.py").read_text())
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NAMES"
    ]
    return set(names)


def test_every_family_of_roles_has_a_page_that_the_readme_lists() -> None:
    """And no family is left out."""
    readme = (HOME / "README.md").read_text()

    assert set(PAGES) == set(KINDS)
    for page in PAGES.values():
        assert f"](docs/{page}.md)" in readme


@pytest.mark.parametrize(("kind", "page"), PAGES.items())
def test_a_page_names_every_role_of_its_family(kind: str, page: str) -> None:
    """Each built-in by its `type:`, in the list with which the page begins or in a table."""
    text = (DOCS / f"{page}.md").read_text()

    missing = [name for name in KINDS[kind].builtins if f"`{name}`" not in text]

    assert missing == []


@pytest.mark.parametrize("page", PAGES.values())
def test_figures_of_a_page_have_a_command_and_a_machine(page: str) -> None:
    """The bench of its name, which exists, and how many cores it ran on."""
    text = (DOCS / f"{page}.md").read_text()

    assert f"`make bench NAMES={page}`" in text
    assert set(re.findall(r"make bench NAMES=(\w+)", text)) <= benches()
    assert re.search(r"\b2 cores\b", text)
