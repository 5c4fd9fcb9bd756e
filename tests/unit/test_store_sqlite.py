"""What only a store in a file can meet: locks, damage, foreign files, full disks."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import SqliteStore, migrations
from penstock.server.store import sqlite_schema as schema
from penstock.server.store.lock import FileLock
from penstock.server.store.records import BeginRequest, JobRecord, Seen, SnapshotRecord
from penstock.wire.errors import StoreCorrupt, StoreLocked, StoreUnavailable
from penstock.wire.order import Order

LOG = bytes(range(32))
JOB = JobRecord("code", LOG, {"seed": 7, "lanes": 2, "text": "plan " * 300})


async def fill(path: Path) -> list[Any]:
    """Make a store with something in every table, and return what it shows."""
    store = SqliteStore(path)
    await store.open()
    for number in range(5):
        await store.begin(BeginRequest(JOB, "run", f"t{number}", 0, 16))
        await store.commit("code", "run", f"t{number}", number + 1, 3, 700 + number, all_rows=True)
        await store.checkpoint("code", "run", f"c{number}", number)
        verdict = Verdict("draw", ItemRef("main", number, 0), "aa", "bad", offset=10**6)
        await store.add_verdict(LOG, verdict, Seen(Order(2)))
        await store.add_lane_ends(LOG, {number: 40 + number})
        await store.note_libraries(LOG, {f"library-{number}": f"1.{number}"})
    await store.put_snapshots(
        [SnapshotRecord(LOG, 0, offset, b"%d" % offset * 900) for offset in range(40)]
    )
    shown = await show(store)
    await store.close()
    return shown


async def show(store: SqliteStore) -> list[Any]:
    return [
        store.uuid,
        await store.groups("code"),
        await store.verdicts(LOG),
        await store.lane_ends(LOG),
        await store.note_libraries(LOG, {}),
        await store.nearest_snapshot(LOG, 0, 17),
    ]


# --- damage ---


async def refused(path: Path, shown: list[Any]) -> bool:
    """Open a damaged file: True = refused by name, False = every answer is right; else fail."""
    store = SqliteStore(path)
    try:
        await store.open()
        *facts, snapshot = await show(store)
        assert facts == shown[:-1]
        if snapshot != shown[-1]:  # a damaged one falls back to an older one: right, only slower
            assert snapshot is not None
            assert snapshot.offset < 17
            assert snapshot.data == b"%d" % snapshot.offset * 900
        assert await store.commit("code", "run", "t4", 5, 2, 900) == (704, 900)
    except StoreCorrupt as caught:
        error = caught
    else:
        return False
    finally:
        await store.close()
    assert str(path) in error.message
    assert error.fields == {"path": str(path)}
    return True


def put(path: Path, data: bytes) -> None:
    """Write a store's file, without a journal of the one before."""
    for leftover in path.parent.glob(path.name + "-*"):
        leftover.unlink()
    path.write_bytes(data)


async def test_no_flipped_byte_gives_a_wrong_answer(tmp_path: Path) -> None:
    """Every byte of the file's header, every page header, and 300 others: named or harmless."""
    path = tmp_path / "penstock.db"
    shown = await fill(path)
    intact = path.read_bytes()
    rng = random.Random(1)
    places = {*range(100), *rng.sample(range(len(intact)), 300)}
    places.update(page + byte for page in range(0, len(intact), 4096) for byte in (0, 1, 4, 6, 9))
    count = 0

    for place in sorted(places):
        mask = rng.choice([1, 2, 128, 255])
        damaged = bytearray(intact)
        damaged[place] ^= mask
        try:
            put(path, bytes(damaged))
            count += await refused(path, shown)
        except BaseException as error:
            error.add_note(f"byte {place} of {len(intact)} xor {mask}")
            raise

    assert count > len(places) // 4


