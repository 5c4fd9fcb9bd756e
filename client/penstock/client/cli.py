"""The `penstock` command: look at a job, its cursors and its node from the reader's side."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from penstock.common.malloc import keep_memory
from penstock.common.programs import COMMANDS, unknown_command
from penstock.common.terminal import columns_of, folded
from penstock.wire.errors import PenstockError
from penstock.wire.plain import plain, plain_lines

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

DESCRIPTION = """\
Look at training data the way a trainer sees it.

TARGET is where loader nodes listen: host:port or unix:/path, several of them
with commas between, dns:///name:port (all addresses of a name) or file:FILE
(one address a line); or a job file to be read without a server: local:FILE (in
a process beside this one) or spawn:FILE (a node of its own)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 = it did what was asked, 1 = it failed, 2 = a mistake in the call, 130 = Ctrl-C.
    """
    try:
        return _run(argv)
    except KeyboardInterrupt:
        print("penstock: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    given = list(sys.argv[1:] if argv is None else argv)
    if not given:  # nothing was asked: say what can be
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    check_command(parser, given)
    args = parser.parse_args(given)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("penstock: %(message)s"))
    level = logging.INFO if args.verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    keep_memory()
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except PenstockError as error:
        for frames in getattr(error, "__notes__", ()):  # those of the user's own code
            _complain(plain_lines(frames.rstrip("\n")))
        _complain(f"penstock: error: {_one_line(error.message)} [{plain(error.code)}]")
        return EXIT_USAGE if error.status == "INVALID_ARGUMENT" else EXIT_FAILED
    except BrokenPipeError:
        # Whoever read our output has enough. Python would complain at exit when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(text: str) -> None:
    print(folded(text, columns_of(sys.stderr)), file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes end as all others do: one sentence, and a code.

    It takes no abbreviations, as `penstockd` takes none: `cat --step 12` would read 12 steps, where
    `penstockd show --step 12` shows step 12.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Print a mistake in the call and exit."""
        self.exit(
            EXIT_USAGE,
            folded(f"penstock: error: {_one_line(message)} [usage]", columns_of(sys.stderr))
            + f"\n  for help: {self.prog} --help\n",
        )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command."""
    parser = _Parser(
        prog="penstock",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {installed_version()}")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="say more on stderr: ranks, cursors, breaks"
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS["penstock"]:
        importlib.import_module(f"penstock.client.commands.{name}").add_parser(subparsers)
    return parser


def check_command(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Exit with a sentence where the command is one of `penstockd`, or none at all."""
    # No option before the command takes a value.
    at = next((index for index, word in enumerate(given) if not word.startswith("-")), None)
    if at is not None and given[at] not in COMMANDS["penstock"]:
        parser.error(unknown_command("penstock", given[at], given[at + 1 :]))


def installed_version() -> str:
    """Return the version of the installed distribution."""
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"


def _one_line(message: str) -> str:
    return plain(" ".join(message.split()))


class _Formatter(logging.Formatter):
    """Lines for a terminal: what they quote of a node's words does nothing there."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return folded(plain_lines(super().format(record)), columns_of(sys.stderr))


if __name__ == "__main__":
    sys.exit(main())
