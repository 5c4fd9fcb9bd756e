"""Where a node is and what it is shown: one value, which goes through the whole client.

Glossary:
    address: Where a node listens: `host:port` or `unix:/path`. Where a batch is in its log is its
        lane and offset.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from penstock.wire.errors import InvalidRequest
from penstock.wire.transports import Transport

SYSTEM = "system"
"""In place of a file of authorities: those that gRPC brings."""

VARIABLES = {
    "ca": "PENSTOCK_TLS_CA",
    "cert": "PENSTOCK_TLS_CERT",
    "key": "PENSTOCK_TLS_KEY",
    "name": "PENSTOCK_TLS_NAME",
}
TOKEN, TOKEN_FILE = "PENSTOCK_TOKEN", "PENSTOCK_TOKEN_FILE"

WITHOUT = ("unix:", "unix-abstract:", "local:", "spawn:")
"""Targets that need neither: the file system says who may connect, or nobody else can."""


def _refuse(sentence: str, field: str) -> NoReturn:
    raise InvalidRequest(sentence, field=field)


@dataclass(frozen=True)
class Tls:
    """How a client speaks TLS. Its files are read at every connection, so they may be renewed.

    Args:
        ca: The file of the authorities that sign nodes' certificates, in PEM; `"system"` takes
            those that gRPC brings, which are the public ones.
        cert: The file of the client's own certificate, with its chain, for nodes that ask for one
            (`server.tls.client_ca`).
        key: The file of its key, which has no password. Given together with `cert`.
        name: The name in the node's certificate, where it is not the one in the target, as behind
            a tunnel or with an address in place of a name.

    Raises:
        InvalidRequest: `cert` or `key` is given alone.
    """

    ca: str | os.PathLike[str] = SYSTEM
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.key is None else ("key", "cert")
            _refuse(
                f"Tls({given}=...) without {missing}=: a client certificate is a file and the file "
                "of its key",
                missing,
            )
        if not self.ca:
            _refuse('Tls(ca=""): give the file of the authorities, or "system"', "ca")

    @property
    def paths(self) -> dict[str, str | os.PathLike[str]]:
        """Return the files by name."""
        found = {"cert": self.cert, "key": self.key, "ca": None if self.ca == SYSTEM else self.ca}
        return {name: path for name, path in found.items() if path is not None}


class Token:
    """What a client shows to be let in; it is never printed.

    Args:
        token: The token itself, or the path of a file that holds it, which is read again for every
            call.

    Raises:
        InvalidRequest: It is neither.
    """

    def __init__(self, token: str | os.PathLike[str]) -> None:
        self._text, self._path = "", None
        if isinstance(token, os.PathLike):
            self._path = Path(token)
        elif isinstance(token, str):
            self._text = _checked(token, "token")
        else:
            _refuse("token: pass the token as a text, or the Path of a file that holds it", "token")

    def read(self) -> str:
        """Return the token.

        Raises:
            InvalidRequest: Its file cannot be read, or does not hold one.
        """
        if self._path is None:
            return self._text
        try:
            with self._path.open("rb") as file:
                held = file.read(_MAX_TOKEN + 2)
        except OSError as error:
            _refuse(f"the token's file {self._path}: {error.strerror or error}", "token")
        return _checked(held.decode("ascii", "replace"), f"the token's file {self._path}")

    def __repr__(self) -> str:
        return f"Token({'***' if self._path is None else repr(str(self._path))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and (self._text, self._path) == (other._text, other._path)

    def __hash__(self) -> int:
        return hash((self._text, self._path))


_MAX_TOKEN = 1000
"""Characters: gRPC takes 8 KiB of metadata in all."""


def _checked(text: str, what: str) -> str:
    text = text.strip()
    if not text:
        _refuse(f"{what} is empty: give what `penstockd token new` printed", "token")
    if len(text) > _MAX_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
        _refuse(f"{what} does not hold a token: give what `penstockd token new` printed", "token")
    return text


@dataclass(frozen=True)
class Address:
    """Where a node is, and what it is shown.

    Attributes:
        target: As `Loader` takes it.
        tls: How TLS is spoken; None = it is not.
        token: What is shown; None = nothing.
    """

    target: str | Sequence[str] | Transport
    tls: Tls | None = None
    token: Token | None = None
    text: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        target = self.target
        if isinstance(target, str):
            target = [part.strip() for part in target.split(",") if part.strip()]
        if isinstance(target, Sequence) and not isinstance(target, bytes):
            parts = tuple(str(part).strip() for part in target)
            target = parts[0] if len(parts) == 1 else parts
        object.__setattr__(self, "target", target)
        if isinstance(target, str) and target.startswith(WITHOUT):
            object.__setattr__(self, "tls", None)
            object.__setattr__(self, "token", None)
        text = ",".join(self.targets) or type(target).__name__
        object.__setattr__(self, "text", text)
        if self.token is not None and self.tls is None and not self._is_loopback:
            _refuse(
                f"a token for {text} would travel readable by all between: pass tls=Tls(ca=FILE) "
                f"or set {VARIABLES['ca']}, or leave the token out; without TLS tokens go to "
                "127.0.0.1 and Unix sockets alone",
                "token",
            )

    @property
    def _is_loopback(self) -> bool:
        """Whether it does not leave this machine."""
        # An open transport takes no token of ours, and addresses of later are checked when known.
        later = ("unix:", "file:")
        return all(
            target.startswith(later) or is_loopback(host_and_port(target)[0])
            for target in self.targets
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """Return its parts; empty = it is an open transport, or none at all."""
        if isinstance(self.target, str):
            return (self.target,)
        return self.target if isinstance(self.target, tuple) else ()

    def at(self, target: str) -> Address:
        """Return the address of another target, with the same credentials."""
        return replace(self, target=target)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, by its name or address alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_of(
    target: str | Sequence[str] | Transport,
    tls: Tls | None = None,
    token: Token | str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Address:
    """Return an address: what is not given is taken from the environment.

    Args:
        target: As `Loader` takes it.
        tls: As `Loader` takes it; None = `PENSTOCK_TLS_CA` (a file, or `system`), `_CERT`, `_KEY`
            and `_NAME`, if one of them is set.
        token: As `Loader` takes it; None = `PENSTOCK_TOKEN`, or the file `PENSTOCK_TOKEN_FILE`.
        environ: The environment; default `os.environ`.

    Raises:
        InvalidRequest: A value cannot be, or a token would travel without TLS.
    """
    environ = os.environ if environ is None else environ
    if tls is None:
        given = {name: environ[key] for name, key in VARIABLES.items() if environ.get(key)}
        if given:
            tls = Tls(**given)
    elif not isinstance(tls, Tls):
        _refuse(f"tls={tls!r}: pass Tls(ca=FILE)", "tls")
    if token is None:
        if environ.get(TOKEN):
            token = environ[TOKEN]
        elif environ.get(TOKEN_FILE):
            token = Path(environ[TOKEN_FILE])
    if token is not None and not isinstance(token, Token):
        token = Token(token)
    return Address(target, tls, token)


def host_and_port(target: str) -> tuple[str, str]:
    """Return host and port of a target over TCP, the port empty where there is none."""
    rest = target
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        if target.startswith(scheme):
            rest = target.removeprefix(scheme).split(",")[0]
            rest = rest.rpartition("/")[2]
    host, _, port = rest.rpartition(":")
    return (host or rest).strip("[]"), port if host else ""
