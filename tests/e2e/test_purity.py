"""Every batch over the wire is the batch that `local:` computes, whoever reads or made it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Server, StubReader, serving, write_job_file
from invariants import Purity, check_bounds, check_conservation, check_steps
from penstock.client import Loader
from penstock.client.calls.grpc_transport import open_transport
from penstock.server.jobs.load import load
from penstock.wire import PROTOCOL
from penstock.wire.errors import Unreachable
from penstock.wire.frame import Reply
from penstock.wire.order import Cut, Share, Tail
from penstock.wire.v1 import feed_pb2
from resume.plans import LENGTHS

ITEMS = [
    {"input_ids": [100 * number + k for k in range(length)]}
    for number, length in enumerate(LENGTHS)
]

ROLES = '''
from penstock.server.roles import RawItemProcessor


class Choosy(RawItemProcessor):
    """Filters, multiplies, and draws random numbers of its own."""

    def process(self, raw, context):
        number = raw["input_ids"][0] // 100
        if number % 7 == 3:
            return context.skip("every seventh")
        shift = int(context.rng.integers(1000))
        return [
            {"input_ids": [token + shift + part for token in raw["input_ids"]]}
            for part in range(1 + number % 3)
        ]
'''

JOBS: dict[str, Any] = {
    "packed": {
        "seed": 3,
        "lanes": 5,
        "batches_per_step": 12,
        "snapshot_every": 4,
        "source": {"type": "items", "items": ITEMS},
        "processor": {"type": "./roles.py:Choosy"},
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 6, "rows": 2},
        "collator": {"type": "packed"},
    },
    "plain": {
        "seed": 3,
        "lanes": 4,
        "batches_per_step": 12,
        "source": {"type": "items", "items": ITEMS},
        "batcher": {"type": "simple", "batch_size": 3},
        "collator": {"type": "padded"},
    },
    "finite": {
        "lanes": 5,
        "epochs": 2,
        "batches_per_step": 12,
        "source": {"type": "items", "items": list(range(47))},
        "batch_size": 2,
    },
}

SETTINGS = [(1, "1 KiB"), (3, "64 MiB")]


@pytest.fixture(scope="module", params=SETTINGS, ids=["1-worker-tiny-bound", "3-workers"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A node with one worker and a bound below one batch, and one with three and room."""
    workers, bound = request.param
    folder = tmp_path_factory.mktemp("purity")
    (folder / "roles.py").write_text(ROLES)
    file = write_job_file(folder / "jobs.yaml", JOBS, workers=workers, ready_bytes=bound)
    with serving(file) as running:
        yield running


def jobs_of(server: Server) -> Any:
    return load(str(server.file)).jobs


