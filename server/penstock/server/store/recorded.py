"""What a store has recorded beside a log, read by commands that hold no store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from penstock.server.core import libraries
from penstock.server.job import Job
from penstock.server.store import SqliteStore, open_store


def version_warning(url: str, base: Path, job: Job) -> str:
    """Return the warning for a job that is computed here with other library versions; "" = none.

    Nothing is locked, written or created, so a running server keeps its store to itself.

    Args:
        url: The store's, as the job file has it.
        base: The folder that a relative path starts from.
        job: The job, with what it needs imported: after its first batch.

    Raises:
        InvalidJob: The URL names no store.
    """
    store = open_store(url, base)
    if not isinstance(store, SqliteStore) or not store.path.exists():
        return ""
    # Where there is no journal nobody has it open, and SQLite would make files to read it.
    journal = store.path.with_name(store.path.name + "-wal")
    mode = "mode=ro" if journal.exists() else "mode=ro&immutable=1"
    try:
        uri = f"{store.path.as_uri()}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0)) as connection:
            rows = connection.execute(
                "SELECT name, version FROM libraries WHERE log_id = ?", (job.log_id,)
            ).fetchall()
    except sqlite3.Error as error:
        return (
            f"the versions of libraries that job {job.name!r} began with are not compared: the "
            f"store {store.path} cannot be read ({error})"
        )
    found = libraries.differences(libraries.in_use(), dict(rows))
    return libraries.sentence(job.name, found) if found else ""


__all__ = ["version_warning"]
