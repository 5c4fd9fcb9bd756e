"""How a node that drains hands its lanes over: nothing that it has made is made again.

Its workers make what they are at, and nothing after it; where each lane stands then is written to
the store. Streams still send what is ready, and end where nothing more comes: so whoever goes on
with a lane finds a snapshot of the very batch that its readers lack.
"""

from __future__ import annotations

import time

from penstock.server.node.demand.stream_demand import StreamDemand

HAND_OVER_S, HAND_OVER_SHARE = 3.0, 0.15
"""How long readers may take for what is ready: seconds, and at most this share of the time to drain
in. What is made ahead of a reader is a step or two of its run. One that takes longer, or a worker
that hangs, costs a replay from the snapshot before, and no more."""


class HandOver:
    """When the streams of a node that drains may end.

    Attributes:
        has_begun: The node drains: no stream is opened any more.
        is_saved: Where lanes stand is in the store.
    """

    def __init__(self) -> None:
        self.has_begun = self.is_saved = False
        self._end_s = 0.0

    def begin(self, grace_s: float) -> None:
        """Begin, with so many seconds to drain in."""
        self.has_begun = True
        self._end_s = time.monotonic() + min(HAND_OVER_S, HAND_OVER_SHARE * grace_s)

    def left_s(self) -> float:
        """Return how many seconds are left for it."""
        return max(0.0, self._end_s - time.monotonic())

    def is_over(self, reader: StreamDemand) -> bool:
        """Tell whether a stream may end whose reader can be given nothing now."""
        return (self.is_saved and not reader.is_coming) or not self.left_s()
