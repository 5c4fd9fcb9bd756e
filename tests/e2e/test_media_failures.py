"""Media that are missing, changed, slow or away, and names that must not be followed."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import Any

import lmdb
import psutil
import pytest

from e2e.test_media import ROLES, crcs, job_of, line_of, picture, sums, write_jobs, write_media
from e2e.test_processed_once import scraped
from far_store import FarStore
from harness import kill_process, run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.server.core.refs import ItemRef
from penstock.server.jobs.load import load
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Quarantined
from penstock.wire.errors import BadItem, SourceChanged, WorkerCrashed

QUARANTINE = {"on_item_error": "quarantine"}


def items_of(count: int) -> list[dict[str, Any]]:
    """Return items with a picture each, of those that `write_media` has written."""
    return [{"n": n, "media": [f"{n % 2}/{n}.jpg"]} for n in range(count)]


def write_far(folder: Path, count: int) -> None:
    """Write the media that `items_of` names, behind a web server."""
    write_media(folder, count)


def made(file: Path) -> dict[int, list[tuple[int, int]]]:
    """Return what the items of a job become, in this process, each alone."""
    job = load(str(file)).job("main")
    items, found = Items(job), {}
    for number in range(job.items or 0):
        [outcome] = items.samples([ItemRef("main", number, 0)], "exit")
        assert isinstance(outcome, list), outcome
        [sample] = outcome
        found[int(sample["n"])] = list(
            zip(sample["crc"].tolist(), sample["size"].tolist(), strict=True)
        )
    return found


def test_hostile_names_are_bad_items_and_give_nothing(tmp_path: Path) -> None:
    """What an item names outside of the directory is not opened, however it is written.

    A pipe would hold up a worker for ever, a device would fill its memory.
    """
    write_media(tmp_path / "media", 16)
    (tmp_path / "secret.jpg").write_bytes(b"a secret")
    os.mkfifo(tmp_path / "media" / "pipe.bin")
    (tmp_path / "media" / "zero.bin").symlink_to("/dev/zero")
    (tmp_path / "media" / "folder.bin").mkdir()
    hostile: list[Any] = [
        "/etc/passwd",
        "../secret.jpg",
        f"{tmp_path}/secret.jpg",
        f"file://{tmp_path}/media/../secret.jpg",
        "0/../../secret.jpg",
        "http://127.0.0.1:1/x.jpg",
        "lmdb: /etc::passwd",
        "pipe.bin",
        "zero.bin",
        "folder.bin",
        "0/0.jpg/1.jpg",
        "x" * 300 + ".bin",
        "",
        "nul\0.jpg",
        7,
        {"bytes": "text"},
        {"path": None, "bytes": None},
        {"path": "0/0.jpg", "offset": -1},
        {"path": "0/0.jpg", "offset": 10, "length": 10**12},
        {"path": "0/0.jpg", "dir": "elsewhere"},
        "data:image/png;base64,%%",
        "lmdb: db",
    ]
    items = items_of(16) + [{"n": 100 + n, "media": [each]} for n, each in enumerate(hostile)]
    (tmp_path / "items.jsonl").write_text("".join(map(line_of, items)))
    job = job_of([], {"dir": "media"}, **QUARANTINE, batch_size=len(items), lanes=1)
    job["source"] = {"type": "jsonl", "files": "items.jsonl"}
    file = write_jobs(tmp_path, {"main": job})

    job_made = load(str(file)).job("main")
    outcomes = Items(job_made).samples([ItemRef("main", n, 0) for n in range(len(items))], "exit")

    assert all(isinstance(outcome, list) for outcome in outcomes[:16])
    assert all(isinstance(outcome, Quarantined) for outcome in outcomes[16:])
    reasons = [outcome.verdict.reason for outcome in outcomes if isinstance(outcome, Quarantined)]
    for number, said in (
        (0, "'/etc/passwd' lies outside of the directories of media"),
        (5, "'http://127.0.0.1:1/x.jpg' lies outside"),
        (7, "pipe.bin is not there"),
        (13, r"medium 0 is named 'nul\x00.jpg': give a path"),
        (14, "medium 0 is of type int"),
        (19, "'elsewhere' is no directory of media"),
    ):
        assert said in reasons[number], reasons[number]


def test_what_is_not_there_is_a_bad_item_that_names_it(tmp_path: Path) -> None:
    """The item, the file and the remedy; other items of its batch are not to blame."""
    write_media(tmp_path / "media", 8)
    items = items_of(8)
    items[5]["media"] = ["1/99.jpg"]
    file = write_jobs(tmp_path, {"main": job_of(items, {"dir": "media"}, lanes=1)})

    with pytest.raises(BadItem) as caught:
        made(file)

    said = caught.value.message
    assert "item main[5] in epoch 0 of job 'main' fails in Sums.references()" in said
    assert "with '1/99.jpg' is not there: it is none of the 8 media that " in said


def test_cat_of_a_job_file_says_an_error_once(tmp_path: Path) -> None:
    """Its own node logs nothing of what its only reader is told; the name is the item's."""
    write_media(tmp_path / "media", 2)
    items = items_of(2)
    items[1]["media"] = ["1/99.jpg"]
    job = job_of(items, {"dir": "media"}, lanes=1, batch_size=1)
    file = write_jobs(tmp_path, {"main": job})

    ended = run_command(["penstock.client.cli", "cat", f"local:{file}", "main"])

    assert ended.returncode == 1
    assert ended.stderr.count("is not there") == 1, ended.stderr
    assert "with '1/99.jpg' is not there: it is none of the 2 media" in ended.stderr


