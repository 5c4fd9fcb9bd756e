"""How much as many processes as a node has workers give at the same time.

One worker's rate times their number is what nobody gets: cores share caches, memory and clocks, and
there may be fewer of them than workers. So each process makes batches of other reading groups, as
the workers of a node do, and goes on until all of them were measured. Such a process (`main`) hears
and answers by a socket, since a user's code may print.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from penstock.common.readable import readable
from penstock.server.commands.meter import Meter, lanes_beside, pass_start, to_their_ends
from penstock.server.commands.progress import Say, silent
from penstock.server.job.job import Job
from penstock.server.jobs.definition import decode
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.processes.child import Inherited
from penstock.server.processes.start import start
from penstock.wire.errors import PenstockError
from penstock.wire.sent_errors import decode_error, encode_error

MAX_PROCESSES = 64
"""Each imports what the job needs, and holds its own pools and blocks, as a worker does."""

MEASURED_S = 2.0
"""Long compared with the start of a process's first batch, and short for the user who waits."""

START_S = 90.0
"""Until all of them are past their start: imports, an open source and `MAX_PASSING_S`."""

FINISH_S = 30.0
"""For batches that take longer than `MEASURED_S`."""


@dataclass
class SideBySide:
    """What processes gave at the same time.

    Attributes:
        processes: How many there were; 0 = it was not measured.
        per_second: Samples and, where they are counted, tokens, of all of them in sum.
        why_not: Why it was not measured, a clause; "" = it was, or one process is all there is.
    """

    processes: int = 0
    per_second: dict[str, float] = field(default_factory=dict)
    why_not: str = ""


def measure_together(
    job: Job, workers: int, say: Say = silent, start_s: float = START_S
) -> SideBySide:
    """Make batches in as many processes as a node would have, and add up their rates.

    Args:
        job: The job.
        workers: Processes that the node would have; those without work of their own are left out.
        say: Told what is being done.
        start_s: Seconds until all of them are past their start.

    Returns:
        What was measured; `processes` is 0 where there is work for one alone.

    Raises:
        PenstockError: What a server would stop with at one of these batches.
    """
    firsts = [lanes[0] for lanes in job.lanes_together()]
    count = min(workers, len(firsts), MAX_PROCESSES)
    if count < 2:
        return SideBySide()
    with contextlib.ExitStack() as stack:
        say(f"job {job.name}: starting {count} processes, as many as it would have workers")
        processes = [stack.enter_context(_BesideProcess(job, lane)) for lane in firsts[:count]]
        try:
            _hear(processes, time.monotonic() + start_s)
            say(f"job {job.name}: {count} processes at the same time")
            for process in processes:
                process.begin()
            answers = _hear(processes, time.monotonic() + MEASURED_S + FINISH_S)
        except _NotMeasured as reason:
            return SideBySide(why_not=str(reason))
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer["per_second"])
    return SideBySide(count, dict(total))


class _NotMeasured(Exception):
    """A process died or was not done in time: no error of the job."""


class _BesideProcess:
    """One of them: started as the context is entered, ended as it is left."""

    def __init__(self, job: Job, lane: int) -> None:
        self._job, self._lane = job, lane
        self._stack = contextlib.ExitStack()
        self._heard = b""

    def __enter__(self) -> _BesideProcess:
        self._said = self._stack.enter_context(tempfile.TemporaryFile())
        fd = self._said.fileno()
        self._process, _, self.socket = start(
            __name__, self._lane, definition=self._job.definition, output=fd, errors=fd
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self.socket.close()
        self._stack.close()

    def begin(self) -> None:
        with contextlib.suppress(OSError):  # it has died: that is heard
            self.socket.send(b"b")

    def hear(self) -> dict[str, Any] | None:
        """Return what it says, or None while a line is not whole.

        Raises:
            PenstockError: What it met.
            _NotMeasured: It died.
        """
        part = self.socket.recv(1 << 16)
        self._heard += part
        if not self._heard.endswith(b"\n"):
            if part:
                return None
            raise _NotMeasured(self._death())
        answer: dict[str, Any] = json.loads(self._heard)
        self._heard = b""
        if "error" in answer:
            raise decode_error(bytes.fromhex(answer["error"]))
        return answer

    def _death(self) -> str:
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"one of the processes ended with status {status}: {(lines or ['no output'])[-1]}"


def _hear(processes: list[_BesideProcess], deadline: float) -> list[dict[str, Any]]:
    """Return one answer of each process.

    Raises:
        PenstockError: What one of them met.
        _NotMeasured: One died, or did not answer in time.
    """
    answers: list[dict[str, Any]] = []
    waiting = {process.socket.fileno(): process for process in processes}
    while waiting:
        ready = readable(list(waiting), deadline - time.monotonic())
        if not ready:
            raise _NotMeasured(f"{len(waiting)} of {len(processes)} processes took too long")
        for number in ready:
            answer = waiting[number].hear()
            if answer is not None:
                answers.append(answer)
                del waiting[number]
    return answers


def _work(job: Job, lane: int, channel: socket.socket) -> None:
    """Get past the start, wait for the signal, measure, and keep the others company to the end."""
    items = Items(job)
    lines = [Line(job, other, items) for other in lanes_beside(job, lane)]
    pass_start(lines)
    meter = Meter()
    meter.make(lines[0])  # the first pays for imports
    _say(channel, {"ready": True})
    if not channel.recv(1):
        return
    meter.run(to_their_ends(lines), lambda so_far: so_far.seconds >= MEASURED_S)
    _say(channel, {"per_second": meter.found.per_second()})
    meter.run(to_their_ends(lines), lambda so_far: bool(readable([channel], 0)))


def _say(channel: socket.socket, answer: dict[str, Any]) -> None:
    channel.sendall(json.dumps(answer).encode() + b"\n")


def main(inherited: Inherited) -> None:
    """Take the task that was inherited: a job, and a lane of it."""
    [lane] = inherited.arguments
    with inherited.socket as channel:
        try:
            _work(decode(inherited.definition).build(), int(lane), channel)
        except PenstockError as error:
            with contextlib.suppress(OSError):  # nobody listens any more
                _say(channel, {"error": encode_error(error).hex()})
