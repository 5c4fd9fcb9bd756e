"""`penstockd validate`: how the tables of a LeRobot folder are cut, and whether its videos fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import click

from penstock.server.commands.say import say
from penstock.server.files.ranges import LOOKERS
from penstock.server.sources.frame_groups import RobotTables, TableGroups
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.robot_videos import FolderFault, RobotVideos
from penstock.wire.errors import InvalidJob

SHOWN = 20


class _FolderReport(NamedTuple):
    """What was looked at, and what of it is not as it should be."""

    tables: int
    looked: list[TableGroups]
    table_faults: list[FolderFault]
    videos: int
    faults: list[FolderFault]
    episodes: int

    @property
    def others(self) -> list[TableGroups]:
        """Return the tables whose row groups are not episodes."""
        return [table for table in self.looked if not table.is_apart]


@click.command()
@click.argument("root")
@click.option(
    "--data-root", metavar="URL", help="Where data and videos lie, if not in ROOT: as in the job."
)
@click.option("--video-root", metavar="URL", help="Where videos lie, if elsewhere: as in the job.")
@click.option(
    "--files",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at so many tables, drawn by --seed, and their videos; default: at all.",
)
@click.option("--seed", type=int, default=0, help="Which tables --files draws; default: 0.")
@click.option("--no-videos", is_flag=True, help="Look at no videos.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
def validate(
    root: str,
    data_root: str | None,
    video_root: str | None,
    files: int | None,
    seed: int,
    no_videos: bool,
    as_json: bool,
) -> int:
    """Look at the row groups and videos of a LeRobot folder.

    ROOT is the folder or its URL. A frame costs the row group that it lies in: best is one for each
    episode. Names each table that is cut otherwise, with its numbers of row groups and episodes,
    and each video that lacks frames of its episodes, by an index of the file; then the exit status
    is 2. So are tables that are missing, damaged, or hold other frames than meta says.

    \b
    Example:
      penstockd validate hf://datasets/OWNER/NAME --files 32
    """  # noqa: D301 - \b is for click
    tables = RobotTables(root, data_root)
    chosen = tables.sample(files, seed)
    with ThreadPoolExecutor(LOOKERS) as pool:
        said = list(pool.map(partial(_look, tables), chosen))
        faults: list[FolderFault] = []
        videos = 0
        if not no_videos:
            episodes = tables.episodes_in(chosen)
            shown = RobotVideos(tables.meta, episodes, video_root or data_root or root)
            videos = len(shown.names)
            faults = [fault for fault in pool.map(shown.look, shown.names) if fault is not None]
    looked = [table for table in said if isinstance(table, TableGroups)]
    table_faults = [FolderFault(tables.name(name), "is not there") for name in tables.lacking]
    table_faults += [fault for fault in said if isinstance(fault, FolderFault)]
    found = _FolderReport(
        len(tables.files) + len(tables.lacking),
        looked,
        table_faults,
        videos,
        faults,
        len(tables.meta.episodes),
    )
    if as_json:
        say(json.dumps(_report(found)))
    else:
        _print(root, found)
    return 2 if found.others or table_faults or faults else 0


def _look(tables: RobotTables, file: DataFile) -> TableGroups | FolderFault:
    """Return how a table is cut, or what is wrong with it: others are looked at all the same."""
    try:
        return tables.look(file)
    except InvalidJob as error:
        return FolderFault(tables.name(file.name), error.message)


def _report(found: _FolderReport) -> dict[str, object]:
    return {
        "episodes": found.episodes,
        "tables": found.tables,
        "looked_at": len(found.looked),
        "others": [
            {
                "file": table.name,
                "row_groups": len(table.groups),
                "episodes": len(table.episodes),
                "cut": table.cut,
            }
            for table in found.others
        ],
        "videos": found.videos,
        "faults": [fault._asdict() for fault in (*found.table_faults, *found.faults)],
    }


def _print(root: str, found: _FolderReport) -> None:
    looked, all_tables = len(found.looked), found.tables
    of = f"all {looked}" if looked == all_tables else f"{looked} of {all_tables}"
    episodes = sum(len(table.episodes) for table in found.looked)
    say(f"{root}: {of} tables looked at, {episodes:,} of {found.episodes:,} episodes")
    for table in found.others[:SHOWN]:
        cut = f", {table.cut} of them end within an episode" if table.cut else ""
        say(
            f"  {table.name}: {len(table.groups)} row groups for {len(table.episodes)} "
            f"episodes{cut}"
        )
    _print_more(len(found.others))
    if found.others:
        say(
            f"{len(found.others):,} tables have other row groups than episodes: jobs read them, "
            f"and decode more than they need for a frame; penstockd reshard {root} TO writes them "
            "anew"
        )
    elif found.looked and not found.table_faults:
        say("each episode has a row group of its own")
    _print_faults(
        found.table_faults,
        f"of {all_tables:,} tables cannot be read: copy them again, or leave their episodes out "
        "with episodes",
    )
    _print_faults(
        found.faults,
        f"of {found.videos:,} videos do not hold their episodes' frames: copy them again, or leave "
        "the episodes out with episodes",
    )
    if found.videos and not found.faults:
        say(f"all {found.videos:,} videos hold their episodes' frames")


def _print_faults(faults: Sequence[FolderFault], what_to_do: str) -> None:
    for fault in faults[:SHOWN]:
        say(f"  {fault.name}: {fault.said}")
    _print_more(len(faults))
    if faults:
        say(f"{len(faults):,} {what_to_do}")


def _print_more(count: int) -> None:
    if count > SHOWN:
        say(f"  and {count - SHOWN:,} more")
