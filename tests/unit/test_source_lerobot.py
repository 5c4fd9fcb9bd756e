"""The frames of LeRobot folders are those that their values say, in either layout, windowed or not.

Values tell which frame they are of (see `robots.py`), so what is expected is computed here from a
frame's number alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from penstock.server.config.location import Location
from penstock.server.jobs.registry import KINDS, build
from penstock.server.roles.condition import Condition
from penstock.server.sources import LerobotSource
from penstock.wire.errors import BadItem, InvalidJob
from robots import CAMERAS, TASKS, RobotFolder

LAYOUTS = ("v2.1", "v3.0")
GROUPS = (0, None, 4)
FRONT = CAMERAS[0]
WINDOWS = {
    "action": [0.0, 0.1, 0.4],
    FRONT: [-0.2, 0.0, 0.2],
    "observation.state": [-0.1, 0],
    "next.done": [0.0, 0.1],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return RobotFolder().write(tmp_path / "robots")


def action(index: int) -> list[float]:
    return [index + k / 8 for k in range(4)]


def place(robots: RobotFolder, index: int) -> tuple[int, int]:
    """Return the episode of a frame, and which of its frames it is."""
    episode = max(e for e in range(len(robots.lengths)) if robots.starts[e] <= index)
    return episode, index - robots.starts[episode]


def shown_frames(robots: RobotFolder, reference: Any, camera: str) -> list[int]:
    """Return the `index` of the frames that a reference means, by where the writer put them."""
    if robots.layout == "v2.1":
        episodes = [int(reference["path"][-10:-4])]
    else:
        number = [*robots.cameras].index(camera)
        parts = robots.parts([*robots.tables, 1][number % 3 :])
        episodes = parts[int(reference["path"][-7:-4])]
    frames = [i for e in episodes for i in range(*robots.starts[e : e + 2])]
    return [frames[round(time * robots.fps)] for time in reference["times"]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("group_rows", GROUPS)
def test_every_frame_is_the_one_that_its_values_say(
    tmp_path: Path, layout: str, group_rows: int | None
) -> None:
    """In both layouts, and however rows are cut into groups."""
    robots = RobotFolder(layout=layout, group_rows=group_rows)
    source = LerobotSource(str(robots.write(tmp_path / "robots")))

    items = source.fetch(range(len(source)))

    assert len(items) == robots.frames
    for index, item in enumerate(items):
        episode, frame = place(robots, index)
        assert item["action"].tolist() == action(index)
        assert (item["index"], item["episode_index"], item["frame_index"]) == (
            index,
            episode,
            frame,
        )
        assert item["timestamp"] == np.float32(frame / 10)
        assert item["task"] == TASKS[robots.task_of(episode, frame)]
        for camera in CAMERAS:
            assert shown_frames(robots, item[camera], camera) == [index]
            assert item[camera]["path"].startswith("videos/")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("group_rows", GROUPS)
def test_windows_are_clamped_in_their_episode_and_say_where(
    tmp_path: Path, layout: str, group_rows: int | None
) -> None:
    """Every frame of every window, of numbers and cameras, at the ends of every episode."""
    robots = RobotFolder(layout=layout, group_rows=group_rows)
    root = str(robots.write(tmp_path / "robots"))
    source = LerobotSource(root, delta_timestamps=WINDOWS)

    for index, item in enumerate(source.fetch(range(len(source)))):
        episode, frame = place(robots, index)
        start, length = robots.starts[episode], robots.lengths[episode]
        for name, seconds in WINDOWS.items():
            wanted = [frame + round(s * robots.fps) for s in seconds]
            inside = [start + min(max(at, 0), length - 1) for at in wanted]
            assert item[f"{name}_is_pad"].dtype == bool
            assert item[f"{name}_is_pad"].tolist() == [not 0 <= at < length for at in wanted]
            if name == "action":
                assert item[name].tolist() == [action(i) for i in inside]
            elif name == "next.done":
                assert item[name].tolist() == [i == start + length - 1 for i in inside]
            elif name == FRONT:
                assert shown_frames(robots, item[name], name) == inside


def test_items_have_the_keys_shapes_and_dtypes_of_the_map_style_reader(folder: Path) -> None:
    """Floats are float32 whatever is declared, ints int64; windows come first in a shape."""
    item = LerobotSource(str(folder), delta_timestamps=WINDOWS).fetch([5])[0]

    table = ["action", "observation.state", "next.reward", "next.done", "timestamp"]
    numbers = ["frame_index", "episode_index", "index", "task_index"]
    masks = [f"{name}_is_pad" for name in WINDOWS]
    assert list(item) == [*table, *numbers, *masks, *CAMERAS, "task"]
    assert {name: (item[name].dtype.name, item[name].shape) for name in table + numbers} == {
        "action": ("float32", (3, 4)),
        "observation.state": ("float32", (2, 2)),
        "next.reward": ("float32", ()),
        "next.done": ("bool", (2,)),
        "timestamp": ("float32", ()),
        **dict.fromkeys(numbers, ("int64", ())),
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_episodes_that_are_asked_for_are_read_and_no_others(
    tmp_path: Path, layout: str
) -> None:
    """In the folder's order; windows stay in each; what lies in other files need not be there."""
    robots = RobotFolder(layout=layout, group_rows=None)
    root = robots.write(tmp_path / "robots")
    source = LerobotSource(str(root), episodes=[4, 2], delta_timestamps={"action": [-0.1, 0]})
    expected = [i for e in (2, 4) for i in range(*robots.starts[e : e + 2])]

    items = source.fetch(range(len(source)))

    assert [int(item["index"]) for item in items] == expected
    table = source.episode_table()
    assert table.numbers.tolist() == [2, 4]
    assert table.starts.tolist() == [0, 9, 15]
    assert table.tasks[0] == (TASKS[0], TASKS[2])
    assert table.of_items(np.arange(15)).tolist() == [0] * 9 + [1] * 6
    assert items[9]["action_is_pad"].tolist() == [True, False]
    first = sorted((root / "data").rglob("*.parquet"))[0]
    first.unlink()
    assert len(LerobotSource(str(root), episodes=[4, 2])) == 15


