"""What the columns of some items hold: texts, token ids, conversations, media."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.common.nearest import hint
from penstock.server.core.shown import shown
from penstock.server.jobs.guess_media import (
    ChatPictures,
    MediaColumn,
    find_media,
    find_pictures,
    names_in,
)
from penstock.server.roles.samples import RawItem
from penstock.wire.errors import InvalidRequest

TURNS = ({"role", "content"}, {"from", "value"})
"""The keys of a turn of a conversation: of OpenAI, of ShareGPT."""

IDS = "input_ids"
"""What packers and collators know token ids by."""

ID_COLUMNS = (IDS, "tokens", "token_ids", "input_tokens")
"""What token ids are called, likeliest first; columns of other names are taken where they are
asked for."""

BESIDE_IDS = ("labels", "loss_mask")
"""Columns of one value a token that packed and padded batches take as they are."""

_PAIRS = (
    ("instruction", "output"),
    ("prompt", "completion"),
    ("prompt", "response"),
    ("question", "answer"),
    ("chosen", "rejected"),
)


@dataclass(kw_only=True)
class ColumnGuess:
    """What columns hold.

    Attributes:
        text_column: The column with the longest texts, if any.
        ids_column: A column that is tokenized already, if any.
        beside_ids: Columns that batches take beside the ids, such as labels.
        chat_column: A column of conversations, if any; then there is no text column.
        pictures: Those of the conversations, if they have any.
        media: A column of pictures or of sounds, if any; then there is no text column.
        columns: All columns; empty if items are not dicts.
        notes: What was left out and why.
    """

    text_column: str | None = None
    ids_column: str | None = None
    beside_ids: list[str] = field(default_factory=list)
    chat_column: str | None = None
    pictures: ChatPictures | None = None
    media: MediaColumn | None = None
    columns: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_columns(
    found: ColumnGuess,
    looked: Sequence[RawItem],
    asked: str | None,
    are_files: Callable[[Sequence[str]], bool],
) -> None:
    """Find out which column to read, or what the requested column holds.

    Args:
        found: Where it is noted.
        looked: Some items.
        asked: The requested column.
        are_files: Tells whether names are those of files that can be found: a column of texts that
            look like names is one of texts otherwise.

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
    if found.chat_column is not None:
        found.pictures = find_pictures(looked, found.chat_column)
    elif found.ids_column is None:
        for column in find_media(looked, columns, found.columns):
            names = names_in(looked, column.name)
            if not names or asked is not None or are_files(names):
                found.media = column
                return
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


def _note_pairs(found: ColumnGuess) -> None:
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


def length(item: RawItem, column: str | None) -> int:
    """Return the characters of a text or a conversation, or how many ids there are."""
    value = item.get(column) if isinstance(item, Mapping) and column is not None else None
    if value is None and isinstance(item, Mapping) and column is not None and "." in column:
        outer, _, inner = column.partition(".")
        value = item[outer].get(inner) if isinstance(item.get(outer), Mapping) else None
    if value is not None and _is_chat(value):
        return sum(len(str(turn.get("content") or turn.get("value") or "")) for turn in value)
    return len(value) if isinstance(value, Sized) else 0  # one item may hold a number
