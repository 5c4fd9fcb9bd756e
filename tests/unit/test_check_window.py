"""What `penstockd check` says of reading: a whole window, with the source's own cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.commands.block_reading import read_window
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.roles import MapDistributor
from penstock.server.sources import ItemsSource, ParquetSource

ROWS, GROUPS = 32, 24


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups of 2 MiB: large enough that a worker does not keep all of them anyway."""
    path = tmp_path_factory.mktemp("corpus") / "a.parquet"
    random = np.random.default_rng(3)
    with pq.ParquetWriter(path, pa.schema([("x", pa.binary())]), compression="none") as writer:
        for _ in range(GROUPS):
            rows = [random.bytes(64 << 10) for _ in range(ROWS)]
            writer.write_table(pa.table({"x": pa.array(rows, pa.binary())}))
    return path


def job(corpus: Path, distributor: dict[str, Any], **parameters: Any) -> Job:
    source = ParquetSource(str(corpus), **parameters)
    return Job(source, MapDistributor(**distributor), batch_size=2, lanes=4)


def test_a_window_is_read_once_with_what_is_kept_by_default(corpus: Path) -> None:
    """Whatever was read before, and whatever is read afterwards."""
    checked = job(corpus, {"reading_groups": 2, "window_blocks": 2})
    checked.sources["main"].fetch([0, 100])
    said: list[str] = []

    found = read_window(checked, Items(checked), said.append)

    assert found is not None
    assert found.amplification == 1.0
    assert found.groups == 2
    # 64 draws that a lane may be ahead, 2 lanes of a group, 32 rows of a block: 4 more blocks.
    assert found.blocks_in_memory == 2 * (2 + 4)
    assert 4 <= found.blocks_read <= GROUPS // 2 + 1
    assert abs(found.mib_in_memory - 24) < 0.1
    assert said[0].startswith("job job: a window of 6 blocks, item 0 of ")


def test_a_cache_that_is_too_small_shows(corpus: Path) -> None:
    """A bound below the window has row groups read again and again."""
    checked = job(corpus, {"reading_groups": 2, "window_blocks": 4}, cache_bytes=1 << 20)

    found = read_window(checked, Items(checked), lambda text: None)

    assert found is not None
    assert found.amplification > 1.5


def test_a_small_source_is_read_by_every_worker(corpus: Path) -> None:
    """By default 48 MiB are one window, which each worker holds."""
    checked = job(corpus, {})

    found = read_window(checked, Items(checked), lambda text: None)

    assert found is not None
    assert (found.groups, found.blocks_in_memory, found.blocks_read) == (1, GROUPS, GROUPS)
    assert found.amplification == 1.0


def test_a_source_without_blocks_has_no_window() -> None:
    """There is nothing to measure."""
    checked = Job(ItemsSource([1, 2, 3]), batch_size=1)

    assert read_window(checked, Items(checked), lambda text: None) is None


def test_a_window_over_two_sources_is_read_once(corpus: Path) -> None:
    """Row groups are counted over both, and each source keeps what the window needs."""
    sources = {"a": ParquetSource(str(corpus)), "b": ParquetSource(str(corpus))}
    distributor = MapDistributor(reading_groups=2, window_blocks=2)
    checked = Job(sources, distributor, batch_size=2, lanes=4)

    found = read_window(checked, Items(checked), lambda text: None)

    assert found is not None
    assert found.amplification == 1.0
    assert found.groups == 2
