"""A job file for data that nobody has described: source, column, tokenizer and sizes, guessed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.server.config.class_parameters import constructor_parameters
from penstock.server.config.location import Location
from penstock.server.job.role_set import DEFAULT_LANES
from penstock.server.jobs.guess_columns import ColumnGuess, find_columns, length
from penstock.server.jobs.guess_files import TOKENIZER, find_source, named
from penstock.server.jobs.guess_media import find_folder, media_section, names_in
from penstock.server.jobs.guess_robots import RobotGuess, guess_robots
from penstock.server.jobs.registry import KINDS, build
from penstock.server.roles.processors.tokenizer_file import WHOLE, from_the_hub
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import BUILTIN_SOURCES, LerobotSource
from penstock.wire.errors import BadItem, InvalidJob, InvalidRequest

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

POOL_SIZE, BATCH_SIZE = 64, 8

_LANES = tuple(lanes for lanes in range(DEFAULT_LANES, 0, -1) if DEFAULT_LANES % lanes == 0)


@dataclass(kw_only=True)
class Guess(ColumnGuess):
    """What is known about some data, beside what its columns hold.

    Attributes:
        source: The `source:` section.
        items: How many items it holds.
        tokenizer: A tokenizer.json; for conversations the folder of one, with a chat template.
        end_token: The vocabulary's token after a document.
        lanes: How many lanes suit that many items.
        pool_size: How large a packing pool suits them.
        max_tokens: How long rows suit the amount of text.
        batch_size: Samples of a batch, where they are asked for in place of rows of tokens.
        on_item_error: What becomes of items that fail.
        media_places: The `media:` section; None = items hold their media, or have none.
        robots: What a LeRobot folder declares; None = the data are something else.
    """

    source: dict[str, Any]
    items: int
    tokenizer: str | None = None
    end_token: str | None = None
    lanes: int = DEFAULT_LANES
    pool_size: int = POOL_SIZE
    max_tokens: int = 8192
    batch_size: int | None = None
    on_item_error: str = "stop"
    media_places: dict[str, Any] | None = None
    robots: RobotGuess | None = None

    @property
    def takes_columns(self) -> bool:
        """Tell whether the source can leave columns out."""
        if self.pictures is not None and not self.pictures.everywhere:
            return False  # it would refuse items without the column of pictures
        return "columns" in constructor_parameters(BUILTIN_SOURCES[self.source["type"]])

    @property
    def read_columns(self) -> list[str]:
        """Return the columns that batches are made of; empty = all of them."""
        if self.media is not None:
            return [self.media.name, *self.media.beside]
        if not self.gives_tokens:
            return []
        if self.pictures is not None:
            return [name for name in (self.chat_column, self.pictures.column) if name]
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


@dataclass(frozen=True)
class Asked:
    """What somebody asks for beside the data.

    Attributes:
        tokenizer: A tokenizer.json, or its folder; None looks for one beside the data and beside
            the job file.
        column: The column to read; None = the most likely one.
        max_tokens: The length of packed rows; None = what suits the amount of text.
        batch_size: Samples of a batch, in place of packed rows.
        options: Further parameters of the source, such as `split` or `eos`.
        media: The folder, or URL, that names of media are relative to; None = looked for.
    """

    tokenizer: str | None = None
    column: str | None = None
    max_tokens: int | None = None
    batch_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    media: str | None = None


def guess(paths: Sequence[str], base: Path, asked: Asked) -> Guess:
    """Look at data and say how a job would read it.

    Args:
        paths: Files, globs, folders or URLs.
        base: The folder of the job file: what lies below it is named relative to it.
        asked: What else is asked for.

    Raises:
        InvalidRequest: There are no files, they are of several kinds, or what was requested does
            not go with the data.
        InvalidJob: The data cannot be opened.
    """
    max_tokens, batch_size = asked.max_tokens, asked.batch_size
    if max_tokens is not None and batch_size is not None:
        raise InvalidRequest(
            "--max-tokens packs rows of tokens and --batch-size stacks samples: give one of them"
        )
    base = Path(os.path.abspath(base))
    notes: list[str] = []
    spec, folders = find_source(paths, base, notes, asked.options)
    spec |= asked.options
    source = _opened(spec, paths, base)
    try:
        count = len(source)
        looked = _readable(source, range(min(LOOKED_AT, count)), notes)
        knows_places = bool(source.media_dirs())
        robots = guess_robots(source) if isinstance(source, LerobotSource) else None
    finally:
        source.close()
    found = Guess(source=spec, items=count, batch_size=batch_size, notes=notes, robots=robots)
    if robots is not None:
        _refuse_of_robots(asked)
        found.lanes = _lanes(count, 4 * (batch_size or BATCH_SIZE))
        return found
    of_data = list(dict.fromkeys(folders))
    find_columns(
        found,
        looked,
        asked.column,
        lambda names: (
            knows_places or asked.media is not None or find_folder(names, of_data, base) is not None
        ),
    )
    if found.media is not None and spec["type"] == "folder":
        has_classes = any(item["class"] for item in looked)
        found.media = replace(found.media, beside=["label"] if has_classes else [])
    if count < 4 * POOL_SIZE:
        found.pool_size = max(2, count // 4)
    read = found.chat_column or found.text_column or found.ids_column
    lengths = [length(item, read) for item in looked]
    # About four characters make a token.
    tokens = count * sum(lengths) / max(1, len(lengths)) / (1 if found.ids_column else 4)
    if tokens < 128 * found.max_tokens and found.pictures is None:  # one takes up to 16,384
        found.max_tokens = 1024
    if found.ids_column is None:
        given = [Path(path).expanduser().absolute() for path in paths]
        near = [*folders, *(path for path in given if path.is_dir())]
        path = _find_tokenizer(asked.tokenizer, near, base)
        if path is not None:
            _take_tokenizer(found, path, base, asked=asked.tokenizer is not None)
    names = () if knows_places else _names_of_media(found, looked)
    if asked.media is not None and not names:
        raise InvalidRequest(
            f"--media {asked.media} says what names of media are relative to, and these items name "
            "none: leave it out",
            field="media",
            value=asked.media,
        )
    if names and (found.media is not None or found.gives_tokens):
        found.media_places = media_section(names, of_data, base, asked.media)
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


def _refuse_of_robots(asked: Asked) -> None:
    """Refuse what does not go with a LeRobot folder.

    Raises:
        InvalidRequest: Says what does.
    """
    for option, value, way in (
        ("column", asked.column, "choose features with --source 'features=[action]'"),
        ("tokenizer", asked.tokenizer, "task is a text, for a function of yours"),
        ("media", asked.media, "where videos lie elsewhere, --source video_root=DIR says it"),
        ("max-tokens", asked.max_tokens, "--batch-size says how many frames a batch has"),
    ):
        if value is not None:
            raise InvalidRequest(
                f"--{option} {value} does not go with a LeRobot folder, whose frames have the "
                f"features that it declares: leave it out; {way}",
                field=option.replace("-", "_"),
                value=str(value),
            )


def _names_of_media(found: Guess, looked: Sequence[RawItem]) -> Sequence[str]:
    """Return the files that items name."""
    if found.media is not None:
        return names_in(looked, found.media.name)
    return () if found.pictures is None else found.pictures.names


def _opened(spec: dict[str, Any], paths: Sequence[str], base: Path) -> IndexedSource:
    """Return the source of a section.

    Raises:
        InvalidRequest: It needs a parameter that nobody can guess.
        InvalidJob: The data cannot be opened.
    """
    given = " ".join(paths)
    try:
        source: IndexedSource = build(KINDS["source"], spec, Location(given, base, ("source",)))
    except InvalidJob as error:
        of_source = error.__cause__
        key = of_source.key if isinstance(of_source, InvalidJob) else None
        if key == "source.split":
            assert isinstance(of_source, InvalidJob)
            said = of_source.message.replace(
                "choose one with split", "choose one with --split NAME"
            )
            raise InvalidRequest(said, field="split", value=given) from None
        if key != "source.eos" or {"eos", "sequence_length"} & spec.keys():
            raise
        raise InvalidRequest(
            f"{given} is one row of ids, and nothing says where documents end: add --source "
            "eos=ID, the id after each document, or --source sequence_length=N to cut it",
            field="path",
            value=given,
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


# --- sizes and tokenizers ---


def _lanes(items: int, per_lane: int) -> int:
    """Return the most lanes, of the divisors of the default, that leave each enough items."""
    return next((lanes for lanes in _LANES if items // lanes >= per_lane), 1)


def _find_tokenizer(given: str | None, folders: Sequence[Path], base: Path) -> Path | None:
    if given is not None:
        path = Path(given).expanduser().absolute()
        path = path / TOKENIZER if path.is_dir() else path
        if not path.is_file():
            raise InvalidRequest(
                f"there is no tokenizer {given!r}: give a tokenizer.json, or the folder that has "
                f"it{from_the_hub(Path(given).expanduser().absolute(), WHOLE)}",
                field="tokenizer",
                value=given,
            )
        return path
    near = [*folders, *(folder.parent for folder in folders), base]
    return next((folder / TOKENIZER for folder in near if (folder / TOKENIZER).is_file()), None)


def _take_tokenizer(found: Guess, path: Path, base: Path, *, asked: bool) -> None:
    """Note the tokenizer, where it suits what the items hold.

    Raises:
        InvalidRequest: It was requested, and has no chat template for conversations.
        InvalidJob: It is not a tokenizer.
    """
    if found.chat_column is None:
        found.tokenizer, found.end_token = named(path, base), _end_token(path)
    elif found.pictures is not None:
        _take_processor(found, path.parent, base, asked=asked)
    elif has_chat_template(path.parent):
        found.tokenizer = named(path.parent, base)
    elif asked:
        raise InvalidRequest(
            f"column {found.chat_column} holds conversations, and the tokenizer in {path.parent} "
            "has no chat template: give the folder of one that has, as save_pretrained of "
            "transformers writes it",
            field="path",
            value=str(path.parent),
        )


def _take_processor(found: Guess, folder: Path, base: Path, *, asked: bool) -> None:
    """Note the folder of a vision-language model's processor, where it is one.

    Raises:
        InvalidJob: It was requested, and is none; says what it lacks.
        MissingExtra: A package that it needs is not installed.
    """
    section = {"type": "conversation", "tokenizer": str(folder)}
    try:
        processor = build(
            KINDS["processor"], section, Location(str(folder), folder, ("processor",))
        )
        processor.content()
    except InvalidJob as error:
        if asked:
            raise
        found.notes.append(f"{folder.name} is not taken for these pictures: {error.message}")
        return
    found.tokenizer = named(folder, base)


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
