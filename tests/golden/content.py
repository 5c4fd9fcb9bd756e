"""What a job gives, pinned: small jobs of every shipped role, computed here and kept as files.

Each section is computed from nothing but the code, and compared with `tests/golden/NAME.json`.
A section that differs means other bytes for the same job: see `REMEDIES`.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import soundfile

from golden import video_content
from penstock.server.core import permutation
from penstock.server.core.canonical import canonical
from penstock.server.core.many_orders import MANY_ORDERS_VERSION
from penstock.server.core.refs import ItemRef
from penstock.server.job import job as job_module
from penstock.server.job.job import Job
from penstock.server.media.medium import HeldMedium
from penstock.server.media.resample import RESAMPLER_VERSION
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.line import Line
from penstock.server.roles import DataDistributor, LaneDraws, StreamSource, context, reading
from penstock.server.roles.batchers import BUILTIN_BATCHERS
from penstock.server.roles.collators import BUILTIN_COLLATORS
from penstock.server.roles.collators.layouts import LAYOUTS
from penstock.server.roles.distributors import (
    BUILTIN_DISTRIBUTORS,
    EpisodesDistributor,
    IterableDistributor,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
)
from penstock.server.roles.processors import (
    FunctionProcessor,
    RobotProcessor,
    SoundProcessor,
    VideoProcessor,
)
from penstock.server.sources import ItemsSource, LerobotSource
from penstock.server.usercode.seeding import purpose_key, seeded_globals
from penstock.wire import frame
from penstock.wire.v1.feed_pb2 import BatchHeader

FOLDER = Path(__file__).resolve().parent

LOG_ID = bytes(range(32))
"""Stands in for a log id where only what is made of it is pinned."""

ITEMS = [
    {
        "input_ids": np.arange(10 * n, 10 * n + 3 + n * 7 % 11, dtype=np.int64),
        "x": n,
        "score": n / 8,
        "name": f"item {n}",
        "even": n % 2 == 0,
        "image": np.full((2, 3), n, np.uint8),
    }
    for n in range(40)
]


class Blocks(ItemsSource):
    """Items that lie in storage blocks of different sizes."""

    version: ClassVar[int | str | None] = 1

    def blocks(self) -> reading.Blocks:
        """Return the items of each block."""
        return reading.Blocks([7, 3, 11, 1, 10, 8])


BATCHERS: dict[str, dict[str, Any]] = {
    "simple": {"batch_size": 3},
    "sequential": {"max_sequence_length": 30},
    "pool": {"max_tokens": 24, "pool_size": 6},
    "best_fit": {"max_tokens": 24, "pool_size": 12},
    "first_fit": {"max_tokens": 24, "open_rows": 3},
    "next_fit": {"max_tokens": 24},
    "open_best_fit": {"max_tokens": 24, "open_rows": 3},
    "balanced": {"max_tokens": 24, "open_rows": 3},
    "knapsack": {"max_tokens": 24, "window": 7, "packing_ratio": 0.9},
    "best_fit_decreasing": {"max_tokens": 24, "window": 7},
    "window": {"max_tokens": 24, "window": 5},
    "concat": {"max_tokens": 24, "rows": 2},
}
COLLATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("simple", {}),
    "padded": ("simple", {"pad_to_multiple_of": 4}),
    "lists": ("simple", {"nested": ["input_ids"]}),
    "vlm": ("simple", {"pad_to_multiple_of": 16}),
    "packed": ("best_fit", {"pad_to": 32}),
    **{
        f"packed {layout}": ("best_fit", {"pad_to": 32, "layout": layout})
        for layout in LAYOUTS
        if layout != "flash"
    },
}
"""Each shipped collator and layout with a batcher that suits it, and its parameters."""


class Shards(StreamSource):
    """Rows that are their shard and number, with a mark before every third."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def shards(self) -> list[str]:
        """Return a name for each."""
        return [f"shard {number}" for number in range(len(self.sizes))]

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the rows from a mark on, which is a row's number."""
        for row in range(mark or 0, self.sizes[shard]):
            yield [shard, row], row + 1 if (row + 1) % 3 == 0 else None

    def fingerprint(self) -> Any:
        """Return the sizes."""
        return self.sizes


