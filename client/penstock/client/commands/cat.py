"""`penstock cat`: the batches of a job, one line each."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

from penstock.client.commands.common import (
    add_target,
    add_timeout,
    address_in,
    connected,
    natural,
    positive,
    print_json,
    say,
)
from penstock.client.commands.layout import cut, screen
from penstock.client.commands.text import load_decoder
from penstock.client.loader import Loader
from penstock.client.loop.steps import Batch
from penstock.common.batch_text import accounting_text, batch_text, headline, value_text
from penstock.wire.describe import batch_record, describe_values
from penstock.wire.errors import InvalidRequest, JobChanged
from penstock.wire.plain import plain

Show = Callable[[Batch], None]

TIMEOUT_S = 60.0
"""Shorter than a Loader's: a person waits, not a training run."""

DESCRIPTION = """\
Print the batches that one rank of a training run reads, one line per batch.
Without --group nothing is stored and reading starts at step 0; with --group and
without --from-* it starts at the group's cursor. It moves no cursor unless
--commit is given."""

EPILOG = """\
examples:
  the first three batches of a job:
    penstock cat 127.0.0.1:50051 code --count 3
  the same without a server, with its documents:
    penstock cat local:penstock.yaml code --count 3 --text
  what the run run-7 reads next, without disturbing it:
    penstock cat 127.0.0.1:50051 code --group run-7 --steps 1 --json"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cat",
        help="print the batches that a rank reads",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_target(parser)
    parser.add_argument("job", metavar="JOB", help="the name of a job of the node")
    who = parser.add_argument_group("who reads")
    who.add_argument("--group", metavar="NAME", help="the training run (default: none, ephemeral)")
    who.add_argument("--rank", type=natural, metavar="R", help="data-parallel rank (default: 0)")
    who.add_argument(
        "--world-size", type=positive, metavar="W", help="ranks; goes with --rank (default: 1)"
    )
    who.add_argument(
        "--batches-per-step",
        type=positive,
        metavar="G",
        help="batches of a step over all ranks (default: the group's, the job's, or W)",
    )
    who.add_argument(
        "--uneven",
        choices=("error", "fill"),
        default="error",
        help="fill: W need not divide G; a rank with fewer batches of a step gets a blanked one",
    )
    what = parser.add_argument_group("what is read")
    start = what.add_mutually_exclusive_group()
    start.add_argument("--from-step", type=natural, metavar="S", help="the first step")
    start.add_argument("--from-position", type=natural, metavar="P", help="the first position")
    length = what.add_mutually_exclusive_group()
    length.add_argument("--steps", type=natural, metavar="N", help="end after N steps")
    length.add_argument("--count", type=natural, metavar="N", help="end after N batches")
    what.add_argument(
        "--tail",
        choices=("pad", "drop"),
        default="pad",
        help="a last step that is not full: filled with blanked batches, or left out",
    )
    what.add_argument("--prefetch", type=positive, metavar="N", help=argparse.SUPPRESS)
    cursor = parser.add_argument_group("the cursor")
    cursor.add_argument(
        "--commit",
        action="store_true",
        help="read as a new attempt of the group, which fences off the one before, and commit this "
        "rank's row after every step that it has printed",
    )
    cursor.add_argument(
        "--attempt",
        metavar="TOKEN",
        help="with --commit: the attempt to join; the same for all ranks of it",
    )
    shape = parser.add_argument_group("how it is printed").add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="one JSON object per line")
    shape.add_argument("--text", action="store_true", help="documents with their seams")
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="with --text: a tokenizer.json to decode with",
    )
    add_timeout(parser, TIMEOUT_S)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print batches until the requested number, or the job's end, is reached."""
    _check(args)
    show, accounts = _printer(args), PrintedCounts()
    try:
        return _print(args, accounts.adding(show))
    finally:
        if not args.json:
            accounts.show()


def _print(args: argparse.Namespace, show: Show) -> int:
    with _loader(args) as loader:
        if args.steps == 0 or args.count == 0:
            return 0
        if args.count is not None and not args.commit:
            for done, batch in enumerate(loader, 1):
                show(batch)
                if done == args.count:
                    return 0
            _say_dropped(loader)
            return 0
        left = args.count
        for done, step in enumerate(loader.steps(), 1):
            for batch in step:
                show(batch)
                left = None if left is None else left - 1
                if left == 0:
                    break
            if args.commit:
                loader.commit()
            if left == 0 or done == args.steps:
                return 0
        _say_dropped(loader)
    return 0


