"""What a node tells of its work as it happens; metrics are made of it."""

from __future__ import annotations

from collections.abc import Mapping


class Observer:
    """What a node tells; the default listens to nothing."""

    def produced(self, job: str, nbytes: int, counts: Mapping[str, int]) -> None:
        """A batch was made."""

    def left_out(self, job: str, exits: Mapping[str, int]) -> None:
        """Samples that making a batch left out, or found larger or smaller than they were told."""

    def retried(self, job: str, retries: Mapping[str, int]) -> None:
        """How often something was tried again, by why: `penstock.server.core.reasons`."""

    def worked(
        self,
        job: str,
        batches: int,
        stages_s: Mapping[str, float],
        read_bytes: int,
        media_bytes: int,
        drawn: int,
    ) -> None:
        """What some batches cost: a worker's seconds by stage, bytes read from storage, draws."""

    def decoded(self, job: str, frames: Mapping[str, int], cpu_s: Mapping[str, float]) -> None:
        """What was decoded of videos, and what for, and processor seconds by stage."""

    def counting(self, job: str, seconds: float, read_bytes: int, media_bytes: int) -> None:
        """What it cost to find out where lanes end: seconds, and bytes read from storage."""

    def counted(
        self, job: str, lane: int, counters: Mapping[str, int], before: Mapping[str, int]
    ) -> None:
        """The counters of a lane since its beginning, now and when its line was opened."""

    def quarantined(self, job: str, left_out: Mapping[tuple[str, str, str], int]) -> None:
        """How many items are left out now, by stage and kind of reason."""

    def worker_died(self) -> None:
        """A worker process ended unasked."""

    def failed(self, job: str, code: str) -> None:
        """A batch could not be made."""

    def verified(self, job: str, pure: bool) -> None:
        """A batch was made twice, and was the same, or was not."""

    def witnessed(self, job: str, compared: int, diverged: int) -> None:
        """Witnesses were recorded or compared, and so many were another batch before."""
