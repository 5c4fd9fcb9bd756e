"""Sources at URLs: a real S3 server (moto), over real connections that break now and then."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.test_sources import CASES, Case, plain
from harness import serving, write_job_file
from indexes import Here, made
from invariants import Purity, eventually
from penstock.client import Loader
from penstock.server.job.job import Job
from penstock.server.media.listing import MediaListing
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.media_storage import FIRST_BYTES
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.make.making import Making, make
from penstock.server.planning.make.measuring import Measuring
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.sources import ItemsSource, JsonlSource, ParquetSource
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged
from ports import free_port
from robots import CAMERAS, RobotFolder, video_writer

SECRET = "hush-hush-this-is-the-key"

REMOTE = {
    name: case
    for name, case in CASES.items()
    if name.split()[0] not in ("hf", "torch", "items") and name != "parquet of two patterns"
}


class Url(str):
    """A folder behind a URL, with the slash of `Path`."""

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}/{name}")


class Line(socketserver.ThreadingTCPServer):
    """What lies between a node and the store: it can be cut.

    Attributes:
        is_cut: New connections are closed at once, and those that are open break.
        refused: How many connections were closed while it was.
        asked: The methods of the requests that came.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        self.target, self.is_cut, self.refused = target, False, 0
        self.open: set[socket.socket] = set()
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Connection)

    def cut(self) -> None:
        """Break what is open, and refuse what comes."""
        self.is_cut = True
        for connection in [*self.open]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    server: Line

    def handle(self) -> None:
        if self.server.is_cut:
            self.server.refused += 1
            return
        with socket.create_connection(self.server.target) as store:
            self.server.open |= {self.request, store}
            back = threading.Thread(target=self._pass, args=(store, self.request))
            back.start()
            self._pass(self.request, store)
            back.join()
            self.server.open -= {self.request, store}

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                method = data[:5].partition(b" ")[0].decode(errors="replace")
                if source is self.request and method in ("GET", "HEAD", "PUT", "POST"):
                    self.server.asked.append(method)  # a request begins a packet
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, int]]:
    """The address of an S3 server in a process of its own."""
    address = ("127.0.0.1", free_port())
    command = [sys.executable, "-m", "moto.server", "-H", address[0], "-p", str(address[1])]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: _answers(address), 60.0, "the S3 server answers")
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(address: tuple[str, int]) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/moto-api/", timeout=10):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def line(store: tuple[str, int]) -> Iterator[Line]:
    """The way to the server, whole at first."""
    with Line(store) as between:
        threading.Thread(target=between.serve_forever, args=(0.05,), daemon=True).start()
        yield between
        between.shutdown()


