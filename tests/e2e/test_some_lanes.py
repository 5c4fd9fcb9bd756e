"""A reader of some lanes of a long finite job: passing over the others holds nobody up."""

from __future__ import annotations

from pathlib import Path

from harness import serving, write_job_file


def test_a_reader_that_finds_nothing_for_long_blocks_no_other(tmp_path: Path) -> None:
    """Rank 0 of 3 meets lane 1 of 3 after some 200 million positions: others are served at once."""
    job = {
        "lanes": 3,
        "epochs": 10_000_000,
        "source": {"type": "items", "items": [{"x": number} for number in range(23)]},
        "batch_size": 1,
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"long": job})
    with serving(file) as server:
        looking = server.read("long", rank=0, world_size=3, lanes=[1], horizon=1 << 40)
        other = server.read("long", rank=0, world_size=3, horizon=60)

        positions = [delivered.header.position for delivered in other.take(20)]

        assert positions == list(range(0, 60, 3))
        assert server.status()["jobs"][0]["produced"] >= 20
        looking.cancel()
        other.cancel()
        assert server.terminate() == 0