@pytest.mark.parametrize(
    ("episodes", "said"),
    [
        ([0, -1], "has -1: episodes are counted from 0 on, and none from the end"),
        ([1, 2, 1], "has 1 twice: each is read once in an epoch"),
        ([1, 7], "has 7, and the folder has the 5 episodes from 0 to 4"),
        ([], "is []: give a list of numbers"),
        ([1, True], "has true: give whole numbers"),
        ([10**30], "has 1000000000000000000000000000000, and the folder"),
    ],
)
def test_episodes_that_cannot_be_are_refused(
    folder: Path, episodes: Sequence[int], said: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        LerobotSource(str(folder), episodes=episodes)

    assert caught.value.message.startswith(f"episodes {said}")


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ({"actoin": [0]}, "delta_timestamps names 'actoin', and meta/info.json has no such"),
        ({"task": [0]}, "there are action, observation.state, observation.images.front"),
        ({"action": [0.05]}, "has 0.05 s, which lies between two frames at 10 frames a second"),
        ({"action": [float("nan")]}, "which no episode lasts"),
        ({"action": []}, "give a list of seconds"),
        ({"action": ["0"]}, "has '0': give seconds"),
        ({"action": 0.1}, "is 0.1: give a list of seconds"),
    ],
)
def test_windows_that_cannot_be_are_refused(folder: Path, windows: Any, said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        LerobotSource(str(folder), delta_timestamps=windows)

    assert said in caught.value.message


def test_an_offset_within_the_tolerance_is_the_nearest_frame(folder: Path) -> None:
    """LeRobot's configurations have thirds of a second with few digits."""
    near = LerobotSource(str(folder), delta_timestamps={"action": [0.10009]}).fetch([0])[0]

    assert near["action"].tolist() == [action(1)]
    with pytest.raises(InvalidJob, match=r"give 0\.1 or 0\.2, or a larger tolerance_s"):
        LerobotSource(str(folder), delta_timestamps={"action": [0.1002]})


def test_a_column_that_is_not_declared_is_left_out_and_named(tmp_path: Path) -> None:
    robots = RobotFolder(extra={"notes": lambda i: ["a"] * (i % 3)})
    source = LerobotSource(str(robots.write(tmp_path / "robots")))

    assert "notes" not in source.fetch([0])[0]
    (said,) = source.remarks()
    assert said.startswith("notes in the tables of ")
    assert "is not declared in meta/info.json and left out" in said


def test_declared_features_of_every_kind_come_as_they_are(tmp_path: Path) -> None:
    """Text, matrices, lists of another length in each frame, and pictures in the table."""
    picture = {"bytes": b"\x89PNG", "path": "a.png"}
    robots = RobotFolder(
        cameras=(),
        declared={
            "note": ({"dtype": "string", "shape": [1]}, lambda i: f"frame {i}"),
            "pose": ({"dtype": "float32", "shape": [2, 3]}, lambda i: [[i, 1, 2], [3, 4, 5]]),
            "points": ({"dtype": "int32", "shape": [-1]}, lambda i: list(range(i % 4))),
            "image": ({"dtype": "image", "shape": [4, 4, 3]}, lambda i: picture),
        },
    )
    windows = {"pose": [0, 0.1], "image": [-0.1, 0]}
    source = LerobotSource(str(robots.write(tmp_path / "robots")), delta_timestamps=windows)

    item = source.fetch([3])[0]

    assert item["note"] == "frame 3"
    assert item["pose"].shape == (2, 2, 3)
    assert item["pose"][:, 0, 0].tolist() == [3, 4]
    assert item["points"].tolist() == [0, 1, 2]
    assert item["image"] == [picture, picture]
    with pytest.raises(InvalidJob, match="'note', whose values have no fixed shape"):
        LerobotSource(source.root, delta_timestamps={"note": [0]})


def test_a_value_of_another_shape_is_a_bad_item_of_its_frame_alone(tmp_path: Path) -> None:
    """Frame 2 lacks a number, and frame 5 has one too many; the others are read."""
    lists = {2: [1.0, None], 5: [1.0, 2.0, 3.0]}
    declared = {"dtype": "float32", "shape": [2]}
    robots = RobotFolder(declared={"odd": (declared, lambda i: [i, i])})
    root = robots.write(tmp_path / "robots")
    _store_as_lists(root, "odd", [lists.get(i, [i, i]) for i in range(robots.frames)])
    source = LerobotSource(str(root))

    assert source.fetch([1])[0]["odd"].tolist() == [1, 1]
    with pytest.raises(BadItem, match=r"'odd' in row 2 of row group 0 has a number missing"):
        source.fetch([2])
    with pytest.raises(BadItem, match=r"'odd' in row 5 of row group 0 has the shape \(3,\)"):
        source.fetch([5])


def _store_as_lists(root: Path, name: str, values: list[Any]) -> None:
    """Write a column of every table anew, as lists of any length."""
    import pyarrow as pa

    for path in sorted((root / "data").rglob("*.parquet")):
        table = pq.read_table(path)
        own = [values[i] for i in table.column("index").to_pylist()]
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array(own, pa.list_(pa.float32())))
        pq.write_table(table, path)


