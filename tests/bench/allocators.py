"""The text job with each allocator that is installed here: rate, CPU seconds and memory of a node.

The job and the reader are those of `text`; a node differs in its setting `allocator` alone. Memory
is the highest sum over the node's processes, as in `node_memory`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from node_memory import Watch
from support import against, compare, corpus, in_child, interleaved, node, ranged
from text import job

from penstock.server.allocator import OFF, chosen, prefer
from penstock.wire.errors import InvalidRequest


def run() -> None:
    """Print the table."""
    data = corpus()
    names = [OFF, *filter(_is_here, ("jemalloc", "mimalloc"))]
    results = interleaved({name: partial(_node, data, name) for name in names})
    compare(
        "Text job warm, by the allocator of 2 workers",
        "allocator",
        results,
        ranged("tokens/s", "tokens_per_s", ",.0f"),
        against("by off", OFF, "tokens_per_s"),
        ranged("others s/M", "server_s_per_m", ".3f"),
        ranged("MiB", "peak_mib", ",.0f"),
    )


def _is_here(name: str) -> bool:
    try:
        prefer(name, Path())
    except InvalidRequest:
        return False
    return chosen() is not None


def _node(data: Path, name: str) -> dict[str, float]:
    with node({"text": job(data)}, workers=2, allocator=name) as (address, pid):
        watch = Watch(pid)
        found = in_child("text_penstock", address, pid)
        return {**found, "peak_mib": watch.end()}


if __name__ == "__main__":
    run()
