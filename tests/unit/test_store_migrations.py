"""A store of every format that was ever written opens in today's, and shows what it showed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from penstock.server.store import SqliteStore, migrations
from penstock.server.store import sqlite_schema as schema
from penstock.server.store.records import BeginRequest, Halt, JobRecord, Seen
from penstock.wire.errors import StaleGeneration, StoreCorrupt
from penstock.wire.order import Order

KEPT = Path(__file__).parent.parent / "data" / "stores"

_spec = importlib.util.spec_from_file_location("shown", KEPT / "shown.py")
assert _spec is not None
assert _spec.loader is not None
shown: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(shown)

FORMATS = sorted(int(path.stem.removeprefix("format-")) for path in KEPT.glob("format-*.db"))


def kept(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a copy of the kept file of a format, and what it shows."""
    path = folder / "penstock.db"
    shutil.copyfile(KEPT / f"format-{number}.db", path)
    found: dict[str, Any] = json.loads((KEPT / f"format-{number}.json").read_text())
    return path, found


def format_of(path: Path) -> int:
    with sqlite3.connect(path) as raw:
        (version,) = raw.execute("PRAGMA user_version").fetchone()
    raw.close()
    return int(version)


def test_every_step_leads_to_the_next_format() -> None:
    """From the oldest to today's, without a gap; and there are kept files."""
    assert sorted(migrations.STEPS) == list(range(migrations.OLDEST, schema.FORMAT))
    assert FORMATS
    assert max(FORMATS) <= schema.FORMAT


@pytest.mark.parametrize("number", FORMATS)
async def test_a_kept_store_shows_what_it_showed(tmp_path: Path, number: int) -> None:
    """Groups, checkpoints, verdicts, ends, libraries and snapshots; once more when opened again."""
    path, expected = kept(number, tmp_path)
    assert format_of(path) == number

    for _ in range(2):
        assert await shown.shown(path) == expected
        assert format_of(path) == schema.FORMAT


@pytest.mark.parametrize("number", FORMATS)
async def test_a_kept_store_goes_on(tmp_path: Path, number: int) -> None:
    """A run goes on at its cursor, an old attempt stays fenced, and changes are counted on."""
    path, expected = kept(number, tmp_path)
    group = expected["packed"]["groups"][1]
    log_id = bytes.fromhex(group["log_id"])
    job = JobRecord("packed", log_id, {})
    store = SqliteStore(path)
    await store.open()

    with pytest.raises(StaleGeneration):
        await store.commit("packed", "run", "first", 1, 0, 99)
    begun = await store.begin(BeginRequest(job, "run", "third", 0, 1))
    changes = await store.changes(log_id, 0)
    halt = await store.add_halt(log_id, Halt(1, 50, "bad_item", "it is damaged", {}, "node"))
    [again] = await store.release_verdicts(log_id, "main", 7, Seen(Order(2)))
    later = await store.changes(log_id, changes.change)
    await store.close()

    assert (begun.generation, begun.start_step) == (group["generation"] + 1, group["cursor"])
    found = [[one.stage, list(one.item), *one[2:]] for one in changes.verdicts]
    assert found == expected["packed"]["verdicts"]
    assert changes.change >= len(changes.verdicts) == 3
    assert [again.stage, list(again.item), *again[2:]] in found, "it was released before"
    assert later == (changes.change + 1, [], [halt])


@pytest.mark.parametrize("number", FORMATS)
async def test_a_damaged_store_is_not_brought_up(tmp_path: Path, number: int) -> None:
    """A step would seal a damaged row anew, and nobody would ever see that it was."""
    path, _ = kept(number, tmp_path)
    editor = sqlite3.connect(path, isolation_level=None)
    editor.create_function("seal", -1, lambda *columns: b"")
    editor.execute("PRAGMA ignore_check_constraints = ON")
    editor.execute("UPDATE verdicts SET above = above + 1 WHERE number = 1")
    editor.close()

    with pytest.raises(StoreCorrupt, match="CHECK constraint failed in verdicts"):
        await SqliteStore(path).open()

    assert format_of(path) == number


@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("step", range(migrations.OLDEST, schema.FORMAT))
async def test_a_step_that_fails_leaves_the_old_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: int
) -> None:
    """All steps are one transaction: the store is as it was, and opens once the step works."""
    path, expected = kept(number, tmp_path)

    def killed(connection: sqlite3.Connection) -> None:
        works(connection)
        raise sqlite3.OperationalError("killed")

    works = migrations.STEPS[step]
    with monkeypatch.context() as patch:
        patch.setitem(migrations.STEPS, step, killed)
        if step >= number:
            with pytest.raises(StoreCorrupt, match="killed"):
                await SqliteStore(path).open()
            assert format_of(path) == number

    assert await shown.shown(path) == expected
