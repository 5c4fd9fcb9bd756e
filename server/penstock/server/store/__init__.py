"""Where cursors, checkpoints, snapshots and verdicts outlive every process.

`contract.py` is the store: `group_operations.py` and `log_operations.py`, each operation one
transaction (load, ask a rule, write). What may happen is decided by `rules`, pure functions over
`rows.py`. A kind of store implements `transacting.py` (open, close, run a transaction) and
`tables.py` (reach the rows). `sqlite.py` is the embedded store of one node: its thread and its
group commits; `database.py` (the file and its errors), `sqlite_tables.py` (statements),
`sqlite_schema.py` (sealed rows), `migrations.py` (older formats). `in_memory.py` is the second
kind. `postgres.py` is the store of several nodes: its connections and its group commits;
`postgres_tables.py` (rows that were read are kept for a transaction), `postgres_sql.py`
(statements), `postgres_opening.py` and `postgres_place.py` (what is refused, errors by name).
`about.py` says what an operation is about, for its locks. `watch.py` logs that a store fails.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from penstock.server.store.contract import Store
from penstock.server.store.in_memory import Memory, MemoryStore
from penstock.server.store.sqlite import SqliteStore
from penstock.wire.errors import InvalidJob, InvalidRequest, MissingExtra

_KEY = "server.store"


def open_store(url: str, base: Path) -> Store:
    """Return the store that a URL names, not yet opened: `await store.open()` comes next.

    Args:
        url: `sqlite:///relative/path.db`, `sqlite:////absolute/path.db` or `postgresql://...`.
        base: The folder that a relative path starts from: the job file's, so that the same job
            finds the same store from every working directory.

    Raises:
        InvalidJob: The URL is not of that form, or names an unknown kind of store.
        MissingExtra: It is PostgreSQL's, and psycopg is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if url.startswith(("postgres:", "postgresql:")):  # it may hold a password
            raise InvalidJob(
                "the store is not an address of PostgreSQL: write "
                "postgresql://host:5432/database?user=NAME",
                key=_KEY,
            )
        raise InvalidJob(
            f"the store {url!r} is not a URL: write sqlite:///{url or 'penstock.db'}", key=_KEY
        )
    if scheme in ("postgres", "postgresql"):
        return _postgres(url)
    if scheme != "sqlite":
        raise InvalidJob(
            f"no store is named {scheme!r}: those known are sqlite, as in sqlite:///penstock.db, "
            "and postgresql",
            key=_KEY,
        )
    if "?" in rest or "#" in rest:
        raise InvalidJob(
            f"the store {url!r} has options, and a SQLite store has none: write "
            f"{url[: min(url.find(mark) for mark in '?#' if mark in url)]}",
            key=_KEY,
        )
    path = rest.removeprefix("/")
    if not rest.startswith("/") or not path or path.endswith("/"):
        wanted = rest.strip("/") or "penstock.db"
        raise InvalidJob(
            f"the store {url!r} names no file: write sqlite:///{wanted} (relative to the job file) "
            f"or sqlite:////folder/{wanted}",
            key=_KEY,
        )
    return SqliteStore(base / path)


def refuse_password(url: str) -> None:
    """Refuse a URL with a password where every user of the machine reads it: in arguments.

    Raises:
        InvalidRequest: It has one; it is not repeated.
    """
    try:
        parts = urlsplit(url)
        has = parts.password is not None or "password=" in parts.query
    except ValueError:
        has = "@" in url
    if has:
        raise InvalidRequest(
            "the store's address has a password, and arguments are read by every user of this "
            "machine (ps): leave it out, and give it by PGPASSFILE, ?passfile=FILE, or the whole "
            "address by PENSTOCK_STORE",
            field="store",
        )


def _postgres(url: str) -> Store:
    try:
        from penstock.server.store.postgres import PostgresStore
    except ImportError as error:
        raise MissingExtra(
            "a store in PostgreSQL needs psycopg: pip install 'penstock[postgres]'",
            package="psycopg",
            extra="postgres",
        ) from error
    return PostgresStore(url)


__all__ = ["Memory", "MemoryStore", "SqliteStore", "Store", "open_store", "refuse_password"]
