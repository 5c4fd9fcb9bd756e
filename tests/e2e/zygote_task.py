"""A task for processes that a test starts: it says what it was given, then does as it is told."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

from penstock.server.processes.child import Inherited, is_forked


def main(inherited: Inherited) -> None:
    """Say what is there, wait for a line, and end with the status that it names."""
    fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    held = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")]
    told = {
        "arguments": list(inherited.arguments),
        "definition": inherited.definition.decode(),
        "environment": dict(os.environ),
        "folder": os.getcwd() if Path("/proc/self/cwd").exists() else None,
        "parent": os.getppid(),
        "held": {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in held},
        "socket": inherited.socket.fileno(),
        "modules": list(sys.modules),
        "threads": threading.active_count(),
        "random": random.random(),
        "hash": hash("penstock"),
        "ignored": [signal.getsignal(number) is signal.SIG_IGN for number in (2, 15)],
        "forked": is_forked(os.getpid()),
        "program": sys.argv[0],
        "command": Path("/proc/self/cmdline").read_text(),
        "name": Path("/proc/self/comm").read_text().strip(),
    }
    with inherited.socket, inherited.socket.makefile("rw") as channel:
        channel.write(json.dumps(told) + "\n")
        channel.flush()
        if line := channel.readline():
            sys.exit(int(line))
