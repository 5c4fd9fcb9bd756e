"""The image that `make image` builds: its size, what is in it, and the demo's job from it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.examples import stdlib
from pods import Image, World, addresses, why_not

IMAGES = os.environ.get("TEST_IMAGES", "")
pytestmark = pytest.mark.skipif(not IMAGES, reason="NOT RUN: there is no image (make image)")

FOLDER = Path(IMAGES).absolute()
MOST_MB = {"full": 620, "slim": 400}


@pytest.fixture(scope="module")
def corpus() -> stdlib.Corpus:
    """The corpus of `make demo`."""
    return stdlib.make()


@pytest.fixture(params=MOST_MB)
def world(request: pytest.FixtureRequest, corpus: stdlib.Corpus, tmp_path: Path) -> Iterator[World]:
    """The chart with the demo's job, and one of the images."""
    job = corpus.job_file.read_text()
    job = job.replace('"corpus/', '"/corpus/corpus/').replace(
        " tokenizer.json", " /corpus/tokenizer.json"
    )
    group = {
        "name": "demo",
        "workers": 2,
        "stalledMiB": 4000,
        "jobFile": job,
        "volumes": [{"name": "corpus", "hostPath": {"path": corpus.folder}}],
        "volumeMounts": [{"name": "corpus", "mountPath": "/corpus", "readOnly": True}],
    }
    image = Image(FOLDER / request.param)
    world = World(tmp_path, {"loaderGroups": [group], "preStopSeconds": 0}, image)
    yield world
    world.close()


@pytest.mark.parametrize("target", MOST_MB)
def test_an_image_is_no_larger_than_it_may_be(target: str) -> None:
    command = ["du", "-s", "--apparent-size", "--block-size=1000000", str(FOLDER / target)]
    megabytes = int(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    )

    assert megabytes <= MOST_MB[target]


@pytest.mark.parametrize("target", MOST_MB)
def test_an_image_holds_what_runs_and_no_more(target: str) -> None:
    """No compiler, no torch, mount points, files that any user may read, the list of packages."""
    root = FOLDER / target
    packages = (FOLDER / f"{target}.packages.txt").read_text()
    unreadable = subprocess.run(
        ["find", str(root / "opt"), "-not", "-type", "l", "-not", "-perm", "-o=r"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert not [name for name in ("gcc", "cc", "make", "c++") if (root / "usr/bin" / name).exists()]
    assert [
        name
        for name in ("jobs", "data", "tls", "tokens", "tmp", "dev/shm")
        if not (root / name).is_dir()
    ] == []
    assert unreadable == ""
    assert "python penstock 0.1.0" in packages
    assert "debian python3 " in packages
    assert "torch" not in packages
    assert ("python datasets " in packages) is (target == "full")
    assert (root / "data").stat().st_uid == 65532


@pytest.mark.skipif(why_not() is not None, reason=f"NOT RUN: {why_not()}")
def test_an_image_serves_the_job_of_the_demo(world: World) -> None:
    """As a rendered Pod, with a root that is only read; and ends at SIGTERM."""
    node = world.node(addresses()[0])
    ready_s = node.until_ready()
    world.publish(node)
    said = world.compare()
    status, took_s = node.stop()

    assert said == "ok: stdlib: 8 batches are those that are computed alone\n"
    assert status == 0
    assert took_s < 25
    assert ready_s < 5
    print(f"{world.cluster.image.mounts[1]}: ready after {ready_s:.1f} s, ended in {took_s:.1f} s")  # noqa: T201
