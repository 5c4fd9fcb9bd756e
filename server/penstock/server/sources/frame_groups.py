"""How the tables of a LeRobot folder are cut into row groups: one for each episode, or otherwise.

A frame costs the row group that holds it: one that holds many episodes is read and decoded whole
for a frame of one of them, and again when it has left memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.sources.files import FileSet, refusing
from penstock.server.sources.footers import Footers
from penstock.server.sources.frame_tables import FrameTables
from penstock.server.sources.lerobot_episodes import LerobotMeta
from penstock.server.sources.patterns import DataFile


class TableGroups(NamedTuple):
    """The row groups of a table, and the episodes in it.

    Attributes:
        name: The table's name.
        groups: Rows of each row group.
        episodes: Frames of each episode, in the order of the table.
    """

    name: str
    groups: list[int]
    episodes: list[int]

    @property
    def is_apart(self) -> bool:
        """Tell whether each episode has a row group of its own."""
        return self.groups == self.episodes

    @property
    def cut(self) -> int:
        """Return how many row groups end within an episode."""
        return len({*accumulate(self.groups)} - {*accumulate(self.episodes)})


class RobotTables:
    """All tables of a folder.

    Args:
        root: The folder, or its URL.
        data_root: Where `data` lies, if not in `root`.
        storage_options: For its filesystem.

    Attributes:
        meta: What `meta/` says.
        files: The tables that are there, in the order of their episodes.
        lacking: The names of those that are not.

    Raises:
        InvalidJob: It is not a LeRobot folder, or no table is there.
        SourceUnavailable: It cannot be read at the moment.
    """

    def __init__(
        self,
        root: str,
        data_root: str | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self.meta = LerobotMeta(root, storage_options)
        self._tables = FrameTables(self.meta, np.arange(len(self.meta.episodes)))
        where = f"{(data_root or root).rstrip('/')}/{self._tables.folder}".rstrip("/")
        self.file_set = FileSet(
            where,
            suffix=".parquet",
            storage_options=storage_options,
            key="source.root",
            among=self._tables.wanted,
        )
        self._where = where
        there = {file.name: file for file in self.file_set.files}
        self.files = [there[name] for name in self._tables.wanted if name in there]
        self.lacking = [name for name in self._tables.wanted if name not in there]
        self._numbers = {name: shard for shard, name in enumerate(self._tables.wanted)}
        self._footers = Footers(self.file_set, "", None)

    def check_all_there(self) -> None:
        """Refuse a folder that lacks tables.

        Raises:
            InvalidJob: One is missing; names an episode that lies in it.
        """
        self._tables.files(self.file_set, self._where)

    def name(self, name: str) -> str:
        """Return the name of a table in the folder."""
        folder = self._tables.folder
        return f"{folder}/{name}" if folder else name

    def look(self, file: DataFile) -> TableGroups:
        """Return how a table is cut, by its footer.

        Raises:
            InvalidJob: It is not a Parquet file, or holds other frames than `meta` says.
            SourceUnavailable: It cannot be read at the moment.
        """
        with refusing(file, "source.root"):
            self.file_set.watch(file)
            groups = [rows for rows in self._footers.note(file).rows if rows]
        shard = self._numbers[file.name]
        lengths = self._tables.check(shard, file, sum(groups))
        return TableGroups(self.name(file.name), groups, lengths.tolist())

    def episodes_in(self, files: Sequence[DataFile]) -> NDArray[np.int64]:
        """Return the places in `meta.episodes` of those that lie in some tables: int64 (k,)."""
        own = [self._tables.episodes_in(self._numbers[file.name]) for file in files]
        return np.sort(np.concatenate(own))

    def sample(self, count: int | None, seed: int) -> list[DataFile]:
        """Return so many of the tables, drawn by a seed, in their order; None = all."""
        if count is None or count >= len(self.files):
            return self.files
        chosen = random.Random(seed).sample(range(len(self.files)), count)
        return [self.files[at] for at in sorted(chosen)]
