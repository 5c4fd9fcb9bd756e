"""Conversations with pictures: each picture as a part of the turn that shows it, in order."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.core.shown import shown
from penstock.server.roles.processors.chat_template import Message
from penstock.server.roles.processors.turns import ConversationTurns

_TAG = re.compile("<image>", re.IGNORECASE)
_HOLDERS = ("image", "image_url", "url", "path", "bytes", "lmdb")
"""Keys of a part, or of an entry of the column of pictures, that hold or name the picture."""

_WITHIN = ("dir", "offset", "length")
"""Keys beside them that say where the name leads: which directory, which part of the file."""

_OTHER_MEDIA = ("video", "video_url", "audio", "audio_url", "input_audio")
_ANSWERS = "assistant"
_UNPLACED = ("user", "tool", "function")
"""Speakers in whose texts tags are looked for."""


class Picture(dict[str, Any]):
    """A part that is a picture, as templates take it: `type`, and what else the data says of it.

    Attributes:
        reference: What holds or names the picture; None = the next one of the item's column, and
            of a fake one there is none.
    """

    reference: Any = None


class PlacedPictures(NamedTuple):
    """A conversation whose pictures have their places.

    Attributes:
        messages: Its turns; contents are lists of parts, or None.
        pictures: The parts that are pictures, in order.
        noted: What a batch counts of it.
    """

    messages: list[Message]
    pictures: list[Picture]
    noted: dict[str, int]


class PictureTurns(ConversationTurns):
    """Brings conversations to lists of parts, and places their pictures.

    Args:
        roles: Further names of speakers.
        tags: The names that this data uses.
        unknown: What becomes of a turn by another speaker.
        answer_images: `text` or `place`: what `<image>` is in an answer.
        surplus: `error` or `skip`: what becomes of a placeholder without a picture.
        unplaced: `error`, `first_turn` or `drop`: what becomes of a picture without a placeholder.

    Raises:
        InvalidJob: A name or a rule that cannot be.
    """

    def __init__(
        self,
        roles: Mapping[str, str] | None,
        tags: Mapping[str, str] | None,
        unknown: str,
        answer_images: str,
        surplus: str,
        unplaced: str,
    ) -> None:
        super().__init__(roles, tags, unknown)
        self._looked_in = (*_UNPLACED, *((_ANSWERS,) if answer_images == "place" else ()))
        self._surplus, self._unplaced = surplus, unplaced

    def content(self, said: Any, number: int, role: str, more: Mapping[str, Any]) -> Any:
        """Return what a turn says as parts: texts and pictures."""
        if isinstance(said, str):
            return self._split(said) if role in self._looked_in else [_text(said)]
        if said is None and role == _ANSWERS and more:
            return None
        if not isinstance(said, Sequence) or isinstance(said, bytes):
            raise ValueError(
                f"turn {number} has content of type {type(said).__name__}, and conversation needs "
                "text, or a list of parts"
            )
        parts = [_part(part, number) for part in said]
        if role in self._looked_in and not any(isinstance(part, Picture) for part in parts):
            parts = [
                made
                for part in parts
                for made in (self._split(part["text"]) if _TAG.search(part["text"]) else [part])
            ]
        return parts or [_text("")]

    def placed(self, conversation: Any, column: Any) -> PlacedPictures:
        """Return a conversation with its pictures in their places.

        Args:
            conversation: As of `messages`.
            column: The pictures that the item has beside it: a list, one, or None.

        Raises:
            TypeError, ValueError: As `messages`; or placeholders and pictures do not match, and
                the job refuses that.
        """
        messages = self.messages(conversation)
        waiting = [] if column is None else _listed(column)
        count = len(waiting)
        waiting.reverse()
        surplus = 0
        for message in messages:
            kept: list[dict[str, Any]] = []
            for part in message["content"] or ():
                if isinstance(part, Picture) and part.reference is None:
                    if not waiting:
                        surplus += 1
                        continue
                    part = _shown_picture(waiting.pop(), part)
                kept.append(part)
            if message["content"] is not None:
                message["content"] = kept or [_text("")]
        noted: dict[str, int] = {}
        if surplus:
            if self._surplus == "error":
                raise ValueError(
                    f"the conversation has {count + surplus} placeholders of pictures and {count} "
                    "pictures; set surplus_placeholders: skip to leave the others out"
                )
            noted["surplus_placeholders"] = surplus
        if waiting:
            self._take_unplaced(messages, waiting[::-1], count, noted)
        return PlacedPictures(messages, _pictures(messages), noted)

    def _take_unplaced(
        self,
        messages: list[Message],
        waiting: Sequence[Any],
        count: int,
        noted: dict[str, int],
    ) -> None:
        if self._unplaced == "error":
            raise ValueError(
                f"the conversation has {count} pictures and placeholders for "
                f"{count - len(waiting)}; set unplaced_images: first_turn to show the others at "
                "the start of the first user turn, or drop"
            )
        noted["unplaced_images"] = len(waiting)
        if self._unplaced == "first_turn":
            _put_first(messages, [_shown_picture(each, {}) for each in waiting])

    def _split(self, text: str) -> list[dict[str, Any]]:
        """Return a text's segments, stripped, with a picture for every tag between them."""
        found: list[dict[str, Any]] = []
        for number, segment in enumerate(_TAG.split(text)):
            if number:
                found.append(Picture(type="image"))
            if segment := segment.strip():
                found.append(_text(segment))
        return found or [_text("")]


