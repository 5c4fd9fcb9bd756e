"""The `penstock` command: what it prints, what it leaves alone, how it fails."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.client import Loader, cli
from penstock.client.commands import layout, top
from penstock.common.batch_text import batch_text
from penstock.common.programs import COMMANDS
from penstock.wire.errors import CheckpointExists
from penstock.wire.v1 import cursors_pb2, feed_pb2
from unit.relay import Relay
from unit.served import ServedNode, wait_until


@pytest.fixture
def node() -> Iterator[ServedNode]:
    with ServedNode(batches_per_step=2) as served:
        yield served


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[Any]:
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


# --- cat ---


def test_cat_prints_the_fixed_object_of_every_batch(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, "cat", node.address, "code", "--count", "3", "--json")

    assert [record["position"] for record in found] == [0, 1, 2]
    first = found[0]
    assert list(first) == [
        *("position", "step", "lane", "offset", "digest", "values", "counts", "items", "bytes"),
        "accounting",
    ]
    assert first["values"]["input_ids"] == {"kind": "tensor", "dtype": "int64", "shape": [1, 8]}
    assert first["items"] == [["corpus", 0, 0]]
    assert first["counts"] == {"samples": 2, "tokens": 10}
    assert len(first["digest"]) == 64


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        (["--steps", "2"], [0, 1, 2, 3]),
        (["--from-step", "3", "--steps", "1"], [6, 7]),
        (["--from-position", "5", "--count", "3"], [5, 6, 7]),
        (["--from-position", "5", "--steps", "1"], [5]),
        (["--rank", "1", "--world-size", "2", "--steps", "2"], [1, 3]),
        (["--batches-per-step", "3", "--from-step", "1", "--steps", "1"], [3, 4, 5]),
        (["--steps", "0"], []),
        (["--count", "0"], []),
    ],
)
def test_cat_reads_what_is_asked(
    node: ServedNode, capsys: pytest.CaptureFixture[str], options: list[str], positions: list[int]
) -> None:
    found = lines(capsys, "cat", node.address, "code", "--json", *options)

    assert [record["position"] for record in found] == positions


def test_cat_of_a_finite_job_ends_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    with ServedNode(batches=5) as node:
        assert len(lines(capsys, "cat", node.address, "code", "--json")) == 5


def test_cat_with_a_group_looks_at_its_cursor_and_disturbs_nobody(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = ["cat", node.address, "code", "--group", "run", "--steps", "2", "--json"]
    lines(capsys, *commit, "--commit")
    before = (node.group().generation, node.group().token)

    found = lines(capsys, *commit)

    assert [record["position"] for record in found] == [4, 5, 6, 7]
    assert (node.group().generation, node.group().token) == before
    assert node.group().cursor == 2


def test_cat_commits_a_row_after_every_step_that_it_has_printed(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same attempt ranks join one generation; each moves its own row."""
    for rank, steps in ((0, "3"), (1, "2")):
        found = lines(
            capsys,
            *("cat", node.address, "code", "--group", "run", "--commit", "--attempt", "a"),
            *("--rank", str(rank), "--world-size", "2", "--steps", steps, "--json"),
        )
        assert len(found) == int(steps)

    assert node.group().rows == (3, 2)
    assert node.group().generation == 1


