"""What the benchmarks share: a served job file, children, interleaved rounds, tables."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml

HERE = Path(__file__).resolve().parent

SEED = int(os.environ.get("BENCH_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
"""Orders the rounds; `run.py` prints it."""

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "6"))
"""How often each way is run; fewer than 6 say little on a busy machine."""

START_S = 600.0
"""Within so long a node starts, on a machine that does much else, too."""

WIDTH = 100
"""Columns of the widest table."""

Rounds: TypeAlias = "list[Mapping[str, float]]"
"""What one way has found, a mapping for each round."""

Results: TypeAlias = "dict[str, Rounds]"
"""Way -> its rounds, in the order in which they were run."""


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


def constant(nbytes: int, **more: Any) -> dict[str, Any]:
    """Return a job whose batches cost nothing to make: the same array of so many bytes."""
    return {
        "lanes": 8,
        "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
        "batch_size": 1,
        "collator": {"type": f"{HERE / 'roles.py'}:Constant", "nbytes": nbytes},
        **more,
    }


@contextlib.contextmanager
def node(
    jobs: dict[str, Any],
    *,
    over: str = "tcp",
    program: Sequence[str] | str = ("-m", "penstock.server.cli"),
    **server: Any,
) -> Iterator[tuple[str, int]]:
    """Serve jobs from a folder of its own; yield the address and the process id.

    Args:
        jobs: The jobs.
        over: `tcp`, or `unix`: then bodies are lent.
        program: What the interpreter runs, or the text of a script.
        server: Settings of the node.
    """
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folder = Path(name)
        if isinstance(program, str):
            (folder / "node.py").write_text(program)
            program = [str(folder / "node.py")]
        listen = f"unix:{folder / 's'}" if over == "unix" else None
        file = write_job(folder, jobs, **server)
        with serving(file, listen=listen, program=program) as (address, process):
            yield address, process.pid


@contextlib.contextmanager
def serving(
    job_file: Path,
    *flags: str,
    listen: str | None = None,
    program: Sequence[str] = ("-m", "penstock.server.cli"),
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `penstockd serve` as a process of its own; yield its address and the process.

    Args:
        job_file: What it serves.
        flags: Further flags.
        listen: Its address; None = a free port of this machine.
        program: What the interpreter runs.
    """
    address = listen or f"127.0.0.1:{free_port()}"
    log = open(job_file.parent / "server.log", "wb")  # noqa: SIM115 - lives as long as the process
    command = [sys.executable, *program, "serve", str(job_file)]
    process = subprocess.Popen(
        [*command, "--listen", address, "--log-format", "json", *flags], stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + START_S
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


@contextlib.contextmanager
def postgresql() -> Iterator[str | None]:
    """Give the address of a PostgreSQL of this run; None = it cannot be started.

    Its data lies in the folder for temporary files, so that a commit waits for the disk.
    """
    import pytest  # which interpreters of other loaders lack

    sys.path.append(str(HERE.parent))
    try:
        import postgres

        server = postgres.own_server(Path(tempfile.gettempdir()))
    except (ImportError, pytest.skip.Exception) as error:
        print(f"PostgreSQL is not measured: {error}")
        yield None
        return
    try:
        yield server.url
    finally:
        server.end()


def corpus() -> Path:
    """Return the folder of the standard library as Parquet, with its tokenizer; made once."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.server.examples.stdlib"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(json.loads(done.stdout.strip().splitlines()[-1])["folder"])


def in_child(module: str, *arguments: object, python: str = sys.executable) -> dict[str, Any]:
    """Run a bench module's `main` in a fresh process and return the JSON that it prints last.

    Args:
        module: Its name.
        arguments: What it is called with, as text.
        python: Another interpreter than this one; it gets none of our packages.
    """
    ours = [str(HERE.parent.parent), *filter(None, sys.path)] if python == sys.executable else []
    done = subprocess.run(
        [python, str(HERE / f"{module}.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(ours)},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def python_with(name: str, package: str) -> str | None:
    """Return an interpreter that has another loader: BENCH_NAME_PYTHON, or this one; or None."""
    try:
        is_here = find_spec(package) is not None
    except ModuleNotFoundError:  # of what it lies in
        is_here = False
    return os.environ.get(f"BENCH_{name.upper()}_PYTHON") or (sys.executable if is_here else None)


# --- rounds and what is said of them ------------------------------------------------------------


def interleaved(
    ways: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int = ROUNDS
) -> Results:
    """Run every way `rounds` times, in turn: a noisy neighbour disturbs all of them alike.

    Each round has an order of its own, from `SEED`: what one way leaves behind, such as a warm
    cache or a busy disk, does not always meet the same other one.
    """
    results: Results = {name: [] for name in ways}
    shuffler = random.Random(SEED)
    for _ in range(rounds):
        order = list(ways)
        shuffler.shuffle(order)
        for name in order:
            results[name].append(ways[name]())
    return results


def median(rounds: Rounds, key: str) -> float:
    """Return the median of a figure over its rounds."""
    return statistics.median(found[key] for found in rounds)


def spread(rounds: Rounds, key: str, form: str) -> str:
    """Return the least and the greatest value of a figure, such as `1.10-1.32`."""
    values = [found[key] for found in rounds]
    return f"{min(values):{form}}-{max(values):{form}}"


def ratio(results: Results, way: str, other: str, key: str) -> str:
    """Return the median over the rounds of one way's figure by another's of the same round."""
    if other not in results:
        return "-"
    pairs = zip(results[way], results[other], strict=True)
    return f"{statistics.median(ours[key] / theirs[key] for ours, theirs in pairs):.2f}x"


class Column(NamedTuple):
    """A column of a table of ways, or a column and its range.

    Attributes:
        titles: What stands above.
        cells: Given the results and a way, returns its cells.
    """

    titles: Sequence[str]
    cells: Callable[[Results, str], Sequence[str]]


def middle(title: str, key: str, form: str) -> Column:
    """Return a column of medians; `-` where a way has no such figure."""

    def cells(results: Results, way: str) -> Sequence[str]:
        rounds = results[way]
        return [f"{median(rounds, key):{form}}" if key in rounds[0] else "-"]

    return Column([title], cells)


def ranged(title: str, key: str, form: str) -> Column:
    """Return a column of medians, and one of their ranges."""
    return Column(
        [title, "range"],
        lambda results, way: [
            f"{median(results[way], key):{form}}",
            spread(results[way], key, form),
        ],
    )


def around(title: str, key: str, form: str) -> Column:
    """Return a column of medians with their ranges; `-` where a way has no such figure."""

    def cells(results: Results, way: str) -> Sequence[str]:
        rounds = results[way]
        if key not in rounds[0]:
            return ["-"]
        return [f"{median(rounds, key):{form}} ({spread(rounds, key, form)})"]

    return Column([title], cells)


def against(title: str, other: str, key: str) -> Column:
    """Return a column of ratios to another way."""
    return Column([title], lambda results, way: [ratio(results, way, other, key)])


def compare(
    title: str,
    first: str,
    results: Results,
    *columns: Column,
    names: Mapping[str, str] | None = None,
) -> None:
    """Print a table with a row for each way.

    Args:
        title: Of the table.
        first: What stands above the ways.
        results: What they found.
        columns: The columns after that.
        names: Way -> how it is called; of them those that are missing have rows of `-`.
    """
    header = [first, *(each for column in columns for each in column.titles)]
    rows = []
    for way, name in (names or {way: way for way in results}).items():
        if way in results:
            cells = (cell for column in columns for cell in column.cells(results, way))
            rows.append([name, *cells])
        else:
            rows.append([f"{name}: none", *["-"] * (len(header) - 1)])
    table(title, header, rows)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table of at most `WIDTH` columns.

    Raises:
        ValueError: Its rows are wider; it is printed all the same.
    """
    cells = [list(map(str, header)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    print("", *textwrap.wrap(title, WIDTH), "", sep="\n")
    for number, row in enumerate(cells):
        left = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join([left, *rest]).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    sys.stdout.flush()
    if (wide := 2 * len(widths) + sum(widths)) > WIDTH:
        raise ValueError(f"a table is {wide} columns wide: {title}")
