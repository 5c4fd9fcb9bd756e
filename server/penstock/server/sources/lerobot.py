"""LeRobot folders: frames of robots' episodes, with windows around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.common.nearest import listed
from penstock.server.core.shown import shown
from penstock.server.files.catalog import Catalog
from penstock.server.files.filesystems import require
from penstock.server.files.ranges import LOOKERS
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.parameters import declared
from penstock.server.roles.reading import Blocks
from penstock.server.roles.samples import RawItem
from penstock.server.sources.episode_choice import chosen_episodes
from penstock.server.sources.file_blocks import FileBlocks
from penstock.server.sources.footers import VERSION, Footers
from penstock.server.sources.frame_items import TASK, TASK_NUMBER, FrameItems
from penstock.server.sources.frame_places import FramePlaces
from penstock.server.sources.frame_rows import FrameRows
from penstock.server.sources.frame_tables import FrameTables, undeclared
from penstock.server.sources.frame_windows import TOLERANCE_S, frames_of
from penstock.server.sources.lerobot_episodes import LerobotMeta
from penstock.server.sources.lerobot_info import NUMBERS, TEXT, VIDEO, invalid_root
from penstock.server.sources.requirements import check_indices
from penstock.server.sources.row_groups import RowGroup, RowGroupReader
from penstock.wire.errors import InvalidJob

_POOL = "distributor: {type: episodes, pool: 1024} mixes frames of so many whole episodes"
_ORDER = "seed: of the job and its distributor decide the order, and nothing is drawn at random"
_ANY = "files and row groups are read wherever frames lie, and no number of them limits mixing"
CHANNELS = 3
"""Of a camera's shape: red, green and blue."""

_NODE = "windows and rows are read as batches are planned, and the node has the workers"
REPLACED = {
    "buffer_size": _POOL,
    "episode_pool_size": _POOL,
    "frame_shuffle_buffer_size": _POOL,
    "shuffle": _POOL,
    "rng": _ORDER,
    "seed": _ORDER,
    "max_num_shards": _ANY,
    "max_buffer_input_shards": _ANY,
    "validate_row_groups": "penstockd validate looks at them, and penstockd reshard mends them",
    "streaming": _NODE,
    "repo_id": 'root names the folder or its URL, such as "hf://datasets/OWNER/NAME"',
    "revision": 'root names it, as in "hf://datasets/OWNER/NAME@REVISION"',
    "data_files_root": "data_root names where data and videos lie",
    "video_backend": "the processor decodes: its decoder says by what",
    "image_transforms": "the processor resizes, and the trainer does all else on its device",
}
"""Settings of LeRobot's readers, with what takes their place."""


