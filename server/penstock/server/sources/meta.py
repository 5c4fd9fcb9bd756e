"""A file that lists data sets, each with its files, columns, tags and ratio: read as one source."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple

import numpy as np

from penstock.common.elsewhere import ELSEWHERE
from penstock.common.nearest import hint, nearest
from penstock.common.resources import usable_cpus
from penstock.server.config.class_parameters import check_parameters
from penstock.server.core.shown import shown
from penstock.server.files.catalog import HandedOver
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.parameters import declared
from penstock.server.roles.reading import Blocks
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource, Source
from penstock.server.sources.meta_file import DataSetEntry, chosen_entries, read_entries
from penstock.server.sources.meta_items import converted
from penstock.server.sources.meta_runs import DataSetRuns
from penstock.server.sources.on_demand import BUILTIN_SOURCES
from penstock.server.sources.requirements import check_indices
from penstock.server.sources.tokens import TokenFiles
from penstock.wire.errors import PenstockError

logger = logging.getLogger("penstock")

MAX_THREADS = 32
"""Data sets that are opened at once, at most."""


class Opened(NamedTuple):
    """A data set that is open.

    Attributes:
        entry: What the meta file says of it.
        source: Its items.
        seconds: How long opening it took.
    """

    entry: DataSetEntry
    source: IndexedSource
    seconds: float


@declared
class MetaSource(IndexedSource):
    """The data sets of a meta file, one after another by name, as one source.

    The file is JSON or YAML: a map of names to data sets, or a list of them, maybe below the key
    `datasets`. A data set has these keys:

    * `file_name` (or `path`): its files; a relative one is relative to the meta file.
    * `type` (or `data_type`): the source type; default by the ending of `file_name`.
    * `columns`: what the files call `messages`, `images`, `videos` and `audios`; items then have
      these.
    * `tags`: how turns are written: `role_tag`, `content_tag`, `user_tag`, `assistant_tag`,
      `system_tag`; messages then have `role` (user, assistant, system) and `content`.
    * `sample_ratio` (or `ratio`): 0.5 takes half of the items, always the same ones; 2.5 takes all
      twice and half of them once more. Default 1.
    * `media_dir` (or `data_folder`): what pictures, sounds and films that the items name are
      relative to, a path relative to the meta file or a URL, see `media` of a job.
    * `options`: more parameters of the source.

    Data sets are opened at the same time, and always in the order of their names (of a list: in its
    order), which the log id knows. What opening them took is logged.

    Args:
        file: The meta file, a path or a URL.
        dataset_names: Which of the data sets to read; None = all.
        seed: Decides which items a `sample_ratio` takes.
        storage_options: Options of the fsspec filesystem of the meta file and of its data sets,
            such as endpoint and credentials. They change no batch.

    Raises:
        InvalidJob: The file cannot be read or is wrong, a name is not in it, a data set cannot be
            opened: names file, line and data set.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "meta"
    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("file",)
    may_read_ahead: ClassVar[bool] = True

    file: str
    dataset_names: Sequence[str] | None = None
    _: KW_ONLY
    seed: int = 42
    storage_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        entries = read_entries(self.file, self.storage_options or {})
        if self.dataset_names is not None:
            entries = chosen_entries(entries, self.dataset_names, self.file)
        self.parts = _opened(entries, self.storage_options)
        self.gives_fresh_items = all(  # type: ignore[misc]
            part.source.gives_fresh_items for part in self.parts
        )
        sources = [part.source for part in self.parts]
        self._runs = DataSetRuns(sources, [part.entry for part in self.parts], self.seed)

    def __len__(self) -> int:
        return self._runs.starts[-1]

    def blocks(self) -> Blocks | None:
        """Return the blocks of all data sets, those of a ratio above 1 several times."""
        return self._runs.blocks()

    def keep_blocks(self, count: int) -> None:
        """Let every data set keep so many blocks."""
        for part in self.parts:
            part.source.keep_blocks(count)

    def most_cached_bytes(self) -> int | None:
        """Return the sum of what the data sets keep at most; None = as many as are needed."""
        kept = [part.source.most_cached_bytes() for part in self.parts]
        return None if None in kept else sum(nbytes or 0 for nbytes in kept)

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items at `indices`, in that order, with the meta file's columns and tags.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable, SourceChanged, BadItem: As the source of the data set raises them.
        """
        items: list[Any] = [None] * len(indices)
        check_indices(indices, len(self))
        for number, places, wanted in self._runs.by_part(indices):
            entry, source, _ = self.parts[number]
            found = source.fetch(wanted)
            for place, item, index in zip(places, found, wanted, strict=True):
                items[place] = converted(entry, item, index)
        return items

    def knows_sizes(self) -> bool:
        """Tell whether all data sets do, and their items are left as they are."""
        return all(
            part.source.knows_sizes() and not part.entry.columns and not part.entry.tags
            for part in self.parts
        )

    def sizes(self, indices: Sequence[int]) -> Sequence[int] | None:
        """Return the sizes of items, as their data sets know them."""
        if not self.knows_sizes():
            return None
        sizes: list[int] = [0] * len(indices)
        check_indices(indices, len(self))
        for number, places, wanted in self._runs.by_part(indices):
            told = self.parts[number].source.sizes(wanted)
            assert told is not None
            for place, size in zip(places, told, strict=True):
                sizes[place] = int(size)
        return sizes

    def spread(self, count: int) -> Iterator[int]:
        """Yield items at equal distances, after the first of each data set: a check meets all."""
        firsts = self._runs.firsts()
        others = super().spread(max(0, count - len(firsts)))
        yield from list(dict.fromkeys([*firsts, *others]))[:count]

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return the items of each data set by its name: `[start, stop)`, copies among them."""
        found: dict[str, tuple[int, int]] = {}
        for start, run in zip(self._runs.starts, self._runs.runs, strict=False):
            name = self.parts[run.part].entry.name
            found[name] = found.get(name, (start, 0))[0], start + run.chosen
        return found

    def has_column(self, name: str) -> bool:
        """Tell whether all data sets have this column, under the same name."""
        return all(
            not part.entry.columns and not part.entry.tags and part.source.has_column(name)
            for part in self.parts
        )

    def column(self, name: str, start: int, stop: int) -> list[Any]:
        """Return a column of the items `[start, stop)`, as their data sets give it."""
        return [item.get(name) for item in self.fetch(range(start, stop))]

    def matching(self, where: Condition) -> Kept:
        """Return which items a condition keeps; each data set is asked once.

        Raises:
            InvalidJob, SourceUnavailable, SourceChanged: As the sources of the data sets raise
                them.
        """
        told = [part.source.matching(where) for part in self.parts]
        of_parts = [kept.mask() for kept in told]
        found = []
        for run in self._runs.runs:
            kept = of_parts[run.part][run.first : run.first + run.length]
            found.append(kept if run.chosen == run.length else kept[self._runs.chosen(run).mask()])
        return Kept.of(np.concatenate(found))

    def fingerprint(self) -> list[Any]:
        """Return what identifies each data set: its source's identity, ratio, columns and tags."""
        return [
            {
                "name": part.entry.name,
                "source": part.source.identity(),
                "ratio": float(part.entry.ratio),
                "columns": dict(part.entry.columns),
                "tags": dict(part.entry.tags),
            }
            for part in self.parts
        ]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, beside what the fingerprint says."""
        found = super().parameters()
        return {"seed": found["seed"]} if "seed" in found else {}

    def unseen(self) -> str | None:
        """Return what a data set's fingerprint does not tell, or None."""
        return next((said for part in self.parts if (said := part.source.unseen())), None)

    def check_present(self) -> None:
        """Refuse data sets whose files are gone or changed.

        Raises:
            SourceChanged: Names the file.
        """
        for part in self.parts:
            part.source.check_present()

    def hand_over(self) -> list[HandedOver]:
        """Return the data sets' files with what is known of them, for the workers of this node."""
        return [catalog for part in self.parts for catalog in part.source.hand_over()]

    def media_dirs(self) -> dict[str, str]:
        """Return the directories of media by the names of data sets."""
        return {
            part.entry.name: part.entry.media_dir for part in self.parts if part.entry.media_dir
        }

    def read_bytes(self) -> int:
        """Return the bytes that were read from storage since the last call."""
        return sum(part.source.read_bytes() for part in self.parts)

    def close(self) -> None:
        """Close the data sets."""
        for part in self.parts:
            part.source.close()


