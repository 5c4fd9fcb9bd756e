"""Write the golden files anew, after a change that is meant: `python tests/golden/write.py`.

A section that changed while no version rose is refused. Before the first release `--unreleased`
writes it all the same: there is no log yet that could be another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from golden.content import FOLDER, REMEDIES, SECTIONS, compute, stored


def write(*, unreleased: bool) -> list[str]:
    """Write every section that changed; return what was refused."""
    refused = []
    for name in SECTIONS:
        file, new = FOLDER / f"{name}.json", compute(name)
        old = stored(name) if file.exists() else None
        changed = old is not None and old["content"] != new["content"]
        if changed and old is not None and old["versions"] == new["versions"] and not unreleased:
            refused.append(f"{name} has changed, and no version did: {REMEDIES[name]}")
        elif old != new:
            file.write_text(json.dumps(new, indent=1, sort_keys=True) + "\n")
            sys.stdout.write(f"wrote {file}\n")
    return refused


if __name__ == "__main__":
    sys.exit("\n".join(write(unreleased="--unreleased" in sys.argv[1:])) or 0)
