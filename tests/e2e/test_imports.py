"""What an import brings, in a fresh interpreter."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from penstock.server.process.extra import IMPORTED_AT_START
from penstock.server.usercode.imports import load_attribute


def test_another_process_unpickles_what_this_one_pickled(tmp_path: Path) -> None:
    """The module's name is made of stem and content, so a worker that loads the file has it too."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n"
    )
    data = pickle.dumps(load_attribute(f"{path}:Point")(3, 4))
    program = (
        "import pickle, sys; from penstock.server.usercode.imports import load_attribute;"
        f"load_attribute({f'{path}:Point'!r});"
        "print(pickle.load(sys.stdin.buffer))"
    )

    done = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True)

    assert done.stdout.decode().strip() == "Point(x=3, y=4)", done.stderr.decode()


def test_sources_are_imported_without_what_they_read_with() -> None:
    """A worker that reads a list pays for neither pyarrow, datasets, fsspec nor torch."""
    program = (
        "import sys; import penstock.server.sources, penstock.server.roles.distributors;"
        "print({'pyarrow', 'datasets', 'fsspec', 'torch', 'pandas'} & set(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.strip() == "set()", done.stderr


DEADLINE_S = 30.0


# A variable that is set and taken back is a change, too: gRPC reads its own while it is imported.
PROBE = """
import sys
import numpy  # its own affair
written = []
sys.addaudithook(
    lambda event, args: event in ("os.putenv", "os.unsetenv") and written.append(args[0])
)
import penstock.client
import grpc
print(written)
grpc.insecure_channel("127.0.0.1:1").close()
"""


def test_importing_the_client_leaves_no_trace() -> None:
    """Not in the environment of the trainer, not in how its gRPC works, not on the terminal."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )

    assert (done.stdout.strip(), done.stderr) == ("[]", "")


IMPORTS = """
import sys
from penstock.client import Loader
assert not {"torch", "cupy", "penstock.client.device", "penstock.client.testing"} & set(sys.modules)
Loader("127.0.0.1:1", "code", rank=0, world_size=1, device="cuda", memory="cupy")
assert not {"torch", "cupy"} & set(sys.modules)
from penstock.client import testing
assert not {"torch", "cupy"} & set(sys.modules)
"""


def test_nothing_imports_a_library_before_a_device_is_asked_for() -> None:
    """Neither the client, nor a Loader that has not read yet, nor the simulated device."""
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, timeout=120)


ROOT = Path(__file__).parents[2]


def test_what_a_start_imports_of_the_extra_is_looked_for_before() -> None:
    """A package that is new at the start of a node or a command is asked for, and no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {Requirement(line).name for line in project["optional-dependencies"]["server"]}
    modules = {name.replace("-", "_"): name for name in extra}
    modules |= {"yaml": "pyyaml", "grpc_health": "grpcio-health-checking"}
    modules |= {"grpc_reflection": "grpcio-reflection"}
    code = (
        "import sys, penstock.server.app, penstock.server.commands.group\n"
        "import penstock.server.web.http\n"
        "import penstock.server.transports.local_node, penstock.server.node.workers.worker_main\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    imported = {name for name in done.stdout.split() if name in modules} - {"uvloop"}
    assert imported == set(IMPORTED_AT_START)
    for module, package in IMPORTED_AT_START.items():
        assert modules[module] == package


def test_importing_the_registry_needs_no_heavy_package() -> None:
    """torch, datasets and pyarrow come with the role that needs them."""
    import subprocess

    code = (
        "import sys, penstock.server.jobs.registry\n"
        "heavy = ('torch', 'datasets', 'pyarrow', 'tokenizers', 'grpc')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_jobs_of_text_load_nothing_that_decodes() -> None:
    """Neither a node's worker nor a command: pictures and sounds come with their processors."""
    program = (
        "import sys, penstock.server.jobs.load, penstock.server.node.workers.worker_main;"
        "from penstock.server.roles.processors import TokenizeProcessor;"
        "print([name for name in sys.modules if name.startswith('penstock.server.media.') and"
        "    name.rpartition('.')[2] in ('families', 'jpeg', 'pillow', 'sound_decoding')])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout.strip() == "[]", done.stderr


def test_the_wire_needs_neither_grpc_nor_torch() -> None:
    """Worker processes import it: it must not bring what is heavy or unsafe there."""
    script = (
        "import sys, penstock.wire.frame, penstock.wire.order, penstock.wire.transports; "
        "print(sorted({'grpc', 'torch', 'ml_dtypes', 'PIL'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
