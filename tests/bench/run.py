"""All benchmarks: `make bench`, or `python tests/bench/run.py [NAME...]`.

They print tables of figures that stand side by side in one run, and decide nothing: machines are
noisy.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time

from penstock.server.resources import usable_cpus

NAMES = ("packing", "text", "transfer", "resume", "memory", "reading")


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(
            f"no benchmark is named {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    print(
        f"penstock benchmarks: {usable_cpus()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start, {time.strftime('%Y-%m-%d')}"
    )
    for name in names or NAMES:
        importlib.import_module(name).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
