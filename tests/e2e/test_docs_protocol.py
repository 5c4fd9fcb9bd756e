"""docs/protocol.md against the messages themselves, and its client against a real node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import serving, write_job_file
from penstock.server.jobs.load import load
from penstock.server.rpc.gathering import GATHER_S, GATHER_SHARE
from penstock.server.rpc.read import WAITING_EVERY_S
from penstock.server.rpc.service import OPTIONS
from penstock.server.rpc.streams import WIDE_BUNDLE_BYTES
from penstock.server.rpc.unsent import MUCH_BYTES
from penstock.wire import (
    ALIGNMENT,
    CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NAME,
    MAX_REQUEST_BYTES,
    MAX_TOKEN,
    MAX_WORLD_SIZE,
    PROTOCOL,
    WIDE_CHUNK_BYTES,
)
from penstock.wire.digest import batch_digest
from penstock.wire.frame import MAX_HEADER_BYTES
from penstock.wire.order import MAX_POSITION
from penstock.wire.sent_errors import ERROR_METADATA_KEY
from penstock.wire.v1 import cursors_pb2, feed_pb2
from penstock.wire.value_types import MAX_DIMENSIONS, MAX_LIST_DEPTH, STORAGE
from truth import Truth

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next heading."""
    [found] = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", PAGE, re.M | re.S)
    return str(found)


def first_cells(title: str) -> list[str]:
    """What stands in backquotes in the first column of a section's table, row by row."""
    cells = re.findall(r"^\| (`.*?) \|", section(title), re.M)
    return [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]


def test_every_method_is_listed() -> None:
    """Both services, no method more and none less."""
    services = [
        file.services_by_name[name]
        for file, name in ((feed_pb2.DESCRIPTOR, "Feed"), (cursors_pb2.DESCRIPTOR, "Cursors"))
    ]

    listed = first_cells("Services")

    assert listed == [f"{one.name}.{method.name}" for one in services for method in one.methods]


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("Describe", feed_pb2.DescribeReply),
        ("Open", feed_pb2.Open),
        ("The header", feed_pb2.BatchHeader),
    ],
    ids=["describe", "open", "header"],
)
def test_every_field_is_explained(title: str, message: type) -> None:
    """The tables of fields are those of the messages, in their order."""
    fields = [field.name for field in message.DESCRIPTOR.fields]  # type: ignore[attr-defined]

    listed = first_cells(title)

    assert sorted(listed) == sorted(fields)


def test_every_kind_of_value_is_explained() -> None:
    """A reader of another language knows all that may come."""
    kinds = {field.name for field in feed_pb2.Value.DESCRIPTOR.fields}

    assert set(first_cells("Values")) == kinds


def test_every_kind_of_reply_is_named() -> None:
    """Nothing comes over a Read that the page does not speak of."""
    read = PAGE[PAGE.index("## Read") : PAGE.index("## The header")].lower()

    missing = [
        field.name
        for field in feed_pb2.ReadReply.DESCRIPTOR.fields
        if not re.search(rf"\b{field.name}\b", read)
    ]

    assert missing == []


def test_the_dtypes_are_those_of_the_wire() -> None:
    """The page lists them all."""
    [line] = re.findall(r"^The dtypes: (.*)\.$", section("The body"), re.M)

    assert set(re.findall(r"`(\w+)`", line)) == set(STORAGE)


