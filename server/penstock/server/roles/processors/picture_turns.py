"""Conversations with pictures and videos: each as a part of the turn that shows it, in order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.server.roles.processors.chat_template import Message
from penstock.server.roles.processors.shown_parts import (
    Clip,
    Picture,
    listed,
    part_of,
    shown_part,
    text_part,
)
from penstock.server.roles.processors.turns import ConversationTurns

_TAG = re.compile("<(image|video)>", re.IGNORECASE)
_ANSWERS = "assistant"
_UNPLACED = ("user", "tool", "function")
"""Speakers in whose texts tags are looked for."""


class PlacedPictures(NamedTuple):
    """A conversation whose pictures and videos have their places.

    Attributes:
        messages: Its turns; contents are lists of parts, or None.
        pictures: The parts that are pictures or videos, in order.
        noted: What a batch counts of it.
    """

    messages: list[Message]
    pictures: list[Picture]
    noted: dict[str, int]


class PictureTurns(ConversationTurns):
    """Brings conversations to lists of parts, and places their pictures and videos.

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
            return self._split(said) if role in self._looked_in else [text_part(said)]
        if said is None and role == _ANSWERS and more:
            return None
        if not isinstance(said, Sequence) or isinstance(said, bytes):
            raise ValueError(
                f"turn {number} has content of type {type(said).__name__}, and conversation needs "
                "text, or a list of parts"
            )
        parts = [part_of(part, number) for part in said]
        if role in self._looked_in and not any(isinstance(part, Picture) for part in parts):
            parts = [
                made
                for part in parts
                for made in (self._split(part["text"]) if _TAG.search(part["text"]) else [part])
            ]
        return parts or [text_part("")]

    def placed(self, conversation: Any, images: Any, videos: Any = None) -> PlacedPictures:
        """Return a conversation with its pictures and videos in their places.

        Args:
            conversation: As of `messages`.
            images: The pictures that the item has beside it: a list, one, or None.
            videos: Its videos, the same way.

        Raises:
            TypeError, ValueError: As `messages`; or placeholders and pictures do not match, and
                the job refuses that.
        """
        messages = self.messages(conversation)
        pictures, clips = _Waiting("picture", listed(images)), _Waiting("video", listed(videos))
        for message in messages:
            kept: list[dict[str, Any]] = []
            for part in message["content"] or ():
                if isinstance(part, Picture) and part.reference is None:
                    waiting = clips if isinstance(part, Clip) else pictures
                    if (given := waiting.take()) is None:
                        continue
                    part = shown_part(given[0], part)
                kept.append(part)
            if message["content"] is not None:
                message["content"] = kept or [text_part("")]
        noted: dict[str, int] = {}
        for waiting in (pictures, clips):
            self._check_surplus(waiting, noted)
        # Those of videos last, so that pictures come first in the turn.
        for waiting in (clips, pictures):
            if waiting.left:
                self._take_unplaced(messages, waiting, noted)
        return PlacedPictures(messages, _pictures(messages), noted)

    def _check_surplus(self, waiting: _Waiting, noted: dict[str, int]) -> None:
        if not waiting.surplus:
            return
        if self._surplus == "error":
            raise ValueError(
                f"the conversation has {waiting.count + waiting.surplus} placeholders of "
                f"{waiting.kind}s and {waiting.count} {waiting.kind}s; set surplus_placeholders: "
                "skip to leave the others out"
            )
        noted["surplus_placeholders"] = noted.get("surplus_placeholders", 0) + waiting.surplus

    def _take_unplaced(
        self, messages: list[Message], waiting: _Waiting, noted: dict[str, int]
    ) -> None:
        if self._unplaced == "error":
            raise ValueError(
                f"the conversation has {waiting.count} {waiting.kind}s and placeholders for "
                f"{waiting.count - len(waiting.left)}; set unplaced_images: first_turn to show the "
                "others at the start of the first user turn, or drop"
            )
        noted["unplaced_images" if waiting.kind == "picture" else "unplaced_videos"] = len(
            waiting.left
        )
        if self._unplaced == "first_turn":
            empty = Clip({}) if waiting.kind == "video" else Picture()
            _put_first(messages, [shown_part(each, empty) for each in waiting.left])

    def _split(self, text: str) -> list[dict[str, Any]]:
        """Return a text's segments, stripped, with a picture for every tag between them."""
        found: list[dict[str, Any]] = []
        # At odd places stands which tag was between the texts.
        for number, segment in enumerate(_TAG.split(text)):
            if number % 2:
                found.append(Clip({}) if segment.lower() == "video" else Picture(type="image"))
            elif segment := segment.strip():
                found.append(text_part(segment))
        return found or [text_part("")]


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


def check_texts(messages: Sequence[Message], tokens: Sequence[str]) -> None:
    """Refuse a conversation whose texts hold a token that stands for a picture or a video.

    The number of these tokens does not tell: a template may leave out a picture elsewhere.

    Raises:
        ValueError: Names the turn.
    """
    for number, message in enumerate(messages):
        for part in message["content"] or ():
            if isinstance(part, Picture):
                continue
            if held := [token for token in tokens if token in part["text"]]:
                raise ValueError(
                    f"the text of turn {number} holds {held[0]}, which the model would take for a "
                    "picture or a video: take it out of the data"
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


class _Waiting:
    """The pictures, or videos, of an item's column that wait for their places.

    Attributes:
        kind: What they are.
        count: How many there were.
        left: Those that have no place so far, in order.
        surplus: How many places there were beyond them.
    """

    def __init__(self, kind: str, given: list[Any]) -> None:
        self.kind, self.count, self.left, self.surplus = kind, len(given), given, 0

    def take(self) -> tuple[Any] | None:
        """Return the next one, as a tuple of one; None = there is none."""
        if not self.left:
            self.surplus += 1
            return None
        return (self.left.pop(0),)
