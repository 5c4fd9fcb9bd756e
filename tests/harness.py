"""Real servers, workers and clients for tests: started, watched, killed, and always cleaned up."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import structlog
import yaml

from invariants import eventually
from penstock.client.cli import main as penstock
from penstock.server.cli import run as penstockd
from penstock.server.logs import captured as said
from penstock.server.process.environment import FIXED
from penstock.wire import MAX_MESSAGE_BYTES, PROTOCOL, frame
from penstock.wire.errors import PenstockError
from penstock.wire.sent_errors import ERROR_METADATA_KEY, decode_error
from penstock.wire.v1 import cursors_pb2_grpc, feed_pb2, feed_pb2_grpc

START_DEADLINE_S = 180.0
READ_DEADLINE_S = 60.0

ENVIRONMENT = {
    **os.environ,
    **FIXED,  # without it, commands that compute start themselves again with it
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def write_job_file(path: Path, jobs: dict[str, Any], **server: Any) -> Path:
    """Write a job file whose node listens on a free port of its own."""
    settings = {"listen": "127.0.0.1:0", "metrics": "off", "workers": 1, "log_format": "json"}
    path.write_text(yaml.safe_dump({"server": {**settings, **server}, "jobs": jobs}))
    return path


class Server:
    """A `penstockd serve` process.

    Args:
        file: Its job file, or `jobs.py:name`.
        flags: Further flags.
        environment: Variables that are other than here; with them, a fresh interpreter.
        folder: Where it runs; None = here.
        python: What runs it; None = the Python of the tests.
        within: What it is run by, such as `ip netns exec NAME`.
    """

    def __init__(
        self,
        file: Path | str,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        python: Path | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self._within = list(within)
        self.file = file
        self.python = str(python or sys.executable)
        self.environment, self.folder = {**ENVIRONMENT, **(environment or {})}, folder
        self.command = ["penstock.server.cli", "serve", str(file), *flags]
        self.lines: list[str] = []
        self.address = ""
        self._process: subprocess.Popen[str] | None = None
        self._channel: grpc.Channel | None = None

    def start(self, *, wait: bool = True) -> Server:
        """Start the process; return when it is ready."""
        folder = str(self.folder or Path.cwd())
        self._process = subprocess.Popen(
            [*self._within, self.python, "-m", *self.command],
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=folder,
            bufsize=1,
        )
        self.lines, self.address = [], ""
        self._reading = threading.Thread(target=self._collect, args=(self._process,), daemon=True)
        self._reading.start()
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait until the node has logged its address."""
        eventually(
            lambda: bool(self.address) or self.process.poll() is not None,
            START_DEADLINE_S,
            "the server is ready",
        )
        assert self.address, "the server ended:\n" + "".join(self.lines)

    @property
    def process(self) -> subprocess.Popen[str]:
        """Return the process."""
        assert self._process is not None
        return self._process

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.lines.append(line)
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and event.get("event") == "ready":
                    self.address = event["address"]
        process.stderr.close()

    def events(self, name: str, at_least: int = 0, **fields: Any) -> list[dict[str, Any]]:
        """Return what the node has logged under a name, with these fields.

        The log comes through a pipe of its own, so what a stream has told may not be there yet:
        `at_least` waits for that many.
        """
        end = time.monotonic() + READ_DEADLINE_S
        while True:
            found = []
            for line in list(self.lines):
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == name and fields.items() <= event.items():
                        found.append(event)
            if len(found) >= at_least:
                return found
            assert time.monotonic() < end, (
                f"{name!r} was logged {len(found)} times only, among {len(self.lines)} lines, "
                f"the last of which are {self.lines[-3:]}; collecting: {self._reading.is_alive()}"
            )
            time.sleep(0.01)

    # --- talking ---

    @property
    def channel(self) -> grpc.Channel:
        """Return an open channel to the node."""
        if self._channel is None:
            self._channel = open_channel(self.address)
        return self._channel

    @property
    def feed(self) -> feed_pb2_grpc.FeedStub:
        """Return generated stubs of Feed."""
        return feed_pb2_grpc.FeedStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def cursors(self) -> cursors_pb2_grpc.CursorsStub:
        """Return generated stubs of Cursors."""
        return cursors_pb2_grpc.CursorsStub(self.channel)  # type: ignore[no-untyped-call]

    def status(self) -> dict[str, Any]:
        """Return the node's status."""
        reply = self.feed.Status(feed_pb2.StatusRequest(), timeout=READ_DEADLINE_S)
        status: dict[str, Any] = json.loads(reply.json)
        return status

    def worker_pids(self) -> list[int]:
        """Return the process ids of the workers that are ready."""
        return [worker["pid"] for worker in self.status()["workers"] if worker["ready"]]

    def read(self, job: str, **fields: Any) -> StubReader:
        """Open a Read with generated stubs alone."""
        return StubReader(self.channel, job=job, **fields)

    # --- ending ---

    def kill(self) -> None:
        """SIGKILL the server process, and wait until it is gone."""
        self._hang_up()
        self.process.kill()
        self.process.wait()
        self._reading.join()

    def terminate(self, deadline_s: float = 40.0) -> int:
        """SIGTERM the server process; return its exit status."""
        self.process.terminate()
        return self.wait_end(deadline_s)

    def wait_end(self, deadline_s: float = 40.0) -> int:
        """Wait until the server process has ended; return its exit status."""
        code = self.process.wait(timeout=deadline_s)
        self._hang_up()
        self._reading.join()
        return code

    def close(self) -> None:
        """End whatever is left."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._hang_up()

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


@contextlib.contextmanager
def serving(
    file: Path | str,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Server]:
    """Start a server and end it behind the block."""
    server = Server(file, *flags, environment=environment, folder=folder)
    try:
        yield server.start()
    finally:
        server.close()


def open_channel(address: str) -> grpc.Channel:
    """Return a channel of its own, so that nothing is shared with other tests."""
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.insecure_channel(address, options=options)


class Delivered(NamedTuple):
    """One batch as it came over the wire."""

    header: feed_pb2.BatchHeader
    body: bytes


class StubReader:
    """A consumer made of nothing but generated stubs.

    Args:
        channel: An open channel.
        fields: Fields of `Open`; `protocol` is set unless given.
    """

    def __init__(self, channel: grpc.Channel, **fields: Any) -> None:
        self._requests: queue.SimpleQueue[feed_pb2.ReadRequest | None] = queue.SimpleQueue()
        opening = feed_pb2.Open(**{"protocol": PROTOCOL, **fields})
        self._requests.put(feed_pb2.ReadRequest(open=opening))
        stub = feed_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]
        self._call = stub.Read(iter(self._requests.get, None), timeout=READ_DEADLINE_S)
        self.opened: feed_pb2.Opened | None = None
        self.waiting: list[feed_pb2.Waiting] = []
        self.draining: feed_pb2.Draining | None = None
        self.end: feed_pb2.End | None = None
        self.bundles: list[int] = []  # how many replies each held

    def extend(self, horizon: int, finished_step: int = 0) -> None:
        """Accept positions below `horizon`."""
        message = feed_pb2.Horizon(horizon=horizon, finished_step=finished_step)
        self._requests.put(feed_pb2.ReadRequest(horizon=message))

    def hang_up(self) -> None:
        """Say that nothing more is wanted than what was accepted."""
        self._requests.put(None)

    def cancel(self) -> None:
        """Break the call off."""
        self._call.cancel()
        self._requests.put(None)

    def __iter__(self) -> Iterator[Delivered]:
        """Yield batches as they are complete, until the server ends the call.

        Raises:
            PenstockError: What the server says is wrong.
            grpc.RpcError: The connection broke.
        """
        header: feed_pb2.BatchHeader | None = None
        body = bytearray()
        try:
            for reply in self._replies():
                if reply.HasField("opened"):
                    self.opened = reply.opened
                if reply.HasField("waiting"):
                    self.waiting.append(reply.waiting)
                if reply.HasField("draining"):
                    self.draining = reply.draining
                if reply.HasField("end"):
                    self.end = reply.end
                if reply.HasField("header"):
                    assert header is None, "a header came inside another batch"
                    header, body = reply.header, bytearray()
                if reply.HasField("chunk"):
                    assert header is not None
                    chunk = reply.chunk
                    assert (chunk.lane, chunk.offset) == (header.lane, header.offset)
                    assert chunk.start == len(body)
                    body += chunk.data
                if header is not None and len(body) == frame.sent_bytes(header):
                    yield Delivered(header, bytes(body))
                    header = None
        except grpc.RpcError as error:
            raise as_penstock(error) from error

    def _replies(self) -> Iterator[feed_pb2.ReadReply]:
        for message in self._call:
            if message.more:
                self.bundles.append(len(message.more))
                yield from message.more
            else:
                yield message

    def take(self, count: int) -> list[Delivered]:
        """Return the next `count` batches."""
        found: list[Delivered] = []
        for delivered in self:
            found.append(delivered)
            if len(found) == count:
                break
        assert len(found) == count, f"the stream ended behind {len(found)} of {count} batches"
        return found


def as_penstock(error: grpc.RpcError) -> Exception:
    """Return the PenstockError that a failed call carries, or the call's own error."""
    metadata: Any = error.trailing_metadata()
    for key, value in metadata or ():
        if key == ERROR_METADATA_KEY:
            return decode_error(value)
    return error


