"""What a short file can make large, or Python cannot hold: one sentence with the line, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob

JOB = "jobs: {a: {source: {type: items, items: [1]}, batch_size: 1%s}}\n"


def _chained(first: str, link: str, count: int) -> str:
    """Return a job file whose anchors each hold the one before; the job's items are the last."""
    links = "".join(f"x-{n}: &a{n} {link.replace('@', str(n - 1))}\n" for n in range(1, count))
    items = f"{{type: items, items: *a{count - 1}}}"
    return f"x-0: &a0 {first}\n{links}jobs: {{a: {{source: {items}, batch_size: 1}}}}\n"


def _ten(text: str) -> str:
    return f"[{', '.join([text] * 10)}]"


CASES = {
    "nul": (JOB % "" + "x-a: 'a\0b'\n", ":2: .*U\\+0000"),
    "escaped nul": (JOB % "" + 'x-a: "a\\0b"\n', ":2: .*U\\+0000"),
    "5,000 levels": (f"jobs: {'[' * 5000}{']' * 5000}\n", ":1: .*more than 64 levels"),
    "levels of blocks": (
        "jobs:\n" + "".join(" " * n + "a:\n" for n in range(1, 500)),
        "more than 64 levels",
    ),
    "aliases of lists": (_chained(_ten("x"), _ten("*a@"), 9), ":5: .*111,111 values"),
    "merged aliases": (_chained("{k: 1}", "{<<: " + _ten("*a@") + "}", 9), "values"),
    "a chain of aliases": (_chained("[x]", "[*a@]", 2000), "65 levels"),
    "an alias of itself": ("x-a: &a [*a]\n" + JOB % "", "contains itself"),
    "merged into itself": ("x-a: &a {<<: *a}\n" + JOB % "", "contains itself"),
    "5,000 digits": (JOB % f", seed: {'9' * 5000}", ":1: a number has 5,000 characters"),
    "5,000 hexadecimal digits": (JOB % f", seed: 0x{'f' * 5000}", "5,002 characters"),
    "10^9 lanes": (JOB % ", lanes: 1000000000", "jobs.a.lanes is 1000000000: .* to 65,536"),
    "a line of 20 MB": (JOB % f", seed: '{'x' * 20_000_000}'", "larger than 1,048,576 bytes"),
    "10^9 workers": ("server: {workers: 1000000000}\n" + JOB % "", "from 1 to 1024"),
    "endless seconds": ("server: {drain_seconds: .inf}\n" + JOB % "", "drain_seconds is inf"),
    "too many bytes": (f"server: {{ready_bytes: {'9' * 400} GiB}}\n" + JOB % "", "ready_bytes"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bomb_is_one_sentence_at_once(name: str, tmp_path: Path) -> None:
    """With the line where the file has one; not a traceback, and no minutes of memory."""
    text, says = CASES[name]
    path = tmp_path / "penstock.yaml"
    path.write_text(text)
    begun = time.process_time()

    with pytest.raises(InvalidJob, match=says) as caught:
        load(str(path), environ={})

    assert len(caught.value.message.splitlines()) == 1
    assert len(caught.value.message) < 400 + len(str(path))
    assert time.process_time() - begun < 30, "of this process alone; it takes well under a second"


@pytest.mark.parametrize("place", ["pipe", "/dev/zero"])
def test_a_job_file_that_is_no_file_is_refused_and_not_waited_for(
    place: str, tmp_path: Path
) -> None:
    """A named pipe has an end for whoever writes: opened for reading it would wait for that."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / place

    with pytest.raises(InvalidJob, match=f"the job file {path} is not a regular file") as caught:
        load(str(path), environ={})

    assert len(caught.value.message.splitlines()) == 1


def test_what_people_write_stays_below_the_limits(tmp_path: Path) -> None:
    """Thousands of items, shared sections and a long seed are read as ever."""
    items = "\n".join(f"  - {{text: 'item {n}', n: {n}}}" for n in range(2000))
    shared = f"x-items: &items\n{items}\n"
    jobs = "".join(
        f"  j{n}: {{source: {{type: items, items: *items}}, batch_size: 1, seed: {'7' * 40}}}\n"
        for n in range(5)
    )
    path = tmp_path / "penstock.yaml"
    path.write_text(f"{shared}jobs:\n{jobs}")

    job = load(str(path), environ={}).job("j4")

    assert len(job.sources["main"]) == 2000
    assert job.seed == int("7" * 40)


def test_lanes_are_limited_in_python_too() -> None:
    """Each costs the node some memory before the first batch."""
    with pytest.raises(InvalidJob, match="lanes is 65537"):
        Job(source=ItemsSource(items=[1]), batch_size=1, lanes=65_537)


# --- the environment ------------------------------------------------------------------------------


def test_what_kubernetes_sets_for_a_service_of_our_name_is_left_alone(tmp_path: Path) -> None:
    """A Pod finds such variables for every Service of its namespace."""
    path = tmp_path / "penstock.yaml"
    path.write_text(JOB % "")
    names = (
        "PENSTOCK_SERVICE_HOST",
        "PENSTOCK_SERVICE_PORT",
        "PENSTOCK_SERVICE_PORT_GRPC",
        "PENSTOCK_PORT",
        "PENSTOCK_PORT_50051_TCP",
        "PENSTOCK_PORT_50051_TCP_ADDR",
        "PENSTOCK_METRICS_SERVICE_HOST",
        "PENSTOCK_METRICS_PORT_9090_TCP_PROTO",
    )

    config = load(str(path), environ=dict.fromkeys(names, "10.0.0.1"))

    assert config.server.workers == "auto"