async def test_no_truncation_gives_a_wrong_answer(tmp_path: Path) -> None:
    """A file that lacks a page is refused, also when it is cut to nothing."""
    path = tmp_path / "penstock.db"
    shown = await fill(path)
    intact = path.read_bytes()
    lengths = {0, 1, 15, 16, 99, 100, 512, *range(4096, len(intact), 4096)}
    lengths.update(random.Random(2).sample(range(len(intact)), 20))

    for length in sorted(lengths):
        put(path, intact[:length])
        # Within the last page nothing may be missing that anybody reads.
        whole_pages = length >= len(intact) - 4096
        assert await refused(path, shown) or whole_pages, f"cut to {length} bytes"


@pytest.mark.parametrize(
    "content", [b"", b"jobs:\n  code: {}\n", b"PAR1" + bytes(5000), os.urandom(9000)]
)
async def test_a_file_of_another_kind_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    """Nothing that is no store is ever overwritten."""
    path = tmp_path / "penstock.db"
    path.write_bytes(content)

    with pytest.raises(StoreCorrupt, match=r"is empty|is not a SQLite file"):
        await SqliteStore(path).open()

    assert path.read_bytes() == content


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """A SQLite file without our mark is somebody else's."""
    path = tmp_path / "penstock.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()

    with pytest.raises(StoreCorrupt, match="not a penstock store"):
        await SqliteStore(path).open()


async def test_a_newer_format_names_the_remedy(tmp_path: Path) -> None:
    """An older program does not guess at what a newer one wrote."""
    path = tmp_path / "penstock.db"
    await fill(path)
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    newer.close()

    found = rf"format {schema.FORMAT + 1}.*knows format {schema.FORMAT}.*newer"
    with pytest.raises(StoreCorrupt, match=found):
        await SqliteStore(path).open()


async def test_a_store_of_an_older_format_is_brought_up_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds stays, and a kill at any point leaves a store of one format or the other."""
    path = tmp_path / "p.db"
    shown = await fill(path)
    with sqlite3.connect(path) as raw:  # what the first format looked like
        schema.prepare(raw)
        raw.execute("DROP TABLE libraries")
        raw.execute("DROP TABLE verdicts")
        columns = "log_id, source, item, epoch, stage, content_hash, reason, seal"
        raw.execute(f"CREATE TABLE verdicts ({columns})")
        for item in (7, 3):
            old = (LOG, "main", item, 2, "draw", "aa", "bad", b"")
            raw.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?)", old)
        raw.execute("PRAGMA user_version = 1")
        raw.execute("DROP TABLE halts")
        raw.execute("DROP TABLE definitions")
        for later in ("followed", "leads", "witnesses", "environments"):
            raw.execute(f"DROP TABLE {later}")
        raw.execute("DELETE FROM meta WHERE key != 'uuid'")
        schema.insert(raw, "meta", "format", "1")
    raw.close()

    def killed(connection: sqlite3.Connection, version: int) -> None:
        upgrade(connection, version)
        raise sqlite3.OperationalError("killed")

    upgrade = migrations.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "upgrade", killed)
        with pytest.raises(StoreCorrupt):
            await SqliteStore(path).open()
    with sqlite3.connect(path) as raw:
        (version,) = raw.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    raw.close()
    assert version == 1
    assert "libraries" not in tables

    shown[2] = [
        Verdict("draw", ItemRef("main", item, 2), "aa", "bad", number=number)
        for number, item in ((1, 3), (2, 7))
    ]
    shown[4] = {}
    for _ in range(2):
        store = SqliteStore(path)
        await store.open()
        assert await show(store) == shown
        shown[4] = {"numpy": "2.1.0"}
        assert await store.note_libraries(LOG, {"numpy": "2.1.0"}) == {"numpy": "2.1.0"}
        await store.close()


async def test_a_folder_is_no_store(tmp_path: Path) -> None:
    """The sentence says what it is."""
    with pytest.raises(StoreCorrupt, match="is a folder"):
        await SqliteStore(tmp_path).open()


async def test_a_lost_file_with_a_journal_is_noticed(tmp_path: Path) -> None:
    """The journal of a lost file must not be replayed into an empty new one."""
    path = tmp_path / "penstock.db"
    path.with_name("penstock.db-wal").write_bytes(b"journal")

    with pytest.raises(StoreCorrupt, match="is gone, but its journal"):
        await SqliteStore(path).open()

    assert not path.exists()


async def test_an_edited_row_is_noticed(tmp_path: Path) -> None:
    """A cursor changed behind the store's back is damage, not a cursor."""
    path = tmp_path / "penstock.db"
    await fill(path)
    editor = sqlite3.connect(path, isolation_level=None)
    editor.create_function("seal", -1, lambda *columns: b"")
    editor.execute("PRAGMA ignore_check_constraints = ON")
    editor.execute("UPDATE cursors SET step = step + 1 WHERE rank = 3")
    editor.close()

    with pytest.raises(StoreCorrupt, match="CHECK constraint failed in cursors"):
        await SqliteStore(path).open()