def refused(call: Any, request: Any) -> PenstockError:
    """Return the error that a call with this request is answered with."""
    try:
        call(request, timeout=READ_DEADLINE_S)
    except grpc.RpcError as error:
        found = as_penstock(error)
        if isinstance(found, PenstockError):
            return found
        raise
    raise AssertionError(f"{type(request).__name__} was not refused")


class Rank:
    """A trainer rank: a `penstock cat --commit --json` process.

    Args:
        address: Of the node.
        output: Where its lines go.
        arguments: Of `penstock cat`, behind the target.
        module: What runs as `penstock`.
        within: What it is run by.
    """

    def __init__(
        self,
        address: str,
        output: Path,
        *arguments: str,
        module: str = "penstock.client.cli",
        within: Sequence[str] = (),
    ) -> None:
        self.output = output
        command = [module, "cat", address, *arguments]
        self._file = output.open("wb")
        self._errors = output.with_suffix(".err").open("wb")
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", *command],
            env=ENVIRONMENT,
            stdout=self._file,
            stderr=self._errors,
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the batches that it has printed; a line that its death cut is left out."""
        lines = self.output.read_bytes().split(b"\n")[:-1]
        return [json.loads(line) for line in lines]

    def errors(self) -> str:
        """Return what it said beside its batches."""
        return self.output.with_suffix(".err").read_text()

    def kill(self) -> None:
        """SIGKILL it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.close()

    def wait(self, deadline_s: float = 90.0) -> int:
        """Wait for its own end; return its exit status."""
        code = self.process.wait(timeout=deadline_s)
        self.close()
        return code

    def close(self) -> None:
        """Let go of its files; the process has ended or is ended now."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._file.close()
        self._errors.close()


def serve_by(script: str, *arguments: str, folder: Path) -> list[str]:
    """Run a script that serves, in a fresh interpreter, until its node is ready; then SIGTERM.

    Args:
        script: The text of the script.
        arguments: What it is given, such as `serve` and a job file.
        folder: Where it runs.

    Returns:
        The lines of its log up to `ready`.

    Raises:
        AssertionError: It did not end with 0.
    """
    node = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert node.stderr is not None
    lines = []
    for line in node.stderr:
        lines.append(line)
        if '"ready"' in line:
            break
    node.terminate()
    node.communicate(timeout=60)
    assert node.returncode == 0, lines
    return lines


def kill_process(pid: int) -> bool:
    """SIGKILL a process; tell whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def children(pid: int, *, zygotes: bool = False) -> list[int]:
    """Return the process ids of a process's children but for its zygote, or of that alone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if (b".processes.zygote" in _command(child)) == zygotes]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended, and was waited for
        return b""


def run_command(
    arguments: Sequence[str],
    deadline_s: float = 60.0,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    within: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end, in a process of its own.

    Args:
        arguments: The module, and what it is given.
        deadline_s: How long it may take.
        environment: All of its variables; None = those of the test run.
        folder: Where it runs; None = here.
        within: What it is run by.
    """
    return subprocess.run(
        [*within, sys.executable, "-m", *arguments],
        env=environment or ENVIRONMENT,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


def call_command(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end in this process: `penstock cat ...`, `penstockd show ...`.

    It is what a process of its own runs, less the start of an interpreter. What a process alone
    has, such as the environment of the workers or what an import prints, needs `run_command`.

    Args:
        arguments: The command and what it is given.
        folder: Where it runs; None = here.
    """
    command, *rest = arguments
    run = {"penstock": penstock, "penstockd": penstockd}[command]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder or Path.cwd()),
        _own_logging(),
    ):
        try:
            status = run(rest)
        except SystemExit as error:
            status = int(error.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _own_logging() -> Iterator[None]:
    """Let a command decide, as in a process of its own, where its log goes; put ours back."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers, root.level, structlog.get_config()
    ours = logging.getLogger("penstock")
    our_level, hooks = ours.level, (sys.excepthook, threading.excepthook)
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        ours.setLevel(our_level)
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook = hooks
        said.told.clear()
        structlog.configure(**configured)


__all__ = [
    "Delivered",
    "Rank",
    "Server",
    "StubReader",
    "as_penstock",
    "call_command",
    "children",
    "kill_process",
    "open_channel",
    "refused",
    "run_command",
    "serving",
    "write_job_file",
]
