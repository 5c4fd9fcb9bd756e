"""SIGKILL of a worker that decodes pictures of conversations: a pause, and never another byte."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from harness import kill_process, serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.server.jobs.load import load
from penstock.wire.errors import WorkerCrashed
from vision import drawn, encoded, write_vision_folder

pytestmark = pytest.mark.fault

ITEMS, LANES = 12, 2

DEADLY = '''
import os
import signal

from penstock.server.roles.processors import ConversationProcessor


class Deadly(ConversationProcessor):
    """Is killed as often as a file says while it decodes the picture of item 3."""

    version = 1

    def process(self, raw, context):
        if context.item.index == 3:
            path = os.path.join(os.path.dirname(__file__), "left")
            left = int(open(path).read())
            if left:
                open(path, "w").write(str(left - 1))
                os.kill(os.getpid(), signal.SIGKILL)
        return super().process(raw, context)
'''


def write_talks(folder: Path, processor: str, workers: int, width: int) -> Path:
    """Write conversations about photographs, and a job of them."""
    (folder / "photos").mkdir()
    write_vision_folder(folder / "model", "kimi")
    lines = []
    for number in range(ITEMS):
        photo = encoded(drawn(width + 20 * number, width, number), "JPEG")
        (folder / "photos" / f"{number}.jpg").write_bytes(photo)
        turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "It."}]
        lines.append(json.dumps({"conversations": turns, "images": [f"{number}.jpg"]}))
    (folder / "talks.jsonl").write_text("\n".join(lines))
    job = {
        "source": {"type": "jsonl", "files": "talks.jsonl"},
        "media": {"dir": "photos"},
        "processor": {
            "type": processor,
            "tokenizer": "model",
            "settings": {"max_patches": 300},
            "unanswered": "error",
        },
        "batcher": {"type": "best_fit", "max_tokens": 200, "overlong": "drop"},
        "collator": {"type": "vlm", "layout": "indexed"},
        "lanes": LANES,
        "seed": 3,
    }
    return write_job_file(folder / "jobs.yaml", {"talks": job}, workers=workers)


def test_a_worker_may_die_while_it_decodes(tmp_path: Path) -> None:
    """At random moments, of which most are within a picture: nobody is blamed for one death."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    file = write_talks(tmp_path, "conversation", 2, 1400)
    purity = Purity(load(str(file)).jobs["talks"])
    with serving(file) as server:
        reader = server.read("talks", horizon=6)
        batches = iter(reader)
        got: list[int] = []
        kills = 0
        while kills < 5:
            # What was under way at a kill is read before the next one.
            until = len(got) + rng.randrange(18, 24)
            reader.extend(until + 6)
            while len(got) < until:
                delivered = next(batches)
                purity.saw(*delivered)
                got.append(delivered.header.position)
            if pids := server.worker_pids():
                kills += kill_process(rng.choice(pids))
        until = len(got) + 6
        while len(got) < until:
            delivered = next(batches)
            purity.saw(*delivered)
            got.append(delivered.header.position)
        died = len(server.events("a worker died", at_least=3))
        reader.cancel()

    assert died >= 3, seed
    assert sorted(got) == list(range(len(got))), seed
    assert not server.events("a bug")


@pytest.mark.parametrize("deaths", [1, 2, 9])
def test_an_item_is_blamed_for_its_third_death_and_not_before(deaths: int, tmp_path: Path) -> None:
    """The first may be of a worker that decoded others with it: then it is not yet the item's."""
    (tmp_path / "roles.py").write_text(DEADLY)
    (tmp_path / "left").write_text("0")
    file = write_talks(tmp_path, "./roles.py:Deadly", 1, 60)
    with serving(file) as server, Loader(server.address, "talks") as loader:
        before = [dict(batch) for batch, _ in zip(loader, range(9), strict=False)]
    (tmp_path / "left").write_text(str(deaths))

    with serving(file) as server, Loader(server.address, "talks") as loader:
        if deaths == 9:
            with pytest.raises(WorkerCrashed, match=r"main\[3\].*killed by signal SIGKILL"):
                list(zip(loader, range(9), strict=False))
            return
        after = [dict(batch) for batch, _ in zip(loader, range(9), strict=False)]

    assert (tmp_path / "left").read_text() == "0"
    for one, other in zip(before, after, strict=True):
        assert one.keys() == other.keys()
        assert all((one[name] == other[name]).all() for name in one)
