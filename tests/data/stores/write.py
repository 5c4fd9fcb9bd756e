"""Write a store of today's format, made by real use: `python tests/data/stores/write.py`.

Run it before a change of the format. It serves two jobs, reads and commits, quarantines, releases,
names and moves steps as users do, and leaves `format-N.db` beside this file, with `format-N.json`:
what such a store shows, as `shown.py` asks for it. Later versions open the file and must show the
same.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from shown import shown  # noqa: E402

from harness import ENVIRONMENT, Server, serving, write_job_file  # noqa: E402
from penstock.server.store.sqlite_schema import FORMAT  # noqa: E402

ROLES = '''
def tokens(raw):
    """One sample, unless the item is damaged."""
    if raw["x"] % 20 == 7:
        raise ValueError("a damaged record")
    return {"input_ids": [raw["x"]] * (1 + raw["x"] % 5)}


def sometimes(raw):
    """0, 1 or 2 samples: the lanes have to be counted."""
    return [{"x": raw["x"]}] * (raw["x"] % 3)
'''


def use(folder: Path) -> None:
    """Do what users do; the node has ended in good order afterwards."""
    (folder / "roles.py").write_text(ROLES)
    items = {"type": "items", "items": [{"x": number} for number in range(60)]}
    job = {"seed": 3, "lanes": 2, "source": items}
    packed = {
        **job,
        "batches_per_step": 2,
        "function": "./roles.py:tokens",
        "on_item_error": "quarantine",
        "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 8},
        "collator": {"type": "packed", "pad_to": 16},
    }
    counted = {**job, "epochs": 1, "function": "./roles.py:sometimes", "batch_size": 4}
    jobs = {"packed": packed, "counted": counted}
    file = write_job_file(folder / "jobs.yaml", jobs, snapshot_seconds=0.1)
    with serving(file) as server:
        for attempt, steps in (("first", "30"), ("second", "12")):
            read(server, "packed", "run", attempt, steps)
        read(server, "packed", "eval", "only", "3")
        read(server, "packed", "old", "only", "3")
        read(server, "counted", "run", "only", "2")
        cursors(server, "packed", "--group", "run", "checkpoint", "best", "--step", "20")
        cursors(server, "packed", "--group", "run", "checkpoint", "last")
        cursors(server, "packed", "--group", "eval", "seek", "--to-step", "1")
        cursors(server, "packed", "--group", "eval", "checkpoint", "one")
        cursors(server, "packed", "--group", "eval", "restore", "one")
        cursors(server, "packed", "delete", "old", "--yes")
        penstock("quarantine", server.address, "packed", "release", "7")
        assert server.terminate() == 0


def read(server: Server, job: str, group: str, attempt: str, steps: str) -> None:
    """Read as a run of one rank, and commit each step."""
    share = ("--rank", "0", "--world-size", "1")
    how = ("--commit", "--attempt", attempt, "--steps", steps, *share)
    penstock("cat", server.address, job, "--group", group, *how)


def cursors(server: Server, job: str, *command: str) -> None:
    """Run `penstock cursors`."""
    penstock("cursors", server.address, job, *command)


def penstock(*command: str) -> None:
    """Run `penstock`."""
    call = [sys.executable, "-m", "penstock.client.cli", *command]
    subprocess.run(call, check=True, capture_output=True, env=ENVIRONMENT)


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        use(folder)
        path = folder / "penstock.db"
        kept = HERE / f"format-{FORMAT}.db"
        assert not path.with_name("penstock.db-wal").exists(), "the node has not closed it"
        shutil.copyfile(path, kept)
        found: dict[str, Any] = asyncio.run(shown(path))
    kept.with_suffix(".json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{kept.name}: {kept.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
