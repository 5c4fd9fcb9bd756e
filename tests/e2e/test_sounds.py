"""Sound through a node; and in processes of its own: damaged files, and other processors."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from far_store import FarStore
from harness import serving, write_job_file
from penstock.client import Loader
from penstock.server.core.refs import ItemRef
from penstock.server.jobs.load import load
from penstock.server.media import resample
from penstock.server.media.medium import HeldMedium
from penstock.server.pipeline.line import Line
from penstock.server.roles import ProcessContext, SoundProcessor
from penstock.wire.errors import BadItem
from sounds import FORMATS, RESAMPLED, decoded, drawn, written

TESTS = Path(__file__).resolve().parents[1]
COUNT = 400


def run(*arguments: str, **surroundings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def decode_damaged(count: int, seed: int) -> dict[str, int]:
    done = run("-W", "error", "damaged/sounds.py", str(count), str(seed))
    assert done.returncode == 0, f"seed {seed} ends with {done.returncode}:\n{done.stderr[-3000:]}"
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_damaged_sounds_are_refused_by_name_and_take_no_memory() -> None:
    """No crash, no other error, no warning, and 64 MiB for files of a few KiB; all formats met."""
    found = decode_damaged(COUNT, seed=1)

    assert sum(found.values()) == COUNT + len(FORMATS)
    assert all(found.get(f"{name}: refused") for name in FORMATS)
    assert sum(count for name, count in found.items() if "decoded" in name) > COUNT // 8


@pytest.mark.parametrize("seed", range(2, 7))
def test_many_damaged_sounds(seed: int) -> None:
    """The same at more length: 10^4 files."""
    assert decode_damaged(2000, seed)


@pytest.mark.parametrize(
    "surroundings",
    [
        {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Nehalem"},
        {"OPENBLAS_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": "FMA3 AVX2 AVX512F"},
    ],
    ids=["an old processor", "two threads, few vectors"],
)
def test_resampled_sound_is_the_same_on_other_processors(surroundings: dict[str, str]) -> None:
    """Whatever adds the products up: other kernels, other threads."""
    script = "import sounds; print(sounds.resampling_digest())"

    done = run("-W", "ignore", "-c", script, **surroundings)

    assert done.stdout.strip() == repr(RESAMPLED), done.stderr


# --- through a node ---

PARAMETERS = {
    "columns": ["number"],
    "sample_rate": 16000,
    "start_s": 0.05,
    "stop_s": "end",
    "tokens_per_second": 25,
    "token_id": 9,
}


def write_sounds(folder: Path) -> list[dict[str, Any]]:
    """Write sounds in every format at several rates; return the items that name them."""
    folder.mkdir()
    items = []
    for number, kind in enumerate(list(FORMATS) * 3):
        rate = (8000, 24000, 48000)[number % 3]
        seconds = 0.3 + 0.13 * (number % 7)
        name = f"{number}.bin"
        data = written(drawn(seconds, rate, 1 + number % 2, seed=number), rate, kind)
        (folder / name).write_bytes(data)
        items.append({"audio": name, "number": number, "end": round(seconds - 0.1, 3)})
    return items


def expected(folder: Path, items: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the sample of each item, made here."""
    processor = SoundProcessor(**PARAMETERS)
    found = {}
    for raw in items:
        medium = HeldMedium(raw["audio"], (folder / raw["audio"]).read_bytes())
        context = ProcessContext(ItemRef("main", 0, 0), 0, [medium])
        found[raw["number"]] = processor.process(raw, context)
    return found


