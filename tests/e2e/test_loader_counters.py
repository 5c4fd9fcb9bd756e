"""`Loader(metrics=...)` and spans: what a trainer's own process tells of its reading."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from harness import ENVIRONMENT, Server, serving, write_job_file
from penstock.client import Loader
from penstock.common.metric_table import METRICS, help_of
from penstock.wire.errors import InvalidRequest

WATCHED = ("wait_share", "tokens_per_s", "buffered_batches", "reconnects")

JOB = {
    "lanes": 2,
    "source": {"type": "items", "items": [{"n": n} for n in range(8)]},
    "batch_size": 2,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that all tests share."""
    file = write_job_file(tmp_path_factory.mktemp("counters") / "jobs.yaml", {"code": JOB})
    with serving(file) as node:
        yield node


def counted(registry: CollectorRegistry) -> dict[str, float]:
    """Return the samples of a registry: by name, group, rank, stage and reason."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    found = {}
    for family in families:
        for each in family.samples:
            labels = [each.labels.get(name) for name in ("group", "rank", "stage", "reason")]
            labels = [label for label in labels if label is not None]
            found[" ".join([each.name.removeprefix("penstock_loader_"), *labels])] = each.value
    return found


def test_a_registry_has_what_stats_say(server: Server) -> None:
    """With the names, kinds and texts of the table, for each rank, and for all Loaders together."""
    registry = CollectorRegistry()
    loaders = [
        Loader(
            server.address,
            "code",
            group="two",
            rank=rank,
            world_size=2,
            metrics=registry,
            as_numpy=True,
            attempt="one",
        )
        for rank in range(2)
    ]
    assert counted(registry) == {}  # nothing is known of them yet
    iterators = [iter(loader) for loader in loaders]

    for take, iterator in zip((3, 5), iterators, strict=True):
        for _ in range(take):
            next(iterator)

    found = counted(registry)
    for rank, loader in enumerate(loaders):
        stats = loader.stats()
        for name in ("batches", "padding_batches", "skipped_batches", "bytes", "samples", "tokens"):
            assert found[f"{name}_total two {rank}"] == stats[name], name
        assert found[f"reconnects_total two {rank}"] == stats["reconnects"]
        assert found[f"failovers_total two {rank} broke"] == stats["failovers"] == 0
        assert found[f"next_position two {rank}"] == stats["next_position"]
        for stage in ("network", "memory", "copy", "decode"):
            waited = found[f"wait_seconds_total two {rank} {stage}"]
            assert waited == pytest.approx(stats[f"wait_{stage}_s"])
    families = {each.name: each for each in registry.collect()}
    for name, metric in METRICS.items():
        if name.startswith("penstock_loader_"):
            family = families[name.removesuffix("_total")]
            assert (family.type, family.documentation) == (metric.kind, help_of(name))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("closes", [True, False])
def test_counters_never_decrease(server: Server, closes: bool) -> None:
    """A Loader that has ended keeps its counts, and the next one of the same rank adds to them."""
    registry = CollectorRegistry()
    for _ in range(3):
        loader = Loader(server.address, "code", as_numpy=True, metrics=registry)
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        if closes:
            loader.close()
        else:
            counted(registry)  # what a scrape has seen stays
        del loader, batches
        gc.collect()

    found = counted(registry)

    assert found["batches_total  0"] == 12
    assert "next_position  0" not in found


def test_scrapes_do_not_disturb_the_loop(server: Server) -> None:
    """Two threads scrape while batches are taken: each counts what there was."""
    registry, over = CollectorRegistry(), threading.Event()
    seen: list[list[float]] = [[] for _ in range(2)]

    def scrape(values: list[float]) -> None:
        while not over.is_set():
            values.append(counted(registry).get("batches_total  0", 0))

    threads = [threading.Thread(target=scrape, args=(values,)) for values in seen]
    with Loader(server.address, "code", as_numpy=True, metrics=registry) as loader:
        for thread in threads:
            thread.start()
        for _, _ in zip(range(100), loader, strict=False):
            pass
        over.set()
        for thread in threads:
            thread.join()

    assert all(values == sorted(values) for values in seen)
    assert counted(registry)["batches_total  0"] == 100


def test_a_registry_that_cannot_be_is_refused(server: Server) -> None:
    """With a sentence; and one that has another metric of that name says so itself."""
    with pytest.raises(InvalidRequest, match="CollectorRegistry"):
        Loader(server.address, "code", metrics="prometheus")  # type: ignore[arg-type]
    registry = CollectorRegistry()
    Counter("penstock_loader_batches", "Mine.", registry=registry)
    with pytest.raises(ValueError, match="penstock_loader_batches"):
        Loader(server.address, "code", metrics=registry)


TRACED = """
import json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class File(SpanExporter):
    def export(self, spans):
        with open(sys.path[0] + "/spans", "a") as file:
            for span in spans:
                told = {"name": span.name, "status": span.status.status_code.name}
                told |= {"trace": span.context.trace_id, "about": dict(span.attributes)}
                told["ns"] = span.end_time - span.start_time
                file.write(json.dumps(told) + "\\n")
        return SpanExportResult.SUCCESS

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(File()))
"""

TRAINER = """
import sys
import traced
from opentelemetry import trace
from penstock.client import Loader
with trace.get_tracer("mine").start_as_current_span("training"):
    with Loader(sys.argv[1], "code", group="traced", rank=0, world_size=1, as_numpy=True) as loader:
        for _, step in zip(range(50), loader):
            pass
        loader.commit()