def change_info(root: Path, **values: Any) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"codebase_version": "v1.6"}, "has codebase_version 'v1.6': v2.0, v2.1, v3.0 are read"),
        ({"fps": 0}, "has fps 0: a number above 0 is needed"),
        ({"features": {}}, "has no features"),
        ({"total_episodes": 6}, "has 5 episodes of 27 frames, and info.json counts 6 of 27"),
        ({"data_path": "data/{file_index.real}.parquet"}, "which cannot be read"),
        ({"data_path": "data/{key:03d}.parquet"}, "in which 'key' is not known"),
        ({"total_frames": "many"}, "has total_frames 'many': a whole number is needed"),
    ],
)
def test_a_damaged_info_is_refused_by_its_value(
    folder: Path, values: dict[str, Any], said: str
) -> None:
    change_info(folder, **values)

    with pytest.raises(InvalidJob) as caught:
        LerobotSource(str(folder))

    assert said in caught.value.message


def test_what_is_no_lerobot_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "other.json").write_text("{}")

    with pytest.raises(InvalidJob, match=r"is not a LeRobot folder: it has no meta/info\.json"):
        LerobotSource(str(tmp_path))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_that_is_missing_or_cut_short_is_named_at_once(tmp_path: Path, layout: str) -> None:
    robots = RobotFolder(layout=layout)
    root = robots.write(tmp_path / "robots")
    last = sorted((root / "data").rglob("*.parquet"))[-1]
    pq.write_table(pq.read_table(last).slice(1), last)

    with pytest.raises(InvalidJob, match=rf"{last.name} holds \d+ frames, and meta/episodes has"):
        LerobotSource(str(root))

    last.unlink()
    with pytest.raises(InvalidJob, match=rf"{last.name} is not there, and episode \d lies in it"):
        LerobotSource(str(root))


