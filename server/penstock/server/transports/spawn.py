"""`spawn:FILE?workers=16`: a node on a Unix socket, started by the first reader on this machine.

All processes of a user that name the same file and settings share one node: the process that comes
first starts it, under a lock. Every Loader holds a shared lock on the node's `users` file while it
is open; the node ends when it gets that lock for itself: the kernel releases what a killed trainer
held.

A node that is killed is started again, on the same socket, by the processes that have it open: each
process watches it in a thread. Readers see an address that is away for a moment, and go on.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import json
import logging
import os
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl

from penstock.common.readable import readable
from penstock.server.jobs.target import absolute_target
from penstock.server.process.environment import worker_environment
from penstock.server.process.extra import require_server
from penstock.wire.errors import ERRORS, InvalidRequest, PenstockError, Unreachable
from penstock.wire.transports import Endpoint

logger = logging.getLogger("penstock")

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
"""Between two starts of a node that dies at once."""

PROBE_S = 0.5
"""How often a node is looked for where the system does not tell of its death."""

START_DEADLINE_S, END_DEADLINE_S = 120.0, 30.0
SETTINGS = {"workers": "--workers", "store": "--store", "metrics": "--metrics"}


def open_transport(rest: str, *, job: str = "", grouped: bool = True) -> Endpoint:
    """Return the address of a running node for `rest`, starting one if there is none.

    It serves all jobs of the file, with its store, whatever its first reader reads.

    Raises:
        MissingExtra: The server half's packages are not installed.
        InvalidRequest: A setting is not known.
        Unreachable: The node did not start; says where its output is.
    """
    require_server(f"spawn:{rest}")
    file, _, query = rest.partition("?")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    for key in settings:
        if key not in SETTINGS:
            raise InvalidRequest(
                f"spawn: knows no setting {key!r}; it knows {', '.join(sorted(SETTINGS))}",
                field="key",
                value=key,
            )
    target = absolute_target(file)
    folder = private_folder("spawn:")
    name = hashlib.sha256("\0".join((target, repr(sorted(settings.items())))).encode()).hexdigest()
    base = folder / name[:16]
    node = _Node(target, settings, base)
    address, users = node.address, open(node.users, "w")  # noqa: SIM115
    try:
        # A node that is about to end holds this lock: a process that comes now waits until it is
        # gone.
        node.ensure(lambda: fcntl.flock(users, fcntl.LOCK_SH))
    except BaseException:
        users.close()
        raise
    watch = _Watch(node)

    def close() -> None:
        if users.closed:
            return
        watch.end()  # first: the end of an unused node is none that it should mend
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
            _wait_for_end(address, node.users)
            node.reap()

    return Endpoint(f"unix:{address}", close)


_started: list[subprocess.Popen[bytes]] = []
"""Nodes that this process has started: the process that starts another must ask how it ended."""


def _leave_running() -> None:
    """Let nodes live on that others use: Python would warn of each as this process exits."""
    for process in _started:
        if process.poll() is None:
            process.returncode = 0  # nobody will ask any more: it becomes a child of init


class _Node:
    """The node of a file and settings on this machine, running or not."""

    def __init__(self, target: str, settings: dict[str, str], base: Path) -> None:
        self.target, self._settings = target, settings
        self.address, self.users = base.with_suffix(".sock"), base.with_suffix(".users")
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._output = base.with_suffix(".lock"), base.with_suffix(".log")

    def reap(self) -> None:
        """Ask how it ended, if this process has started it: it has released all that it held."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_DEADLINE_S)

    def ensure(self, before: Callable[[], None] = lambda: None, *, again: bool = False) -> bool:
        """Start the node where it does not answer, and tell whether; one process at a time does.

        Args:
            before: Called under the lock, before the node is looked for.
            again: What the one before has said is kept.

        Raises:
            PenstockError: It did not start; under its own name where it had one.
        """
        with open(self._lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before()
            if _answers(self.address):
                return False
            mode = "a" if again else "w"
            self._process = _start(
                self.target, self._settings, self.address, self.users, self._output, mode
            )
            return True


class _Watch:
    """A thread that starts a node again when it dies, as long as it is in use here."""

    def __init__(self, node: _Node) -> None:
        self._node = node
        self._ended = threading.Event()
        self._wake, self._woken = os.pipe()
        threading.Thread(target=self._run, name="penstock-spawn", daemon=True).start()

    def end(self) -> None:
        """Watch no more; it may still be starting the node, which then ends for want of users."""
        self._ended.set()
        os.write(self._woken, b"e")  # not by closing alone: a fork of ours may hold a copy
        os.close(self._woken)

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                began = time.monotonic()
                if _answers(self._node.address):
                    self._wait_for_death()
                if self._ended.is_set():
                    return
                if time.monotonic() - began > MAX_PAUSE_S:
                    pause_s = FIRST_PAUSE_S
                elif self._ended.wait(pause_s):
                    return
                else:
                    pause_s = min(2 * pause_s, MAX_PAUSE_S)
                try:
                    if self._node.ensure(again=True):
                        logger.warning("the node for %s had ended; it is back", self._node.target)
                except (PenstockError, OSError) as error:
                    logger.error("the node for %s has ended: %s", self._node.target, error)
        finally:
            os.close(self._wake)

    def _wait_for_death(self) -> None:
        """Return when the node has ended, or nobody is to watch it any more."""
        fd = _process_of(self._node.address)
        if fd is None:
            while _answers(self._node.address) and not self._ended.wait(PROBE_S):
                pass
            return
        try:
            readable([fd, self._wake])
        finally:
            os.close(fd)


def _process_of(address: Path) -> int | None:
    """Return a file descriptor that is readable when the process that listens there has ended.

    None if the system does not tell: no pidfd, or a process of another namespace.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(address))
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, _, _ = struct.unpack("3i", credentials)
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return None
    if _answers(address):  # so the number was that process's, and nobody else's yet
        return fd
    os.close(fd)
    return None


def _start(
    target: str,
    settings: dict[str, str],
    address: Path,
    users: Path,
    output_path: Path,
    mode: str,
) -> subprocess.Popen[bytes]:
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
    with open(output_path, mode) as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C in the trainer's terminal must not take the node from under the other ranks.
            start_new_session=True,
            env=worker_environment(os.environ),
        )
    if not _started:
        atexit.unregister(_leave_running)  # it stands there once, however many nodes there are
        atexit.register(_leave_running)
    _started[:] = [process for process in _started if process.poll() is None]
    _started.append(process)
    deadline = time.monotonic() + START_DEADLINE_S
    while not _answers(address):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = output_path.read_text(errors="replace").strip().splitlines()
            why = _event(said[-1]) if said else f"it ended with status {process.wait()}"
            raise _not_started(target, why, output_path)
        time.sleep(0.05)
    return process


def _event(line: str) -> str:
    """Return what a line of the log says: once the node logs, each is a JSON object."""
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict):
            return str(found.get("event", line))
    return line


def _not_started(target: str, why: str, output_path: Path) -> PenstockError:
    """Return the error that the node ended with, under its own name where it had one."""
    named = re.fullmatch(r"penstockd: error: (?P<sentence>.*) \[(?P<code>\w+)\]", why)
    kind = ERRORS.get(named["code"], Unreachable) if named else Unreachable
    sentence = named["sentence"] if named else why
    return kind.with_fields(
        f"the node for {target} did not start: {sentence} (all of its output: {output_path})",
        {"target": target, "log": str(output_path)},
    )


def _wait_for_end(address: Path, users: Path) -> None:
    """Wait until the node has ended, so that its store is free for the next one."""
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


MAX_FOLDER_BYTES = 100 - len("/0123456789abcdef.sock")
"""What is left for the folder of the 100 bytes that a socket's path may have."""


def private_folder(scheme: str) -> Path:
    """Return a folder of this user alone, which nobody else could have put there.

    Its path is short, since that of a socket has at most 107 bytes.

    Args:
        scheme: Who keeps sockets there, for messages.

    Raises:
        InvalidRequest: Its path is too long, what lies there is a link, or others may write or look
            into it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"penstock-{os.getuid()}"
    if len(os.fsencode(folder)) > MAX_FOLDER_BYTES:
        raise InvalidRequest(
            f"{scheme} keeps its sockets in {folder}, whose path has more than {MAX_FOLDER_BYTES} "
            "bytes, and the path of a socket must be short: set XDG_RUNTIME_DIR to a folder of "
            "yours with a shorter path",
            field="folder",
            value=str(folder),
        )
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise InvalidRequest(
            f"{scheme} finds no folder for its socket: {folder} cannot be made ({error.strerror}); "
            "set XDG_RUNTIME_DIR to a folder of yours",
            field="folder",
            value=str(folder),
        ) from error
    found = folder.lstat()
    wrong = ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is a link" if stat.S_ISLNK(found.st_mode) else "is not a folder"
    elif found.st_uid != os.getuid():
        wrong = "belongs to another user"
    elif found.st_mode & 0o077:
        wrong = f"is open to others (mode {stat.S_IMODE(found.st_mode):04o}, and not 0700)"
    if wrong:
        raise InvalidRequest(
            f"{scheme} keeps its sockets in {folder}, and that {wrong}: remove it, or set "
            "XDG_RUNTIME_DIR to a folder of yours",
            field="folder",
            value=str(folder),
        )
    return folder