async def test_a_damaged_snapshot_falls_back_to_an_older_one(tmp_path: Path) -> None:
    """It is dropped, so that the good bytes can be put again."""
    path = tmp_path / "penstock.db"
    await fill(path)
    editor = sqlite3.connect(path, isolation_level=None)
    editor.execute("UPDATE bodies SET data = data || 'x' WHERE id = 18")
    editor.execute("DELETE FROM bodies WHERE id = 17")
    editor.close()
    store = SqliteStore(path)
    await store.open()

    found = await store.nearest_snapshot(LOG, 0, 17)
    good = SnapshotRecord(LOG, 0, 17, b"17" * 900)
    await store.put_snapshots([good])

    assert found == SnapshotRecord(LOG, 0, 15, b"15" * 900)
    assert await store.nearest_snapshot(LOG, 0, 17) == good
    await store.close()


# --- the lock ---


async def test_a_second_opener_is_refused_with_the_holder(tmp_path: Path) -> None:
    """By either name of the file; and let in once the first has closed."""
    path = tmp_path / "penstock.db"
    alias = tmp_path / "alias.db"
    first = SqliteStore(path)
    await first.open()
    alias.symlink_to(path)

    for name in (path, alias):
        second = SqliteStore(name)
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}") as caught:
            await second.open()
        assert caught.value.fields == {"path": str(path.resolve()), "pid": os.getpid()}
        await second.close()
    await first.begin(BeginRequest(JOB, "run", "t", 0, 1))
    await first.close()

    third = SqliteStore(alias)
    await third.open()
    assert len(await third.groups("code")) == 1
    await third.close()


