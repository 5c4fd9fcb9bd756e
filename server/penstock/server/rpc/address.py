"""The address that a node listens on: an error says why it cannot be taken."""

from __future__ import annotations

import errno
import os
import socket
import stat

from penstock.wire.errors import InvalidRequest, PortInUse


def in_use(listen: str, error: OSError | None = None) -> PortInUse:
    """Return the error for an address that cannot be taken, with the system's reason."""
    if error is None or error.errno == errno.EADDRINUSE:
        sentence = "the port is in use; stop the process that listens there, or give another"
    else:
        sentence = f"{error.strerror or error}; give an address of this machine as"
    return PortInUse(f"cannot listen on {listen}: {sentence} --listen", address=listen)


def check_free(listen: str) -> None:
    """Refuse an address that cannot be bound, with the system's reason, which gRPC only logs.

    Raises:
        PortInUse: Another process listens there, or this machine does not have the address.
        InvalidRequest: No socket can be made at that path.
    """
    if listen.startswith("unix:"):
        _check_path(listen, listen.removeprefix("unix:"))
        return
    host, _, port = listen.rpartition(":")
    refused: OSError | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise in_use(listen, error) from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                refused = error
            else:
                return  # one of a name's addresses is enough for gRPC, too
    raise in_use(listen, refused) from refused


def _check_path(listen: str, path: str) -> None:
    """Refuse a Unix socket that a process listens on; remove one that a killed server left."""
    if len(path.encode()) > 100:
        raise InvalidRequest(
            f"the socket path {path!r} is longer than the 100 bytes that the system allows",
            field="address",
            value=listen,
        )
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(
            f"cannot listen on {listen}: {folder} is not a folder that this process may write to; "
            "make it, or give another --listen",
            field="address",
            value=listen,
        )
    try:
        remove_dead_socket(path)
    except FileExistsError as error:
        raise InvalidRequest(
            f"cannot listen on {listen}: {error.strerror}, and it is left alone; give another "
            "--listen",
            field="address",
            value=listen,
        ) from error
    except OSError as error:
        raise in_use(listen, error) from error


def remove_dead_socket(path: str) -> None:
    """Remove a Unix socket that no process listens on, of any kind; it may be missing.

    Raises:
        FileExistsError: It is not a socket.
        OSError: A process listens there (EADDRINUSE), or it cannot be removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket lies there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            # Its queue is full, or it is a socket of another kind: both have a listener.
            if error.errno not in (errno.EAGAIN, errno.EPROTOTYPE):
                raise
    raise OSError(errno.EADDRINUSE, "another process listens there")
