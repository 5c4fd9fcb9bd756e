"""A node looks at its data files once: workers open what they read, and refuse what has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import serving, write_job_file
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import compute
from penstock.wire.errors import SourceChanged

FILES = 12


def write(path: Path, first: int) -> None:
    pq.write_table(pa.table({"id": range(first, first + 4)}), path)


def test_a_worker_opens_no_file_but_those_it_reads(tmp_path: Path) -> None:
    """It has list, footers and hashes of its node, and names a file that has changed since.

    Also where nothing is kept between starts, and for a second job over the same files.
    """
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        write(tmp_path / "data" / f"{number:02d}.parquet", 4 * number)
    source = {"type": "parquet", "files": "data"}
    plain = {"lanes": 1, "source": source, "distributor": {"type": "map", "shuffle": "none"}}
    file = write_job_file(
        tmp_path / "jobs.yaml",
        {"plain": {**plain, "batch_size": 4}, "columns": {**plain, "batch_size": 2}},
        hash_cache="off",
    )
    expected = compute(load(str(file)).job("plain"), 0).body

    with serving(file, "--workers", "2") as server:
        for number in range(2, FILES):
            path = tmp_path / "data" / f"{number:02d}.parquet"
            path.rename(path.with_suffix(".away"))
        write(tmp_path / "data" / "01.parquet", 1000)

        # All of them go on: a reader that begins is told at once that files have changed.
        [first] = server.read("plain", world_size=1, horizon=1, given_from=0).take(1)
        with pytest.raises(SourceChanged, match=r"01\.parquet changed"):
            server.read("plain", world_size=1, start=1, horizon=2, given_from=1).take(1)
        [other] = server.read("columns", world_size=1, horizon=1, given_from=0).take(1)

    assert first.body == expected
    assert other.body == expected[: len(other.body)]


@pytest.mark.parametrize("kind", ["jsonl", "hf_stream"])
def test_a_file_that_is_edited_under_a_node_is_served_no_further(tmp_path: Path, kind: str) -> None:
    """Its size is the same, and its time of change was put back: readers get the error's name."""
    data = tmp_path / "a.jsonl"
    data.write_text("".join(f'{{"n": {n:7d}}}\n' for n in range(200_000)))
    source = (
        {"type": "jsonl", "files": "a.jsonl", "block_bytes": 1000, "cache_bytes": 0}
        if kind == "jsonl"
        else {"type": "hf_stream", "path": "json", "data_files": "a.jsonl"}
    )
    distributor = {"type": "map", "shuffle": "none"} if kind == "jsonl" else {"type": "iterable"}
    job = {"lanes": 1, "batch_size": 100, "source": source, "distributor": distributor}
    file = write_job_file(tmp_path / "jobs.yaml", {"rows": job})

    with serving(file, "--workers", "1") as server:
        reader = server.read("rows", world_size=1, horizon=3, given_from=0)
        before = reader.take(3)
        text, times = data.read_bytes(), data.stat()
        data.write_bytes(text.replace(b"150000", b"777777"))
        os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))
        with pytest.raises(SourceChanged, match=r"a\.jsonl changed under an open source"):
            server.read("rows", world_size=1, horizon=2000, given_from=0).take(1900)

    assert len(before) == 3
