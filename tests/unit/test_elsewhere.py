"""Settings that are written where they are not: each mistake says where the setting is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from penstock.client import Loader
from penstock.client.run.unknown_parameters import OF_JOBS, OF_NODES
from penstock.common.elsewhere import ELSEWHERE, RENAMED
from penstock.server.jobs.load import load
from penstock.server.jobs.registry import KINDS
from penstock.server.jobs.settings import JobSettings, MediaSettings, ServerSettings
from penstock.wire.errors import InvalidJob, InvalidRequest

LOADER = set(inspect.signature(Loader).parameters) - {"unknown"}
ROLES = {
    name
    for kind in KINDS.values()
    for cls in kind.builtins.values()
    for name in inspect.signature(cls).parameters
}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num_workers", "spawn:FILE?workers=4"),
        ("batch_size", "batch_size: or by its batcher"),
        ("shuffle", "distributor: {type: map, shuffle: blocks}"),
        ("collate_fn", "collator"),
        ("pin_memory", 'device="cuda"'),
        ("prefetch_factor", "prefetch="),
        ("prefech", "did you mean prefetch?"),
        ("max_tokens", "max_tokens: is a key of the job file"),
        ("ready_bytes", "penstockd serve --ready-bytes"),
        ("zzz", "known are arrive, as_numpy, attempt, batches_per_step"),
    ],
)
def test_a_loader_says_where_a_setting_is(name: str, said: str) -> None:
    given = {name: 4}
    with pytest.raises(InvalidRequest, match=f"^Loader has no parameter {name}: ") as caught:
        Loader("local:job.yaml", "main", **given)  # type: ignore[arg-type]

    assert said in caught.value.message
    assert "unknown" not in caught.value.message
    assert caught.value.fields["field"] == name


ITEMS = "source: {type: items, items: [1]}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{ITEMS}\n    image_folder: x", r"main.image_folder is not a key .* media: \{dir: PATH"),
        (f"{ITEMS}\n    num_workers: 4", "main.num_workers is not a key .* workers: 4 below serv"),
        (f"{ITEMS}\n    shuffle: true", "main.shuffle is not a key .* distributor: {type: map, sh"),
        (f"{ITEMS}\n    max_tokens: 4", "of the batcher best_fit: batcher: {type: best_fit, max_t"),
        (f"{ITEMS}\n    store: x", r"it is a key of the node: server: {store: \.\.\.}"),
        ("source: {type: items, items: [1], shuffle: 1}", "source.shuffle is not .*distributor"),
        ("source: {type: parquet, path: x}", "source.path is not .*did you mean files"),
        ("source: {type: parquet, files: x, column: x}", "did you mean columns"),
        (f"{ITEMS}\n    batcher: {{type: best_fit, max_tokens: 4, pad_to: 4}}", "collator packed"),
        (f"{ITEMS}\n    sorce: 1", "did you mean source"),
    ],
)
def test_a_job_says_where_a_key_is(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"jobs:\n  main:\n    {text}\n    batch_size: 1\n")
    if "batcher" in text:
        path.write_text(f"jobs:\n  main:\n    {text}\n    collator: packed\n")

    with pytest.raises(InvalidJob, match=said):
        _ = load(str(path)).jobs["main"].log_id


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize(
    "text",
    [
        f"{ITEMS}\n    batch_size: 1\n    NAME: 4",
        "source: {type: items, items: [1], NAME: 4}\n    batch_size: 1",
        f"{ITEMS}\n    batcher: {{type: simple, batch_size: 1, NAME: 4}}",
        f"{ITEMS}\n    batcher: {{type: best_fit, max_tokens: 4, NAME: 4}}\n    collator: packed",
        f"{ITEMS}\n    batcher: {{type: sequential, NAME: 4}}\n    collator: packed",
        f"{ITEMS}\n    batch_size: 1\n    processor: {{type: tokenize, tokenizer: x, NAME: 4}}",
        f"{ITEMS}\n    batch_size: 1\n    collator: {{type: padded, NAME: 4}}",
    ],
    ids=["job", "source", "simple", "best_fit", "sequential", "tokenize", "padded"],
)
def test_a_name_of_other_packing_loaders_has_its_replacement(
    tmp_path: Path, text: str, name: str
) -> None:
    """Whichever section it is written in, and whatever key is spelled like it there."""
    path = tmp_path / "job.yaml"
    path.write_text(f"jobs:\n  main:\n    {text.replace('NAME', name)}\n")

    with pytest.raises(InvalidJob, match=re.escape(RENAMED[name])) as caught:
        _ = load(str(path)).jobs["main"].log_id

    assert f"{name} is not " in caught.value.message
    assert "did you mean" not in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source: {type: items, items: [1]}\nbatch_size: 1\n", "jobs: {NAME: {source: ...}}"),
        ("server: {seed: 1}\njobs: {m: {source: hf, batch_size: 1}}\n", "{NAME: {seed: ...}}"),
        ("server: {num_workers: 1}\njobs: {m: {source: hf, batch_size: 1}}\n", "mean workers?"),
    ],
)
def test_a_file_says_where_a_key_is(tmp_path: Path, text: str, said: str) -> None:
    """A key of a job at the margin is told before the section that it stands in place of."""
    path = tmp_path / "job.yaml"
    path.write_text(text)

    with pytest.raises(InvalidJob, match=re.escape(said)):
        load(str(path))


def test_what_is_listed_is_true() -> None:
    """No name of another loader is one of ours in the same place, and our places exist."""
    assert not LOADER & set(ELSEWHERE)
    assert not (LOADER | set(ELSEWHERE)) & (OF_JOBS | OF_NODES)
    assert set(JobSettings.model_fields) | ROLES >= OF_JOBS
    assert set(ServerSettings.model_fields) >= OF_NODES
    assert not set(RENAMED) & {*ROLES, *JobSettings.model_fields, *ServerSettings.model_fields}
    for sentence in ELSEWHERE.values():
        for name in re.findall(r"(\w+)=", sentence):
            assert name in LOADER | {"workers"}, sentence
        for kind, role in re.findall(r"(\w+): {type: (\w+)", sentence):
            assert role in KINDS[kind].builtins, sentence
        for key in re.findall(r"[{,] ?(\w+): ", sentence):
            own = {*JobSettings.model_fields, *MediaSettings.model_fields}
            assert key in {*ROLES, *own, "workers", "server", "type", *KINDS}
