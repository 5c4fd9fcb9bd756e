"""A conversation's tokens before any picture is decoded, and where its pictures and videos are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.media.families.family import Family
from penstock.server.media.families.patch_families import QwenVl
from penstock.server.media.families.rope_positions import rope_positions
from penstock.server.roles.processors.shown_media import ShownMedium

OPENS_WITHIN = 12
"""Tokens before a picture's own among which the one that opens it is: Kimi writes `image` between,
which is one token of its vocabulary, and five of one of bytes."""


class LaidConversation(NamedTuple):
    """A conversation's tokens, before any picture is decoded.

    Attributes:
        ids: The template's tokens, in which a picture or a video is one token.
        widths: How many tokens each of these becomes.
        learned: bool, which are learned.
        hidden: bool, which attention is not to see.
        shown: The pictures and videos, in order.
        noted: What a batch counts.
    """

    ids: npt.NDArray[np.int32]
    widths: npt.NDArray[np.int32]
    learned: npt.NDArray[np.bool_]
    hidden: npt.NDArray[np.bool_]
    shown: list[ShownMedium]
    noted: dict[str, int]

    def measured(self) -> tuple[int, int, int, int, int]:
        """Return what it counts, in the order of `ConversationProcessor.measures`."""
        videos = sum(each.clip is not None for each in self.shown)
        return (
            sum(each.size.tokens for each in self.shown),
            len(self.shown) - videos,
            videos,
            sum(each.size.patches for each in self.shown),
            sum(each.size.pixels for each in self.shown),
        )

    def starts(self, family: Family) -> list[int]:
        """Return at which token each picture and video begins."""
        begins = np.cumsum(self.widths) - self.widths
        found: list[int] = begins[places(family, self.ids)].tolist()
        return found

    def input_ids(self, family: Family) -> npt.NDArray[np.int32]:
        """Return all tokens, int32 (t,): those of pictures and videos as often as they count."""
        found = np.repeat(self.ids, self.widths)
        for start, each in zip(self.starts(family), self.shown, strict=True):
            if each.texts is not None:
                assert family.video_id is not None
                assert family.around_ids is not None
                written = each.written(family.video_id, family.around_ids)
                found[start : start + each.width()] = [*written]
        return found

    def positions(
        self, family: QwenVl, seen: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.int32]:
        """Return positions in three dimensions; of videos with times, each time is a block.

        Args:
            family: The family.
            seen: bool (t,), False on tokens that attention does not see; None = all are seen.

        Returns:
            int32 (3, t).
        """
        begins: list[int] = []
        grids: list[tuple[int, int, int]] = []
        intervals: list[float] = []
        for start, each in zip(self.starts(family), self.shown, strict=True):
            assert each.size.grid is not None
            times, rows, columns = each.size.grid
            if each.texts is not None:
                tokens = each.size.tokens // times
                for text in each.texts:
                    begins.append(start + len(text) + 1)
                    start += len(text) + 2 + tokens
                grids += [(1, rows, columns)] * times
                intervals += [1.0] * times
                continue
            begins.append(start)
            grids.append((times, rows, columns))
            intervals.append(1.0 if each.clip is None else family.interval(each.clip.fps))
        length, merge = int(self.widths.sum()), family.settings["merge_size"]
        return rope_positions(length, begins, grids, merge, seen, intervals)


def lay_tokens(
    family: Family, ids: Sequence[int], shown: list[ShownMedium], is_fake: bool
) -> LaidConversation:
    """Return a conversation's tokens with nothing learned yet."""
    tokens = np.array(ids, dtype=np.int32)
    where = places(family, tokens)
    for kind, token, number, expected in (
        ("pictures", family.image_token, family.image_id, sum(e.clip is None for e in shown)),
        ("videos", family.video_token, family.video_id, sum(e.clip is not None for e in shown)),
    ):
        found = 0 if number is None else int(np.count_nonzero(tokens == number))
        if found != expected:
            raise ValueError(
                f"the chat template wrote {found} {token} for {expected} {kind}: a text holds that "
                "token itself, or the template leaves some out; take it out of the data, or give "
                "another chat_template"
            )
    is_video = [each.clip is not None for each in shown]
    if [int(token) == family.video_id for token in tokens[where]] != is_video:
        raise ValueError(
            "the chat template writes pictures and videos in another order than the turns have "
            "them: give another chat_template"
        )
    widths = np.ones(len(tokens), np.int32)
    widths[where] = [each.width() for each in shown]
    hidden = np.zeros(len(tokens), bool)
    if is_fake:
        hidden[blocks(family, tokens)] = True
    return LaidConversation(tokens, widths, np.zeros(len(tokens), bool), hidden, shown, {})


def places(family: Family, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return where the tokens are that stand for a picture or a video."""
    found: npt.NDArray[np.bool_] = ids == family.image_id
    return found if family.video_id is None else found | (ids == family.video_id)


def each_block(family: Family, ids: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return which tokens are each picture's or video's: its own, and those that open and close."""
    found = []
    for place in np.flatnonzero(places(family, ids)).tolist():
        start, stop = place, place + 1
        if family.around_ids is not None:
            near = max(0, place - OPENS_WITHIN)
            opening = np.flatnonzero(ids[near:place] == family.around_ids[0])
            if len(opening):
                start = near + int(opening[-1])
            if stop < len(ids) and ids[stop] == family.around_ids[1]:
                stop += 1
        found.append((start, stop))
    return found


def blocks(family: Family, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return where the tokens of pictures are, and those around them."""
    found = np.zeros(len(ids), bool)
    for start, stop in each_block(family, ids):
        found[start:stop] = True
    return found
