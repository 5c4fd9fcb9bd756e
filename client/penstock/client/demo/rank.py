"""A trainer rank of the demo: reads its batches, and records what it got.

`python -m penstock.client.demo.rank TARGET JOB ...` uses only the public Loader. It
prints one JSON object per line: `started`, `batch` (the object of `penstock cat --json` and how the
rank fares), `finished` (a step whose end was committed). With `--lockstep` it prints `done` at the
end of a step and waits for a line on standard input: what the all-reduce of a real run does.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from penstock.client.loader import Loader
from penstock.wire.describe import batch_record
from penstock.wire.errors import PenstockError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read as one rank until a step, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m penstock.client.demo.rank")
    parser.add_argument("target")
    parser.add_argument("job")
    parser.add_argument("--group")
    parser.add_argument("--attempt")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--batches-per-step", type=int, required=True)
    parser.add_argument("--until-step", type=int, required=True, help="the first not to be read")
    parser.add_argument("--lockstep", action="store_true")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        return read(options)
    except PenstockError as error:
        sys.stderr.write(f"penstock: error: {error} [{error.code}]\n")
        return 1


def read(options: argparse.Namespace) -> int:
    """Read, record, commit: the loop of a training script."""
    with Loader(
        options.target,
        options.job,
        group=options.group,
        attempt=options.attempt,
        rank=options.rank,
        world_size=options.world_size,
        batches_per_step=options.batches_per_step,
        deadline_s=options.deadline,
        as_numpy=True,
    ) as loader:
        start = loader.state_dict()["step"]
        say("started", step=start, log_id=loader.state_dict()["log_id"])
        if start >= options.until_step:
            return 0
        for step in loader.steps():
            for batch in step:
                found = loader.stats()
                say(
                    "batch",
                    **batch_record(batch.header, batch.body, batch.step),
                    micro=batch.micro,
                    wait_share=round(found["wait_share"], 4),
                    tokens_per_s=round(found["tokens_per_s"], 1),
                    reconnects=found["reconnects"],
                )
            if options.lockstep:
                say("done", step=step.index)
                if not sys.stdin.readline():  # the process that started this rank has gone
                    return 1
            if options.group is not None:
                say("finished", step=step.index, cursor=loader.commit())
            if step.index + 1 >= options.until_step:
                return 0
    say("ended")
    return 0


def say(event: str, **fields: Any) -> None:
    """Write one line at once: what was delivered must be on record if this process is killed."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())


__all__ = ["main", "read", "say"]
