"""A tiny causal model has the same loss and gradients packed and with one row per document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.server.roles.collators import PackedCollator, PaddedCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.samples import Sample

torch = pytest.importorskip("torch")

VOCABULARY, WIDTH, LONGEST = 23, 8, 64


def model() -> dict[str, Any]:
    """One attention head between an embedding and a linear layer, float64."""
    generator = torch.Generator().manual_seed(11)

    def weight(*shape: int) -> Any:
        values = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return values.requires_grad_()

    return {
        "tokens": weight(VOCABULARY, WIDTH),
        "positions": weight(LONGEST, WIDTH),
        "qkv": weight(WIDTH, 3 * WIDTH),
        "out": weight(WIDTH, VOCABULARY),
    }


def summed_loss(
    weights: dict[str, Any], ids: Any, positions: Any, documents: Any, labels: Any, shifted: bool
) -> Any:
    """Return the sum over all labels that are not -100; attention within one document, causal."""
    hidden = weights["tokens"][ids] + weights["positions"][positions]
    query, key, value = (hidden @ weights["qkv"]).split(WIDTH, dim=-1)
    width = ids.shape[1]
    sees = (documents[:, :, None] == documents[:, None, :]) & (documents > 0)[:, None, :]
    sees &= torch.ones(width, width, dtype=torch.bool).tril()
    # A token of padding sees itself, or its softmax would be of nothing; no label reads it.
    sees |= torch.eye(width, dtype=torch.bool)
    scores = (query @ key.transpose(1, 2)).masked_fill(~sees, -torch.inf)
    logits = (hidden + scores.softmax(-1) @ value) @ weights["out"]
    if not shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, VOCABULARY), labels.reshape(-1), ignore_index=-100, reduction="sum"
    )


def documents(seed: int) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made: list[Sample] = []
    for length in rng.integers(1, 10, size=7):
        ids = rng.integers(0, VOCABULARY, size=length)
        sample: Sample = {"input_ids": ids.astype(np.int32)}
        if rng.integers(2):
            sample["labels"] = np.where(rng.integers(0, 3, size=length) > 0, ids, -100)
        made.append(sample)
    return made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "parameters",
    [
        {"pad_to": 64},
        {},
        {"labels": "shifted"},
        {"pad_to": 80, "document_multiple": 4},
        {"pad_to": 64, "labels": "shifted", "document_multiple": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("height", [1, 2])
def test_the_loss_is_the_same_packed_and_unpacked(
    seed: int, parameters: dict[str, Any], height: int
) -> None:
    """Packing changes where a document lies, and not what the model learns from it."""
    samples = documents(seed)
    rows = [samples[number::height] for number in range(height)]
    packed_told, padded_told = CollateContext(0, 0, 0), CollateContext(0, 0, 0)
    packed = PackedCollator(**parameters).collate(rows, packed_told)
    padded = PaddedCollator().collate([[sample] for sample in samples], padded_told)
    losses, gradients = [], []

    for values, shifted in ((packed, parameters.get("labels") == "shifted"), (padded, False)):
        weights = model()
        ids = torch.from_numpy(values["input_ids"])
        if values is packed:
            positions = torch.from_numpy(values["position_ids"])
            numbers = torch.from_numpy(values["document_ids"])
        else:
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            numbers = torch.from_numpy(values["attention_mask"])
        loss = summed_loss(
            weights, ids, positions, numbers, torch.from_numpy(values["labels"]), shifted
        )
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: weight.grad for name, weight in weights.items()})

    assert losses[0] > 0
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-9, atol=1e-12)
    assert packed_told.counts["tokens"] == padded_told.counts["tokens"]


def test_the_check_notices_a_leak_between_documents() -> None:
    """With one number for all documents the loss differs: the comparison above can fail."""
    samples = documents(3)
    values = PackedCollator().collate([samples], CollateContext(0, 0, 0))
    weights = model()
    ids, positions, labels = (
        torch.from_numpy(values[name]) for name in ("input_ids", "position_ids", "labels")
    )
    right = torch.from_numpy(values["document_ids"])

    kept = summed_loss(weights, ids, positions, right, labels, shifted=False)
    leaked = summed_loss(weights, ids, positions, torch.ones_like(right), labels, shifted=False)

    assert abs(kept.item() - leaked.item()) > 1e-3
