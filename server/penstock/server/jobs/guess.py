"""A job file for data that nobody has described: source, column, tokenizer and sizes, guessed."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.common.nearest import hint
from penstock.server.config.class_parameters import constructor_parameters
from penstock.server.config.location import Location
from penstock.server.core.shown import shown
from penstock.server.job.job import DEFAULT_LANES
from penstock.server.jobs.registry import KINDS, build
from penstock.server.roles.base import IndexedSource, RawItem
from penstock.server.roles.processors.tokenizer_file import WHOLE, from_the_hub
from penstock.server.sources import BUILTIN_SOURCES
from penstock.server.sources.kinds import COMPRESSED, kind_of
from penstock.server.sources.kinds import KINDS as SOURCES
from penstock.wire.errors import BadItem, InvalidJob, InvalidRequest

_TOKENIZER = "tokenizer.json"

END_TOKENS = (
    "<eos>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<end_of_turn>",
    "[EOS]",
    "[SEP]",
)
"""Names of the token after a document in vocabularies, most common first."""

LOOKED_AT = 64
"""Items that are read to guess columns."""

MAX_OBJECT_BYTES = 1 << 20
"""A larger file is taken for rows without a look: no list of data sets is as long."""

POOL_SIZE, BATCH_SIZE = 64, 8

TURNS = ({"role", "content"}, {"from", "value"})
"""The keys of a turn of a conversation: of OpenAI, of ShareGPT."""

_LANES = tuple(lanes for lanes in range(DEFAULT_LANES, 0, -1) if DEFAULT_LANES % lanes == 0)


@dataclass
class Guess:
    """What is known about some data.

    Attributes:
        source: The `source:` section.
        items: How many items it holds.
        text_column: The column with the longest texts, if any.
        ids_column: A column that is tokenized already, if any.
        beside_ids: Columns that batches take beside the ids, such as labels.
        chat_column: A column of conversations, if any; then there is no text column.
        columns: All columns; empty if items are not dicts.
        tokenizer: A tokenizer.json; for conversations the folder of one, with a chat template.
        end_token: The vocabulary's token after a document.
        lanes: How many lanes suit that many items.
        pool_size: How large a packing pool suits them.
        max_tokens: How long rows suit the amount of text.
        batch_size: Samples of a batch, where they are asked for in place of rows of tokens.
        on_item_error: What becomes of items that fail.
        notes: What was left out and why.
    """

    source: dict[str, Any]
    items: int
    text_column: str | None = None
    ids_column: str | None = None
    beside_ids: list[str] = field(default_factory=list)
    chat_column: str | None = None
    columns: list[str] = field(default_factory=list)
    tokenizer: str | None = None
    end_token: str | None = None
    lanes: int = DEFAULT_LANES
    pool_size: int = POOL_SIZE
    max_tokens: int = 8192
    batch_size: int | None = None
    on_item_error: str = "stop"
    notes: list[str] = field(default_factory=list)

    @property
    def takes_columns(self) -> bool:
        """Tell whether the source can leave columns out."""
        return "columns" in constructor_parameters(BUILTIN_SOURCES[self.source["type"]])

    @property
    def read_columns(self) -> list[str]:
        """Return the columns that batches are made of; empty = all of them."""
        if not self.gives_tokens:
            return []
        if self.ids_column is not None:
            return [self.ids_column, *self.beside_ids]
        read = self.chat_column or self.text_column or ""
        return [read if read in self.columns else read.partition(".")[0]]

    @property
    def left_out(self) -> list[str]:
        """Return the columns that do not come into batches."""
        read = self.read_columns
        return [name for name in self.columns if read and name not in read]

    @property
    def gives_tokens(self) -> bool:
        """Tell whether samples have token ids, so that they can be packed."""
        text = self.text_column or self.chat_column
        return self.ids_column is not None or (self.tokenizer is not None and text is not None)


def guess(
    paths: Sequence[str],
    base: Path,
    tokenizer: str | None = None,
    *,
    column: str | None = None,
    max_tokens: int | None = None,
    batch_size: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Guess:
    """Look at data and say how a job would read it.

    Args:
        paths: Files, globs, folders or URLs.
        base: The folder of the job file: what lies below it is named relative to it.
        tokenizer: A tokenizer.json, or its folder; None looks for one beside the data and beside
            the job file.
        column: The column to read; None = the most likely one.
        max_tokens: The length of packed rows; None = what suits the amount of text.
        batch_size: Samples of a batch, in place of packed rows.
        options: Further parameters of the source, such as `split` or `eos`.

    Raises:
        InvalidRequest: There are no files, they are of several kinds, or what was requested does
            not go with the data.
        InvalidJob: The data cannot be opened.
    """
    if max_tokens is not None and batch_size is not None:
        raise InvalidRequest(
            "--max-tokens packs rows of tokens and --batch-size stacks samples: give one of them"
        )
    base = Path(os.path.abspath(base))
    notes: list[str] = []
    spec, folders = _source(paths, base, notes, options)
    spec |= options
    source = _opened(spec, paths, base)
    try:
        count = len(source)
        looked = _readable(source, range(min(LOOKED_AT, count)), notes)
    finally:
        source.close()
    found = Guess(spec, count, batch_size=batch_size, notes=notes)
    _columns(found, looked, column)
    if count < 4 * POOL_SIZE:
        found.pool_size = max(2, count // 4)
    read = found.chat_column or found.text_column or found.ids_column
    lengths = [_length(item, read) for item in looked]
    # About four characters make a token.
    tokens = count * sum(lengths) / max(1, len(lengths)) / (1 if found.ids_column else 4)
    if tokens < 128 * found.max_tokens:
        found.max_tokens = 1024
    if found.ids_column is None:
        given = [Path(path).expanduser().absolute() for path in paths]
        near = [*folders, *(path for path in given if path.is_dir())]
        path = _find_tokenizer(tokenizer, near, base)
        if path is not None:
            _take_tokenizer(found, path, base, asked=tokenizer is not None)
    if max_tokens is not None:
        if not found.gives_tokens:
            raise InvalidRequest(
                f"--max-tokens {max_tokens} packs tokens, and these items give none: add "
                "--tokenizer FILE, or leave --max-tokens out"
            )
        found.max_tokens = max_tokens
    packs = found.gives_tokens and batch_size is None
    found.lanes = _lanes(count, 4 * (POOL_SIZE if packs else batch_size or BATCH_SIZE))
    return found


def _opened(spec: dict[str, Any], paths: Sequence[str], base: Path) -> IndexedSource:
    """Return the source of a section.

    Raises:
        InvalidRequest: It needs a parameter that nobody can guess.
        InvalidJob: The data cannot be opened.
    """
    named = " ".join(paths)
    try:
        source: IndexedSource = build(KINDS["source"], spec, Location(named, base, ("source",)))
    except InvalidJob as error:
        of_source = error.__cause__
        key = of_source.key if isinstance(of_source, InvalidJob) else None
        if key == "source.split":
            assert isinstance(of_source, InvalidJob)
            said = of_source.message.replace(
                "choose one with split", "choose one with --split NAME"
            )
            raise InvalidRequest(said, field="split", value=named) from None
        if key != "source.eos" or {"eos", "sequence_length"} & spec.keys():
            raise
        raise InvalidRequest(
            f"{named} is one row of ids, and nothing says where documents end: add --source "
            "eos=ID, the id after each document, or --source sequence_length=N to cut it",
            field="path",
            value=named,
        ) from None
    return source


def _readable(source: IndexedSource, items: Sequence[int], notes: list[str]) -> list[RawItem]:
    """Return the items that can be read, and note what is wrong with the others.

    Raises:
        BadItem: None of them can; the first one's.
    """
    try:
        return list(source.fetch(items))
    except BadItem:
        found: list[RawItem] = []
    failed: list[BadItem] = []
    for index in items:
        try:
            found += source.fetch([index])
        except BadItem as error:
            failed.append(error)
    if not found:
        raise failed[0]
    why = " ".join((failed[0].reason or failed[0].message).split())  # a comment is one line
    notes.append(f"{len(failed)} of the first {len(items)} items cannot be read: {why}")
    return found


# --- files ---


def _source(
    paths: Sequence[str], base: Path, notes: list[str], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Path]]:
    """Return the source's section, and the folders of the data."""
    if any("://" in text for text in paths):
        return _of_urls(paths), []
    files: list[Path] = []
    patterns: list[str] = []
    for text in paths:
        path = Path(text).expanduser().absolute()
        if path.is_dir():
            if (written := _written_whole(path)) is not None:
                if len(paths) > 1:
                    raise InvalidRequest(
                        f"{text} is a folder that is read as one: give it alone, a job reads one"
                    )
                kind, key = written
                return {"type": kind, key: _named(path, base)}, [path, path.parent]
            inside, pattern = _folder(path, base, notes)
            files += inside
            patterns.append(pattern)
        elif path.is_file():
            files.append(path)
            patterns.append(_named(path, base))
        elif matches := sorted(glob.glob(str(path), recursive=True)):
            files += [Path(match) for match in matches if Path(match).is_file()]
            patterns.append(_named(path, base))
        else:
            raise InvalidRequest(
                f"there is no file or folder {text!r}{_of_the_hub(text)}", field="path", value=text
            )
    if not files:
        raise InvalidRequest(f"{' '.join(paths)} holds no files", field="path", value=paths[0])
    # With a dtype a file without a header is one of ids.
    kinds = Counter("tokens" if "dtype" in options else _kind(file) for file in files)
    if len(kinds) > 1:
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        raise InvalidRequest(
            f"the files are of several kinds ({listed}): a source reads one, so name those to use"
        )
    [kind] = kinds
    folders = list(dict.fromkeys(file.parent for file in files))
    chosen = _shorten(files, patterns, base)
    if kind.startswith("hf "):
        return {"type": "hf", "path": kind[3:], "data_files": chosen}, folders
    spec: dict[str, Any] = {"type": kind, "files": chosen}
    if kind == "text":
        _refuse_binary(files[0])
        if len(files) > 1:
            spec["sample_by"] = "document"
            notes.append("every file is one item; without sample_by every line is one")
        else:
            notes.append("every line is one item; sample_by: document takes whole files")
    if any(file.suffix == ".tsv" for file in files):
        spec["delimiter"] = "\t"
    return spec, folders


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def _of_the_hub(text: str) -> str:
    """Return the end of a sentence about what may be a data set of the Hub."""
    if not _HUB_NAME.fullmatch(text) or kind_of(text) is not None:
        return ""
    folder = text.rpartition("/")[2]
    return (
        f"; a data set of the Hugging Face Hub comes by: hf download {text} --repo-type dataset "
        f"--local-dir {folder}, and then: penstockd init {folder}/"
    )


