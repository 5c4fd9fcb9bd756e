"""Who may do what on a node: a file of tokens' hashes and of names in client certificates.

The file is read again once it changes. It holds no token: those have 256 random bits, so a plain
SHA-256 of them tells nobody anything.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import structlog

from penstock.common.certificates import WatchedFiles
from penstock.server.access.caller import INCLUDED, Caller
from penstock.server.config import yaml_file
from penstock.server.config.location import Location
from penstock.server.jobs.checked_keys import validate
from penstock.server.jobs.token_settings import EXPECTED, TokenSettings
from penstock.wire.errors import InvalidJob, PenstockError, Unauthenticated, Unreachable

logger = structlog.get_logger("penstock")

PREFIX = "pst_"
"""What tokens begin with, so that people and scanners of leaks know one."""

MAX_TOKENS = 10_000

_HASH = re.compile(r"[0-9a-f]{64}")


def hash_of(token: str) -> str:
    """Return what the file has of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


class _TokenFile(NamedTuple):
    """What a file says.

    Attributes:
        by_hash: Callers by the hash of their token.
        by_certificate: Callers by the pattern of the name in their certificate, in order.
        names: All names.
    """

    by_hash: dict[str, Caller]
    by_certificate: list[tuple[str, Caller]]
    names: tuple[str, ...]