@pytest.fixture(scope="module")
def bucket(line: Line) -> Iterator[Any]:
    """The filesystem, with credentials and address where boto looks for them: the environment."""
    import fsspec

    # One made before, for a server that is gone, is kept by its arguments, not by its address.
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "penstock")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{line.server_address[1]}")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        fs = fsspec.filesystem("s3")
        fs.mkdir("corpus")
        yield fs
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize("case", REMOTE.values(), ids=REMOTE.keys())
def test_every_format_is_the_same_source_behind_a_url(
    bucket: Any, case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Items, order, blocks and identity are those of the same files on a disk."""
    folder, name = tmp_path / "here", f"corpus/{request.node.callspec.id.replace(' ', '-')}"
    folder.mkdir()
    case.write(folder)
    for path in folder.rglob("*"):
        if path.is_file():
            bucket.pipe_file(f"{name}/{path.relative_to(folder)}", path.read_bytes())

    here, there = case.open(folder), case.open(Url(f"s3://{name}"))  # type: ignore[arg-type]

    assert there.identity() == here.identity()
    assert SECRET not in json.dumps(there.identity())
    assert plain(there.fetch(range(len(there)))) == case.items
    assert plain(there.fetch([len(there) - 1, 0])) == [case.items[-1], case.items[0]]
    assert there.blocks() == here.blocks()
    here.close()
    there.close()


def test_a_store_that_is_away_for_a_moment_costs_no_item(
    bucket: Any, line: Line, tmp_path: Path
) -> None:
    """A node waits and goes on: its batches are those of the same files on a disk.

    Credentials, from the environment or in the job file, are in no log and in no store.
    """
    rows = [{"n": n, "text": "x" * (n % 5)} for n in range(120)]
    data = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "rows.jsonl").write_text(data)
    bucket.pipe_file("corpus/away/rows.jsonl", data.encode())
    source = {"type": "jsonl", "files": "s3://corpus/away/*.jsonl", "block_bytes": 500}
    shared = {"batch_size": 4, "lanes": 2, "epochs": 1}
    told = {"key": "penstock", "secret": SECRET}
    jobs = {
        "away": {"source": source, **shared},
        "told": {"source": {**source, "storage_options": told}, **shared},
    }
    local = Job(
        source=JsonlSource(str(tmp_path / "rows.jsonl"), block_bytes=500),
        batch_size=4,
        lanes=2,
        epochs=1,
    )
    purity = Purity(local)
    settings = {"hash_cache": "off", "store": f"sqlite:///{tmp_path}/store.db"}
    file = write_job_file(tmp_path / "jobs.yaml", jobs, **settings)
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    with serving(file, environment=environment) as server:
        line.cut()
        reader = server.read("away", horizon=30)
        eventually(lambda: line.refused > 3, 60.0, "the node has asked in vain")
        line.is_cut = False
        for delivered in reader.take(30):
            purity.saw(*delivered)
        said = "".join(server.lines)

    assert purity.seen == 30
    assert SECRET not in said
    for path in tmp_path.glob("store.db*"):
        assert SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_robots_in_a_bucket_are_those_of_the_folder(
    bucket: Any, tmp_path: Path, layout: str
) -> None:
    """Tables and the videos of three cameras, batch by batch: the root is a URL."""
    robots = RobotFolder(layout=layout)
    root = robots.write(tmp_path / "robots", video_writer(robots.fps))
    bucket.put(str(root), f"corpus/robots-{layout}", recursive=True)
    windows = {camera: [-0.2, 0.0, 0.1] for camera in CAMERAS}
    jobs = {
        name: {
            "source": {"type": "lerobot", "root": where, "delta_timestamps": windows},
            "distributor": {"type": "episodes", "pool": 4},
            "processor": {"type": "robot"},
            "batch_size": 5,
            "lanes": 2,
            "epochs": 1,
        }
        for name, where in (("near", "robots"), ("far", f"s3://corpus/robots-{layout}"))
    }
    file = write_job_file(tmp_path / "jobs.yaml", jobs, hash_cache="off")
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    found: dict[str, list[dict[str, Any]]] = {}

    with serving(file, "--workers", "1", environment=environment) as server:
        for name in jobs:
            found[name] = []
            with Loader(server.address, name, as_numpy=True) as loader:
                for batch in loader:
                    found[name].append({key: plain_value(batch[key]) for key in batch})

    assert sum(len(batch["task"]) for batch in found["near"]) >= robots.frames
    assert found["far"] == found["near"]


def plain_value(value: Any) -> Any:
    return value.tobytes() if isinstance(value, np.ndarray) else value


def test_a_block_is_one_request_that_names_its_version(
    bucket: Any, line: Line, tmp_path: Path
) -> None:
    """What was written again is refused by the store itself, before a byte of it comes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"n": n, "text": "x" * 30} for n in range(40)]
    data = "".join(json.dumps(row) + "\n" for row in rows)
    bucket.pipe_file("corpus/versions/rows.jsonl", data.encode())
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=10)
    bucket.put_file(str(tmp_path / "rows.parquet"), "corpus/versions/rows.parquet")
    lines = JsonlSource("s3://corpus/versions/*.jsonl", block_bytes=500)
    groups = ParquetSource("s3://corpus/versions/*.parquet")
    first = [source.identity() for source in (lines, groups)]
    groups.fetch([0])  # the file is open: its footer was read
    line.asked.clear()

    for source, others in ((lines, [0, 12, 24, 36]), (groups, [10, 20, 30])):
        for number in others:
            assert source.fetch([number]) == [rows[number]]
        assert line.asked == ["GET"] * len(others)
        line.asked.clear()

    bucket.pipe_file("corpus/versions/rows.jsonl", data.replace("x", "y").encode())
    bucket.pipe_file("corpus/versions/rows.parquet", (tmp_path / "rows.parquet").read_bytes()[::-1])
    for source in (lines, groups):
        source.keep_blocks(0)
        with pytest.raises(SourceChanged, match="changed under an open source"):
            source.fetch([24])
    assert [source.identity() for source in (lines, groups)] == first