def _of_urls(paths: Sequence[str]) -> dict[str, Any]:
    """Return the source of files at URLs, by their names: nothing is listed for that.

    Raises:
        InvalidRequest: The names do not tell what the files hold.
    """
    kinds = {kind_of(path) for path in paths}
    if len(kinds) > 1 or kinds & {None, "hf"}:
        raise InvalidRequest(
            f"{' '.join(paths)} does not say what is read: name URLs of one kind by their ending, "
            "such as s3://bucket/folder/*.parquet",
            field="path",
            value=paths[0],
        )
    return {"type": kinds.pop(), "files": paths[0] if len(paths) == 1 else list(paths)}


def _written_whole(folder: Path) -> tuple[str, str] | None:
    """Return the type of a folder that a library wrote as one, and the parameter that names it."""
    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        return "saved", "path"
    if (folder / "index.json").exists() and next(folder.rglob("*.mds*"), None) is not None:
        return "mds", "files"
    return None


def _folder(path: Path, base: Path, notes: list[str]) -> tuple[list[Path], str]:
    """Return the files of the most common kind in a folder, and their glob."""
    inside = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    inside = [file for file in inside if file.name != _TOKENIZER]
    if not inside:
        raise InvalidRequest(f"the folder {path} holds no files", field="path", value=str(path))
    suffixes = Counter(file.suffix for file in inside)
    suffix = min(suffixes, key=lambda name: (name not in SOURCES, -suffixes[name], name))
    if len(suffixes) > 1:
        others = ", ".join(sorted(name or "no ending" for name in suffixes if name != suffix))
        notes.append(f"only the {suffix or 'unnamed'} files of the folder are read, not: {others}")
    chosen = [file for file in inside if file.suffix == suffix]
    deep = any(file.parent != path for file in chosen)
    return chosen, _named(path / ("**" if deep else "") / f"*{suffix}", base)


