"""A whole run whose batches go to a simulated device, whose memory holds what `show` prints."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from e2e.test_same_host import job_file
from harness import ENVIRONMENT, call_command, serving
from penstock.client import Loader
from penstock.client.testing import Random, SimulatedDevice

COUNT = 48

READER = """
import sys
from penstock.client import Loader
from penstock.client.testing import Random, SimulatedDevice
from penstock.wire.digest import batch_digest

device = SimulatedDevice(Random(int(sys.argv[2])))
read = []
with Loader(sys.argv[1], "job", group="run", rank=0, world_size=1, device=device) as loader:
    for batch in loader:
        memory = next(value.memory for value in batch.values() if hasattr(value, "memory"))
        event = device.simulator.launch(
            device.current(), lambda data: read.append(data.tobytes()), [memory]
        )
        device.simulator.finish(event)
        print(batch.position, batch_digest(batch.header, read.pop()), flush=True)
        loader.commit()
"""


def test_torch_is_imported_before_the_first_copy_is_waited_for() -> None:
    """On a disk that is not warm it takes longer than many a loop's `deadline_s`."""
    program = (
        "import sys; from penstock.client.testing import SimulatedDevice; device = SimulatedDevice("
        "tensors={}); print('torch' in sys.modules)"
    )

    found = [
        subprocess.run(
            [sys.executable, "-c", program.format(tensors)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for tensors in (False, True)
    ]

    assert found == ["False", "True"]


@pytest.fixture(params=["tcp", "unix"])
def listen(request: pytest.FixtureRequest, runtime: Path) -> str:
    """Where the node is: bodies are sent, or lent."""
    return f"unix:{runtime}/node.sock" if request.param == "unix" else "127.0.0.1:0"


def test_a_run_that_is_killed_and_resumed_has_on_its_device_what_show_prints(
    listen: str, tmp_path: Path
) -> None:
    """Each position at least once, and each time the same content."""
    file = job_file(tmp_path, listen)
    step = ("--step", "0", "--batches-per-step", str(COUNT), "--json")
    shown = call_command("penstockd", "show", str(file), "job", *step)
    expected = {
        found["position"]: found["digest"] for found in map(json.loads, shown.stdout.splitlines())
    }
    assert len(expected) == COUNT, shown.stderr

    seen: dict[int, str] = {}
    with serving(file) as server:
        for life in range(4):
            command = [sys.executable, "-c", READER, server.address, str(life)]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
            ) as reader:
                assert reader.stdout is not None
                for line in reader.stdout:
                    position, digest = line.split()
                    if int(position) >= COUNT:
                        break
                    assert expected[int(position)] == digest, f"position {position}, life {life}"
                    seen[int(position)] = digest
                    if len(seen) >= (life + 1) * COUNT // 4:
                        break
                reader.kill()

    assert seen == expected


def test_two_loaders_share_a_device(listen: str, tmp_path: Path) -> None:
    """In two threads, to their own ends; nothing is left there."""
    device = SimulatedDevice(Random(3))
    found: dict[int, list[int]] = {}
    with serving(job_file(tmp_path, listen)) as server:

        def read(number: int) -> None:
            with Loader(server.address, "job", rank=0, world_size=1, device=device) as loader:
                batches = iter(loader)
                found[number] = [int(next(batches)["x"].get().sum()) for _ in range(COUNT)]

        threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert found[0] == found[1]
    assert len(found[0]) == COUNT
    del threads, read
    gc.collect()
    device.simulator.close()
