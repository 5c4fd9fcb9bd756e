"""A real node, spoken to with generated stubs: what it says, refuses, survives and ends with."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from harness import (
    Delivered,
    Server,
    StubReader,
    as_penstock,
    refused,
    run_command,
    serving,
    write_job_file,
)
from invariants import Purity, eventually
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.node.demand.made_ahead import AHEAD_PER_WORKER, CHEAP_AHEAD
from penstock.server.store import SqliteStore
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    BadFrame,
    InvalidRequest,
    JobChanged,
    NoGroup,
    OtherStore,
    PastEnd,
    PenstockError,
    PositionFar,
    ProtocolMismatch,
    RankOutOfRange,
    StaleGeneration,
    StepSizeMismatch,
    UnevenStep,
    UnknownGroup,
    UnknownJob,
    WorldSizeMismatch,
)
from penstock.wire.v1 import cursors_pb2, feed_pb2
from resume.plans import LENGTHS

ITEMS = [{"input_ids": [100 * n + k for k in range(length)]} for n, length in enumerate(LENGTHS)]

JOBS: dict[str, Any] = {
    "packed": {
        "lanes": 4,
        "batches_per_step": 4,
        "snapshot_every": 4,
        "max_replay": 200,
        "source": {"type": "items", "items": ITEMS},
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 6},
        "collator": {"type": "packed"},
    },
    "finite": {
        "lanes": 3,
        "epochs": 1,
        "source": {"type": "items", "items": list(range(20))},
        "batch_size": 2,
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that all tests share: none of them may harm it."""
    folder = tmp_path_factory.mktemp("serve")
    file = write_job_file(
        folder / "jobs.yaml", JOBS, workers=1, metrics="127.0.0.1:0", reflection=True
    )
    with serving(file) as running:
        yield running
        assert running.process.poll() is None, "a test has ended the shared node"


def begin(**fields: Any) -> cursors_pb2.BeginRequest:
    given = {"protocol": PROTOCOL, "job": "packed", "token": "t1", "world_size": 1, **fields}
    return cursors_pb2.BeginRequest(**given)


# --- reading ------------------------------------------------------------------------------------


def test_generated_stubs_alone_read_the_stream(server: Server) -> None:
    """A client of any language reads what `local:` computes, in order, below its horizon."""
    purity = Purity(load(str(server.file)).jobs["packed"])
    reader = server.read("packed", horizon=10)

    got = reader.take(10)
    reader.extend(30)
    got += reader.take(20)
    reader.cancel()

    assert reader.opened is not None
    assert (reader.opened.lanes, reader.opened.batches_per_step) == (4, 4)
    for delivered in got:
        purity.saw(*delivered)
    assert sorted(one.header.position for one in got) == list(range(30))
    for lane in range(4):
        offsets = [one.header.offset for one in got if one.header.lane == lane]
        assert offsets == sorted(offsets)


def test_a_reader_of_bundles_gets_the_same_batches_in_fewer_messages(server: Server) -> None:
    """Small batches that come fast share messages, whole and in the order of each lane."""
    bundled = server.read("packed", horizon=200, bundles=True)
    alone = server.read("packed", horizon=200)

    together = bundled.take(200)
    one_by_one = alone.take(200)
    bundled.cancel()
    alone.cancel()

    assert sorted(together, key=_position) == sorted(one_by_one, key=_position)
    for lane in range(4):
        offsets = [one.header.offset for one in together if one.header.lane == lane]
        assert offsets == sorted(offsets)
    assert bundled.bundles
    assert not alone.bundles


def _position(delivered: Delivered) -> int:
    return delivered.header.position


def test_nothing_is_sent_beyond_the_horizon(server: Server) -> None:
    """Who hangs up gets what was accepted, exactly, and the call ends well."""
    reader = server.read("packed", horizon=7)
    reader.hang_up()

    positions = sorted(one.header.position for one in reader)

    assert positions == list(range(7))
    assert reader.end is None