def test_cat_commits_no_step_that_a_count_has_cut(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(
        capsys,
        *("cat", node.address, "code", "--group", "run", "--commit", "--count", "3", "--json"),
    )

    assert node.group().cursor == 1


def test_cat_for_people_has_a_line_per_batch(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "cat", node.address, "code", "--count", "2")

    assert status == 0
    assert len(out.splitlines()) == 2
    assert "step 0  lane 1:0" in out.splitlines()[1]
    assert err.startswith("# input_ids int64[1, 8], mask bool[2], ")
    assert len(err.splitlines()) == 1, "what the batches have in common is said once"


def test_cat_says_of_packed_batches_once_what_they_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of 1 to 3 documents: cu_seq_lens has another length in nearly every batch."""
    items = [{"input_ids": [7] * (1 + n % 8)} for n in range(40)]
    (tmp_path / "job.yaml").write_text(
        "jobs:\n  rows:\n    lanes: 1\n    epochs: 1\n"
        f"    source: {{type: items, items: {json.dumps(items)}}}\n"
        "    batcher: {type: next_fit, max_tokens: 8}\n    collator: {type: packed, pad_to: 8}\n"
    )

    status, out, err = run(capsys, "cat", f"local:{tmp_path / 'job.yaml'}", "rows")

    assert status == 0
    assert len(out.splitlines()) > 10
    [said] = [row for row in err.splitlines() if not row.startswith("# in all")]
    assert "cu_seq_lens_q int32[" in said


def test_options_are_not_abbreviated(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    """`--step 1` is not `--steps 1`: of `penstockd show` it means another thing."""
    with pytest.raises(SystemExit) as ended:
        run(capsys, "cat", node.address, "code", "--step", "1")

    assert ended.value.code == 2
    assert "unrecognized arguments: --step 1" in capsys.readouterr().err


def test_documents_are_shown_with_their_seams() -> None:
    batch = {
        "input_ids": np.array([[5, 6, 7, 8, 9, 0], [1, 2, 3, 4, 5, 6]]),
        "document_ids": np.array([[1, 1, 2, 2, 2, 0], [3, 3, 3, 3, 3, 3]]),
    }

    plain = batch_text(batch, None)
    decoded = batch_text(batch, lambda ids: "-".join(map(str, ids)))

    assert plain.splitlines() == [
        "--- row 0, document 1, 2 tokens ---",
        "5 6",
        "--- row 0, document 2, 3 tokens ---",
        "7 8 9",
        "--- row 0, padding, 1 tokens ---",
        "--- row 1, document 3, 6 tokens ---",
        "1 2 3 4 5 6",
    ]
    assert "7-8-9" in decoded.splitlines()
    assert batch_text({"input_ids": np.arange(40)[None]}, None).endswith(" 10 11 ...")
    assert batch_text({"n": 3}, None) == "n: 3"
    padded = {
        "input_ids": np.array([[5, 6, 0], [7, 8, 9]]),
        "attention_mask": np.array([[1, 1, 0], [1, 1, 1]]),
    }
    assert batch_text(padded, None).splitlines() == [
        "--- row 0, document 1, 2 tokens ---",
        "5 6",
        "--- row 0, padding, 1 tokens ---",
        "--- row 1, document 2, 3 tokens ---",
        "7 8 9",
    ]


def test_cat_shows_text(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "cat", node.address, "code", "--count", "1", "--text")

    assert status == 0
    assert "--- row 0, document 1, 8 tokens ---" in out


# --- cursors ---


def test_cursors_are_listed_moved_and_named(
    node: ServedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["cursors", node.address, "code", "--group", "run"]
    assert run(capsys, "cursors", node.address, "code", "list")[1] == (
        "no group has read job 'code' yet\n"
    )
    lines(
        capsys,
        *("cat", node.address, "code", "--group", "run", "--commit", "--steps", "4", "--json"),
    )

    assert lines(capsys, *base, "show", "--json")[0]["cursor"] == 4
    assert lines(capsys, *base, "--json", "checkpoint", "now")[0]["step"] == 4
    assert lines(capsys, *base, "checkpoint", "two", "--step", "2", "--json")[0]["step"] == 2
    assert lines(capsys, *base, "seek", "--to-step", "1", "--json")[0]["step"] == 1
    assert node.group().cursor == 1
    assert lines(capsys, *base, "restore", "two", "--json")[0]["step"] == 2
    assert node.group().cursor == 2
    (listed,) = lines(capsys, "cursors", node.address, "code", "list", "--json")
    assert [group["group"] for group in listed] == ["run"]
    assert [c["name"] for c in listed[0]["checkpoints"]] == ["two", "now"]
    status, out, err = run(capsys, *base, "checkpoint", "two", "--step", "3")
    assert (status, out) == (1, "")
    assert "[checkpoint_exists]" in err
    for action, shown in (
        (["seek", "--to-step", "3"], "is now at step 3"),
        (["list"], "GENERATION"),
        (["show"], "cursor      step 3"),
        (["checkpoint", "three"], "is step 3"),
    ):
        status, out, _ = run(capsys, *base, *action)
        assert status == 0
        assert shown in out


# --- what a node says, in a terminal ---

EVIL = "\x1b[2J\x1b]0;title\x07\rhidden\u202e\x9b31m"


def evil_status(data: bytes) -> bytes:
    """Return a status with such names in it."""
    status = busy_node(jobs=1, groups=1, ranks=1)
    status["version"] = status["node"] = "two\nlines" + EVIL
    [job] = status["jobs"]
    job["name"] = job["log_id"] = job["groups"][0]["group"] = "two\nlines" + EVIL
    return feed_pb2.StatusReply(json=json.dumps(status)).SerializeToString()


def evil_list(data: bytes) -> bytes:
    """Return a group with such names in it."""
    named = cursors_pb2.NamedStep(name=EVIL, step=1)
    group = cursors_pb2.Group(name=EVIL, owner="two\nlines" + EVIL, checkpoints=[named])
    group.job = group.committed_at = EVIL
    return cursors_pb2.ListReply(groups=[group]).SerializeToString()


def evil_refusal(data: bytes) -> bytes:
    """Refuse with such a sentence, and with frames of a user's code."""
    raise CheckpointExists(EVIL, traceback=f"  File {EVIL}\n    raise\n")


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["ping", "@"], 2),
        (["top", "@", "--once"], 5),
        (["cursors", "@", "code", "list"], 2),
        (["cursors", "@", "code", "--group", "g", "show"], 9),
        (["cursors", "@", "code", "--group", "g", "checkpoint", "c"], None),
        (["cat", "@", "code", "--count", "1"], 1),
        (["cat", "@", "code", "--count", "1", "--text"], None),
    ],
)
def test_nothing_that_a_node_says_is_obeyed_by_a_terminal(
    capsys: pytest.CaptureFixture[str], arguments: list[str], count: int | None
) -> None:
    """Escapes arrive as text, a line stays a line; colours, titles and tricks with lines do not."""
    given = {EVIL: np.zeros(3, np.int32), "text": EVIL}
    with ServedNode(given=given) as node, Relay(node.address) as relay:
        relay.rewrite |= {"Feed/Status": evil_status, "Cursors/List": evil_list}
        relay.rewrite["Cursors/Checkpoint"] = evil_refusal
        run(capsys, "cat", node.address, "code", "--group", "g", "--commit", "--count", "1")
        _, out, err = run(capsys, *[relay.address if one == "@" else one for one in arguments])

    shown = out + err
    assert "\\x1b[2J" in shown
    assert all(line.isprintable() for line in shown.split("\n")), ascii(shown)
    if count is not None:
        assert len(out.splitlines()) == count


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "it is nested too deep"),
        ("null", "it is of type NoneType"),
        ('{"uptime_s": Infinity}', "uptime_s is of type float, or not finite"),
        ('{"workers": [{"busy": 1}]}', "workers[0].busy is of type int"),
        ('{"jobs": [{}]}', "jobs[0] has no name"),
        ('{"jobs": [{"name": "a", "lanes": "x"}]}', "jobs[0].lanes is of type str"),
        ('{"jobs": [{"name": "a", "groups": 5}]}', "jobs[0].groups is of type int"),
        ('{"jobs": [{"name": "a", "cursors": {"g": []}}]}', "jobs[0].cursors.g is of type list"),
    ],
)
def test_a_status_of_another_shape_is_refused(
    capsys: pytest.CaptureFixture[str], said: str, why: str
) -> None:
    """In one sentence, and not by an error of Python's own."""
    with ServedNode() as node, Relay(node.address) as relay:
        reply = feed_pb2.StatusReply(json=said).SerializeToString()
        relay.rewrite["Feed/Status"] = lambda _: reply
        for command in (["ping"], ["top", "--once"]):
            status, out, err = run(capsys, command[0], relay.address, *command[1:])

            assert (status, out) == (1, "")
            assert f"sent a status that cannot be read ({why}" in err
            assert err.count("\n") == 1
            assert err.endswith("[bad_frame]\n")


