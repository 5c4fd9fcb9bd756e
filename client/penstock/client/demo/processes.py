"""Processes of the demo: started, read line by line, killed.

Every child has a thread that writes its lines to a file and then hands them on, so the last lines
of a killed child are on record before the demo acts on them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Events = queue.SimpleQueue["Event"]


@dataclass(frozen=True)
class Event:
    """A message of a child, or its end.

    Attributes:
        child: Whose.
        kind: `exit`, else the child's name for it.
        fields: The line's JSON object; of `exit`: `status`.
    """

    child: Child
    kind: str
    fields: Mapping[str, Any]


class Child:
    """One process in a session of its own, so that Ctrl-C reaches the demo alone.

    Args:
        name: Its files are `NAME.jsonl` (the lines) and `NAME.log` (its other output).
        command: Arguments for the running Python.
        folder: Where its files go.
        events: Where its lines go.
        lines: Which stream holds the JSON lines.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        events: Events,
        *,
        lines: Literal["stdout", "stderr"] = "stdout",
    ) -> None:
        self.name, self.lines_path = name, folder / f"{name}.jsonl"
        self.output_path = folder / f"{name}.log"
        self._events = events
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if lines == "stdout" else output,
                stderr=subprocess.PIPE if lines == "stderr" else output,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._pipe = self.process.stdout if lines == "stdout" else self.process.stderr
        self._thread = threading.Thread(target=self._hear, name=f"demo-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def tell(self) -> None:
        """Send an empty line; a child that has ended is not an error here: its end is reported."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL: no handler runs, nothing is flushed or printed."""
        self.process.send_signal(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End it in any case; idempotent."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._thread.join()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def last_words(self) -> str:
        """Return its last line of output, for an error."""
        for path in (self.output_path, self.lines_path):
            lines = path.read_text(errors="replace").split("\n") if path.exists() else []
            spoken = [line.strip() for line in lines if line.strip()]
            if spoken:
                return spoken[-1][-500:]
        return "it said nothing"

    def _hear(self) -> None:
        assert self._pipe is not None
        with self._pipe as pipe, open(self.lines_path, "ab") as record:
            for line in pipe:
                record.write(line)
                record.flush()
                found = _parse(line)
                if found is not None:
                    self._events.put(Event(self, str(found.get("event", "")), found))
        self._events.put(Event(self, "exit", {"status": self.process.wait()}))


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a line's object; a line that a SIGKILL cut, or a library's own message, is None."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def free_port() -> int:
    """Return a TCP port of this machine that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


__all__ = ["Child", "Event", "Events", "free_port"]
