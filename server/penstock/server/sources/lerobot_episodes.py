"""The episodes of a LeRobot folder, from its `meta/`: their lengths, and where frames lie."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.shown import shown
from penstock.server.files.filesystems import is_web, require
from penstock.server.sources.files import FileSet, refusing
from penstock.server.sources.lerobot_info import (
    MAX_FRAMES,
    fill,
    invalid_root,
    read_info,
)
from penstock.server.sources.patterns import DataFile
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob

INFO, EPISODES, TASKS = "info.json", "episodes", "tasks"
META_FILES = (INFO, "episodes.jsonl", "tasks.jsonl", "tasks.parquet", "episodes/")
"""The files of `meta/` that decide what items are; statistics are not among them."""

_OF_THE_WEB = (
    "or copy meta and data to a folder for root, and let video_root be the address: videos are not "
    "listed"
)
"""The way on where a web server does not list its files, or lists them in a way of its own."""

Ints = NDArray[np.int64]


class Spans(NamedTuple):
    """Where the episodes lie in the videos of one camera; an entry for each episode.

    Attributes:
        chunk: int64 (n,): the folder's number.
        file: int64 (n,): the file's number.
        begin_s: float64 (n,): when the episode's first frame is shown.
        end_s: float64 (n,): when its last frame ends; infinity = with the file.
    """

    chunk: Ints
    file: Ints
    begin_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecordedEpisodes:
    """All episodes of a folder, by their numbers.

    Attributes:
        numbers: int64 (n,): what the folder calls each, ascending.
        lengths: int64 (n,): frames of each.
        chunk: int64 (n,): the folder of the table that holds it.
        file: int64 (n,): the number of that table.
        first: int64 (n,): its first frame's `index`, by which episodes lie in a table.
        tasks: The tasks of each.
        cameras: By the feature of a camera, where episodes lie in its videos.
    """

    numbers: Ints
    lengths: Ints
    chunk: Ints
    file: Ints
    first: Ints
    tasks: list[tuple[str, ...]]
    cameras: dict[str, Spans]

    def __len__(self) -> int:
        """Return how many episodes there are."""
        return len(self.numbers)


class LerobotMeta:
    """What `meta/` of a folder says.

    Args:
        root: The folder, or its URL.
        storage_options: For its filesystem.

    Attributes:
        files: The files of `meta/` that were read.
        info: What `info.json` declares.
        episodes: All episodes.
        tasks: The tasks by their number.

    Raises:
        InvalidJob: It is not a LeRobot folder, or it is damaged.
        SourceUnavailable: It cannot be read at the moment.
    """

    def __init__(self, root: str, storage_options: dict[str, Any] | None) -> None:
        try:
            self.files = FileSet(
                root.rstrip("/") + "/meta",
                suffix=(".json", ".jsonl", ".parquet"),
                storage_options=storage_options,
                key="source.root",
                among=META_FILES,
            )
        except InvalidJob as error:
            if not is_web(root):
                raise
            raise error.reworded(f"{error.message}; {_OF_THE_WEB}") from error
        self._by_name = {file.name: file for file in self.files.files}
        for file in self.files.files:
            with refusing(file, "source.root"):
                self.files.watch(file)
        if INFO not in self._by_name:
            raise invalid_root(
                f"{root} is not a LeRobot folder: it has no meta/{INFO}; name the folder that has "
                "meta, data and videos in it" + (f"; {_OF_THE_WEB}" if is_web(root) else "")
            )
        self.info = read_info(self._read(INFO), f"{root}/meta/{INFO}")
        self.tasks = _tasks_by_number(list(self._rows(TASKS, ("task_index",))), f"{root}/meta")
        self.episodes = self._episodes(f"{root}/meta/{EPISODES}")

    def data_file(self, episode: int) -> str:
        """Return the name of the table that holds an episode, by its place in `episodes`."""
        found = self.episodes
        return self._name(self.info.data_path, episode, found.chunk, found.file)

    def video_file(self, camera: str, episode: int) -> str:
        """Return the name of the video that holds an episode for a camera."""
        spans = self.episodes.cameras[camera]
        return self._name(self.info.video_path, episode, spans.chunk, spans.file, camera)

    def _name(self, template: str, at: int, chunk: Ints, file: Ints, camera: str = "") -> str:
        values: dict[str, int | str]
        if self.info.shares_files:
            values = {"chunk_index": int(chunk[at]), "file_index": int(file[at])}
        else:
            values = {
                "episode_chunk": int(chunk[at]),
                "episode_index": int(self.episodes.numbers[at]),
            }
        return fill(template, f"meta/{INFO}", video_key=camera, **values)

    # --- reading ---

    def _read(self, name: str) -> bytes:
        file = self._by_name[name]
        with refusing(file, "source.root"):
            return self.files.read(file, 0, file.size)

    def _rows(self, name: str, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield the rows of `NAME.jsonl`, or of `NAME.parquet` and `NAME/`.

        Args:
            name: What the files are called.
            columns: What rows must have.

        Raises:
            InvalidJob: There is no such file, it is damaged, or a row lacks a column.
        """
        for file, row in self._all_rows(name):
            for column in columns:
                if row.get(column) is None:
                    raise invalid_root(f"{file.path} has a row without {column}: it is damaged")
            yield row

    def _all_rows(self, name: str) -> Iterator[tuple[DataFile, dict[str, Any]]]:
        if not self.info.shares_files:
            if (file := self._by_name.get(f"{name}.jsonl")) is None:
                raise self._lacking(f"{name}.jsonl")
            lines = self._read(file.name).split(b"\n")
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield file, _json_row(line, f"{file.path}, line {number},")
            return
        above = f"{name}/"
        tables = [f for f in self.files.files if f.name.startswith(above)]
        if (single := self._by_name.get(f"{name}.parquet")) is not None:
            tables.append(single)
        if not tables:
            raise self._lacking(f"{name}.parquet" if name == TASKS else above)
        for file in tables:
            for row in self._table(file):
                yield file, row

    def _table(self, file: DataFile) -> list[dict[str, Any]]:
        """Return the rows of a table without statistics, which are most of its bytes."""
        parquet = require("pyarrow.parquet")
        with refusing(file, "source.root"):
            try:
                with self.files.open(file) as stream, parquet.ParquetFile(stream) as table:
                    names = [n for n in table.schema_arrow.names if not n.startswith("stats/")]
                    found = table.read(columns=names, use_threads=False)
                    rows: list[dict[str, Any]] = found.to_pylist()
                    return rows
            except (ValueError, require("pyarrow").ArrowException) as error:
                raise invalid_root(
                    f"{file.path} cannot be read ({error_line(error, 300)}): it is damaged"
                ) from None

    def _lacking(self, name: str) -> Exception:
        where = self._by_name[INFO].path.rpartition("/")[0]
        return invalid_root(
            f"{where} has no {name}, which a folder of {self.info.version} has: copy the whole "
            "of meta"
        )

    # --- episodes ---

    def _episodes(self, where: str) -> RecordedEpisodes:
        shared = self.info.shares_files
        wanted = ["episode_index", "length"]
        if shared:
            wanted += ["data/chunk_index", "data/file_index", "dataset_from_index"]
        cameras = [f.name for f in self.info.features.values() if f.kind == "video"]
        parts = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        if shared:
            wanted += [f"videos/{camera}/{part}" for camera in cameras for part in parts]
        known: dict[tuple[str, ...], tuple[str, ...]] = {}  # thousands of episodes have few
        tasks: list[tuple[str, ...]] = []
        columns: list[list[Any]] = [[] for _ in wanted]
        for row in self._rows(EPISODES, wanted):
            for column, name in zip(columns, wanted, strict=True):
                column.append(row[name])
            own = _texts(row.get("tasks"))
            tasks.append(known.setdefault(own, own))
        table = {
            name: _numbers(column, name, where)
            for name, column in zip(wanted, columns, strict=True)
        }
        order = np.argsort(table["episode_index"], kind="stable")
        table = {name: column[order] for name, column in table.items()}
        numbers, lengths = table["episode_index"], table["length"]
        self._check(where, numbers, lengths)
        if shared:
            chunk, file = table["data/chunk_index"], table["data/file_index"]
            first = table["dataset_from_index"]
            spans = {
                camera: Spans(*(table[f"videos/{camera}/{part}"] for part in parts))
                for camera in cameras
            }
        else:  # each has files of its own
            chunk, file, first = numbers // self.info.chunk_size, numbers, np.zeros_like(numbers)
            whole = np.zeros(len(numbers)), np.full(len(numbers), np.inf)
            spans = {camera: Spans(chunk, file, *whole) for camera in cameras}
        return RecordedEpisodes(
            numbers, lengths, chunk, file, first, [tasks[at] for at in order.tolist()], spans
        )

    def _check(self, where: str, numbers: Ints, lengths: Ints) -> None:
        """Refuse episodes that are not those that `info.json` counts.

        Raises:
            InvalidJob: One occurs twice, is empty, or some are missing.
        """
        twice = numbers[1:][np.diff(numbers) == 0]
        if len(twice):
            raise invalid_root(
                f"{where} has episode {twice[0]} twice: remove the file that is left over"
            )
        if len(numbers) != self.info.episodes or int(lengths.sum()) != self.info.frames:
            raise invalid_root(
                f"{where} has {len(numbers)} episodes of {lengths.sum()} frames, and {INFO} counts "
                f"{self.info.episodes} of {self.info.frames}: copy the whole of meta"
            )
        if len(empty := numbers[lengths == 0]):
            raise invalid_root(f"{where} has episode {empty[0]} with no frames: it is damaged")


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, list | tuple) else ()


