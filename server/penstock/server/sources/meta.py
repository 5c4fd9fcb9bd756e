"""A file that lists data sets, each with its files, columns, tags and ratio: read as one source."""

from __future__ import annotations

import logging
import posixpath
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from penstock.common.elsewhere import ELSEWHERE
from penstock.common.nearest import hint, listed, nearest
from penstock.common.resources import usable_cpus
from penstock.server.config.class_parameters import check_parameters
from penstock.server.config.location import Location
from penstock.server.core.permutation import Permutation
from penstock.server.core.shares import MAX_RATIO, sample_ratio
from penstock.server.core.shown import shown
from penstock.server.files.catalog import Catalog
from penstock.server.roles.base import IndexedSource, RawItem, Source
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.parameters import KW_ONLY, declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.kinds import kind_of
from penstock.server.sources.on_demand import BUILTIN_SOURCES
from penstock.server.sources.requirements import check_indices, located
from penstock.server.sources.tokens import TokenFiles
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, InvalidJob, PenstockError, SourceUnavailable
from penstock.wire.plain import clean_text

logger = logging.getLogger("penstock")

MAX_THREADS = 32
"""Data sets that are opened at once, at most."""

_CHOICES = 1024
"""Blocks of which a part is read, kept for draws to come: as many as groups draw from at once."""

KEYS = {
    "file_name": "path",
    "path": "path",
    "data_type": "type",
    "type": "type",
    "name": "name",
    "columns": "columns",
    "tags": "tags",
    "sample_ratio": "ratio",
    "ratio": "ratio",
    "options": "options",
}
"""The keys of a data set, with what each of them means; some have a name of LLaMA-Factory's and of
LMMS-Engine's meta files beside ours."""

TYPES = {"hf_dataset": "saved", "huggingface": "saved"}
"""What other programs call a type."""

COLUMNS = ("messages", "images", "videos")

TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}
"""What `tags` says, with the values of ShareGPT for those that are left out."""

