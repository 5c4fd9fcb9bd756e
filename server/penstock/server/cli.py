"""`penstockd`: what nodes, jobs, data and stores are managed by; `common.programs` lists it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock.server.process.environment import fix_this_process

COMPUTING = frozenset({"serve", "check", "show", "index", "plan", "size"})
"""Commands that compute batches or log ids: they run in the environment of the workers."""

MEASURING = frozenset({"check", "size"})
"""Those that say how fast a worker is: they have its allocator, too."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 = it did what was asked, 2 = something is wrong, 130 = Ctrl-C."""
    try:
        status = _main(arguments)
    except KeyboardInterrupt:  # while what a command needs was imported
        sys.stderr.write("penstockd: stopped\n")
        sys.exit(130)
    if arguments is None and sys.argv[1:2] == ["serve"]:
        _end_at_once(status)
    sys.exit(status)


def _main(arguments: Sequence[str] | None) -> int:
    computing = arguments is None and bool(COMPUTING.intersection(sys.argv[1:2]))
    if computing:
        # First, as it may start this program again: what was imported before is imported twice.
        fix_this_process(measures=sys.argv[1] in MEASURING)
        if sys.argv[1] == "serve":
            from penstock.server.process.garbage import collect_seldom

            collect_seldom()  # until the node is ready
    from penstock.server.process.extra import require_server
    from penstock.wire.errors import MissingExtra

    try:
        require_server("penstockd")
    except MissingExtra as error:  # without the packages that print for all other errors
        sys.stderr.write(f"penstockd: error: {error.message} [{error.code}]\n")
        return 2
    if not computing:
        return run(arguments)
    from penstock.server.usercode.contained import exits_are_errors

    with exits_are_errors():
        return run(arguments)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command in this process, in the environment that it has, and return its exit status."""
    # Here and not above: what they import reads the environment, which `main` may have to change.
    import click

    from penstock.server.commands.error_text import report
    from penstock.server.commands.group import cli
    from penstock.server.commands.say import say
    from penstock.server.usercode.contained import escaped
    from penstock.server.usercode.frames import error_line, user_line, user_traceback
    from penstock.wire.errors import InvalidJob, PenstockError

    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="penstockd",
            standalone_mode=False,
        )
    except PenstockError as error:
        report(error)
        return 2
    except click.ClickException as error:
        say(f"penstockd: error: {error.format_message()} [usage]", error=True)
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"  for help: {error.ctx.command_path} --help", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("penstockd: stopped", err=True)
        return 130
    except SystemExit as error:
        # No command ends so: it is code that a job names, and its status may be 0.
        line = user_line(error)
        report(
            InvalidJob(
                f"code that a job names raised {error_line(escaped(error))}"
                + (f" ({line})" if line else ""),
                traceback=user_traceback(error),
            )
        )
        return 2
    return result if isinstance(result, int) else 0


def _end_at_once(status: int) -> NoReturn:
    """End this process without taking the interpreter down.

    A node has closed all that lasts by now, and its end was promised within `drain_seconds`; taking
    down the interpreter frees memory that the kernel frees anyway, and takes 0.2 s, or 2 s on a
    busy machine.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
