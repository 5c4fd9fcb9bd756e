"""Values of JSON in files, parsed when they are asked for; some of their keys may be kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.server.roles.parameters import declared
from penstock.server.sources.blocked import BlockedFiles, FileBlock
from penstock.server.sources.file_source import Files
from penstock.server.sources.requirements import check_columns


@declared
class JsonFiles(BlockedFiles):
    """Files of values of JSON.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        columns: Which keys of the values to keep, in this order; one that a value lacks is None.
            None = all.
    """

    values_are: ClassVar[str]
    """What values are called, for messages."""

    files: Files
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        asked = self.columns
        self.names = None if asked is None else check_columns(asked, asked, "it")
        self.open_files(self.files, self.values_are, self.block_bytes)

    def columns_of_items(self) -> dict[str, str] | None:
        """Return the columns that were asked for; None = whatever the values have."""
        return None if self.names is None else dict.fromkeys(self.names, "")


def json_value(block: FileBlock, what: str, text: bytes, names: Sequence[str] | None) -> Any:
    """Return a value.

    Args:
        block: The block that it is in.
        what: Which line or element of the file it is, for messages.
        text: The JSON.
        names: The keys to keep; None = the value as it is.

    Raises:
        BadItem: It is not JSON, or has no keys.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise block.bad(
            what,
            f"is not JSON ({error})",
            "correct it or take it out, or let on_item_error: quarantine skip it",
        ) from None
    if names is None:
        return value
    if not isinstance(value, dict):
        raise block.bad(
            what,
            f"is a value of type {type(value).__name__}, which has no keys",
            "take it out, or leave columns out",
        )
    return {name: value.get(name) for name in names}