def _opened(entries: Sequence[DataSetEntry], options: dict[str, Any] | None) -> list[Opened]:
    """Open the data sets, several at once, and say what that took."""
    started = time.monotonic()

    def opened(entry: DataSetEntry) -> Opened:
        begun = time.monotonic()
        try:
            return Opened(entry, _source(entry, options), time.monotonic() - begun)
        except PenstockError as error:
            message = f"data set {shown(entry.name)} of {entry.at.file}: {error.message}"
            logger.error("%s", message)
            raise error.reworded(message) from error

    with ThreadPoolExecutor(min(len(entries), usable_cpus(), MAX_THREADS)) as pool:
        parts = list(pool.map(opened, entries))
    _say(parts, time.monotonic() - started)
    return parts


def _source(entry: DataSetEntry, options: dict[str, Any] | None) -> IndexedSource:
    known: dict[str, tuple[type[Source], str]] = {
        name: (cls, parameter)
        for name, cls in BUILTIN_SOURCES.items()
        if issubclass(cls, IndexedSource)
        for parameter in ("files", "path")
        if parameter in cls.path_params
    }
    if entry.type not in known:
        raise entry.at.error(
            f"{entry.at.key}: there is no type {shown(entry.type)} of data sets: "
            f"{hint(entry.type, known)}"
        )
    cls, parameter = known[entry.type]
    given = {parameter: entry.path, **entry.options}
    check_parameters(cls, given, entry.at.at("options"), _remedy)
    if options and entry.type != "hf":  # which opens no URLs
        given.setdefault("storage_options", options)
    source = cls(**given)
    assert isinstance(source, IndexedSource)
    return source


def _remedy(word: str, known: Collection[str]) -> str:
    return hint(word, known) if nearest(word, known) else ELSEWHERE.get(word) or hint(word, known)


def _say(parts: Sequence[Opened], wall_s: float) -> None:
    """Log how many items each data set has, and how long opening it took.

    Tokens are told where files of ids say how many they have; `penstockd index` counts others.
    """

    def counted(source: IndexedSource) -> str:
        items = f"{len(source):,} items"
        if not isinstance(source, TokenFiles):
            return items
        return f"{items} of {source.token_count():,} tokens"

    table = "; ".join(
        f"{part.entry.name}: {counted(part.source)}, ratio {float(part.entry.ratio):g}, "
        f"{part.seconds:.2f} s"
        for part in parts
    )
    total = sum(part.seconds for part in parts)
    logger.info(
        "opened %d data sets with %s items in %.2f s, %.1f at once: %s",
        len(parts),
        f"{sum(len(part.source) for part in parts):,}",
        wall_s,
        total / wall_s if wall_s else 1.0,
        table,
    )