def test_numbers_are_those_of_the_code() -> None:
    """Limits, intervals and versions."""
    limits = dict(re.findall(r"^\| ([A-Z].*?) \| (.*?) \|$", section("Limits"), re.M))

    assert limits["One message"] == f"{MAX_MESSAGE_BYTES >> 20} MiB"
    assert limits["One message to a server"] == f"{MAX_REQUEST_BYTES >> 20} MiB"
    wide, usual = WIDE_CHUNK_BYTES >> 20, CHUNK_BYTES >> 20
    assert limits["Body bytes in one chunk"] == f"{wide} MiB, mostly {usual} MiB"
    assert f"comes in chunks of up to {wide} MiB" in section("A batch is a header and chunks")
    assert limits["A header"].startswith("16 MiB less 1 MiB for a chunk and 4 KiB;")
    assert f"While {MUCH_BYTES >> 20} MiB of messages" in section("A batch is a header and chunks")
    assert f"chunks have {usual} MiB at most" in section("A batch is a header and chunks")
    bundles, widest = section("Bundles"), WIDE_BUNDLE_BYTES >> 20
    assert f"at most {usual} MiB together, or {widest} MiB as long" in bundles
    assert f"no message of the stream had {widest // 2} MiB" in bundles
    assert f"at most {GATHER_S * 1e3:.0f} ms after its last message" in bundles
    assert "less in a stream's first second" in bundles
    assert pytest.approx(1.0) == GATHER_S / GATHER_SHARE
    assert MAX_HEADER_BYTES == MAX_MESSAGE_BYTES - CHUNK_BYTES - (4 << 10)
    assert (limits["Positions, offsets, steps"], MAX_POSITION) == ("below 2^63", (1 << 63) - 1)
    assert limits["Dimensions of a tensor"] == str(MAX_DIMENSIONS)
    assert limits["A group's or checkpoint's name"] == f"{MAX_NAME} printable characters"
    assert limits["An attempt's token, a request's id"] == f"{MAX_TOKEN} printable characters"
    assert limits["World size of an attempt"] == f"{MAX_WORLD_SIZE:,}"
    assert f"multiple of {ALIGNMENT}" in section("Values")
    assert f"nested up to {MAX_LIST_DEPTH} deep" in section("Values")
    assert f"After every {WAITING_EVERY_S:.0f} seconds" in section("Waiting, Draining, End")
    assert f"`protocol` is {PROTOCOL} " in section("Services")
    assert f"`{ERROR_METADATA_KEY}`" in section("Errors")
    options = dict(OPTIONS)
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 30_000
    assert limits["A server's keepalive pings"].startswith("every 30 seconds;")


@pytest.mark.parametrize("job", ["numbers", "large", "texts", "packed", "wide"])
def test_the_client_in_one_page_reads_what_local_computes(tmp_path: Path, job: str) -> None:
    """Small batches, batches of several chunks, without a body, and of packed rows."""
    for name, code in re.findall(r"^<!-- file: (\S+) -->\n```python\n(.*?)^```", PAGE, re.M | re.S):
        (tmp_path / name).write_text(code)
    (tmp_path / "large.py").write_text(
        "import numpy as np\n\n\ndef make(raw):\n"
        '    return {"x": np.arange(raw, raw + 400_000, dtype="int64")}\n'
    )
    documents = [{"input_ids": list(range(5, 6 + size))} for size in (1, 4, 9, 2, 7, 3)]
    items = {
        "numbers": list(range(40)),
        "large": [1, 2, 3],
        "texts": [{"t": "a"}, {"t": "bc"}],
        "packed": documents,
        "wide": documents,
    }
    packing: dict[str, dict[str, Any]] = {
        "packed": {
            "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4, "rows": 2},
            "collator": {"type": "packed"},
        },
        # Its ids alone are more than one chunk.
        "wide": {
            "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4, "rows": 3},
            "collator": {"type": "packed", "pad_to": 160_000, "layout": "thd"},
        },
    }
    file = write_job_file(
        tmp_path / "penstock.yaml",
        {
            name: {"lanes": 3, "source": {"type": "items", "items": items[name]}}
            | packing.get(name, {"batch_size": 1})
            | ({"function": "./large.py:make"} if name == "large" else {})
            for name in items
        },
    )

    with serving(file) as node:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "read.py"), node.address, job, "8"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    truth = Truth(load(str(file)).jobs[job])
    batches = [truth.batch(position) for position in range(8)]
    expected = [
        f"{position} {batch_digest(feed_pb2.BatchHeader.FromString(header), body)}"
        for position, (header, body, _) in enumerate(batches)
    ]
    assert sorted(done.stdout.splitlines()) == expected, done.stderr
