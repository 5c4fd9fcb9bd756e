"""How much memory a loader node takes: the formula that `penstockd check` prints.

docs/operate.md says the same in words, and `make bench NAMES=node_memory` compares it with nodes.
All figures are of memory that the system cannot drop: anonymous and shared, each page counted once
(`Pss_Anon` and `Pss_Shmem` of `/proc/PID/smaps_rollup`). Pages of libraries' files are not in them.
The constants were measured on x86-64 with CPython 3.11, numpy 2, pyarrow 26 and tokenizers 0.23.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from penstock.common.prefetch import fitting_ahead
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.node.demand.cached import most_cached_bytes
from penstock.server.node.demand.made_ahead import batches_beyond
from penstock.server.node.supply.counting import count_processes
from penstock.server.pipeline.draws_ahead import waiting_samples
from penstock.server.pipeline.kept_items import kept_bytes
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.reading import Reading
from penstock.server.sources.cache import CACHE_BYTES, most_cached

MIB = 1 << 20

SERVER_MIB, WORKER_MIB = 57, 33
"""The server process, and a worker, with what penstock itself imports."""

PACKAGES_MIB = {"pyarrow": 8, "tokenizers": 4, "torch": 130}
"""What each of these packages adds to every process, if a source or a role imports it."""

TOKENIZING_MIB, READING_MIB = 30, 6
"""What a worker takes besides while it tokenizes: what malloc keeps after texts of up to 250,000
characters; and while it reads storage blocks: what Arrow's allocator keeps for the next one."""

DECODING_BLOCKS = 1
"""What workers need beside the blocks that they keep: the one that is being decoded."""

SAMPLES_SPREAD = 2
"""Memory that malloc keeps for samples, by what they take at a time."""

TOKEN_BYTES = 4
"""Of a token, where no sample was seen."""

BATCHES_SPREAD = 1.5
"""Shared memory that several workers have touched, by what is in use at a time: not all of them
hold most at the same moment."""