@pytest.mark.parametrize("how", ["edited", "grown", "replaced", "removed"])
def test_media_that_change_under_a_run_stop_it(tmp_path: Path, how: str) -> None:
    """By the file's name: the job would be another one."""
    write_media(tmp_path / "media", 64)
    path = tmp_path / "media" / "1" / "63.jpg"
    (tmp_path / "another.jpg").write_bytes(bytes(len(picture(63))))
    changes = {
        "edited": lambda: path.write_bytes(bytes(len(picture(63)))),
        "grown": lambda: path.write_bytes(picture(63) + b"more"),
        "replaced": lambda: os.replace(tmp_path / "another.jpg", path),
        "removed": path.unlink,
    }
    job = job_of(
        items_of(64),
        {"dir": "media"},
        distributor={"type": "map", "shuffle": "none"},
        lanes=1,
        batch_size=1,
    )
    items = Items(load(str(write_jobs(tmp_path, {"main": job}))).job("main"))
    items.samples([ItemRef("main", 63, 0)], "exit")

    changes[how]()
    with pytest.raises(SourceChanged) as caught:
        items.samples([ItemRef("main", 63, 0)], "exit")

    assert "1/63.jpg" in caught.value.message
    assert ("not there any more" if how == "removed" else "changed since") in caught.value.message


def test_a_store_that_is_away_costs_no_item(tmp_path: Path) -> None:
    """It is asked again until it is back; nothing is quarantined, and all batches are right."""
    write_far(tmp_path / "far", 24)
    with FarStore(tmp_path / "far") as store:
        store.failing = {f"{n % 2}/{n}.jpg": [503, 500, 429] for n in range(0, 24, 3)}
        job = job_of(items_of(24), {"dir": store.url}, **QUARANTINE)
        file = write_jobs(tmp_path, {"main": job})
        with serving(file) as server:
            with Loader(server.address, "main") as loader:
                found = sums(loader)
            quarantined = server.events("item quarantined")

        assert found == {n: crcs(picture(n)) for n in range(24)}
        assert not quarantined
        assert not any(store.failing.values())


def test_a_processor_cannot_lose_an_item_to_a_store_that_is_away(tmp_path: Path) -> None:
    """It may catch what it does not understand: the item is tried again all the same."""
    write_far(tmp_path / "far", 8)
    (tmp_path / "roles.py").write_text(
        ROLES
        + "\n\nclass Careless(Sums):\n"
        + "    def process(self, raw, context):\n"
        + "        try:\n"
        + "            return super().process(raw, context)\n"
        + "        except Exception:\n"
        + "            return None\n"
    )
    with FarStore(tmp_path / "far") as store:
        store.failing = {f"{n % 2}/{n}.jpg": [503, 503] for n in range(0, 8, 3)}
        job = job_of(items_of(8), {"dir": store.url})
        job["processor"] = {"type": "./roles.py:Careless"}
        file = write_job_file(tmp_path / "jobs.yaml", {"main": job})
        found = made(file)

    assert found == {n: crcs(picture(n)) for n in range(8)}


def test_a_node_ends_while_its_worker_waits_for_a_server_that_is_silent(tmp_path: Path) -> None:
    """After `drain_seconds`, a worker in the middle of a request too; no process is left behind."""
    write_far(tmp_path / "far", 4)
    with FarStore(tmp_path / "far") as store:
        store.held = {f"{n % 2}/{n}.jpg": threading.Event() for n in range(4)}
        job = job_of(items_of(4), {"dir": store.url}, lanes=1)
        with serving(write_jobs(tmp_path, {"main": job}, workers=1, drain_seconds=1)) as server:
            reader = server.read("main", horizon=1)
            eventually(lambda: bool(store.asked), 60.0, "the worker waits for the store")
            [pid] = server.worker_pids()

            assert server.terminate() == 0
            reader.cancel()

        assert all(not gate.is_set() for gate in store.held.values())
        eventually(lambda: not psutil.pid_exists(pid), 60.0, "the worker has ended")


