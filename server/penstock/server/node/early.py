"""Workers that are started before their node is made, as soon as it is known how many there are.

A worker imports for as long as the server process does. So both do it at the same time: the server
process goes on to import, open its store and build its jobs, and hands what it knows of their files
over in memory that the workers were started with.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from penstock.server.node.start import Process, program_environment, start
from penstock.server.sources.catalog import catalogs_memory

WORKER = "penstock.server.node.worker_main"
"""The program of a worker."""


@dataclass
class Early:
    """Workers that were started, and know nothing yet: a context, which ends those nobody took.

    Attributes:
        files_fd: The memory that their node packs its catalogs into; -1 = the node has it.
        environment: What they were started in.
        processes: The workers by slot; fewer than were asked for where the system refused one,
            which the node then starts as it replaces one that has died.
    """

    files_fd: int
    environment: Mapping[str, str]
    processes: dict[int, Process] = field(default_factory=dict)

    def __enter__(self) -> Early:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the workers that no node has taken, as where its jobs could not be built."""
        while self.processes:
            _end(self.processes.popitem()[1])
        if (fd := self.take_files()) >= 0:
            os.close(fd)

    def take_files(self) -> int:
        """Return the memory for catalogs, once; whoever takes it closes it."""
        fd, self.files_fd = self.files_fd, -1
        return fd

    def take(self, number: int) -> Process | None:
        """Return the worker of a slot, once; None = there is none, or it must be started anew.

        Code of users that built the jobs may have changed what workers are started in.
        """
        process = self.processes.pop(number, None)
        if process is None or self.environment == program_environment():
            return process
        _end(process)
        return None


def _end(process: Process) -> None:
    process.socket.close()
    process.process.kill()
    process.process.wait()


def start_early(count: int, imports: Sequence[str] = ()) -> Early:
    """Start workers.

    Args:
        count: How many.
        imports: Modules that they import once they are ready: the jobs will need them.

    Raises:
        OSError: The system has no memory or file descriptor left.
    """
    early = Early(catalogs_memory(), program_environment())
    with contextlib.suppress(OSError):  # the node tries again, and says what the system said
        for number in range(count):
            early.processes[number] = start(WORKER, *imports, files_fd=early.files_fd)
    return early


__all__ = ["WORKER", "Early", "start_early"]
