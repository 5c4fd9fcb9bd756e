"""Real models of transformers, small, give a packed batch the loss of its documents one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from harness import write_job_file
from penstock.client import Batch, Loader

VOCABULARY, ROW_TOKENS = 64, 48
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": ROW_TOKENS,
}


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Batch]]:
    """A few packed batches of two rows, each of several documents and some padding."""
    rng = np.random.default_rng(4)
    items = [
        {"input_ids": rng.integers(0, VOCABULARY, size=size).tolist()}
        for size in rng.integers(2, 20, size=60)
    ]
    job = {
        "lanes": 2,
        "source": {"type": "items", "items": items},
        "batcher": {"type": "best_fit", "max_tokens": ROW_TOKENS - 3, "rows": 2, "pool_size": 6},
        "collator": {"type": "packed", "pad_to": ROW_TOKENS, "ids_dtype": "int32"},
    }
    file = write_job_file(tmp_path_factory.mktemp("packed") / "jobs.yaml", {"main": job})
    with Loader(f"local:{file}", "main") as loader:
        yield [batch for _, batch in zip(range(3), loader, strict=False)]


def unpacked_loss(model: Any, batch: Batch) -> Any:
    """Return the mean loss over the labels of a batch, each document in a call of its own."""
    total, tokens = torch.zeros(()), 0
    for ids, labels, numbers in zip(
        batch["input_ids"], batch["labels"], batch["document_ids"], strict=True
    ):
        for number in range(1, int(numbers.max()) + 1):
            document = numbers == number
            logits = model(input_ids=ids[document][None]).logits[0, :-1]
            wanted = labels[document][1:]
            total = total + torch.nn.functional.cross_entropy(
                logits, wanted, ignore_index=-100, reduction="sum"
            )
            tokens += int((wanted != -100).sum())
    assert tokens == batch.counts["loss_tokens"]
    return total / tokens


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_loss_is_the_same_packed_and_unpacked(
    name: str, attention: str, batches: list[Batch]
) -> None:
    """`model(**batch, use_cache=False)` is the loss of documents that do not see each other.

    The mean comes out of the model alone and, as in the README, with the number of tokens given.
    """
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**SIZES, attn_implementation=attention)
    model = getattr(transformers, f"{name}ForCausalLM")(config)

    for batch in batches:
        with torch.no_grad():
            mean = model(**batch, use_cache=False).loss
            given = model(
                **batch, use_cache=False, num_items_in_batch=2 * batch.counts["loss_tokens"]
            ).loss
            one_by_one = unpacked_loss(model, batch)

        assert len(batch["cu_seq_lens_q"]) > 4
        assert mean.item() == pytest.approx(one_by_one.item(), rel=1e-6)
        assert 2 * given.item() == pytest.approx(one_by_one.item(), rel=1e-6)


def test_the_comparison_notices_documents_that_see_each_other(batches: list[Batch]) -> None:
    """Without `position_ids` the model takes a row for one document: the loss is another."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    batch = batches[0]
    leaky = {name: batch[name] for name in ("input_ids", "labels")}

    with torch.no_grad():
        loss = model(**leaky, use_cache=False).loss

        assert abs(loss.item() - unpacked_loss(model, batch).item()) > 1e-4