def _say_dropped(loader: Loader) -> None:
    """Say what of the job's end was left out; to stderr, as stdout has one line per batch."""
    found = loader.stats()
    if found["dropped_batches"]:
        say(
            f"# the last {found['dropped_batches']:,} batches, with {found['dropped_samples']:,} "
            "samples, fill no step and were left out",
            error=True,
        )


def _check(args: argparse.Namespace) -> None:
    if (args.rank is None) != (args.world_size is None):
        raise InvalidRequest("--rank and --world-size go together: give both, or neither")
    if args.commit and args.group is None:
        raise InvalidRequest("--commit needs a group: add --group G")
    if args.attempt is not None and not args.commit:
        raise InvalidRequest("--attempt names an attempt that commits: add --commit")
    if args.commit and args.from_position is not None:
        raise InvalidRequest("a group's cursor is a step: with --commit use --from-step")
    if args.commit and (args.world_size or 1) > 1 and args.attempt is None:
        raise InvalidRequest(
            f"{args.world_size} ranks that commit belong to one attempt: add --attempt TOKEN, the "
            "same for all of them and another for every start"
        )
    if args.tokenizer is not None and not args.text:
        raise InvalidRequest("--tokenizer decodes what --text shows: add --text")


def _loader(args: argparse.Namespace) -> Loader:
    address = address_in(args)
    options: dict[str, Any] = {
        "tls": address.tls,
        "token": address.token,
        "rank": args.rank or 0,
        "world_size": args.world_size or 1,
        "batches_per_step": args.batches_per_step,
        "prefetch": args.prefetch,
        "tail": args.tail,
        "uneven": args.uneven,
        "deadline_s": args.timeout,
        "as_numpy": True,
    }
    start: Any = args.from_step
    if args.commit:
        return Loader(
            args.target,
            args.job,
            group=args.group,
            attempt=args.attempt,
            start="cursor" if start is None else start,
            **options,
        )
    if args.group is not None:
        # Without a group: reading does not affect the group's own readers.
        with connected(address, args.job, args.timeout) as control:
            (group,) = control.groups(args.group)
            log_id = control.describe().log_id
        if group.log_id != log_id:
            raise JobChanged(
                f"group {args.group!r} stands at step {group.cursor} of log "
                f"{group.log_id.hex()[:12]}, and job {args.job!r} is log {log_id.hex()[:12]} now: "
                "leave --group out to look at the job as it is, or serve it as it was",
                log_id=log_id.hex(),
                expected=group.log_id.hex(),
            )
        options["batches_per_step"] = args.batches_per_step or int(group.batches_per_step)
        if start is None:
            start = int(group.cursor)
    loader = Loader(args.target, args.job, start=start or 0, **options)
    if args.from_position is not None:
        loader.seek(position=args.from_position)
    return loader


def _printer(args: argparse.Namespace) -> Show:
    if args.json:
        return _show_json
    if args.text:
        decode = None if args.tokenizer is None else load_decoder(args.tokenizer)
        return lambda batch: say(f"{line(batch)}\n{batch_text(batch, decode)}")
    shown: set[tuple[Any, ...]] = set()

    def show(batch: Batch) -> None:
        values = describe_values(batch.header)
        # Not for each shape: packed rows hold another number of documents in every batch.
        kind = tuple(
            (name, value["kind"], value["dtype"], len(value["shape"]))
            for name, value in values.items()
        )
        if kind not in shown:
            shown.add(kind)
            # stdout has one line per batch, for scripts
            say(f"# {', '.join(starmap(value_text, values.items()))}", error=True)
        text, size = line(batch), screen()
        # One line for each batch, on a terminal too: what does not fit is in --json.
        say(text if size is None else cut(plain(text), size[0]))

    return show


def _show_json(batch: Batch) -> None:
    print_json(batch_record(batch.header, batch.body, batch.step))


class PrintedCounts:
    """Adds up what was drawn, left out and cut on the way to the batches that were printed."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()

    def adding(self, show: Show) -> Show:
        """Return what shows a batch and adds what it bears."""

        def added(batch: Batch) -> None:
            show(batch)
            self.sums.update({count.name: count.value for count in batch.header.accounting})

        return added

    def show(self) -> None:
        """Say the sums on stderr, if there is more than draws: stdout has a line per batch."""
        if set(self.sums) - {"drawn"}:
            say(f"# in all: {accounting_text(dict(sorted(self.sums.items())))}", error=True)


def line(batch: Batch) -> str:
    """Return one line about a batch, for people."""
    record = batch_record(batch.header, batch.body, batch.step)
    return headline(record, padding=batch.is_padding)
