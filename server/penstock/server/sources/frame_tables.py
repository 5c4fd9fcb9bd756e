"""The tables of a LeRobot folder: which of them hold some episodes, and which rows of these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.shown import shown
from penstock.server.sources.files import FileSet
from penstock.server.sources.footers import Footers
from penstock.server.sources.lerobot_episodes import LerobotMeta
from penstock.server.sources.lerobot_info import fixed_folder, invalid_root
from penstock.server.sources.patterns import DataFile

Ints = NDArray[np.int64]


class FrameTables:
    """The names of the tables that hold some episodes.

    Args:
        meta: What `meta/` says.
        chosen: int64 (k,): the places of the episodes in `meta.episodes`.

    Attributes:
        folder: The folder that all tables are in, relative to that of the data.
        wanted: The names of the tables that hold the episodes, relative to `folder`, in the order
            of these.
    """

    def __init__(self, meta: LerobotMeta, chosen: Ints) -> None:
        self._meta, self._chosen = meta, chosen
        self.folder = fixed_folder(meta.info.data_path)
        cut = len(self.folder) + 1 if self.folder else 0
        # All of them: where an episode lies in a table, those before it decide.
        self._below = [meta.data_file(at)[cut:] for at in range(len(meta.episodes))]
        self.wanted = list(dict.fromkeys(self._below[at] for at in chosen.tolist()))
        numbers = {name: shard for shard, name in enumerate(self.wanted)}
        self._shards = np.array([numbers.get(name, -1) for name in self._below], np.int64)
        self._order = np.lexsort((meta.episodes.first, self._shards))
        self._sorted = self._shards[self._order]

    def files(self, found: FileSet, where: str) -> list[DataFile]:
        """Return the files of the tables.

        Args:
            found: The files that are there.
            where: The folder that they are in, for errors.

        Raises:
            InvalidJob: One is missing; names an episode that lies in it.
        """
        by_name = {file.name: file for file in found.files}
        for name in self.wanted:
            if name not in by_name:
                number = self._meta.episodes.numbers[self._below.index(name)]
                raise invalid_root(
                    f"{where}/{name} is not there, and episode {number} lies in it: copy the "
                    "whole of the folder, or leave the episode out with episodes"
                )
        return [by_name[name] for name in self.wanted]

    def episodes_in(self, shard: int) -> Ints:
        """Return the places in `meta.episodes` of those that lie in a table, in its order.

        Episodes lie in a table in the order of their `index`, those that are not chosen, too.

        Args:
            shard: The number of the table in `wanted`.
        """
        first, last = np.searchsorted(self._sorted, [shard, shard + 1])
        return self._order[first:last]

    def check(self, shard: int, file: DataFile, rows: int) -> Ints:
        """Return the frames of each episode in a table, in its order: int64 (episodes,).

        Args:
            shard: The number of the table in `wanted`.
            file: The table.
            rows: How many rows it holds.

        Raises:
            InvalidJob: It holds another number of frames than its episodes have.
        """
        lengths = self._meta.episodes.lengths[self.episodes_in(shard)]
        if rows != (expected := int(lengths.sum())):
            raise invalid_root(
                f"{file.path} holds {rows} frames, and meta/episodes has {len(lengths)} episodes "
                f"of {expected} frames in it: one of them is of another version of the folder; "
                "copy both"
            )
        return lengths

    def places(self, files: Sequence[DataFile], rows: Sequence[int]) -> tuple[Ints, Ints]:
        """Return of each chosen episode the number of its table, and its first row there.

        Args:
            files: The tables.
            rows: How many rows each holds.

        Raises:
            InvalidJob: A table holds another number of frames than its episodes have.
        """
        found = np.zeros(len(self._meta.episodes), np.int64)
        for shard, file in enumerate(files):
            lengths = self.check(shard, file, rows[shard])
            found[self.episodes_in(shard)] = np.cumsum(lengths) - lengths
        return self._shards[self._chosen], found[self._chosen]


def undeclared(
    files: FileSet, footers: Footers, read: Sequence[str], meta: LerobotMeta
) -> list[str]:
    """Return the columns of tables that `info.json` does not declare.

    Raises:
        InvalidJob: A table lacks one of the columns to read.
    """
    found: dict[str, None] = {}
    passed: set[int] = set()  # schemas: thousands of files have few
    for file, schema in zip(files.files, footers.schemas(), strict=True):
        if id(schema) in passed:
            continue
        passed.add(id(schema))
        for name in read:
            if name not in schema.columns:
                raise invalid_root(
                    f"{file.path} has no column {shown(name)}, which meta/info.json declares: "
                    "one of them is of another version of the folder; copy both"
                )
        found.update(dict.fromkeys(n for n in schema.columns if n not in meta.info.features))
    return list(found)
