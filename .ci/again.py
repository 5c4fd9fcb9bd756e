"""Run once more, alone, what has just failed: at most two tests, and both have to pass now.

Two processes of tests on two cores sometimes starve a test that waits for a third. What fails here
fails the run; what passes here is named, and is a defect all the same: of the test, or of penstock.
Arguments are given on to pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 2


def say(*lines: str) -> None:
    """Print lines, all but the first one indented."""
    sys.stdout.write("\n  ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return the exit status."""
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= MOST:
        say(f"{len(failed)} tests have failed; 1 to {MOST} are run again")
        return 1
    say("run again, alone:", *failed)
    status = subprocess.call([sys.executable, "-m", "pytest", "-q", *sys.argv[1:], *failed])
    if status == 0:
        say("UNSTABLE, failed beside others and passed alone:", *failed)
    return status


if __name__ == "__main__":
    sys.exit(main())