def _shorten(files: Sequence[Path], patterns: list[str], base: Path) -> Any:
    """Return the patterns; where the files are all of their kind in one folder, their glob."""
    if len(patterns) == 1:
        return patterns[0]
    folders, suffixes = {file.parent for file in files}, {file.suffix for file in files}
    if len(folders) == 1 and len(suffixes) == 1:
        [folder], [suffix] = folders, suffixes
        if suffix and set(folder.glob(f"*{suffix}")) == set(files):
            return _named(folder / f"*{suffix}", base)
    return patterns


_BUILDERS = {"jsonl": "json", "webdataset": "webdataset", "csv": "csv", "json": "json"}
"""What `datasets` calls the kinds of compressed files."""


def _kind(file: Path) -> str:
    """Return the type of a file's source; `hf BUILDER` of a compressed one."""
    found = kind_of(str(file))
    if found == "hf":
        return f"hf {_BUILDERS.get(kind_of(file.stem) or '', 'text')}"
    if found == "json":
        with file.open("rb") as stream:
            head = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        if head.startswith(b"["):
            return "json"
        _refuse_object(file)
        return "jsonl"
    if file.suffix == ".bin" and not file.with_suffix(".idx").exists():
        return "text"  # if it is, and not ids whose dtype nobody knows
    return found or "text"