def permutations() -> Any:
    """Return the beginning of orders of many lengths, and digests of whole ones."""
    found = {}
    for n in (1, 2, 5, 256, 257, 1000, 10**6, permutation.MAX_ITEMS):
        order = permutation.Permutation(n, seed=7, epoch=2, purpose="items main")
        found[str(n)] = [order[at] for at in range(min(n, 8))]
    whole = permutation.Permutation(5000, seed=-1, epoch=0).take(np.arange(5000))
    found["5000, whole"] = hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()
    return found


def draws() -> Any:
    """Return the draws of every shipped distributor, in all its orders, over a seam of epochs."""
    known = {"episodes", "iterable", "map", "mixture", "rank_partitioned"}
    assert set(BUILTIN_DISTRIBUTORS) == known, "a new distributor has draws to pin"
    found: dict[str, Any] = {}
    for shuffle in ("full", "blocks", "none"):
        source = Blocks(list(range(40))) if shuffle == "blocks" else ItemsSource(list(range(40)))
        distributor = MapDistributor(shuffle=shuffle, window_blocks=2)
        distributor.bind({"main": source}, 11, None, 3)
        for lane in range(3):
            drawn = [distributor.draw(lane, 3, k) for k in range(20)]
            found[f"{shuffle}, lane {lane}"] = [[item.index, item.epoch] for item in drawn if item]
        both = {"two": source, "one": ItemsSource(list(range(17)))}
        distributor = MapDistributor(shuffle=shuffle, window_blocks=2)
        distributor.bind(both, 11, None, 3)
        found[f"{shuffle}, two sources, lane 1"] = [distributor.draw(1, 3, k) for k in range(40)]
    chosen = {
        "a condition": MapDistributor(where={"n": {"min": 5}}),
        "a subset": MapDistributor(sample_ratio=0.3, resample=True),
        "copies": MapDistributor("blocks", window_blocks=2, sample_ratio=1.5),
    }
    for name, distributor in chosen.items():
        distributor.bind({"main": Blocks([{"n": n} for n in range(40)])}, 11, None, 3)
        found[f"map, {name}"] = [list(distributor.draw(1, 3, k) or ())[1:] for k in range(30)]
    of_episodes = {
        "shuffled": EpisodesDistributor(pool=3, episode_column="episode"),
        "in order": EpisodesDistributor(pool=2, frames="in_order", episode_column="episode"),
        "thinned": EpisodesDistributor(stride=2, drop_last_n=1, episode_column="episode"),
        "by weights": EpisodesDistributor(
            weights={"episodes": {"1": 0, "2": 2.5}}, episode_column="episode"
        ),
        "unshuffled": EpisodesDistributor(shuffle=False, episode_column="episode"),
    }
    frames = [{"episode": n * n // 160} for n in range(40)]  # of 4 to 13 rows
    for name, each in of_episodes.items():
        each.bind({"main": ItemsSource(frames)}, 11, None, 3)
        found[f"episodes, {name}"] = [list(each.draw(1, 3, k) or ())[1:] for k in range(30)]
    many = EpisodesDistributor(pool=40, episode_column="episode")
    many.bind({"main": ItemsSource([{"episode": n // 50} for n in range(5000)])}, 11, None, 2)
    whole = json.dumps(many.draw_many(1, 2, 0, 6000)).encode()
    found["episodes, many rounds"] = hashlib.sha256(whole).hexdigest()
    parts = {"a": 3, "b": {"weight": 2, "distributor": MixtureDistributor({"c": 1, "d": 4})}}
    mixed: dict[str, DataDistributor] = {
        "mixture of items": MixtureDistributor(parts),
        "mixture of tokens": MixtureDistributor(parts, weights_by="tokens", temperature=2),
        "rank_partitioned": RankPartitionedDistributor({"a": 1, "b": 2, "c": 1, "d": 5}),
    }
    for name, mixture in mixed.items():
        mixture.bind({part: ItemsSource(list(range(9))) for part in "abcd"}, 11, None, 12)
        lane = mixture.open(5, 12)
        found[name] = [_taken(lane) for _ in range(30)]
        found[f"{name}, state"] = lane.state()
    for deal, waiting, lanes in ((True, 0, 3), (False, 0, 3), (True, 4, 3), (True, 4, 7)):
        rows = IterableDistributor(shuffle=deal, buffer_size=waiting)
        rows.bind({"main": Shards([4, 0, 1, 9, 3])}, 11, None, lanes)
        lane = rows.open(1, lanes)
        name = f"iterable, {'shuffled' if deal else 'in order'}, buffer {waiting}, {lanes} lanes"
        found[name] = [[*item[1:]] for _ in range(20) if (item := lane.next())]
        found[f"{name}, state"] = lane.state()
    return found


def _taken(lane: LaneDraws) -> list[Any]:
    """Return the next draw of a lane, told that its item is as large as its number."""
    item = lane.next()
    assert item is not None
    lane.took(item, 1 + item.index)
    return list(item)


def keys() -> Any:
    """Return the keys of items, batches and purposes, and the first numbers drawn from them."""
    item = ItemRef("main", 12, 3)
    of_item = context.ProcessContext(item, 7).rng
    of_batch = context.CollateContext(7, 2, 5).rng
    with seeded_globals(context.item_key(7, item)):
        of_globals = [random.random(), float(np.random.rand())]
    return {
        "item": hex(context.item_key(7, item)),
        "batch": hex(context.batch_key(7, 2, 5)),
        "purpose": hex(purpose_key("penstock torch factory")),
        "context.rng of an item": [*of_item.integers(1 << 62, size=4).tolist(), of_item.random()],
        "context.rng of a batch": [*of_batch.integers(1 << 62, size=4).tolist(), of_batch.random()],
        "random and numpy.random": of_globals,
    }


def log_id() -> Any:
    """Return the plan of a job in full, and its log id."""
    job = _job("best_fit", "packed")
    return {"log id": job.log_id.hex(), "plan": json.loads(canonical(job.plan))}


def batches() -> Any:
    """Return a whole batch of every shipped collator: its values, and hashes of its bytes.

    Of the body that a trainer has, whatever travels in its place, and the header that says so.
    """
    assert {name.split()[0] for name in COLLATORS} == set(BUILTIN_COLLATORS), (
        "a new collator has a batch to pin"
    )
    found = {}
    for collator, (batcher, parameters) in COLLATORS.items():
        job = _job(batcher, collator, **parameters)
        job.__dict__["log_id"] = LOG_ID
        line = Line(job, 1)
        line.skip_to(1)
        made = line.make(line.advance())
        sent = bytearray(made.nbytes)
        header = BatchHeader.FromString(made.write(memoryview(sent)))
        body = bytes(frame.completed(header, sent))
        header.ClearField("packed")
        header.crc32c = frame.crc32c(body)
        data = frame.with_position(header.SerializeToString(), 4)
        found[collator] = {
            "header": hashlib.sha256(data).hexdigest(),
            "body": hashlib.sha256(body).hexdigest(),
            "values": {name: _plain(v) for name, v in frame.decode_values(header, body).items()},
            "counts": {count.name: count.value for count in header.counts},
            "items": [[one.row, one.source, one.index, one.epoch] for one in header.samples],
        }
    return found


def sounds() -> Any:
    """Return digests of what `sound` makes of fixed points, in formats that lose none."""
    rate, found = 24000, {}
    wave = np.arange(2 * 6000, dtype=np.int64).reshape(6000, 2)
    points = ((wave * wave // 7 + 7919 * wave) % 65536 - 32768).astype(np.int16)
    forms: dict[str, dict[str, Any]] = {
        "as it is": {},
        "all channels, int16": {"channels": "all", "dtype": "int16"},
        "at 16 kHz": {"sample_rate": 16000, "tokens_per_second": 25},
        "at 44.1 kHz, int16": {"sample_rate": 44100, "dtype": "int16", "points_per_token": 441},
        "a span": {"start_s": 0.1, "stop_s": 0.2, "sample_rate": 8000},
    }
    for kind in ("WAV", "FLAC"):
        file = io.BytesIO()
        soundfile.write(file, points, rate, format=kind, subtype="PCM_16")
        raw = {"audio": file.getvalue()}
        for name, parameters in forms.items():
            media = [HeldMedium(kind, raw["audio"])]
            told = context.ProcessContext(ItemRef("main", 0, 0), 7, media)
            sample = SoundProcessor(**parameters).process(raw, told)
            sound = sample["sound"]
            found[f"{kind}, {name}"] = {
                "sha256": hashlib.sha256(sound.tobytes()).hexdigest(),
                "sound": [sound.dtype.name, *sound.shape],
                "sample_rate": sample["sample_rate"],
                "tokens": len(sample.get("input_ids", ())),
            }
    return found


def snapshots() -> Any:
    """Return a snapshot of a lane in the middle of its way for every shipped batcher."""
    assert set(BATCHERS) == set(BUILTIN_BATCHERS), "a new batcher has a snapshot to pin"
    found = {}
    for batcher in BATCHERS:
        job = _job(batcher, "packed")
        job.__dict__["log_id"] = LOG_ID
        line = Line(job, 1)
        line.skip_to(2)
        data = line.planner.snapshot()
        offset, state = snapshot.decode(data, LOG_ID, 1)
        found[batcher] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "offset": offset,
            "state": state,
        }
    return found


def versions() -> dict[str, Any]:
    """Return every version that stands for bytes: one of them rises when a section changes."""
    roles = {**BUILTIN_DISTRIBUTORS, **BUILTIN_BATCHERS, **BUILTIN_COLLATORS}
    return {
        "ORDER_FORMAT": job_module.ORDER_FORMAT,
        "ORDER_VERSION": permutation.ORDER_VERSION,
        "MANY_ORDERS_VERSION": MANY_ORDERS_VERSION,
        "snapshot.FORMAT": snapshot.FORMAT,
        "RESAMPLER_VERSION": RESAMPLER_VERSION,
        "sound.version": SoundProcessor.version,
        "video.version": VideoProcessor.version,
        "robot.version": RobotProcessor.version,
        "lerobot.version": LerobotSource.version,
        **{f"{name}.version": cls.version for name, cls in sorted(roles.items())},
    }


SECTIONS: dict[str, Callable[[], Any]] = {
    "permutations": permutations,
    "draws": draws,
    "keys": keys,
    "log_id": log_id,
    "batches": batches,
    "snapshots": snapshots,
    "sounds": sounds,
    "videos": video_content.videos,
    "robots": video_content.robots,
}

REMEDIES = {
    "permutations": "raise ORDER_VERSION in core/permutation.py",
    "draws": "raise `version` of the distributor, or ORDER_VERSION or MANY_ORDERS_VERSION",
    "keys": "raise ORDER_FORMAT in job.py: everything random is made of these",
    "log_id": "raise ORDER_FORMAT in job.py, for every job becomes another log",
    "batches": "raise `version` of the collator (or batcher), or ORDER_FORMAT where all changed",
    "sounds": "raise `version` of the processor, or RESAMPLER_VERSION, for other rates",
    "videos": "raise `version` of the processor",
    "robots": "raise `version` of the processor, or of the source",
    "snapshots": "raise FORMAT in pipeline/snapshot.py, or `version` of the batcher",
}
"""Which version has to rise when a section changes."""


def compute(name: str) -> dict[str, Any]:
    """Return a section as it is written to its file."""
    found: dict[str, Any] = json.loads(json.dumps(SECTIONS[name]()))
    return {"versions": versions(), "content": found}


def stored(name: str) -> dict[str, Any]:
    """Return a section as its file has it."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def complaint(name: str) -> str:
    """Return what is wrong with a section, for people; empty = nothing."""
    old, new = stored(name), compute(name)
    if old == new:
        return ""
    way = "then name the change in CHANGELOG.md and run `python tests/golden/write.py`"
    if old["content"] == new["content"]:
        return f"a version rose and {name} is as it was: run `python tests/golden/write.py`"
    if old["versions"] == new["versions"]:
        return f"{name} has changed, and no version did: {REMEDIES[name]}; {way}"
    return f"{name} has changed, and a version with it: {way}"


def _job(batcher: str, collator: str, **parameters: Any) -> Job:
    return Job(
        ItemsSource(ITEMS),
        processor=FunctionProcessor(_of_one_shape if collator == "default" else _same),
        batcher=BUILTIN_BATCHERS[batcher](**BATCHERS[batcher]),
        collator=BUILTIN_COLLATORS[collator.split()[0]](**parameters),
        seed=7,
        lanes=3,
        name="golden",
    )


def _same(raw: Any) -> Any:
    return raw


def _of_one_shape(raw: Any) -> Any:
    return {name: value for name, value in raw.items() if name != "input_ids"}


_same.version = 1  # type: ignore[attr-defined]  # else the text of this file would be in the log id


_of_one_shape.version = 1  # type: ignore[attr-defined]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "data": value.tolist()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value
