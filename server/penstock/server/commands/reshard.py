"""`penstockd reshard`: the tables of a LeRobot folder, with a row group for each episode."""

from __future__ import annotations

import time

import click

from penstock.server.commands.say import say
from penstock.server.sources.frame_groups import RobotTables
from penstock.server.sources.resharding import Resharding

_EVERY_S = 10.0


@click.command()
@click.argument("root")
@click.argument("target", metavar="TO")
@click.option(
    "--data-root", metavar="URL", help="Where data and videos lie, if not in ROOT: as in the job."
)
def reshard(root: str, target: str, data_root: str | None) -> None:
    """Write a LeRobot folder's tables, a row group per episode.

    ROOT is the folder or its URL, TO the folder to write. Rows, columns and types stay as they are,
    and are compared after writing. Videos are not copied: the job names their folder by video_root.
    With ROOT as TO the tables are replaced in their places, one after another, which no job may be
    reading then.

    If it is killed, the same command goes on with the tables that are not written.

    \b
    Example:
      penstockd reshard hf://datasets/OWNER/NAME robots
    """  # noqa: D301 - \b is for click
    tables = RobotTables(root, data_root)
    tables.check_all_there()
    work = Resharding(tables, data_root or root, target)
    written, said = 0, time.monotonic()
    for number, file in enumerate(tables.files, start=1):
        written += work.write(file)
        if time.monotonic() - said > _EVERY_S:
            say(f"{number:,} of {len(tables.files):,} tables", error=True)
            said = time.monotonic()
    work.finish()
    done = len(tables.files) - written
    more = f"; {done:,} were so already" if done else ""
    say(f"{written:,} tables written to {target}{more}")
    if not work.is_in_place:
        videos = data_root or root
        say(f"in the job: source: {{type: lerobot, root: {target}, video_root: {videos}}}")
