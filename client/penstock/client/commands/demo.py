"""`penstock demo`: see the main job work, with everything killed once.

A script over the commands that users have: it starts `penstockd serve` and `penstock cat`, kills
them, and counts the lines that they printed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.client.commands.demo_input import Input, named_error, own, standard_library
from penstock.client.testing.attempts import Account, Attempts, Generation
from penstock.wire.errors import BadState, InvalidRequest, MissingExtra, PenstockError

STEPS, MIN_STEPS = 72, 3
GROUP, BATCHES_PER_STEP, WORKERS, REFERENCE_RANKS = "demo", 12, 2, 2
START_S = 60.0
"""How long a server may take to start or to stop; ranks give up by themselves after as long."""

LINE_EVERY_S = 2.0
ATTEMPTS = "run.json"

DESCRIPTION = """\
Serve a job with 2 workers, read it with 2 trainer ranks, kill the server with
SIGKILL in the middle and start it again, kill the ranks and go on with 3 from
the server's cursor. Then compute every batch once more with local: and compare:
exits with 0 only if all are identical, none is lost and none repeated.

Without FILE it reads the .py files of this Python's standard library, which are
packed into rows of 8,192 tokens. They are written as Parquet below the user's
cache folder once, with a tokenizer."""

EPILOG = """\
examples:
  penstock demo
  penstock demo --steps 12 --keep
  penstock demo penstock.yaml main      a job of your own, if it is endless
"""


class DemoFailed(PenstockError):
    """A process of the demo ended unexpectedly.

    Attributes:
        folder: The folder with the output of its processes.
    """

    code, status = "demo_failed", "ABORTED"

    folder: str | None = None


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "demo",
        help="see it work on real input, with everything killed once",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a job file of your own")
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job in it")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help=f"steps of 12 batches to read; default {STEPS}, at least {MIN_STEPS}",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where the corpus is kept; default: the user's cache folder"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the records, the output and the store of this run"
    )
    parser.add_argument(
        "--judge", metavar="DIR", type=Path, help="judge a kept run again, from its files alone"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every batch is identical and none is lost or repeated, else 1."""
    if args.judge is not None:
        return judge(args.judge)
    if args.steps < MIN_STEPS:
        raise InvalidRequest(
            f"--steps {args.steps}: each of server and ranks is killed within a step of its own, "
            f"so at least {MIN_STEPS} are needed",
            field="steps",
            value=args.steps,
        )
    # `kill` and a closed terminal end the children too: finally blocks run.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    if args.file is not None:
        source = own(args.file, args.job)
    else:
        _say("making the corpus of this Python's standard library, if it is not there ...")
        source = standard_library(Path(args.data) if args.data is not None else None)
        _say(f"  {source.title}\n  in {source.job_file.parent}\n")
    folder, status = Path(tempfile.mkdtemp(prefix="penstock-demo-")), 1
    try:
        with Play(source, args.steps, folder) as play:
            play.run()
        status = judge(folder)
        if not status:
            _next_steps(source)
    finally:
        if status or args.keep:
            _say(f"\nrecords, output and the store of this run: {folder}")
            _say(f"  judge it again:  {_command('penstock')} demo --judge {folder}")
        else:
            shutil.rmtree(folder)
    return status


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(text, flush=True)


# --- the processes --------------------------------------------------------------------------------


