"""Where a store in PostgreSQL is: its address without a password, and errors by name."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

import psycopg
from psycopg import conninfo, errors
from psycopg.pq import Conninfo

from penstock.wire.errors import (
    InvalidJob,
    PenstockError,
    StoreCorrupt,
    StoreUnavailable,
)

_KEY = "server.store"

SCHEMA = "penstock"
"""The schema of a store, unless the options of its address name another: search_path."""

LOCK_S = 5.0
"""How long a transaction waits for another one about the same group or log, on any node."""

_UNKNOWN = re.compile(r'invalid URI query parameter: "(\w+)"')

_OPTIONS = (
    f"-c lock_timeout={int(LOCK_S * 1000)} "
    # A node that is stopped in the middle of a transaction holds up the others no longer than this.
    "-c idle_in_transaction_session_timeout=10000"
)

_DEFAULTS = {
    "application_name": "penstockd",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # A cut connection is noticed within about 10 s, instead of the system's 15 minutes.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}

_OF_A_MOMENT = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,  # another transaction has added the same row
)

_LOST = (
    errors.AdminShutdown,
    errors.CannotConnectNow,
    errors.CrashShutdown,
    errors.IdleInTransactionSessionTimeout,
    errors.TooManyConnections,
)


class PostgresPlace:
    """Where a store is, and how its errors are said: never with a password.

    Args:
        url: `postgresql://...`, as libpq reads it.

    Attributes:
        schema: The schema that the tables are in.
        parameters: What connections are opened with.

    Raises:
        InvalidJob: libpq cannot read it.
    """

    def __init__(self, url: str) -> None:
        try:
            given: dict[str, Any] = conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            unknown = _UNKNOWN.search(str(error))  # else without what libpq quotes of the URL
            why = f"libpq has no parameter {unknown[1]!r}" if unknown else "libpq cannot read it"
            raise InvalidJob(
                f"the store is not an address of PostgreSQL ({why}): write "
                "postgresql://host:5432/database?user=NAME, with characters such as @ and / in "
                "names as %40 and %2F",
                key=_KEY,
            ) from None
        options = str(given.pop("options", None) or os.environ.get("PGOPTIONS", ""))
        self.schema = _schema(options) or SCHEMA
        self.parameters = {**_DEFAULTS, **given, "options": f"{options} {_OPTIONS}".strip()}
        named = {**_from_environment(), **given}
        if named.get("service") and not given.get("host"):
            place = f"service {named['service']}"
        else:
            place = _places(
                str(named.get("host") or named.get("hostaddr") or "localhost"),
                str(named.get("port") or ""),
            )
        role = f"role {named['user']}, " if named.get("user") else ""
        base = named.get("dbname") or named.get("user") or ""
        # Without user@: a part of an address before @ is left out wherever an error is said.
        self.where = f"postgresql://{place}/{base} ({role}schema {self.schema})"

    def named(self, error: BaseException) -> PenstockError | None:
        """Return the named error for what psycopg raised; None = it is a bug, and rises."""
        named = self._named(error)
        if named is not None:
            named.__cause__ = error
        return named

    def _named(self, error: BaseException) -> PenstockError | None:
        if isinstance(error, TimeoutError):
            return self.unavailable("it has not answered in time", "look whether it is overloaded")
        if not isinstance(error, psycopg.Error):
            return None
        text = _said(error)
        if isinstance(error, errors.InsufficientPrivilege):
            return self.unavailable(
                f"its role may not do what a store does ({text})",
                f"GRANT USAGE, CREATE ON SCHEMA {self.schema} and ALL on all its tables and "
                "sequences to the role, or make the role their owner",
            )
        if isinstance(error, errors.DiskFull):
            return self.unavailable(
                f"its disk is full ({text})", "make room on the database's disk"
            )
        if isinstance(error, errors.LockNotAvailable):
            return self.unavailable(
                f"another node has held the same group or log for {LOCK_S:.0f} s",
                "it was stopped or cannot reach the database; it is let go after 10 s",
            )
        if isinstance(error, errors.QueryCanceled):
            return self.unavailable(
                f"it has broken off a statement ({text})",
                "raise statement_timeout for this role and database, or look whether the database "
                "is overloaded",
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return self.unavailable(
                "it takes no writes: it is a standby, or default_transaction_read_only is on",
                "name the primary; with several hosts, add target_session_attrs=read-write",
            )
        if isinstance(error, errors.TooManyConnections) or any(each in text for each in _FULL):
            return self.unavailable(
                f"it takes no more connections ({text})",
                "raise max_connections, or the limit of the role or database, to three for each "
                "node and what else there is; or end what holds them",
            )
        if isinstance(
            error, errors.UndefinedTable | errors.UndefinedColumn | errors.UndefinedObject
        ):
            return self.corrupt(f"has lost a part of its tables ({text})")
        if isinstance(error, errors.DataCorrupted | errors.IndexCorrupted):
            return self.corrupt(f"is damaged ({text})")
        if "unsupported startup parameter" in text:
            return self.pooled()
        if isinstance(
            error, psycopg.OperationalError | errors.SerializationFailure | errors.UniqueViolation
        ):
            return self.unavailable(text, _remedy(text))
        return None

    def unavailable(self, why: str, remedy: str) -> StoreUnavailable:
        """Return the error for a store that cannot be used now."""
        return StoreUnavailable(
            f"the store {self.where} cannot be used: {why}; {remedy}", path=self.where
        )

    def corrupt(self, what: str, remedy: str = "") -> StoreCorrupt:
        """Return the error for what is not a store, or not a whole one."""
        remedy = remedy or "put back a copy of it, or name another schema to begin an empty store"
        return StoreCorrupt(f"the store {self.where} {what}: {remedy}", path=self.where)

    def pooled(self) -> StoreUnavailable:
        """Return the error for a pooler in between."""
        return self.unavailable(
            "a pooler such as PgBouncer stands before it, and locks belong to one session",
            "name PostgreSQL itself: a node has at most 3 connections",
        )


def of_a_moment(error: BaseException) -> bool:
    """Tell whether a transaction has been undone for another's sake: it is run again as it is."""
    return isinstance(error, _OF_A_MOMENT)