def test_warnings_on_stderr_are_as_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log line may quote a node, and is printed by the same rule."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with ServedNode() as node:

        def warned(status: Any, *_: Any) -> str:
            logging.getLogger("penstock").warning("it says %s", EVIL)
            return ""

        monkeypatch.setattr(top, "render", warned)
        _, _, err = run(capsys, "top", node.address, "--once")

    assert "penstock: it says \\x1b[2J" in err
    assert all(line.isprintable() for line in err.split("\n"))


# --- ping and top ---


def test_ping_says_what_is_there(node: ServedNode, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "ping", node.address)
    (found,) = lines(capsys, "ping", node.address, "--json")

    assert status == 0
    assert "penstock 0." in out
    assert found["jobs"] == ["code"]
    assert found["answer_s"] > 0


def test_top_prints_readers_once_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    # One lane: of several, one may be ahead, and hold up the worker that the others wait for.
    with ServedNode(lanes=1) as node:
        node.gate.held.add(7)
        with Loader(node.address, "code", group="run", rank=0, world_size=1) as loader:
            assert [batch.position for batch in itertools.islice(loader, 7)] == list(range(7))
            wait_until(lambda: node.gate.waiting, "a worker is at the next one")
            status, out, _ = run(capsys, "top", node.address, "--once")
            (found,) = lines(capsys, "top", node.address, "--once", "--json")

    assert status == 0
    assert "1 of 1 workers busy: 1 process" in out
    assert "run" in out
    assert found["jobs"][0]["groups"][0]["next"] == 7