@declared
class LerobotSource(FileBlocks):
    """The frames of a LeRobot folder, of layout v2.1 or v3.0, in the order of episode and frame.

    An item is a frame, with the keys, shapes and dtypes that LeRobot's own reader gives: numbers
    as arrays of their declared shape, floats as float32 and ints as int64, shape (1,) as a single
    number; `task` as text. Pictures that lie in the table are media: `bytes` and `path`. A camera
    of videos is a reference: `path` of the file, relative to `video_root`, and `times`, the seconds
    in it at which the frames are shown, with their `episode` and `frames`. The processor `robot`
    makes pixels of it.

    Args:
        root: The folder with `meta`, `data` and `videos` in it, or its URL.
        delta_timestamps: Windows: by feature, at which seconds around a frame it is wanted, such as
            `{action: [0, 0.1, 0.2]}`. Values then have a first dimension more, T of them, and
            `KEY_is_pad`, bool (T,), is true where the episode has no such frame and its first or
            last one stands in its place.
        episodes: The numbers of the episodes to read, in their order in the folder; None = all.
        features: Which features to give; None = all. Cameras that are left out are not decoded.
        tolerance_s: How far an offset of a window may lie from a frame, in seconds. Larger ones
            round offsets that were meant for another rate.
        data_root: Where `data` and `videos` lie, if not in `root`: a folder or a URL.
        video_root: Where `videos` lies, if not in `data_root`.

    Raises:
        InvalidJob: It is not a LeRobot folder, it is incomplete, or a parameter names what is not
            there.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "lerobot"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)
    path_params: ClassVar[tuple[str, ...]] = ("root", "data_root", "video_root")
    replaced_params: ClassVar[Mapping[str, str]] = REPLACED

    root: str
    _: KW_ONLY
    delta_timestamps: Mapping[str, Sequence[float]] | None = None
    episodes: Sequence[int] | None = None
    features: Sequence[str] | None = None
    tolerance_s: float = TOLERANCE_S
    data_root: str | None = None
    video_root: str | None = None

    def __post_init__(self) -> None:
        self._check_parameters()
        self.meta = LerobotMeta(self.root, self.storage_options)
        info, recorded = self.meta.info, self.meta.episodes
        self._features = info.chosen(self.features)
        known = {feature.name: feature for feature in self._features}
        windows = frames_of(self.delta_timestamps or {}, known, info.fps, self.tolerance_s)
        self._windowed = frozenset(windows)
        self._window_frames = {name: len(offsets) for name, offsets in windows.items()}
        self._chosen = chosen_episodes(self.episodes, recorded.numbers)
        self._check_cameras()
        self._open_tables()
        self._items = FrameItems(
            self.meta, self._chosen, self._features, windows, self._frames, self._frame_rows
        )
        self.names = [feature.name for feature in self._items.read]
        self._undeclared = undeclared(self.file_set, self._footers, self.names, self.meta)
        self._take_groups()

    def _check_parameters(self) -> None:
        for name in self.path_params:
            value = getattr(self, name)
            may_be_none = name != "root"
            if not (value is None and may_be_none) and not (isinstance(value, str) and value):
                raise InvalidJob(
                    f"{name} is {shown(value)}: give a folder or a URL", key=f"source.{name}"
                )
        tolerance_s = self.tolerance_s
        is_number = isinstance(tolerance_s, int | float) and not isinstance(tolerance_s, bool)
        if not is_number or not 0 <= tolerance_s < 1:
            raise InvalidJob(
                f"tolerance_s is {shown(tolerance_s)}: give seconds, from 0 to less than 1",
                key="source.tolerance_s",
            )

    @property
    def _data_root(self) -> str:
        return (self.data_root or self.root).rstrip("/")

    # --- opening ---

    def _check_cameras(self) -> None:
        """Refuse episodes that a camera's span is too short for.

        Raises:
            InvalidJob: Names the episode, the camera and both lengths.
        """
        fps, numbers = self.meta.info.fps, self.meta.episodes.numbers
        lengths = self.meta.episodes.lengths[self._chosen]
        for camera in (f.name for f in self._features if f.kind == VIDEO):
            spans = self.meta.episodes.cameras[camera]
            lasts_s = (spans.end_s - spans.begin_s)[self._chosen]
            short = np.flatnonzero(lasts_s * fps < lengths - 0.5)
            if len(short):
                at = int(short[0])
                raise invalid_root(
                    f"episode {numbers[self._chosen[at]]} has {lengths[at]} frames, and "
                    f"{camera!r} shows it for {lasts_s[at]:.4f} s, which are "
                    f"{round(lasts_s[at] * fps)} at {fps:g} frames a second: record it anew, or "
                    "leave it out with episodes"
                )

    def _open_tables(self) -> None:
        """Find the tables of the episodes, and where in them each lies.

        Raises:
            InvalidJob: One is missing, or holds other frames than `meta` says.
        """
        tables = FrameTables(self.meta, self._chosen)
        where = f"{self._data_root}/{tables.folder}".rstrip("/")
        self.find_files(where, key="source.root", among=tables.wanted)
        arrow = require("pyarrow").__version__  # it names the columns' types
        self.find_blocks(f"row groups {VERSION} {arrow}")
        self.shards = tables.files(self.file_set, where)
        self._footers = Footers(self.file_set, self._fact, None)
        self.note_all(self._footers.note, LOOKERS)
        self._rows = [self._footers.noted(file).rows for file in self.shards]
        lengths = self.meta.episodes.lengths[self._chosen]
        places = tables.places(self.shards, [sum(rows) for rows in self._rows])
        self._frames = FramePlaces(*places, lengths, self._rows)

    def _take_groups(self) -> None:
        self.places, self.block_items = self._frames.places, self._frames.block_items
        self.starts = np.concatenate([[0], np.cumsum(self.block_items)]).tolist()
        numbers = {file.path: number for number, file in enumerate(self.file_set.files)}
        found = [(numbers[self.shards[shard].path], group) for shard, group in self.places]
        self._stored = self._footers.stored(found, self.names).sum(axis=1).tolist()
        self._groups = [
            RowGroup(self.shards[shard], group, self._rows[shard][group])
            for shard, group in self.places
        ]
        self._reader = RowGroupReader(self.file_set)

    # --- what is known of the data ---

    def episode_table(self) -> EpisodeTable:
        """Return the episodes that are read."""
        recorded, chosen = self.meta.episodes, self._chosen
        tasks = [recorded.tasks[at] for at in chosen.tolist()]
        return EpisodeTable(self._frames.starts, recorded.numbers[chosen], tasks)

    def blocks(self) -> Blocks:
        """Return the row groups, as far as their frames follow one another."""
        known = [self._footers.noted(file).decoded for file in self.shards]
        decoded = [known[shard][group] for shard, group in self.places]
        return Blocks(self.block_items, decoded, self._stored)

    def columns_of_items(self) -> dict[str, str]:
        """Return the keys of items; the types of single numbers are known."""
        types = dict.fromkeys(self._items.keys, "")
        types[TASK] = "string"
        for feature in self._features:
            if feature.shape == (1,) and feature.name not in self._windowed:
                kind = np.dtype(feature.dtype).kind
                types[feature.name] = {"f": "float", "b": "bool"}.get(kind, "int64")
        return types

    def shown_frames(self) -> dict[str, tuple[int, int, int]]:
        """Return the frames of each camera whose shape is declared, with their height and width."""
        found = {}
        for feature in self._features:
            if feature.is_camera and len(feature.shape) == 3 and CHANNELS in feature.shape:
                channels_last = feature.shape[-1] == CHANNELS
                height, width = feature.shape[:2] if channels_last else feature.shape[1:]
                found[feature.name] = self._window_frames.get(feature.name, 1), height, width
        return found

    def remarks(self) -> list[str]:
        """Return which columns are left out, and what row groups of several episodes cost."""
        said = []
        if self._undeclared:
            them = "is" if len(self._undeclared) == 1 else "are"
            said.append(
                f"{listed(self._undeclared)} in the tables of {self.root} {them} not declared in "
                "meta/info.json and left out: declare what is meant"
            )
        episodes, groups = len(self._chosen), len(set(self.places))
        if self._frames.parts > episodes or groups < episodes:
            said.append(
                f"the {episodes} episodes lie in {groups} row groups, and for a frame a row "
                "group is read whole: penstockd reshard gives each episode its own"
            )
        return said

    def digests(self) -> Mapping[str, str]:
        """Return the hash of each file's footer, by path."""
        return {file.path: self._footers.noted(file).sha256 for file in self.shards}

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies `meta` and the tables; videos are media, which identify theirs."""
        meta = self.meta.files
        return {"meta": meta.fingerprint(lambda _: "", meta.files), "data": super().fingerprint()}

    def media_dirs(self) -> dict[str, str]:
        """Return the folder that videos are relative to; none where no camera is a video."""
        if not any(feature.kind == VIDEO for feature in self._features):
            return {}
        return {"": (self.video_root or self._data_root).rstrip("/")}

    def hand_over(self) -> list[Catalog]:
        """Return what is known of the files, for the workers of this node."""
        return [*super().hand_over(), self.meta.files.hand_over()]

    def check_present(self) -> None:
        """Refuse files that are gone or changed, where they lie on this machine's disks.

        Raises:
            SourceChanged: Names the file.
        """
        super().check_present()
        self.meta.files.check_all()

    # --- items ---

    def load(self, number: int, index: int) -> tuple[FrameRows, int]:
        """Return a row group, decoded, and the bytes that it takes."""
        group = self._groups[number]
        table = self._reader.whole(group, self.names, index)
        self.count_read(self._stored[number])
        rows = FrameRows(table, self._items.read, group)
        self._items.check_rows(rows, self.starts[number], self.block_items[number])
        return rows, rows.nbytes

    def _frame_rows(self, block: int, index: int) -> FrameRows:
        rows = self.rows(block, index)
        assert isinstance(rows, FrameRows)  # `load` gives no others
        return rows

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the frames at `indices`, in that order, each with its windows.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable: A row group cannot be read at the moment.
            SourceChanged: A file is not the one that was opened.
            BadItem: It was read, and cannot be decoded: names the file and the place.
        """
        check_indices(indices, len(self))
        found: list[RawItem] = [None] * len(indices)
        with self._lock:
            # In order of storage: a row group is decoded once, however many are kept.
            for at in sorted(range(len(indices)), key=indices.__getitem__):
                found[at] = self._items.item(int(indices[at]))
        return found

    # --- conditions ---

    def has_column(self, name: str) -> bool:
        """Tell whether items can be chosen by a key: the task, and single numbers and texts.

        Of a key with a window, the frame's own value counts.
        """
        if name == TASK:
            return True
        found = self.meta.info.features.get(name)
        return found is not None and (
            found.kind == TEXT or (found.kind == NUMBERS and found.shape == (1,))
        )

    def column(self, name: str, start: int, stop: int) -> Any:
        """Return a key of the items `[start, stop)`, read without the rest of them.

        Raises:
            SourceUnavailable: A row group cannot be read at the moment.
            SourceChanged: A file is not the one that was opened.
            InvalidJob: A column cannot be decoded.
        """
        stored = TASK_NUMBER if name == TASK else name
        blocks, rows = self._frames.find(np.arange(start, stop))
        found: list[Any] = []
        for block in dict.fromkeys(blocks.tolist()):
            own = rows[blocks == block]
            (part,) = self._reader.alone(
                [self._groups[block]], [stored], lambda table: table.column(stored)
            )
            found += part.take(require("pyarrow").array(own)).to_pylist()
        return [self.meta.tasks.get(number) for number in found] if name == TASK else found

    def kept_of(self, where: Condition, blocks: range) -> list[NDArray[np.bool_]]:
        """Return which frames of consecutive blocks a condition keeps: bool (frames,) each."""
        found = []
        for block in blocks:
            start, stop = self.starts[block], self.starts[block + 1]
            columns = [where.holds(name, self.column(name, start, stop)) for name in where.columns]
            found.append(np.logical_and.reduce(columns))
        return found

    def matching(self, where: Condition) -> Kept:
        """Return which frames a condition keeps; each row group is read once.

        Raises:
            InvalidJob, SourceUnavailable, SourceChanged: As `column`.
        """
        return Kept.of(np.concatenate(self.kept_of(where, range(len(self.places)))))

    def close(self) -> None:
        """Close all files and release decoded row groups."""
        super().close()
        with self._lock:
            self._reader.close()
