"""A training script as a rank: it saves states as a checkpoint would, and loads them.

It takes the arguments of `penstock cat --commit`, prints the same lines, and leaves nodes as soon
as `hasty_rank` does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from fault.hasty_rank import hurry
from penstock.client import Loader
from penstock.wire.describe import batch_record
from penstock.wire.errors import PenstockError

SAVE_EVERY = 3
"""A state is saved at so many steps: what a run goes back to is rarely where it stands."""


class Trainer:
    """Reads steps, saves states and commits, until it is killed.

    Args:
        args: Of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._folder = args, Path(args.states)
        self._done_moves = 0
        self._loader = Loader(
            args.target,
            args.job,
            group=args.group,
            attempt=args.attempt,
            rank=args.rank,
            world_size=args.world_size,
            batches_per_step=args.batches_per_step,
            start="state" if args.state else "cursor",
            deadline_s=args.timeout,
            as_numpy=True,
        )
        if args.state:
            self._loader.load_state_dict(json.loads(Path(args.state).read_text()))

    def run(self) -> None:
        """Train until something raises."""
        with self._loader as loader:
            steps = iter(loader.steps())
            while True:
                if self._moves(loader.state_dict()["step"]):
                    steps = iter(loader.steps())
                for batch in next(steps):
                    _say(batch_record(batch.header, batch.body, batch.step))
                state = loader.state_dict()
                if self._args.rank == 0 and state["step"] % SAVE_EVERY == 0:
                    _put(self._folder / f"step-{state['step']}.json", state)
                loader.commit()

    def _moves(self, step: int) -> bool:
        """Load a state with all other ranks, where an operator wants it at this step."""
        wanted = self._folder / f"{self._args.attempt}.move-{self._done_moves + 1}"
        try:
            move = json.loads(wanted.read_text())
        except FileNotFoundError:
            return False
        if step < move["at"]:
            return False
        # Ranks of a training run are at one step: they wait for each other, as a collective does.
        # Each move has files of its own: with those of the one before nobody would wait.
        _put(wanted.with_name(f"{wanted.name}.rank-{self._args.rank}"), step)
        while len(list(self._folder.glob(f"{wanted.name}.rank-*"))) < self._args.world_size:
            time.sleep(0.01)
        self._done_moves += 1
        self._loader.load_state_dict(move["state"])
        _say({"moved_to": move["state"]["step"]})
        return True


def _say(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)  # noqa: T201


def _put(path: Path, value: Any) -> None:
    """Write a file that is there as a whole, or not."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)


def main() -> int:
    """Run, and say what ended it, as `penstock cat` does."""
    parser = argparse.ArgumentParser()
    for name in ("cat", "target", "job"):
        parser.add_argument(name)
    for name in ("--group", "--attempt", "--states", "--state"):
        parser.add_argument(name)
    for name in ("--rank", "--world-size", "--batches-per-step"):
        parser.add_argument(name, type=int)
    parser.add_argument("--timeout", type=float)
    for name in ("--json", "--commit"):
        parser.add_argument(name, action="store_true")
    args = parser.parse_args()
    hurry()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        with contextlib.suppress(KeyboardInterrupt):
            Trainer(args).run()
    except PenstockError as error:
        print(f"error: {error} [{error.code}]", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
