"""Nothing that decides bytes changes unnoticed: the files in tests/golden say what it gives."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from golden import content
from penstock.server.core import permutation
from penstock.server.core.refs import ItemRef
from penstock.server.job import job
from penstock.server.roles import batcher, context
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.collators import PackedCollator
from penstock.server.roles.distributors import MapDistributor


@pytest.mark.parametrize("name", content.SECTIONS)
def test_what_a_job_gives_is_what_it_gave(name: str) -> None:
    """A change of bytes takes a raised version, a line in the changelog, and new files."""
    assert not content.complaint(name)


def other_item_key(seed: int, item: ItemRef) -> int:
    text = f"item {seed} {item}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def other_batch_key(seed: int, lane: int, offset: int) -> int:
    return context.item_key(seed, ItemRef("batch", lane, offset))


def other_mix(z: int) -> int:
    return z >> 1


def other_draw(self: Any, lane: int, lanes: int, k: int) -> ItemRef:
    return ItemRef("main", (k * lanes + lane) % self.items, 0)


def other_state(self: Any) -> Any:
    return {**batcher.SampleBatcher.state(self), "more": 1}


def other_values(self: Any, rows: Any, context: Any) -> dict[str, Any]:
    return {"input_ids": [len(row) for row in rows]}


@pytest.mark.parametrize(
    ("where", "attribute", "value", "changed"),
    [
        (context, "item_key", other_item_key, {"keys"}),
        (context, "batch_key", other_batch_key, {"keys"}),
        (permutation, "mix", other_mix, {"permutations", "draws", "batches", "snapshots"}),
        (MapDistributor, "draw", other_draw, {"draws", "batches", "snapshots"}),
        (BestFitPackingBatcher, "state", other_state, {"snapshots"}),
        (PackedCollator, "collate_to_send", other_values, {"batches"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_without_a_raised_version_is_named(
    where: Any, attribute: str, value: Any, changed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change shows in the sections that depend on it, with the version that must rise."""
    monkeypatch.setattr(where, attribute, value)

    complaints = {name: content.complaint(name) for name in content.SECTIONS}

    assert {name for name, text in complaints.items() if text} == changed
    for name in changed:
        assert f"{name} has changed, and no version did: raise " in complaints[name]
        assert "CHANGELOG.md" in complaints[name]


def test_a_raised_version_is_told_from_a_forgotten_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all that is left to do is to write the files, and to say so."""
    monkeypatch.setattr(context, "item_key", other_item_key)
    monkeypatch.setattr(job, "ORDER_FORMAT", job.ORDER_FORMAT + 1)

    assert "keys has changed, and a version with it" in content.complaint("keys")
    assert "a version rose and draws is as it was" in content.complaint("draws")
