"""Requests that are too large: refused by name, answered in pages, and at a cost that they have."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from harness import write_job_file
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.rpc import cursor_calls as cursors
from penstock.server.rpc.cursor_calls import Cursors
from penstock.server.rpc.listener import Listener
from penstock.server.rpc.opening import open_read
from penstock.server.store import SqliteStore
from penstock.server.store.records import BeginAnswer, BeginRequest, JobRecord, Moved
from penstock.wire import MAX_NAME, MAX_WORLD_SIZE, PROTOCOL
from penstock.wire.errors import InvalidRequest
from penstock.wire.v1 import cursors_pb2 as pb
from penstock.wire.v1 import feed_pb2

JOBS: dict[str, Any] = {
    "j": {"lanes": 2, "source": {"type": "items", "items": [1, 2, 3]}, "batch_size": 1},
    "finite": {
        "lanes": 2,
        "epochs": 4000,
        "source": {"type": "items", "items": [1, 2, 3]},
        "batch_size": 1,
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_job_file(tmp_path / "jobs.yaml", JOBS, store="sqlite:///p.db")


@pytest.fixture
def jobs(file: Path) -> dict[str, Job]:
    return dict(load(str(file), environ={}).jobs)


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    found = SqliteStore(tmp_path / "p.db")
    await found.open()
    yield found
    await found.close()


async def begin(store: SqliteStore, job: Job, group: str, world_size: int = 1) -> None:
    record = JobRecord(job.name, job.log_id, job.plan)
    await store.begin(BeginRequest(record, group, "t", 0, world_size))


async def test_the_largest_attempt_holds_the_store_for_a_moment(
    store: SqliteStore, jobs: dict[str, Job]
) -> None:
    """65,536 ranks are begun in a few seconds on a busy machine; one more is refused by name."""
    with pytest.raises(InvalidRequest, match=r"world size is at most 65,536, not 65,537"):
        await begin(store, jobs["j"], "more", MAX_WORLD_SIZE + 1)
    began = time.monotonic()

    for number in range(2):
        record = JobRecord("j", jobs["j"].log_id, jobs["j"].plan)
        await store.begin(BeginRequest(record, "large", f"t{number}", 0, MAX_WORLD_SIZE))

    assert time.monotonic() - began < 30
    [group] = await store.groups("j", "large")
    assert len(group.rows) == MAX_WORLD_SIZE
    rows = await store.run(lambda db: db.execute("SELECT count(*) FROM cursors").fetchone()[0])
    assert rows == MAX_WORLD_SIZE, "the rows of the generation before are dropped"


async def test_a_commit_costs_the_same_with_2000_checkpoints(
    store: SqliteStore, jobs: dict[str, Job]
) -> None:
    """What it reads is the group and its rows, counted in steps of SQLite's machine."""
    calls = Cursors(jobs, store)
    await begin(store, jobs["finite"], "run")

    async def steps_of(step: int) -> int:
        counted = 0

        def count() -> int:
            nonlocal counted
            counted += 1
            return 0

        await store.run(lambda db: db.set_progress_handler(count, 1))
        request = pb.CommitRequest(job="finite", group="run", token="t", generation=1, step=step)
        await calls.call("Commit", request.SerializeToString())
        await store.run(lambda db: db.set_progress_handler(None, 1))
        return counted

    before = await steps_of(1)
    names = [f"c{number}" for number in range(2000)]
    await asyncio.gather(*(store.checkpoint("finite", "run", name, 5) for name in names))
    after = await steps_of(2)

    assert 0 < after <= before + 50


