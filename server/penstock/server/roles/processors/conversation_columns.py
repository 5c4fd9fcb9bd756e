"""Where an item holds its conversation, and the pictures and videos that this shows."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.server.core.refs import ItemRef
from penstock.server.roles.processors.chat import COLUMNS
from penstock.server.roles.processors.picture_turns import PictureTurns, PlacedPictures
from penstock.server.roles.processors.tokenizer_file import no_column
from penstock.server.roles.samples import RawItem

IMAGE_COLUMNS = ("images", "image")
VIDEO_COLUMNS = ("videos", "video")


class ConversationColumns:
    """Reads items.

    Args:
        turns: Places what a conversation shows.
        column: The column of the conversation; None = the first of `COLUMNS` that an item has.
        images: That of its pictures, the same way.
        videos: That of its videos.
    """

    def __init__(
        self, turns: PictureTurns, column: str | None, images: str | None, videos: str | None
    ) -> None:
        self._turns = turns
        self._columns = COLUMNS if column is None else (column,)
        self._images = IMAGE_COLUMNS if images is None else (images,)
        self._videos = VIDEO_COLUMNS if videos is None else (videos,)

    def check(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a column of conversations.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        if not any(name in columns for name in self._columns):
            raise no_column(self._columns[0], columns)

    def placed(self, raw: RawItem, item: ItemRef | None) -> PlacedPictures | None:
        """Return the conversation of an item; None = there is none.

        Args:
            raw: The item, or a conversation itself.
            item: What errors name.

        Raises:
            InvalidJob: The item has no such column.
            TypeError, ValueError: As `PictureTurns.placed`.
        """
        images, videos = None, None
        if isinstance(raw, Mapping):
            name = next((name for name in self._columns if name in raw), None)
            if name is None:
                raise no_column(self._columns[0], raw, item)
            images = next((raw[name] for name in self._images if name in raw), None)
            videos = next((raw[name] for name in self._videos if name in raw), None)
            raw = raw[name]
        return None if raw is None else self._turns.placed(raw, images, videos)
