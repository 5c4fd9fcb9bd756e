"""`spawn:FILE?workers=16`: a node on a Unix socket, started by the first reader on this machine.

All processes of a user that name the same file and settings share one node: whoever comes first
starts it, under a lock. Every Loader holds a shared lock on the node's `users` file while it is
open; the node ends when it gets that lock for itself: the kernel releases what a killed trainer
held.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qsl

from penstock.wire.errors import ERRORS, InvalidRequest, PenstockError, Unreachable
from penstock.wire.transport import Address

START_DEADLINE_S, END_DEADLINE_S = 120.0, 30.0
SETTINGS = {"workers": "--workers", "store": "--store", "metrics": "--metrics"}


def open_transport(rest: str) -> Address:
    """Return the address of a running node for `rest`, starting one if there is none.

    Raises:
        InvalidRequest: A setting is not known.
        Unreachable: The node did not start; says where its output is.
    """
    file, _, query = rest.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for key in settings:
        if key not in SETTINGS:
            raise InvalidRequest(
                f"spawn: knows no setting {key!r}; it knows {', '.join(sorted(SETTINGS))}", key=key
            )
    path, _, attribute = file.partition(":")
    target = str(Path(path).absolute()) + (f":{attribute}" if attribute else "")
    folder = _folder()
    name = hashlib.sha256("\0".join((target, repr(sorted(settings.items())))).encode()).hexdigest()
    place = folder / name[:16]
    address, users = place.with_suffix(".sock"), open(place.with_suffix(".users"), "w")  # noqa: SIM115
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A node that is about to end holds this lock: whoever comes now waits until it is gone.
        fcntl.flock(users, fcntl.LOCK_SH)
        if not _answers(address):
            try:
                _start(target, settings, address, Path(users.name), place.with_suffix(".log"))
            except BaseException:
                users.close()
                raise

    def close() -> None:
        if users.closed:
            return
        last = True
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # got only by the last user
        except BlockingIOError:
            last = False
        # Not by closing alone: a child that the trainer has forked shares the open file, and the
        # lock with it.
        fcntl.flock(users, fcntl.LOCK_UN)
        users.close()
        if last:
            _wait_for_end(address, Path(users.name))

    return Address(f"unix:{address}", close)


def _start(
    target: str, settings: dict[str, str], address: Path, users: Path, log_path: Path
) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.server.cli",
        "serve",
        target,
        "--listen",
        f"unix:{address}",
    ]
    command += ["--exit-when-unused", str(users)]
    for key, value in {"metrics": "off", **settings}.items():
        command += [SETTINGS[key], value]
    with open(log_path, "w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C in the trainer's terminal must not take the node from under the other ranks.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = log_path.read_text(errors="replace").strip().splitlines()
            why = said[-1] if said else f"it ended with status {process.wait()}"
            raise _not_started(target, why, log_path)
        time.sleep(0.05)


def _not_started(target: str, why: str, log_path: Path) -> PenstockError:
    """Return the error that the node ended with, under its own name where it had one."""
    named = re.fullmatch(r"penstockd: error: (?P<sentence>.*) \[(?P<code>\w+)\]", why)
    kind = ERRORS.get(named["code"], Unreachable) if named else Unreachable
    sentence = named["sentence"] if named else why
    return kind(
        f"the node for {target} did not start: {sentence} (all of its output: {log_path})",
        target=target,
        log=str(log_path),
    )


def _wait_for_end(address: Path, users: Path) -> None:
    """Wait until the node has ended, so that its store is free for whoever comes next."""
    deadline = time.monotonic() + END_DEADLINE_S
    with open(users, "w") as file:
        # It takes the lock, then closes its port, and holds the lock until it is gone.
        while time.monotonic() < deadline:
            if not _answers(address):
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    pass
                else:
                    return
            time.sleep(0.02)


def _answers(address: Path) -> bool:
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.connect(str(address))
    except OSError:
        return False
    else:
        return True
    finally:
        probe.close()


def _folder() -> Path:
    """Return a folder of this user alone; its path is short: a socket's has at most 107 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"penstock-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise InvalidRequest(
            f"{folder} belongs to another user: set XDG_RUNTIME_DIR", folder=str(folder)
        )
    return folder


__all__ = ["open_transport"]
