"""What a node and its workers import before they are ready: nothing that only some jobs need.

Seconds say nothing on a busy machine; which modules are imported is the same on all.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import ENVIRONMENT, serve_by, write_job_file
from penstock.server.sources.on_demand import PACKAGE, PLACES

ROLES = ("datasets", "fsspec", "jinja2", "numpy.random", "pandas", "pyarrow", "tokenizers", "torch")
"""What roles need, each with the job that has them."""

DETAILS = ("aiohttp", "pygments", "rich", "tarfile")
"""What libraries bring with them for what no node does, or what one source needs."""

SERVED = """
import sys

class Watched:
    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, text):
        if '"ready"' in text:
            with open("modules", "w") as file:
                file.write(" ".join(sys.modules))
        return self.stream.write(text)

sys.stderr = Watched(sys.stderr)
from penstock.server.cli import run
sys.exit(run(sys.argv[1:]))
"""
"""A node that notes what is imported when it says that it is ready."""


def of_packages(modules: list[str], packages: tuple[str, ...]) -> set[str]:
    """Return those of the modules that are one of the packages, or in it."""
    return {name for name in modules if any(f"{name}.".startswith(f"{of}.") for of in packages)}


def sources(modules: list[str]) -> set[str]:
    """Return the built-in sources among modules."""
    return {f"{PACKAGE}.{module}" for module, _ in PLACES.values()} & set(modules)


@pytest.mark.parametrize("metrics", ["off", "127.0.0.1:0"])
def test_a_node_imports_what_every_node_needs(tmp_path: Path, metrics: str) -> None:
    """To the line `ready`: with the port of the metrics, and without."""
    job = {"source": {"type": "items", "items": [1]}, "lanes": 1, "batch_size": 1}
    file = write_job_file(tmp_path / "jobs.yaml", {"one": job}, metrics=metrics)

    serve_by(SERVED, "serve", str(file), folder=tmp_path)

    modules = (tmp_path / "modules").read_text().split()
    assert "penstock.server.app" in modules
    wanted = {"aiohttp"} if metrics != "off" else set()
    assert {name.partition(".")[0] for name in of_packages(modules, (*ROLES, *DETAILS))} == wanted
    assert sources(modules) == {f"{PACKAGE}.item_list"}


def test_a_worker_imports_what_every_job_needs() -> None:
    """What reads a job's definition is imported by the zygote alone."""
    program = "import sys, penstock.server.node.workers.worker_main; print(*sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )

    modules = done.stdout.split()
    assert "penstock.server.node.workers.worker" in modules
    of_the_node = ("asyncio", "grpc", "prometheus_client", "pydantic", "sqlite3", "structlog")
    assert of_packages(modules, (*ROLES, *DETAILS, *of_the_node, "yaml")) == set()
    assert sources(modules) == set()
