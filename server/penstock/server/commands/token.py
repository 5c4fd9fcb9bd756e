"""`penstockd token`: make a token, and look at a file of them."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from pathlib import Path

import click

from penstock.server.access.caller import INCLUDED
from penstock.server.access.callers import PREFIX, callers_in, hash_of
from penstock.server.commands.say import say
from penstock.wire.errors import InvalidRequest


@click.group()
def token() -> None:
    """Make tokens that let clients in, and look at a file of them.

    The job file names the file: `server: {tokens: tokens.yaml}`. Nodes read it again when it
    changes.
    """


@token.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(list(INCLUDED)),
    help="What it may do; may be given several times. Default: read.",
)
@click.option("--job", "jobs", multiple=True, metavar="PATTERN", help="The jobs; default all.")
@click.option("--group", "groups", multiple=True, metavar="PATTERN", help="The groups; likewise.")
@click.option("--expires", metavar="YYYY-MM-DD", help="Its last day. Default: for ever.")
@click.option("--certificate", metavar="NAME", help="Let in who has this name in its certificate.")
def new(
    file: Path,
    name: str,
    scopes: tuple[str, ...],
    jobs: tuple[str, ...],
    groups: tuple[str, ...],
    expires: str | None,
    certificate: str | None,
) -> None:
    """Add a token to FILE, and print it, this once.

    FILE gets its hash, and is made if it is not there.

    \b
    Example:
      penstockd token new tokens.yaml run-7 --scope commit --job code --group 'run-7*'
    """  # noqa: D301 - \b is for click
    made = PREFIX + secrets.token_urlsafe(32)
    entry: dict[str, object] = {"name": name}
    if certificate is None:
        entry["sha256"] = hash_of(made)
    else:
        entry["certificate"] = certificate
    entry["scopes"] = list(scopes or ("read",))
    limits = {"jobs": list(jobs), "groups": list(groups), "expires": expires}
    entry |= {key: given for key, given in limits.items() if given}
    _append(file, entry)
    if certificate is None:
        click.echo(made)
    say(f"{name} is in {file}: {', '.join(scopes or ('read',))}", error=True)


@token.command(name="list")
@click.argument("file", type=click.Path(path_type=Path))
def show(file: Path) -> None:
    """Print who is in FILE, and what it may do there."""
    for shown, caller in callers_in(file):
        ends = "" if caller.ends is None else f", until {caller.ends:%Y-%m-%d} 00:00 UTC"
        say(
            f"{caller.name}: {caller.shown_scopes}; jobs {', '.join(caller.jobs)}; "
            f"groups {', '.join(caller.groups)}; {shown}{ends}"
        )


def _append(file: Path, entry: dict[str, object]) -> None:
    """Add an entry to a file, at once; what is there stays as it was written.

    Raises:
        InvalidJob: The file, or the new entry, is wrong: nothing was written.
        InvalidRequest: The file cannot be written.
    """
    try:
        before = file.read_text() if file.exists() else "tokens:\n"
        if not before.endswith("\n"):
            before += "\n"
        if before.strip() in ("tokens: []", "tokens: [ ]"):
            before = "tokens:\n"
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o640
        # A list of JSON's values is one of YAML's.
        text = before + "- {" + ", ".join(f"{k}: {json.dumps(v)}" for k, v in entry.items()) + "}\n"
        with tempfile.TemporaryDirectory(dir=file.absolute().parent) as folder:
            fresh = Path(folder) / file.name
            fresh.write_text(text)
            list(callers_in(fresh))
            os.chmod(fresh, mode)
            os.replace(fresh, file)
    except OSError as error:
        raise InvalidRequest(
            f"{file} cannot be written: {error.strerror or error}", field="file", value=str(file)
        ) from error