def lost(error: BaseException) -> bool:
    """Tell whether a connection is lost, or cannot be made now: it is tried again."""
    if isinstance(error, _LOST):
        return True
    # libpq's own errors have no code: a reset, a refused connection, a name that is not known.
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


_FULL = ("too many c", "remaining connection slots")
"""Words of a server that is full; the others are said to all but superusers, before it is."""
_CERTIFICATE = (
    "name the file of the authority that signed the server's certificate by sslrootcert, and the "
    "server by a host that the certificate is for"
)
_SERVICE = "name one that the file of PGSERVICEFILE has, in [brackets]"

REMEDIES = {
    "no password supplied": "give the role's password in the file that PGPASSFILE names, which "
    "its owner alone may read, in a line host:port:database:user:password, or by PENSTOCK_STORE",
    "password authentication failed": "correct the role's password where it is given: in the "
    "file that PGPASSFILE names, in PENSTOCK_STORE or in PGPASSWORD",
    "not permitted to log in": "ALTER ROLE ... LOGIN, or name another role in the address",
    "not currently accepting connections": "ALTER DATABASE ... ALLOW_CONNECTIONS true, or name "
    "another database in the address",
    "no pg_hba.conf entry": "have the server's pg_hba.conf let this host, role and database in, or "
    "connect as it asks, say with sslmode=require",
    "SSL was required": "turn TLS on in the server, or leave sslmode out where nobody listens",
    "certificate verify failed": _CERTIFICATE,
    "root certificate file": _CERTIFICATE,
    "does not match host name": _CERTIFICATE,
    "definition of service": _SERVICE,
    "service file": _SERVICE,
    'role "': "create the role, or name another in the address, as ?user=NAME",
    'database "': "create the database, with the role as its owner, or name another in the address",
    "resolve host": "check the host in the address",
    "does not support SSL": "switch ssl on at the server, or leave sslmode out of the address",
    "Connection refused": "look whether the server runs on that host, and listens on that port",
}
"""What to do, by words of what is said when no connection comes about: it has no code then. A
server that speaks another language than English gets the remedy for all."""


def _remedy(text: str) -> str:
    everywhere = "check its address, the role's password and the server"
    return next((remedy for words, remedy in REMEDIES.items() if words in text), everywhere)


_SEVERAL = "Multiple connection attempts failed. All failures were:"
"""What psycopg writes between the error of the last host and those of all."""


def _said(error: psycopg.Error) -> str:
    """Return what a server or libpq says, in one line."""
    primary = error.diag.message_primary or str(error)
    if _SEVERAL in primary:  # the last one of them stands before it, too
        primary = "no host of several can be used: " + primary.partition(_SEVERAL)[2]
    return " ".join(primary.split()) or type(error).__name__


def _places(hosts: str, ports: str) -> str:
    """Return hosts with their ports as an address has them; one port is that of all."""
    names, numbers = hosts.split(","), ports.split(",")
    if len(numbers) == 1:
        numbers *= len(names)
    pairs = itertools.zip_longest(names, numbers, fillvalue="")
    return ",".join(f"{name}:{number}" if number else name for name, number in pairs)


def _schema(options: str) -> str:
    """Return the first schema of a search_path in options of the server; "" = there is none."""
    found = ""
    words = options.replace("\\ ", "\0").split()
    for number, word in enumerate(words):
        setting = word.removeprefix("-c").removeprefix("--").replace("\0", " ")
        if word == "-c" and number + 1 < len(words):
            setting = words[number + 1].replace("\0", " ")
        name, _, value = setting.partition("=")
        if name.strip() == "search_path":
            found = value.split(",")[0].strip().strip('"')
    return found


def _from_environment() -> dict[str, str]:
    """Return what libpq takes from the environment, without passwords."""
    found = {}
    for option in Conninfo.get_defaults():
        name = option.keyword.decode()
        if option.envvar and name in ("host", "port", "user", "dbname", "service", "hostaddr"):
            value = os.environ.get(option.envvar.decode())
            if value:
                found[name] = value
    return found