def test_a_worker_that_is_killed_while_it_fetches_costs_nothing(tmp_path: Path) -> None:
    """Another one makes the batch, the same; and what was read is counted."""
    write_far(tmp_path / "far", 16)
    with FarStore(tmp_path / "far") as store:
        gate = threading.Event()
        store.held = {f"{n % 2}/{n}.jpg": gate for n in range(4, 16)}
        job = job_of(
            items_of(16),
            {"dir": store.url},
            lanes=1,
            distributor={"type": "map", "shuffle": "none"},
        )
        file = write_jobs(tmp_path, {"main": job}, workers=1, metrics="127.0.0.1:0")
        with serving(file) as server:
            reader = server.read("main", horizon=4)
            reader.take(1)
            eventually(lambda: len(store.asked) >= 8, 60.0, "the worker waits for the store")
            [pid] = server.worker_pids()
            assert kill_process(pid)
            eventually(
                lambda: server.worker_pids() not in ([], [pid]), 60.0, "there is another worker"
            )
            gate.set()
            with Loader(server.address, "main") as loader:
                found = sums(loader)
            read = scraped(server, "penstock_media_read_bytes_total{")

    assert found == {n: crcs(picture(n)) for n in range(16)}
    assert read >= sum(len(picture(n)) for n in range(4, 16))


def test_an_lmdb_that_kills_its_reader_costs_a_worker_and_names_the_item(tmp_path: Path) -> None:
    """A page in its middle says that a value is longer than the file: LMDB reads it all the same.

    Workers die, the node goes on, and the item is the one to blame, as with any crash.
    """
    path = tmp_path / "media" / "a.mdb"
    path.parent.mkdir()
    made = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26)
    with made.begin(write=True) as writing:
        for number in range(6):
            writing.put(f"key {number}".encode(), picture(number, 9600))
    made.close()
    data = bytearray(path.read_bytes())
    node = data.index(b"key 3") - 8
    struct.pack_into("<HH", data, node, 0, 0x00FF)  # 16 MB
    path.write_bytes(data)
    items = [{"n": n, "media": [f"lmdb: a.mdb::key {n}"]} for n in range(6)]
    job = job_of(
        items,
        {"dir": "media"},
        lanes=1,
        batch_size=1,
        distributor={"type": "map", "shuffle": "none"},
    )
    with serving(write_jobs(tmp_path, {"main": job}, workers=1)) as server:
        reader = server.read("main", horizon=6)
        assert [batch.header.position for batch in reader.take(3)] == [0, 1, 2]
        with pytest.raises(WorkerCrashed) as caught:
            reader.take(1)
        assert server.process.poll() is None

    assert "lane 0 of job 'main' stopped at offset 3: main[3] in epoch 0" in caught.value.message


def test_coming_batches_are_asked_for_while_one_is_made(tmp_path: Path) -> None:
    """The store has heard of all that a reader accepts when the first batch waits for it."""
    write_far(tmp_path / "far", 40)
    with FarStore(tmp_path / "far") as store:
        gate = threading.Event()
        store.held = {f"{n % 2}/{n}.jpg": gate for n in range(40)}
        job = job_of(
            items_of(40),
            {"dir": store.url},
            lanes=1,
            distributor={"type": "map", "shuffle": "none"},
        )
        file = write_jobs(tmp_path, {"main": job}, workers=1)
        with serving(file) as server:
            reader = server.read("main", horizon=5)
            eventually(lambda: len(store.asked) >= 20, 60.0, "five batches were asked for")
            asked = {int(Path(path).stem) for path, _ in store.asked}
            gate.set()
            reader.take(1)

    assert asked == set(range(20))


def test_each_medium_is_fetched_once_by_all_workers_together(tmp_path: Path) -> None:
    """A worker fetches ahead for the batches that it was given: no other one makes these.

    A few of the first may be fetched twice, until it is known how long a batch takes.
    """
    write_far(tmp_path / "far", 400)
    with FarStore(tmp_path / "far", delay_s=0.02) as store:
        job = job_of(items_of(400), {"dir": store.url}, lanes=2)
        file = write_jobs(tmp_path, {"main": job}, workers=2)
        with serving(file) as server, Loader(server.address, "main") as loader:
            found = sums(loader)

    assert len(found) == 400
    paths = [path for path, _ in store.asked]
    assert len(paths) <= 1.05 * len(set(paths))