def read_all(readers: list[StubReader], positions: list[list[int]], purity: Purity) -> None:
    """Read every rank at once, each moving its horizon by a few positions at a time."""
    failures: list[BaseException] = []

    def follow(reader: StubReader, own: list[int]) -> None:
        try:
            got: list[int] = []
            reader.extend(own[0] + 1)
            for delivered in reader:
                purity.saw(*delivered)
                got.append(delivered.header.position)
                if len(got) == len(own):
                    break
                reader.extend(own[min(len(own) - 1, len(got) + 3)] + 1)
            assert sorted(got) == own
        except BaseException as failure:
            failures.append(failure)
        finally:
            reader.cancel()

    threads = [
        threading.Thread(target=follow, args=pair) for pair in zip(readers, positions, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("name", ["packed", "plain"])
def test_any_number_of_ranks_reads_the_same_log(server: Server, name: str, world_size: int) -> None:
    """W ranks share four steps in the middle of the log: each position once, as `local:` has it."""
    purity = Purity(jobs_of(server)[name])
    start, steps = 24, 4
    shares = [Share(12, rank, world_size) for rank in range(world_size)]
    positions = [
        [p for step in range(2, 2 + steps) for p in share.positions(step)] for share in shares
    ]

    readers = [
        server.read(name, rank=share.rank, world_size=world_size, batches_per_step=12, start=start)
        for share in shares
    ]
    read_all(readers, positions, purity)

    assert purity.seen == 12 * steps
    largest = max(len(purity.truth(p)[2]) for p in range(start, start + 12 * steps))
    check_bounds(server.status(), largest)


@pytest.mark.parametrize("tail_pad", [True, False])
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_a_finite_log_ends_for_all_ranks_at_the_same_step(
    server: Server, world_size: int, tail_pad: bool
) -> None:
    """With the last step padded or left out: the same steps for everybody, bytes equal `local:`."""
    job = jobs_of(server)["finite"]
    tail = Tail(job.order.batches, 12, tail_pad)
    purity = Purity(job, Cut(12, tail_pad))
    ends = []

    for rank in range(world_size):
        reader = server.read(
            "finite",
            rank=rank,
            world_size=world_size,
            batches_per_step=12,
            tail=0 if tail_pad else 1,
            horizon=2**40,
        )
        own = []
        for delivered in reader:
            purity.saw(*delivered)
            own.append(delivered.header.position)
        assert reader.end is not None
        assert (reader.end.batches, reader.end.steps) == (tail.batches, tail.steps)
        share = Share(12, rank, world_size)
        assert sorted(own) == [p for step in range(tail.steps) for p in share.positions(step)]
        ends.append(reader.end.steps)

    check_steps(ends)
    assert purity.seen == tail.end


def test_readers_far_apart_do_not_disturb_each_other(server: Server) -> None:
    """Readers at the start, in the middle and far on, coming in any order, get their own bytes."""
    purity = Purity(jobs_of(server)["packed"])
    starts = [600, 0, 300, 601, 5, 150, 450, 0]
    for position in sorted({start + k for start in starts for k in range(25)}):
        purity.truth(position)  # in order: a step back replays a lane
    readers = [server.read("packed", start=start, horizon=start) for start in starts]

    read_all(readers, [list(range(start, start + 25)) for start in starts], purity)

    assert purity.seen == 25 * len(starts)


def test_a_reader_that_takes_nothing_stops_nobody(server: Server) -> None:
    """One reader accepts batches and never reads them: another of the same lanes goes on."""
    purity = Purity(jobs_of(server)["packed"])
    stalled = server.read("packed", horizon=500)

    read_all([server.read("packed", start=40)], [list(range(40, 100))], purity)

    stalled.cancel()
    assert purity.seen == 60


def test_lanes_can_be_read_one_by_one(server: Server) -> None:
    """A reader may want some lanes only: together the lanes are the log."""
    purity = Purity(jobs_of(server)["packed"])
    seen: list[int] = []

    for lane in range(5):
        reader = server.read("packed", lanes=[lane], horizon=50)
        for delivered in reader.take(10):
            purity.saw(*delivered)
            seen.append(delivered.header.position)
        reader.cancel()

    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("name", ["packed", "plain"])
def test_every_item_that_was_drawn_is_accounted_for(server: Server, name: str) -> None:
    """Conservation in each lane: delivered, filtered or held, each piece once."""
    job = jobs_of(server)[name]

    for lane in range(job.lanes):
        counters = check_conservation(job, lane, 40)
        assert counters["drawn"] > len(ITEMS) // job.lanes


@pytest.mark.parametrize("name", ["packed", "finite"])
def test_local_sends_what_a_server_sends(server: Server, name: str) -> None:
    """The same opening gives the same batches, the same end; nothing beyond the horizon."""
    opening = feed_pb2.Open(
        protocol=PROTOCOL, job=name, rank=1, world_size=2, batches_per_step=12, horizon=40
    )
    transport = open_transport(f"local:{server.file}", name, grouped=False)
    reader = server.read(name, rank=1, world_size=2, batches_per_step=12, horizon=40)
    reader.hang_up()
    sent = {one.header.position: one for one in reader}

    replies: list[Reply] = []
    call = transport.read(feed_pb2.ReadRequest(open=opening).SerializeToString())
    with contextlib.suppress(Unreachable):  # what is cancelled ends so
        for together in call:
            replies += together
            if len(bodies(replies)) == len(sent) and reader.end is None:
                call.cancel()  # the stream would wait for a larger horizon

    headers = [reply.header for reply in replies if reply.header is not None]
    assert sorted(header.position for header in headers) == sorted(sent)
    for header, body in zip(headers, bodies(replies), strict=True):
        assert sent[header.position] == (header, body)
    assert [reply.message for reply in replies if reply.kind == "end"] == [
        end for end in [reader.end] if end is not None
    ]
    transport.close()


def bodies(replies: list[Reply]) -> list[bytes]:
    found: list[bytes] = []
    for reply in replies:
        if reply.header is not None:
            found.append(b"")
        if reply.chunk is not None:
            found[-1] += reply.chunk.data
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_loaders_are_given_the_same_log(server: Server, world_size: int) -> None:
    """Through the Loader: every rank its share of every step, in order, bytes equal `local:`."""
    purity = Purity(jobs_of(server)["packed"])
    for rank in range(world_size):
        loader = Loader(
            server.address,
            "packed",
            rank=rank,
            world_size=world_size,
            batches_per_step=12,
            start=2,
            as_numpy=True,
        )
        share, positions = Share(12, rank, world_size), []
        with loader:
            for batch in loader:
                purity.saw(batch.header, bytes(batch.body))
                positions.append(batch.position)
                if len(positions) == 3 * share.batches_per_rank:
                    break
        assert positions == [p for step in (2, 3, 4) for p in share.positions(step)]

    assert purity.seen == 36
