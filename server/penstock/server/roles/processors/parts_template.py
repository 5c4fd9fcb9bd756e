"""A chat template that is given the contents of turns as lists of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.server.roles.processors.chat_template import ChatTemplate, Message, Written
from penstock.wire.errors import InvalidJob

_WORDS = ("Qadwyn", "Zorvek")
"""Texts of a trial conversation: words that no template contains."""


class PartsTemplate(ChatTemplate):
    """Writes conversations with pictures.

    Templates of vision-language models take parts; some take a text where a turn has no picture.
    Which one it is, is found out by a trial conversation.

    Args:
        folder, file, variables: As of `ChatTemplate`.

    Raises:
        InvalidJob: As `ChatTemplate`; or the template does not write parts.
    """

    def __init__(
        self, folder: Path, file: Path | None = None, variables: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder, file, variables, user="conversation", extra="vlm")
        self._folder = folder
        self._text_only = False

    def check(self, image_token: str, image_id: int) -> None:
        """Find out how the template takes turns.

        Args:
            image_token: What it has to write for a picture.
            image_id: Its number.

        Raises:
            InvalidJob: It writes a picture by no token, or by several.
        """
        trial: list[Message] = [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": _WORDS[0]}]},
            {"role": "assistant", "content": _WORDS[1]},
        ]
        why = ""
        for text_only in (False, True):
            self._text_only = text_only
            try:
                text = self.write(trial).text
            except ValueError as error:
                why = f" ({error})"
                continue
            once = all(text.count(word) == 1 for word in _WORDS) and "'type'" not in text
            if once and self.ids(text).count(image_id) == 1:
                return
        raise InvalidJob(
            f"the chat template of {str(self._folder)!r} does not write a turn of a picture and a "
            f"text with one {image_token} for the picture{why}; give one that does by "
            "chat_template, or name the token by settings: {image_token: ...}",
            key="chat_template",
        )

    def write(self, messages: Sequence[Message], *, prompt: bool = False) -> Written:
        """Return a conversation as the template writes it; contents may be texts, too."""
        return super().write([self._formed(message) for message in messages], prompt=prompt)

    def _formed(self, message: Message) -> Message:
        said = message.get("content")
        if self._text_only:
            if isinstance(said, list) and all("text" in part for part in said):
                return {**message, "content": "".join(part["text"] for part in said)}
        elif isinstance(said, str):
            return {**message, "content": [{"type": "text", "text": said}]}
        return message