def _json_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise invalid_root(f"{where} is not JSON ({error}): it is damaged") from None
    if not isinstance(row, dict):
        raise invalid_root(f"{where} holds a {type(row).__name__} and no keys: it is damaged")
    return row


def _numbers(values: Sequence[Any], name: str, where: str) -> NDArray[Any]:
    """Return a column of numbers: float64 (n,) of times, else int64 (n,).

    Raises:
        InvalidJob: A value is none, or cannot be.
    """
    is_time = name.endswith("_timestamp")
    kinds = (int, float) if is_time else (int,)
    for value in values:
        if type(value) not in kinds or not 0 <= value < MAX_FRAMES:  # NaN is not, either
            raise invalid_root(f"{where} has {name} {shown(value)}: it is damaged")
    return np.array(values, np.float64 if is_time else np.int64)


def _tasks_by_number(rows: Sequence[Mapping[str, Any]], where: str) -> dict[int, str]:
    """Return the tasks by number.

    In a table the text is the index of the frame that pandas has written, named or not.

    Raises:
        InvalidJob: A row is not a task.
    """
    found: dict[int, str] = {}
    for row in rows:
        number, text = row["task_index"], row.get("task", row.get("__index_level_0__"))
        if type(number) is not int or not isinstance(text, str) or number in found:
            raise invalid_root(
                f"{where} has the task {shown(text)} of number {shown(number)}: each needs a "
                "text, and a number of its own"
            )
        found[number] = text
    return found
