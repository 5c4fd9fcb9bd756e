"""`penstockd bench`: what does a job give through a node, and what does that take?"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from penstock.common.text_table import Table
from penstock.server.commands.progress import Progress, Say
from penstock.server.commands.say import say
from penstock.server.commands.set_option import set_option
from penstock.server.commands.sheet import Sheet
from penstock.server.jobs.load import load
from penstock.server.jobs.target import absolute_target
from penstock.server.media.media_cpu import MEDIA_STAGES
from penstock.server.process.process_tree import cpu_s, descendants, memory_bytes
from penstock.server.transports.local import PrivateNode

LOOK_S = 0.1
"""Between two looks at memory: a peak that is shorter may be missed."""


@click.command(short_help="Measure what a job gives through a node.")
@click.argument("file")
@click.argument("job")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=60.0,
    help="How long to measure, by the clock; default 60. A short time has few gaps for p99.",
    metavar="S",
)
@click.option(
    "--warm",
    type=click.IntRange(min=0),
    default=5,
    help="Batches before the clock starts; default 5. Pools may want more, to be full.",
    metavar="N",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    help="Workers of the node; default: as many as the file's server would have.",
    metavar="N",
)
@click.option(
    "--episode",
    default="episode_index",
    help="The value of a batch that says of which episode rows are; default episode_index.",
    metavar="NAME",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.option("--csv", "as_csv", is_flag=True, help="Two lines of CSV: names, and values.")
@set_option
def bench(
    file: str,
    job: str,
    seconds: float,
    warm: int,
    workers: int | None,
    episode: str,
    as_json: bool,
    as_csv: bool,
    assignments: tuple[str, ...],
) -> int:
    """Read JOB of FILE as fast as it comes, through a node of its own, and say what that took.

    Starts a node as local: does, reads with a Loader on the host, lets a few batches pass, and
    measures for a fixed time: samples, batches, frames and bytes per second, the gaps between
    batches, the first batch, processor seconds of node, workers and reader, the workers' seconds by
    stage (by the clock: what they wait for counts), distinct episodes in a batch, and the most
    memory of all processes together; of videos the frames decoded for one delivered, and processor
    seconds of a frame for fetching, decoding, converting and copying. No cursor is moved and no
    store is written.

    Exits with 2 if no sample came in that time.

    \b
    Examples:
      penstockd bench penstock.yaml main
      penstockd bench robots.yaml main --seconds 20 --workers 4 --csv
      penstockd bench images.yaml main --set main.batch_size=64 --json
    """  # noqa: D301 - \b is for click
    if as_json and as_csv:
        raise click.UsageError("Give --json or --csv, and not both.")
    count = workers or load(file, assignments=assignments).server.worker_count
    reading = ["--warm", str(warm), "--seconds", str(seconds), "--episode", episode]
    with Progress() as progress:
        progress.say(f"job {job}: starting a node of {count} workers")
        found = _measured(file, job, count, reading, assignments, progress.say)
    if found is None:
        return 2  # the reader has said why
    if as_json:
        click.echo(json.dumps(found))
    elif as_csv:
        flat = dict(_flat(found))
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([list(flat), list(flat.values())])
    else:
        say(_sheet(found).text())
    return 0


def _measured(
    file: str,
    job: str,
    workers: int,
    reading: Sequence[str],
    assignments: Sequence[str],
    tell: Say,
) -> dict[str, Any] | None:
    """Return what was measured; None = the reader failed, and has said why."""
    began = time.monotonic()
    node = PrivateNode(
        absolute_target(file), job, grouped=False, workers=workers, assignments=assignments
    )
    node_start_s = time.monotonic() - began
    peak = MemoryPeak()
    try:
        tell(f"job {job}: reading")
        command = [sys.executable, "-P", "-m", "penstock.client.cli", "bench"]
        reader = subprocess.Popen(
            [*command, f"unix:{node.address}", job, *reading, "--marks"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with peak:
                marks, figures = _heard(reader, peak)
        finally:
            reader.kill()
            reader.wait()
    finally:
        node.close()
    if figures is None:
        return None
    return _together(job, workers, node_start_s, marks, figures, peak.most_bytes)


def _heard(
    reader: subprocess.Popen[str], peak: MemoryPeak
) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    """Return what the reader says: its marks, with processor seconds, and its figures."""
    assert reader.stdout is not None
    marks: dict[str, dict[str, Any]] = {}
    figures: dict[str, Any] | None = None
    for line in reader.stdout:
        said = json.loads(line)
        if "mark" not in said:
            figures = said
            continue
        status = said["status"]
        pids = {worker["pid"] for worker in status["workers"]}
        peak.sharing = pids
        # Only the node and what it starts; the reader counts itself, between its own marks.
        others = {pid for pid in descendants(os.getpid()) if pid != reader.pid}
        [found] = status["jobs"]
        marks[said["mark"]] = {
            "workers_s": sum(map(cpu_s, pids)),
            "node_s": sum(map(cpu_s, others - pids)),
            "stages_s": found["counts"]["stages_s"],
            "read_bytes": found["counts"]["read_bytes"],
            "video_cpu_s": found["counts"]["video_cpu_s"],
            "video_frames": found["counts"]["video_frames"],
        }
    return marks, figures if reader.wait() == 0 else None


class MemoryPeak:
    """The most memory that the processes of this one had together, while its context is entered.

    Attributes:
        most_bytes: So far.
        sharing: The processes whose shared pages count.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self.sharing: set[int] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="penstockd-memory", daemon=True)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            now = memory_bytes(descendants(os.getpid()), self.sharing)
            self.most_bytes = max(self.most_bytes, now)

    def __enter__(self) -> MemoryPeak:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()