class Access:
    """The callers of a file. Used by the event loop and by other threads.

    Args:
        path: The file.
        jobs: The names of the node's jobs: a pattern that matches none is a mistake. None = they
            are not known.

    Raises:
        InvalidJob: The file cannot be read or is wrong; names file, line and key.
    """

    def __init__(self, path: Path, jobs: Sequence[str] | None) -> None:
        self._path, self._jobs = path, jobs
        self._file = WatchedFiles({"tokens": path})
        self._lock = threading.Lock()
        self._state = self._file.state()
        self._known = self._read()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all callers."""
        return self._known.names

    def look(self) -> bool:
        """Read the file again if it has changed; tell whether others are let in from now on."""
        with self._lock:
            state = self._file.state()
            if state == self._state:
                return False
            self._state = state
            try:
                self._known = self._read()
            except InvalidJob as error:
                logger.warning(
                    "the file of tokens has changed and cannot be used: what it said before holds",
                    error=error.message,
                )
                return False
            logger.info("the file of tokens has changed", tokens=len(self._known.names))
            return True

    def of_token(self, token: str) -> Caller:
        """Return whose token this is.

        Raises:
            Unauthenticated: Nobody's, or it has expired.
        """
        found = self._known.by_hash.get(hash_of(token))
        if found is None:
            raise Unauthenticated(
                "the token is not one of this node: it was taken out of its file, or is another "
                "node's; ask the operator for a new one"
            )
        return _valid(found)

    def of_header(self, value: str) -> Caller:
        """Return whose token a header `authorization` has.

        Args:
            value: The header, or gRPC's metadata of that name: `Bearer TOKEN`.

        Raises:
            Unauthenticated: It has none, nobody's, or one that has expired.
        """
        kind, _, token = value.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthenticated(
                "`authorization` is not `Bearer TOKEN`: pass token= or set PENSTOCK_TOKEN"
            )
        return self.of_token(token.strip())

    def of_certificate(self, names: Iterable[str]) -> Caller:
        """Return whose certificate has these names.

        Raises:
            Unauthenticated: Nobody's, or what it stands for has expired.
        """
        shown = list(names)
        for pattern, caller in self._known.by_certificate:
            if any(fnmatchcase(name, pattern) for name in shown):
                return _valid(caller)
        of = f" and the certificate of {', '.join(shown[:3])} is not in its file" if shown else ""
        raise Unauthenticated(
            f"this node asks for a token{of}: pass token= or set PENSTOCK_TOKEN or "
            "PENSTOCK_TOKEN_FILE; `penstockd token new` makes one"
        )

    def still(self, caller: Caller) -> PenstockError | None:
        """Return why somebody who was let in is to ask again; None = nothing has changed.

        It is an error after which clients connect again: they may have another token by now.
        """
        now = {*self._known.by_hash.values(), *(each for _, each in self._known.by_certificate)}
        if caller in now and (caller.ends is None or datetime.now(UTC) < caller.ends):
            return None
        return Unreachable(f"what {caller.name!r} may do on this node has changed: connect again")

    # --- the file ---

    def _read(self) -> _TokenFile:
        values, location = yaml_file.read(self._path, str(self._path))
        if not isinstance(values, dict) or set(values) != {"tokens"}:
            raise location.error("a file of tokens has one key: tokens: [{name: ..., ...}, ...]")
        entries = values["tokens"] if values["tokens"] is not None else []
        if not isinstance(entries, list) or len(entries) > MAX_TOKENS:
            raise location.at("tokens").error(
                f"tokens is not a list of at most {MAX_TOKENS:,}: give [{{name: ..., ...}}, ...]"
            )
        by_hash: dict[str, Caller] = {}
        by_certificate: list[tuple[str, Caller]] = []
        names: list[str] = []
        for number, entry in enumerate(entries):
            at = location.at("tokens", number)
            settings = _checked(entry, at)
            caller = _caller(settings, at)
            if caller.name in names:
                raise at.at("name").error(f"{at.key}.name is {caller.name!r} again: names differ")
            names.append(caller.name)
            self._check_patterns(settings, at)
            if settings.certificate is not None:
                by_certificate.append((settings.certificate, caller))
            elif settings.sha256 in by_hash:
                raise at.at("sha256").error(
                    f"{at.key}.sha256 is that of {by_hash[settings.sha256].name!r}, too: make a "
                    "token for each"
                )
            else:
                by_hash[str(settings.sha256)] = caller
        return _TokenFile(by_hash, by_certificate, tuple(names))

    def _check_patterns(self, settings: TokenSettings, at: Location) -> None:
        for number, pattern in enumerate(settings.jobs):
            if self._jobs is not None and not any(fnmatchcase(job, pattern) for job in self._jobs):
                raise at.at("jobs", number).error(
                    f"{at.at('jobs', number).key} is {pattern!r}, and matches no job of this node: "
                    f"it has {', '.join(self._jobs)}"
                )


def _checked(entry: object, at: Location) -> TokenSettings:
    """Return an entry as settings; no error quotes what may be a token.

    Raises:
        InvalidJob: It is wrong.
    """
    if not isinstance(entry, dict):
        raise at.error(f"{at.key} is not an entry: give {{name: ..., sha256: ..., scopes: [...]}}")
    given = entry.get("sha256")
    if given is not None and not (isinstance(given, str) and _HASH.fullmatch(given)):
        raise at.at("sha256").error(
            f"{at.key}.sha256 is not a hash of 64 hex digits: give what `penstockd token new` "
            "wrote, and never the token itself"
        )
    for key in ("token", "secret", "password"):
        if key in entry:
            raise at.at(key).error(
                f"{at.key}.{key}: a file of tokens holds none: give its hash as sha256, as "
                "`penstockd token new` writes it"
            )
    settings = validate(TokenSettings, entry, at)
    if (settings.sha256 is None) == (settings.certificate is None):
        both = "is missing" if settings.sha256 is None else "and certificate are both given"
        raise at.at("sha256").error(
            f"{at.key}.sha256 {both}: give the hash of a token, or the name in a certificate"
        )
    return settings


def _caller(settings: TokenSettings, at: Location) -> Caller:
    ends = None
    if settings.expires is not None:
        try:
            ends = datetime.strptime(settings.expires, "%Y-%m-%d").replace(tzinfo=UTC)
        except ValueError:
            raise at.at("expires").error(
                f"{at.key}.expires is {settings.expires!r}: give {EXPECTED['expires']}"
            ) from None
        try:
            ends += timedelta(days=1)
        except OverflowError:
            ends = None  # after the last day that there is
    return Caller(
        name=settings.name,
        shown=settings.sha256 or str(settings.certificate),
        scopes=frozenset().union(*(INCLUDED[scope] for scope in settings.scopes)),
        jobs=tuple(settings.jobs),
        groups=tuple(settings.groups),
        ends=ends,
        streams=settings.streams,
        lanes=settings.lanes,
        horizon=settings.horizon,
    )


def _valid(caller: Caller) -> Caller:
    if caller.ends is not None and datetime.now(UTC) >= caller.ends:
        last = caller.ends - timedelta(days=1)
        raise Unauthenticated(
            f"{caller.name!r} expired: it was valid until {last:%Y-%m-%d}; ask the operator of the "
            "node for a new token",
            name=caller.name,
        )
    return caller


def callers_in(path: Path) -> Iterator[tuple[str, Caller]]:
    """Yield (what it is shown by, caller) of a file, for people.

    Raises:
        InvalidJob: It cannot be read or is wrong.
    """
    known = Access(path, None)._known
    for digest, caller in known.by_hash.items():
        yield f"token {digest[:12]}", caller
    for pattern, caller in known.by_certificate:
        yield f"certificate {pattern}", caller
