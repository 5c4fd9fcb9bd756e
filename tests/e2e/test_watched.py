"""A real Prometheus watches a real node and a trainer: dashboards have data, alerts fire and end.

The rules are those of deploy/prometheus with shorter times: windows of 2 s for minutes and hours.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

import videos
from certificates import Authority
from harness import Server, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.common.metric_table import BOARDS
from penstock.server.access.callers import hash_of
from penstock.wire.errors import LogDiverged, PenstockError, StaleGeneration
from ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"

WINDOW_S = 2

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="NOT RUN: prometheus is not installed (Debian: apt install prometheus)",
)

ROLES = """
import itertools, pathlib, time
from penstock.server.roles import BatchCollator

def whole(row):
    return {"input_ids": [1] * row["n"]}

def picky(row):
    if row["n"] % 3 == 1:
        raise ValueError("not this one")
    return {"n": row["n"]}

class Counting(BatchCollator):
    version = 1
    calls = itertools.count()

    def collate(self, rows, context):
        return {"calls": next(self.calls)}

def waits(row):
    while not (pathlib.Path(__file__).parent / "go").exists():
        time.sleep(0.01)
    return {"n": row["n"]}
"""

ITEMS = {"type": "items", "items": [{"n": n} for n in range(1, 30)]}
SIMPLE = {"lanes": 1, "source": ITEMS, "batch_size": 1}
ROWS = {"type": "parquet", "files": "rows.parquet"}
JOBS: dict[str, Any] = {
    "mixed": {
        "lanes": 2,
        "sources": {"web": ROWS, "code": ROWS},
        "distributor": {
            "type": "mixture",
            "weights_by": "tokens",
            "parts": {"web": {"weight": 3}, "code": {"weight": 1}},
        },
        "processor": {"function": "./roles.py:whole"},
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 4},
        "collator": {"type": "packed", "pad_to": 64},
    },
    "bad": {**SIMPLE, "processor": {"function": "./roles.py:picky"}},
    "picky": {
        **SIMPLE,
        "seed": 1,
        "processor": {"function": "./roles.py:picky"},
        "on_item_error": "quarantine",
    },
    "slow": {**SIMPLE, "processor": {"function": "./roles.py:waits"}},
    "films": {
        **SIMPLE,
        "source": {"type": "items", "items": [{"video": "film.mp4"}]},
        "media": {"dir": "films"},
        "processor": {"type": "video", "nframes": 4, "frame_bytes": 0},
        "collator": "lists",
    },
}

LATE, TOKEN = "pst_late-of-the-test", "pst_of-the-test"

FAULTS = {
    "PenstockWorkersDie",
    "PenstockReaderWaits",
    "PenstockStarved",
    "PenstockBatchFailed",
    "PenstockQuarantineGrows",
    "PenstockStoreAway",
    "PenstockStoreFails",
    "PenstockFenced",
}
"""What is made to fire in the first test, before the node itself is gone."""

LOWER = (
    (r"> 10e9", "> 1e3"),
    (r"(commit_duration_seconds_bucket\[\w+\]\)\)\)) > 1$", r"\1 > 1e-9"),
)
"""Rules that speak of amounts which no test reads and of disks that no test has: what is read again
of a few rows, and any commit at all, are made to be enough."""


class Prometheus:
    """A Prometheus that scrapes a node and a trainer every 200 ms.

    Args:
        folder: Where its files go.
        node: The address of the node's metrics.
        trainer: The address of the trainer's.
        lower: Further patterns in the rules, and what stands there instead.
    """

    def __init__(
        self, folder: Path, node: str, trainer: str, lower: tuple[tuple[str, str], ...]
    ) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text()
        rules = re.sub(r"\[\d+[mh]\]", f"[{WINDOW_S}s]", rules)
        rules = re.sub(r"\[1h:1m\]", f"[{WINDOW_S}s:200ms]", rules)
        rules = re.sub(r"for: \d+[mh]", "for: 300ms", rules)
        rules = re.sub(r"(_(stalled|away)_seconds\)) > \d+", r"\1 > 1", rules)
        for pattern, other in lower:
            rules, count = re.subn(pattern, other, rules, flags=re.MULTILINE)
            assert count == 1, pattern
        (folder / "alerts.yaml").write_text(rules)
        scrape = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text())
        scrape["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
        [penstock] = scrape["scrape_configs"]
        penstock["static_configs"] = [{"targets": [node]}]
        scrape["scrape_configs"].append(
            {"job_name": "trainers", "static_configs": [{"targets": [trainer]}]}
        )
        (folder / "scrape.yaml").write_text(yaml.safe_dump(scrape))
        self.process = subprocess.Popen(
            [
                "prometheus",
                *("--config.file=scrape.yaml", f"--web.listen-address={self.address}"),
                # Debian's own default is one folder for all.
                "--storage.tsdb.path=data",
            ],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        # Its pipe must not fill up.
        self._lines: list[str] = []
        self._reading = threading.Thread(target=self._collect, daemon=True)
        self._reading.start()

    def _collect(self) -> None:
        assert self.process.stderr is not None
        self._lines.extend(self.process.stderr)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the samples of an expression, numbers alone."""
        url = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as reply:
                found = json.loads(reply.read())["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it reads its own files still
                return []
            raise AssertionError(f"{query}: {error.read().decode()}") from error
        except OSError:
            assert self.process.poll() is None, "".join(self._lines)
            return []
        return [each for each in found if each["value"][1] != "NaN"]

    def firing(self) -> set[str]:
        """Return the alerts that fire now."""
        found = self.ask('ALERTS{alertstate="firing"}')
        return {each["metric"]["alertname"] for each in found}

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self._reading.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextlib.contextmanager
def watched(
    folder: Path,
    jobs: dict[str, Any],
    lower: tuple[tuple[str, str], ...] = (),
    **settings: Any,
) -> Iterator[tuple[Server, Prometheus, CollectorRegistry]]:
    """Serve jobs, scraped by a Prometheus, beside the registry of a trainer."""
    pq.write_table(pa.table({"n": [5, 9, 14, 20] * 16}), folder / "rows.parquet")
    (folder / "roles.py").write_text(ROLES)
    (folder / "films").mkdir()
    (folder / "films" / "film.mp4").write_bytes(videos.film("H.264"))
    port = free_port()
    file = write_job_file(
        folder / "jobs.yaml", jobs, metrics=f"127.0.0.1:{port}", snapshot_seconds=0, **settings
    )
    registry = CollectorRegistry()
    with serving(file) as node:
        server, thread = start_http_server(0, "127.0.0.1", registry)
        trainer = f"127.0.0.1:{server.server_port}"
        prometheus = Prometheus(folder, f"127.0.0.1:{port}", trainer, lower)
        try:
            yield node, prometheus, registry
        finally:
            prometheus.close()
            server.shutdown()
            server.server_close()
            thread.join()


@contextlib.contextmanager
def training(node: Server, registry: CollectorRegistry) -> Iterator[None]:
    """Read and commit all the while, in a thread."""
    over = threading.Event()

    def train() -> None:
        while not over.is_set():
            with (
                contextlib.suppress(PenstockError),
                Loader(
                    node.address,
                    "mixed",
                    group="run",
                    rank=0,
                    world_size=1,
                    metrics=registry,
                    deadline_s=5,
                    as_numpy=True,
                ) as loader,
            ):
                for step, _ in enumerate(loader):
                    if over.wait(0.002):
                        return
                    if step % 20 == 19:
                        loader.commit()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def expressions(board: str) -> dict[str, str]:
    """Return the expressions of a dashboard by title, as Grafana sends them for all values."""
    panels = json.loads((DEPLOY / "grafana" / f"{board}.json").read_text())["panels"]
    found = {}
    for panel in panels:
        for target in panel.get("targets", []):
            expr = re.sub(r"\$(instance|penstock_job|group)\b", ".*", target["expr"])
            expr = expr.replace("$__rate_interval", f"{WINDOW_S}s").replace("$__range", "60s")
            assert "$" not in expr, expr
            found[f"{panel['title']} {target['refId']}"] = expr
    return found


@needs_prometheus
def test_dashboards_have_data_and_alerts_fire_and_end(tmp_path: Path) -> None:
    """Faults are made and mended, then the node is killed and started again."""
    with (
        watched(tmp_path, JOBS, workers=2) as (node, prometheus, registry),
        training(node, registry),
    ):
        read = functools.partial(Loader, node.address, as_numpy=True, rank=0, world_size=1)
        next(iter(read("mixed")))

        # A job that waits, two that fail, an attempt that is over.
        slow, picky, bad = read("slow"), read("picky"), read("bad", deadline_s=60)
        waiting = threading.Thread(target=lambda: next(iter(slow)))
        waiting.start()
        old = read("mixed", group="twice")
        next(iter(old))
        new = read("mixed", group="twice", attempt="the newer one")
        next(iter(new))
        fired: set[str] = set()

        def fires(*names: str) -> bool:
            fired.update(prometheus.firing())
            return fired.issuperset(names)

        def go_on() -> bool:
            """Do once more what is refused, and look."""
            with pytest.raises(PenstockError):
                for _ in bad:
                    pass
            with pytest.raises(StaleGeneration):
                old.commit(1)
            return fires("PenstockBatchFailed", "PenstockFenced")

        eventually(lambda: fires("PenstockReaderWaits"), 60, "a reader is owed a batch")
        (tmp_path / "go").touch()
        waiting.join()
        eventually(go_on, 60, "what failed is told")
        batches = iter(picky)
        eventually(
            lambda: next(batches) is not None and fires("PenstockQuarantineGrows"), 60, "verdicts"
        )

        films = iter(read("films"))
        missing = {
            (board, name): each for board in BOARDS for name, each in expressions(board).items()
        }

        def all_have_data() -> bool:
            new.checkpoint("here")  # one of the calls that are not commits
            next(films)
            for place, expr in list(missing.items()):
                if prometheus.ask(expr):
                    del missing[place]
            return not missing

        with contextlib.suppress(AssertionError):
            eventually(all_have_data, 30, "each panel has data")
        assert not missing

        # Its store is moved away, and its workers die.
        away = tmp_path / "elsewhere"
        away.mkdir()
        for file in tmp_path.glob("penstock.db*"):
            file.rename(away / file.name)

        def worsen() -> bool:
            for pid in node.worker_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return fires("PenstockWorkersDie", "PenstockStoreAway", "PenstockStoreFails")

        eventually(worsen, 60, "workers die, and the store is away")
        for file in away.iterdir():
            file.rename(tmp_path / file.name)
        for loader in (slow, picky, bad, old, new):
            loader.close()

        # A lane whose item killed three workers stays stopped until the node starts again.
        node.kill()
        eventually(lambda: fires("PenstockNodeDown"), 60, "the node is down")
        assert fired >= FAULTS | {"PenstockNodeDown"}
        node.start()
        with contextlib.suppress(AssertionError):
            eventually(lambda: not prometheus.firing(), 60, "all alerts have ended")
        assert prometheus.firing() == set()


@needs_prometheus
def test_impure_roles_and_what_is_slow_alert_and_end(tmp_path: Path) -> None:
    """A batch that differs when it is made twice, row groups decoded for each row, and commits."""
    pq.write_table(
        pa.table({"n": list(range(640)), "text": ["many words " * 50] * 640}),
        tmp_path / "groups.parquet",
        row_group_size=64,
    )
    groups = {"type": "parquet", "files": "groups.parquet", "cache_bytes": 1}
    jobs = {
        "impure": {
            "lanes": 4,
            "source": ITEMS,
            "batcher": {"type": "simple", "batch_size": 1},
            "collator": {"type": "./roles.py:Counting"},
        },
        "again": {
            "lanes": 1,
            "source": groups,
            "distributor": {"type": "map", "shuffle": "blocks", "window_blocks": 5},
            "batch_size": 8,
        },
    }
    with watched(tmp_path, jobs, LOWER, workers=1) as (node, prometheus, _):
        read = functools.partial(Loader, node.address, as_numpy=True, rank=0, world_size=1)
        fired: set[str] = set()
        with read("again", group="run") as again, read("impure", prefetch=64) as impure:
            batches = iter(again)

            def go_on() -> bool:
                next(batches)
                again.commit()
                fired.update(prometheus.firing())
                return fired >= {"PenstockReadsAgain", "PenstockCommitSlow"}

            eventually(go_on, 60, "blocks are read again, and commits take time")
            with pytest.raises(LogDiverged, match="made twice"):
                for _ in impure:
                    pass
            eventually(lambda: "PenstockImpure" in prometheus.firing(), 60, "what differed is told")
        eventually(lambda: not prometheus.firing(), 60, "all alerts have ended")


@needs_prometheus
def test_certificates_and_refused_calls_alert_and_end(tmp_path: Path) -> None:
    """A certificate about to expire is renewed; callers without a token, and with the wrong one."""
    ca = Authority(tmp_path)
    tokens = tmp_path / "tokens.yaml"

    def let_in(**scopes: str) -> None:
        tokens.write_text(
            yaml.safe_dump(
                {
                    "tokens": [
                        {"name": name, "sha256": hash_of(token), "scopes": [scopes[name]]}
                        for name, token in (("run", TOKEN), ("late", LATE))
                        if name in scopes
                    ]
                }
            )
        )

    let_in(run="read")
    settings = {"tls": ca.sign()._asdict(), "tokens": "tokens.yaml"}
    with watched(tmp_path, {"plain": SIMPLE}, **settings) as (node, prometheus, _):

        def call(token: str | None) -> None:
            """Ask for what needs the scope `commit`."""
            shown = () if token is None else (("authorization", f"Bearer {token}"),)
            method = channel.unary_unary("/penstock.wire.v1.Cursors/Commit")
            with pytest.raises(grpc.RpcError) as caught:
                method(b"", timeout=60, metadata=shown)
            assert caught.value.code() in (
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            )

        def refused(token: str | None) -> set[tuple[str, str]]:
            """Be refused 20 times, and return whose calls are told of: name and code."""
            for _ in range(20):
                call(token)
            return {
                (each["metric"].get("token", ""), each["metric"]["code"])
                for each in prometheus.ask(
                    'ALERTS{alertname="PenstockCallsRefused", alertstate="firing"}'
                )
            }

        def tells(*names: str) -> bool:
            return prometheus.firing() == set(names)

        eventually(
            lambda: bool(prometheus.ask("penstock_certificate_expires_seconds > 8 * 86400")),
            60,
            "a certificate of a month is scraped",
        )
        assert tells()

        ca.sign(ends=timedelta(days=2))
        eventually(lambda: tells("PenstockCertificateExpires"), 60, "a certificate of two days")
        ca.sign(ends=timedelta(hours=1))
        eventually(
            lambda: tells("PenstockCertificateExpires", "PenstockCertificateLastDay"),
            60,
            "a certificate of an hour",
        )
        ca.sign()
        eventually(tells, 60, "it is renewed")

        credentials = grpc.ssl_channel_credentials(Path(ca.path).read_bytes())
        with grpc.secure_channel(node.address, credentials) as channel:
            eventually(
                lambda: ("", "unauthenticated") in refused(None), 60, "calls without a token"
            )
            eventually(tells, 60, "nobody calls")
            let_in(run="read", late="read")
            node.events("the file of tokens has changed", 1)
            eventually(
                lambda: ("late", "forbidden") in refused(LATE), 60, "calls without the scope"
            )
            eventually(tells, 60, "nobody calls")