def job_of(items: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a job that names sounds."""
    return {
        "source": {"type": "items", "items": items},
        "processor": {"type": "sound", **PARAMETERS},
        "media": {"dir": "sounds", "endings": [".bin"]},
        "collator": "lists",
        "lanes": 2,
        "epochs": 1,
        **more,
    }


def test_sounds_come_through_a_node(tmp_path: Path) -> None:
    """Files of every format, by name, decoded by two workers: each sample once, to the bit."""
    items = write_sounds(tmp_path / "sounds")
    file = write_job_file(tmp_path / "job.yaml", {"main": job_of(items, batch_size=4)})

    found: dict[int, tuple[np.ndarray, int, np.ndarray]] = {}
    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        for batch in loader:
            columns = (batch[name] for name in ("number", "sound", "sample_rate", "input_ids"))
            for number, sound, rate, ids in zip(*columns, strict=True):
                assert int(number) not in found
                found[int(number)] = (np.asarray(sound), int(rate), np.asarray(ids))

    wanted = expected(tmp_path / "sounds", items)
    assert found.keys() == wanted.keys()
    for number, (sound, rate, ids) in found.items():
        assert np.array_equal(sound, wanted[number]["sound"]), items[number]
        assert rate == 16000
        assert np.array_equal(ids, wanted[number]["input_ids"])


def test_a_damaged_sound_is_named_with_its_file(tmp_path: Path) -> None:
    """Which item, which file and what is wrong; nothing is made up in its place."""
    items = write_sounds(tmp_path / "sounds")
    broken = tmp_path / "sounds" / "5.bin"
    broken.write_bytes(broken.read_bytes()[:-700])
    file = write_job_file(tmp_path / "job.yaml", {"main": job_of(items, batch_size=4)})

    with (
        serving(file, "--workers", "2") as server,
        pytest.raises(BadItem, match=r"item main\[5\] .*5\.bin: its header says .* it was cut"),
        Loader(server.address, "main") as loader,
    ):
        list(loader)


@pytest.mark.parametrize("limits", [None, {"seconds": 3}, {"media_tokens": 40}])
def test_sounds_are_packed_by_what_their_headers_tell(
    tmp_path: Path, limits: dict[str, int] | None
) -> None:
    """No row above a limit, none larger than it was planned, and each sample once."""
    items = write_sounds(tmp_path / "sounds")
    batcher: dict[str, Any] = {"type": "best_fit", "max_tokens": 60, "pool_size": 12}
    if limits is not None:
        batcher |= {"limits": limits, "overlong": "alone"}
    file = write_job_file(tmp_path / "job.yaml", {"main": job_of(items, batcher=batcher)})

    rows = []
    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        for batch in loader:
            rows.append([int(number) for number in batch["number"]])
            tokens = sum(map(len, batch["input_ids"]))
            seconds = sum(-(-len(sound) // 16000) for sound in batch["sound"])
            counted = {"seconds": seconds, "media_tokens": tokens}
            assert tokens <= 60
            assert all(counted[name] <= most for name, most in (limits or {}).items())

    assert sorted(number for row in rows for number in row) == list(range(len(items)))
    assert max(map(len, rows)) > 1
    line = Line(load(str(file), environ={}).job("main"), 0)
    accounts = [line.make(line.advance()).accounting for _ in range(4)]
    assert not [name for account in accounts for name in account if name.startswith("size:")]


def test_spans_of_far_files_are_read_alone(tmp_path: Path) -> None:
    """A store is asked for a file's head and for its span, and for nothing ahead of these."""
    (tmp_path / "far").mkdir()
    points = drawn(60, 24000, 2)
    files = {kind: written(points, 24000, kind) for kind in ("wav", "flac")}
    for kind, data in files.items():
        (tmp_path / "far" / kind).write_bytes(data)
    items = [
        {"audio": kind, "from": at, "to": at + 0.5} for at in (3.0, 30.0, 55.0) for kind in files
    ]
    span = {"type": "sound", "channels": "all", "start_s": "from", "stop_s": "to"}
    with FarStore(tmp_path / "far") as store:
        job = {
            "source": {"type": "items", "items": items},
            "processor": {**span, "columns": ["audio", "from"]},
            "media": {"dir": store.url},
            "collator": "lists",
            "batch_size": 6,
            "lanes": 1,
            "epochs": 1,
        }
        file = write_job_file(tmp_path / "job.yaml", {"main": job})
        with Loader(f"local:{file}", "main", rank=0, world_size=1) as loader:
            [batch] = loader
            asked = list(store.asked)

    assert len(batch["sound"]) == 6
    for kind, at, sound in zip(batch["audio"], batch["from"], batch["sound"], strict=True):
        first = round(float(at) * 24000)
        assert np.array_equal(np.asarray(sound), decoded(files[kind])[first : first + 12000])
    spans = [re.fullmatch(r"bytes=(\d+)-(\d+)", wanted) for _, wanted in asked]
    assert all(spans)
    read = sum(int(span[2]) + 1 - int(span[1]) for span in spans if span)
    assert read < 6 << 20 < 3 * sum(map(len, files.values()))


# --- what docs/sound.md says ---

PAGE = (TESTS.parent / "docs" / "sound.md").read_text()


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    """As it is written there, with the item and the keys that it names."""
    [example] = re.findall(r"<!-- file: sound.yaml -->\n```yaml\n(.*?)```", PAGE, re.S)
    [line] = re.findall(r"An item of it is `(.*?)`", PAGE)
    item = json.loads(line)
    (tmp_path / "sound.yaml").write_text(example)
    (tmp_path / "clips.jsonl").write_text(f"{line}\n" * 8)
    path = tmp_path / "clips" / item["audio"]
    path.parent.mkdir(parents=True)
    path.write_bytes(written(drawn(1, 48000, 2), 48000, "flac"))

    address = f"local:{tmp_path}/sound.yaml"
    with Loader(address, "speech", rank=0, world_size=1) as loader:
        batch = next(iter(loader))

    assert list(batch) == ["sound", "sample_rate", "text"]
    assert [sound.shape for sound in batch["sound"]] == [(16000,)] * 4


def test_figures_of_the_page_are_those_of_the_code() -> None:
    """Bounds and bits that it names are constants somewhere."""
    most = inspect.signature(SoundProcessor.__init__).parameters["max_bytes"].default

    assert f"{most >> 20} MiB are {most / 4 / 16000 / 60:.0f} minutes" in PAGE
    assert f"a sinc of {resample.ZERO_CROSSINGS} zero crossings" in PAGE
    assert f"what would alias by {resample.ATTENUATION_DB} dB" in PAGE
    assert all(f"`{name}`" in PAGE for name in ("wav", "flac", "ogg", "mp3"))
