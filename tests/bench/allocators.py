"""The text job with each allocator that is installed here: rate, CPU seconds and memory of a node.

The job and the reader are those of `text`; a node differs in its setting `allocator` alone. Memory
is the highest sum over the node's processes, as in `node_memory`.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from node_memory import Watch
from support import corpus, in_child, interleaved, median, ratio, serving, spread, table, write_job
from text import job

from penstock.server.process.allocator import OFF, chosen, prefer
from penstock.wire.errors import InvalidRequest


def run() -> None:
    """Print the table."""
    data = corpus()
    names = [OFF, *filter(_is_here, ("jemalloc", "mimalloc"))]
    results = interleaved({name: partial(_node, data, name) for name in names})
    table(
        "Text job warm, by the allocator of 2 workers",
        ("allocator", "tokens/s", "range", "by off", "others s/M", "range", "MiB", "range"),
        [
            (
                name,
                f"{median(rounds, 'tokens_per_s'):,.0f}",
                spread(rounds, "tokens_per_s", ",.0f"),
                ratio(results, name, OFF, "tokens_per_s"),
                f"{median(rounds, 'server_s_per_m'):.3f}",
                spread(rounds, "server_s_per_m", ".3f"),
                f"{median(rounds, 'peak_mib'):,.0f}",
                spread(rounds, "peak_mib", ",.0f"),
            )
            for name, rounds in results.items()
        ],
    )


def _is_here(name: str) -> bool:
    try:
        prefer(name, Path())
    except InvalidRequest:
        return False
    return chosen() is not None


def _node(data: Path, name: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(Path(folder), {"text": job(data)}, allocator=name)
        with serving(job_file, "--workers", "2") as (address, process):
            watch = Watch(process.pid)
            found = in_child("text_penstock", address, str(process.pid))
            return {**found, "peak_mib": watch.end()}


if __name__ == "__main__":
    run()
