"""`penstockd`: serve, init, check, show, index, plan, size, schema."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from penstock.server.environment import fix_this_process

COMPUTING = frozenset({"serve", "check", "show", "index", "plan", "size"})
"""Commands that compute batches or log ids: they run in the environment of the workers."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 when it did what was asked, 2 when something is wrong."""
    if arguments is None and COMPUTING.intersection(sys.argv[1:2]):
        fix_this_process()
        # Here and not above, as in `run`.
        from penstock.server.usercode.contained import exits_are_errors

        with exits_are_errors():
            status = run(arguments)
    else:
        status = run(arguments)
    if arguments is None and sys.argv[1:2] == ["serve"]:
        _end_at_once(status)
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command in this process, in the environment that it has, and return its exit status."""
    # Here and not above: what they import reads the environment, which `main` may have to change.
    import click

    from penstock.server.commands.group import cli
    from penstock.server.commands.report import report
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


__all__ = ["main", "run"]

if __name__ == "__main__":
    main()
