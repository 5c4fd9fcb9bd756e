"""Which tokens of a conversation are the assistant's.

By one of three ways, the surest that a template allows:

1. The template says so itself, by `{% generation %}`.
2. The tokens that begin and end an answer are known, and looked for among the conversation's.
   What they are is found out from the template: two answers of known text show what is before and
   after them.
3. The answers' texts are looked for in the conversation's text, one after another.

A conversation is tokenized once: a part of it, tokenized alone, may have other tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from penstock.server.roles.processors.chat_template import ChatTemplate, Message

Span = tuple[int, int]
"""The first token, and the one after the last."""

_SAID = ("Qadwyn", "Zorvek", "Mibluth", "Xefgop")
"""Texts of the turns of a trial conversation: words that no template contains."""


class AnswerMarks(NamedTuple):
    """The tokens around answers.

    Attributes:
        start: The tokens before an answer, the last one left out if it is `last`.
        last: Tokens that may follow `start` and begin with the white space that ends the mark: an
            answer that begins with white space shares a token with it. Empty = the mark ends with
            `start`.
        bare: That of `last` which is white space of the template alone; None = there is none.
        stop: The token that ends an answer.
    """

    start: tuple[int, ...]
    last: frozenset[int]
    bare: int | None
    stop: int


def find_marks(template: ChatTemplate) -> AnswerMarks | None:
    """Return the tokens around answers, found out by a trial conversation.

    None = the template refuses the trial, writes turns otherwise than they are, or does not end
    answers with a token of its own.
    """
    roles = ("user", "assistant", "user", "assistant")
    trial = [{"role": r, "content": said} for r, said in zip(roles, _SAID, strict=True)]
    try:
        text = template.write(trial).text
        asked = [template.write(trial[:turns], prompt=True).text for turns in (1, 3)]
    except ValueError:
        return None
    begins = [text.find(said) for said in _SAID]
    ends = [at + len(said) for at, said in zip(begins, _SAID, strict=True)]
    if begins != sorted(begins) or any(text.count(said) != 1 for said in _SAID):
        return None
    ids, offsets = template.ids(text), template.offsets(text)

    def between(start: int, stop: int) -> list[int]:
        """Return the tokens that lie whole in these characters."""
        return [
            token
            for token, (a, b) in zip(ids, offsets, strict=True)
            if start <= a and b <= stop and a < b
        ]

    after = between(ends[1], begins[2])
    stops = [
        next((token for token in tokens if token in template.added), None)
        for tokens in (after, between(ends[3], len(text)))
    ]
    if stops[0] is None or stops[0] != stops[1]:
        return None
    others = [after, between(0, begins[0])]
    # An answer begins where a prompt ends: a model is given that much, and writes the rest. Where
    # the template has no prompt of its own it is what comes before the text.
    prompts = [len(each) if text.startswith(each) else 0 for each in asked]
    for places in (prompts, [begins[1], begins[3]]):
        before = _common(between(ends[0], places[0]), between(ends[2], places[1]))
        if start := _least(before, others, template):
            return _split(start, stops[0], template)
    return None


def scan(ids: Sequence[int], marks: AnswerMarks) -> list[Span] | None:
    """Return the answers among tokens: after a mark, to the first stop, which is one of them.

    An answer without a stop goes to the end; one of no text is the stop alone. None = one holds a
    mark itself: a text of the conversation has it, and the answer may begin at either.
    """
    found: list[Span] = []
    at = 0
    while (begin := _after(ids, marks, at)) is not None:
        stop = _index(ids, marks.stop, begin)
        at = len(ids) if stop is None else stop + 1
        if _after(ids[begin:stop], marks, 0) is not None:
            return None
        found.append((begin, at))
    return found


def _after(ids: Sequence[int], marks: AnswerMarks, at: int) -> int | None:
    """Return where the next answer begins, after a mark that begins at `at` or later."""
    head, place = len(marks.start), _index(ids, marks.start[0], at)
    while place is not None:
        begin = place + head
        if tuple(ids[place:begin]) == marks.start:
            if not marks.last:
                return begin
            if begin < len(ids) and ids[begin] in marks.last:
                return begin + (ids[begin] == marks.bare)
        place = _index(ids, marks.start[0], place + 1)
    return None


def _index(ids: Sequence[int], token: int, at: int) -> int | None:
    try:
        return ids.index(token, at)  # in C: a conversation has thousands of tokens, and few marks
    except ValueError:
        return None


def of_characters(
    answers: Sequence[Span],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    follow: frozenset[int] = frozenset(),
) -> list[Span]:
    """Return the tokens of answers that are known by their characters.

    Args:
        answers: From which character to which.
        ids: The tokens.
        offsets: From which character to which each token goes.
        follow: Tokens that end an answer: one of them right after it belongs to it.
    """
    found: list[Span] = []
    at = 0
    for start, stop in answers:
        while at < len(offsets) and offsets[at][1] <= start:
            at += 1
        begin = at
        while at < len(offsets) and offsets[at][0] < stop:
            at += 1
        if at < len(ids) and ids[at] in follow:
            at += 1
        found.append((begin, at))
    return found


def search(messages: Sequence[Message], text: str) -> list[tuple[int, int]] | None:
    """Return from which character to which each answer goes, in order; None = one is not there.

    Turns of others are looked for, too, so that an answer is not found in what a user says. Texts
    may be stripped of white space at their ends; what a system says may be left out.
    """
    found: list[tuple[int, int]] = []
    at = 0
    for message in messages:
        said = message.get("content") or ""
        if message["role"] == "assistant" and not said.strip():
            return None  # it may be anywhere
        place = text.find(said, at)
        if place < 0:
            said = said.strip()
            place = text.find(said, at)
        if place < 0:
            if message["role"] == "system":
                continue
            return None
        at = place + len(said)
        if message["role"] == "assistant":
            found.append((place, at))
    return found


def _common(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the tokens that both begin with: a template may write more before the last answer."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return list(first[:length])


def _least(
    tokens: Sequence[int], others: Sequence[Sequence[int]], template: ChatTemplate
) -> list[int] | None:
    """Return the shortest end of `tokens` that begins with a special one and that `others` lack.

    What ends a user's turn is then not part of the mark: an answer may follow another turn.
    """
    if not tokens:
        return None
    starts = [at for at, token in enumerate(tokens) if token in template.added]
    for at in [*reversed(starts), 0]:
        if not any(_holds(other, tokens[at:]) for other in others):
            return list(tokens[at:])
    return None


def _holds(tokens: Sequence[int], part: Sequence[int]) -> bool:
    size = len(part)
    return any(list(tokens[at : at + size]) == list(part) for at in range(len(tokens) - size + 1))


def _split(start: list[int], stop: int, template: ChatTemplate) -> AnswerMarks:
    tokenizer, last = template.tokenizer, start[-1]
    if len(start) == 1 or last in template.added or not _is_space(tokenizer.decode([last])):
        return AnswerMarks(tuple(start), frozenset(), None, stop)
    piece = str(tokenizer.id_to_token(last))
    longer = (
        token
        for word, token in tokenizer.get_vocab().items()
        if word.startswith(piece) and token not in template.added
    )
    return AnswerMarks(tuple(start[:-1]), frozenset(longer), last, stop)


def _is_space(text: str) -> bool:
    return bool(re.fullmatch(r"\s+", text))