def with_fake(placed: PlacedPictures) -> PlacedPictures:
    """Return a conversation without pictures with a fake one, at the start of its first user turn.

    Where no user speaks, a turn is put before the others.
    """
    fake = Picture(type="image")
    _put_first(placed.messages, [fake])
    return placed._replace(pictures=[fake], noted={**placed.noted, "fake_images": 1})


def texts_of(messages: Sequence[Message]) -> list[Message]:
    """Return the texts of a conversation, each as a turn of its own."""
    found = []
    for message in messages:
        if message["content"] is None:
            found.append(message)
            continue
        found += [
            {**message, "content": part["text"]}
            for part in message["content"]
            if not isinstance(part, Picture)
        ]
    return found


def check_texts(messages: Sequence[Message], token: str) -> None:
    """Refuse a conversation whose texts hold the token that stands for a picture.

    The number of these tokens does not tell: a template may leave out a picture elsewhere.

    Raises:
        ValueError: Names the turn.
    """
    for number, message in enumerate(messages):
        for part in message["content"] or ():
            if not isinstance(part, Picture) and token in part["text"]:
                raise ValueError(
                    f"the text of turn {number} holds {token}, which the model would take for a "
                    "picture: take it out of the data"
                )


def turn_of(messages: Sequence[Message], picture: Picture) -> int:
    """Return the number of the turn that shows a picture."""
    return next(
        number
        for number, message in enumerate(messages)
        if any(part is picture for part in message["content"] or ())
    )


def _put_first(messages: list[Message], pictures: Sequence[Picture]) -> None:
    for message in messages:
        if message["role"] == "user":
            message["content"] = [*pictures, *message["content"]]
            return
    messages.insert(0, {"role": "user", "content": list(pictures)})


def _pictures(messages: Sequence[Message]) -> list[Picture]:
    return [
        part
        for message in messages
        for part in message["content"] or ()
        if isinstance(part, Picture)
    ]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _part(part: Any, number: int) -> dict[str, Any]:
    """Return a part of a turn of OpenAI's form."""
    if isinstance(part, str):
        return _text(part)
    if not isinstance(part, Mapping):
        raise ValueError(
            f"turn {number} has a part of type {type(part).__name__}; give it a type and a text, "
            "or a type and an image"
        )
    part = {name: value for name, value in part.items() if value is not None}  # as Arrow fills up
    kind = part.get("type")
    if kind == "text" or (kind is None and "text" in part):
        if not isinstance(part.get("text"), str):
            raise ValueError(f"turn {number} has a part of type text without a text")
        return {**part, "type": "text"}
    if any(name in part for name in _OTHER_MEDIA) or kind in _OTHER_MEDIA:
        raise ValueError(
            f"turn {number} has a part of type {kind!r}, and conversation takes text and pictures"
        )
    if kind in ("image", "image_url") or "image" in part or "image_url" in part:
        return _picture(part, {})
    raise ValueError(
        f"turn {number} has a part of type {kind!r}; known are text, image and image_url"
    )


def _listed(column: Any) -> list[Any]:
    """Return the pictures of a column, which may hold one that is no list."""
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return list(column)
    return [column]


def _picture(given: Any, more: Mapping[str, Any]) -> Picture:
    """Return a part of what holds or names a picture, and of what else is said of it."""
    found = Picture(more)
    if isinstance(given, Mapping):
        held = {name: given[name] for name in _HOLDERS if given.get(name) is not None}
        inner = held.pop("image", None)
        if inner is None:
            inner = held.pop("image_url", None)
        within = {name: given[name] for name in _WITHIN if held and given.get(name) is not None}
        found.update(
            (name, each)
            for name, each in given.items()
            if name not in _HOLDERS and name not in within
        )
        given = {**held, **within} or None
        if inner is not None:
            found.reference = _picture(inner, {}).reference if isinstance(inner, Mapping) else inner
            given = None
        elif (url := held.get("url")) is not None and "bytes" not in held:
            named = within and isinstance(url, str) and not url.startswith("data:")
            given = {"path": url, **within} if named else url
    elif given is None:
        raise ValueError("a picture of the conversation is null; leave it out of the data")
    if given is not None:
        found.reference = given
    if isinstance(found.reference, str) and found.reference.startswith("data:"):
        found.reference = {"bytes": _data_of(found.reference)}
    found["type"] = "image"
    return found


def _shown_picture(given: Any, more: Mapping[str, Any]) -> Picture:
    """Return a picture of the column, which has to be one: it has no other to take."""
    found = _picture(given, more)
    if found.reference is None:
        raise ValueError(
            f"a picture of the conversation is {shown(given)}, which has neither bytes nor a path; "
            "leave it out of the data"
        )
    return found


def _data_of(url: str) -> bytes:
    """Return the bytes that a URL of the scheme `data:` holds (RFC 2397)."""
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError(f"a picture is {url[:50]!r}, and of data: only base64 is known")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a picture is {url[:50]!r}, which is not base64: {error}") from None
