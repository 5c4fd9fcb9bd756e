"""Passwords and signatures in URLs, and options of storage: nobody is told, nothing keeps them.

A web server stands for the storage of a job whose URL has a user, a password and a signed query.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import call_command, serving, write_job_file
from penstock.client import Loader
from penstock.server.sources import JsonlSource
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import InvalidJob
from penstock.wire.sent_errors import decode_error, encode_error

SECRETS = ("wordOfMe", "signatureOfMe", "keyOfMe")
LINES = "".join(json.dumps({"input_ids": [n, n + 1]}) + "\n" for n in range(40)).encode()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        found = "/data.jsonl" in self.path and "signatureOfMe" in self.path
        wanted = self.headers.get("Range", "bytes=0-")
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        data = LINES[int(first) : int(last or len(LINES)) + 1] if found else b""
        self.send_response(404 if not found else 206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        if found:
            self.send_header("ETag", '"1"')
            about = f"bytes {first}-{int(first) + len(data) - 1}/{len(LINES)}"
            self.send_header("Content-Range", about)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """The URL of a web server's files, with credentials."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield f"http://me:wordOfMe@127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    serving.join()
    server.server_close()


def job(storage: str, file: str = "data.jsonl", **source: Any) -> dict[str, Any]:
    return {
        "lanes": 2,
        "batches_per_step": 2,
        "source": {
            "type": "jsonl",
            "files": f"{storage}/{file}?X-Signature=signatureOfMe&v=1",
            **source,
        },
        "batcher": {"type": "simple", "batch_size": 2},
        "collator": {"type": "padded"},
    }


def test_a_long_text_is_searched_once() -> None:
    """An error may quote a whole file; a scheme is short, so each letter is looked at few times."""
    text = "x" * (1 << 20) + " https://me:word@host/a"
    started = time.process_time()

    assert without_credentials(text).endswith(" https://***@host/a")
    assert time.process_time() - started < 10.0


