"""A researcher's Dataset as a source: unedited, the same on every node, mistakes in words."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.sources import TorchDatasetSource
from penstock.server.usercode.seeding import purpose_key, seeded_globals
from penstock.wire.errors import InvalidJob

SPLITTING = """
import random
import numpy as np

def make():
    draws = {draws}
    order = [0, 1, 2, 3, 4]
    random.shuffle(order)
    np.random.shuffle(order)
    return [(index, draws) for index in order]
"""


class Failing:
    """A dataset of three items, each of which raises the same error."""

    version = 1

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise self.error


@pytest.mark.parametrize("draws", ["None", "__import__('torch').randperm(9).tolist()"])
def test_a_factory_that_draws_at_random_makes_the_same_dataset_on_every_node(
    tmp_path: Path, draws: str
) -> None:
    """A random split made in the factory is one split, whatever was drawn before."""
    pytest.importorskip("torch")
    path = tmp_path / "split.py"
    path.write_text(SPLITTING.format(draws=draws))

    first = TorchDatasetSource(f"{path}:make").fetch(range(5))
    random.random()
    np.random.rand()
    second = TorchDatasetSource(f"{path}:make").fetch(range(5))

    assert first == second


def test_the_callers_own_generators_go_on_undisturbed() -> None:
    """A trainer in the same process draws what it would have drawn, also after an error."""
    torch = pytest.importorskip("torch")

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    expected = [draw(), draw()]
    seed()
    first = draw()
    with contextlib.suppress(ValueError), seeded_globals(purpose_key("test")):
        within = draw()
        raise ValueError("an error inside")

    assert within not in expected
    assert [first, draw()] == expected


def test_different_purposes_seed_differently() -> None:
    """The same purpose gives the same draws, another one others."""
    draws = []
    for purpose in ("a", "b", "a"):
        with seeded_globals(purpose_key(purpose)):
            draws.append((random.random(), np.random.rand()))

    assert draws[0] == draws[2] != draws[1]


def test_a_torch_dataset_object_works_as_it_is() -> None:
    """An object of torch's own class is a source in Python; its items are torch's."""
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(4))

    source = TorchDatasetSource(dataset=dataset)

    assert [item.item() for (item,) in source.fetch([3, 0])] == [3, 0]
    assert source.identity() == TorchDatasetSource(dataset=dataset).identity()


def test_what_an_item_raises_reaches_the_caller_as_it_is() -> None:
    """The pipeline tells a flaky mount from bad bytes: the source hides neither."""
    for error in (FileNotFoundError(2, "no such file"), TimeoutError("slow"), KeyError("label")):
        source = TorchDatasetSource(dataset=Failing(error))

        with pytest.raises(type(error)) as caught:
            source.fetch([1])
        assert caught.value is error


def test_items_are_asked_one_by_one_with_seeded_generators() -> None:
    """The source tells the pipeline that a Dataset may augment in `__getitem__`."""
    assert TorchDatasetSource.uses_global_rng


def test_arguments_and_the_datasets_own_fingerprint_are_in_the_identity(tmp_path: Path) -> None:
    """Another argument or another content behind the dataset is another source."""
    path = tmp_path / "data.py"
    path.write_text(
        "class Rows:\n"
        "    def __init__(self, digest, start=0): self.digest = digest\n"
        "    def __len__(self): return 3\n"
        "    def __getitem__(self, index): return index\n"
        "    def fingerprint(self): return {'digest': self.digest}\n"
        "def make(digest): return Rows(digest)\n"
    )

    def identity(name: str, **arguments: Any) -> str:
        return str(TorchDatasetSource(f"{path}:{name}", **arguments).identity())

    identities = {
        identity("Rows", digest="a"),
        identity("Rows", digest="b"),
        identity("Rows", digest="a", start=1),
        identity("make", digest="a"),
    }
    assert len(identities) == 4
    assert identity("Rows", digest="a") in identities


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    """A factory that fails, or gives no map-style dataset, is named with the place."""
    path = tmp_path / "data.py"
    path.write_text(
        "def broken():\n    raise ValueError('no corpus')\n"
        "def stream():\n    return iter([1])\n"
        "class Endless:\n    def __len__(self): return 3\n"
    )

    for arguments, sentence in (
        ({}, "either factory"),
        ({"factory": f"{path}:broken", "dataset": [1]}, "either factory"),
        ({"factory": f"{path}:broken"}, r"failed: ValueError: no corpus \(.*data\.py:2\)"),
        ({"factory": f"{path}:broken", "deep": 1}, "failed: TypeError: .*'deep'"),
        ({"factory": f"{path}:stream"}, "no __len__.*iterable"),
        ({"factory": f"{path}:Endless"}, "no __getitem__"),
        ({"factory": f"{path}:brokn"}, "did you mean broken"),
    ):
        with pytest.raises(InvalidJob, match=sentence) as caught:
            TorchDatasetSource(**arguments)
        # The frames that a command prints are the author's own.
        assert "penstock" not in caught.value.fields.get("traceback", "")