@dataclass(frozen=True)
class NodeMemory:
    """What a node takes, in MiB, while it serves one job to readers that are near each other.

    Attributes:
        workers: How many workers it has.
        processes: The server process and the workers, before they have read anything.
        blocks: Decoded storage blocks, and what decoding takes, in all workers.
        samples: Samples that wait to be batched, and those that batches are made of.
        pieces: Processed samples of which the lanes of planned jobs have further pieces to come.
        plans: Packed windows of planned jobs and blocks of their indexes, in all workers.
        kept: Batches that are kept for late readers.
        reader: Batches that one reader fetches ahead, and those made for it beyond that.
        ready: Batches where readers are slower than the node: `ready_bytes` of them.
        media: Pictures and sounds that are fetched ahead of decoding, in all workers, where they
            are far enough for that.
        videos: Videos that are open, and frames that are held for items that follow, in all
            workers, where that many are decoded.
        counting: The processes that count a finite job whose length somebody asks for, with the
            blocks and samples that they hold.
        keeping_up: All of it while readers take what is made, without `reader`.
        stalled: All of it when they do not.
    """

    workers: int
    processes: float
    blocks: float
    samples: float
    plans: float
    kept: float
    reader: float
    ready: float
    counting: float = 0.0
    pieces: float = 0.0
    media: float = 0.0
    videos: float = 0.0

    @property
    def _working(self) -> float:
        working = self.processes + self.blocks + self.samples + self.pieces
        return working + self.plans + self.media + self.videos + self.counting

    @property
    def keeping_up(self) -> float:
        """Return what it takes while readers keep up, without `reader`."""
        return self._working + self.kept

    @property
    def stalled(self) -> float:
        """Return what it takes when they do not keep up."""
        return self._working + self.ready

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values, rounded to 0.1 MiB."""
        values = {**asdict(self), "keeping_up": self.keeping_up, "stalled": self.stalled}
        return {name: round(value, 1) for name, value in values.items()}


def node_memory(
    job: Job,
    *,
    workers: int,
    ready_bytes: int,
    imported: Collection[str],
    sample_bytes: float,
    batch_bytes: float,
    lanes: float | None = None,
    groups: float | None = None,
) -> NodeMemory:
    """Return what a node that serves one job takes.

    Args:
        job: The job.
        workers: How many workers the node has.
        ready_bytes: Its bound on ready batches.
        imported: Modules that the job's roles have imported.
        sample_bytes: Memory of a sample, in the mean.
        batch_bytes: Bytes of a batch, in the mean.
        lanes: How many lanes are read at this node, in the mean; None = all that the job has.
        groups: How many reading groups; None = all that the job has.
    """
    lanes_share = 1.0 if lanes is None else lanes / job.lanes
    groups_share = 1.0 if groups is None else groups / max(1, len(job.lanes_together()))
    packages = sum(size for name, size in PACKAGES_MIB.items() if name in imported)
    worker = WORKER_MIB + packages + TOKENIZING_MIB * ("tokenizers" in imported)
    spread = BATCHES_SPREAD if workers > 1 else 1.0
    kept = most_cached_bytes(ready_bytes, batch_bytes)
    beyond = batches_beyond(workers, batch_bytes)
    ahead = min(ready_bytes, (fitting_ahead(batch_bytes) + beyond) * batch_bytes)

    def blocks(processes: int) -> float:
        reading = processes * READING_MIB * _has_blocks(job)
        return _blocks_bytes(job, processes, groups_share) / MIB + reading

    waiting = SAMPLES_SPREAD * _waiting_bytes(job, sample_bytes, lanes_share) / MIB
    counts = count_processes(workers) if job.needs_counting else 0
    return NodeMemory(
        workers=workers,
        processes=SERVER_MIB + packages + workers * worker,
        blocks=blocks(workers),
        samples=SAMPLES_SPREAD * workers * batch_bytes / MIB + waiting,
        plans=workers * _plans_bytes(job) / MIB,
        kept=spread * kept / MIB,
        reader=spread * ahead / MIB,
        ready=spread * ready_bytes / MIB,
        counting=counts * worker + blocks(counts) + waiting if counts else 0.0,
        pieces=_pieces_bytes(job, workers, sample_bytes, lanes_share) / MIB,
        media=(workers + counts) * _media_bytes(job) / MIB,
        videos=workers * _videos_bytes(job) / MIB,
    )


def _media_bytes(job: Job) -> float:
    """Return the bytes of media that each worker fetches ahead, where it does."""
    media = [roles.media for roles in job.role_sets if roles.media is not None]
    return sum(reader.files.ahead_bytes for reader in media if reader.fetching.waits)


def _videos_bytes(job: Job) -> float:
    """Return what open videos and held frames of each worker take."""
    found = [roles.processor for roles in job.role_sets]
    return sum(each.most_video_bytes() for each in found if isinstance(each, MediaProcessor))


def _pieces_bytes(job: Job, workers: int, sample_bytes: float, share: float) -> float:
    """Return the bytes of processed samples that planned lanes keep, in all workers."""
    logs = [planned_log(roles) for roles in job.role_sets if roles.keeps_pieces]
    kept = 0.0
    for log in logs:
        if tokens := log.kept_tokens():
            kept += share * tokens * (sample_bytes / log.mean_tokens or TOKEN_BYTES)
    return min(kept, workers * kept_bytes(workers))


def _plans_bytes(job: Job) -> float:
    """Return what a worker's packed windows take; of several reading groups it packs a part."""
    return sum(
        planned_log(roles).kept_bytes() for roles in job.role_sets if roles.planned is not None
    )


def _has_blocks(job: Job) -> bool:
    return bool(job.readings())


def _blocks_bytes(job: Job, workers: int, share: float) -> float:
    """Return the bytes of decoded blocks in all workers, with those that are being decoded."""
    return sum(_blocks_bytes_of(roles, workers, share) for roles in job.role_sets)


def _blocks_bytes_of(roles: RoleSet, workers: int, share: float) -> float:
    return sum(_blocks_bytes_read(roles, reading, workers, share) for reading in roles.readings)


def _blocks_bytes_read(roles: RoleSet, reading: Reading, workers: int, share: float) -> float:
    # Without groups every worker holds what the lanes draw from.
    held = reading.held * (share / workers if reading.groups else 1)
    bounds = [source.most_cached_bytes() for source in roles.blocked_sources(reading)]
    if reading.blocks is None:
        bounds = [CACHE_BYTES if bound is None else bound for bound in bounds]
    known = [bound for bound in bounds if bound is not None]
    bound = sum(known) if known and len(known) == len(bounds) else None
    block = reading.block_bytes
    each = most_cached(held, block, reading.all_blocks * block, bound)
    return workers * (each + DECODING_BLOCKS * block)


def _waiting_bytes(job: Job, sample_bytes: float, share: float) -> float:
    """Return the bytes of samples that wait, in all workers."""
    held = sum(waiting_samples(roles, sample_bytes) for roles in job.role_sets)
    return share * held * sample_bytes