def test_horizons_never_fall(server: Server) -> None:
    """A lower horizon, or the same again, changes nothing."""
    reader = server.read("packed", horizon=6)
    for horizon in (3, 0, 6, 8, 2, 8):
        reader.extend(horizon)
    reader.hang_up()

    assert sorted(one.header.position for one in reader) == list(range(8))


def test_describe_answers_from_the_plan(server: Server) -> None:
    """Lanes, steps, keys, length and log id, without data."""
    job = load(str(server.file)).jobs["finite"]
    request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="finite")

    reply = server.feed.Describe(request, timeout=30)

    assert (reply.lanes, reply.batches, reply.log_id) == (3, job.order.batches, job.log_id)
    assert list(reply.jobs) == ["finite", "packed"]
    packed = server.feed.Describe(feed_pb2.DescribeRequest(protocol=PROTOCOL, job="packed"))
    assert {"input_ids", "labels", "position_ids"} <= {key.name for key in packed.keys}


# --- refusals ------------------------------------------------------------------------------------

REFUSED_READS: list[tuple[dict[str, Any], type[PenstockError], str]] = [
    ({"job": "pakced"}, UnknownJob, "did you mean packed"),
    ({"protocol": PROTOCOL + 1}, ProtocolMismatch, "install the same penstock"),
    ({"rank": 4, "world_size": 4}, RankOutOfRange, "rank 4 is not one of 4"),
    ({"world_size": 3}, UnevenStep, "use batches_per_step 3 or 6"),
    ({"lanes": [0, 4]}, InvalidRequest, "lane 4 is not one of the 4"),
    ({"log_id": bytes(32)}, JobChanged, "the reader expects log 000000000000"),
    ({"start": 2**63}, InvalidRequest, "positions go up to"),
    ({"job": "finite", "start": 12}, PastEnd, "holds 11 batches, 11 steps of 1"),
    ({"start": 4 * 30_000, "horizon": 4 * 30_000 + 1}, PositionFar, "max_replay = 200"),
    ({"group": "nobody", "token": "t", "generation": 1}, UnknownGroup, "nobody"),
]


@pytest.mark.parametrize(("fields", "error", "says"), REFUSED_READS)
def test_a_read_that_cannot_be_is_refused_by_name(
    server: Server, fields: dict[str, Any], error: type[PenstockError], says: str
) -> None:
    """One sentence with the value and the remedy; class, code and status travel."""
    reader = server.read(**{"job": "packed", "horizon": 1, **fields})

    with pytest.raises(error, match=says) as caught:
        reader.take(1)

    cause = caught.value.__cause__
    assert isinstance(cause, grpc.RpcError)
    assert cause.code().name == error.status


def test_generations_are_fenced_over_the_wire(server: Server) -> None:
    """Two world sizes, another step size, an old token, a foreign store: each named."""
    cursors = server.cursors
    first = cursors.Begin(begin(group="fence", world_size=2, batches_per_step=4), timeout=30)
    assert (first.generation, first.batches_per_step, first.joined) == (1, 4, False)
    joined = cursors.Begin(begin(group="fence", world_size=2, rank=1), timeout=30)
    assert (joined.generation, joined.joined) == (1, True)

    wrong = refused(cursors.Begin, begin(group="fence", world_size=4))
    assert isinstance(wrong, WorldSizeMismatch)
    assert wrong.fields == {"world_size": 4, "expected": 2}
    other = refused(cursors.Begin, begin(group="fence", token="t2", batches_per_step=8))
    assert isinstance(other, StepSizeMismatch)
    store = "00000000-0000-0000-0000-000000000000"
    assert isinstance(
        refused(cursors.Begin, begin(group="fence", token="t2", store=store)), OtherStore
    )
    assert isinstance(refused(cursors.Begin, begin(group="", token="t2")), NoGroup)
    assert isinstance(refused(cursors.Begin, begin(group="fence", token="")), InvalidRequest)
    past = refused(cursors.Begin, begin(job="finite", group="past", start_step=12))
    assert isinstance(past, PastEnd)

    reader = server.read("packed", group="fence", token="t1", generation=1, horizon=1)
    reader.take(1)
    second = cursors.Begin(begin(group="fence", token="t2", owner="host-9"), timeout=30)
    assert second.generation == 2
    with pytest.raises(StaleGeneration, match="host-9 began generation 2"):
        reader.take(1)
    late = refused(cursors.Begin, begin(group="fence", world_size=2))
    assert isinstance(late, StaleGeneration)
    commit = cursors_pb2.CommitRequest(
        job="packed", group="fence", token="t1", generation=1, rank=0, step=5
    )
    assert isinstance(refused(cursors.Commit, commit), StaleGeneration)
    with pytest.raises(StaleGeneration):
        server.read("packed", group="fence", token="t1", generation=1, horizon=1).take(1)


