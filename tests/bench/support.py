"""What the benchmarks share: a served job file, a free port, tables, interleaved rounds."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    """Return a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_job(folder: Path, jobs: dict[str, Any], **server: Any) -> Path:
    """Write a job file."""
    path = folder / "penstock.yaml"
    path.write_text(yaml.safe_dump({"server": {"metrics": "off", **server}, "jobs": jobs}))
    return path


@contextlib.contextmanager
def serving(job_file: Path, *flags: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `penstockd serve` as a process of its own; yield its address and the process."""
    address = f"127.0.0.1:{free_port()}"
    log = open(job_file.parent / "server.log", "wb")  # noqa: SIM115 - lives as long as the process
    command = [sys.executable, "-m", "penstock.server.cli", "serve", str(job_file)]
    process = subprocess.Popen(
        [*command, "--listen", address, "--log-format", "json", *flags], stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + 60
        while b'"ready"' not in (job_file.parent / "server.log").read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((job_file.parent / "server.log").read_text())
            time.sleep(0.02)
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def corpus() -> Path:
    """Return the folder of the standard library as Parquet, with its tokenizer; made once."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.server.examples.stdlib"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(json.loads(done.stdout.strip().splitlines()[-1])["folder"])


def cpu_s() -> float:
    """Return the CPU seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run a bench module's `main` in a fresh process and return the JSON that it prints last."""
    path = os.pathsep.join([str(HERE.parent.parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(HERE / f"{module}.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def interleaved(
    rounds: int, ways: dict[str, Callable[[], dict[str, float]]]
) -> dict[str, list[dict[str, float]]]:
    """Run every way `rounds` times, in turn: a noisy neighbour disturbs all of them alike."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(way())
    return results


def best(results: list[dict[str, float]], key: str) -> dict[str, float]:
    """Return the round with the highest value of `key`."""
    return max(results, key=lambda one: one[key])


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    cells = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    print(f"\n{title}\n")
    for number, row in enumerate(cells):
        left = row[0].ljust(widths[0])
        print(
            "  "
            + "  ".join([left, *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        )
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    sys.stdout.flush()