def _together(
    job: str,
    workers: int,
    node_start_s: float,
    marks: Mapping[str, Mapping[str, Any]],
    figures: dict[str, Any],
    most_bytes: int,
) -> dict[str, Any]:
    before, after = marks["begin"], marks["end"]
    cpu = {
        "workers": round(after["workers_s"] - before["workers_s"], 3),
        "node": round(after["node_s"] - before["node_s"], 3),
        "reader": figures.pop("client_cpu_s"),
    }
    stages = {
        stage: round(spent - before["stages_s"].get(stage, 0.0), 3)
        for stage, spent in sorted(after["stages_s"].items())
    }
    video = _video(before, after)
    samples, frames, total_s = figures["samples"], figures["frames"], sum(cpu.values())
    first_s = figures.pop("first_batch_s")
    return {
        "job": job,
        "workers": workers,
        **figures,
        "node_start_s": round(node_start_s, 3),
        "first_batch_s": round(node_start_s + first_s, 3),
        "read_bytes": after["read_bytes"] - before["read_bytes"],
        "cpu_s": cpu,
        "cpu_s_per_sample": round(total_s / samples, 9),
        "cpu_s_per_frame": round(total_s / frames, 9) if frames else None,
        "stages_s": stages,
        "stages_s_per_sample": {name: round(spent / samples, 9) for name, spent in stages.items()},
        **({} if video is None else {"video": video}),
        "peak_memory_bytes": most_bytes,
    }


def _video(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what videos took in the node meanwhile; None = no frame of one was delivered.

    Frames are those that workers made, of which the reader may still lack some.
    """
    frames = {
        name: count - before["video_frames"].get(name, 0)
        for name, count in after["video_frames"].items()
    }
    if not (delivered := frames.get("delivered", 0)):
        return None
    spent = {
        stage: after["video_cpu_s"].get(stage, 0.0) - before["video_cpu_s"].get(stage, 0.0)
        for stage in MEDIA_STAGES
    }
    return {
        "frames": delivered,
        "decoded_per_frame": round(frames["decoded"] / delivered, 3),
        "cpu_s_per_frame": {stage: round(each / delivered, 9) for stage, each in spent.items()},
    }


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", "" if value is None else value


STAGES = {
    "fetch": "fetch, from storage",
    "process": "process: decode, convert",
    "collate": "collate",
    "encode": "encode: copy into the batch",
    "plan": "plan",
}
"""The stages of a worker that are shown by other words."""


def _sheet(found: Mapping[str, Any]) -> Sheet:
    rows = [
        ("samples per second", f"{found['samples_per_s']:,}"),
        ("batches per second", f"{found['batches_per_s']:,}"),
        ("MB per second", f"{found['mb_per_s']:,}"),
    ]
    if found["frames"]:
        rows.append(("frames per second", f"{found['frames_per_s']:,}, of all cameras"))
    if found["tokens_per_s"]:
        rows.append(("tokens per second", f"{found['tokens_per_s']:,}"))
    first = (
        f"{found['first_batch_s']} s, of which the node takes {found['node_start_s']} s to start"
    )
    rows.append(("first batch after", first))
    gaps = ", ".join(f"{name} {1000 * gap:,.1f} ms" for name, gap in found["gap_s"].items())
    rows.append(("gaps between batches", gaps))
    rows.append(("reader waited", f"{found['wait_share']:.0%} of the time"))
    if (episodes := found["episodes_per_batch"]) is not None:
        each = f"{episodes['mean']:,} in the mean, {episodes['least']:,} at least"
        rows.append(("distinct episodes in a batch", each))
    cpu = ", ".join(f"{name} {spent:,.2f} s" for name, spent in found["cpu_s"].items())
    rows.append(("processor time", cpu))
    rows.append(("processor time of a sample", f"{1000 * found['cpu_s_per_sample']:,.3f} ms"))
    if found["cpu_s_per_frame"] is not None:
        rows.append(("processor time of a frame", f"{1000 * found['cpu_s_per_frame']:,.3f} ms"))
    if (video := found.get("video")) is not None:
        rows.append(("frames decoded for one delivered", f"{video['decoded_per_frame']:,}"))
        each = ", ".join(
            f"{stage} {1000 * spent:,.3f} ms" for stage, spent in video["cpu_s_per_frame"].items()
        )
        rows.append(("of it for a frame of video", each))
    rows.append(("memory at its peak", f"{found['peak_memory_bytes'] / 2**20:,.0f} MiB"))
    stages = [
        (STAGES.get(stage, stage), f"{spent:,.2f} s, {1000 * each:,.3f} ms a sample")
        for stage, spent, each in zip(
            found["stages_s"],
            found["stages_s"].values(),
            found["stages_s_per_sample"].values(),
            strict=True,
        )
    ]
    title = click.style("  workers' time by stage, waiting included", bold=True)
    return Sheet(
        f"job {found['job']}",
        rows,
        about=(
            f"{found['batches']:,} batches in {found['seconds']} s, through a node of "
            f"{found['workers']} workers",
        ),
        blocks=[title, *Table(stages).lines(indent=4)] if stages else [],
    )