@contextlib.contextmanager
def named_errors() -> Iterator[None]:
    """Turn a call's error into the one that it carries."""
    try:
        yield
    except grpc.RpcError as error:
        raise as_penstock(error) from error


@pytest.mark.parametrize("seed", range(40))
def test_hostile_bytes_are_answered_by_name_and_harm_nobody(server: Server, seed: int) -> None:
    """Random, truncated and damaged messages to every method: a named error, and the node lives."""
    rng = random.Random(seed)
    opening = feed_pb2.ReadRequest(
        open=feed_pb2.Open(protocol=PROTOCOL, job="packed", batches_per_step=4, horizon=1)
    ).SerializeToString()
    methods = ["Feed/Describe", "Feed/Status"]
    methods += [
        f"Cursors/{n}" for n in ("Begin", "Commit", "Checkpoint", "Restore", "Seek", "List")
    ]

    def damaged() -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.randrange(1, 200))
        data = bytearray(opening)
        if kind == 1:
            return bytes(data[: rng.randrange(1, len(data))])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data) + (rng.randbytes(8) if kind == 3 else b"")

    # An error without a name of ours is no PenstockError, and fails the test.
    for method in methods:
        call = server.channel.unary_unary(f"/penstock.wire.v1.{method}", None, None)
        with contextlib.suppress(PenstockError), named_errors():
            call(damaged(), timeout=30)
    for requests in ([damaged()], [opening, damaged()], [opening, opening]):
        read = server.channel.stream_stream("/penstock.wire.v1.Feed/Read", None, None)
        with contextlib.suppress(PenstockError), named_errors():
            list(read(iter(requests), timeout=30))

    assert server.status()["draining"] is False
    assert server.events("a bug") == []


def test_a_stream_must_begin_with_open(server: Server) -> None:
    """Another first message, a second `open`: a bad frame."""
    horizon = feed_pb2.ReadRequest(horizon=feed_pb2.Horizon(horizon=3))
    opening = feed_pb2.ReadRequest(open=feed_pb2.Open(protocol=PROTOCOL, job="packed"))

    for requests, says in (([horizon], "must be `open`"), ([opening, opening], "only `horizon`")):
        with pytest.raises(grpc.RpcError, match=says) as caught:
            list(server.feed.Read(iter(requests), timeout=30))
        assert BadFrame.status == caught.value.code().name


# --- what operators see ---------------------------------------------------------------------------


def get(server: Server, path: str) -> tuple[int, str]:
    address = server.events("ready")[0]["metrics"]
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_and_probes_answer(server: Server) -> None:
    """What was read is counted; probes say yes; no series per rank without bound."""
    reader = server.read("packed", horizon=5)  # a call that ends before it is counted is not
    reader.take(5)

    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz") == (200, "ready\n")

    def scrape() -> dict[str, float]:
        status, text = get(server, "/metrics")
        assert status == 200
        lines = (line for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    # A batch is counted when it has been written, and by then the reader may have it.
    sent = 'penstock_batches_sent_total{penstock_job="packed"}'
    eventually(lambda: scrape().get(sent, 0) >= 5, 30, "five batches are counted")
    reader.cancel()
    values = scrape()
    assert values['penstock_batches_produced_total{penstock_job="packed"}'] >= 1
    assert (
        values['penstock_decode_duration_seconds_count{penstock_job="packed",stage="process"}'] >= 1
    )
    assert values['penstock_decode_duration_seconds_sum{penstock_job="packed",stage="process"}'] > 0
    assert values["penstock_workers_ready"] == 1


def test_health_and_reflection_answer(server: Server) -> None:
    """The standard services: serving, and every method by name."""
    health = health_pb2_grpc.HealthStub(server.channel)
    for name in ("", "penstock.wire.v1.Feed", "penstock.wire.v1.Cursors"):
        reply = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=30)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING

    database = ProtoReflectionDescriptorDatabase(server.channel)
    pool = DescriptorPool(database)
    methods = pool.FindServiceByName("penstock.wire.v1.Feed").methods_by_name
    assert set(methods) == {"Describe", "Read", "Status"}