def test_a_lock_whose_file_is_removed_is_held_by_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had opened the file before it was removed takes the one that has its name now."""
    first, second, third = (FileLock(tmp_path / "penstock.db") for _ in range(3))
    first.acquire()
    flock = fcntl.flock

    def overtaken(fd: int, how: int) -> None:
        """Let others in between the opening of the file and its lock."""
        monkeypatch.setattr(fcntl, "flock", flock)
        first.release(removes=True)
        third.acquire()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)

    with pytest.raises(StoreLocked):
        second.acquire()
    third.release(removes=True)
    second.acquire()
    second.release(removes=True)
    assert os.listdir(tmp_path) == []


async def test_a_hard_link_is_no_way_around_the_lock(tmp_path: Path) -> None:
    """A second name has a second lock and a second journal: it is refused, held or not."""
    path, link = tmp_path / "penstock.db", tmp_path / "elsewhere" / "link.db"
    first = SqliteStore(path)
    await first.open()
    link.parent.mkdir()
    link.hardlink_to(path)

    with pytest.raises(StoreUnavailable, match=r"has 2 names .*remove all of them but one"):
        await SqliteStore(link).open()
    await first.begin(BeginRequest(JOB, "run", "t", 0, 1))  # whoever has it is not disturbed
    await first.close()
    for name in (path, link):  # what was committed may lie in the journal of the other name
        with pytest.raises(StoreUnavailable, match="has 2 names"):
            await SqliteStore(name).open()
    link.unlink()

    await first.open()
    assert len(await first.groups("code")) == 1
    await first.close()


@pytest.mark.parametrize("what", ["here/penstock.db", "here/penstock.db-wal", "here"])
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_was_moved_away_takes_no_commits(
    tmp_path: Path, what: str, replaced: bool
) -> None:
    """They would go where nobody looks for them; once the file is back the store goes on."""
    path = tmp_path / "here" / "penstock.db"
    path.parent.mkdir()
    store = SqliteStore(path)
    await store.open()
    await store.begin(BeginRequest(JOB, "run", "t", 0, 1))
    victim, moved = tmp_path / what, tmp_path / "moved"

    victim.rename(moved)
    if replaced:
        copy = shutil.copytree if moved.is_dir() else shutil.copy
        copy(moved, victim)

    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"moved, removed or replaced.* put it back"):
            await store.commit("code", "run", "t", 1, 0, 5)
    if victim.is_dir():
        shutil.rmtree(victim)
    moved.replace(victim)
    assert (await store.commit("code", "run", "t", 1, 0, 7)).cursor == 7
    await store.close()
    again = SqliteStore(path)
    await again.open()
    assert (await again.groups("code"))[0].cursor == 7
    await again.close()


async def test_a_refused_open_holds_nothing(tmp_path: Path) -> None:
    """After a failed open the lock is free, and the same object can open once it is mended."""
    path = tmp_path / "penstock.db"
    path.write_bytes(b"not a store")
    store = SqliteStore(path)
    for _ in range(2):
        with pytest.raises(StoreCorrupt):
            await store.open()
    path.unlink()

    await store.open()

    assert store.uuid
    await store.close()


@pytest.mark.parametrize("is_file", [False, True])
async def test_a_missing_folder_is_named_and_not_made(tmp_path: Path, is_file: bool) -> None:
    """It may be mistyped, or not mounted: a new store would be a fresh start of all runs."""
    if is_file:
        (tmp_path / "a").write_text("")

    with pytest.raises(StoreUnavailable, match=r"there is no folder .*/a; make it if a new store"):
        await SqliteStore(tmp_path / "a" / "penstock.db").open()

    assert not (tmp_path / "a").is_dir()


async def test_a_store_that_nobody_used_can_be_discarded(tmp_path: Path) -> None:
    """Only the one that `open` created: one that existed stays, whatever is in it."""
    first = SqliteStore(tmp_path / "penstock.db")
    await first.open()
    await first.discard()
    assert os.listdir(tmp_path) == []

    made = SqliteStore(tmp_path / "penstock.db")
    await made.open()
    await made.close()
    other = SqliteStore(tmp_path / "penstock.db")
    await other.open()
    assert other.uuid == made.uuid
    await other.discard()

    assert (tmp_path / "penstock.db").exists()


async def test_a_kill_while_creating_leaves_no_half_store(tmp_path: Path) -> None:
    """A leftover of an interrupted creation is replaced."""
    (tmp_path / "penstock.db.new").write_bytes(b"half")
    store = SqliteStore(tmp_path / "penstock.db")

    await store.open()
    await store.close()

    assert not (tmp_path / "penstock.db.new").exists()


# --- the thread and its transactions ---


async def test_a_full_disk_is_named_and_passes(tmp_path: Path) -> None:
    """What did not fit had no effect; with room again the store goes on."""
    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()

    def pages(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA page_count").fetchone()[0])

    def limit(db: sqlite3.Connection, count: int) -> None:
        db.execute(f"PRAGMA max_page_count = {count}")

    def write(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO bodies (data) VALUES (zeroblob(200000))")

    def count(db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM bodies").fetchone()[0])

    full = await store.run(pages)
    await store.run(lambda db: limit(db, full + 10))
    with pytest.raises(StoreUnavailable, match="full"):
        await store.run(write)
    before = await store.run(count)
    await store.run(lambda db: limit(db, full + 1000))
    await store.run(write)

    assert (before, await store.run(count)) == (0, 1)
    await store.close()


async def test_another_program_that_holds_the_file_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a deadline, then by name; afterwards the store goes on."""
    monkeypatch.setattr("penstock.server.store.database.BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "penstock.db"
    store = SqliteStore(path)
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match="locked"):
        await store.begin(BeginRequest(JOB, "run", "t", 0, 1))
    other.execute("ROLLBACK")
    other.close()

    assert (await store.begin(BeginRequest(JOB, "run", "t", 0, 1))).generation == 1
    await store.close()


