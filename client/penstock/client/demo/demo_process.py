"""One command that the demo runs: started, read line by line, killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.client.demo.corpus import named_error
from penstock.common.readable import readable
from penstock.wire.errors import MissingExtra, PenstockError

SILENCE_S = 60.0
"""If a command says nothing for this long, the demo has failed."""

LOOK_S = 0.5

PIPE_BYTES = 4096
"""A command that prints is held up after so much that was not read: so ranks that are read in turn
stay within a step of each other, as those of a real run do."""


class DemoFailed(PenstockError):
    """A process of the demo ended unexpectedly, or nothing moved any more.

    Attributes:
        folder: The folder with the output of its processes.
    """

    code, status = "demo_failed", "ABORTED"

    folder: str | None = None


class DemoProcess:
    """A command in a session of its own, so that Ctrl-C reaches the demo alone.

    Args:
        name: Its files are `NAME.jsonl` (JSON lines) and `NAME.log` (its other output).
        command: Arguments for the running Python.
        folder: Where its files go.
        logs: Its lines are what it logs, to stderr, and go to the file at once; else they are what
            it prints, and go there as they are read.
        environment: Its variables; None = those of the demo.

    Attributes:
        process: The process.
        output_path: The file of its other output.
        lines: How many of its lines were read.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        logs: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._lines_path, self._folder = name, folder / f"{name}.jsonl", folder
        self.output_path = folder / f"{name}.log"
        self._record = open(self._lines_path, "ab")  # noqa: SIM115 - closed by `end`
        self._rest, self.lines = b"", 0
        self._began_at = self._lines_path.stat().st_size
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=output if logs else subprocess.PIPE,
                stderr=self._record if logs else output,
                pipesize=PIPE_BYTES,
                start_new_session=True,
                env=environment,
            )

    def read(self, while_waiting: Callable[[], None]) -> dict[str, Any] | None:
        """Return the next line's object; None = it has ended.

        Args:
            while_waiting: Called now and then until the line is there.

        Raises:
            DemoFailed: It has printed nothing for a minute.
        """
        assert self.process.stdout is not None
        pipe, until = self.process.stdout.fileno(), time.monotonic() + SILENCE_S
        while b"\n" not in self._rest:
            if not readable([pipe], LOOK_S):
                while_waiting()
                if time.monotonic() > until:
                    raise self.failed(f"has said nothing for {SILENCE_S:.0f} s")
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                return None  # what follows the last newline was cut off by a SIGKILL
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        self._record.write(line + b"\n")
        self._record.flush()
        self.lines += 1
        found: dict[str, Any] = json.loads(line)
        return found

    def has_logged(self, event: str) -> bool:
        """Tell whether an event is among the lines that it has logged."""
        logged = self._lines_path.read_bytes()[self._began_at :]
        whole = logged.split(b"\n")[:-1]
        return any(line.startswith(b"{") and json.loads(line)["event"] == event for line in whole)

    def wait(self) -> int:
        """Return its exit status, once it has ended.

        Raises:
            DemoFailed: It goes on for a minute.
        """
        try:
            return self.process.wait(SILENCE_S)
        except subprocess.TimeoutExpired:
            raise self.failed(f"has not ended for {SILENCE_S:.0f} s") from None

    def failed(self, what: str) -> PenstockError:
        """Return the error that says what is wrong with it, and its last words."""
        words = "it said nothing"
        for path in (self._lines_path, self.output_path):
            said = [line.strip() for line in path.read_text(errors="replace").split("\n")]
            words = next((line[-500:] for line in reversed(said) if line), words)
        if isinstance(error := named_error(words), MissingExtra):
            return error
        return DemoFailed(
            f"{self.name} (pid {self.process.pid}) {what}: {words} (the output of all processes is "
            f"in {self._folder})",
            folder=str(self._folder),
        )

    def end(self) -> None:
        """Kill it if it runs; idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._record.close()


def free_port() -> int:
    """Return a TCP port of this machine that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
