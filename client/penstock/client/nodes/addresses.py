"""Where the addresses of nodes come from: a list, a name that is resolved, a file, an engine."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.client.calls.grpc_transport import check_host_and_port, open_target
from penstock.client.calls.node_address import Address, host_and_port
from penstock.wire.errors import InvalidRequest, Unreachable
from penstock.wire.transports import Addresses, Transport

DNS_S, FILE_S = 5.0, 1.0
"""How often a name is resolved, and a file looked at: a stat, unless it has changed."""

HELD_LOOKS = 3
"""Looks for which an address of a name is used after it was told last."""

MAX_FILE_BYTES = 1 << 20

Resolve = Callable[..., Sequence[tuple[Any, ...]]]
"""`socket.getaddrinfo`."""


@dataclass(frozen=True)
class Origin:
    """A part of a target, with what its addresses have in common.

    Attributes:
        text: The part, for messages.
        addresses: Tells them.
        credentials: What each of them is shown; its own target stands for none.
        holds: An address that is not told any more is used so many looks longer: answers of a name
            server differ where it has more addresses than it tells at once.
    """

    text: str
    addresses: Addresses
    credentials: Address
    holds: int = 0


class ListedAddresses:
    """Addresses that stay as they are.

    Args:
        addresses: These.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.every_s = math.inf
        self._addresses = tuple(addresses)

    def look(self) -> Sequence[str]:
        """Return them."""
        return self._addresses

    def close(self) -> None:
        """Do nothing: nothing is held."""


class ResolvedName:
    """All addresses of a name, as the system resolves it.

    Args:
        target: `dns:///name:port`.
        resolve: What resolves it.

    Raises:
        InvalidRequest: It has no name or no port, or names a server of names.
    """

    def __init__(self, target: str, resolve: Resolve = socket.getaddrinfo) -> None:
        self.every_s = DNS_S
        self._target, self._resolve = target, resolve
        rest = target.removeprefix("dns:")
        if rest.startswith("//") and not rest.startswith("///"):
            raise InvalidRequest(
                f"{target!r} names a server of names, and names are resolved as this machine does: "
                "write dns:///name:port",
                field="target",
                value=target,
            )
        check_host_and_port(rest.removeprefix("///"), "dns:///name:port: ")
        self.name, port = host_and_port(target)
        self._port = int(port)

    def look(self) -> Sequence[str]:
        """Resolve it.

        Raises:
            Unreachable: It has no address, or nobody answers who would know.
        """
        try:
            found = self._resolve(self.name, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise Unreachable(
                f"the name of {self._target} has no address ({reason}); check it, and that a node "
                "is ready where it leads",
                target=self._target,
            ) from None
        hosts = {str(address[0]) for *_, address in found}
        return sorted(
            f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts
        )

    def close(self) -> None:
        """Do nothing: nothing is held."""


class AddressFile:
    """A file with one address a line, which is read again when it has changed.

    Empty lines count for nothing, nor does what follows a `#`.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.every_s = FILE_S
        self._path = Path(path)
        self._state: tuple[int, ...] = ()
        self._found: tuple[str, ...] = ()

    def look(self) -> Sequence[str]:
        """Return its addresses.

        Raises:
            InvalidRequest: It cannot be read, has a line that is none, or no address at all.
        """
        try:
            with self._path.open("rb") as file:
                about = os.fstat(file.fileno())
                state = (about.st_mtime_ns, about.st_size, about.st_ino)
                if state != self._state:
                    self._found, self._state = self._parse(file.read(MAX_FILE_BYTES + 1)), state
        except OSError as error:
            raise self._refusal(
                f"{error.strerror or error}: give a file with an address a line"
            ) from None
        return self._found

    def _parse(self, data: bytes) -> tuple[str, ...]:
        if len(data) > MAX_FILE_BYTES:
            raise self._refusal("it is larger than 1 MiB: give a file with an address a line")
        found = []
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if address := line.partition("#")[0].strip():
                check_address(address, f"{self._path}, line {number}: ")
                found.append(address)
        if not found:
            raise self._refusal("it has no address: write host:port on a line for each node")
        return tuple(found)

    def _refusal(self, what: str) -> InvalidRequest:
        return InvalidRequest(
            f"the file of nodes {self._path}: {what}", field="target", value=f"file:{self._path}"
        )

    def close(self) -> None:
        """Do nothing: nothing is held."""


def check_address(address: str, place: str = "") -> None:
    """Refuse what is not the address of one node.

    Raises:
        InvalidRequest: Says what to write.
    """
    if not (address.startswith("unix:") and len(address) > len("unix:")):
        check_host_and_port(address, place)


def origins(
    address: Address,
    job: str = "",
    *,
    grouped: bool = True,
    resolve: Resolve = socket.getaddrinfo,
) -> list[Origin] | Transport:
    """Return where the addresses of a target come from; or a transport, if it is one node.

    Args:
        address: The target, with the credentials that hold for all its nodes.
        job: As for `open_transport`.
        grouped: The same.
        resolve: What resolves names.

    Raises:
        InvalidRequest, MissingExtra: As `open_transport`; or a part of a list is a node that is
            started for this process.
    """
    if len(address.targets) < 2 and not address.text.startswith(("dns:", "file:")):
        found = open_target(address, job, grouped=grouped)
        if isinstance(found, Addresses):
            return [Origin(address.text, found, address)]
        return found
    return [_origin(part, address, job, grouped, resolve) for part in address.targets]


def _origin(part: str, address: Address, job: str, grouped: bool, resolve: Resolve) -> Origin:
    if part.startswith("dns:"):
        name = ResolvedName(part, resolve)
        tls = address.tls and replace(address.tls, name=address.tls.name or name.name)
        return Origin(part, name, replace(address, tls=tls), HELD_LOOKS)
    if part.startswith("file:"):
        path = part.removeprefix("file:")
        return Origin(part, AddressFile(path.removeprefix("//")), address)
    host, _, port = part.rpartition(":")
    is_plain = port.isdigit() and (":" not in host or host.startswith("["))
    if is_plain or part.startswith("unix:"):
        check_address(part)
        return Origin(part, ListedAddresses([part]), address)
    if part.startswith(("local:", "spawn:")):
        raise InvalidRequest(
            f"{part!r} is a node of this process's own: read it alone, or give addresses",
            field="target",
            value=part,
        )
    found = open_target(address.at(part), job, grouped=grouped)
    if isinstance(found, Addresses):
        return Origin(part, found, address)
    found.close()
    raise InvalidRequest(
        f"{part!r} is one node, of another kind than an address: read it alone",
        field="target",
        value=part,
    )
