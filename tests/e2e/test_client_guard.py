"""A Loader in the wrong process says so at once, and never keeps a process from ending."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock.client import Loader
from penstock.client.run.guard import ProcessGuard
from penstock.wire.errors import ForkedLoader
from unit.served import ServedNode, wait_until

DEADLINE_S = 60


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Run code in a fresh interpreter."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_another_process_is_refused() -> None:
    """A forked child, which here does nothing but ask, gets the sentence that says what to do."""
    guard = ProcessGuard()
    guard.check()
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        try:
            guard.check()
        except ForkedLoader as error:
            os.write(write, error.message.encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()

    assert f"opened in process {os.getpid()}" in said
    assert f"its fork {child}" in said
    assert "make the Loader after the fork" in said
    guard.check()


@pytest.mark.torch
def test_a_loader_may_be_used_while_another_thread_imports_torch() -> None:
    """As the next call does after the first, which imports torch in the background, was broken off.

    What is half imported stands in `sys.modules` without its functions.
    """
    code = """
        import os, sys, threading

        from penstock.client.run.guard import ProcessGuard
        from penstock.client.run.ranks import torch_distributed

        class Halfway:
            # Holds the import up where these packages have begun and not ended.

            def find_spec(self, name, path=None, target=None):
                if name in ("torch.utils.data.dataloader", "torch.distributed.device_mesh"):
                    begun.release()
                    looked.acquire(timeout=20)

        begun, looked = threading.Semaphore(0), threading.Semaphore(0)
        sys.meta_path.insert(0, Halfway())
        importing = threading.Thread(target=lambda: __import__("torch"), daemon=True)
        importing.start()
        guard = ProcessGuard()
        try:
            for half in range(2):
                assert begun.acquire(timeout=20), "torch is made in another way"
                guard.check()
                assert torch_distributed() is None
                looked.release()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)  # the import goes on, and would be waited for
        os._exit(0)
        """
    process = script(code)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors


def test_a_fork_of_a_reading_process_gets_an_error_and_both_end() -> None:
    code = """
        import os, sys
        from penstock.client import Loader
        from penstock.wire.errors import ForkedLoader

        loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except ForkedLoader:
                loader.close()
                os._exit(42)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), next(batches).position)
    """
    with ServedNode() as node:
        process = script(code, node.address)
        out, err = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out.split()) == (0, ["42", "1"]), err


@pytest.mark.torch
def test_a_worker_of_a_dataloader_is_told_to_use_none() -> None:
    from torch.utils.data import DataLoader

    from unit.wrapped_loader import Wrapped

    with ServedNode() as node:
        data = DataLoader(
            Wrapped(node.address),
            batch_size=None,
            num_workers=1,
            multiprocessing_context="spawn",
        )
        with pytest.raises(Exception, match="num_workers=0"):
            next(iter(data))


def test_a_loader_is_not_pickled() -> None:
    with (
        Loader("127.0.0.1:1", "code", rank=0, world_size=1) as loader,
        pytest.raises(TypeError, match="num_workers=0"),
    ):
        pickle.dumps(loader)


@pytest.mark.parametrize("how", ["pass", "del loader", "sys.exit(0)", "loader.close()"])
def test_a_process_that_stops_reading_in_the_middle_ends(how: str) -> None:
    """With a stream open, batches ready, and a server that goes on: exit 0, nothing on stderr."""
    code = f"""
        import sys
        from penstock.client import Loader

        loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
        batches = iter(loader)
        print(next(batches).position, flush=True)
        {how}
    """
    with ServedNode() as node:
        process = script(code, node.address)
        out, err = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out, err) == (0, "0\n", "")


def test_an_interrupt_while_waiting_ends_the_process_at_once() -> None:
    code = """
        import sys
        from penstock.client import Loader

        loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
        try:
            next(iter(loader))
        except KeyboardInterrupt:
            print("interrupted")
    """
    with ServedNode() as node:
        node.gate.held.add(0)
        process = script(code, node.address)
        wait_until(lambda: node.gate.waiting, "a worker is held up", DEADLINE_S)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out) == (0, "interrupted\n"), err


def test_the_client_is_light() -> None:
    """Importing it brings neither torch nor the server half, and reading arrays does not either."""
    code = """
        import sys
        import penstock.client, penstock.client.cli
        from penstock.client import Loader

        loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
        next(iter(loader))
        print([name for name in ("torch", "datasets", "penstock.server") if name in sys.modules])
    """
    with ServedNode() as node:
        process = script(code, node.address)
        out, err = process.communicate(timeout=DEADLINE_S)

    assert out == "[]\n", err


def test_no_module_of_the_client_imports_the_server() -> None:
    package = Path(__file__).parents[2] / "client" / "penstock" / "client"
    for module in package.rglob("*.py"):
        for line in module.read_text().splitlines():
            assert not line.lstrip().startswith(("import penstock.server", "from penstock.server"))
