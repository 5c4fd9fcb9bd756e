"""Workers, as real programs, have the library for malloc that is asked for, and nobody else has.

A node of `spawn:` starts its workers as a user's does; what other tests start is forked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, write_job_file
from penstock.server.allocator import chosen
from unit.test_allocator import shared_library

ROLE = """
import json, os, subprocess, sys
from pathlib import Path

SAY = "import os; print([n for n in os.environ if 'PRELOAD' in n or n == 'MALLOC_CONF'])"

def look(raw):
    run = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True)
    own = [name for name in os.environ if "PRELOAD" in name or name == "MALLOC_CONF"]
    server = Path(f"/proc/{os.getppid()}/maps").read_text()
    said = {"worker": Path("/proc/self/maps").read_text().count(raw["library"]) > 0,
            "server": server.count(raw["library"]) > 0, "own": own, "child": run.stdout}
    return {"said": json.dumps(said)}
"""

READ = """
import json, sys
from penstock.client import Loader

with Loader(sys.argv[1], "one", rank=0, world_size=1, as_numpy=True) as loader:
    batch = next(iter(loader))
    print(batch["said"][0])
"""


def said_by_a_role(folder: Path, library: Path, target: str, **server: Any) -> dict[str, Any]:
    """Read one batch, in a process of its own, and return what its role has seen."""
    (folder / "data.py").write_text(ROLE)
    items = [{"library": library.name}]
    job = {"source": {"type": "items", "items": items}, "lanes": 1, "batch_size": 1}
    job = {**job, "function": "./data.py:look"}
    file = write_job_file(folder / "jobs.yaml", {"one": job}, **server)
    environment = {**ENVIRONMENT, "PENSTOCK_ALLOCATOR": str(library)} if not server else ENVIRONMENT
    done = subprocess.run(
        [sys.executable, "-c", READ, f"{target}:{file}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize(("target", "server"), [("spawn", False), ("local", True)])
def test_what_computes_has_it_and_what_that_starts_has_not(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, target: str, server: bool
) -> None:
    """Nor has a node's server, but that of `local:`, of which the first worker is a fork."""
    monkeypatch.setitem(ENVIRONMENT, "XDG_RUNTIME_DIR", str(runtime))

    said = said_by_a_role(tmp_path, shared_library(tmp_path), target)

    assert said == {"worker": True, "server": server, "own": [], "child": "[]\n"}


def test_off_keeps_the_allocator_of_the_system(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "XDG_RUNTIME_DIR", str(runtime))

    said = said_by_a_role(tmp_path, Path("malloc.so"), "spawn", allocator="off")

    assert (said["worker"], said["own"], said["child"]) == (False, [], "[]\n")


DIGESTS = """
import hashlib, itertools, sys
from penstock.client import Loader

with Loader(sys.argv[1], "one", rank=0, world_size=1, as_numpy=True) as loader:
    for batch in itertools.islice(loader, 40):
        print(hashlib.sha256(batch.body.tobytes()).hexdigest())
"""


@pytest.mark.skipif(chosen() is None, reason="neither libjemalloc2 nor libmimalloc2.0 is installed")
def test_batches_are_the_same_with_any_allocator(tmp_path: Path, runtime: Path) -> None:
    """Token ids, packed rows and floats: nothing of a batch says which it was."""
    (tmp_path / "data.py").write_text(
        "import numpy as np\n\n\ndef count(raw):\n"
        "    ids = np.frombuffer(raw['text'].encode(), np.uint8).astype(np.int32)\n"
        "    return {'input_ids': ids, 'mean': np.float32(np.fft.rfft(ids).real.mean())}\n"
    )
    items = [{"text": f"{number} " * (1 + number % 97)} for number in range(300)]
    job = {
        "source": {"type": "items", "items": items},
        "function": "./data.py:count",
        "batcher": {"type": "best_fit", "max_tokens": 512, "rows": 2, "overlong": "split"},
        "collator": {"type": "packed"},
        "lanes": 4,
    }
    found = []
    for setting in ("off", "auto"):
        folder = tmp_path / setting
        folder.mkdir()
        (folder / "data.py").write_text((tmp_path / "data.py").read_text())
        file = write_job_file(folder / "jobs.yaml", {"one": job}, allocator=setting)
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS, f"spawn:{file}"],
            env={**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)

    assert found[0] == found[1]
    assert len(set(found[0].split())) == 40
