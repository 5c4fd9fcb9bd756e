"""A job whose values all travel in headers: `cat` and `show` agree, and see every letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import run_command, write_job_file


def printed(module: str, *arguments: str) -> list[dict[str, Any]]:
    """What a command prints with `--json`, line by line."""
    done = run_command([module, *arguments, "--json"])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_letter_of_one_text_is_another_digest(tmp_path: Path) -> None:
    digests = []
    for name, text in (("one", "hello"), ("two", "hellp")):
        items = [
            {"text": text, "n": 3, "meta": {"a": 1}},
            *({"text": "x", "n": 1, "meta": {}},) * 3,
        ]
        job = {
            "lanes": 1,
            "source": {"type": "items", "items": items},
            "distributor": {"type": "map", "shuffle": "none"},
            "batch_size": 1,
        }
        file = write_job_file(tmp_path / f"{name}.yaml", {"texts": job})
        found = printed("penstock.client.cli", "cat", f"local:{file}", "texts", "--count", "4")
        digests.append([record["digest"] for record in found])
    shown = printed("penstock.server.cli", "show", str(file), "texts", "--position", "0")

    assert shown == found[:1]
    first, second = digests
    assert first[0] != second[0]
    assert first[1:] == second[1:]
    assert len({*first}) == 2
