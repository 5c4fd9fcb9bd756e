"""Batches without tensors: strings travel in headers, and headers count wherever bytes do."""

from __future__ import annotations

from pathlib import Path

from harness import serving, write_job_file
from penstock.client import Loader


def test_batches_of_long_strings_arrive_whole(tmp_path: Path) -> None:
    """Several of 3 MB wait at once, and none of them shares a message that would be too large."""
    target = tmp_path / "jobs.py"
    target.write_text(
        "from penstock.server.job.job import Job\n"
        "from penstock.server.sources import ItemsSource\n"
        "items = [{'text': letter * 3_000_000} for letter in 'abcd']\n"
        "jobs = {'text': Job(ItemsSource(items), batch_size=1, lanes=4)}\n"
    )
    file = f"{target}:jobs"
    flags = ("--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "2")
    texts = {}

    for name in ("served", "local"):
        with serving(file, *flags) as server:
            target = server.address if name == "served" else f"local:{file}"
            with Loader(target, "text", rank=0, world_size=1, prefetch=16) as loader:
                texts[name] = [batch["text"][0][:1] for batch, _ in zip(loader, range(24))]  # noqa: B905
                assert loader.stats()["reconnects"] == 0

    assert texts["served"] == texts["local"]


def test_a_local_state_names_the_store_and_loads_where_the_store_is(tmp_path: Path) -> None:
    """A run that began in a notebook with `local:` goes on against a server of the same store."""
    job = {
        "lanes": 4,
        "source": {"type": "items", "items": [{"x": n} for n in range(9)]},
        "batch_size": 2,
    }
    file = write_job_file(tmp_path / "penstock.yaml", {"job": job})
    options = {"group": "run", "rank": 0, "world_size": 1, "batches_per_step": 4}
    with Loader(f"local:{file}", "job", **options) as loader:
        for step in loader.steps():
            list(step)
            loader.commit()
            if step.index == 2:
                break
        state = loader.state_dict()

    with serving(file) as server, Loader(server.address, "job", start="state", **options) as loader:
        loader.load_state_dict(state)
        first = next(iter(loader)).position
        again = loader.state_dict()

    assert state["store"]
    assert (first, again["store"]) == (12, state["store"])
