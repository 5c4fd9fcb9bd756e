"""`penstockd` whose small batches wait another time for each other: `gathering_server.py S ...`."""

from __future__ import annotations

import sys

from penstock.server.cli import main
from penstock.server.rpc import gathering

if __name__ == "__main__":
    gathering.GATHER_S = float(sys.argv.pop(1))
    main()