def test_top_goes_on_when_its_node_comes_back(node: ServedNode) -> None:
    """On a terminal: what the node said last stays in sight while it is away, dimmed."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "penstock.client.cli", "top", node.address]
    process = subprocess.Popen(
        [*command, "--timeout", "1", "--interval", "0.1"], stdout=end, stderr=end
    )
    os.close(end)
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # its end
            while data := os.read(terminal, 1 << 16):
                shown.append(data)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        for away in (False, True, False):
            if away:
                node.stop()
            elif shown:
                node.start()
            shown.clear()
            sign = b"s ago:" if away else b"0 of 1 workers busy"
            wait_until(lambda sign=sign: sign in b"".join(shown), f"{sign!r} is shown", 60.0)
            if away:
                dimmed = b"\x1b[2m" + node.address.encode()
                wait_until(lambda sign=dimmed: sign in b"".join(shown), "it is dimmed", 60.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        reading.join()
        os.close(terminal)


@pytest.mark.parametrize("size", [(24, 80), (24, 120), (8, 40)])
def test_a_picture_of_top_is_no_larger_than_its_terminal(size: tuple[int, int]) -> None:
    """A line that is too long, or one too many, would scroll the picture away."""
    status = busy_node(jobs=3, ranks=9)

    def busy(data: bytes) -> bytes:
        return feed_pb2.StatusReply(json=json.dumps(status)).SerializeToString()

    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with ServedNode() as node, Relay(node.address) as relay:
        relay.rewrite["Feed/Status"] = busy
        command = [sys.executable, "-m", "penstock.client.cli", "top", relay.address]
        # Readline, which pytest imports, puts these there, and xdist's processes inherit them.
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        process = subprocess.Popen(
            [*command, "--interval", "0.1"], stdout=end, stderr=end, env=environment
        )
        os.close(end)
        shown = b""
        try:
            while shown.count(b"\x1b[J") < 3:
                shown += os.read(terminal, 1 << 16)
        finally:
            process.kill()
            process.wait()
            os.close(terminal)

    picture = shown.split(b"\x1b[H")[-2].decode()
    lines = [line.removesuffix("\x1b[K") for line in picture.split("\r\n")]
    assert lines.pop() == "\x1b[J"
    assert len(lines) <= size[0] - 1
    assert size[1] - 20 < max(map(layout.width_of, lines)) <= size[1]
    cut = re.fullmatch(r"\.\.\. and \d+ lines more", lines[-1])
    assert (cut is not None) == (size[0] == 8), "no group hides another where each has a line"


@pytest.mark.parametrize(("height", "slowest"), [(100, None), (24, 3), (16, 1), (12, 0), (5, 0)])
def test_a_group_of_many_ranks_hides_no_other(height: int, slowest: int | None) -> None:
    """It has one line, with its slowest ranks as far as there is room for them."""

    def status(batches: int) -> dict[str, Any]:
        found = busy_node(jobs=2, groups=2, ranks=16)
        for reader in found["jobs"][0]["groups"]:  # both jobs have the same
            reader["next"] -= 6400 * (reader["rank"] == 5)
            reader["sent_tokens"] += 1000 * batches
        return found

    samples = top.StatusSamples(status(0), 0.0)
    samples.add(status(1), 1.0)

    lines = top.render("node", samples, 120, height).splitlines()

    assert len(lines) <= max(height, 12)
    rows = [line.split() for line in lines if line.startswith(("  run-", "    slowest"))]
    if slowest is None:
        assert len(rows) == 2 * 2 * 16
        return
    assert [row[0] for row in rows] == 2 * [
        *("run-0", *["slowest"] * slowest),
        *("run-1", *["slowest"] * slowest),
    ]
    [whole, *behind] = rows[: slowest + 1]
    assert whole[1:6] == ["all", "16", "1,543,109", "1,543,209", "16.0k"]
    assert [row[1] for row in behind[:1]] == ["5/16"][:slowest]


def test_a_dumb_terminal_is_not_drawn_over(node: ServedNode) -> None:
    """Table follows table there, without a control character; a warning line is whole."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "penstock.client.cli", "top", node.address]
    process = subprocess.Popen(
        [*command, "--interval", "0.1"],
        stdout=end,
        stderr=end,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(end)
    shown = b""
    try:
        while shown.count(b"workers busy") < 2:
            shown += os.read(terminal, 1 << 16)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)

    assert b"\x1b" not in shown


