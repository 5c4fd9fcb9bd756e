"""Whatever a text holds, it never keeps a call from ending: readers hear of errors at once."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from penstock.wire.errors import BadItem, PenstockError, UnsupportedValue

ROLES = '''
import os

from penstock.server.roles import BatchCollator, RawItemProcessor

NAME = os.fsdecode(b"caf\\xe9.jpg")  # a file's name that is not UTF-8


class Fails(RawItemProcessor):
    def process(self, raw, context):
        raise ValueError(f"cannot decode {NAME}")


class Skips(RawItemProcessor):
    """Leaves every second item out, with a reason that is not Unicode."""

    def process(self, raw, context):
        if raw["n"] % 2:
            return context.skip(f"cannot decode {NAME}")
        return {"n": raw["n"]}


class FailsAtTimes(RawItemProcessor):
    def process(self, raw, context):
        if raw["n"] % 2:
            raise ValueError(f"cannot decode {NAME}")
        return {"n": raw["n"]}


class Signs(RawItemProcessor):
    """Each of these characters takes 12 bytes in a gRPC status."""

    def process(self, raw, context):
        raise ValueError("\\N{GRINNING FACE}" * 5000)


class NameOfAValue(BatchCollator):
    """The name of a value is not Unicode."""

    def collate(self, rows, context):
        return {NAME: len(rows)}


class NameOfACount(BatchCollator):
    def collate(self, rows, context):
        context.counts[NAME] = len(rows)
        return {"n": len(rows)}
'''


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node whose jobs say things that are not Unicode."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "roles.py").write_text(ROLES)
    source = {"type": "items", "items": [{"n": n} for n in range(12)]}
    plain: dict[str, Any] = {"source": source, "lanes": 1, "batch_size": 1}
    by_role = {"source": source, "lanes": 1, "batcher": {"type": "simple", "batch_size": 1}}
    jobs = {
        "fails": {**plain, "processor": {"type": "./roles.py:Fails"}},
        "signs": {**plain, "processor": {"type": "./roles.py:Signs"}},
        "skips": {**plain, "processor": {"type": "./roles.py:Skips"}},
        "quarantines": {
            **plain,
            "processor": {"type": "./roles.py:FailsAtTimes"},
            "on_item_error": "quarantine",
        },
        "value": {**by_role, "collator": {"type": "./roles.py:NameOfAValue"}},
        "count": {**by_role, "collator": {"type": "./roles.py:NameOfACount"}},
    }
    file = write_job_file(folder / "penstock.yaml", jobs, metrics="127.0.0.1:0")
    with serving(file) as server:
        yield server


def heard(node: Server, job: str) -> PenstockError:
    """Return what a reader of a job is told in place of its first batch, and at once."""
    start = time.monotonic()
    with pytest.raises(PenstockError) as caught:
        node.read(job, horizon=1).take(1)
    assert time.monotonic() - start < 20
    return caught.value


def test_an_error_with_half_a_surrogate_pair_reaches_its_reader(node: Server) -> None:
    """The name of a file that is not UTF-8 stands in a user's exception: it is told, escaped."""
    error = heard(node, "fails")

    assert isinstance(error, BadItem)
    assert r"cannot decode caf\udce9.jpg" in error.message
    assert r"caf\udce9.jpg" in error.fields["reason"]
    assert r"caf\udce9.jpg" in error.fields["traceback"]
    error.message.encode()


def test_an_error_of_signs_that_grow_on_the_wire_reaches_its_reader(node: Server) -> None:
    """A long sentence of emoji fits the headers of HTTP/2, with its code and its beginning."""
    error = heard(node, "signs")

    assert isinstance(error, BadItem)
    assert "ValueError: \N{GRINNING FACE}" in error.message


def test_names_that_are_not_unicode_are_told(node: Server) -> None:
    """A value or a count with such a name fails its batch, by name, and nothing else."""
    for job in ("value", "count"):
        error = heard(node, job)

        assert isinstance(error, UnsupportedValue), job
        assert r"caf\udce9.jpg" in error.message


def test_a_reason_that_is_not_unicode_is_counted_and_kept(node: Server) -> None:
    """Filters and verdicts with such reasons neither end the node nor break its metrics."""
    for job in ("skips", "quarantines"):
        got = node.read(job, horizon=6).take(6)
        assert [one.header.position for one in got] == list(range(6))

    [event, *_] = node.events("ready")
    with urllib.request.urlopen(f"http://{event['metrics']}/metrics", timeout=20) as reply:
        text = reply.read().decode()
    assert r"caf\\udce9.jpg" in text
    assert node.process.poll() is None


def test_status_is_unicode(node: Server) -> None:
    """What `penstock top` prints can be printed."""
    str(node.status()).encode()
