"""Rules of the pages: errors.md is the table of errors, decisions are whole, prose is readable."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from penstock import client
from penstock.server.job.role_set import DEFAULT_LANES
from penstock.server.node.demand.lane_state import KEPT_PLANS
from penstock.server.node.workers.outbox import HOLD_S
from penstock.server.rpc.gathering import GATHER_S
from penstock.wire import CHUNK_BYTES, errors

DOCS = Path(__file__).parents[2] / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PARTS = ["Context", "Options", "Choice", "What would change our mind"]
MINE = [DOCS / name for name in ("resume.md", "protocol.md", "errors.md", "scale.md")]


def error_rows() -> list[list[str]]:
    """The rows of the tables in errors.md: code, status, when, what to do."""
    text = (DOCS / "errors.md").read_text()
    return [
        [cell.strip() for cell in line.strip("|\n").split(" | ")]
        for line in re.findall(r"^\| `.*$", text, re.M)
    ]


def test_the_page_of_errors_is_the_table_of_errors() -> None:
    """Each code once, with the status that carries it; no code more and none less."""
    listed = [(code.strip("`"), status) for code, status, *_ in error_rows()]

    assert len(listed) == len(set(listed))
    assert set(listed) == {(code, cls.status) for code, cls in errors.ERRORS.items()}


def test_every_error_says_when_and_what_to_do() -> None:
    """No cell of the table is empty, and both are sentences."""
    for code, _, when, do in error_rows():
        assert when.endswith("."), code
        assert do.rstrip(" |").endswith("."), code


def test_a_client_imports_the_errors_by_the_pages_name() -> None:
    """`penstock.client.errors` is a module, with every error of the table."""
    assert "`penstock.client.errors`" in (DOCS / "errors.md").read_text()
    module = importlib.import_module("penstock.client.errors")

    assert client.errors is module
    assert {cls.__name__ for cls in errors.ERRORS.values()} <= set(module.__all__)
    assert all(getattr(module, cls.__name__) is cls for cls in errors.ERRORS.values())


def test_other_pages_name_codes_that_exist() -> None:
    """`[code]` as commands print it, and codes in the protocol."""
    named = {
        (code, page.name)
        for page in DOCS.rglob("*.md")
        for code in re.findall(r"`\[(\w+)\]`", page.read_text())
    }
    named |= {
        (code, "protocol.md")
        for code in re.findall(r"refused with `(\w+)`", (DOCS / "protocol.md").read_text())
    }

    assert named
    assert sorted(one for one in named if one[0] not in errors.ERRORS) == []


def test_decisions_are_numbered_without_gaps() -> None:
    """So that "decision 4" is one page for ever; the list has them in that order."""
    numbers = [int(page.name[:4]) for page in DECISIONS]
    listed = re.findall(r"^\| \[(\d+)\]", (DOCS / "decisions" / "README.md").read_text(), re.M)

    assert numbers == list(range(1, len(numbers) + 1))
    assert [int(number) for number in listed] == numbers


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_whole(page: Path) -> None:
    """Its number and title, its four parts in order, its line in the list; short enough to read."""
    text = page.read_text()
    listed = (page.parent / "README.md").read_text()

    assert text.startswith(f"# {page.name[:4]}: ")
    assert re.findall(r"^## (.*)$", text, re.M) == PARTS
    assert f"| [{page.name[:4]}]({page.name}) |" in listed
    assert len(text.split()) <= 600


def test_numbers_in_decisions_are_those_of_the_code() -> None:
    """A tuned constant that moves takes its page along."""
    bundles, plans = (DECISIONS[number - 1].read_text() for number in (3, 6))

    assert f"the {CHUNK_BYTES >> 20} MiB that a chunk has" in bundles
    assert "up to two milliseconds" in bundles
    assert HOLD_S == 0.002
    assert "last message is 100 ms old" in bundles
    assert GATHER_S == 0.1
    assert f"the last {KEPT_PLANS} plans of a lane" in plans
    assert f"the default of {DEFAULT_LANES} " in plans


@pytest.mark.parametrize("page", [*MINE, *DECISIONS], ids=lambda page: page.stem)
def test_prose_has_one_sentence_per_line(page: Path) -> None:
    """A changed sentence is one changed line."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    prose = re.sub(r"`[^`]*`", "`code`", prose)

    crowded = [
        line
        for line in prose.splitlines()
        if not line.startswith(("|", "#", "<!--")) and re.search(r"[a-z`)\]][.!?] +[A-Z`\[]", line)
    ]

    assert crowded == []


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    """To a file or a folder that is there, and to a heading that the page has."""
    home = DOCS.parent
    pages = [home / "README.md", home / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

    broken = []
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for link in LINK.findall(text):
            if link.startswith(("http://", "https://")):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.name}: {link}")

    assert broken == []
