"""A trainer that forks beside an open conversation."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from unit.served import ServedNode

DEADLINE_S = 30.0


FORK = """
import os, signal, sys
from penstock.client import Loader
from unit.served import ServedNode

loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
batches = iter(loader)
next(batches)
child = os.fork()
if child == 0:
    os._exit(7)
print(next(batches).info.position)
loader.close()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""


def test_a_parent_goes_on_behind_a_fork_of_grpc_with_fork_support() -> None:
    """What gRPC does to its channels in the child is its own: it does not always come back."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["GRPC_ENABLE_FORK_SUPPORT"] = "1"
    with ServedNode(batches=40, nbytes=4096) as node:
        command = [sys.executable, "-c", FORK, node.address]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_S)

    assert output.split() == ["1"]
