"""Run by `helm test`: read 8 batches of every job from a node, and compute them again without it.

compare.py ADDRESS FILE
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence

from penstock.client.cli import main as penstock
from penstock.server.cli import run as penstockd
from penstock.server.jobs.load import load

COUNT = 8


def printed(command: Callable[[Sequence[str]], int], *arguments: str) -> list[dict[str, object]]:
    """Return the JSON lines that a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = command(arguments)
    if status:
        sys.exit(f"FAILED: {' '.join(arguments)}: exit status {status}")
    return [json.loads(line) for line in out.getvalue().splitlines()]


def main(address: str, file: str) -> None:
    """Compare every job of the file."""
    jobs = list(load(file, environ={}).jobs)
    count = str(COUNT)
    served = {
        job: printed(penstock, "cat", address, job, "--count", count, "--json") for job in jobs
    }
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # for clients: penstockd would take it for a setting
    for job, batches in served.items():
        for batch in batches:
            position = str(batch["position"])
            [computed] = printed(penstockd, "show", file, job, "--position", position, "--json")
            if batch["digest"] != computed["digest"]:
                sys.exit(f"FAILED: {job}, position {position}: {batch} is not {computed}")
        sys.stdout.write(f"ok: {job}: {len(batches)} batches are those that are computed alone\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