def _refuse_object(file: Path) -> None:
    """Refuse a file of a single JSON object, such as a list of data sets."""
    if file.stat().st_size > MAX_OBJECT_BYTES:
        return
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return  # an object on each line, if they are right
    if isinstance(found, dict):
        raise InvalidRequest(
            f"{file} is one JSON object, and rows of data are an array or an object on each line: "
            "if it lists data sets, write the job file by hand, with source: {type: meta, file: "
            "...}; docs/sources.md shows it",
            field="path",
            value=str(file),
        )


def _refuse_binary(file: Path) -> None:
    if file.suffix in COMPRESSED:
        return
    try:
        with file.open(encoding="utf-8") as stream:
            # Small ids of two or four bytes are UTF-8 too, and full of zeros, which no text has.
            if "\0" not in stream.read(4096):
                return
    except UnicodeDecodeError:
        pass
    if file.suffix == ".bin":
        raise InvalidRequest(
            f"{file} is not text, and has no .idx beside it, as Megatron's files have: if it holds "
            "token ids, add --source dtype=uint16, or what they are, and --source eos=ID, the id "
            "after each document",
            field="path",
            value=str(file),
        )
    if file.suffix.lower() in PICTURES:
        raise InvalidRequest(
            f"{file} is a picture, and a folder of pictures is not a source: pack them into tars "
            "(type: webdataset), or read them by a Dataset of yours (source: {type: torch, "
            "factory: ./data.py:make}); docs/roles.md shows both ends",
            field="path",
            value=str(file),
        )
    if file.suffix.lower() in TEXTS:
        raise InvalidRequest(
            f"{file} is not UTF-8: write it again as UTF-8; where it is Latin-1, by "
            "iconv -f LATIN1 -t UTF-8 OLD -o NEW",
            field="path",
            value=str(file),
        )
    if file.suffix.lower() in ARCHIVES:
        raise InvalidRequest(
            f"{file} is an archive: unpack it, and name the files that were in it",
            field="path",
            value=str(file),
        )
    raise InvalidRequest(
        f"{file} is neither text nor a known kind ({', '.join(SOURCES)}): "
        "write a source of your own, docs/roles.md shows how",
        field="path",
        value=str(file),
    )


def _named(path: Path, base: Path) -> str:
    """Return a path as the job file names it: relative if it is below the file's folder."""
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


# --- content ---