def test_status_tells_what_the_node_does(server: Server) -> None:
    """Readers by group and rank, with what they are owed next."""
    reader = server.read("packed", horizon=6, rank=1, world_size=2)
    reader.take(3)

    eventually(
        lambda: any(
            (one["rank"], one["next"], one["sent_batches"]) == (1, 7, 3)
            for job in server.status()["jobs"]
            for one in job["groups"]
        ),
        30,
        "the reader is shown",
    )
    reader.cancel()
    eventually(
        lambda: all(not job["groups"] for job in server.status()["jobs"]),
        30,
        "the reader is gone from the status",
    )


# --- starting and ending --------------------------------------------------------------------------


def test_a_taken_port_is_named(server: Server, tmp_path: Path) -> None:
    """The second node on a port ends with status 2 and says which."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS)

    ended = run_command(["penstock.server.cli", "serve", str(file), "--listen", server.address])

    assert ended.returncode == 2
    assert f"cannot listen on {server.address}" in ended.stderr
    assert "[port_in_use]" in ended.stderr


def stored_uuid(path: Path) -> str:
    """Return the identity of a store that no node has open."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return str(store.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()[0])


def test_a_start_that_fails_leaves_no_store_of_its_own(server: Server, tmp_path: Path) -> None:
    """The next start would find an empty one, as if runs had lost their cursors; old ones stay."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, store="sqlite:///runs.db")
    taken = ["penstock.server.cli", "serve", str(file), "--listen", server.address]

    assert "[port_in_use]" in run_command(taken).stderr
    assert [*tmp_path.glob("runs.db*")] == []

    with serving(file):
        pass
    before = stored_uuid(tmp_path / "runs.db")
    assert "[port_in_use]" in run_command(taken).stderr
    assert stored_uuid(tmp_path / "runs.db") == before


def test_a_store_in_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    """It may be mistyped, or not mounted."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS)

    ended = run_command(
        ["penstock.server.cli", "serve", str(file), "--store", "sqlite:///nodir/x.db"]
    )

    assert ended.returncode == 2
    assert "there is no folder" in ended.stderr
    assert "[store_unavailable]" in ended.stderr
    assert not (tmp_path / "nodir").exists()
    assert "Traceback" not in ended.stderr


def test_a_second_server_on_a_store_is_refused(server: Server, tmp_path: Path) -> None:
    """The store's lock is exclusive: the second one says whose it is and ends with status 2."""
    store = Path(server.file).parent / "penstock.db"

    ended = run_command(
        ["penstock.server.cli", "serve", str(server.file), "--store", f"sqlite:///{store}"]
    )

    assert ended.returncode == 2
    assert "[store_locked]" in ended.stderr
    assert str(server.process.pid) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_corrupt_store_is_named(tmp_path: Path) -> None:
    """A file that is no store is refused, not overwritten."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS)
    store = tmp_path / "penstock.db"
    store.write_bytes(b"not a database" * 1000)

    ended = run_command(["penstock.server.cli", "serve", str(file)])

    assert ended.returncode == 2
    assert "[store_corrupt]" in ended.stderr
    assert store.read_bytes() == b"not a database" * 1000


def test_sigterm_drains(tmp_path: Path) -> None:
    """Open streams hear `Draining`, snapshots are saved, and the node exits with 0."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, snapshot_seconds=3600.0)
    with serving(file) as server:
        idle = server.read("packed", horizon=0)
        reader = server.read("packed", horizon=40)
        got = reader.take(40)

        server.process.send_signal(signal.SIGTERM)
        for open_reader in (reader, idle):
            assert list(open_reader) == []
            assert open_reader.draining is not None
        code = server.wait_end()

    assert code == 0
    assert len(got) == 40
    assert server.events("stopped")
    job = load(str(file)).jobs["packed"]
    # Some more of each lane may have been made beyond the horizon.
    offsets = asyncio.run(_offsets(SqliteStore(tmp_path / "penstock.db"), job))
    assert len(offsets) == 4
    ahead = CHEAP_AHEAD * AHEAD_PER_WORKER // len(offsets)
    assert all(10 <= offset <= 11 + ahead for offset in offsets)