def test_a_reader_whose_steps_are_longer_than_a_refresh_moves() -> None:
    """Rates are over 10 s, or over all that there is of a reader."""

    def status(batches: int, node: str = "a") -> dict[str, Any]:
        reader = {"group": "run", "rank": 0, "world_size": 1, "sent_batches": batches}
        return {"node": node, "jobs": [{"name": "code", "groups": [reader]}]}

    def shown(samples: top.StatusSamples) -> float | None:
        return samples.rate("code", samples.status["jobs"][0]["groups"][0], "sent_batches")

    samples = top.StatusSamples(status(0), 0.0)
    rates = []
    for second in range(1, 31):
        samples.add(status(second // 5), float(second))
        rates.append(shown(samples))

    assert rates[3] == 0  # before the first step
    assert rates[4] == pytest.approx(0.2)
    assert all(rate == pytest.approx(0.2) for rate in rates[9:])
    samples.add(status(3, node="b"), 31.0)
    assert shown(samples) is None


def test_rates_of_top_are_those_of_a_while() -> None:
    def status(batches: int, node: str = "a") -> dict[str, Any]:
        reader = {"group": "run", "rank": 0, "world_size": 1, "sent_batches": batches}
        reader |= {"sent_bytes": batches * 1024, "next": batches, "horizon": batches + 4}
        reader |= {"sent_tokens": batches * 8000, "batches_per_step": 5}
        job = {"name": "code", "groups": [reader], "cursors": {"run": 3}}
        return {"node": node, "jobs": [job]}

    samples = top.StatusSamples(status(10), 0.0)
    first = top.render("node", samples).splitlines()[-1]
    samples.add(status(30), 2.0)
    second = top.render("node", samples).splitlines()
    samples.add(status(2, node="b"), 3.0)
    restarted = top.render("node", samples).splitlines()[-1]

    names = "group rank step cursor tokens/s batches/s waited rate ahead next batches"
    assert second[-2].split() == names.split()
    row = "run 0/1 6 3 80.0k 10.0 10.0 KiB/s 4 30 30"
    assert second[-1].split() == row.split()
    assert "80.0k tokens/s" in second[2]
    assert "/s" not in first
    assert "/s" not in restarted


def busy_node(jobs: int = 2, groups: int = 2, ranks: int = 3, name: str = "run") -> dict[str, Any]:
    """Return a status with many readers, in no order, whose numbers are large."""
    readers = [
        {
            **{"id": 100 * group + rank, "group": f"{name}-{group}", "rank": rank},
            **{"world_size": ranks, "batches_per_step": 64, "next": 98_765_432 + rank},
            **{"horizon": 98_765_440, "sent_batches": 1_234_567, "sent_bytes": 10**12},
            **{"sent_tokens": 10**10, "waiting_s": 4000.5},
        }
        for rank in reversed(range(ranks))
        for group in range(groups)
    ]
    cursors = {f"{name}-{group}": 1_543_209 for group in range(groups)}
    return {
        **{"version": "0.1.0", "node": "f00dfeed0123", "uptime_s": 123456.7},
        "workers": [{"busy": True}] * 16,
        "jobs": [
            {
                **{"name": f"job-{number}", "log_id": "ab" * 32, "lanes": 48},
                **{"ready_batches": 120, "ready_bytes": 10**9, "produced": 10**7},
                **{"groups": readers, "cursors": cursors},
            }
            for number in reversed(range(jobs))
        ],
    }


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize(
    "name", ["run", "a-group-whose-name-is-as-long-as-they-get" * 3, "組" * 30]
)
def test_top_fits_its_terminal(width: int, name: str) -> None:
    """No line is wider, wide characters count twice; what is needed most stays."""
    samples = top.StatusSamples(busy_node(name=name), 0.0)
    samples.add(busy_node(name=name), 1.0)

    shown = top.render("dns:///penstock.training.svc.cluster.local:50051", samples, width)

    lines = shown.splitlines()
    assert max(map(layout.width_of, lines)) <= width
    [head, *_] = [line.split() for line in lines if line.startswith("  group")]
    assert head[:2] == ["group", "rank"]
    assert "cursor" in head
    assert ("tokens/s" in head) == (width >= 60)
    assert ("batches" in head) == (width >= (120 if name == "run" else 200))


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("a-run-of-november-21", 20, "a-run-of-november-21"),
        ("a-run-of-november-21", 12, "a-run-…er-21"),
        ("a-run-of-november-21", 7, "a-run-…"),
        ("組組組組組組組組組組", 12, "組組組…組組"),
    ],
)
def test_a_name_that_is_too_long_keeps_both_ends(name: str, width: int, shown: str) -> None:
    """Runs are often told apart by the last characters of their names."""
    assert layout.shortened(name, width) == shown
    assert layout.width_of(shown) <= width


