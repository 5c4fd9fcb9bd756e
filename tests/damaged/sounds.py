"""Damaged sounds, decoded in a process of their own within a bound of memory.

`python tests/damaged/sounds.py COUNT SEED` prints how many were decoded and how many refused, as
JSON. Any other error than a named one ends it, after it has said which file that was.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from damaged.mutations import mutate
from penstock.server.core.refs import ItemRef
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ProcessContext, SoundProcessor
from sounds import FORMATS, drawn, written

MORE_BYTES = 64 << 20
"""Of address space: what a file of a few KiB may take beside what is there already."""

HEADER = 160


def main(count: int, seed: int) -> None:
    """Decode so many damaged files."""
    files = {name: written(drawn(0.25, 16000, 2), 16000, name) for name in FORMATS}
    processor = SoundProcessor(sample_rate=8000, max_bytes=8 << 20, tokens_per_second=25)
    results: Counter[str] = Counter()
    for name, data in files.items():  # whole ones first: what they load is not the files' doing
        attempt(processor, data)
        results[f"{name}: whole"] += 1
    limit = used() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        name = draw.choice(list(files))
        data = files[name]
        if draw.random() < 0.8:
            data = mutate(data[:HEADER], draw) + data[HEADER:]
        else:
            data = mutate(data, draw)
        try:
            attempt(processor, data)
            results[f"{name}: decoded"] += 1
        except BadSound:
            results[f"{name}: refused"] += 1
        except BaseException:
            sys.stderr.write(f"file {number} of seed {seed}, a {name}:\n")
            raise
    sys.stdout.write(json.dumps(results))


def attempt(processor: SoundProcessor, data: bytes) -> None:
    """Size and decode a file; both say the same of it.

    A size is told by a header, so there may be one of what decoding refuses.
    """
    medium = HeldMedium("medium 0", data)
    told = processor.size({"audio": data}, [medium])
    sample = processor.process({"audio": data}, ProcessContext(ItemRef("main", 0, 0), 0, [medium]))
    assert len(sample["input_ids"]) == told.size
    assert list(processor.counts(sample)) == list(told.counts)


def used() -> int:
    """Return the bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
