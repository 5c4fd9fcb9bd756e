"""Dashboards, alerts and the table of metrics: one source, and none of them by itself."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from penstock.common.metric_table import BOARDS, JOB, METRICS, help_of

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"


def generator() -> ModuleType:
    """Return deploy/grafana/generate.py, which is in no package."""
    pytest.importorskip(
        "grafana_foundation_sdk",
        reason="NOT RUN: grafana-foundation-sdk is not installed (make dev)",
    )
    spec = importlib.util.spec_from_file_location("generate_boards", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def kept(board: str) -> dict[str, Any]:
    """Return a dashboard as it is kept."""
    found: dict[str, Any] = json.loads((FOLDER / f"{board}.json").read_text())
    return found


def expressions(board: str) -> list[str]:
    """Return the expressions of a dashboard as it is kept."""
    panels = [panel for panel in kept(board)["panels"] if panel["type"] != "row"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def alerts() -> list[dict[str, Any]]:
    """Return the rules of all groups."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_of(expressions: list[str]) -> set[str]:
    """Return the metrics that expressions name; one that there is not stays as it is."""
    found = {name for each in expressions for name in re.findall(r"\bpenstock_\w+", each)}
    return {
        name if name in METRICS else re.sub(r"_(sum|count|bucket)$", "", name)
        for name in found - {JOB}
    }


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_kept_as_it_is_generated(board: str) -> None:
    """`make dashboards` writes it."""
    assert (FOLDER / f"{board}.json").read_text() == generator().dashboard(board)


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_shows_the_metrics_that_the_table_says(board: str) -> None:
    """No more, no less."""
    said = {name for name, metric in METRICS.items() if board in metric.seen}

    assert metrics_of(expressions(board)) == said


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_says_what_it_shows(board: str) -> None:
    """With the help text of its metric, or a sentence; in a unit; in a place of its own."""
    panels = kept(board)["panels"]
    texts = {help_of(name) for name in METRICS}
    places = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        places |= cells
        if panel["type"] != "row":
            text = panel["description"]
            assert text in texts or text.endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_dashboards_are_those_of_the_table() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.json")) == sorted(BOARDS)
    assert {kept(board)["uid"] for board in BOARDS} == {f"penstock-{board}" for board in BOARDS}


def test_alerts_are_made_of_the_metrics_that_the_table_says() -> None:
    """No more, no less."""
    said: dict[str, set[str]] = {}
    for name, metric in METRICS.items():
        for alert in set(metric.seen) - set(BOARDS):
            said.setdefault(alert, set()).add(name)

    found = {rule["alert"]: metrics_of([rule["expr"]]) for rule in alerts()}

    assert {alert: names for alert, names in found.items() if names} == said


def test_every_alert_leads_to_its_own_runbook() -> None:
    """To a heading of a page that there is, which says in its first words how urgent it is."""
    for rule in alerts():
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        page = (ROOT / path).read_text()
        titles = re.findall(r"^#+ (.+)$", page, re.M)
        headings = {title.lower().replace(" ", "-"): title for title in titles}
        assert anchor in headings, anchor
        assert headings[anchor] == rule["alert"]
        text = page.split(f"# {rule['alert']}\n", 1)[1].strip()
        assert text.startswith(f"*{rule['labels']['severity']}.* "), rule["alert"]
        assert "\n1. " in text.split("\n#", 1)[0], rule["alert"]


def test_the_page_of_alerts_has_no_other() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()

    assert re.findall(r"^### (\w+)$", page, re.M) == [rule["alert"] for rule in alerts()]