def test_top_sorts_by_job_group_and_rank() -> None:
    shown = top.render("node", top.StatusSamples(busy_node(), 0.0))

    readers = [line.split()[:2] for line in shown.splitlines() if line.startswith("  run-")]
    one = [[f"run-{group}", f"{rank}/3"] for group in range(2) for rank in range(3)]
    jobs = [line.split()[1] for line in shown.splitlines() if line.startswith("job ")]
    assert readers == one + one
    assert jobs == ["job-0", "job-1"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (0.001, "<0.01"), (0.04, "0.04"), (0.25, "0.2"), (99.94, "99.9")),
        *((99.96, "100"), (999, "999"), (1072, "1.07k"), (9801, "9.80k"), (12_345, "12.3k")),
        *((84_000, "84.0k"), (999_499, "999k"), (999_500, "1.00M"), (8_400_000, "8.40M")),
        *((3e15, "3000T"),),
    ],
)
def test_numbers_of_top_are_short(value: float, shown: str) -> None:
    assert layout.short_number(value) == shown


# --- failures ---


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["cat", "@", "cod"], 1, "unknown_job"),
        (["cat", "@", "code", "--group", "nobody"], 1, "unknown_group"),
        (["cat", "nonsense", "code"], 2, "invalid_request"),
        (["cat", "@", "code", "--rank", "0"], 2, "--world-size"),
        (["cat", "@", "code", "--rank", "2", "--world-size", "2"], 2, "rank_out_of_range"),
        (
            ["cat", "@", "code", "--batches-per-step", "3", "--rank", "0", "--world-size", "2"],
            2,
            "",
        ),
        (["cat", "@", "code", "--commit"], 2, "--group"),
        (["cat", "@", "code", "--attempt", "a"], 2, "--commit"),
        (
            ["cat", "@", "code", "--group", "g", "--commit", "--rank", "0", "--world-size", "2"],
            2,
            "--attempt",
        ),
        (["cat", "@", "code", "--group", "g", "--commit", "--from-position", "3"], 2, "is a step"),
        (["cat", "@", "code", "--tokenizer", "x"], 2, "--text"),
        (["cat", "@", "code", "--text", "--tokenizer", "/nowhere.json"], 2, "/nowhere.json"),
        (["cursors", "@", "code", "show"], 2, "--group"),
        (["cursors", "@", "code", "--group", "nobody", "show"], 1, "unknown_group"),
        (["ping", "127.0.0.1:1", "--timeout", "0.2"], 1, "unreachable"),
        (["bench", "127.0.0.1:1", "code", "--timeout", "0.2"], 1, "unreachable"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_code(
    node: ServedNode,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    given = [node.address if argument == "@" else argument for argument in arguments]

    found, out, err = run(capsys, *given)

    assert (found, out) == (status, "")
    assert err.startswith("penstock: error: ")
    assert err.count("\n") == 1
    assert sentence in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["cat", "a:1", "code", "--steps", "x"],
        ["cat", "a:1", "code", "--steps", "-1"],
        ["cat", "a:1", "code", "--steps", "1", "--count", "1"],
        ["top", "a:1", "--interval", "0"],
        ["cursors", "a:1", "code", "--group", "g", "seek"],
        ["nonsense"],
    ],
)
def test_a_call_that_cannot_be_parsed_exits_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)

    assert caught.value.code == 2
    sentence = capsys.readouterr().err.splitlines()[0]
    assert sentence.startswith("penstock: error: ")
    assert sentence.endswith(" [usage]")


@pytest.mark.parametrize("command", [[], ["cat"], ["cursors"], ["ping"], ["top"]])
def test_every_command_explains_itself(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])

    assert caught.value.code == 0
    assert len(capsys.readouterr().out) > 300


def test_a_reader_that_has_enough_ends_the_command_quietly(node: ServedNode) -> None:
    """As `penstock cat ... | head -2` does: no traceback, and the endless job is left."""
    command = [sys.executable, "-m", "penstock.client.cli", "cat", node.address, "code", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()

    assert json.loads(first)["position"] == 0
    assert (process.wait(60), err) == (0, "")


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS["penstock"])])
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_its_terminal(
    command: list[str],
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No line of it is broken by the terminal, in the middle of a word."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        cli.main([*command, "--help"])

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > columns] == []