def test_rows_that_are_not_those_of_the_metadata_are_a_bad_item(folder: Path) -> None:
    """A table whose episodes were exchanged has as many rows as before."""
    first = sorted((folder / "data").rglob("*.parquet"))[0]
    table = pq.read_table(first)
    pq.write_table(table.take([*range(7, 11), *range(7)]), first)
    source = LerobotSource(str(folder))

    with pytest.raises(BadItem, match="row 0 of row group 0 is frame 0 of episode 1, where meta"):
        source.fetch([0])


def test_a_camera_that_shows_too_little_of_an_episode_is_named(folder: Path) -> None:
    import pyarrow as pa

    path = sorted((folder / "meta" / "episodes").rglob("*.parquet"))[0]
    rows = pq.read_table(path).to_pylist()
    rows[2][f"videos/{FRONT}/to_timestamp"] -= 0.1
    pq.write_table(pa.Table.from_pylist(rows), path)

    with pytest.raises(InvalidJob, match=r"episode 2 has 9 frames, and 'observation\.images\.fr"):
        LerobotSource(str(folder))
    assert len(LerobotSource(str(folder), episodes=[0, 1])) == 11
    assert len(LerobotSource(str(folder), features=["action"])) == 27


def test_features_that_are_asked_for_are_given_and_no_others(folder: Path) -> None:
    source = LerobotSource(str(folder), features=["action", FRONT])

    assert list(source.fetch([0])[0]) == ["action", FRONT, "task"]
    with pytest.raises(InvalidJob, match="features names 'actoin', and meta/info"):
        LerobotSource(str(folder), features=["actoin"])


def test_items_are_chosen_by_task_episode_and_reward(folder: Path) -> None:
    robots, source = RobotFolder(), LerobotSource(str(folder))
    where = Condition({"task": TASKS[0], "frame_index": {"min": 2}, "next.reward": {"below": 5}})

    kept = source.matching(where)

    assert kept.take(np.arange(len(kept))).tolist() == [
        i
        for i in range(20)
        if place(robots, i)[1] >= 2 and TASKS[robots.task_of(*place(robots, i))] == TASKS[0]
    ]


def test_the_fingerprint_knows_tables_and_episodes_and_not_statistics(tmp_path: Path) -> None:
    first = LerobotSource(str(RobotFolder().write(tmp_path / "a"))).fingerprint()
    again = RobotFolder().write(tmp_path / "b")
    (again / "meta" / "stats.json").write_text("{}")

    assert LerobotSource(str(again)).fingerprint() == first
    other = RobotFolder(lengths=(7, 4, 9, 2, 5)).write(tmp_path / "c")
    assert LerobotSource(str(other)).fingerprint() != first


def test_data_may_lie_elsewhere_than_metadata(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "bucket"
    elsewhere.mkdir()
    (folder / "data").rename(elsewhere / "data")

    source = LerobotSource(str(folder), data_root=str(elsewhere))

    assert source.fetch([26])[0]["action"].tolist() == action(26)
    assert source.media_dirs() == {"": str(elsewhere)}


def test_a_folder_is_read_from_a_url(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/robots", recursive=True)
    source = LerobotSource("memory://robots", delta_timestamps={"action": [0, 0.1]})

    assert source.fetch([7])[0]["action"].tolist() == [action(7), action(8)]
    memory.rm("/robots", recursive=True)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("buffer_size", "distributor: {type: episodes, pool: 1024}"),
        ("rng", "seed: of the job"),
        ("max_num_shards", "no number of them limits mixing"),
        ("delta_timestamp", "did you mean delta_timestamps?"),
    ],
)
def test_settings_of_other_readers_are_refused_with_their_replacement(
    folder: Path, name: str, instead: str
) -> None:
    spec = {"type": "lerobot", "root": str(folder), name: 100}

    with pytest.raises(InvalidJob) as caught:
        build(KINDS["source"], spec, Location("job.yaml", folder, ("source",)))

    assert f"source.{name} is not a parameter of lerobot: " in caught.value.message
    assert instead in caught.value.message
