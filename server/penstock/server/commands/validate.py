"""`penstockd validate`: how the tables of a LeRobot folder are cut, and whether its videos fit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import click

from penstock.server.commands.say import say
from penstock.server.files.ranges import LOOKERS
from penstock.server.sources.frame_groups import RobotTables, TableGroups

SHOWN = 20


@click.command()
@click.argument("root")
@click.option(
    "--data-root", metavar="URL", help="Where data and videos lie, if not in ROOT: as in the job."
)
@click.option(
    "--files",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at so many tables, drawn by --seed; default: at all.",
)
@click.option("--seed", type=int, default=0, help="Which tables --files draws; default: 0.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
def validate(root: str, data_root: str | None, files: int | None, seed: int, as_json: bool) -> int:
    """Look at the row groups of a LeRobot folder's tables.

    ROOT is the folder or its URL. A frame costs the row group that it lies in: best is one for each episode. Names each table that
    is cut otherwise, with its numbers of row groups and episodes; then the exit status is 2.
    Tables that hold other frames than meta says are errors.

    \b
    Example:
      penstockd validate hf://datasets/OWNER/NAME --files 32
    """  # noqa: D301 - \b is for click
    tables = RobotTables(root, data_root)
    chosen = tables.sample(files, seed)
    with ThreadPoolExecutor(LOOKERS) as pool:
        found = list(pool.map(tables.look, chosen))
    others = [table for table in found if not table.is_apart]
    if as_json:
        say(json.dumps(_report(tables, found, others)))
    else:
        _print(root, tables, found, others)
    return 2 if others else 0


def _report(
    tables: RobotTables, found: list[TableGroups], others: list[TableGroups]
) -> dict[str, object]:
    return {
        "episodes": len(tables.meta.episodes),
        "tables": len(tables.files),
        "looked_at": len(found),
        "others": [
            {
                "file": table.name,
                "row_groups": len(table.groups),
                "episodes": len(table.episodes),
                "cut": table.cut,
            }
            for table in others
        ],
    }


def _print(
    root: str, tables: RobotTables, found: list[TableGroups], others: list[TableGroups]
) -> None:
    of = f"all {len(found)}" if len(found) == len(tables.files) else f"{len(found)} of "
    of += "" if len(found) == len(tables.files) else f"{len(tables.files)}"
    episodes = sum(len(table.episodes) for table in found)
    say(f"{root}: {of} tables looked at, {episodes:,} of {len(tables.meta.episodes):,} episodes")
    for table in others[:SHOWN]:
        cut = f", {table.cut} of them end within an episode" if table.cut else ""
        say(
            f"  {table.name}: {len(table.groups)} row groups for {len(table.episodes)} "
            f"episodes{cut}"
        )
    if len(others) > SHOWN:
        say(f"  and {len(others) - SHOWN:,} more")
    if others:
        say(
            f"{len(others):,} tables have other row groups than episodes: jobs read them, and "
            f"decode more than they need for a frame; penstockd reshard {root} TO writes them anew"
        )
    else:
        say("each episode has a row group of its own")