def _columns(found: Guess, looked: Sequence[RawItem], asked: str | None) -> None:
    """Find out which column to read, or what the requested column holds.

    Raises:
        InvalidRequest: There is no such column, or it holds values that no role turns into tokens.
    """
    if not looked or not all(isinstance(item, Mapping) for item in looked):
        if asked is not None:
            raise InvalidRequest(f"--column {asked}: these items have no columns: leave it out")
        return
    # Those with such names are WebDataset's own: the sample's key and its archive.
    found.columns = [str(name) for name in looked[0] if not str(name).startswith("__")]
    if asked is not None and asked not in found.columns:
        raise InvalidRequest(
            f"--column {asked}: the data has no column of this name; {hint(asked, found.columns)}",
            field="column",
            value=asked,
        )
    columns = found.columns if asked is None else [asked]
    names = [name for name in (*ID_COLUMNS, *columns) if name in columns]
    found.ids_column = next(
        (
            name
            for name in names
            if (asked is not None or name in ID_COLUMNS) and _holds_ids(looked, name)
        ),
        None,
    )
    if found.ids_column is not None:
        found.beside_ids = [
            name
            for name in BESIDE_IDS
            if name in found.columns and _is_alike(looked, name, found.ids_column)
        ]
    found.chat_column = next((name for name in columns if _holds_chats(looked, name)), None)
    texts = {name: length for name in columns if (length := _text_length(looked, name))}
    media = [name for name in found.columns if _most(looked, name, _is_media)]
    if media and asked is None and found.ids_column is None and found.chat_column is None:
        way = "a function of yours decodes them; --column NAME takes a text alone"
        if media[0] in ID_COLUMNS:
            way = (
                f"a function makes ids of them, such as np.frombuffer(item['{media[0]}'], 'int64')"
            )
        verb = "is" if len(media) == 1 else "are"
        found.notes.append(
            f"{' and '.join(media)} {verb} bytes, which batches hold as they are: {way}"
        )
        return
    if not texts and found.chat_column is None:
        texts = {
            f"{name}.{inner}": length
            for name in columns
            for inner in _keys_within(looked, name)
            if (length := _text_length(_inner(looked, name), inner))
        }
    if texts and found.chat_column is None:  # beside conversations, texts are titles and ids
        found.text_column = max(texts, key=lambda name: texts[name])
        if found.ids_column is None and asked is None:
            _note_pairs(found)
    if asked is not None and not (found.ids_column or found.chat_column or found.text_column):
        kind = type(looked[0][asked]).__name__
        raise InvalidRequest(
            f"--column {asked} holds values of type {kind}, such as {shown(looked[0][asked])}: "
            "name one of texts, conversations or token ids; else leave it out and write a "
            "function, as docs/roles.md shows",
            field="column",
            value=asked,
        )


IDS = "input_ids"
"""What packers and collators know token ids by."""

ID_COLUMNS = (IDS, "tokens", "token_ids", "input_tokens")
"""What token ids are called, likeliest first; columns of other names are taken where they are
asked for."""

BESIDE_IDS = ("labels", "loss_mask")
"""Columns of one value a token that packed and padded batches take as they are."""

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")

TEXTS = (".txt", ".text", ".md")

ARCHIVES = (".zip", ".7z", ".rar")

_PAIRS = (
    ("instruction", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("chosen", "rejected"),
)


def _note_pairs(found: Guess) -> None:
    """Note where a text is half of a pair: one column alone is seldom what is wanted."""
    for pair in _PAIRS:
        if all(name in found.columns for name in pair):
            found.notes.append(
                f"{pair[0]} and {pair[1]} are two halves, and {found.text_column} alone is read: a "
                "function of yours makes messages of both; docs/processors.md, Conversations"
            )
            return


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a list of numbers as an array; None if it is something else, or ragged."""
    if not isinstance(value, list | np.ndarray):
        return None
    try:
        return np.asarray(value)
    except ValueError:
        return None


def _holds_ids(looked: Sequence[RawItem], name: str) -> bool:
    """Tell whether a column holds token ids: lists of whole numbers, mostly of several."""
    values = [_array(item[name]) for item in looked if item.get(name) is not None]
    arrays = [array for array in values if array is not None]
    return (
        bool(arrays)
        and len(arrays) == len(values)
        and all(
            array.ndim == 1 and (array.dtype.kind in "iu" or not array.size) for array in arrays
        )
        and any(array.size for array in arrays)
    )


def _is_alike(looked: Sequence[RawItem], name: str, ids: str) -> bool:
    """Tell whether a column has one number for each token."""
    return all(
        isinstance(item.get(name), list | np.ndarray) and len(item[name]) == len(item[ids])
        for item in looked
        if item.get(ids) is not None
    )


def _is_media(value: Any) -> bool:
    """Tell whether a value is a file's bytes, by itself or as `datasets` keeps pictures."""
    if isinstance(value, Mapping):
        value = value.get("bytes")
    return isinstance(value, bytes)


def _keys_within(looked: Sequence[RawItem], name: str) -> list[str]:
    """Return the keys of a column of objects; empty if it is not one."""
    first = next((item[name] for item in looked if item.get(name) is not None), None)
    return [str(key) for key in first] if isinstance(first, Mapping) else []


def _inner(looked: Sequence[RawItem], name: str) -> list[RawItem]:
    return [item[name] if isinstance(item.get(name), Mapping) else {} for item in looked]


def _holds_chats(looked: Sequence[RawItem], name: str) -> bool:
    """Tell whether a column holds conversations: lists of turns, as of OpenAI or of ShareGPT."""
    return _most(looked, name, _is_chat)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) > 0
        and all(
            isinstance(turn, Mapping) and any(keys <= turn.keys() for keys in TURNS)
            for turn in value
        )
    )