ROLES = {"user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}


@dataclass(frozen=True)
class DataSetEntry:
    """A data set of a meta file.

    Attributes:
        name: Its name.
        path: Its files, a path or a URL; relative to the meta file.
        type: The type of its source.
        columns: The items' names of columns, with what the files call them; empty = as they are.
        tags: How turns of conversations are written; empty = as they are.
        ratio: How many of its items an epoch has, as a part of all.
        options: More parameters of its source.
        at: Where it is in the meta file, for messages.
    """

    name: str
    path: str
    type: str
    columns: Mapping[str, str]
    tags: Mapping[str, str]
    ratio: Fraction
    options: Mapping[str, Any]
    at: Location


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


class _ItemRun(NamedTuple):
    """Items of a data set that follow one another: a block of it, or some of the items of one.

    Attributes:
        part: The number of the data set.
        first: The index of the block's first item.
        length: How many items the block has.
        chosen: How many of them are in the run; fewer than `length` are chosen by a permutation.
    """

    part: int
    first: int
    length: int
    chosen: int


@declared
class MetaSource(IndexedSource):
    """The data sets of a meta file, one after another by name, as one source.

    The file is JSON or YAML: a map of names to data sets, or a list of them, maybe below the key
    `datasets`. A data set has these keys:

    * `file_name` (or `path`): its files; a relative one is relative to the meta file.
    * `type` (or `data_type`): the source type; default by the ending of `file_name`.
    * `columns`: what the files call `messages`, `images` and `videos`; items then have these.
    * `tags`: how turns are written: `role_tag`, `content_tag`, `user_tag`, `assistant_tag`,
      `system_tag`; messages then have `role` (user, assistant, system) and `content`.
    * `sample_ratio` (or `ratio`): 0.5 takes half of the items, always the same ones; 2.5 takes all
      twice and half of them once more. Default 1.
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
        entries = _read(self.file, self.storage_options or {})
        if self.dataset_names is not None:
            entries = _chosen(entries, self.dataset_names, self.file)
        self.parts = _opened(entries, self.storage_options)
        self.gives_fresh_items = all(  # type: ignore[misc]
            part.source.gives_fresh_items for part in self.parts
        )
        self._runs = [run for number in range(len(self.parts)) for run in self._runs_of(number)]
        self._starts = [0, *accumulate(run.chosen for run in self._runs)]
        self._choice = lru_cache(_CHOICES)(self._chosen_of)

    def __len__(self) -> int:
        return self._starts[-1]

    def blocks(self) -> Blocks | None:
        """Return the blocks of all data sets, those of a ratio above 1 several times."""
        stored = [part.source.blocks() for part in self.parts]
        if all(blocks is None for blocks in stored):
            return None
        return Blocks(
            [run.chosen for run in self._runs],
            self._of_blocks(stored, "nbytes"),
            self._of_blocks(stored, "stored"),
            all(blocks is None or blocks.items_are_apart for blocks in stored),
            sum(blocks.decoded for blocks in stored if blocks is not None),
        )

    def keep_blocks(self, count: int) -> None:
        """Let every data set keep so many blocks."""
        for part in self.parts:
            part.source.keep_blocks(count)

    def most_kept_bytes(self) -> int | None:
        """Return the sum of what the data sets keep at most; None = as many as are needed."""
        kept = [part.source.most_kept_bytes() for part in self.parts]
        return None if None in kept else sum(nbytes or 0 for nbytes in kept)

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items at `indices`, in that order, with the meta file's columns and tags.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable, SourceChanged, BadItem: As the source of the data set raises them.
        """
        items: list[Any] = [None] * len(indices)
        for number, places, wanted in self._by_part(indices):
            entry, source, _ = self.parts[number]
            found = source.fetch(wanted)
            for place, item, index in zip(places, found, wanted, strict=True):
                items[place] = _converted(entry, item, index)
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
        for number, places, wanted in self._by_part(indices):
            told = self.parts[number].source.sizes(wanted)
            assert told is not None
            for place, size in zip(places, told, strict=True):
                sizes[place] = int(size)
        return sizes

    def spread(self, count: int) -> Iterator[int]:
        """Yield items at equal distances, after the first of each data set: a check meets all."""
        runs = zip(self._starts, self._runs, strict=False)
        firsts = {run.part: start for start, run in reversed([*runs]) if run.chosen}
        others = super().spread(max(0, count - len(firsts)))
        yield from list(dict.fromkeys([*sorted(firsts.values()), *others]))[:count]

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return the items of each data set by its name: `[start, stop)`, copies among them."""
        found: dict[str, tuple[int, int]] = {}
        for start, run in zip(self._starts, self._runs, strict=False):
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
        for run in self._runs:
            kept = of_parts[run.part][run.first : run.first + run.length]
            found.append(kept if run.chosen == run.length else kept[self._choice(run).mask()])
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

    def hand_over(self) -> list[Catalog]:
        """Return the data sets' files with what is known of them, for the workers of this node."""
        return [catalog for part in self.parts for catalog in part.source.hand_over()]

    def read_bytes(self) -> int:
        """Return the bytes that were read from storage since the last call."""
        return sum(part.source.read_bytes() for part in self.parts)

    def close(self) -> None:
        """Close the data sets."""
        for part in self.parts:
            part.source.close()

    # --- which items ---

    def _runs_of(self, number: int) -> list[_ItemRun]:
        """Return the runs of a data set: all of its blocks, as often as its ratio says."""
        entry, source, _ = self.parts[number]
        blocks = source.blocks()
        lengths = [len(source)] if blocks is None else list(blocks.items)
        starts = [0, *accumulate(lengths)]
        copies, part = divmod(entry.ratio, 1)
        whole = [
            _ItemRun(number, start, length, length)
            for start, length in zip(starts, lengths, strict=False)
        ]
        some = []
        wanted = int(len(source) * part) or (1 if part and not copies else 0)
        for start, length in zip(starts, lengths, strict=False):
            # As many of each block as its share says, so that all blocks together have `wanted`.
            stop = start + length
            chosen = stop * wanted // len(source) - start * wanted // len(source)
            some.append(_ItemRun(number, start, length, chosen))
        return [*(whole * copies), *(some if wanted else [])]

    def _of_blocks(self, stored: Sequence[Blocks | None], what: str) -> list[int] | None:
        """Return a number of each run's block; None = a data set does not know it."""
        known: list[dict[int, int]] = []
        for blocks in stored:
            if blocks is None:
                known.append({0: 0})
                continue
            numbers = getattr(blocks, what)
            if numbers is None:
                return None
            known.append(dict(zip([0, *accumulate(blocks.items)], numbers, strict=False)))
        return [known[run.part][run.first] for run in self._runs]

    def _by_part(self, indices: Sequence[int]) -> list[tuple[int, list[int], list[int]]]:
        """Return for each data set the places in `indices`, and the items' own indices there."""
        check_indices(indices, len(self))
        found: dict[int, tuple[list[int], list[int]]] = {}
        for place, index in enumerate(indices):
            number = bisect_right(self._starts, index) - 1
            run = self._runs[number]
            within = index - self._starts[number]
            if run.chosen < run.length:
                within = self._choice(run)[within]
            places, wanted = found.setdefault(run.part, ([], []))
            places.append(place)
            wanted.append(run.first + within)
        return [(part, places, wanted) for part, (places, wanted) in found.items()]

    def _chosen_of(self, run: _ItemRun) -> Kept:
        """Return which items of its block a run has: a bit for each, as a block may be large."""
        name = self.parts[run.part].entry.name
        order = Permutation(run.length, self.seed, run.first, f"ratio of {name}")
        chosen = np.zeros(run.length, dtype=bool)
        chosen[order.take(np.arange(run.chosen))] = True
        return Kept.of(chosen)


# --- the file ---


def _read(file: str, options: dict[str, Any]) -> list[DataSetEntry]:
    """Return the data sets of a meta file, in order.

    Raises:
        InvalidJob: It cannot be read, or is wrong: names line and data set.
        SourceUnavailable: It cannot be read at the moment.
    """
    at = Location(file, Path(posixpath.dirname(file)))
    try:
        fs, path = located(file, options)
        text = fs.cat_file(path).decode()
    except (FileNotFoundError, PermissionError) as error:
        raise at.error(f"the meta file cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise at.error(f"the meta file is not UTF-8 ({error.reason}): convert it") from None
    except Exception as error:
        if not isinstance(error, OSError) and not is_transient(error):
            raise
        raise SourceUnavailable(
            f"{file} cannot be read at the moment: {error}", item=file
        ) from error
    from penstock.server.config.yaml_file import parse  # other sources have no YAML

    said, at = parse(text.replace("\t", " ") if file.endswith(".json") else text, at)
    if isinstance(said, dict) and "datasets" in said and isinstance(said["datasets"], list | dict):
        said, at = said["datasets"], at.at("datasets")
    if isinstance(said, dict):
        named = (
            sorted(
                ((str(name), entry, at.at(str(name))) for name, entry in said.items()),
                key=lambda found: found[0],
            )
            if all(isinstance(entry, dict) for entry in said.values())
            else []
        )
    else:
        named = [
            ("", entry, at.at(number))
            for number, entry in enumerate(said if isinstance(said, list) else [])
        ]
    if not named:
        raise at.error(
            "a meta file maps names of data sets to {file_name: ..., ...}, or is a list of such: "
            "it has none"
        )
    entries = [_entry(name, entry, where) for name, entry, where in named]
    taken: set[str] = set()
    for entry in entries:
        if entry.name in taken:
            raise entry.at.error(
                f"two data sets have the name {shown(entry.name)}: give each its own"
            )
        taken.add(entry.name)
    return entries


def _entry(name: str, said: Any, at: Location) -> DataSetEntry:
    if not isinstance(said, dict):
        raise at.error(f"{at.key} is {shown(said)}: a data set has keys, file_name at least")
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key in ("media_dir", "data_folder") and value:
            raise at.at(key).error(
                f"{at.key}: {key} names media files, which type: meta does not read: let a "
                "processor read the files that the items name"
            )
        if key not in KEYS and key not in ("media_dir", "data_folder"):
            raise at.at(str(key)).error(
                f"{at.key} has a key {shown(key)} that is not one of a data set: "
                f"{hint(str(key), KEYS)}"
            )
        found[KEYS.get(key) or key] = value
    path = found.get("path")
    if not isinstance(path, str) or not path:
        raise at.error(f"{at.key} has no file_name: name its files, relative to the meta file")
    kind = found.get("type") or kind_of(path)
    if kind is not None and not isinstance(kind, str):
        raise at.at("type").error(f"{at.key}: type is {shown(kind)}: give a name, such as jsonl")
    if kind is None:
        raise at.error(
            f"{at.key}: {shown(path)} does not tell what it holds: give its type, as jsonl"
        )
    options = found.get("options")
    if options is not None and not isinstance(options, dict):
        raise at.at("options").error(
            f"{at.key}: options is {shown(options)}: give keys and values, the parameters of the "
            f"source"
        )
    return DataSetEntry(
        name or str(found.get("name") or posixpath.splitext(posixpath.basename(path))[0]),
        _resolved(path, at.file),
        TYPES.get(kind, kind),
        _names(found.get("columns"), COLUMNS, at.at("columns")),
        _names(found.get("tags"), TAGS, at.at("tags")),
        _ratio(found.get("ratio", 1), at),
        options or {},
        at,
    )


def _names(said: Any, known: Sequence[str] | Mapping[str, str], at: Location) -> dict[str, str]:
    if said is None:
        return {}
    if not isinstance(said, dict) or not all(isinstance(value, str) for value in said.values()):
        raise at.error(
            f"{at.key} is {shown(said)}: give names, such as {{{next(iter(known))}: ...}}"
        )
    for key in said:
        if key not in known:
            raise at.at(str(key)).error(f"{at.key} has a key {shown(key)}: {hint(str(key), known)}")
    return dict(said)


def _ratio(said: Any, at: Location) -> Fraction:
    found = sample_ratio(said)
    if found is None:
        raise at.error(
            f"{at.key}: sample_ratio is {shown(said)}: give a number above 0 and up to "
            f"{MAX_RATIO:,}, and leave a data set out with dataset_names"
        )
    return found


def _resolved(path: str, file: str) -> str:
    """Return a path or URL of a meta file: a relative one is relative to the file."""
    if "://" in path or path.startswith("/"):
        return path
    return posixpath.join(posixpath.dirname(file), path)


def _chosen(entries: Sequence[DataSetEntry], names: Sequence[str], file: str) -> list[DataSetEntry]:
    known = [entry.name for entry in entries]
    if isinstance(names, str) or not names:
        raise InvalidJob(
            f"dataset_names is {names!r}: give a list of names, of {', '.join(known)}",
            key="source.dataset_names",
        )
    for name in names:
        if name not in known:
            raise InvalidJob(
                f"{file} has no data set {name!r}: {hint(name, known)}", key="source.dataset_names"
            )
    return [entry for entry in entries if entry.name in names]


# --- opening ---


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


# --- items ---


def _converted(entry: DataSetEntry, item: RawItem, index: int) -> RawItem:
    """Return an item with the columns and the turns that the meta file asks for."""
    if not entry.columns and not entry.tags:
        return item
    if not isinstance(item, Mapping):
        raise _bad(entry, index, f"is of type {type(item).__name__} and has no columns")
    if entry.columns:
        for name, column in entry.columns.items():
            if column not in item and name == "messages":
                raise _bad(
                    entry, index, f"has no column {shown(column)}: it has {listed(map(str, item))}"
                )
        item = {name: item[column] for name, column in entry.columns.items() if column in item}
    if not entry.tags:
        return item
    if "messages" not in item:
        raise _bad(entry, index, "has no messages: say with columns what the files call them")
    return {**item, "messages": _turns(entry, item["messages"], index)}


def _turns(entry: DataSetEntry, messages: Any, index: int) -> list[dict[str, Any]]:
    tags = {**TAGS, **entry.tags}
    roles = {tags[tag]: role for tag, role in ROLES.items()}
    try:
        return [
            {
                "role": roles.get(turn[tags["role_tag"]], turn[tags["role_tag"]]),
                "content": turn[tags["content_tag"]],
            }
            for turn in messages
        ]
    except (KeyError, TypeError) as error:
        raise _bad(
            entry,
            index,
            f"has turns without {shown(tags['role_tag'])} and {shown(tags['content_tag'])} "
            f"({error_line(error, 300)})",
        ) from None


def _bad(entry: DataSetEntry, index: int, said: str) -> BadItem:
    return BadItem(
        f"item {index} of data set {shown(entry.name)} {said}: correct it, or columns and tags in "
        f"{entry.at.file}",
        path=entry.path,
        reason=clean_text(f"item {index} of data set {entry.name!r} {said}", 300),
    )


__all__ = ["COLUMNS", "KEYS", "TAGS", "DataSetEntry", "MetaSource", "Opened"]
