"""Nodes in a real Slurm: two machines that are this one, found by `slurm:JOBID:PORT`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness import ENVIRONMENT, kill_process, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.client.nodes.slurm_addresses import SlurmAddresses
from penstock.wire.errors import InvalidRequest, Unreachable
from ports import free_port

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "nodes.sbatch"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

needs_slurm = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)) or os.geteuid() != 0,
    reason="NOT RUN: Slurm is not installed (Debian: apt install slurm-wlm), or not as root",
)

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeAddr=127.0.0.2 NodeHostname=localhost Port={first} CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr=127.0.0.3 NodeHostname=localhost Port={second} CPUs=2 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Start a controller and two machines; return the folder of all that they write."""
    folder = tmp_path / "slurm"
    for name in ("state", "n1", "n2"):
        (folder / name).mkdir(parents=True)
    for above in (folder, *folder.parents):  # munged minds who may write where its socket lies
        if above.stat().st_uid == os.geteuid() and above != Path("/tmp"):
            above.chmod(0o755)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = {name: free_port() for name in ("controller", "first", "second")}
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, **ports))
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    commands = [
        [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
        ],
        ["slurmctld", "-D", "-f", str(configuration)],
        ["slurmd", "-D", "-N", "n1", "-f", str(configuration)],
        ["slurmd", "-D", "-N", "n2", "-f", str(configuration)],
    ]
    commands[0] += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"]
    commands[0] += [f"--seed-file={folder}/munged.seed", "--num-threads=2"]
    with contextlib.ExitStack() as stack:
        for command in commands:
            if command[0] == "slurmctld":
                eventually((folder / "munge.socket").exists, 60, "munged listens")
            with open(folder / f"{command[0]}.out", "ab") as out:
                process = subprocess.Popen(
                    command, stdout=out, stderr=out, stdin=subprocess.DEVNULL
                )
            stack.callback(_end, process)
        eventually(lambda: said("sinfo", "-h", "-o", "%D %t") == "2 idle", 60, "machines are there")
        yield folder


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def said(*command: str) -> str:
    """Return what a command prints; nothing where it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def first(address: str) -> list[int]:
    """Return the first items that a node gives; none while it is not there."""
    with contextlib.suppress(Unreachable), Loader(address, "main", deadline_s=1) as loader:
        return [batch["x"].item() for batch, _ in zip(loader, range(10), strict=False)]
    return []


def listening(address: str) -> int | None:
    """Return the process that listens there."""
    host, _, port = address.rpartition(":")
    for found in psutil.net_connections("tcp"):
        is_there = found.laddr and found.laddr.port == int(port) and found.laddr.ip.endswith(host)
        if found.status == psutil.CONN_LISTEN and is_there:
            return found.pid
    return None


@needs_slurm
def test_a_node_on_each_machine_of_a_job_is_found_and_started_again(
    slurm: Path, tmp_path: Path
) -> None:
    job = {
        "lanes": 2,
        "source": {"type": "items", "items": [{"x": number} for number in range(10)]},
        "batch_size": 1,
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"main": job})
    # With a store each: this is about machines, and nothing here has a cursor.
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "penstockd"
    wrapper.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m penstock.server.cli "$@" '
        f"--store sqlite:///{tmp_path}/$SLURMD_NODENAME.db\n"
    )
    wrapper.chmod(0o755)
    port = free_port()
    path = f"{tmp_path}/bin:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    environment = {**ENVIRONMENT, "PATH": path, "SLURM_CONF": os.environ["SLURM_CONF"]}
    environment |= {"PORT": str(port), "PENSTOCK_INSECURE": "true"}
    command = ["sbatch", "--parsable", "--nodes=2", "--output", str(tmp_path / "out.txt")]
    done = subprocess.run(
        [*command, str(SCRIPT), str(file)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    find = SlurmAddresses(f"{number}:{port}")
    expected = [f"127.0.0.{last}:{port}" for last in (2, 3)]

    def runs() -> bool:
        return said("squeue", "-h", "-j", number, "-o", "%T") == "RUNNING"

    eventually(runs, 60, "the job runs")
    assert find.look() == expected
    eventually(lambda: all(map(first, expected)), 60, "both nodes can be read")
    assert first(expected[0]) == first(expected[1])

    pid = listening(expected[1])
    assert pid is not None
    assert kill_process(pid)
    eventually(lambda: first(expected[1]) == first(expected[0]), 60, "it was started again")

    subprocess.run(["scancel", "--signal=TERM", number], check=True)
    eventually(lambda: not runs(), 60, "the nodes have drained, and the job has ended")
    output = (tmp_path / "out.txt").read_text()
    assert output.count('"event": "stopped"') == 2, output
    with pytest.raises(Unreachable, match=f"job {number} has no machines"):
        find.look()


@pytest.mark.parametrize("rest", ["", "7", "7:", "7:0", "7:99999", "x:50051", "7:50051:1"])
def test_a_target_that_names_no_job_and_port_is_refused(rest: str) -> None:
    with pytest.raises(InvalidRequest, match="slurm:JOBID:PORT"):
        SlurmAddresses(rest)


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="no program squeue here"):
        SlurmAddresses("7:50051").look()
    failing = tmp_path / "squeue"
    failing.write_text(
        "#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2; exit 1\n"
    )
    failing.chmod(0o755)
    with pytest.raises(Unreachable, match="squeue says: slurm_load_jobs error: Invalid job id"):
        SlurmAddresses("7:50051").look()
