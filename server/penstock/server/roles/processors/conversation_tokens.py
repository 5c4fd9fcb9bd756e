"""The tokens of a conversation: which there are, what is learned, and what `max_length` leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.media.families.family import Family
from penstock.server.media.medium import Medium
from penstock.server.roles.processors.answer_finder import NOT_FOUND, AnswerFinder
from penstock.server.roles.processors.conversation_layout import (
    LaidConversation,
    blocks,
    each_block,
    lay_tokens,
    places,
)
from penstock.server.roles.processors.parts_template import PartsTemplate
from penstock.server.roles.processors.picture_turns import (
    PlacedPictures,
    check_texts,
    texts_of,
    turn_of,
    with_fake,
)
from penstock.server.roles.processors.shown_media import MediaShown, ShownMedium, fake_picture


class TokenRules(NamedTuple):
    """What a job says of the tokens of conversations: parameters of the processor.

    Attributes:
        fake_image: Whether a conversation that shows nothing gets a white picture.
        unanswered: What becomes of one without an answer.
        overlong: What becomes of one that is longer than `max_length`.
        max_length: The most tokens; None = any number.
    """

    fake_image: bool
    unanswered: str
    overlong: str
    max_length: int | None


class ConversationTokens:
    """Lays the tokens of conversations, by headers of what they show.

    Args:
        template: Writes a conversation.
        family: How pictures and videos are taken.
        finder: Finds the answers.
        media: Knows what pictures and videos become.
        rules: What the job says.
    """

    def __init__(
        self,
        template: PartsTemplate,
        family: Family,
        finder: AnswerFinder,
        media: MediaShown,
        rules: TokenRules,
    ) -> None:
        self._template, self._family, self._finder = template, family, finder
        self._media, self._rules = media, rules

    def lay(self, placed: PlacedPictures | None, media: Sequence[Medium]) -> LaidConversation | str:
        """Return a conversation's tokens, or the reason for which it is filtered.

        Args:
            placed: The conversation; None = the item has none.
            media: Of its pictures and videos, in their order.

        Raises:
            ValueError: A turn, the template, a picture or a rule refuses the conversation.
        """
        family = self._family
        if placed is None:
            return self._unanswered("null", "the item has no conversation: it is null")
        tokens = (family.image_token, family.video_token)
        check_texts(placed.messages, [token for token in tokens if token is not None])
        self._media.check(placed.pictures)
        if not any(message["role"] == "assistant" for message in placed.messages):
            return self._unanswered("no answer", "the conversation has no answer")
        if self._rules.fake_image and not placed.pictures:
            return self._lay_fake(placed)
        shown = self._media.sized(placed.pictures, media)
        if clamped := sum(each.clip.clamped for each in shown if each.clip is not None):
            placed = placed._replace(noted={**placed.noted, "clamped_frames": clamped})
        return self._lay_placed(placed, shown, is_fake=False)

    def _lay_fake(self, placed: PlacedPictures) -> LaidConversation | str:
        """Return the tokens of a conversation without pictures, with a fake one."""
        return self._lay_placed(with_fake(placed), [fake_picture(self._family)], is_fake=True)

    def _lay_placed(
        self, placed: PlacedPictures, shown: list[ShownMedium], *, is_fake: bool
    ) -> LaidConversation | str:
        answers = sum(message["role"] == "assistant" for message in placed.messages)
        written = self._template.write(placed.messages)
        tokens = self._template.tokens(written.text)
        found = self._finder.find(texts_of(placed.messages), written, tokens, answers)
        if found is None:
            return NOT_FOUND
        laid = lay_tokens(self._family, tokens.ids, shown, is_fake)
        for start, stop in found.spans:
            laid.learned[start:stop] = True
        laid.learned[blocks(self._family, laid.ids)] = False
        noted = {"searched_answers": answers} if found.searched else {}
        laid = laid._replace(noted={**placed.noted, **noted})
        return self._shortened(laid, placed)

    def _unanswered(self, reason: str, said: str) -> str:
        if self._rules.unanswered == "error":
            raise ValueError(f"{said}; set unanswered: drop to leave such items out")
        return reason

    def _shortened(self, laid: LaidConversation, placed: PlacedPictures) -> LaidConversation | str:
        """Return what of a conversation is within `max_length`, or why it is filtered."""
        length = int(laid.widths.sum())
        most = self._rules.max_length
        if most is not None and length > most:
            if self._rules.overlong == "error":
                raise ValueError(
                    f"the conversation has {length} tokens, and max_length is {most}; raise it, or "
                    "set overlong to drop or truncate"
                )
            if self._rules.overlong == "drop":
                return "overlong"
            cut = self._truncated(laid, placed, most)
            if cut is None or not cut.learned.any():
                return "overlong"
            return cut if cut.shown or not self._rules.fake_image else self._without(placed, cut)
        if not laid.learned.any():
            return self._unanswered("no answer", "the conversation has no answer to learn")
        return laid

    def _truncated(
        self, laid: LaidConversation, placed: PlacedPictures, most: int
    ) -> LaidConversation | None:
        """Return a conversation cut on the right; None = its turns cannot be told apart."""
        family = self._family
        ends = np.cumsum(laid.widths)
        keep = int(np.searchsorted(ends, most, side="right"))
        noted = dict(laid.noted)
        for (start, stop), picture in zip(
            each_block(family, laid.ids), placed.pictures, strict=True
        ):
            if ends[start] - laid.widths[start] < most < ends[stop - 1]:
                turn = turn_of(placed.messages, picture)
                begin = self._begin(placed, turn, laid.ids)
                if begin is None:
                    return None
                keep = begin
                noted["dropped_turns"] = len(placed.messages) - turn
                break
        kept = int(np.count_nonzero(places(family, laid.ids[:keep])))
        videos = sum(each.clip is not None for each in laid.shown[kept:])
        if images := len(laid.shown) - kept - videos:
            noted["dropped_images"] = images
        if videos:
            noted["dropped_videos"] = videos
        return LaidConversation(
            laid.ids[:keep],
            laid.widths[:keep],
            laid.learned[:keep],
            laid.hidden[:keep],
            laid.shown[:kept],
            noted,
        )

    def _without(self, placed: PlacedPictures, cut: LaidConversation) -> LaidConversation | str:
        """Return a conversation that a cut left no picture, with a fake one; or why there is none.

        What is left are the turns before that of its first picture.
        """
        if "fake_images" in cut.noted:
            return "overlong"  # the cut went through the fake picture, and no other is smaller
        turn = turn_of(placed.messages, placed.pictures[0])
        left = placed.messages[:turn]
        if not any(message["role"] == "assistant" for message in left):
            return "overlong"
        return self._lay_fake(PlacedPictures(left, [], cut.noted))

    def _begin(self, placed: PlacedPictures, turn: int, ids: npt.NDArray[np.int32]) -> int | None:
        """Return the token at which a turn begins; None = the template writes it otherwise alone.

        The turns before it, written alone, are what the whole begins with in most templates.
        """
        if not turn:
            return None
        template = self._template
        try:
            before = template.ids(template.write(placed.messages[:turn]).text)
        except ValueError:
            return None
        return len(before) if before == ids[: len(before)].tolist() else None
