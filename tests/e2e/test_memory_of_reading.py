"""What reading takes of memory, of a process that does nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from unit.test_tokenize import path  # noqa: F401 - a fixture

GOLDEN = Path(__file__).parents[1] / "data" / "formats" / "mds"


BOMB = 1 << 30


PEAK = """
import resource, sys
from penstock.server.sources import MdsSource
from penstock.wire.errors import BadItem
source = MdsSource(sys.argv[1], ["number"])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    source.fetch([0])
except BadItem as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def bomb(folder: Path, codec: str, ending: str, claimed: int | None = None) -> Path:
    """Copy a compressed set, whose shard then holds a gigabyte of zeros."""
    shutil.copytree(GOLDEN / ending, folder)
    shard = folder / f"shard.00000.mds.{ending}"
    with pa.CompressedOutputStream(str(shard), codec) as sink:
        for _ in range(BOMB >> 24):
            sink.write(bytes(1 << 24))
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["zip_data"]["bytes"] = shard.stat().st_size
    if claimed is not None:
        index["shards"][0]["raw_data"]["bytes"] = claimed
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(("codec", "ending"), [("zstd", "zstd"), ("gzip", "gz")])
def test_a_shard_is_unpacked_as_far_as_its_index_says(
    tmp_path: Path, codec: str, ending: str
) -> None:
    """A few kilobytes that hold a gigabyte cost no memory; the sentence has both numbers."""
    folder = bomb(tmp_path / "bomb", codec, ending)

    found = subprocess.run(
        [sys.executable, "-c", PEAK, str(folder)], capture_output=True, text=True, timeout=240
    )

    kilobytes, _, said = found.stdout.partition(" ")
    assert int(kilobytes) < 200_000, found.stderr
    assert re.search(r"at least (\d+) bytes where the index says 157\d\)", said)


AFTER_A_LONG_TEXT = """
import sys
from pathlib import Path
from penstock.server.roles import ProcessContext
from penstock.server.core.refs import ItemRef
from penstock.server.roles.processors import TokenizeProcessor
from penstock.common.malloc import keep_memory

def held():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

def process(text):
    assert processor.process({"text": text}, ProcessContext(ItemRef("main", 0, 0), seed=7))

keep_memory()
processor = TokenizeProcessor(tokenizer=sys.argv[1])
for _ in range(50):
    process("a pipe " * 100)
before = held()
process("the pipe feeds the turbine; " * 30_000)
print(held() - before)
"""


def test_what_a_rare_long_text_took_is_given_back(path: Path) -> None:  # noqa: F811
    """840,000 characters take more than 100 MiB; a process that keeps them has them for good."""
    done = subprocess.run(
        [sys.executable, "-c", AFTER_A_LONG_TEXT, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert float(done.stdout) < 30
