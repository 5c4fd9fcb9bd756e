"""What may be gone in a moment is never a verdict about bytes; what a decoder says of bytes is."""

from __future__ import annotations

import gzip
import io
import socket
import sqlite3
import subprocess
import urllib.request
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import huggingface_hub.errors
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, SourceChanged, SourceUnavailable


def raised(call: Callable[[], Any]) -> Exception:
    """Return what a call raises."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def timed_out() -> None:
    raise subprocess.TimeoutExpired("sleep", 0.01)


def closed_port() -> str:
    """Return the address of a port where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}/"


def locked(folder: Path) -> Any:
    first = sqlite3.connect(folder / "x.db")
    first.execute("create table t (x)")
    first.execute("begin exclusive")
    second = sqlite3.connect(folder / "x.db", timeout=0)
    try:
        second.execute("select * from t")
    finally:
        first.close()
        second.close()


def huge() -> Any:
    return bytearray(1 << 60)


@pytest.mark.parametrize(
    "call",
    [
        lambda _: urllib.request.urlopen(closed_port()),
        lambda _: huggingface_hub.HfApi(endpoint=closed_port()).model_info("x", timeout=5),
        lambda folder: (folder / "missing.jpg").read_bytes(),
        lambda _: huge(),
        lambda _: timed_out(),
        locked,
    ],
    ids=["urllib", "hub", "missing file", "memory", "subprocess", "sqlite"],
)
def test_what_may_be_gone_in_a_moment(call: Callable[[Path], Any], tmp_path: Path) -> None:
    """Each is raised by the real library; where it came from does not matter."""
    error = raised(lambda: call(tmp_path))

    assert is_transient(error)
    assert is_transient(error, reading=True)


@pytest.mark.parametrize(
    "error",
    [
        SourceUnavailable("s3 says 503"),
        OSError(5, "EIO"),
        TimeoutError(),
        ConnectionResetError(),
        FileNotFoundError("fsspec gives no errno"),
        PermissionError("nor does s3fs"),
        MemoryError(),
        BrokenProcessPool("a helper of the role died"),
        huggingface_hub.errors.LocalEntryNotFoundError("no connection"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't allocate memory: you tried to allocate 1099511627776 bytes."),
        pa.ArrowMemoryError("malloc of size 1099511627776 failed"),
        RuntimeError("DataLoader timed out after 5 seconds"),
        RuntimeError("HIP out of memory. Tried to allocate 2 GiB"),
        type("OutOfMemoryError", (RuntimeError,), {})("no room on the device"),
        OSError("When reading key 'x': AWS Error NETWORK_CONNECTION"),
        ExceptionGroup("several reads", [ValueError("x"), TimeoutError()]),
    ],
    ids=repr,
)
def test_what_says_nothing_about_the_bytes(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda: np.empty(10**16),
        lambda: pa.allocate_buffer(10**16),
        lambda: torch.empty(10**16),
        lambda: pa.decompress(b"\xff" * 9, 10**16, "snappy"),
    ],
    ids=["numpy", "arrow", "torch", "snappy"],
)
def test_memory_that_no_machine_has_is_asked_for_by_the_bytes(call: Callable[[], Any]) -> None:
    """A header that claims petabytes fails everywhere alike: it is no node's fault."""
    assert not is_transient(raised(call))


def damaged_image() -> Any:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "png")
    return Image.open(io.BytesIO(buffer.getvalue()[:1500])).load()


@pytest.mark.parametrize(
    "call",
    [
        lambda: Image.open(io.BytesIO(b"no image at all")),
        damaged_image,
        lambda: gzip.decompress(b"no gzip"),
        lambda: pa.ipc.open_file(pa.BufferReader(b"no arrow file")),
        lambda: pa.Codec("snappy").decompress(b"\xff" * 20, decompressed_size=9),
        lambda: urllib.request.urlopen("nonsense"),
        lambda: b"\xff".decode(),
    ],
    ids=["no image", "half an image", "gzip", "arrow", "snappy", "no address", "text"],
)
def test_what_a_decoder_says_of_bytes_is_about_the_bytes(call: Callable[[], Any]) -> None:
    """Some raise an OSError, without an errno."""
    assert not is_transient(raised(call))


def test_a_plain_os_error_is_judged_by_where_it_was_raised() -> None:
    """Out of code that only reads, it is about reading; out of code that decodes, the bytes."""
    assert is_transient(OSError("half a read"), reading=True)
    assert not is_transient(OSError("image file is truncated"))
    assert not is_transient(raised(lambda: Image.open(io.BytesIO(b"x"))), reading=True)


def test_an_error_in_another_error_is_still_there() -> None:
    """People wrap what they catch; `from None` says that the first one does not matter."""

    def wrap(why: str) -> None:
        try:
            raise TimeoutError
        except TimeoutError as error:
            if why == "from":
                raise ValueError("x") from error
            if why == "during":
                raise ValueError("x")  # noqa: B904
            raise ValueError("x") from None

    assert is_transient(raised(lambda: wrap("from")))
    assert is_transient(raised(lambda: wrap("during")))
    assert not is_transient(raised(lambda: wrap("none")))


def test_an_error_of_penstock_is_what_it_says() -> None:
    """Whatever it was made of."""
    error = BadItem("damaged")
    error.__cause__ = OSError(5, "EIO")

    assert not is_transient(error)
    assert not is_transient(SourceChanged("another file"))
