"""`slurm:JOBID:PORT`: a node on each machine of a job of Slurm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from penstock.wire.errors import InvalidRequest, Unreachable

ANSWER_S = 20.0
"""How long Slurm's controller may take to answer: a busy one takes seconds."""

_TARGET = re.compile(r"(?P<job>[0-9]+(?:_[0-9]+)?(?:\+[0-9]+)?):(?P<port>[0-9]{1,5})")

LOOK_S = 5.0
"""How often it is asked."""


def open_addresses(rest: str, *, job: str = "", grouped: bool = True) -> SlurmAddresses:
    """Return where the nodes of a target are: an entry point of `penstock.transports`.

    Raises:
        PenstockError: See `SlurmAddresses`.
    """
    return SlurmAddresses(rest)


class SlurmAddresses:
    """Asks Slurm which machines a job has, by `squeue` and `scontrol`.

    Args:
        rest: The job's number, a colon, and the port that its nodes listen on.

    Raises:
        InvalidRequest: It is something else.
    """

    def __init__(self, rest: str) -> None:
        found = _TARGET.fullmatch(rest)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise InvalidRequest(
                f"the target slurm:{rest} is no job and port: write slurm:JOBID:PORT, such as "
                "slurm:4711:50051, with the port that the nodes of the job listen on",
                field="target",
                value=f"slurm:{rest}",
            )
        self.every_s = LOOK_S
        self._target, self._job, self._port = f"slurm:{rest}", found["job"], int(found["port"])

    def close(self) -> None:
        """Do nothing: nothing is held."""

    def look(self) -> Sequence[str]:
        """Return an address on each machine of the job; it may wait some seconds.

        Raises:
            Unreachable: Slurm does not answer, or the job does not run (any more).
        """
        told = self._said("squeue", "--noheader", "--jobs", self._job, "--format", "%T %N")
        machines = []
        for line in told.splitlines():
            state, _, listed = line.strip().partition(" ")
            if state in ("RUNNING", "COMPLETING") and listed.strip():
                machines.append(listed.strip())
        if not machines:
            states = ", ".join(sorted({line.split()[0] for line in told.splitlines() if line}))
            raise Unreachable(
                f"{self._target}: job {self._job} has no machines: it is {states or 'not there'}; "
                "`squeue` shows jobs that run",
                target=self._target,
            )
        # By their addresses, which are their names unless the cluster's configuration has others.
        told = self._said("scontrol", "show", "node", "--oneliner", ",".join(machines))
        hosts = re.findall(r"\bNodeAddr=(\S+)", told)
        return sorted(
            f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}" for host in hosts
        )

    def _said(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=ANSWER_S, check=False
            )
        except FileNotFoundError as error:
            raise Unreachable(
                f"{self._target}: there is no program {command[0]} here: read from a machine that "
                "Slurm's commands are installed on, or give the addresses themselves",
                target=self._target,
            ) from error
        except subprocess.TimeoutExpired as error:
            raise Unreachable(
                f"{self._target}: {command[0]} did not answer within {ANSWER_S:.0f} s: check that "
                "Slurm's controller runs (`scontrol ping`)",
                target=self._target,
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise Unreachable(
                f"{self._target}: {command[0]} says: {said[-1] if said else done.returncode}",
                target=self._target,
            )
        return done.stdout
