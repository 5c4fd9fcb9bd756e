"""The zygote: a process that has imported what roles run in, and forks a child for each request.

`penstock.server.processes.start` starts and asks it: see there for what a child is given. It
imports no code of users, starts no thread and no gRPC, and has no state but its imports, so that a
fork of it is what a fresh program would be after them. A child returns from `main`'s loop and runs
its task as a program does, to the interpreter's own end.

Each child is a child of the process that asks, not of this one: a fork whose own parent ends at
once goes to the nearest ancestor that takes such (`PR_SET_CHILD_SUBREAPER`), which the asking
process does for that moment. So that one waits for it and reads its status as of any child, the
kernel ends it with that one, and the end of this process ends no other.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.common.readable import readable
from penstock.server.logs.followed import follow
from penstock.server.process.allocator import withdraw
from penstock.server.process.garbage import collect_as_usual, collect_seldom
from penstock.server.processes import child
from penstock.server.processes.page import Page

LOADED = b"loaded"
"""A request without a fork: it is answered once the imports are done."""

MAX_REQUEST_BYTES, MAX_FDS = 1 << 16, 8

_PR_SET_NAME = 15
_FIELDS_OF_ARGUMENTS = slice(48 - 3, 50 - 3)
"""Of proc(5), `arg_start` and `arg_end`; what comes after a process's name begins with field 3."""


class _Request(NamedTuple):
    told: dict[str, Any]
    fds: list[int]


def main(argv: Sequence[str]) -> None:
    """Import the modules of tasks, and fork until nobody asks any more; run a task in each child.

    Args:
        argv: The socket that requests come from; padding, which is room for the longer names of
            children; modules of tasks.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        # They reach the whole terminal or service, and are the asking process's to handle, which
        # ends this one and all children. They were held back until here.
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    withdraw()  # before anything here starts a process of its own
    follow()
    asking, parent = socket.socket(fileno=int(argv[0])), os.getppid()
    for module in argv[2:]:
        importlib.import_module(module)
    collect_as_usual()
    request = _fork_on_request(asking, parent)
    if request is not None:
        _run(request)


def _fork_on_request(asking: socket.socket, parent: int) -> _Request | None:
    """Return, in a child, what it is to do; in this process None, when nobody asks any more."""
    watched: list[Any] = [asking]
    with contextlib.suppress(OSError):  # an old kernel: then the end of its socket alone tells
        watched.append(os.pidfd_open(parent))
    while True:
        # Not by the socket alone: a fork of the asking process may hold a copy of its end.
        if watched[1:] == readable(watched):
            return None
        data, fds = _receive(asking)
        if not data:
            return None
        if data == LOADED:
            with contextlib.suppress(OSError):
                asking.send(b"0")
            continue
        ours, theirs = socket.socketpair()
        try:
            if (between := os.fork()) == 0:
                # Its children are this process's for a moment; then it has ended.
                asking.close()
                ours.close()
                if _fork_and_tell(theirs) == 0:
                    for fd in watched[1:]:
                        os.close(fd)
                    theirs.recv(1)  # its end, when this is a child of the asking process
                    theirs.close()
                    return _Request(json.loads(data), fds)
                os._exit(0)
            theirs.close()
            os.waitpid(between, 0)
            answer = ours.recv(64)
        except OSError as error:
            theirs.close()
            answer = str(-(error.errno or 0)).encode()
        with contextlib.suppress(OSError):  # nobody asks any more
            asking.send(answer)
        ours.close()
        for fd in fds:
            os.close(fd)


def _fork_and_tell(theirs: socket.socket) -> int:
    """Fork; in the parent say which process it is, or what the system said."""
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or 0)
    if pid:
        theirs.send(str(pid).encode())
    return pid


def _receive(asking: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its file descriptors; nothing when nobody asks any more."""
    fds = array.array("i")
    data, ancillary, _, _ = asking.recvmsg(
        MAX_REQUEST_BYTES, socket.CMSG_LEN(MAX_FDS * fds.itemsize)
    )
    for _, _, found in ancillary:
        fds.frombytes(found)
    return data, list(fds)


def _run(request: _Request) -> None:
    """Be what `python -P -m module` is, and run its `main`."""
    told = request.told
    output, errors, folder, sock, page, *more = request.fds
    for number, fd in ((1, output), (2, errors)):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.fchdir(folder)
    os.close(folder)
    child.die_with_parent()
    if os.getppid() != told["parent"]:
        return  # it died before prctl took effect
    child.mark_anew()
    definition, files_fd = b"", -1
    if told["definition"]:
        with open(more.pop(0), "rb") as file:
            file.seek(0)
            definition = file.read()
    if more:
        files_fd = more.pop(0)
    module = importlib.import_module(told["module"])
    sys.argv = [str(module.__file__), *told["arguments"]]
    _show_name(told["module"])
    notes = Page(page, write=True)
    os.close(page)
    heard = socket.socket(fileno=sock)
    module.main(child.Inherited(heard, notes, files_fd, definition, sys.argv[1:]))


def _show_name(module: str) -> None:
    """Let `ps` and `top` show which task this is, as they do for a program of its own."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, module.rpartition(".")[2].encode()[:15], 0, 0, 0)
        with open("/proc/self/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        start, end = map(int, fields[_FIELDS_OF_ARGUMENTS])
        text = "\0".join([sys.executable, "-P", "-m", module]).encode()
        if start and len(text) < end - start:  # 0 where it may not be read
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    collect_seldom()  # before what takes long to import
    main(sys.argv[1:])
