"""Who is told what calls of `Cursors` have done."""

from __future__ import annotations

from penstock.server.store.records import (
    BeginAnswer,
    BeginRequest,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Moved,
)


class Listener:
    """Is told what the calls of `Cursors` have done. The default ignores it."""

    def readers(self, job: str, group: str) -> int:
        """Return how many readers of a group's attempts are open here."""
        return 0

    def began(self, request: BeginRequest, begun: BeginAnswer) -> None:
        """A group has a new generation, with ranks."""

    def moved(self, job: str, group: str, moved: Moved, how: str, owner: str) -> None:
        """A group has a new generation without ranks: `owner` did what `how` says."""

    def committed(self, job: str, group: str, rank: int, committed: Committed) -> None:
        """A rank has committed."""

    def checkpointed(self, job: str, group: str, made: CheckpointRecord) -> None:
        """A step has a name."""

    def deleted(self, record: GroupRecord, owner: str) -> None:
        """A group is gone."""
