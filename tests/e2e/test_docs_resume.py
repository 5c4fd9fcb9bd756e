"""Every example of docs/resume.md is run as it stands, against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from harness import Server, serving
from penstock.client.loader import DEADLINE_S
from penstock.client.reading import waiting
from penstock.client.session.loader_state import FORMAT, LoaderState
from penstock.server.pipeline.retry import RETRY_DEADLINE_S

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "resume.md"
ADDRESS = "127.0.0.1:50051"


class Block(NamedTuple):
    """A fenced block and the comment above it that says what it is for."""

    note: str
    text: str


def marked(page: Path) -> list[Block]:
    """The fenced blocks of a page that have a note, in order."""
    found = re.findall(r"^<!-- (.*?) -->\n```\w*\n(.*?)^```", page.read_text(), re.M | re.S)
    return [Block(*block) for block in found]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Server]:
    """A node that serves the page's job file, as the page has it."""
    [job_file] = [text for note, text in marked(PAGE) if note == "file: penstock.yaml"]
    (tmp_path / "penstock.yaml").write_text(job_file)
    with serving(
        tmp_path / "penstock.yaml",
        *("--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "1"),
        *("--log-format", "json"),
    ) as running:
        yield running


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A shell where `penstock` and `python` are those of this run."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, what in (("penstock", "-m penstock.client.cli "), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {what}"$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_the_examples_print_what_the_page_says(
    node: Server, tmp_path: Path, environ: dict[str, str]
) -> None:
    """Resuming with more ranks, states, seeks, marks, DCP and evaluation, one after another."""
    blocks = marked(PAGE)
    checked = 0

    for block, after in zip(blocks, [*blocks[1:], Block("", "")], strict=True):
        if block.note.startswith("prints"):
            continue
        command = block.text
        if block.note.startswith("file: "):
            name = block.note.removeprefix("file: ")
            if name == "penstock.yaml":
                continue
            assert ADDRESS in block.text
            (tmp_path / name).write_text(block.text.replace(ADDRESS, node.address))
            if not after.note.startswith("prints"):
                continue  # a run block below calls it
            command = f"python {name}"
        else:
            assert block.note == "run"
        done = subprocess.run(
            ["bash", "-euc", command.replace(ADDRESS, node.address)],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if after.note.startswith("prints"):
            expected, got = after.text.splitlines(), done.stdout.splitlines()
            if after.note == "prints, in any order":
                expected, got = sorted(expected), sorted(got)
            assert got == expected, f"{command}\n{done.stderr}"
            checked += 1

    assert checked == sum(block.note.startswith("prints") for block in blocks) == 7


def test_numbers_are_those_of_the_code() -> None:
    """How long things wait, and what a state holds."""
    page = PAGE.read_text()

    assert f"`deadline_s` ({DEADLINE_S:.0f} seconds)" in page
    assert f"after {waiting.LOG_EVERY_S:.0f} seconds the training process logs" in page
    assert "the node retries for a minute" in page
    assert RETRY_DEADLINE_S == 60
    state = LoaderState("numbers", ((0, ""),), "", "run-2", 6, 2).to_dict()
    kept = {key: state[key] for key in state if key not in ("log_id", "timeline", "store")}
    assert f"\n{kept}\n" in page
    assert kept["format"] == FORMAT
