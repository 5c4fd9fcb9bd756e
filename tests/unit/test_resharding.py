"""`validate` names tables whose row groups are not episodes; `reshard` writes the rows anew."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness
from penstock.server.sources import LerobotSource
from penstock.server.sources.frame_groups import RobotTables
from penstock.server.sources.resharding import Resharding
from penstock.wire.errors import InvalidJob
from robots import CAMERAS, RobotFolder, video_writer

LENGTHS = (7, 4, 9, 1, 6)


def tables(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("*.parquet"))


def rows_of(root: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in tables(root))


def groups_of(root: Path) -> list[int]:
    files = [pq.ParquetFile(path).metadata for path in tables(root)]
    return [file.row_group(n).num_rows for file in files for n in range(file.num_row_groups)]


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
@pytest.mark.parametrize("group_rows", [None, 1, 4])
@pytest.mark.parametrize("is_in_place", [True, False])
def test_every_episode_gets_a_row_group_and_rows_stay(
    tmp_path: Path, layout: str, group_rows: int | None, is_in_place: bool
) -> None:
    """Rows, columns, types, compression and items; a second run writes nothing."""
    robots = RobotFolder(LENGTHS, layout, group_rows=group_rows, compression="zstd")
    root = robots.write(tmp_path / "robots")
    before, items = rows_of(root), _actions(root)
    target = root if is_in_place else tmp_path / "apart"

    harness.call_command("penstockd", "reshard", str(root), str(target))

    assert groups_of(target) == list(LENGTHS)
    assert rows_of(target).equals(before)
    column = pq.ParquetFile(tables(target)[0]).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert _actions(target) == items
    assert LerobotSource(str(target)).remarks() == []
    stamps = [path.stat().st_mtime_ns for path in tables(target)]
    again = harness.call_command("penstockd", "reshard", str(root), str(target))
    assert again.stdout.startswith("0 tables written")
    assert [path.stat().st_mtime_ns for path in tables(target)] == stamps


def _actions(root: Path) -> list[object]:
    source = LerobotSource(str(root))
    return [item["action"].tolist() for item in source.fetch(range(len(source)))]


def test_a_run_that_ends_early_leaves_whole_tables_and_is_gone_on_with(tmp_path: Path) -> None:
    """What it leaves is no LeRobot folder; tables of another version are written anew."""
    root = RobotFolder(LENGTHS, group_rows=None).write(tmp_path / "robots")
    target = tmp_path / "apart"
    found = RobotTables(str(root))
    Resharding(found, str(root), str(target)).write(found.files[0])
    left = target / "data" / "chunk-000" / ".reshard-left"
    left.write_bytes(b"PAR1 and no more")

    with pytest.raises(InvalidJob):
        LerobotSource(str(target))
    done = harness.call_command("penstockd", "reshard", str(root), str(target))

    assert done.stdout.startswith(f"1 tables written to {target}; 1 were so already\n")
    assert not left.exists()
    assert groups_of(target) == list(LENGTHS)
    changed = pq.read_table(tables(root)[0])
    action = changed.schema.get_field_index("next.reward")
    changed = changed.set_column(action, "next.reward", pa.array([9.0] * len(changed), "float32"))
    pq.write_table(changed, tables(root)[0])
    harness.call_command("penstockd", "reshard", str(root), str(target))
    assert rows_of(target).equals(rows_of(root))


def test_validate_names_each_table_with_its_counts_and_the_remedy(tmp_path: Path) -> None:
    root = RobotFolder(LENGTHS, group_rows=4).write(tmp_path / "robots")

    told = harness.call_command("penstockd", "validate", str(root), "--no-videos")

    assert told.returncode == 2
    assert told.stdout.splitlines() == [
        f"{root}: all 2 tables looked at, 5 of 5 episodes",
        "  data/chunk-000/file-000.parquet: 3 row groups for 2 episodes, 2 of them end within "
        "an episode",
        "  data/chunk-000/file-001.parquet: 4 row groups for 3 episodes, 3 of them end within "
        "an episode",
        "2 tables have other row groups than episodes: jobs read them, and decode more than they "
        f"need for a frame; penstockd reshard {root} TO writes them anew",
    ]


def test_validate_is_content_with_a_group_for_each_episode(tmp_path: Path) -> None:
    """And looks at a sample that its seed decides."""
    lengths = (2,) * 40
    root = RobotFolder(lengths, "v2.1", cameras=()).write(tmp_path / "robots")

    told = harness.call_command("penstockd", "validate", str(root), "--files", "8", "--json")
    again = harness.call_command("penstockd", "validate", str(root), "--files", "8")

    assert (told.returncode, again.returncode) == (0, 0)
    assert json.loads(told.stdout) == {
        "episodes": 40,
        "tables": 40,
        "looked_at": 8,
        "others": [],
        "videos": 0,
        "faults": [],
    }
    assert again.stdout.splitlines()[0] == f"{root}: 8 of 40 tables looked at, 8 of 40 episodes"
    found = RobotTables(str(root))
    assert found.sample(8, 1) == found.sample(8, 1) != found.sample(8, 2)


def test_validate_refuses_a_table_that_is_not_of_the_metadata(tmp_path: Path) -> None:
    root = RobotFolder(LENGTHS).write(tmp_path / "robots")
    pq.write_table(pq.read_table(tables(root)[1]).slice(2), tables(root)[1])

    told = harness.call_command("penstockd", "validate", str(root), "--no-videos")

    assert told.returncode == 2
    assert "file-001.parquet holds 14 frames, and meta/episodes has 3 episodes of 16" in told.stdout
    refused = harness.call_command("penstockd", "reshard", str(root), str(tmp_path / "apart"))
    assert "file-001.parquet holds 14 frames" in refused.stderr


def test_validate_names_each_table_and_each_video_that_is_lost(tmp_path: Path) -> None:
    """A table that is not there, one that is damaged, and a video: none hides the others."""
    robots = RobotFolder(LENGTHS, "v2.1", cameras=CAMERAS[:1])
    root = robots.write(tmp_path / "robots", video_writer(robots.fps))
    missing, damaged = tables(root)[1:3]
    [cut] = (root / "videos").rglob("episode_000000.mp4")
    missing.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-20])
    cut.write_bytes(cut.read_bytes()[:500])

    told = harness.call_command("penstockd", "validate", str(root))
    listed = json.loads(harness.call_command("penstockd", "validate", str(root), "--json").stdout)
    refused = harness.call_command("penstockd", "reshard", str(root), str(tmp_path / "apart"))

    names = [str(path.relative_to(root)) for path in (missing, damaged, cut)]
    assert told.returncode == refused.returncode == 2
    assert f"  {names[0]}: is not there" in told.stdout.splitlines()
    assert all(f"  {name}: " in told.stdout for name in names)
    assert "2 of 5 tables cannot be read" in told.stdout
    assert [fault["name"] for fault in listed["faults"]] == names
    assert f"{missing} is not there, and episode 1 lies in it" in refused.stderr


def test_reshard_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    root = RobotFolder(LENGTHS).write(tmp_path / "robots")
    (tmp_path / "file").write_text("in the way")

    told = harness.call_command("penstockd", "reshard", str(root), str(tmp_path / "file"))

    assert told.returncode == 2
    assert f"{tmp_path}/file cannot be written" in told.stderr


def test_validate_names_videos_that_lack_frames_of_their_episodes(tmp_path: Path) -> None:
    """One that is not there, one that is cut off, one that lacks a frame; the others hold all."""
    robots = RobotFolder(LENGTHS, "v2.1", cameras=CAMERAS[:1])
    root = robots.write(tmp_path / "robots", video_writer(robots.fps))
    fine = harness.call_command("penstockd", "validate", str(root))
    videos = sorted((root / "videos").rglob("*.mp4"))
    videos[1].unlink()
    videos[2].write_bytes(videos[2].read_bytes()[:500])
    short = replace(robots, lengths=(*LENGTHS[:4], 5))
    shutil.copy(
        short.write(tmp_path / "short", video_writer(robots.fps)) / videos[4].relative_to(root),
        videos[4],
    )

    told = harness.call_command("penstockd", "validate", str(root))

    assert (fine.returncode, told.returncode) == (0, 2)
    assert fine.stdout.splitlines()[-1] == "all 5 videos hold their episodes' frames"
    lines = told.stdout.splitlines()
    missing, cut, lacks = (videos[at].relative_to(root) for at in (1, 2, 4))
    assert f"  {missing}: is not there" in lines
    assert any(line.startswith(f"  {cut}: ") for line in lines)
    assert any(line.startswith(f"  {lacks}: lacks frames of episode 4: ") for line in lines)
    assert lines[-1].startswith("3 of 5 videos do not hold their episodes' frames: ")
