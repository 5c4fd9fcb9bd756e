"""Real models of transformers, small, give a packed batch the loss of its documents one by one."""

from __future__ import annotations

import gc
import itertools
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from harness import serving, write_job_file
from penstock.client import Batch, Loader, masks
from penstock.client.testing import Lazy, Random, SimulatedDevice

COLLATORS = Path(__file__).parents[2] / "docs" / "collators.md"
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
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows in two layouts: two rows a batch, each of several documents and padding."""
    rng = np.random.default_rng(4)
    items = [
        {"input_ids": rng.integers(0, VOCABULARY, size=size).tolist()}
        for size in rng.integers(2, 20, size=60)
    ]
    job: dict[str, Any] = {
        "lanes": 2,
        "source": {"type": "items", "items": items},
        "batcher": {"type": "best_fit", "max_tokens": ROW_TOKENS - 3, "rows": 2, "pool_size": 6},
        "collator": {"type": "packed", "pad_to": ROW_TOKENS, "ids_dtype": "int32"},
    }
    indexed = {**job, "collator": {**job["collator"], "layout": "indexed"}}
    jobs = {"flash": job, "indexed": indexed}
    return write_job_file(tmp_path_factory.mktemp("packed") / "jobs.yaml", jobs)


def first_batches(file: Path, job: str) -> Iterator[list[Batch]]:
    with Loader(f"local:{file}", job) as loader:
        assert loader.layout == (job, False, -100)
        yield [batch for _, batch in zip(range(3), loader, strict=False)]


@pytest.fixture(scope="module")
def batches(file: Path) -> Iterator[list[Batch]]:
    """As models of transformers take them."""
    yield from first_batches(file, "flash")


@pytest.fixture(scope="module")
def indexed(file: Path) -> Iterator[list[Batch]]:
    """With document numbers as a mask."""
    yield from first_batches(file, "indexed")


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


def trained(address: str, device: SimulatedDevice | None) -> tuple[list[float], list[torch.Tensor]]:
    """Return the losses of a few steps of training, and the weights after them."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with Loader(address, "flash", rank=0, world_size=1, device=device) as loader:
        for batch in itertools.islice(loader, 8):
            loss = model(**batch, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [weights.detach() for weights in model.parameters()]


def test_a_device_gives_the_losses_of_plain_memory_to_the_last_bit(file: Path) -> None:
    """Whenever it does its work: at random, or not before the loop's stream waits for it."""
    with serving(file) as server:
        losses, weights = trained(server.address, None)
        assert len(set(losses)) == 8

        for schedule in (Random(5), Lazy()):
            device = SimulatedDevice(schedule, tensors=True)
            found, others = trained(server.address, device)
            assert found == losses
            assert all(map(torch.equal, weights, others))
            gc.collect()
            device.simulator.close()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning")
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
def test_a_mask_of_the_trainer_gives_the_same_loss(
    attention: str, indexed: list[Batch], batches: list[Batch]
) -> None:
    """Indexed rows with the mask that its attention takes; rows of `flash` need none."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES, attn_implementation=attention)
    model = transformers.LlamaForCausalLM(config)
    plain_model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    plain_model.load_state_dict(model.state_dict())

    for batch, plain in zip(indexed, batches, strict=True):
        mask = masks.for_attention(batch, attention)
        # Flex would be compiled, which takes half a minute and changes no result.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            loss = model(**{**batch, "attention_mask": mask}, use_cache=False).loss
            without = model(**plain, use_cache=False).loss
            one_by_one = unpacked_loss(plain_model, plain)

        assert torch.equal(masks.document_ids(batch), plain["document_ids"])
        assert loss.item() == pytest.approx(one_by_one.item(), rel=1e-6)
        assert without.item() == pytest.approx(one_by_one.item(), rel=1e-6)


def documents_one_by_one(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **given: Any
) -> tuple[Any, None]:
    """Attend as varlen kernels do: no mask, but where each document ends in the flattened rows."""
    assert attention_mask is None
    ends = given["cu_seq_lens_q"].tolist()
    heads = query.shape[1]
    flat = [
        each.repeat_interleave(heads // each.shape[1], 1).transpose(1, 2).flatten(0, 1)
        for each in (query, key, value)
    ]
    found = [
        torch.nn.functional.scaled_dot_product_attention(
            *(each[start:stop].transpose(0, 1)[None] for each in flat), is_causal=True
        )[0].transpose(0, 1)
        for start, stop in itertools.pairwise(ends)
    ]
    return torch.cat(found).view(len(query), -1, *flat[0].shape[1:]), None


def test_training_loses_alike_with_every_attention(
    indexed: list[Batch], batches: list[Batch]
) -> None:
    """Six steps of AdamW: the model's own masks, ours, lengths in place of one, one by one."""
    transformers.AttentionInterface.register("documents", documents_one_by_one)

    def losses(attention: str, loss_of: Any) -> list[float]:
        torch.manual_seed(3)
        config = transformers.LlamaConfig(**SIZES, attn_implementation=attention)
        model = transformers.LlamaForCausalLM(config).double()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        found = []
        for step in range(6):
            loss = loss_of(model, batches[step % 3], indexed[step % 3])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    def plain(model: Any, batch: Batch, _: Batch) -> Any:
        return model(**batch, use_cache=False).loss

    def masked(attention: str, model: Any, batch: Batch) -> Any:
        mask = masks.for_attention(batch, attention, dtype=torch.float64)
        return model(**{**batch, "attention_mask": mask}, use_cache=False).loss

    wanted = losses("sdpa", lambda model, batch, _: unpacked_loss(model, batch))
    assert max(wanted[3:]) < 0.95 * min(wanted[:3])
    for attention, loss_of in (
        ("sdpa", plain),
        ("eager", plain),
        ("documents", plain),
        ("sdpa", lambda model, _, batch: masked("sdpa", model, batch)),
        ("eager", lambda model, _, batch: masked("eager", model, batch)),
    ):
        # A model of transformers takes its loss in float32.
        assert losses(attention, loss_of) == pytest.approx(wanted, rel=1e-6), attention


def test_the_pages_example_of_masks_runs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/collators.md has it, whatever the layout."""
    [code] = re.findall(
        r"<!-- file: attend.py -->\n```python\n(.*?)^```", COLLATORS.read_text(), re.M | re.S
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "packed.yaml").write_text(
        file.read_text().replace("indexed:", "rows:").replace("layout: indexed", "layout: thd")
    )

    found = runpy.run_path(write(tmp_path / "attend.py", code))

    assert found["out"].isfinite().all()
    assert len(found["first"]) == int((found["documents"] > 0).sum())


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_comparison_notices_documents_that_see_each_other(batches: list[Batch]) -> None:
    """Without `position_ids` the model takes a row for one document: the loss is another."""
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    batch = batches[0]
    leaky = {name: batch[name] for name in ("input_ids", "labels")}

    with torch.no_grad():
        loss = model(**leaky, use_cache=False).loss

        assert abs(loss.item() - unpacked_loss(model, batch).item()) > 1e-4
