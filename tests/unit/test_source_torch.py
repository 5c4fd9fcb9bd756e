"""A researcher's Dataset as a source: unedited, pure, and each kind of failure told apart."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.server.sources import TorchDatasetSource
from penstock.server.sources.seeding import seeded_globals
from penstock.wire.errors import BadItem, InvalidJob, SourceUnavailable

AUGMENTING = """
import random
import numpy as np

class Noisy:
    def __len__(self):
        return 5
    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), {torch_draw}
"""


class Failing:
    """A dataset of three items, each of which calls a function."""

    version = 1

    def __init__(self, fail: Callable[[], Any]) -> None:
        self.fail = fail

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.fail()


@pytest.mark.parametrize("torch_draw", ["None", "__import__('torch').rand(1).item()"])
def test_global_randomness_in_a_dataset_is_a_function_of_the_index(
    tmp_path: Path, torch_draw: str
) -> None:
    """Augmentation with global generators gives the same items in any order, after any draws."""
    pytest.importorskip("torch")
    path = tmp_path / "noisy.py"
    path.write_text(AUGMENTING.format(torch_draw=torch_draw))
    source = TorchDatasetSource(f"{path}:Noisy")

    forwards = source.fetch(range(5))
    random.random()
    np.random.rand()
    backwards = source.fetch([4, 3, 2, 1, 0])

    assert forwards == backwards[::-1]
    assert len({item[1:] for item in forwards}) == 5


def test_the_callers_own_generators_go_on_undisturbed() -> None:
    """A trainer in the same process draws what it would have drawn, even where the item fails."""
    torch = pytest.importorskip("torch")

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    def fail() -> None:
        draw()
        raise ValueError("broken")

    seed()
    expected = [draw(), draw()]
    seed()
    first = draw()
    with pytest.raises(BadItem):
        TorchDatasetSource(dataset=Failing(fail)).fetch([0])

    assert [first, draw()] == expected


def test_different_purposes_seed_differently() -> None:
    """The same purpose gives the same draws, another one others."""
    draws = []
    for purpose in ("a", "b", "a"):
        with seeded_globals(purpose):
            draws.append((random.random(), np.random.rand()))

    assert draws[0] == draws[2] != draws[1]


def test_a_torch_dataset_object_works_as_it_is() -> None:
    """An object of torch's own class is a source in Python; its items are torch's."""
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(4))

    source = TorchDatasetSource(dataset=dataset)

    assert [item.item() for (item,) in source.fetch([3, 0])] == [3, 0]
    assert source.identity() == TorchDatasetSource(dataset=dataset).identity()


def test_an_error_of_the_system_is_unavailable_and_names_the_item() -> None:
    """OSErrors and timeouts are to be retried: never a fact about the bytes."""
    for error in (FileNotFoundError(2, "no such file"), TimeoutError("slow"), OSError("503")):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(SourceUnavailable, match="item 2 cannot be read") as caught:
            TorchDatasetSource(dataset=Failing(fail)).fetch([2])
        assert caught.value.fields["item"] == 2


def test_any_other_error_is_a_bad_item_with_its_traceback() -> None:
    """What the bytes make fail is named: stage, item, reason, and the line of the user's code."""

    def fail() -> None:
        raise KeyError("label")

    with pytest.raises(BadItem, match="item 1 of Failing fails: KeyError: 'label'") as caught:
        TorchDatasetSource(dataset=Failing(fail)).fetch([1])

    fields = caught.value.fields
    assert (fields["item"], fields["stage"], fields["reason"]) == (1, "fetch", "KeyError: 'label'")
    assert 'raise KeyError("label")' in fields["traceback"]


def test_a_broken_image_is_a_bad_item_though_pillow_calls_it_an_oserror(tmp_path: Path) -> None:
    """Truncated and unknown images are facts about the bytes; a missing file is not."""
    image = pytest.importorskip("PIL.Image")
    whole = tmp_path / "whole.png"
    image.effect_noise((64, 64), 50).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:500])
    (tmp_path / "junk.png").write_bytes(b"junk")

    def load(name: str) -> Callable[[], Any]:
        def inner() -> Any:
            with image.open(tmp_path / name) as opened:
                return opened.convert("L").size

        return inner

    assert TorchDatasetSource(dataset=Failing(load("whole.png"))).fetch([0]) == [(64, 64)]
    for name in ("cut.png", "junk.png"):
        with pytest.raises(BadItem):
            TorchDatasetSource(dataset=Failing(load(name))).fetch([0])
    with pytest.raises(SourceUnavailable):
        TorchDatasetSource(dataset=Failing(load("none.png"))).fetch([0])


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
        ({"factory": f"{path}:broken"}, r"failed: ValueError: no corpus \(.*data\.py, line 2\)"),
        ({"factory": f"{path}:broken", "deep": 1}, "failed: TypeError: .*'deep'"),
        ({"factory": f"{path}:stream"}, "no __len__.*iterable"),
        ({"factory": f"{path}:Endless"}, "no __getitem__"),
        ({"factory": f"{path}:brokn"}, "did you mean broken"),
    ):
        with pytest.raises(InvalidJob, match=sentence):
            TorchDatasetSource(**arguments)
