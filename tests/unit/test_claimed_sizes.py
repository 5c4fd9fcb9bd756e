"""A header or an index that claims more bytes than there are costs its own item, and no memory."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.sources import ItemsSource, MdsSource, WebdatasetSource
from penstock.wire.errors import BadItem

GOLDEN = Path(__file__).parents[1] / "data" / "formats" / "mds"


def npy(array: Any, claimed: int | None = None) -> bytes:
    """Return a `.npy` file, whose header claims another length."""
    stream = io.BytesIO()
    np.save(stream, array)
    data = stream.getvalue()
    if claimed is None:
        return data
    head, rest = data[:128], data[128:]
    text = head.replace(f"({len(array)},)".encode(), f"({claimed},)".encode())
    return text.rstrip(b"\n ")[:127].ljust(127) + b"\n" + rest


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize("claimed", [10**16, 10**12, 10**9, 5])
def test_an_array_that_claims_more_than_its_file_is_a_bad_item(
    tmp_path: Path, claimed: int
) -> None:
    """Whatever a machine could allocate: the others are read, and nothing is retried."""
    files = {f"{n}.npy": npy(np.arange(4), claimed if n == 2 else None) for n in range(5)}
    source = WebdatasetSource(str(tar(tmp_path / "a.tar", files)))
    job = Job(source, MapDistributor(shuffle="none"), batch_size=2, lanes=1, epochs=1,
              on_item_error="quarantine")  # fmt: skip
    began_s = time.monotonic()

    with pytest.raises(BadItem, match=rf"2\.npy, cannot be decoded \(.*\({claimed},\) of int64 in"):
        source.fetch([2])
    line = Line(job, 0)
    made = [line.make(line.advance()) for _ in range(2)]

    assert len(made) == 2
    assert [verdict.item.index for verdict in line.items.verdicts] == [2]
    assert time.monotonic() - began_s < 20


class Asking(RawItemProcessor):
    """Makes an array as large as its item says."""

    version = 1

    def process(self, raw: Any, context: Any) -> Any:
        """Return its first numbers."""
        return {"n": np.zeros(raw["n"], np.uint8)[:3]}


def test_an_item_that_asks_for_what_no_machine_has_is_judged(tmp_path: Path) -> None:
    """In a role of the user's, too: the lane goes on without it at once."""
    rows = [{"n": 5}, {"n": 10**17}, {"n": 7}]
    job = Job(
        ItemsSource(rows), MapDistributor(shuffle="none"), processor=Asking(), batch_size=1,
        lanes=1, epochs=1, on_item_error="quarantine",
    )  # fmt: skip
    line = Line(job, 0)

    made = [line.make(line.advance()) for _ in range(2)]

    assert len(made) == 2
    assert [verdict.item.index for verdict in line.items.verdicts] == [1]


@pytest.mark.parametrize(("ending", "said"), [("zstd", "627 bytes|1573 bytes"), ("snappy", "says")])
def test_a_size_that_an_index_claims_is_not_allocated(
    tmp_path: Path, ending: str, said: str
) -> None:
    """Ten petabytes of a shard of half a kilobyte: it is damaged, and no memory is missing."""
    shutil.copytree(GOLDEN / ending, tmp_path / "set")
    path = tmp_path / "set" / "index.json"
    index = json.loads(path.read_text())
    index["shards"][0]["raw_data"]["bytes"] = 10**16
    path.write_text(json.dumps(index))

    with pytest.raises(BadItem, match=rf"cannot be decoded \(.*({said})"):
        MdsSource(str(tmp_path / "set"), ["number"]).fetch([0])
