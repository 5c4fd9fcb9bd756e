"""What batches were is recorded, and whoever makes them again compares; with what packages, too."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from penstock.client import Loader
from penstock.server.node.supply.witnesses import (
    PROOF_WITNESSES,
    WITNESS_EVERY,
    environment_of,
    is_like,
    is_witness,
)
from penstock.server.store.rows import EnvironmentRow, WitnessRow
from penstock.wire import errors
from unit.served import ServedNode, wait_until

LANES = 3


def read(node: ServedNode, count: int = 300) -> list[int]:
    """Read some batches, without a group; return what they hold."""
    with Loader(node.address, "code", batches_per_step=6, rank=0, world_size=1) as reader:
        return [int(batch["cut"]) for batch, _ in zip(reader, range(count), strict=False)]


def serve(node: ServedNode, count: int = 300) -> None:
    """Have batches made whose witnesses are recorded."""
    read(node, count)
    node.call(node.service.node.witnesses.save())


def rewrite(node: ServedNode, change: Callable[[WitnessRow], WitnessRow] | None = None) -> None:
    """Let what is recorded come from a node with another numpy, and be what `change` makes of it.

    As another node would have recorded it, which had other packages.
    """
    tables = node.memory.tables
    [(key, row)] = tables[EnvironmentRow].rows.items()
    packages = json.loads(row.packages) | {"numpy": "0.1"}
    other = environment_of(packages)
    tables[EnvironmentRow].remove(key)
    tables[EnvironmentRow].put(
        (row.log_id, other), EnvironmentRow(row.log_id, other, json.dumps(packages), "")
    )
    for at, witness in list(tables[WitnessRow].rows.items()):
        theirs = witness._replace(environment=other)
        tables[WitnessRow].put(at, theirs if change is None else change(theirs))


def recorded(node: ServedNode) -> list[dict[str, str]]:
    """Return what the log is recorded to be computed with."""
    return list(node.call(node.store.environments(node.log_id)).values())


def test_one_batch_in_64_of_each_lane_is_a_witness_and_the_first() -> None:
    """Lanes have theirs at different offsets, so positions are spread."""
    of_lanes = [[at for at in range(640) if is_witness(lane, at)] for lane in range(WITNESS_EVERY)]

    assert all(of_lane[0] == 0 for of_lane in of_lanes)
    assert {len(of_lane) for of_lane in of_lanes} == {10, 11}
    assert len({of_lane[1] for of_lane in of_lanes}) == WITNESS_EVERY


def test_packages_are_alike_where_none_is_of_another_version() -> None:
    """What one of them names alone was imported later, or by another set of the job."""
    ours = {"numpy": "2.1", "Python": "3.11"}

    assert is_like(ours, [{"numpy": "1.26"}, {"numpy": "2.1", "torch": "2.9"}])
    assert not is_like(ours, [{"numpy": "1.26", "Python": "3.11"}])
    assert not is_like(ours, [])


def test_witnesses_and_the_environment_are_recorded_as_batches_are_made() -> None:
    """Of every lane; and whoever makes the same again finds the same."""
    with ServedNode(lanes=LANES) as node:
        serve(node)
        first = dict(node.memory.tables[WitnessRow].rows)
        node.stop()
        node.start()
        serve(node)

        assert {lane for _, lane, _ in first} == set(range(LANES))
        assert {(lane, at) for _, lane, at in first} >= {(0, 0), (0, 64), (1, 63), (2, 62)}
        again = node.memory.tables[WitnessRow].rows  # a node makes some batches ahead
        assert first.items() <= again.items()
        assert len(recorded(node)) == 1
        assert not [line for line in node.said if "proven" in line["event"]]


def test_a_batch_that_was_another_before_stops_its_lane() -> None:
    """With the error that says what was made with what; readers are told."""
    with ServedNode(lanes=LANES) as node:
        serve(node)
        table = node.memory.tables[WitnessRow]
        [key] = [key for key in table.rows if key[1:] == (1, 63)]
        table.put(key, table.rows[key]._replace(digest=bytes(32)))
        node.stop()
        node.start()
        serve(node)

        log = node.service.node.logs[node.log_id]
        error = log.lanes[1].error
        assert isinstance(error, errors.LogDiverged)
        assert (error.lane, error.offset, error.theirs) == (1, 63, "00" * 32)
        assert log.lanes[0].error is None
        with pytest.raises(errors.LogDiverged, match=r"offset 63 .* packages were the same"):
            read(node)


def test_other_packages_that_make_the_same_are_proven_and_recorded() -> None:
    """Eight batches are made again before any is given away; the next start finds it recorded."""
    with ServedNode(lanes=LANES) as node:
        serve(node, 600)
        node.stop()
        rewrite(node)
        node.start()

        assert read(node, 30) == list(range(30))
        wait_until(lambda: len(recorded(node)) == 2, "it is recorded")
        [alike] = [line for line in node.said if line["event"].startswith("a job is made alike")]
        assert alike["witnesses"] == PROOF_WITNESSES
        node.stop()
        node.start()
        assert read(node, 30) == list(range(30))
        assert len([line for line in node.said if "is made alike" in line["event"]]) == 1


def test_other_packages_that_make_something_else_are_refused_by_name() -> None:
    """No batch is given away, and nothing is recorded."""
    with ServedNode(lanes=LANES) as node:
        serve(node)
        node.stop()
        rewrite(node, lambda witness: witness._replace(digest=bytes(32)))
        node.start()

        for _ in range(2):
            with pytest.raises(errors.LogDiverged, match=r"here numpy .* \(recorded: 0\.1\)"):
                read(node)
        assert [log.figures()["refused"] for log in node.service.node.logs.values()] == [1]
        node.call(node.service.node.witnesses.save())
        assert [each["numpy"] for each in recorded(node)] == ["0.1"]
        assert {row.digest for row in node.memory.tables[WitnessRow].rows.values()} == {bytes(32)}


def test_without_a_witness_other_packages_are_recorded() -> None:
    """There is nothing to compare with."""
    with ServedNode(lanes=LANES) as node:
        serve(node)
        node.stop()
        rewrite(node)
        for key in list(node.memory.tables[WitnessRow].rows):
            node.memory.tables[WitnessRow].remove(key)
        node.start()

        assert read(node, 30) == list(range(30))
        wait_until(lambda: len(recorded(node)) == 2, "it is recorded")
