"""From a URL in a job file to a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.server.store import SqliteStore, open_store
from penstock.wire.errors import InvalidJob


def test_a_relative_path_starts_at_the_job_file(tmp_path: Path) -> None:
    """So the same job file finds the same store from every working directory."""
    store = open_store("sqlite:///state/penstock.db", tmp_path)

    assert isinstance(store, SqliteStore)
    assert store.path == tmp_path.resolve() / "state" / "penstock.db"


def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    """As in every other tool that names SQLite files by URL."""
    store = open_store("sqlite:////var/lib/penstock.db", tmp_path)

    assert isinstance(store, SqliteStore)
    assert store.path == Path("/var/lib/penstock.db").resolve()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("penstock.db", "write sqlite:///penstock.db"),
        ("", "write sqlite:///penstock.db"),
        ("sqlite://penstock.db", "write sqlite:///penstock.db"),
        ("sqlite:///", "write sqlite:///penstock.db"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///x.db?mode=ro", "has options, .* write sqlite:///x.db$"),
        ("sqlite:///x.db#old", "has options, .* write sqlite:///x.db$"),
        ("redis://host/1", "no store is named 'redis'.*sqlite"),
        ("postgresql://u:secret@[host/db", "write postgresql://host:5432/database"),
        ("postgres://u:secret@host/db?no_such=1", "write postgresql://host:5432/database"),
    ],
)
def test_what_is_no_store_is_said_with_the_remedy(url: str, sentence: str, tmp_path: Path) -> None:
    """One sentence at the job file's key, and never a password in it."""
    with pytest.raises(InvalidJob, match=sentence) as caught:
        open_store(url, tmp_path)

    assert caught.value.fields == {"key": "server.store"}
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("postgresql://u:secret@host/db", "postgresql://host/db (role u, schema penstock)"),
        (
            "postgres://u@host:5433/db?password=secret&options=-csearch_path%3Druns",
            "postgresql://host:5433/db (role u, schema runs)",
        ),
        ("postgresql:///db?service=prod", "postgresql://service prod/db (schema penstock)"),
    ],
)
def test_where_a_store_in_postgresql_is_has_no_password(
    url: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in logs and messages; nothing is connected to yet."""
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)

    assert open_store(url, tmp_path).where == where
