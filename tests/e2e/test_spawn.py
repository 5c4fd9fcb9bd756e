"""`spawn:`: a node that dies is there again, and nobody else can put one in its place."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness import ENVIRONMENT, kill_process, serving, write_job_file
from invariants import Purity, eventually
from penstock.client import Loader
from penstock.server.jobs.load import load
from penstock.server.transports import spawn
from penstock.wire.errors import InvalidRequest

JOB: dict[str, Any] = {
    "lanes": 3,
    "source": {"type": "items", "items": [{"x": number} for number in range(50)]},
    "batch_size": 2,
}


def nodes(runtime: Path) -> list[int]:
    """Return the process ids of the nodes that listen in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "serve" in words and any(str(runtime) in word for word in words):
            found.append(process.pid)
    return found


@pytest.mark.fault
def test_a_killed_node_is_started_again(runtime: Path, tmp_path: Path) -> None:
    """SIGKILL while two Loaders read: both go on at the exact position, on one new node."""
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB})
    truth = Purity(load(str(file)).job("one"))
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "as_numpy": True}
    kills = {40, 80}

    with (
        Loader(f"spawn:{file}?workers=1", "one", group="run", **options) as first,
        Loader(f"spawn:{file}?workers=1", "one", **options) as second,
    ):
        for position, (left, right) in enumerate(zip(first, second, strict=True)):
            assert left.position == right.position == position
            for batch in (left, right):
                truth.saw(batch.header, bytes(batch.body))
            if position in kills:
                first.commit()
                [pid] = nodes(runtime)
                assert kill_process(pid)
            if position == 120:
                break
        assert first.commit() == 121
        assert len(nodes(runtime)) == 1
        assert first.stats()["reconnects"] + second.stats()["reconnects"] > 0

    eventually(lambda: nodes(runtime) == [], 20, "the node has ended with its last reader")


def test_the_folder_of_sockets_is_nobody_elses(runtime: Path, tmp_path: Path) -> None:
    """A link that somebody laid there is not followed; a folder open to others is refused."""
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB})
    place = runtime / f"penstock-{os.getuid()}"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)

    place.symlink_to(elsewhere)
    with pytest.raises(InvalidRequest, match="is a link: remove it, or set XDG_RUNTIME_DIR"):
        spawn.open_transport(str(file))
    place.unlink()
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(InvalidRequest, match="is open to others"):
        spawn.open_transport(str(file))
    place.rmdir()
    place.write_text("")
    with pytest.raises(InvalidRequest, match="is not a folder"):
        spawn.open_transport(str(file))

    assert list(elsewhere.iterdir()) == []


def test_a_folder_with_a_long_path_is_refused_with_the_way_on(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's limit is told where it can be mended, and not as the end of a node."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / ("x" * 80)))
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB})

    with pytest.raises(InvalidRequest, match=r"set XDG_RUNTIME_DIR to a folder .* shorter path"):
        spawn.open_transport(str(file))


def test_who_started_a_node_that_others_use_exits_without_a_word(
    runtime: Path, tmp_path: Path
) -> None:
    """Also where Python tells of all that is left open: the node is meant to live on."""
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB})
    starts = (
        "from penstock.client import Loader\n"
        f"loader = Loader('spawn:{file}?workers=1', 'one', rank=0, world_size=1, as_numpy=True)\n"
        "batches = iter(loader)\n"
        "print(next(batches).position, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", starts],
        env={**ENVIRONMENT, "XDG_RUNTIME_DIR": str(runtime)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "0\n"
        with Loader(f"spawn:{file}?workers=1", "one", rank=0, world_size=1) as second:
            batches = iter(second)
            next(batches)
            [node] = nodes(runtime)
            _, said = first.communicate("go\n", timeout=60)
            assert next(batches).position == 1
            assert nodes(runtime) == [node]

    assert (first.returncode, said) == (0, "")


@pytest.mark.parametrize(("setting", "mode"), [({}, 0o600), ({"socket_mode": "0660"}, 0o660)])
def test_a_unix_socket_is_its_owners_unless_asked(
    setting: dict[str, str], mode: int, runtime: Path, tmp_path: Path
) -> None:
    """Whoever can write to a socket can read every job and move every cursor."""
    path = runtime / "node.sock"
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB}, listen=f"unix:{path}", **setting)

    with serving(file), Loader(f"unix:{path}", "one", rank=0, world_size=1) as loader:
        assert next(iter(loader)).position == 0
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_socket_mode_is_octal(tmp_path: Path) -> None:
    """A number that YAML has read as octal or decimal, or no mode: told with the key."""
    file = write_job_file(tmp_path / "jobs.yaml", {"one": JOB}, socket_mode="rw")

    ended = subprocess.run(
        [sys.executable, "-m", "penstock.server.cli", "serve", str(file)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert "server.socket_mode" in ended.stderr
    assert "octal digits in quotes" in ended.stderr