async def test_a_file_that_became_read_only_is_named(tmp_path: Path) -> None:
    """A file system that was remounted read-only is not a bug of ours."""
    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()
    await store.run(lambda db: db.execute("PRAGMA query_only = ON"))

    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.run(lambda db: db.execute("DELETE FROM bodies"))

    await store.close()


async def test_who_waits_together_shares_one_transaction(tmp_path: Path) -> None:
    """50 callers behind a slow one cost one commit, and a cancelled one among them never runs."""
    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()
    begun, go = threading.Event(), threading.Event()
    statements: list[str] = []
    ran: list[int] = []

    def slow(db: sqlite3.Connection) -> None:
        db.set_trace_callback(statements.append)
        begun.set()
        assert go.wait(60)

    def append(number: int) -> Callable[[sqlite3.Connection], None]:
        return lambda _: ran.append(number)

    first = asyncio.ensure_future(store.run(slow))
    assert await asyncio.to_thread(begun.wait, 60)
    waiting = [asyncio.ensure_future(store.run(append(number))) for number in range(50)]
    await asyncio.sleep(0)  # all have asked

    waiting[7].cancel()
    await asyncio.gather(waiting[7], return_exceptions=True)
    go.set()
    await asyncio.gather(first, *waiting, return_exceptions=True)

    await store.close()
    assert ran == [number for number in range(50) if number != 7]
    assert statements.count("COMMIT") == 2


async def test_an_operation_that_raises_undoes_its_own_writes(tmp_path: Path) -> None:
    """A bug rises as itself, and nothing of it is stored."""
    store = SqliteStore(tmp_path / "penstock.db")
    await store.open()

    def broken(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO bodies (data) VALUES (x'00')")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.run(broken)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        await store.run(lambda db: db.execute("INSERT INTO meta VALUES ('k', 'v', x'00')"))

    rows = await store.run(lambda db: db.execute("SELECT * FROM bodies").fetchall())
    assert rows == []
    await store.close()


async def test_old_history_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, tokens and unread plans with their snapshots: a long life does not grow the store."""
    monkeypatch.setattr("penstock.server.store.rules.group_rules.KEPT_ROWS", 4)
    monkeypatch.setattr("penstock.server.store.rules.group_rules.KEPT_TOKENS", 8)
    path = tmp_path / "penstock.db"
    store = SqliteStore(path)
    await store.open()
    for number in range(30):
        await store.begin(BeginRequest(JOB, "run", f"t{number}", 0, 2))
        log_id = number.to_bytes(32, "big")
        await store.register_job(JobRecord("code", log_id, {"seed": number}))
        await store.put_snapshots([SnapshotRecord(log_id, 0, 1, b"x")])
    await store.close()

    reader = sqlite3.connect(path)
    counts = {
        table: reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        for table in ("cursors", "generations", "jobs", "snapshots", "bodies")
    }
    reader.close()
    assert counts == {"cursors": 8, "generations": 8, "jobs": 17, "snapshots": 16, "bodies": 16}


async def test_an_empty_store_that_open_makes_is_told_with_its_path(tmp_path: Path) -> None:
    """A mistyped name looks like a fresh start: whoever opens it can say so; once."""
    first = SqliteStore(tmp_path / "typo.db")
    await first.open()
    await first.close()
    second = SqliteStore(tmp_path / "typo.db")
    await second.open()
    await second.close()

    assert first.created == str((tmp_path / "typo.db").resolve())
    assert second.created == ""