class DemoProcess:
    """A command in a session of its own, so that Ctrl-C reaches the demo alone.

    Args:
        name: Its output is in `NAME.log`, and what it prints on stdout in `NAME.jsonl`.
        arguments: The module that is run, and its arguments.
        folder: Where its files go.

    Attributes:
        reading: Yields the lines that it prints.
    """

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name, self.folder, self._is_killed = name, folder, False
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        # So small that a rank waits for the demo, as it would for a model.
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        self.reading = self._records()

    def _records(self) -> Iterator[dict[str, Any]]:
        """Yield what it prints; a line that a SIGKILL cut does not count.

        Raises:
            DemoFailed: It ended by itself, and not well.
        """
        assert self.process.stdout is not None
        with (self.folder / f"{self.name}.jsonl").open("ab") as kept:
            for line in self.process.stdout:
                if line.endswith(b"\n"):
                    kept.write(line)
                    kept.flush()
                    yield json.loads(line)
        if self.process.wait() and not self._is_killed:
            raise self.failed()

    def kill(self) -> None:
        """Send SIGKILL: no handler runs, nothing is flushed or printed."""
        self._is_killed = True
        self.process.kill()

    def failed(self) -> PenstockError:
        """Return the error that its last words tell of."""
        said = self.log.read_text(errors="replace").strip().split("\n")
        words = said[-1][-500:] or "it said nothing"
        if isinstance(error := named_error(words), MissingExtra):
            return error
        return DemoFailed(
            f"{self.name} (pid {self.process.pid}) ended with status {self.process.poll()}: {words}"
            f" (the output of all processes is in {self.folder})",
            folder=str(self.folder),
        )

    def end(self) -> None:
        """End it in any case; idempotent."""
        self.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Play:
    """The order of events: serve, read, kill the server, kill the ranks, go on with more, compare.

    Used as a context manager: every process of it ends with it.

    Args:
        source: What is read.
        steps: How many steps the run has.
        folder: Where records, output and the store of this run go.
    """

    def __init__(self, source: Input, steps: int, folder: Path) -> None:
        self._source, self._steps, self._folder = source, steps, folder
        self._stack = contextlib.ExitStack()
        self._began = self._said_at = time.monotonic()
        self._generations: list[tuple[int, int]] = []  # start and ranks of each
        self._address = f"127.0.0.1:{_free_port()}"
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> None:
        """Play everything.

        Raises:
            DemoFailed: A process ended unexpectedly.
        """
        kill_server_at, kill_ranks_at = self._steps // 3, 2 * self._steps // 3
        server = self._serve()
        self._tell(
            f"penstockd serves on {self._address} (pid {server.process.pid}, {WORKERS} workers)"
        )
        self._tell(f"2 trainer ranks read from step 0, in {self._steps} steps")
        ranks = self._start_ranks(0, 2)
        self._read(ranks, kill_server_at)
        server.kill()
        self._tell(
            f"SIGKILL to the server (pid {server.process.pid}) within step {kill_server_at}; "
            "starting it again"
        )
        server.process.wait()
        server = self._serve()
        self._tell(
            f"the server serves again (pid {server.process.pid}); the ranks find it themselves"
        )
        self._read(ranks, kill_ranks_at)
        for rank in ranks:
            rank.kill()
        self._tell(f"SIGKILL to both ranks within step {kill_ranks_at}; starting 3 in their place")
        self._read(ranks, self._steps)  # what they had printed before
        cursor = self._cursor()
        self._tell(f"3 ranks go on at step {cursor}, the cursor that the server kept")
        self._read(self._start_ranks(cursor, 3), self._steps)
        found = {"steps": self._steps, "cursor": self._cursor(), "generations": self._generations}
        (self._folder / ATTEMPTS).write_text(json.dumps(found) + "\n")
        server.process.terminate()
        if server.process.wait(START_S):
            raise server.failed()
        self._tell(
            f"all {self._steps} steps are finished; SIGTERM drained the server, it exited with 0"
        )
        tokens, padding = self._counts["tokens"], self._counts["padding_tokens"]
        if tokens:
            self._tell(f"{tokens:,} tokens, packing efficiency {tokens / (tokens + padding):.4f}")
        self._tell("computing every batch again with local:, without the server")
        target = f"local:{self._source.job_file}"
        self._read(
            [
                self._cat(f"local-{rank}", target, rank, REFERENCE_RANKS, self._steps, [])
                for rank in range(REFERENCE_RANKS)
            ],
            self._steps,
        )

    def _serve(self) -> DemoProcess:
        arguments = ["penstock.server.cli", "serve", str(self._source.job_file)]
        arguments += ["--listen", self._address]
        arguments += ["--metrics", "off", "--workers", str(WORKERS), "--log-format", "json"]
        arguments += ["--store", f"sqlite:///{self._folder / 'penstock.db'}"]
        log = self._folder / "server.log"
        before = _ready(log)
        server = self._child("server", arguments)
        deadline = time.monotonic() + START_S
        while _ready(log) == before:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise server.failed()
            time.sleep(0.05)
        return server

    def _start_ranks(self, start: int, world_size: int) -> list[DemoProcess]:
        self._generations.append((start, world_size))
        number = len(self._generations)
        attempt = ["--group", GROUP, "--attempt", f"{GROUP}-{number}", "--commit"]
        steps = self._steps - start
        return [
            self._cat(_rank_name(number, rank), self._address, rank, world_size, steps, attempt)
            for rank in range(world_size)
        ]

    def _cat(
        self, name: str, target: str, rank: int, world_size: int, steps: int, more: list[str]
    ) -> DemoProcess:
        arguments = ["penstock.client.cli", "cat", target, self._source.job]
        arguments += ["--json", "--steps", str(steps)]
        arguments += ["--rank", str(rank), "--world-size", str(world_size)]
        arguments += ["--batches-per-step", str(BATCHES_PER_STEP), *more]
        return self._child(name, arguments)

    def _child(self, name: str, arguments: list[str]) -> DemoProcess:
        child = DemoProcess(name, arguments, self._folder)
        self._stack.callback(child.end)
        return child

    def _read(self, ranks: list[DemoProcess], until: int) -> None:
        """Take a batch of each rank in turn, until one is of that step, or all have ended."""
        going = [rank.reading for rank in ranks]
        while going:
            for reading in list(going):
                record = next(reading, None)
                if record is None:
                    going.remove(reading)
                    continue
                self._counts.update(record["counts"])
                if time.monotonic() - self._said_at > LINE_EVERY_S:
                    self._tell(f"  step {record['step']} of {self._steps}")
                if record["step"] >= until:
                    return

    def _cursor(self) -> int:
        command = ["penstock.client.cli", "cursors", "--group", GROUP, "--json", self._address]
        done = subprocess.run(
            [sys.executable, "-m", *command, self._source.job, "show"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(done.stderr.strip(), folder=str(self._folder))
        return int(json.loads(done.stdout)["cursor"])

    def _tell(self, sentence: str) -> None:
        self._said_at = time.monotonic()
        _say(f"{self._said_at - self._began:6.1f} s  {sentence}")


def _ready(log: Path) -> int:
    """Return how often a server has said that it is ready."""
    return log.read_text().count('"event": "ready"') if log.exists() else 0


def _rank_name(generation: int, rank: int) -> str:
    return f"rank-{generation}-{rank}"


def _free_port() -> int:
    """Return a TCP port of this machine that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


# --- the account ----------------------------------------------------------------------------------


def account_of(folder: Path) -> tuple[int, int, Account]:
    """Return how many batches were to be read, how many were identical, and what is wrong.

    Args:
        folder: The files of a run.

    Raises:
        BadState: It is not the folder of a run.
    """
    try:
        told = json.loads((folder / ATTEMPTS).read_text())
        steps, cursor = int(told["steps"]), int(told["cursor"])
        starts = [(int(start), int(ranks)) for start, ranks in told["generations"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadState(f"{folder} is not a folder of a demo's run: {error}") from error
    reference: dict[int, str] = {}
    for rank in range(REFERENCE_RANKS):
        found = _records(folder, f"local-{rank}")
        reference.update((record["position"], record["digest"]) for record in found)
    attempts = Attempts(BATCHES_PER_STEP)
    wrong: dict[str, list[int]] = {"different": [], "unverified": []}
    for number, (start, world_size) in enumerate(starts, 1):
        one = Generation(start, world_size)
        attempts.generations.append(one)
        for rank in range(world_size):
            records = _records(folder, _rank_name(number, rank))
            one.delivered[rank] = [record["position"] for record in records]
            # The steps before the last one that it printed were committed, and answered.
            one.answered[rank] = max((record["step"] for record in records), default=start)
            for record in records:
                known = reference.get(record["position"])
                if known != record["digest"]:
                    wrong["unverified" if known is None else "different"].append(record["position"])
    account = attempts.account(cursor)
    wanted = set(range(steps * BATCHES_PER_STEP))
    account.lost += sorted(wanted - set(range(cursor * BATCHES_PER_STEP)))
    bad = {*account.lost, *account.repeated}
    for name, positions in wrong.items():
        bad.update(positions)
        if positions:
            account.problems.append(f"{len(positions)} {name}: {_named(positions)}")
    return len(wanted), len(wanted - bad), account


def _records(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def judge(folder: Path) -> int:
    """Print what became of every batch; 0 = all identical, none lost, none repeated."""
    wanted, identical, account = account_of(folder)
    _say(f"\n{wanted:,} batches were to be read")
    _say(f"  {'identical':<10}{identical:>8,}   the same SHA-256 as local: computes")
    for name, positions in (("lost", account.lost), ("repeated", account.repeated)):
        _say(f"  {name:<10}{len(positions):>8,}   {_named(positions)}".rstrip())
    for sentence in account.problems:
        _say(f"problem: {sentence}")
    is_good = identical == wanted and not account.problems
    _say("\nPASSED" if is_good else "\nFAILED")
    return 0 if is_good else 1


def _named(positions: list[int]) -> str:
    more = ", ..." if len(positions) > 8 else ""
    shown = ", ".join(map(str, positions[:8])) + more
    return f"position{'s' if len(positions) > 1 else ''} {shown}" if positions else ""


# --- what to type next ----------------------------------------------------------------------------


def _next_steps(source: Input) -> None:
    job_file, job = _short(source.job_file), source.job
    penstockd, penstock = _command("penstockd"), _command("penstock")
    lines = [
        ("look at the job file, and check it", f"{penstockd} check {job_file}"),
        ("one batch as text", f"{penstockd} show {job_file} {job} --position 0 --text"),
        ("serve it", f"{penstockd} serve {job_file}"),
        ("and in another terminal read it", f"{penstock} cat 127.0.0.1:50051 {job} --count 12"),
        ("your own data", f"{penstockd} init FILES... && {penstockd} check penstock.yaml"),
    ]
    _say("\nWhat to type next:")
    for meaning, command in lines:
        _say(f"  # {meaning}\n  {command}")


def _command(name: str) -> str:
    """Return the command line that runs this installation's command from here."""
    path = Path(sys.executable).with_name(name)
    if not path.exists() or shutil.which(name) == str(path):
        return name
    return _short(path)


def _short(path: Path) -> str:
    """Return a path as a user would type it."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + str(path.relative_to(base))
    return str(path)


__all__ = ["account_of", "add_parser", "judge", "run"]
