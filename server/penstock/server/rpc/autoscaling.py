"""How many nodes each job of this node wants, from what is seen of it now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import fmean

from penstock.server.metrics.node_metrics import Metrics
from penstock.server.metrics.wanted_nodes import (
    PART_S,
    PARTS,
    WORK,
    Sample,
    needed_workers,
    wanted_nodes,
)
from penstock.server.node.node import Node
from penstock.server.rpc.streams import Streams

EVERY_S = 5.0
"""Between two looks."""


class AutoscalingSignal:
    """What the jobs of a node want. Used by one thread.

    Args:
        node: The node.
        streams: Its open streams.
        metrics: Where workers' seconds were counted.
    """

    def __init__(self, node: Node, streams: Streams, metrics: Metrics) -> None:
        self._streams, self._metrics = streams, metrics
        self._workers = max(1, len(node.workers))
        self._units = {name: job.unit_of_lane for name, job in node.jobs.items()}
        most = int(PARTS * PART_S / EVERY_S) + 1
        self._samples: dict[str, deque[Sample]] = {name: deque(maxlen=most) for name in node.jobs}
        self._wanted = dict.fromkeys(node.jobs, 0)
        self._needed = dict.fromkeys(node.jobs, 0.0)

    def look(self, at_s: float) -> None:
        """Take a sample of every job; called every `EVERY_S` seconds.

        Args:
            at_s: The time, of a monotonic clock.
        """
        for job, samples in self._samples.items():
            unit_of = self._units[job]
            units = len(set(unit_of))
            samples.append(self._sample(job, at_s, unit_of))
            needed = needed_workers(samples, units)
            self._wanted[job] = wanted_nodes(self._wanted[job], needed, self._workers, units)
            known = [each for each in needed if each is not None]
            self._needed[job] = round(fmean(known), 3) if known else 0.0

    def _sample(self, job: str, at_s: float, unit_of: Sequence[int]) -> Sample:
        waited, asked = {}, set[int]()
        for number, stream in self._streams.numbered():
            if stream.request.job == job:
                waited[number] = stream.loop_waited_s
                lanes = stream.reader.lanes
                asked |= set(unit_of) if lanes is None else {unit_of[lane] for lane in lanes}
        spent = self._metrics.figures(job)["stages_s"]
        busy = sum(seconds for stage, seconds in spent.items() if stage in WORK)
        return Sample(at_s, busy, waited, len(asked))

    def figures(self, job: str) -> dict[str, float]:
        """Return what a job wants, as `Feed.Status` shows it."""
        samples = self._samples[job]
        return {
            "wanted_nodes": self._wanted[job],
            "needed_workers": self._needed[job],
            "units": len(set(self._units[job])),
            "units_asked": samples[-1].units if samples else 0,
        }