async def test_a_list_of_any_size_comes_in_pages(
    store: SqliteStore, jobs: dict[str, Job], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is small; together they are every group once, every checkpoint once, in order."""
    monkeypatch.setattr(cursors, "PAGE_BYTES", 3000)
    groups = [f"g{number:02}" for number in range(35)]
    await asyncio.gather(*(begin(store, jobs["j"], group) for group in groups))
    many = [f"checkpoint {number:03}" for number in range(120)]
    await asyncio.gather(
        *(store.checkpoint("j", group, name, 9) for group in ("g07", "g34") for name in many),
        *(store.checkpoint("j", "g00", f"{number}" * MAX_NAME, number) for number in range(10)),
    )
    calls = Cursors(jobs, store)

    async def pages(group: str) -> list[pb.ListReply]:
        found, token = [], ""
        while True:
            request = pb.ListRequest(job="j", group=group, page_token=token)
            data = await calls.call("List", request.SerializeToString())
            assert len(data) < 3000 + 600
            found.append(pb.ListReply.FromString(data))
            token = found[-1].next_page_token
            if not token:
                return found

    def joined(found: list[pb.ListReply]) -> list[tuple[str, list[tuple[int, str]]]]:
        together: dict[str, list[tuple[int, str]]] = {}
        for page in found:
            for group in page.groups:
                steps = [(one.step, one.name) for one in group.checkpoints]
                together.setdefault(group.name, []).extend(steps)
        return list(together.items())

    everything = await pages("")
    alone = await pages("g07")
    wanted = [
        (group.name, [(one.step, one.name) for one in group.checkpoints])
        for group in await store.groups("j")
    ]

    assert [name for name, _ in wanted] == groups
    assert joined(everything) == wanted
    assert len(everything) > 5
    assert joined(alone) == [wanted[7]]
    for token in ("x", "[]", '["a", 3]', "{}", "[" * 5000, '["a", [1e999, ""]]'):
        request = pb.ListRequest(job="j", page_token=token)
        with pytest.raises(InvalidRequest, match=r"page token .* was not given by a server"):
            await calls.call("List", request.SerializeToString())

    await store.close()

    def through_a_client() -> list[tuple[str, list[tuple[int, str]]]]:
        with contextlib.closing(open_transport(f"local:{file}")) as transport:
            found = Control(transport, "j", "local", 60).groups()
        return [
            (group.name, [(one.step, one.name) for one in group.checkpoints]) for group in found
        ]

    assert await asyncio.to_thread(through_a_client) == wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x" * 10_000_000, "has 10,000,000 characters: it may have"),
        ("a\nb", r"holds '\\n'"),
        ("\x1b[2Jgone", r"holds '\\x1b'"),
        ("right\u202eleft", r"holds '\\u202e'"),
        ("nul\0", r"holds '\\x00'"),
    ],
    ids=["long", "newline", "escape", "bidi", "nul"],
)
async def test_names_are_short_and_printable_in_every_call(
    store: SqliteStore, jobs: dict[str, Job], text: str, says: str
) -> None:
    """Groups, checkpoints, tokens and ids; also of readers: they stand in logs and metrics."""
    calls = Cursors(jobs, store)
    await begin(store, jobs["j"], "run")
    named = {"job": "j", "group": "run"}
    requests: list[tuple[str, Any]] = [
        ("Begin", pb.BeginRequest(protocol=PROTOCOL, job="j", group=text, token="t")),
        ("Begin", pb.BeginRequest(protocol=PROTOCOL, **named, token=text)),
        ("Begin", pb.BeginRequest(protocol=PROTOCOL, **named, token="t", store=text)),
        ("Commit", pb.CommitRequest(job="j", group=text, token="t")),
        ("Checkpoint", pb.CheckpointRequest(**named, name=text)),
        ("Restore", pb.RestoreRequest(**named, name=text)),
        ("Seek", pb.SeekRequest(**named, step=1, request_id=text)),
        ("List", pb.ListRequest(job="j", group=text)),
        ("Delete", pb.DeleteRequest(job="j", group=text)),
    ]

    for method, request in requests:
        with pytest.raises(InvalidRequest, match=says) as caught:
            await calls.call(method, request.SerializeToString())
        assert len(caught.value.message) < 300
    for field in ("group", "token"):
        with pytest.raises(InvalidRequest, match=says):
            open_read(jobs, feed_pb2.Open(protocol=PROTOCOL, job="j", **{field: text}))


async def test_an_owner_is_cut_and_cleaned(store: SqliteStore, jobs: dict[str, Job]) -> None:
    """It is for people: what cannot be shown to them is a question mark, and no reason to fail."""
    owners: list[str] = []

    class Owners(Listener):
        def began(self, request: BeginRequest, begun: BeginAnswer) -> None:
            owners.append(request.owner)

        def moved(self, job: str, group: str, moved: Moved, how: str, owner: str) -> None:
            owners.append(owner)

    calls = Cursors(jobs, store, Owners())
    owner = "host\x1b[31m\n" + "x" * 1_000_000

    request = pb.BeginRequest(
        protocol=PROTOCOL, job="j", group="run", token="t", owner=owner, world_size=1
    )
    await calls.call("Begin", request.SerializeToString())
    seek = pb.SeekRequest(job="j", group="run", step=3, owner=owner)
    await calls.call("Seek", seek.SerializeToString())

    [group] = await store.groups("j", "run")
    assert group.owner == ("host?[31m?" + "x" * MAX_NAME)[:MAX_NAME]
    assert owners == [group.owner] * 2
