"""Windows of a planned job, added up in several processes: each takes every so many of them.

Packing is Python as much as array code, so threads would wait for each other. Such a process
(`main`) is told its windows, says how many are done, a line each, and at last what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

from penstock.common.readable import readable
from penstock.common.resources import usable_cpus
from penstock.server.commands.progress import Say, silent
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.definition import decode
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.planning.report.window_figures import WindowFigures, WindowKey, add_up
from penstock.server.processes.background import attend, end_child, short_status
from penstock.server.processes.child import Inherited
from penstock.server.processes.start import Process, start
from penstock.wire.errors import Internal, JobChanged
from penstock.wire.sent_errors import decode_error

LEAST_SAMPLES = 2_000_000
"""Below this, one process takes a second or two, as long as others take to start."""

MAX_PROCESSES = 64
STDERR = 2


class Apart:
    """Adds up the windows of a job here, or in as many processes as there are CPUs.

    Args:
        job: The job; one that has no definition is added up here.
        say: Told how many windows are done.
        processes: How many at most; None = one for each CPU.
        least: Below so many samples none is started.
    """

    def __init__(
        self,
        job: Job,
        say: Say = silent,
        processes: int | None = None,
        least: int = LEAST_SAMPLES,
    ) -> None:
        self._job, self._say, self._least = job, say, least
        self._processes = min(processes or usable_cpus(), MAX_PROCESSES)

    def __call__(self, roles: RoleSet, keys: Sequence[WindowKey], epochs: int) -> WindowFigures:
        """Return what the windows hold.

        Raises:
            PenstockError: As `add_up`.
        """
        samples = sum(source.samples for source in planned_log(roles).index.sources.values())
        done = 0

        def tell(key: WindowKey) -> None:
            nonlocal done
            done += 1
            self._say(f"{done:,} of {len(keys):,} windows packed")

        processes = min(self._processes, len(keys))
        if processes < 2 or samples * epochs < self._least or not self._job.definition:
            return add_up(roles, keys, epochs, tell)
        started = [
            _PlanProcess(self._job, roles, keys[part::processes], epochs)
            for part in range(processes)
        ]
        try:
            return _gathered(started, tell)
        finally:
            for process in started:
                process.kill()


def _gathered(started: Sequence[_PlanProcess], tell: Any) -> WindowFigures:
    """Return what all processes have added up."""
    found: WindowFigures | None = None
    waiting = {process.child.socket.fileno(): process for process in started}
    while waiting:
        for fd in readable(list(waiting)):
            answer = waiting[fd].hear()
            if answer is None:
                tell((0, 0))
                continue
            waiting.pop(fd).end()
            if found is None:
                found = answer
            else:
                found.merge(answer)
    assert found is not None
    return found


class _PlanProcess:
    """One process, as the command sees it."""

    def __init__(self, job: Job, roles: RoleSet, keys: Sequence[WindowKey], epochs: int) -> None:
        self._job = job
        # What code of users prints must not stand among the command's own results.
        self.child: Process = start(__name__, definition=job.definition, output=STDERR)
        # A line of it is read at a time, so nothing waits in a buffer that `select` cannot see.
        self._heard = self.child.socket.makefile("rb", buffering=0)
        root = planned_log(roles).index.root.hex()
        task = {"set": roles.number, "keys": keys, "epochs": epochs, "root": root}
        self.child.socket.sendall(json.dumps(task).encode() + b"\n")

    def hear(self) -> WindowFigures | None:
        """Return what it has added up; None = one more window is done.

        Raises:
            PenstockError: What it met.
        """
        line = self._heard.readline()
        if not line.endswith(b"\n"):
            status = short_status(end_child(self.child.process))
            raise Internal(
                f"a process that packs windows of job {self._job.name!r} ended with {status}; its "
                "stderr says why"
            )
        told = json.loads(line)
        if not told["bytes"]:
            return None
        data = bytearray()
        while len(data) < told["bytes"]:
            piece = self._heard.read(told["bytes"] - len(data))
            if not piece:
                raise Internal("a process that packs windows ended in the midst of its answer")
            data += piece
        if told["error"]:
            raise decode_error(bytes(data))
        return WindowFigures.decode(bytes(data))

    def end(self) -> None:
        """Let it end, since it has answered."""
        self._heard.close()
        self.child.socket.close()
        end_child(self.child.process)

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.child.process.poll() is None:
            self.child.process.kill()
            self.child.process.wait()
        self._heard.close()
        self.child.socket.close()


# --- the process ----------------------------------------------------------------------------------


def work(inherited: Inherited, heard: BinaryIO, out: BinaryIO) -> None:
    """Add up the windows that are asked for."""
    task = json.loads(heard.readline())
    definition = decode(inherited.definition)
    inherited.page.note("build", definition.name)
    job = definition.build(planned=False)
    try:
        roles = job.role_sets[task["set"]]
        if roles.planned is None or planned_log(roles).index.root.hex() != task["root"]:
            raise JobChanged(
                f"job {definition.name!r} is not what it was when the command started: its index "
                "has changed; run the command again",
                job=definition.name,
                differences=["index"],
            )
        keys = [(group, window) for group, window in task["keys"]]
        found = add_up(roles, keys, task["epochs"], lambda key: _say(out))
    finally:
        job.close()
    _say(out, found.encode())


def _say(out: BinaryIO, data: bytes = b"", *, error: bool = False) -> None:
    out.write(json.dumps({"bytes": len(data), "error": error}).encode() + b"\n" + data)
    out.flush()


def main(inherited: Inherited) -> None:
    """Take the task that was inherited, and end with it."""
    attend(inherited, work, lambda out, error: _say(out, error, error=True))