async def _offsets(store: SqliteStore, job: Job) -> list[int]:
    """Return the offset of the newest snapshot of each lane."""
    await store.open()
    found = [await store.nearest_snapshot(job.log_id, lane, 10**6) for lane in range(job.lanes)]
    await store.close()
    return [-1 if one is None else one.offset for one in found]


def test_a_unix_socket_serves_and_outlives_a_kill(tmp_path: Path) -> None:
    """The socket file that a killed node left is taken over; a living node's is not."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS)
    listen = f"unix:{tmp_path}/n.sock"
    with serving(file, "--listen", listen) as server:
        first = server.read("packed", horizon=3).take(3)
        ended = run_command(
            [
                "penstock.server.cli",
                "serve",
                str(file),
                "--listen",
                listen,
                "--store",
                "sqlite:///b",
            ]
        )
        assert ended.returncode == 2
        assert "[port_in_use]" in ended.stderr
        server.kill()

        server.start()
        assert server.read("packed", horizon=3).take(3) == first


def test_an_unusable_snapshot_costs_a_replay_and_nothing_else(tmp_path: Path) -> None:
    """Damaged, truncated or of another lane: an older one is taken, and the batches are right."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, snapshot_seconds=0.05)
    job = load(str(file)).jobs["packed"]
    purity = Purity(job)
    with serving(file) as server:
        for horizon in (40, 80, 120):
            server.read("packed", start=horizon - 40, horizon=horizon).take(40)
        assert server.terminate() == 0

        spoilt = asyncio.run(_spoil(SqliteStore(tmp_path / "penstock.db"), job.log_id))
        server.start()
        # Beyond what was made before the end: there the newest snapshot is the nearest.
        for delivered in server.read("packed", start=160, horizon=200).take(40):
            purity.saw(*delivered)
        removed = "an unusable snapshot was removed"
        refused_snapshots = server.events(removed, at_least=len(spoilt))

    assert purity.seen == 40
    assert {(one["lane"], one["offset"]) for one in refused_snapshots} == spoilt


async def _spoil(store: SqliteStore, log_id: bytes) -> set[tuple[int, int]]:
    """Put something else in the place of the newest snapshot of lanes 0 to 2."""
    await store.open()
    spoilt = set()
    for lane in range(3):
        newest = await store.nearest_snapshot(log_id, lane, 10**6)
        other = await store.nearest_snapshot(log_id, 3, 10**6)
        assert newest is not None
        assert other is not None
        data = (newest.data[:-1] + b"?", newest.data[:50], other.data)[lane]
        await store.drop_snapshot(log_id, lane, newest.offset)
        await store.put_snapshots([newest._replace(data=data)])
        spoilt.add((lane, newest.offset))
    await store.close()
    return spoilt


def test_a_client_that_vanishes_leaves_nothing(server: Server) -> None:
    """Sockets that speak no HTTP/2 and streams that are broken off leave the node as it was."""
    host, _, port = server.address.rpartition(":")
    for seed in range(20):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(random.Random(seed).randbytes(200))
    for _ in range(10):
        reader: StubReader = server.read("packed", horizon=1000)
        reader.take(1)
        reader.cancel()

    eventually(
        lambda: all(not job["groups"] for job in server.status()["jobs"]), 30, "no stream is left"
    )
    assert server.events("a bug") == []