@pytest.mark.parametrize("part", ["a://b:c", "a://b?c=,,,,", "a://b?c", "a://b:1@", "://"])
def test_nothing_makes_the_search_long(part: str) -> None:
    text = part * ((1 << 18) // len(part))
    started = time.process_time()

    without_credentials(text)

    assert time.process_time() - started < 10.0


def check_hidden(text: str, what: str) -> None:
    for secret in SECRETS:
        assert secret not in text, f"{what} tells {secret}: {text}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:word@host/a?sig=x&v=2", "https://***@host/a?sig=***&v=***"),
        ("['s3://key:word@bucket/a', 'b']", "['s3://***@bucket/a', 'b']"),
        ("https://token@host/a, and more", "https://***@host/a, and more"),
        ("https://me:w@rd@host/a", "https://***@host/a"),
        ("a::https://me:word@host/a", "a::https://***@host/a"),
        ("abfs://container@account/a", "abfs://container@account/a"),
        ("abfs://key:word@account/a", "abfs://***@account/a"),
        ("s3://bucket/a@b/c?.jsonl", "s3://bucket/a@b/c?.jsonl"),
        ("me@host: no URL?a=b", "me@host: no URL?a=b"),
        ("s3://key:wo/rd+@bucket/a", "s3://***@bucket/a"),
        ("s3://key:/wo/rd@bucket/a", "s3://***@bucket/a"),
        ("s3://key:wo/r@d@bucket/a", "s3://***@bucket/a"),
        ("https://me:wo'rd@host/a", "https://***@host/a"),
        ("https://me:wo?r#d@host/a", "https://***@host/a"),
        ("https://me:w<r|d@host/a", "https://***@host/a"),
        ("https://me:5word@host/a", "https://***@host/a"),
        ("https://me:55@host/a", "https://***@host/a"),
        ("http://host:80/a@b http://host:80, c@d", "http://host:80/a@b http://host:80, c@d"),
        ("['http://host:80','c@d']", "['http://host:80','c@d']"),
        ("/jobs/http:/me:word@host/a", "/jobs/http:/***@host/a"),
        ("unix:/run/a@b.sock", "unix:/run/a@b.sock"),
        ("https://host/a?word", "https://host/a?***"),
        ("https://host/a?word&v=1, more", "https://host/a?***&v=***, more"),
        ("https://host/a?sig=wo,r;d}e==", "https://host/a?sig=***"),
        ("(https://host/a?sig=word)", "(https://host/a?sig=***)"),
        ("https://host/a#sig=word", "https://host/a#sig=***"),
        ("s3://bucket/part-?.parquet", "s3://bucket/part-?.parquet"),
    ],
)
def test_a_url_is_shown_without_its_credentials(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
    raised = InvalidJob(text, pattern=text)
    assert raised.message == shown
    assert raised.fields["pattern"] == shown
    sent = decode_error(encode_error(raised))
    assert (sent.message, sent.fields) == (shown, {"pattern": shown})


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("check", "main"),
        ("show", "main", "--step", "0"),
        ("show", "main", "--step", "0", "--json"),
    ],
)
def test_commands_tell_no_credentials(
    storage: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Neither where a job is right, nor where its files are missing."""
    right = write_job_file(tmp_path / "right.yaml", {"main": job(storage)})
    wrong = write_job_file(tmp_path / "wrong.yaml", {"main": job(storage, "none.jsonl")})

    for file in (right, wrong):
        name, *flags = command
        ended = call_command("penstockd", name, str(file), *flags, folder=tmp_path)

        assert (ended.returncode == 0) == (file is right), ended.stderr
        check_hidden(ended.stdout + ended.stderr, f"penstockd {name}")
        if file is wrong:
            assert "http://***@127.0.0.1" in ended.stderr


def test_a_job_file_is_made_of_a_signed_url(storage: str, tmp_path: Path) -> None:
    """The query says nothing of the kind of its files; the job file alone has the credentials."""
    url = job(storage)["source"]["files"]

    ended = call_command("penstockd", "init", url, "--output", "new.yaml", folder=tmp_path)

    assert ended.returncode == 0, ended.stderr
    check_hidden(ended.stdout + ended.stderr, "penstockd init")
    assert yaml.safe_load((tmp_path / "new.yaml").read_text())["jobs"]["main"]["source"] == {
        "type": "jsonl",
        "files": url,
    }


def test_a_new_signature_is_no_other_job(storage: str) -> None:
    """It is no part of a file's name, which the log id knows; nor are two of them confused."""
    signed = [f"{storage}/data.jsonl?X-Signature=signatureOfMe&v={n}" for n in (1, 2)]

    first, other = (JsonlSource(url) for url in signed)
    both = JsonlSource(signed)

    assert first.fingerprint() == other.fingerprint()
    assert [file.name for file in both.file_set.files] == ["data.jsonl", "data.jsonl"]
    assert len(both) == 80


def test_a_node_tells_and_keeps_no_credentials(storage: str, tmp_path: Path) -> None:
    """In its output, its metrics, its status, its errors and its store; in no index of sizes."""
    options = {"client_kwargs": {"headers": {"X-Key": "keyOfMe"}}}
    file = write_job_file(
        tmp_path / "job.yaml",
        {"main": job(storage, storage_options=options)},
        store="sqlite:///store.db",
        metrics="127.0.0.1:0",
        log_level="debug",
    )

    with serving(file) as server:
        loader = Loader(server.address, "main", group="run", rank=0, world_size=1)
        steps = iter(loader)
        next(steps)
        loader.close()
        for command in (["ping"], ["top", "--once"], ["cursors", "main"], ["quarantine", "main"]):
            name, *more = command
            told = call_command("penstock", name, server.address, *more, folder=tmp_path)
            check_hidden(told.stdout + told.stderr, f"penstock {command}")
        [ready] = [json.loads(line) for line in server.lines if '"metrics"' in line][:1]
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=60) as answer:
            check_hidden(answer.read().decode(), "/metrics")
    check_hidden("".join(server.lines), "its output")
    with contextlib.closing(sqlite3.connect(tmp_path / "store.db")) as store:
        check_hidden("\n".join(store.iterdump()), "its store")
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != file:
            check_hidden(path.read_bytes().decode("latin-1"), str(path))


def test_an_index_of_sizes_has_no_credentials(storage: str, tmp_path: Path) -> None:
    file = write_job_file(tmp_path / "job.yaml", {"main": job(storage)})
    ended = call_command(
        "penstockd", "index", str(file), "main", "--output", "sizes.idx", folder=tmp_path
    )

    assert ended.returncode == 0, ended.stderr
    check_hidden(ended.stdout + ended.stderr, "penstockd index")
    check_hidden((tmp_path / "sizes.idx").read_bytes().decode("latin-1"), "the index")


@pytest.mark.parametrize("options", ["keyOfMe", ["keyOfMe"], 5])
def test_options_that_are_no_map_are_not_echoed(storage: str, tmp_path: Path, options: Any) -> None:
    """Also of a plan, and where they are set on the command line."""
    told = "storage_options is *** (hidden, as it may hold credentials): give keys and values"
    cases: list[tuple[dict[str, Any], list[str]]] = [
        (job(storage, storage_options=options), []),
        ({**job(storage), "plan": {"index": "a.idx", "storage_options": options}}, []),
        (job(storage), ["--set", f"main.source.storage_options={json.dumps(options)}"]),
    ]
    for section, flags in cases:
        file = write_job_file(tmp_path / "job.yaml", {"main": section})

        ended = call_command("penstockd", "check", str(file), *flags, folder=tmp_path)

        assert ended.returncode == 2
        check_hidden(ended.stdout + ended.stderr, "penstockd check")
        assert told in ended.stderr
