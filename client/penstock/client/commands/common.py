"""What several commands share: arguments, and a connection for short calls."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.client.calls.control import Control
from penstock.client.calls.node_address import TOKEN, Address, address_of
from penstock.client.nodes.target_nodes import TargetNodes, open_nodes
from penstock.common.terminal import columns_of, folded
from penstock.wire.order import MAX_POSITION
from penstock.wire.plain import plain_lines

TIMEOUT_S = 10.0


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the TARGET argument."""
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="nodes: host:port or unix:/path, several with commas between, dns:///name:port or "
        "file:FILE; or a job file: local:FILE or spawn:FILE",
    )
    shown = parser.add_argument_group(
        "what the node is shown", "each has a variable, such as PENSTOCK_TLS_CA"
    )
    for name, meaning in (
        ("tls-ca", "who signs nodes' certificates: with it TLS is spoken; `system` = public ones"),
        ("tls-cert", "this client's certificate, for nodes that ask for one"),
        ("tls-key", "its key"),
        ("token-file", "a file that holds a token"),
    ):
        shown.add_argument(f"--{name}", metavar="FILE", help=meaning)
    shown.add_argument(
        "--tls-name", metavar="NAME", help="the name in the node's certificate, if not TARGET's"
    )


def address_in(args: argparse.Namespace) -> Address:
    """Return the node that a command names, with what it is shown; flags override variables.

    Raises:
        InvalidRequest: See `address_of`.
    """
    names = ("tls_ca", "tls_cert", "tls_key", "tls_name", "token_file")
    given = {f"PENSTOCK_{name.upper()}": found for name in names if (found := getattr(args, name))}
    kept = {
        name: value for name, value in os.environ.items() if name != TOKEN or not args.token_file
    }
    return address_of(args.target, environ={**kept, **given})


def add_timeout(parser: argparse.ArgumentParser, default_s: float = TIMEOUT_S) -> None:
    """Add --timeout."""
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=default_s,
        metavar="SECONDS",
        help="give up when there is no answer for this long (default: %(default)g)",
    )


Action = Callable[[Control, argparse.Namespace], int]
"""Carries out an action of a command; returns the exit status."""


class Actions:
    """A command about one job that has actions, such as `penstock cursors TARGET JOB list`.

    Options of the command may stand before and after the action. Without one it is `list`.

    Args:
        subparsers: Of the whole command line.
        command: The command's name.
        help_text: Its line in the list of commands.
        description: What its own help begins with.
        asks_all: Its calls begin when every node has answered, or has not.
    """

    def __init__(
        self,
        subparsers: Any,
        command: str,
        *,
        help_text: str,
        description: str,
        asks_all: bool = False,
    ) -> None:
        self._asks_all = asks_all
        self._parser: argparse.ArgumentParser = subparsers.add_parser(
            command, help=help_text, description=description
        )
        add_target(self._parser)
        self._parser.add_argument("job", metavar="JOB", help="the name of a job of the node")
        self._after = argparse.ArgumentParser(add_help=False)
        add_timeout(self._parser)
        self._after.add_argument(
            "--timeout", type=positive_seconds, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        self.option("--json", action="store_true", help="print JSON")
        self._actions = self._parser.add_subparsers(
            title="actions", metavar="ACTION", dest="action", required=False
        )
        self._runs: dict[str, Action] = {}
        self._parser.set_defaults(run=self._run)

    def option(self, flag: str, **settings: Any) -> None:
        """Add an option that may stand before the action or after it; before `add`."""
        self._parser.add_argument(flag, **settings)
        self._after.add_argument(flag, **{**settings, "default": argparse.SUPPRESS})

    def add(self, name: str, help_text: str, run: Action) -> argparse.ArgumentParser:
        """Add an action; return its parser, for arguments of its own."""
        self._runs[name] = run
        found: argparse.ArgumentParser = self._actions.add_parser(
            name,
            help=help_text,
            description=help_text[:1].upper() + help_text[1:] + ".",
            parents=[self._after],
        )
        return found

    def _run(self, args: argparse.Namespace) -> int:
        args.action = args.action or "list"
        address, asks_all = address_in(args), self._asks_all
        with connected(address, args.job, args.timeout, grouped=True, asks_all=asks_all) as control:
            return self._runs[args.action](control, args)


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def natural(text: str) -> int:
    """Parse an integer from 0, for argparse."""
    return _at_least(0, text)


def positive(text: str) -> int:
    """Parse an integer from 1, for argparse."""
    return _at_least(1, text)


def _at_least(minimum: int, text: str) -> int:
    try:
        value = int(text.replace("_", "").replace(",", ""))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    if value < minimum:
        raise argparse.ArgumentTypeError(f"{text} is below {minimum}")
    if value > MAX_POSITION:
        raise argparse.ArgumentTypeError(f"{text} is above {MAX_POSITION}")
    return value


@contextmanager
def connected(
    address: Address,
    job: str,
    timeout_s: float,
    *,
    grouped: bool = False,
    asks_all: bool = False,
) -> Iterator[Control]:
    """Give the short calls about `job` at any of the nodes, and close the connections after."""
    nodes = open_nodes(address, job, grouped=grouped)
    try:
        if asks_all and isinstance(nodes, TargetNodes):
            nodes.wait_asked(timeout_s)
        yield Control(nodes.ways, job, address.text, timeout_s)
    finally:
        nodes.close()


def print_json(value: Any) -> None:
    """Print one JSON value on one line, at once: scripts read line by line."""
    print(json.dumps(value), flush=True)


def say(text: str, *, error: bool = False) -> None:
    """Print lines for people on stdout, or on stderr, at once, without control characters.

    Long lines are broken between words, where a terminal shows them.
    """
    stream = sys.stderr if error else sys.stdout
    print(folded(plain_lines(text), columns_of(stream)), file=stream, flush=True)


def counted(number: int, noun: str) -> str:
    """Return `1 lane`, `3 lanes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def bytes_text(nbytes: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
