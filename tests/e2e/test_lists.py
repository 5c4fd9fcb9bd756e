"""Values of samples that stay apart, on their way to a trainer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness import serving, write_job_file
from penstock.client import Loader

PICTURES = """
import numpy as np


def pictures(raw, context):
    shape = tuple(int(size) for size in context.rng.integers(1, 40, 2))
    if raw % 3 == 0:
        return {"number": raw, "pictures": [], "note": {"of": raw}}
    return {"number": raw, "pictures": [np.full((*shape, 3), raw % 251, np.uint8)] * (raw % 3)}
"""


@pytest.mark.torch
def test_two_thousand_pictures_of_their_own_shapes_arrive(tmp_path: Path) -> None:
    """In one batch, none stacked, each with its shape; as tensors where torch is there."""
    torch = pytest.importorskip("torch")
    (tmp_path / "data.py").write_text(PICTURES)
    job = {
        "source": {"type": "items", "items": list(range(2000))},
        "processor": {"function": "./data.py:pictures"},
        "batch_size": 2000,
        "collator": "lists",
        "lanes": 1,
        "distributor": {"type": "map", "shuffle": "none"},
    }
    file = write_job_file(tmp_path / "job.yaml", {"pictures": job})

    with (
        serving(file) as server,
        Loader(server.address, "pictures", rank=0, world_size=1) as loader,
    ):
        batch = next(iter(loader))

    assert [int(number) for number in batch["number"]] == list(range(2000))
    assert batch["note"] == [{"of": number} for number in range(0, 2000, 3)]
    shapes = set()
    for number, found in enumerate(batch["pictures"]):
        assert len(found) == number % 3
        for picture in found:
            assert picture.dtype == torch.uint8
            assert np.all(np.asarray(picture) == number % 251)
            shapes.add(tuple(picture.shape))
    assert len(shapes) > 500
