"""Damaged videos, read in a process of their own within bounds of memory and time.

`python tests/damaged/films.py COUNT SEED` prints how many were decoded and how many refused, as
JSON. Any other error than a named one ends it, after it has said which file that was; so does one
that takes 10 s.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import videos
from damaged.mutations import mutate
from damaged.sounds import used
from penstock.server.core.refs import ItemRef
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ProcessContext, VideoProcessor

MORE_BYTES = 512 << 20
"""Of address space, beside what is there already: what decoders take for pictures of any size that
`max_bytes` allows, more than one at a time."""

LONGEST_S = 10

HEADER = 1200
"""At the beginning and at the end: where containers say what they hold."""

TAKEN = (
    "H.264",
    "H.264, open GOPs",
    "H.264 in mkv",
    "H.264 in fragments",
    "H.264, shown from its 5th frame on",
    "H.264, rotated by 90",
    "H.264 in avi",
    "HEVC",
    "VP9",
    "AV1",
    "MPEG-4 with B-frames in avi",
    "MJPEG",
)


def main(count: int, seed: int) -> None:
    """Decode so many damaged files."""
    files = {name: videos.film(name) for name in TAKEN}
    processor = VideoProcessor(
        numbers="numbers", on_broken_tail="keep", max_bytes=64 << 20, decoders=2, frame_bytes=0
    )
    results: Counter[str] = Counter()
    for name, data in files.items():  # whole ones first: what they load is not the files' doing
        attempt(processor, data, [0, 40, 7])
        results[f"{name}: whole"] += 1
    limit = used() + MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        name = draw.choice(TAKEN)
        data = damaged(files[name], draw)
        signal.alarm(LONGEST_S)
        try:
            attempt(processor, data, [draw.randrange(60) for _ in range(4)])
            results[f"{name}: decoded"] += 1
        except BadVideo:
            results[f"{name}: refused"] += 1
        except BaseException:
            sys.stderr.write(f"file {number} of seed {seed}, a {name}:\n")
            raise
        finally:
            signal.alarm(0)
    sys.stdout.write(json.dumps(results))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a file with damage, most often where its header or its table is."""
    where = draw.random()
    if where < 0.4:
        return mutate(data[:HEADER], draw) + data[HEADER:]
    if where < 0.7:
        return data[:-HEADER] + mutate(data[-HEADER:], draw)
    return mutate(data, draw)


def attempt(processor: VideoProcessor, data: bytes, numbers: list[int]) -> None:
    """Size and decode a file; both say the same of it."""
    raw, medium = {"video": data, "numbers": numbers}, HeldMedium("medium 0", data)
    told = processor.size(raw, [medium])
    sample = processor.process(raw, ProcessContext(ItemRef("main", 0, 0), 0, [medium]))
    assert len(sample["video"]) == told.size
    assert list(processor.counts(sample)) == list(told.counts)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
