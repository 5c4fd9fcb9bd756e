"""What a meta file says: its data sets, each with files, columns, tags and ratio."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from penstock.common.nearest import hint
from penstock.server.config.location import Location
from penstock.server.core.shares import MAX_RATIO, sample_ratio
from penstock.server.core.shown import shown
from penstock.server.files.filesystems import located
from penstock.server.sources.kinds import kind_of
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import InvalidJob, SourceUnavailable

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
    "media_dir": "media_dir",
    "data_folder": "media_dir",
}
"""The keys of a data set, with what each of them means; some have a name of LLaMA-Factory's and of
LMMS-Engine's meta files beside ours."""

TYPES = {"hf_dataset": "saved", "huggingface": "saved"}
"""What other programs call a type."""

COLUMNS = ("messages", "images", "videos", "audios")

TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "system_tag": "system",
}
"""What `tags` says, with the values of ShareGPT for those that are left out."""


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
        media_dir: What its items' media are relative to, a path or a URL; empty = none is.
        at: Where it is in the meta file, for messages.
    """

    name: str
    path: str
    type: str
    columns: Mapping[str, str]
    tags: Mapping[str, str]
    ratio: Fraction
    options: Mapping[str, Any]
    media_dir: str
    at: Location


def read_entries(file: str, options: dict[str, Any]) -> list[DataSetEntry]:
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
        if key not in KEYS:
            raise at.at(str(key)).error(
                f"{at.key} has a key {shown(key)} that is not one of a data set: "
                f"{hint(str(key), KEYS)}"
            )
        found[KEYS[key]] = value
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
    media_dir = found.get("media_dir") or ""
    if not isinstance(media_dir, str):
        raise at.error(f"{at.key}: media_dir is {shown(media_dir)}: give a path or a URL")
    return DataSetEntry(
        name or str(found.get("name") or posixpath.splitext(posixpath.basename(path))[0]),
        _resolved(path, at.file),
        TYPES.get(kind, kind),
        _names(found.get("columns"), COLUMNS, at.at("columns")),
        _names(found.get("tags"), TAGS, at.at("tags")),
        _ratio(found.get("ratio", 1), at),
        options or {},
        _resolved(media_dir, at.file) if media_dir else "",
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


def chosen_entries(
    entries: Sequence[DataSetEntry], names: Sequence[str], file: str
) -> list[DataSetEntry]:
    """Return those of the data sets that are asked for, in the file's order.

    Raises:
        InvalidJob: A name is not in the file.
    """
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
