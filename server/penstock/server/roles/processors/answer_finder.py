"""Which tokens of a conversation are answers, by the surest way that its template allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.server.roles.processors.answer_tokens import (
    Span,
    find_marks,
    of_characters,
    scan,
    search,
)
from penstock.server.roles.processors.chat_template import (
    ChatTemplate,
    Message,
    Tokens,
    Written,
)
from penstock.wire.errors import InvalidJob

UNMATCHED = ("error", "search", "skip")
"""What may become of a conversation whose answers are not found among its tokens."""

NOT_FOUND = "answers not found"
"""Why it is filtered, where it is."""


class FoundAnswers(NamedTuple):
    """The answers of a conversation.

    Attributes:
        spans: Their tokens.
        searched: They were found by their texts.
    """

    spans: list[Span]
    searched: bool


class AnswerFinder:
    """Finds answers among the tokens of conversations.

    Args:
        template: What writes the conversations.
        unmatched: One of `UNMATCHED`.
        folder: Where the template comes from, for errors.

    Raises:
        InvalidJob: The template does not tell where answers end, and `unmatched` is `error`.
    """

    def __init__(self, template: ChatTemplate, unmatched: str, folder: Path) -> None:
        self._template, self._unmatched = template, unmatched
        self._marks = find_marks(template)
        if self._marks is None and not template.marks_answers and unmatched == "error":
            raise InvalidJob(
                f"the chat template of {str(folder)!r} does not tell where answers end by "
                "a token of its own: mark them in it with {% generation %} and "
                "{% endgeneration %}, or set unmatched: search",
                key="unmatched",
            )

    def find(
        self, messages: Sequence[Message], written: Written, tokens: Tokens, expected: int
    ) -> FoundAnswers | None:
        """Return the answers of a conversation; None = it is to be filtered, as `NOT_FOUND`.

        Args:
            messages: Its turns; their contents are texts.
            written: What the template wrote.
            tokens: Its tokens, as `ChatTemplate.tokens` gave them.
            expected: How many answers it has.

        Raises:
            ValueError: They are not found.
        """
        found = self._told(written, tokens, expected)
        if found is not None:
            return FoundAnswers(found, False)
        if self._unmatched == "skip":
            return None
        if self._unmatched == "search":
            found = self._searched(messages, written, tokens.ids)
        if found is None:
            raise self._not_found(expected)
        return FoundAnswers(found, True)

    def _told(self, written: Written, tokens: Tokens, expected: int) -> list[Span] | None:
        """Return the answers' tokens; None = they are not as many as the conversation's."""
        if written.answers is not None and tokens.offsets is not None:
            return of_characters(written.answers, tokens.ids, tokens.offsets)
        if self._marks is None:
            return None
        found = scan(tokens.ids, self._marks)
        return found if found is not None and len(found) == expected else None

    def _searched(
        self, messages: Sequence[Message], written: Written, ids: Sequence[int]
    ) -> list[Span] | None:
        found = search(messages, written.text)
        if found is None:
            return None
        offsets = self._template.offsets(written.text)
        return of_characters(found, ids, offsets, self._template.added)

    def _not_found(self, expected: int) -> ValueError:
        if self._unmatched == "search":
            return ValueError(
                "the chat template does not write an answer as the conversation has it; mark "
                "answers in it with {% generation %} and {% endgeneration %}"
            )
        return ValueError(
            f"the {expected} answers are not found by the tokens that the chat template writes "
            "around them; set unmatched: search to look for their texts, or skip; or mark answers "
            "in the template with {% generation %} and {% endgeneration %}"
        )
