"""`penstockd store`: move a store to another place, and bring it up to a newer format."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from penstock.server.commands.say import say
from penstock.server.store import SqliteStore, open_store, refuse_password
from penstock.wire.errors import InvalidRequest


@click.group()
def store() -> None:
    """Move a store to another place, or bring it up to a newer format.

    A store is named by its URL, as in the job file; relative paths start from this folder.
    Passwords of PostgreSQL come from PGPASSFILE, ?passfile=FILE or ?service=NAME, never from
    arguments.
    """


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
def copy(source: str, target: str) -> None:
    """Copy the store FROM to TO, with its identity.

    Cursors, checkpoints and states of runs hold there as they did. All of it is copied, or nothing.
    FROM stays as it is: serve it no more. Nodes are stopped first; a SQLite file that one has open
    is refused.

    \b
    Example:
      penstockd store copy sqlite:///penstock.db postgresql://penstock@db/penstock
    """  # noqa: D301 - \b is for click
    from penstock.server.store.store_copy import copy as copy_store

    refuse_password(source)
    refuse_password(target)
    counts = asyncio.run(copy_store(source, target, Path.cwd()))
    place = open_store(target, Path.cwd()).where
    say(
        f"copied to {place}: {counts['groups']:,} groups, {counts['checkpoints']:,} checkpoints, "
        f"{counts['verdicts']:,} verdicts, {counts['snapshots']:,} snapshots"
    )


@store.command()
@click.argument("url", metavar="STORE")
def upgrade(url: str) -> None:
    """Bring STORE up to the format of this version.

    Nodes of a newer version refuse a PostgreSQL store of an older format until this is done; those
    of the older version go on beside. A SQLite file is brought up by the node that opens it, too.
    """
    refuse_password(url)
    found = open_store(url, Path.cwd())
    if isinstance(found, SqliteStore):
        if not found.path.exists():
            raise InvalidRequest(f"there is no store {found.where}: name one that is there")

        async def open_once() -> None:
            try:
                await found.open()
            finally:
                await found.close()

        asyncio.run(open_once())
        say(f"{found.where} has the format of this version")
        return
    from penstock.server.store.postgres import PostgresStore
    from penstock.server.store.postgres_opening import upgrade as upgrade_store

    assert isinstance(found, PostgresStore)
    before, after = asyncio.run(upgrade_store(found.place))
    if before == after:
        say(f"{found.where} has format {after}, that of this version")
    else:
        say(f"{found.where} had format {before}, and has format {after} now")
