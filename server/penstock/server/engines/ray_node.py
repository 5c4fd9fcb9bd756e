"""One node in an actor of Ray: its process is the actor's child, and neither outlives the other."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class RayNode:
    """Runs `penstockd serve` on the machine that Ray has chosen.

    Ray sees an actor as alive whose child was killed, so the actor ends with the node's process,
    and Ray starts both again (`max_restarts`). The other way round, the actor holds a lock on a
    file, and the node drains when the system releases it with the actor's process.

    Args:
        file: The job file, which lies at this path on each machine.
        options: Further arguments of `penstockd serve`.
        port: Where it listens; 0 = the system chooses.
        name: The node's id.
    """

    def __init__(self, file: str, options: Sequence[str], port: int, name: str) -> None:
        import ray

        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._ready: dict[str, Any] = {}
        self._last = ""
        self._drains = False
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-ray-")
        held = Path(self._folder.name) / "held"
        self._held = held.open("w")
        fcntl.flock(self._held, fcntl.LOCK_SH)
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        command = [sys.executable, "-P", "-m", "penstock.server.cli", "serve", file]
        command += ["--listen", where, "--log-format", "json"]
        command += ["--node-id", name, "--exit-when-unused", str(held), *options]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._follow, name="penstock-node", daemon=True).start()

    def address(self) -> str:
        """Return where the node listens; empty = it is not ready yet."""
        return str(self._ready.get("address", ""))

    def about(self) -> dict[str, Any]:
        """Return what the node has said of itself, and its last word while it is not ready."""
        return {
            "address": self.address(),
            "pid": self._process.pid,
            "version": self._ready.get("version", ""),
            "last": "" if self._ready else self._last,
        }

    def drain(self) -> int:
        """Drain the node, and return its exit status; the actor then waits."""
        self._drains = True
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

    def _follow(self) -> None:
        """Hear what the node says, until it has ended; then end this actor, too."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            sys.stderr.write(line)  # Ray keeps it as the actor's log
            event = _event(line)
            self._last = str(event.get("error") or event.get("event") or line).strip()
            if event.get("event") == "ready":
                self._ready = event
        status = self._process.wait()
        sys.stderr.write(f"penstock: the node has ended with status {status}\n")
        sys.stderr.flush()
        self._folder.cleanup()
        if not self._drains:  # whoever lets it drain then ends the actor for good
            os._exit(1)  # not 0, which Ray takes for an end that was meant


def _event(line: str) -> dict[str, Any]:
    """Return a line of the node's log; empty = it is a line of something else."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