def test_what_a_store_refuses_is_told_at_once(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket or an object that is not there is the job file's mistake, named with its URL."""
    with pytest.raises(InvalidJob, match=r"no file matches 's3://nowhere/\*\.jsonl'"):
        JsonlSource("s3://nowhere/*.jsonl")
    with pytest.raises(InvalidJob, match=r"no file matches 's3://corpus/none\.jsonl'"):
        JsonlSource("s3://corpus/none.jsonl")


def test_an_index_is_made_and_read_behind_a_url(bucket: Any, tmp_path: Path) -> None:
    """With its finished parts beside it, from which another command goes on; as on a disk."""
    rows = [{"input_ids": [1] * (n % 7)} for n in range(900)]
    job = Job(ItemsSource(rows), batcher=BestFitPackingBatcher(64), lanes=2)
    here = made(job, tmp_path / "here")
    url = "s3://corpus/of/mine/sft.index"
    measuring = Measuring(job)
    with pytest.raises(InterruptedError):
        make([Making(measuring, url)], Here(measuring, most=2))
    assert not bucket.exists(url)
    assert len(bucket.ls(f"{url}.parts", refresh=True)) == 3

    there = made(job, url)
    again = made(job, url)

    assert bucket.cat_file(url) == (tmp_path / "here").read_bytes()
    assert (there.done.found, again.is_new) == (512, False)
    assert there.index.root == here.index.root
    assert not bucket.exists(f"{url}.parts")
    index = SizeIndex.open(url)
    assert index.sources["main"].read(0, 900).sizes.tolist() == [n % 7 for n in range(900)]
    with pytest.raises(InvalidJob, match=r"there is no index of sizes at 's3://corpus/none'"):
        SizeIndex.open("s3://corpus/none")
    bucket.pipe_file("corpus/cut.index", (tmp_path / "here").read_bytes()[:-1])
    with pytest.raises(InvalidJob, match="is damaged: it ends before its end"):
        SizeIndex.open("s3://corpus/cut.index")


def test_media_in_a_bucket_are_those_of_a_folder(bucket: Any, line: Line, tmp_path: Path) -> None:
    """One job, wherever they lie; each is one request, and what changes there stops it."""
    for number in range(6):
        path = tmp_path / "media" / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * (100 + number))
        bucket.put_file(str(path), f"corpus/media/{number % 2}/{number}.jpg")
    here = MediaReader(MediaFiles(str(tmp_path / "media")))
    there = MediaReader(MediaFiles("s3://corpus/media"))
    names = [f"{number % 2}/{number}.jpg" for number in range(6)]
    line.asked.clear()

    data = [bytes(medium.read()) for medium in there.media(names)]
    asked = list(line.asked)
    handed = MediaListing("a key", bytes(there.hand_over()[0].to_bytes()))

    assert there.identity() == here.identity()
    assert data == [bytes(medium.read()) for medium in here.media(names)]
    assert asked == ["GET"] * 6
    assert handed.fingerprint == here.identity()["files"][0]
    assert there.media(["s3://corpus/media/0/0.jpg"])[0].head(3) == b"000"
    with pytest.raises(
        BadItem,
        match=r"'0/9\.jpg' is not there: it is none of the 6 media that s3://corpus/media held",
    ):
        there.media(["0/9.jpg"])
    with pytest.raises(BadItem, match="lies outside"):
        there.media(["s3://corpus/away/rows.jsonl"])

    bucket.pipe_file("corpus/media/0/0.jpg", b"1" * 100)
    bucket.rm_file("corpus/media/1/1.jpg")
    with pytest.raises(SourceChanged, match=r"0/0\.jpg changed since the job began"):
        there.media(names)[0].read()
    with pytest.raises(SourceChanged, match=r"1/1\.jpg is not there any more"):
        there.media(names)[1].read()
    assert bytes(there.media(names)[2].read()) == data[2]


def test_media_of_a_bucket_that_are_only_allowed_are_read_at_once(bucket: Any, line: Line) -> None:
    """Nobody knows how large they are, and one request brings a small one, or an empty one."""
    bucket.pipe_file("corpus/open/small.jpg", b"small")
    bucket.pipe_file("corpus/open/empty.jpg", b"")
    bucket.pipe_file("corpus/open/large.jpg", b"l" * (FIRST_BYTES + 5))
    reader = MediaReader(MediaFiles(allow=["s3://corpus/open"]))
    small, empty, large, none = reader.media(
        [f"s3://corpus/open/{name}.jpg" for name in ("small", "empty", "large", "none")]
    )
    line.asked.clear()

    assert bytes(small.read()) == b"small"
    assert line.asked == ["GET"]
    assert bytes(empty.read()) == b""
    assert bytes(large.read()) == b"l" * (FIRST_BYTES + 5)
    with pytest.raises(BadItem, match=r"s3://corpus/open/none\.jpg is not there"):
        none.read()
    assert "only the names are known" in reader.cautions()[0]
