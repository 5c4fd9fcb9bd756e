"""What comes out of a Loader: the right batches, in order, as arrays or tensors, within bounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from harness import write_job_file
from penstock.client import Batch, Limits, Loader, Ranks
from penstock.wire.errors import (
    BadFrame,
    BadState,
    InvalidRequest,
    MissingExtra,
    NoGroup,
    NotStarted,
    PastEnd,
    UnevenStep,
    UnknownJob,
)
from unit.relay import Relay
from unit.served import ServedNode, values_of, wait_until


@pytest.fixture
def node() -> Iterator[ServedNode]:
    with ServedNode() as served:
        yield served


def alone(node: ServedNode | Relay, **options: Any) -> Loader:
    """A Loader of one rank that gives arrays."""
    return Loader(node.address, "code", **{"rank": 0, "world_size": 1, "as_numpy": True} | options)


def take(loader: Loader, count: int) -> list[Batch]:
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == count:
            break
    return batches


@pytest.mark.parametrize(("step_size", "world"), [(1, 1), (2, 1), (2, 2), (6, 1), (6, 2), (6, 3)])
def test_ranks_partition_every_step(node: ServedNode, step_size: int, world: int) -> None:
    """The positions of all ranks, step by step, are the step's positions, each once, in order."""
    seen: dict[int, list[int]] = {}
    for rank in range(world):
        with alone(node, rank=rank, world_size=world, batches_per_step=step_size) as loader:
            for batch in take(loader, 3 * step_size // world):
                seen.setdefault(batch.step, []).append(batch.position)
                assert batch.position % step_size % world == rank
                assert batch.micro == batch.position % step_size // world
                assert batch.is_last_of_step == (batch.micro == step_size // world - 1)

    assert {step: sorted(found) for step, found in seen.items()} == {
        step: list(range(step * step_size, (step + 1) * step_size)) for step in range(3)
    }


def test_every_kind_of_value_arrives_as_an_array_or_a_plain_value(node: ServedNode) -> None:
    with alone(node) as loader:
        batches = take(loader, 2)

    for position, batch in enumerate(batches):
        wanted = values_of(position, 64)
        assert list(batch) == list(wanted)
        np.testing.assert_array_equal(batch["input_ids"], wanted["input_ids"])
        assert batch["input_ids"].dtype == np.int64
        assert batch["input_ids"].flags.writeable
        assert batch["cut"] == position
        assert type(batch["cut"]) is int
        assert batch["name"] == f"batch {position}"
        assert batch["extra"] == {"position": position}
        part, nothing, three = batch["parts"]
        assert (part.tolist(), nothing, three) == ([float(position)], None, 3)


def test_bodies_of_many_chunks_arrive_whole() -> None:
    nbytes = 5 << 19
    with ServedNode(nbytes=nbytes) as node, alone(node) as loader:
        for batch in take(loader, 5):
            wanted = values_of(batch.position, nbytes)["input_ids"]
            np.testing.assert_array_equal(batch["input_ids"], wanted)


AS_NUMPY = [True, pytest.param(False, marks=pytest.mark.torch)]

DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bfloat16"),
]


@pytest.mark.torch
@pytest.mark.parametrize("device", [None, "cpu"])
def test_tensors_of_every_dtype_and_shape(device: str | None) -> None:
    """Every dtype of the wire, 0-d, empty and 2-d, has its tensor, equal to what was sent."""
    import torch

    arrays = {}
    for name in DTYPES:
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
        arrays[name] = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
        arrays[f"{name}_0d"] = np.array(1).astype(dtype)
        arrays[f"{name}_empty"] = np.zeros((0, 4)).astype(dtype)
    with (
        ServedNode(given=arrays, host=("int64",)) as node,
        alone(node, as_numpy=None, device=device) as loader,
    ):
        (batch,) = take(loader, 1)

    for key, array in arrays.items():
        name = key.split("_")[0]
        tensor = batch[key]
        assert tensor.dtype == getattr(torch, name), key
        assert tuple(tensor.shape) == array.shape, key
        assert tensor.to(torch.complex128).tolist() == array.astype("complex128").tolist(), key


def dtype_of(name: str, as_numpy: bool) -> Any:
    """Return a dtype of NumPy, or of torch."""
    if as_numpy:
        return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    import torch

    return getattr(torch, name)


NARROW = ["int8", "int16", "int32", "uint8", "uint16", "uint32"]


@pytest.mark.parametrize("as_numpy", AS_NUMPY)
def test_labels_are_int64_whatever_travels(as_numpy: bool) -> None:
    """Losses index with int64 alone; other values keep the dtype that travelled."""
    for dtype in [*NARROW, "int64"]:
        labels = np.array([[5, 7], [0, 3]]).astype(dtype)
        given = {"labels": labels, "input_ids": labels, "parts": [labels]}

        with ServedNode(given=given) as node, alone(node, as_numpy=as_numpy) as loader:
            (batch,) = take(loader, 1)

        wide, kept = dtype_of("int64", as_numpy), dtype_of(dtype, as_numpy)
        assert (batch["labels"].dtype, batch["input_ids"].dtype) == (wide, kept)
        assert batch["parts"][0].dtype == kept
        assert batch["labels"].tolist() == labels.tolist()


@pytest.mark.parametrize("as_numpy", AS_NUMPY)
def test_lists_of_labels_are_int64_too(as_numpy: bool) -> None:
    labels = [np.array([1, -100], np.int32), None, [np.array([2], np.int8)]]

    with (
        ServedNode(given={"labels": labels}) as node,
        alone(node, as_numpy=as_numpy) as loader,
    ):
        (batch,) = take(loader, 1)

    first, nothing, (inner,) = batch["labels"]
    wide = dtype_of("int64", as_numpy)
    assert (first.dtype, nothing, inner.dtype) == (wide, None, wide)
    assert (first.tolist(), inner.tolist()) == ([1, -100], [2])


@pytest.mark.parametrize("dtype", ["float32", "bool", "uint64", "bfloat16"])
@pytest.mark.parametrize("as_numpy", AS_NUMPY)
def test_labels_that_int64_cannot_stand_for_are_left_alone(as_numpy: bool, dtype: str) -> None:
    """Targets of a regression, masks, and integers that int64 cannot hold."""
    found = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    given = {"labels": np.array([1, 0]).astype(found)}

    with ServedNode(given=given) as node, alone(node, as_numpy=as_numpy) as loader:
        (batch,) = take(loader, 1)

    assert batch["labels"].dtype == dtype_of(dtype, as_numpy)


def test_bfloat16_arrays_have_the_dtype_of_ml_dtypes() -> None:
    given = {"x": np.array([1.5, -2.0], ml_dtypes.bfloat16)}

    with ServedNode(given=given) as node, alone(node) as loader:
        (batch,) = take(loader, 1)

    assert batch["x"].dtype == ml_dtypes.bfloat16
    assert batch["x"].astype(np.float32).tolist() == [1.5, -2.0]


def test_a_batch_of_no_tensors_arrives() -> None:
    with ServedNode(given={"text": "hello", "n": 7}) as node, alone(node) as loader:
        batches = take(loader, 3)

    assert batches == [{"text": "hello", "n": 7}] * 3


def test_metadata_survives_a_rebuilt_dict(node: ServedNode) -> None:
    """`loader.last` and `meta=True` know the position when a framework has rebuilt the mapping."""
    with alone(node, meta=True) as loader:
        for batch in itertools.islice(loader, 2):
            rebuilt = type(batch)({key: value for key, value in batch.items()})  # noqa: C416

            assert loader.last is not None
            assert loader.last.position == batch.position
            assert int(batch["penstock_position"]) == batch.position
            assert rebuilt["penstock_position"].dtype == np.int64
            assert batch.samples == [("corpus", batch.position, 0)]
            with pytest.raises(AttributeError, match=r"loader\.last\.position"):
                _ = rebuilt.position
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rebuilt.nonsense


def test_never_more_than_the_prefetch_is_sent_ahead(node: ServedNode) -> None:
    """A consumer that takes one batch and stops is sent no position at or above its horizon."""
    with Relay(node.address) as relay, alone(relay, prefetch=3) as loader:
        for taken in range(1, 20):
            take(loader, 1)
            assert max(relay.sent) < taken + 3
            assert max([*relay.horizons, 0]) <= taken + 3
        assert loader.stats()["buffered_batches"] <= 3


def test_large_batches_come_while_the_first_one_is_in_use() -> None:
    """How large they are is known with the first: the room for the others is told with it."""
    with (
        ServedNode(nbytes=3 << 20) as large,
        Loader(large.address, "code", rank=0, world_size=1) as loader,
    ):
        next(iter(loader))
        wait_until(lambda: loader.stats()["buffered_batches"] >= 3, "batches ahead")


def test_a_second_iteration_of_a_stream_goes_on_where_it_stood(node: ServedNode) -> None:
    with alone(node) as loader:
        first, second = take(loader, 3), take(loader, 3)

    assert [batch.position for batch in first + second] == list(range(6))


@pytest.mark.parametrize("prefetch", range(1, 6))
def test_the_last_position_is_asked_for_whatever_the_prefetch(prefetch: int) -> None:
    """The end cuts the horizon anywhere between two own positions: the last one still comes."""
    for world in (1, 2, 3, 6):
        with ServedNode(batches=18) as node:
            for rank in range(world):
                options = {"rank": rank, "world_size": world, "prefetch": prefetch}
                with alone(node, batches_per_step=6, deadline_s=10.0, **options) as loader:
                    assert [b.position for b in loader] == list(range(rank, 18, world))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_finite_job_ends_every_rank_at_the_same_step(world: int) -> None:
    """10 batches in steps of 4 are 3 steps for every rank; the last is filled with padding."""
    seen, padding = [], []
    with ServedNode(batches=10) as node:
        for rank in range(world):
            with alone(node, rank=rank, world_size=world, batches_per_step=4) as loader:
                batches = list(loader)
                assert len(batches) == len(loader) == 12 // world
                seen += [batch.position for batch in batches]
                padding += [batch.position for batch in batches if batch.is_padding]
                assert all(b.counts["tokens"] == 0 for b in batches if b.is_padding)

    assert sorted(seen) == list(range(12))
    assert sorted(padding) == [10, 11]


def test_a_second_pass_over_a_finite_job_reads_it_again() -> None:
    """As a DataLoader does: `for epoch in range(3): for batch in loader`."""
    with ServedNode(batches=10) as node, alone(node, batches_per_step=4) as loader:
        passes = [[batch.position for batch in loader] for _ in range(3)]
        steps = [[step.index for step in loader.steps()] for _ in range(2)]
        began = take(loader, 5)
        rest = list(loader)

        assert passes == [list(range(12))] * 3
        assert steps == [[0, 1, 2]] * 2
        assert [batch.position for batch in began + rest] == list(range(12))


def test_an_iterator_that_has_ended_stays_at_its_end() -> None:
    with ServedNode(batches=4) as node, alone(node) as loader:
        batches = iter(loader)
        assert len(list(batches)) == 4
        assert list(batches) == []
        assert len(list(loader)) == 4


def test_a_second_pass_of_a_group_is_an_error_with_the_way_on() -> None:
    """A group reads each step once; a run that is started again at its end finds nothing left."""
    options = {"batches_per_step": 4, "group": "run", "attempt": "a"}
    with ServedNode(batches=8) as node, alone(node, **options) as loader:
        assert len(list(loader)) == 8
        for pass_again in (loader, loader.steps()):
            with pytest.raises(PastEnd, match=r"has read all 2 steps.*seek\(step=0\)"):
                next(iter(pass_again))
        loader.seek(0)
        assert len(list(loader)) == 8


def test_a_run_that_begins_at_the_end_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with ServedNode(batches=8) as node:
        for attempt in ("a", "b"):
            with alone(node, batches_per_step=4, group="run", attempt=attempt) as loader:
                left = len(list(loader))
                loader.commit()

        assert left == 0
        assert any("begins at the end of 2 steps" in r.getMessage() for r in caplog.records)


def test_a_batch_says_of_which_epoch_it_is(tmp_path: Path) -> None:
    """How often every item had been drawn before its earliest item was."""
    items = [{"x": number} for number in range(5)]
    job = {"lanes": 2, "epochs": 3, "source": {"type": "items", "items": items}, "batch_size": 2}
    file = write_job_file(tmp_path / "jobs.yaml", {"main": job})

    with Loader(f"local:{file}", "main", rank=0, world_size=1) as loader:
        batches = list(loader)

    assert [b.epoch for b in batches if not b.is_padding] == [
        min(epoch for _, _, epoch in b.samples) for b in batches if not b.is_padding
    ]
    assert {batch.epoch for batch in batches} == {0, 1, 2}


def test_a_dropped_tail_is_left_out() -> None:
    with ServedNode(batches=10) as node, alone(node, batches_per_step=4, tail="drop") as loader:
        assert [batch.position for batch in loader] == list(range(8))


def test_a_length_is_known_before_the_state_is_loaded() -> None:
    """Frameworks ask first: by the group's steps, or as many as a reader without one would have."""
    with ServedNode(batches=10) as node:
        with alone(node, batches_per_step=4, group="run", attempt="a") as loader:
            state = loader.state_dict()
        for options, batches in (
            ({"group": "run"}, 12),
            ({"group": "other"}, 10),
            ({"batches_per_step": 4, "tail": "drop"}, 8),
            ({"batches_per_step": 4, "world_size": 3, "uneven": "fill"}, 6),
        ):
            with alone(node, **options, start="state", attempt="b") as loader:
                assert len(loader) == batches
                with pytest.raises(NotStarted):
                    next(iter(loader))
                if loader.group == "run":
                    assert len(loader.steps()) == 3
                    loader.load_state_dict(state)
                    assert len(loader) == len(list(loader)) == 12


def test_an_endless_job_has_no_length_and_says_what_to_do(node: ServedNode) -> None:
    with alone(node) as loader:
        for asked in (loader, loader.steps()):
            with pytest.raises(TypeError, match=r"endless.*max_steps.*epochs: 1.*LoaderDataset"):
                len(asked)


def test_a_loader_shows_where_it_stands_and_asks_nobody() -> None:
    """In a notebook, before reading, between batches, at the end and after it is closed."""
    with ServedNode(batches=3) as node:
        with alone(node, group="run", attempt="a") as loader:
            who = f"<Loader of job 'code' at {node.address}, group 'run'"
            assert repr(loader) == f"{who}: nothing is read yet>"
            assert repr(loader.steps()) == f"<Steps of {repr(loader)[1:]}"
            batches = iter(loader)
            next(batches)
            assert repr(loader) == f"{who}, rank 0 of 1: next is position 1, step 1; 1 batch given>"
            list(batches)
            assert repr(loader) == f"{who}, rank 0 of 1: at its end; 3 batches given>"
        assert repr(loader) == f"{who}, rank 0 of 1: closed; 3 batches given>"
        waiting = alone(node, start="state", attempt="b", group="run")
        assert repr(waiting) == f"{who}: waits for load_state_dict()>"
        waiting.close()
    assert "nothing is read yet" in repr(alone(node))  # of a node that is gone


def test_a_value_that_is_asked_for_as_an_attribute_says_how_to_get_it(node: ServedNode) -> None:
    with alone(node) as loader:
        batch = next(iter(loader))

    with pytest.raises(AttributeError, match=r"it is a value, batch\['input_ids'\]"):
        _ = batch.input_ids


# --- steps ---


def test_a_total_is_known_before_the_first_batch_of_the_step(node: ServedNode) -> None:
    """The sum over all micro batches, more than prefetch holds; then the batches follow."""
    with alone(node, batches_per_step=6, prefetch=2) as loader:
        for step, _ in zip(loader.steps(), range(3), strict=False):
            positions = range(step.index * 6, step.index * 6 + 6)
            total = step.total("tokens")

            batches = list(step)

            assert total == sum(10 + position for position in positions)
            assert step.counts == {"tokens": total, "samples": 12}
            assert step.per_rank("tokens") == (total,)
            assert step.total("nothing") == 0
            assert len(step) == 6
            assert [batch.position for batch in batches] == list(positions)
            assert [batch.is_last_of_step for batch in batches] == [False] * 5 + [True]


def test_counts_are_the_same_before_within_and_after_the_step(node: ServedNode) -> None:
    with alone(node, batches_per_step=4) as loader:
        step = next(loader.steps())
        before = step.counts
        batches = iter(step)
        next(batches)
        within = step.counts
        list(batches)

        assert before == within == step.counts == {"tokens": 46, "samples": 8}


def test_batches_of_a_step_that_were_not_taken_are_skipped_and_counted(node: ServedNode) -> None:
    with alone(node, batches_per_step=4) as loader:
        steps = loader.steps()
        step = next(steps)
        first = next(iter(step))
        after = next(next(steps).__iter__())

        assert (first.position, after.position) == (0, 4)
        assert loader.stats()["skipped_batches"] == 3


def test_a_step_that_is_entered_in_the_middle_has_no_total(node: ServedNode) -> None:
    """A state from within a step leads there: its first batches were another Loader's."""
    with alone(node, batches_per_step=4) as loader:
        take(loader, 2)
        state = loader.state_dict()
    with alone(node, batches_per_step=4, start="state") as loader:
        loader.load_state_dict(state)
        steps = loader.steps()
        step = next(steps)

        assert len(step) == 2
        with pytest.raises(BadState, match="began within step 0"):
            step.total("tokens")
        assert [batch.position for batch in step] == [2, 3]
        assert next(steps).total("tokens") == 10 * 4 + 4 + 5 + 6 + 7


def test_a_step_that_this_loader_entered_itself_has_its_total(node: ServedNode) -> None:
    """So a notebook whose loop was interrupted goes on with right totals."""
    with alone(node, batches_per_step=4) as loader:
        take(loader, 2)
        step = next(loader.steps())

        assert step.total("tokens") == 10 * 4 + 0 + 1 + 2 + 3
        assert [batch.position for batch in step] == [2, 3]


def test_a_total_over_ranks_needs_a_process_group(node: ServedNode) -> None:
    with alone(node, world_size=2, batches_per_step=2) as loader:
        step = next(loader.steps())

        with pytest.raises(InvalidRequest, match="process_group="):
            step.total("tokens")


# --- eval ---


def test_every_pass_of_an_evaluation_is_whole() -> None:
    """iter() again, also after a break, starts at 0 and ends at the end; max_steps cuts."""
    with ServedNode(batches=5) as node, Relay(node.address) as relay:
        with alone(relay, mode="eval", batches_per_step=2) as loader:
            assert take(loader, 3)[-1].position == 2
            for _ in range(2):
                assert [batch.position for batch in loader] == list(range(6))
            assert len(loader) == 6
        with alone(relay, mode="eval", batches_per_step=2, max_steps=2) as loader:
            for _ in range(2):
                assert [step.index for step in loader.steps()] == [0, 1]
            assert len(loader) == 4
            assert max(relay.sent[-4:]) == 3


def test_an_evaluation_of_an_endless_job_needs_max_steps(node: ServedNode) -> None:
    with alone(node, mode="eval") as loader, pytest.raises(InvalidRequest, match="max_steps="):
        next(iter(loader))
    with alone(node, mode="eval", max_steps=2) as loader:
        assert [batch.position for batch in loader] == [0, 1]
        assert [batch.position for batch in loader] == [0, 1]


# --- mistakes ---


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mode": "train"}, "mode='train'"),
        ({"tail": "keep"}, "tail='keep'"),
        ({"start": -1}, "start=-1"),
        ({"start": "begin"}, "start='begin'"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"batches_per_step": 0}, "batches_per_step=0"),
        ({"mode": ["eval"]}, r"mode=\['eval'\]: use 'stream' or 'eval'"),
        ({"mode": np.array(["eval"])}, "mode="),
        ({"tail": None}, "tail=None: use 'pad' or 'drop'"),
        ({"start": True}, "start=True"),
        ({"start": 1.5}, "start=1.5"),
        ({"start": 1 << 63}, "start=9223372036854775808"),
        ({"start": np.array([1, 2])}, "start="),
        ({"prefetch": 1 << 63}, "prefetch=9223372036854775808: use an integer of at most"),
        ({"prefetch": True}, "prefetch=True: use an integer of at least 1"),
        ({"prefetch": "8"}, "prefetch='8'"),
        ({"prefetch": 2.5}, "prefetch=2.5"),
        ({"prefetch": float("nan")}, "prefetch=nan"),
        ({"batches_per_step": [4]}, r"batches_per_step=\[4\]"),
        ({"max_steps": -1, "mode": "eval"}, "max_steps=-1"),
        ({"deadline_s": 0}, "deadline_s=0"),
        ({"deadline_s": True}, "deadline_s=True"),
        ({"deadline_s": None}, "deadline_s=None"),
        ({"deadline_s": "9"}, "deadline_s='9': use seconds above 0"),
        ({"deadline_s": float("nan")}, "deadline_s=nan"),
        ({"limits": 9}, r"limits=9: pass Limits\(\.\.\.\)"),
        ({"ranks": Ranks(0, 2)}, "rank=, world_size= beside ranks=: pass it in Ranks"),
        ({"rank": "0"}, "rank='0': use an integer"),
        ({"mesh": 3, "rank": None, "world_size": None}, "mesh=3: pass a DeviceMesh"),
        ({"rank": 1.0}, "rank=1.0: use an integer"),
        ({"rank": True}, "rank=True: use an integer"),
        ({"world_size": "2"}, "world_size='2': use an integer"),
        ({"ranks": (0, 1), "rank": None, "world_size": None}, r"ranks=\(0, 1\): pass Ranks"),
        ({"group": ""}, "group=''"),
        ({"group": 3}, "group=3: pass a name of printable characters"),
        ({"group": "a\nb"}, r"group='a\\nb'"),
        ({"attempt": ""}, "attempt='': pass a name of printable characters, or leave it out"),
        ({"attempt": "\ud800"}, "attempt="),
        ({"meta": "no"}, "meta='no': use True or False"),
        ({"meta": None}, "meta=None"),
        ({"as_numpy": 1}, "as_numpy=1: use True or False"),
        ({"mode": "eval", "group": "run"}, "ephemeral"),
        ({"mode": "eval", "start": 3}, "starts at step 0"),
        ({"max_steps": 3}, "max_steps=3"),
        ({"world_size": None}, "without world_size="),
    ],
)
def test_arguments_that_cannot_be_are_refused_by_name(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        Loader("127.0.0.1:1", "code", **{"rank": 0, "world_size": 1} | options)


@pytest.mark.parametrize(
    ("value", "options", "sentence"),
    [
        (Limits, {"prefetch_bytes": "1 GiB"}, "prefetch_bytes='1 GiB': use an integer"),
        (Limits, {"prefetch_bytes": 0}, "prefetch_bytes=0: use an integer of at least 1"),
        (Limits, {"max_body_bytes": float("inf")}, "max_body_bytes=inf"),
        (Limits, {"max_body_bytes": None}, "max_body_bytes=None"),
        (Limits, {"device_batches": 0}, "device_batches=0: use an integer of at least 1"),
        (Limits, {"device_batches": True}, "device_batches=True"),
        (Ranks, {"rank": 0}, "without world_size="),
        (Ranks, {"rank": 0, "world_size": False}, "world_size=False: use an integer"),
        (Ranks, {"mesh": 1, "dp": 5}, "dp=5: pass the name of a dimension, or several"),
        (Ranks, {"mesh": 1, "cp": ["cp", 2]}, r"cp=\['cp', 2\]"),
        (Ranks, {"mesh": 1, "tp": ()}, r"tp=\(\)"),
        (Ranks, {"mesh": 1, "pp": ""}, "pp=''"),
        (Ranks, {"rank": "0", "world_size": 1}, "rank='0': use an integer"),
        (Ranks, {"dp": "dp", "tp": "tp"}, "dp=, tp= stands for dimensions of a mesh: pass mesh="),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_is_made(
    value: type, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        value(**options)


def test_a_job_and_calls_are_refused_by_what_they_were_given(node: ServedNode) -> None:
    for job in ("", None, 3):
        with pytest.raises(InvalidRequest, match=f"job={job!r}: pass the name of a job"):
            Loader(node.address, job, rank=0, world_size=1)  # type: ignore[arg-type]
    with alone(node) as loader:
        for step in (-1, 1 << 63, 1.0, "1", True, None):
            with pytest.raises(InvalidRequest, match=r"seek\("):
                loader.seek(step)  # type: ignore[arg-type]


def test_whole_numbers_of_other_kinds_are_what_they_stand_for(node: ServedNode) -> None:
    """Integers of NumPy, and floats such as a division leaves them."""
    options = {
        "rank": np.int32(1),
        "world_size": np.uint8(2),
        "batches_per_step": 4.0,
        "prefetch": np.float64(3),
        "start": np.int64(2),
        "deadline_s": np.float32(60),
        "limits": Limits(prefetch_bytes=1e6, max_body_bytes=np.int64(1 << 20)),  # type: ignore[arg-type]
    }
    with alone(node, **options) as loader:
        assert [batch.position for batch in take(loader, 4)] == [9, 11, 13, 15]
        assert loader.state_dict()["step"] == 4


def test_a_rank_is_said_by_arguments_or_by_one_value(node: ServedNode) -> None:
    ranks = Ranks(rank=1, world_size=3)
    with alone(node, rank=None, world_size=None, ranks=ranks, batches_per_step=3) as loader:
        assert (loader.world_rank.rank, loader.world_rank.world_size) == (1, 3)
        assert [batch.position for batch in take(loader, 3)] == [1, 4, 7]


def test_arrays_on_a_device_are_refused(node: ServedNode) -> None:
    with alone(node, device="cpu") as loader, pytest.raises(InvalidRequest, match="as_numpy"):
        next(iter(loader))


@pytest.mark.torch
def test_a_device_that_torch_does_not_know_is_refused(node: ServedNode) -> None:
    with (
        alone(node, as_numpy=None, device="nowhere") as loader,
        pytest.raises(InvalidRequest, match="not a device of torch"),
    ):
        next(iter(loader))


@pytest.mark.torch
def test_a_cuda_device_that_is_not_there_is_refused(node: ServedNode) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device: only where there is none is it refused")
    reason = "finds no CUDA device" if torch.version.cuda else r".* is built without CUDA"
    for memory in ("auto", "torch", "plain"):
        with (
            alone(node, as_numpy=None, device="cuda", memory=memory) as loader,
            pytest.raises(InvalidRequest, match=f"device='cuda': torch {reason}") as caught,
        ):
            next(iter(loader))
        assert caught.value.code == "no_device"


@pytest.mark.parametrize("target", [None, 7, b"127.0.0.1:50051"])
def test_a_target_that_is_not_a_name_is_refused(target: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"target=.*: write host:port"):
        next(iter(Loader(target, "code", rank=0, world_size=1)))


def test_a_device_without_torch_names_what_is_missing(
    node: ServedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with (
        alone(node, as_numpy=None, device="cuda") as loader,
        pytest.raises(MissingExtra, match="needs torch"),
    ):
        next(iter(loader))
    with alone(node, as_numpy=None) as loader:
        assert isinstance(next(iter(loader))["input_ids"], np.ndarray)


def test_the_servers_errors_arrive_as_their_class(node: ServedNode) -> None:
    with (
        Loader(node.address, "cod", rank=0, world_size=1) as loader,
        pytest.raises(UnknownJob, match="did you mean code"),
    ):
        next(iter(loader))


def test_a_step_that_ranks_cannot_share_names_the_values_that_work(node: ServedNode) -> None:
    with (
        alone(node, world_size=4, batches_per_step=6) as loader,
        pytest.raises(UnevenStep, match="batches_per_step 4 or 8"),
    ):
        next(iter(loader))


def test_a_start_past_the_end_is_refused() -> None:
    with ServedNode(batches=10) as node:
        with alone(node, start=11) as loader, pytest.raises(PastEnd, match="holds 10 batches"):
            next(iter(loader))
        with alone(node, start=10) as loader:
            assert list(loader) == []


def test_an_ephemeral_loader_has_no_cursor(node: ServedNode) -> None:
    with alone(node) as loader:
        with pytest.raises(NoGroup, match="pass group="):
            loader.commit()
        with pytest.raises(NoGroup, match="pass group="):
            loader.checkpoint("x")


def test_a_body_above_the_limit_is_refused_before_memory_is_taken() -> None:
    with (
        ServedNode(nbytes=1 << 20) as node,
        alone(node, limits=Limits(max_body_bytes=1 << 16)) as loader,
    ):
        with pytest.raises(BadFrame, match="at most 65536"):
            next(iter(loader))
        assert loader.stats()["pool_leased_bytes"] == 0


@pytest.mark.parametrize("described", [None, 12])
def test_an_end_that_was_not_announced_is_no_end(described: int | None) -> None:
    """A node that ends a log elsewhere than it said loses batches: an error, and no quiet end."""
    with (
        ServedNode(batches=described) as node,
        Relay(node.address) as relay,
        alone(relay) as loader,
    ):
        relay.faults.end_after.append(4)
        with pytest.raises(BadFrame, match="ends job 'code' after 4 steps, and described it as"):
            list(loader)


def test_a_closed_loader_says_so(node: ServedNode) -> None:
    loader = alone(node)
    take(loader, 1)
    loader.close()
    loader.close()

    with pytest.raises(InvalidRequest, match="closed"):
        next(iter(loader))


def test_stats_count_what_was_yielded(node: ServedNode) -> None:
    with alone(node, batches_per_step=2) as loader:
        batches = take(loader, 4)
        stats = loader.stats()

    assert stats["batches"] == 4
    assert stats["bytes"] == sum(batch.nbytes for batch in batches)
    assert stats["tokens"] == 10 + 11 + 12 + 13
    assert stats["position"] == 3
    assert stats["first_batch_s"] > 0
    assert stats["wait_s"] >= 0
    assert 0 <= stats["wait_share"] <= 1
    assert stats["batches_per_s"] > 0
