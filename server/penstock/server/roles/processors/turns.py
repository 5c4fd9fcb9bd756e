"""Conversations as data sets have them, brought to the one form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.common.nearest import hint
from penstock.server.core.shown import shown
from penstock.server.roles.processors.chat_template import Message
from penstock.wire.errors import InvalidJob

ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
    **{role: role for role in ("system", "developer", "tool", "function")},
}
"""What data sets call the speakers, as templates know them."""

TAGS = ("role_tag", "content_tag", "user_tag", "assistant_tag", "system_tag")
"""What `tags` may name: the keys of a turn, and the names of three speakers."""

_KEYS = (("role", "content"), ("from", "value"))
"""The keys of a turn, of OpenAI's form and of ShareGPT's."""


class ConversationTurns:
    """Brings conversations to the form of OpenAI: a list of `role` and `content`.

    Args:
        roles: Further names of speakers.
        tags: The names that this data uses.
        unknown: What becomes of a turn by another speaker: `error` or `skip`.

    Raises:
        InvalidJob: A name that cannot be.
    """

    def __init__(
        self, roles: Mapping[str, str] | None, tags: Mapping[str, str] | None, unknown: str
    ) -> None:
        tags = dict(tags or {})
        for name in tags:
            if name not in TAGS:
                raise InvalidJob(f"tags has {name!r}: {hint(name, TAGS)}", key="tags")
        self._unknown = unknown
        self._roles = {**ROLES, **(roles or {})}
        for role in ("user", "assistant", "system"):
            if (spoken := tags.get(f"{role}_tag")) is not None:
                self._roles[spoken] = role
        self._keys: tuple[tuple[str, str], ...] = _KEYS
        if "role_tag" in tags or "content_tag" in tags:
            self._keys = ((tags.get("role_tag", "role"), tags.get("content_tag", "content")),)

    def messages(self, conversation: Any) -> list[Message]:
        """Return the turns of a conversation, in order.

        Args:
            conversation: A list of turns, the columns of one, or the JSON text of either.

        Raises:
            TypeError: It is something else.
            ValueError: A turn lacks a key, has a speaker that is not known, or no text.
        """
        if isinstance(conversation, str):
            conversation = _parsed(conversation)
        if isinstance(conversation, Mapping):  # as `datasets` gives lists of records
            conversation = _rows(conversation)
        if not isinstance(conversation, Sequence) or isinstance(conversation, str | bytes):
            raise TypeError(
                f"a conversation is of type {type(conversation).__name__}, and a list of turns is "
                "needed"
            )
        made = (self._message(number, turn) for number, turn in enumerate(conversation))
        return [message for message in made if message is not None]

    def _message(self, number: int, turn: Any) -> Message | None:
        if not isinstance(turn, Mapping):
            raise TypeError(f"turn {number} is of type {type(turn).__name__}, and not a mapping")
        keys = next((keys for keys in self._keys if all(key in turn for key in keys)), None)
        if keys is None:
            wanted = " or ".join(" and ".join(map(repr, keys)) for keys in self._keys)
            raise ValueError(
                f"turn {number} has {', '.join(map(repr, turn)) or 'no keys'}, and needs {wanted}; "
                "name the keys of other data by tags"
            )
        speaker, said = turn[keys[0]], turn[keys[1]]
        role = self._roles.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            if self._unknown == "skip":
                return None
            name = speaker if isinstance(speaker, str) and len(speaker) <= 50 else "..."
            raise ValueError(
                f"turn {number} is by {shown(speaker)}, which is not a known role: name it by "
                f"roles, such as {{{name}: user}}, or leave such turns out by unknown_roles: skip"
            )
        # Under these two names the template gets what was chosen, whatever else the turn says.
        used = (*keys, "role", "content")
        more = {
            name: value for name, value in turn.items() if name not in used and value is not None
        }
        return {"role": role, "content": self.content(said, number, role, more), **more}

    def content(self, said: Any, number: int, role: str, more: Mapping[str, Any]) -> Any:
        """Return what a turn says: text here; None = it calls a tool, and says nothing.

        Args:
            said: What the data has.
            number: Of the turn, for errors.
            role: Who speaks.
            more: What else the turn has.

        Raises:
            ValueError: It is something else.
        """
        if isinstance(said, str):
            return said
        if said is None and role == "assistant" and more:
            return None
        if isinstance(said, Sequence) and all(
            isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part["text"], str)
            for part in said
        ):
            return "".join(part["text"] for part in said)
        what = f"type {type(said).__name__}"
        if isinstance(said, Sequence):
            what = "parts that are not all text"
        raise ValueError(f"turn {number} has content of {what}, and chat needs text")


def _parsed(text: str) -> Any:
    """Return what a conversation's JSON holds."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"a conversation is the text {shown(text)}, which is not the JSON of a list of turns: "
            f"{error}"
        ) from None


def _rows(columns: Mapping[Any, Any]) -> list[dict[Any, Any]]:
    """Return the turns of a conversation that is given by columns."""
    lists = [
        list(value)
        for value in columns.values()
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    ]
    if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
        raise TypeError(
            f"a conversation is a dict of {', '.join(map(shown, columns))}, whose values are not "
            "lists of one length: give a list of turns"
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