def _text_length(looked: Sequence[RawItem], name: str) -> int:
    """Return the characters of a column of texts; 0 if it is not one."""
    if not _most(looked, name, lambda value: isinstance(value, str)):
        return 0
    return sum(len(item[name]) for item in looked if isinstance(item.get(name), str))


def _most(looked: Sequence[RawItem], name: str, holds: Callable[[Any], bool]) -> bool:
    return sum(holds(item.get(name)) for item in looked) * 2 > len(looked)


def _length(item: RawItem, column: str | None) -> int:
    """Return the characters of a text or a conversation, or how many ids there are."""
    value = item.get(column) if isinstance(item, Mapping) and column is not None else None
    if value is None and isinstance(item, Mapping) and column is not None and "." in column:
        outer, _, inner = column.partition(".")
        value = item[outer].get(inner) if isinstance(item.get(outer), Mapping) else None
    if value is not None and _is_chat(value):
        return sum(len(str(turn.get("content") or turn.get("value") or "")) for turn in value)
    return len(value) if isinstance(value, Sized) else 0  # one item may hold a number


def _lanes(items: int, per_lane: int) -> int:
    """Return the most lanes, of the divisors of the default, that leave each enough items."""
    return next((lanes for lanes in _LANES if items // lanes >= per_lane), 1)


def _find_tokenizer(given: str | None, folders: Sequence[Path], base: Path) -> Path | None:
    if given is not None:
        path = Path(given).expanduser().absolute()
        path = path / _TOKENIZER if path.is_dir() else path
        if not path.is_file():
            raise InvalidRequest(
                f"there is no tokenizer {given!r}: give a tokenizer.json, or the folder that has "
                f"it{from_the_hub(Path(given).expanduser().absolute(), WHOLE)}",
                field="tokenizer",
                value=given,
            )
        return path
    near = [*folders, *(folder.parent for folder in folders), base]
    return next((folder / _TOKENIZER for folder in near if (folder / _TOKENIZER).is_file()), None)


def _take_tokenizer(found: Guess, path: Path, base: Path, *, asked: bool) -> None:
    """Note the tokenizer, where it suits what the items hold.

    Raises:
        InvalidRequest: It was requested, and has no chat template for conversations.
        InvalidJob: It is not a tokenizer.
    """
    if found.chat_column is None:
        found.tokenizer, found.end_token = _named(path, base), _end_token(path)
    elif has_chat_template(path.parent):
        found.tokenizer = _named(path.parent, base)
    elif asked:
        raise InvalidRequest(
            f"column {found.chat_column} holds conversations, and the tokenizer in {path.parent} "
            "has no chat template: give the folder of one that has, as save_pretrained of "
            "transformers writes it",
            field="path",
            value=str(path.parent),
        )


def has_chat_template(folder: Path) -> bool:
    """Tell whether a tokenizer's folder, as transformers writes it, has a chat template."""
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("chat_template"))


def _end_token(path: Path) -> str | None:
    """Return the vocabulary's token after a document; what is not a tokenizer is refused."""
    probe = {"type": "tokenize", "tokenizer": str(path)}
    build(KINDS["processor"], probe, Location(str(path), path.parent, ("processor",)))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return next((token for token in END_TOKENS if tokenizer.token_to_id(token) is not None), None)


__all__ = ["IDS", "Guess", "guess", "has_chat_template"]
