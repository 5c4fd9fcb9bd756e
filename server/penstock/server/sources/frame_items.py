"""Items of robots' episodes: a frame's values, its windows, and where its pictures are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.server.sources.frame_places import FramePlaces
from penstock.server.sources.frame_rows import FrameRows
from penstock.server.sources.frame_windows import PAD, window
from penstock.server.sources.lerobot_episodes import LerobotMeta
from penstock.server.sources.lerobot_info import NUMBERS, VIDEO, Feature
from penstock.wire.errors import BadItem

EPISODE, FRAME, TASK_NUMBER, TASK = "episode_index", "frame_index", "task_index", "task"
ALWAYS_READ = (EPISODE, FRAME, TASK_NUMBER)
"""Columns by which frames are told apart, and their tasks found, whether or not they are given."""

Ints = NDArray[np.int64]
RowsOf = Callable[[int, int], FrameRows]
"""Gives the decoded rows of a block; its second argument is an item of it, for messages."""


class FrameItems:
    """Makes the items of some episodes of a folder.

    Args:
        meta: What `meta/` says.
        chosen: int64 (n,): the places of the episodes in `meta.episodes`.
        features: The features that items have.
        windows: By feature, the offsets of its window in frames, int64 (T,).
        frames: Where the frames of these episodes lie.
        rows_of: Gives the decoded rows of a block.

    Attributes:
        keys: The keys of items, in the order of LeRobot's own reader.
        stored: The features of items that lie in tables.
        read: These, and those of `ALWAYS_READ`.
    """

    def __init__(
        self,
        meta: LerobotMeta,
        chosen: Ints,
        features: Sequence[Feature],
        windows: Mapping[str, Ints],
        frames: FramePlaces,
        rows_of: RowsOf,
    ) -> None:
        self._meta, self._chosen, self._frames, self._rows_of = meta, chosen, frames, rows_of
        self._windows = windows
        self.stored = [feature for feature in features if feature.kind != VIDEO]
        self._cameras = [feature.name for feature in features if feature.kind == VIDEO]
        masks = [name + PAD for name in windows]
        self.keys = [*(feature.name for feature in self.stored), *masks, *self._cameras, TASK]
        more = [Feature(name, NUMBERS, "int64", (1,)) for name in ALWAYS_READ]
        given = {feature.name for feature in self.stored}
        self.read = [*self.stored, *(feature for feature in more if feature.name not in given)]

    def item(self, index: int) -> dict[str, Any]:
        """Return the frame of an index.

        Raises:
            SourceUnavailable, SourceChanged, BadItem: As `Source.fetch`.
        """
        episode, frame = self._frames.episode_of(index)
        start, stop = self._frames.starts[episode : episode + 2].tolist()
        item: dict[str, Any] = dict.fromkeys(self.keys)
        frames: dict[str, Ints] = {}
        for name, offsets in self._windows.items():
            frames[name], item[name + PAD] = window(frame, stop - start, offsets)
        (block,), (row,) = (found.tolist() for found in self._frames.find(np.array([index])))
        rows = self._rows_of(block, index)
        for feature in self.stored:
            name = feature.name
            if name in frames:
                item[name] = self._window_of(name, start + frames[name], index)
            else:
                item[name] = rows.value(name, row)
        for name in self._cameras:
            item[name] = self._reference(name, episode, frames.get(name, frame))
        item[TASK] = self._task(int(rows.value(TASK_NUMBER, row)), index)
        return item

    def _window_of(self, name: str, items: Ints, index: int) -> Any:
        """Return a feature's values in the frames of a window; no row group need hold all."""
        blocks, rows = self._frames.find(items)
        if (blocks == blocks[0]).all():
            return self._rows_of(int(blocks[0]), index).values(name, rows)
        found: list[Any] = [None] * len(items)
        for block in dict.fromkeys(blocks.tolist()):
            places = np.flatnonzero(blocks == block)
            values = self._rows_of(block, index).values(name, rows[places])
            for at, value in zip(places.tolist(), values, strict=True):
                found[at] = value
        return found if isinstance(values, list) else np.stack(found)

    def _reference(self, camera: str, episode: int, frames: Ints | int) -> dict[str, Any]:
        """Return the video that shows some frames of an episode, and when in it.

        With what errors of decoding name: the folder's number of the episode, and its frames.
        """
        at = int(self._chosen[episode])
        begin_s = float(self._meta.episodes.cameras[camera].begin_s[at])
        wanted = np.atleast_1d(frames)
        times = begin_s + wanted / self._meta.info.fps
        return {  # in Python's numbers, so that a job without a decoder can send them
            "path": self._meta.video_file(camera, at),
            "times": times.tolist(),
            "episode": int(self._meta.episodes.numbers[at]),
            "frames": wanted.tolist(),
        }

    def _task(self, number: int, index: int) -> str:
        if (task := self._meta.tasks.get(number)) is None:
            raise BadItem(
                f"frame {index} has the task {number}, and meta/tasks has none of that number: "
                "copy the whole of meta",
                reason=f"no task {number}",
            )
        return task

    def check_rows(self, rows: FrameRows, first: int, count: int) -> None:
        """Refuse a block that holds other frames than `meta` says.

        Args:
            rows: Its rows.
            first: Its first item.
            count: How many items it has.

        Raises:
            BadItem: Names the first row, with what it is of.
        """
        items = np.arange(first, first + count)
        _, own = self._frames.find(items)
        episode = np.searchsorted(self._frames.starts, items, side="right") - 1
        expected = self._meta.episodes.numbers[self._chosen[episode]]
        frame = items - self._frames.starts[episode]
        there = np.asarray(rows.values(EPISODE, own)), np.asarray(rows.values(FRAME, own))
        wrong = np.flatnonzero((there[0] != expected) | (there[1] != frame))
        if len(wrong):
            at = int(wrong[0])
            raise rows.is_other(
                f"row {own[at]} of row group {rows.group.number} is frame {there[1][at]} of "
                f"episode {there[0][at]}, where meta/episodes has frame {frame[at]} of episode "
                f"{expected[at]}"
            )
