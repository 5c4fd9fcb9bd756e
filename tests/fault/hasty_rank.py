"""`penstock` as a rank that leaves nodes after less than a second: a test has no minutes to wait.

Nodes that are merely slow are left, too: nothing may depend on being right about that.
"""

from __future__ import annotations

import sys

from penstock.client.cli import main
from penstock.client.nodes import placement
from penstock.client.reading import failover


def hurry() -> None:
    """Leave nodes of this process early."""
    placement.HEALTHY_S = 1.0
    failover.AGAIN_S, failover.TRIAL_S = 0.3, 0.5
    failover.SILENT_S, failover.OPEN_S, failover.PROBE_S = 1.5, 0.7, 1.0


if __name__ == "__main__":
    hurry()
    sys.exit(main(["-v", *sys.argv[1:]]))
