"""What reads bytes of others, each as a function of bytes: for atheris, and for the ordinary tests.

A target returns, or refuses by one of its errors; anything else that it raises is a defect.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import yaml

from certificates import Authority
from indexes import one_each, samples_of, written
from penstock.common.certificates import validity, validity_of_der
from penstock.server.access.callers import Access, hash_of
from penstock.server.access.tls import NodeTls
from penstock.server.jobs.load import load
from penstock.server.jobs.settings import TlsSettings
from penstock.server.media.media_places import MediaPlaces
from penstock.server.media.media_reference import FileReference, read_reference
from penstock.server.media.medium import HeldMedium
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.protocol.channel import (
    FROM_SERVER,
    FROM_WORKER,
    Kinds,
    MessageDecoder,
    encode,
)
from penstock.server.node.protocol.messages import (
    Body,
    Done,
    Free,
    Learn,
    Make,
    MakeSooner,
    OpenLine,
    Planned,
    Produce,
    Snapshot,
    TicketFailed,
)
from penstock.server.planning.index.block import decode_block, encode_block
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.rpc.gate import Gate, certificate_names
from penstock.wire import frame
from penstock.wire.describe import batch_record, describe_values
from penstock.wire.errors import PenstockError, StaleGeneration
from penstock.wire.parse import parse
from penstock.wire.sent_errors import decode_error, encode_error
from penstock.wire.v1 import feed_pb2

KEPT = Path(__file__).parents[1] / "data" / "fuzz"
"""Inputs that were defects once, in a folder for each target."""

MAX_BODY_BYTES = 1 << 20

MAX_INPUT_BYTES = 1 << 16


class Target(NamedTuple):
    """Something that reads bytes.

    Attributes:
        run: Reads them.
        seeds: Real values, to begin with.
        refuses: What it raises for bytes that are not what they should be.
    """

    run: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]
    refuses: tuple[type[Exception], ...] = (PenstockError,)


def attempt(target: Target, data: bytes) -> str | None:
    """Read bytes; return the sentence with which they are refused, or None.

    Raises:
        AssertionError: The refusal has no sentence.
        Exception: A defect.
    """
    try:
        target.run(data)
    except target.refuses as error:
        refusal = error
    else:
        return None
    said = refusal.message if isinstance(refusal, PenstockError) else str(refusal)
    assert said, f"{type(refusal).__name__} says nothing"
    return said


@functools.cache
def _folder() -> Path:
    holder = tempfile.TemporaryDirectory(prefix="penstock-fuzz-")
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


# --- the wire ---


def _frame(data: bytes) -> None:
    """A header behind its length, and what was sent as its body."""
    length = int.from_bytes(data[:2], "little")
    header = parse(feed_pb2.BatchHeader, data[2 : 2 + length])
    entries = frame.check_header(header, max_body_bytes=MAX_BODY_BYTES)
    sent = data[2 + length :].ljust(min(frame.sent_bytes(header), MAX_BODY_BYTES), b"\0")
    sent = sent[: frame.sent_bytes(header)]
    body = frame.completed(header, sent)
    frame.decode_entries(entries, body)
    describe_values(header)
    batch_record(header, body, 1)


def _replies(data: bytes) -> None:
    for reply in frame.parse_replies(data):
        if reply.header is not None:
            frame.check_header(reply.header, max_body_bytes=MAX_BODY_BYTES)


def _reply_seeds() -> Iterator[bytes]:
    header, body = _header()
    one = feed_pb2.ReadReply(header=header)
    chunk = feed_pb2.ReadReply(chunk=feed_pb2.Chunk(lane=1, offset=3, start=0, data=body))
    yield one.SerializeToString()
    yield chunk.SerializeToString()
    yield feed_pb2.ReadReply(more=[one, chunk]).SerializeToString()
    yield feed_pb2.ReadReply(opened=feed_pb2.Opened(log_id=b"x" * 32)).SerializeToString()
    yield feed_pb2.ReadReply(end=feed_pb2.End()).SerializeToString()
    yield feed_pb2.ReadReply(waiting=feed_pb2.Waiting()).SerializeToString()


def _header() -> tuple[feed_pb2.BatchHeader, bytes]:
    header = feed_pb2.BatchHeader(lane=1, offset=3, position=7, body_bytes=128)
    for name, dtype, shape, start in (("x", "int64", (2, 2), 0), ("y", "float32", (4,), 64)):
        tensor = feed_pb2.Tensor(dtype=dtype, shape=shape, start=start)
        size = 8 if dtype == "int64" else 4
        tensor.nbytes = int(np.prod(shape)) * size
        value = feed_pb2.Value(tensor=tensor)
        header.values.append(feed_pb2.NamedValue(name=name, value=value))
    header.values.append(feed_pb2.NamedValue(name="t", value=feed_pb2.Value(text="words")))
    header.values.append(feed_pb2.NamedValue(name="j", value=feed_pb2.Value(json='{"a": [1]}')))
    return header, bytes(range(128))


def _frame_seeds() -> Iterator[bytes]:
    header, body = _header()
    said = header.SerializeToString()
    yield len(said).to_bytes(2, "little") + said + body


def _errors(data: bytes) -> None:
    error = decode_error(data)
    assert isinstance(error, PenstockError)
    encode_error(error)


def _error_seeds() -> Iterator[bytes]:
    yield encode_error(StaleGeneration("a sentence", job="j", group="g", generation=1, current=2))


# --- who calls ---


def _tokens(data: bytes) -> None:
    Access(_file("tokens.yaml", data), ["code", "chat"])


def _token_seeds() -> Iterator[bytes]:
    entry = {"name": "a", "sha256": hash_of("x"), "scopes": ["read", "commit"]}
    other = {"name": "b", "certificate": "*.trainers", "scopes": ["admin"], "jobs": ["co*"]}
    other |= {"groups": ["run-?"], "expires": "2099-01-31", "streams": 2, "horizon": 9}
    yield yaml.safe_dump({"tokens": [entry, other]}).encode()
    yield json.dumps({"tokens": [entry]}).encode()


@functools.cache
def _gate() -> Gate:
    path = _file("known.yaml", next(_token_seeds()))
    return Gate(Access(path, ["code", "chat"]), Metrics("fuzz"))


def _bearer(data: bytes) -> None:
    """Metadata, a line each; an alternative name of the certificate after a NUL."""
    shown, _, certificate = data.partition(b"\0")
    metadata = []
    for line in shown.split(b"\n"):
        key, _, value = line.partition(b":")
        # gRPC gives texts of ASCII, and bytes where the key ends in -bin.
        is_bytes = key.endswith(b"-bin")
        text = value if is_bytes else value.decode("ascii", "replace")
        metadata.append((key.decode("ascii", "replace"), text))
    properties = {"x509_subject_alternative_name": [certificate]} if certificate else {}
    certificate_names(properties)
    _gate()._allowed("Feed/Read", metadata, properties)


def _bearer_seeds() -> Iterator[bytes]:
    yield b"authorization:Bearer x"
    yield b"authorization:Basic eDp5\nx-other-bin:\xff"
    yield b"x:y\0run-7.trainers"


# --- node and worker ---


def _decoder(kinds: Kinds) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        """Whole, and in two pieces: both say the same."""
        whole, cut = MessageDecoder(kinds), MessageDecoder(kinds)
        found = whole.feed(data)
        at = data[0] % len(data) if data else 0
        pieces = cut.feed(data[:at]) + cut.feed(data[at:])
        assert repr(found) == repr(pieces)
        assert (whole.broken is None) == (cut.broken is None)

    return run


def _from_server() -> Iterator[bytes]:
    log = b"l" * 32
    yield encode([OpenLine(1, log, 0, b"snapshot"), Free(((0, 64), (1, 128)))])[0]
    yield encode([Produce(7, log, 1, 9, False, 1, False), MakeSooner(log)])[0]
    yield encode([Make(8, log, 1, 9, True, False, b"plan"), Learn(log, ())])[0] + encode([])[0]


def _from_worker() -> Iterator[bytes]:
    snapshots = (Snapshot(3, b"one"), Snapshot(4, b"two"))
    done = Done(7, Body(0, 64, 8, 8), b"header", b"plan", {"tokens": 3}, False, snapshots, {"a": 1})
    yield encode([done, Planned(8, (b"a", b"bc"), True, snapshots)])[0]
    yield encode([TicketFailed(9, "bad_item", "a sentence", {"index": 3})])[0] + encode([done])[0]


# --- files ---


def _job(data: bytes) -> None:
    load(str(_file("job.yaml", data)), environ={})


def _job_seeds() -> Iterator[bytes]:
    examples = Path(__file__).parents[2] / "deploy" / "examples"
    for path in sorted(examples.glob("*.yaml")):
        yield path.read_bytes()
    job = {"source": {"type": "items", "items": [1, {"x": [2, 3]}]}, "lanes": 2, "batch_size": 1}
    yield yaml.safe_dump({"server": {"listen": "127.0.0.1:0"}, "jobs": {"a": job}}).encode()
    yield b"a: &x {b: 1}\njobs: {c: {<<: *x, source: !!str q, seed: !!int 3, y: !!bool true}}\n"
    yield b'jobs: {"\\U00000061": {source: !!float 1.5, lanes: !!null null, z: !!timestamp "1"}}'


_END = struct.Struct("<32sQ")


def _index(data: bytes) -> None:
    """A footer is found where its length says, and its hash is made right: it is read further."""
    if len(data) > 56:
        mark, length = data[-16:], int.from_bytes(data[-24:-16], "little")
        at = len(data) - 56 - length
        if at >= 0:
            said = data[at : at + length]
            data = data[:at] + said + _END.pack(hashlib.sha256(said).digest(), length) + mark
    index = SizeIndex.open(str(_file("sizes.idx", data)))
    for source in index.sources.values():
        source.read(0, min(source.items, 100))
    index.check()


def _index_seeds() -> Iterator[bytes]:
    path = _folder() / "seed.idx"
    items: list[Any] = [[n * 700] * (n % 4) or f"filtered:because {n % 3}" for n in range(30)]
    written(path, ("main", samples_of(*items)))
    yield path.read_bytes()
    written(path, ("main", one_each(*range(40))), ("more", one_each(7)))
    yield path.read_bytes()


def _block_seeds() -> Iterator[bytes]:
    yield encode_block(samples_of([1, 2], "filtered:no", [300]))
    yield encode_block(one_each(*range(20)))
    yield encode_block(one_each(1, 2)._replace(measured=np.array([[1, 300, 0], [2, 70_000, 0]])))


def _pem(data: bytes) -> None:
    """As a certificate, as DER, and as the files of a node: never with a password asked for."""
    for read in (validity, validity_of_der):
        with contextlib.suppress(ValueError):
            read(data)
    certificate, key = _pair()
    found = _file("found.pem", data)
    found.chmod(0o600)
    refused: list[PenstockError] = []
    for cert, private in ((found, key), (certificate, found)):
        try:
            NodeTls(TlsSettings(cert=str(cert), key=str(private)), _folder())
        except PenstockError as error:
            refused.append(error)
    if len(refused) == 2:  # it is neither
        raise refused[0]


@functools.cache
def _pair() -> tuple[Path, Path]:
    pair = Authority(_folder()).sign("good")
    return Path(pair.cert), Path(pair.key)


def _pem_seeds() -> Iterator[bytes]:
    import ssl

    for path in _pair():
        yield path.read_bytes()
    yield ssl.PEM_cert_to_DER_cert(_pair()[0].read_text())


_PLACES = MediaPlaces(["/data/media", "s3://bucket/media"], ["https://ok.org/pics"])


def _medium(data: bytes) -> None:
    """A reference of an item, as JSON: it leads below what a job names, or nowhere."""
    try:
        said = json.loads(data)
    except RecursionError:  # of this page's own reader
        return
    found = read_reference(said, 0)
    if isinstance(found, HeldMedium):
        return
    name = found.path if isinstance(found, FileReference) else found.database
    place = _PLACES.find(name, "/data/media")
    host = urlsplit(place.path)
    if place.root == "/data/media":
        assert os.path.abspath(place.path) == place.path
        assert place.path.startswith("/data/media/")
    elif place.root:
        assert (host.scheme, host.netloc) == ("s3", "bucket")
        assert host.path.startswith("/media/")
    else:
        assert (host.scheme, host.netloc) == ("https", "ok.org")
        assert host.path.startswith("/pics/")
    is_local = place.root == "/data/media"
    assert is_local or ".." not in unquote(host.path).split("/")


def _medium_seeds() -> Iterator[bytes]:
    for reference in (
        "a/../cat.jpg",
        "file:///data/media/../secret.jpg",
        "https://ok.org/pics/a%2fcat.jpg?x=..#y",
        "https://ok.org:443/pics/../secret.jpg",
        "s3://bucket/media/%2e%2e/cat.jpg",
        "lmdb: db.lmdb::a::b",
        "data:image/png;base64,aGVsZA==",
        {"path": "../media/cat.jpg", "offset": 3, "length": 7, "dir": "x"},
        {"bytes": None, "path": "/data/media//cat.jpg"},
        {"lmdb": "/data/media/db::key"},
    ):
        yield json.dumps(reference).encode()


TARGETS: dict[str, Target] = {
    "frame": Target(_frame, _frame_seeds),
    "replies": Target(_replies, _reply_seeds),
    "errors": Target(_errors, _error_seeds),
    "tokens": Target(_tokens, _token_seeds),
    "bearer": Target(_bearer, _bearer_seeds),
    "from-server": Target(_decoder(FROM_SERVER), _from_server),
    "from-worker": Target(_decoder(FROM_WORKER), _from_worker),
    "job": Target(_job, _job_seeds),
    "index": Target(_index, _index_seeds),
    "block": Target(decode_block, _block_seeds, (ValueError,)),
    "certificates": Target(_pem, _pem_seeds),
    "medium": Target(_medium, _medium_seeds, (ValueError,)),
}

__all__ = ["KEPT", "MAX_INPUT_BYTES", "TARGETS", "Target", "attempt"]