"""

NODE = """
import sys
import traced
from penstock.server.cli import run
sys.exit(run(["serve", sys.argv[1]]))
"""


def test_streams_begins_and_commits_have_a_span_each(tmp_path: Path) -> None:
    """In the trainer and in the node; 50 batches have none."""
    pytest.importorskip("opentelemetry.sdk", reason="NOT RUN: opentelemetry-sdk is not installed")
    for name, text in (("trainer", TRAINER), ("node", NODE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.py").write_text(text)
        (tmp_path / name / "traced.py").write_text(TRACED)
    file = write_job_file(tmp_path / "jobs.yaml", {"code": JOB})
    node = subprocess.Popen(
        [sys.executable, str(tmp_path / "node" / "node.py"), str(file)],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert node.stderr is not None
        ready = next(line for line in node.stderr if '"ready"' in line)
        address = json.loads(ready)["address"]
        trainer = [sys.executable, str(tmp_path / "trainer" / "trainer.py"), address]
        subprocess.run(trainer, check=True, env=ENVIRONMENT, timeout=60)
        node.terminate()
        node.communicate(timeout=60)
    finally:
        node.kill()
        node.communicate()

    def spans(who: str) -> list[dict[str, object]]:
        lines = (tmp_path / who / "spans").read_text().splitlines()
        return [json.loads(line) for line in lines]

    mine = {str(span["name"]): span for span in spans("trainer")}
    assert sorted(mine) == ["penstock.begin", "penstock.commit", "penstock.stream", "training"]
    assert len({str(span["trace"]) for span in mine.values()}) == 1  # they are part of the user's
    about = {"penstock.job": "code", "penstock.group": "traced", "penstock.rank": 0}
    for name in ("begin", "commit", "stream"):
        found = mine[f"penstock.{name}"]
        assert about.items() <= found["about"].items()  # type: ignore[attr-defined]
    names = sorted(str(span["name"]) for span in spans("node"))
    assert names == ["penstock.node.begin", "penstock.node.commit", "penstock.node.stream"]


def test_nothing_is_imported_for_spans_or_counters(server: Server) -> None:
    """A trainer that asks for neither gets neither."""
    code = (
        "import sys\nfrom penstock.client import Loader\n"
        f"with Loader({server.address!r}, 'code', as_numpy=True) as loader: next(iter(loader))\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'opentelemetry', 'prometheus_client'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["Weights & Biases", "TensorBoard"])
def test_a_recipe_logs_what_the_loader_says(server: Server, name: str) -> None:
    """Six lines in the loop of docs/operate.md, with somebody who notes what they log."""
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    [recipe] = re.findall(rf"^{name}:\n\n```python\n(.*?)```", page, re.MULTILINE | re.DOTALL)
    logged: dict[int, dict[str, float]] = {}

    class Noting:
        """What wandb's run and TensorBoard's writer have in common here: they are told numbers."""

        def __init__(self, *_: object, **__: object) -> None: ...

        def log(self, values: dict[str, float], step: int) -> None:
            logged.setdefault(step, {}).update(values)

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            self.log({tag: value}, step)

    def train(step: Any) -> float:
        for _ in step:
            pass
        return 1.0 / (1 + int(step.index))

    with Loader(server.address, "code", mode="eval", max_steps=3, as_numpy=True) as loader:
        wandb = types.SimpleNamespace(init=Noting)
        exec(recipe, {"wandb": wandb, "SummaryWriter": Noting, "loader": loader, "train": train})

    assert len(recipe.splitlines()) == 6
    assert [logged[step]["loss"] for step in range(3)] == [1.0, 1 / 2, 1 / 3]
    assert {each for values in logged.values() for each in values} == {
        "loss",
        *(f"data/{name}" for name in WATCHED),
    }
