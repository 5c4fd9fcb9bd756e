"""Verdicts and snapshots that come late: what readers were given never moves, or they are told."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from penstock.client import Loader
from penstock.client.cli import main
from penstock.wire.errors import BadItem, LaneStarved, LogDiverged

ROLES = """
import pathlib

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path({folder!r})


class Ages(RawItemProcessor):
    \"\"\"The item that a file names fails.\"\"\"

    def process(self, raw, context):
        aged = HERE / "aged"
        if aged.exists() and raw["x"] == int(aged.read_text()):
            raise ValueError("the file went bad")
        return raw


class Bad(RawItemProcessor):
    \"\"\"Most items fail when they leave the pool.\"\"\"

    one_to_one = True

    def process(self, raw, context):
        if raw["x"] >= 2:
            raise ValueError(f"number {raw['x']}")
        return raw
"""


def make_file(folder: Path, *, lanes: int = 1, **job: Any) -> Path:
    """Write a job of 40 items, two per batch, of which one fails once `aged` names it."""
    (folder / "roles.py").write_text(ROLES.replace("{folder!r}", repr(str(folder))))
    one = {
        "lanes": lanes,
        "batches_per_step": lanes,
        "on_item_error": "quarantine",
        "source": {"type": "items", "items": [{"x": number} for number in range(40)]},
        "distributor": {"type": "map", "shuffle": "none"},
        "processor": {"type": "./roles.py:Ages"},
        "batch_size": 2,
        **job,
    }
    return write_job_file(folder / "jobs.yaml", {"job": one})


def train(target: str, steps: int, group: str = "run") -> list[list[int]]:
    """Read and commit some steps of a group."""
    got: list[list[int]] = []
    with Loader(target, "job", group=group, as_numpy=True, deadline_s=60) as loader:
        for step in loader.steps():
            got += [batch["x"].tolist() for batch in step]
            loader.commit()
            if len(got) >= steps:
                return got
    raise AssertionError("the job ended")


def test_an_item_that_fails_later_stops_its_lane_and_loses_no_other(tmp_path: Path) -> None:
    """Below what a committed run was given nothing may move: the item is named, none is lost."""
    with serving(make_file(tmp_path, snapshot_every=1000)) as server:
        assert train(server.address, 6) == [[2 * n, 2 * n + 1] for n in range(6)]
        server.kill()
        (tmp_path / "aged").write_text("2")
        server.start()

        with pytest.raises(LogDiverged, match=r"main\[2\]") as caught:
            train(server.address, 1)
        assert caught.value.fields["lane"] == 0
        with pytest.raises(LogDiverged):
            train(server.address, 1, "another")
        server.events("a lane stopped", at_least=1, code="log_diverged")

        (tmp_path / "aged").unlink()  # repaired: the same log goes on
        server.kill()
        server.start()
        assert train(server.address, 2) == [[12, 13], [14, 15]]


@pytest.mark.parametrize("group", ["run", None])
def test_a_reader_that_goes_on_after_a_kill_was_given_what_is_below(
    tmp_path: Path, runtime: Path, group: str | None
) -> None:
    """Its node has no memory of it, and nothing was committed: the reader itself says so."""
    file = make_file(tmp_path, snapshot_every=1000)
    options: dict[str, Any] = {"group": group, "as_numpy": True, "deadline_s": 60, "prefetch": 2}
    with serving(file, "--listen", f"unix:{runtime}/n.sock") as server:
        with Loader(server.address, "job", **options) as loader:
            reading = iter(loader)
            got = [next(reading)["x"].tolist() for _ in range(6)]
            server.kill()
            (tmp_path / "aged").write_text("2")
            server.start()

            with pytest.raises(LogDiverged, match=r"main\[2\]"):
                got += [next(reading)["x"].tolist() for _ in range(20)]
        assert got == [[2 * n, 2 * n + 1] for n in range(6)]


@pytest.mark.parametrize("group", ["run", None])
def test_a_state_without_a_group_says_what_was_given(tmp_path: Path, group: str | None) -> None:
    """Within a step, too: its batches were given one by one."""
    file = make_file(tmp_path, snapshot_every=1000)
    options: dict[str, Any] = {"group": group, "as_numpy": True, "deadline_s": 60}
    with serving(file) as server:
        with Loader(server.address, "job", batches_per_step=4, **options) as loader:
            got = [batch["x"].tolist() for batch, _ in zip(loader, range(6), strict=False)]
            state = loader.state_dict()
        server.kill()
        (tmp_path / "aged").write_text("10")  # in the sixth batch
        server.start()

        with Loader(server.address, "job", batches_per_step=4, start="state", **options) as loader:
            loader.load_state_dict(state)
            with pytest.raises(LogDiverged, match=r"main\[10\]"):
                next(iter(loader))
    assert got[5] == [10, 11]


@pytest.mark.parametrize("target", ["server", "local"])
def test_a_run_that_resumes_from_a_state_was_given_what_is_below(
    tmp_path: Path, target: str
) -> None:
    """It has never committed; its state says what it was given, and nothing of that may move."""
    file = make_file(tmp_path, snapshot_every=1000)
    options: dict[str, Any] = {"group": "run", "as_numpy": True, "deadline_s": 60}
    with serving(file) as server:
        with Loader(server.address, "job", **options) as loader:
            got = [batch["x"].tolist() for batch, _ in zip(loader, range(6), strict=False)]
            state = loader.state_dict()
        assert got == [[2 * n, 2 * n + 1] for n in range(6)]
        server.kill()
        (tmp_path / "aged").write_text("2")
        if target == "server":
            server.start()
        where = server.address if target == "server" else f"local:{file}"

        with Loader(where, "job", start="state", **options) as loader:
            loader.load_state_dict(state)
            with pytest.raises(LogDiverged, match=r"main\[2\]"):
                next(iter(loader))


@pytest.mark.parametrize("target", ["server", "local"])
def test_an_item_that_fails_later_is_left_out_above_what_was_given(
    tmp_path: Path, target: str
) -> None:
    """It is fetched and processed ahead of its draw; that alone moves nothing, and is no alarm."""
    file = make_file(tmp_path, snapshot_every=1000)
    with serving(file) as server:
        train(server.address, 6)
        server.kill()
        (tmp_path / "aged").write_text("14")
        if target == "server":
            server.start()
        where = server.address if target == "server" else f"local:{file}"
        assert train(where, 3) == [[12, 13], [15, 16], [17, 18]]
        if target == "server":
            server.kill()
        (tmp_path / "aged").write_text("15")

        with pytest.raises(LogDiverged, match=r"main\[15\]"):
            train(f"local:{file}", 1)


def items_of(server: Server, lane: int, offsets: int) -> list[list[int]]:
    """Read a lane from its beginning, without a group."""
    reader = server.read("job", lanes=[lane], batches_per_step=2, horizon=2 * offsets)
    return [[one.index for one in got.header.samples] for got in reader.take(offsets)]


def test_a_verdict_for_every_epoch_moves_nothing_in_a_lane_that_was_ahead(tmp_path: Path) -> None:
    """What lane 1 was given with the item it keeps at every replay; above, the item is out."""
    file = make_file(tmp_path, lanes=2, source=_numbers(5), snapshot_every=1000)
    with serving(file) as server:
        first = items_of(server, 1, 20)
        assert any(3 in batch for batch in first)
        (tmp_path / "aged").write_text("3")
        assert not any(3 in batch for batch in items_of(server, 0, 10))
        verdict = server.events("item quarantined", at_least=1)[0]
        assert (verdict["number"], verdict["epochs"]) == (1, "all")
        (tmp_path / "aged").unlink()

        again = items_of(server, 1, 80)
        server.kill()
        server.start()

        assert again[:20] == first
        assert not any(3 in batch for batch in again[60:])
        assert items_of(server, 1, 80) == again


def test_every_epoch_has_one_verdict_for_an_item(tmp_path: Path) -> None:
    """Twelve epochs, one bad item: as many verdicts as lanes at most, and not one per epoch."""
    (tmp_path / "aged").write_text("3")
    with serving(make_file(tmp_path, lanes=2, source=_numbers(5))) as server:
        got = server.read("job", batches_per_step=2, horizon=60).take(60)

        epochs = {sample.epoch for one in got for sample in one.header.samples}
        assert len(epochs) > 20
        assert 1 <= len(server.events("item quarantined", at_least=1)) <= 2


def test_one_budget_holds_for_all_lanes_and_restarts(tmp_path: Path) -> None:
    """With every item bad: so many are left out, then whoever meets one more is told, for ever."""
    file = make_file(
        tmp_path,
        lanes=12,
        max_quarantined=5,
        batch_size=1,
        processor={"type": "./roles.py:Bad"},
    )
    settings = file.read_text().replace("metrics: 'off'", "metrics: 127.0.0.1:0")
    file.write_text(settings)
    with serving(file) as server:
        for _ in range(2):
            with pytest.raises(BadItem, match="max_quarantined = 5 items") as caught:
                server.read("job", batches_per_step=12, horizon=120).take(120)
            assert caught.value.fields["reason"] == "quarantine budget spent"
            [ready] = server.events("ready")
            with urllib.request.urlopen(f"http://{ready['metrics']}/metrics", timeout=10) as page:
                lines = page.read().decode().splitlines()
            found = [line for line in lines if line.startswith("penstock_quarantined_items{")]
            [series] = [line for line in found if not line.endswith(" 0.0")]
            assert series.endswith(" 5.0")
            assert 'reason="ValueError"' in series
            assert 'stage="exit"' in series
            assert 'source="main"' in series
            server.kill()
            server.start()
        assert not server.events("item quarantined")


def test_a_lane_of_nothing_but_padding_stops_on_a_node(tmp_path: Path) -> None:
    """Whatever the budget; the batches before that come with the keys of real ones."""
    bad = {"processor": {"type": "./roles.py:Bad"}, "source": _numbers(200), "batch_size": 1}
    file = make_file(tmp_path, **bad)
    with serving(file) as server:
        reader = server.read("job", batches_per_step=1, horizon=150)
        got = []
        with pytest.raises(LaneStarved, match="nothing but padding"):
            got.extend(reader)
        names = {tuple(value.name for value in one.header.values) for one in got}
        assert names <= {("x",)}
        assert all(one.header.padding for one in got[2:])


def _numbers(count: int) -> dict[str, Any]:
    return {"type": "items", "items": [{"x": number} for number in range(count)]}


def test_people_see_what_is_left_out_and_let_it_in_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`list`, `export`, `release`: in what is planned from there on, never in what was given."""
    (tmp_path / "aged").write_text("3")

    def quarantine(*rest: str) -> str:
        assert main(["quarantine", server.address, "job", *rest]) == 0
        return capsys.readouterr().out

    with serving(make_file(tmp_path, source=_numbers(5), snapshot_every=1000)) as server:
        assert "no item of job 'job'" in quarantine("list")
        first = items_of(server, 0, 20)
        assert not any(3 in batch for batch in first)
        [listed] = json.loads(quarantine("list", "--json"))
        assert (listed["source"], listed["index"], listed["every_epoch"]) == ("main", 3, True)
        assert "ValueError: the file went bad" in quarantine("list")
        assert quarantine("export") == "main\t3\tall\tdraw\tValueError: the file went bad\n"
        (tmp_path / "aged").unlink()

        [released] = json.loads(quarantine("release", "main[3]", "--json"))
        assert released["released"] >= 20
        assert f"from offset {released['released']:,} of every lane" in quarantine("release", "3")
        assert quarantine("export") == ""
        again = items_of(server, 0, released["released"] + 20)
        server.kill()
        server.start()

        assert again[:20] == first
        assert not any(3 in batch for batch in again[: released["released"]])
        assert any(3 in batch for batch in again[released["released"] :])
        assert items_of(server, 0, len(again)) == again
        assert main(["quarantine", server.address, "job", "release", "4"]) == 1
        assert "[unknown_verdict]" in capsys.readouterr().err
        assert main(["quarantine", server.address, "job", "release", "other[4]"]) == 2


@pytest.mark.parametrize("text", ["", "main", "[3]", "main[-3]", "main[3", "9" * 30])
def test_what_is_no_item_is_said_so(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quarantine", "127.0.0.1:1", "job", "release", text])
    assert "write SOURCE[INDEX]" in capsys.readouterr().err
