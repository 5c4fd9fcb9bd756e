"""The text job by Megatron Energon: its tar shards, packing buffer and worker processes.

The same documents as text in 8 tar files, which `energon prepare` has indexed, the same tokenizer
call, given one text at a time, since Energon encodes samples one by one, and the same best fit for
each 64 pieces that its buffer holds, in 2 worker
processes. Run by an interpreter that has Energon, which may be another one than penstock's.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.energon import (
    DefaultTaskEncoder,
    Sample,
    TextSample,
    WorkerConfig,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from rates import rates
from text_rows import POOL, Waiting, pieces, values
from tokenizers import Tokenizer

TARS, SHUFFLED, SEQUENCE = 8, 1000, 100
"""Tar files, the documents among which the next one is drawn, and how many are read in a row."""


@edataclass
class Piece(Sample):  # type: ignore[misc]
    """A piece of a document: its tokens, int32."""

    ids: Any


@edataclass
class Row(Sample):  # type: ignore[misc]
    """The arrays of a row."""

    arrays: dict[str, Any]


class Packing(DefaultTaskEncoder):  # type: ignore[misc]
    """Documents to pieces, and pieces to rows."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer, self._end = tokenizer, tokenizer.token_to_id("<eos>")

    @stateless
    def encode_sample(self, sample: TextSample) -> Iterator[Piece]:
        """Tokenize a document."""
        (encoding,) = self._tokenizer.encode_batch_fast([sample.text])
        for ids in pieces([*encoding.ids, self._end]):
            yield Piece.derive_from(sample, ids=ids)

    def select_samples_to_pack(self, samples: list[Piece]) -> list[list[Piece]]:
        """Return the pieces of each row."""
        waiting, rows = Waiting(), []
        for sample in samples:
            waiting.add(len(sample.ids), sample)
        while waiting:
            rows.append(waiting.row())
        return rows

    @stateless
    def pack_selected_samples(self, samples: list[Piece]) -> Row:
        """Make a row."""
        arrays = values([sample.ids for sample in samples])
        for name, value in arrays.items():
            if isinstance(value, np.ndarray):
                arrays[name] = torch.from_numpy(value)
        return Row.derive_from(samples[0], arrays=arrays)


def write_tars(corpus: Path, folder: Path) -> None:
    """Write the documents of a folder of Parquet as an Energon data set."""
    import pyarrow.parquet as pq

    texts = pq.read_table(corpus, columns=["text"])["text"].to_pylist()
    for number in range(TARS):
        with tarfile.open(folder / f"{number:03}.tar", "w") as tar:
            for at in range(number, len(texts), TARS):
                data = texts[at].encode()
                entry = tarfile.TarInfo(f"{at:06}.txt")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    energon = str(Path(sys.executable).with_name("energon"))
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample"]
    fields = ["--field-map", json.dumps({"text": "txt"}), "--num-workers", "2"]
    subprocess.run(
        [energon, "prepare", *options, *fields, str(folder)], check=True, capture_output=True
    )


def main(folder: str, seed: int) -> None:
    """Read in an order of this seed; print the rates."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as shards:
        write_tars(Path(folder) / "corpus", Path(shards))
        data = get_train_dataset(
            shards,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=2, seed_offset=seed),
            batch_size=None,
            packing_buffer_size=POOL,
            shuffle_buffer_size=SHUFFLED,
            max_samples_per_sequence=SEQUENCE,
            task_encoder=Packing(Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))),
        )
        loader = get_savable_loader(data)
        began = time.perf_counter()
        print(json.dumps(rates((row.arrays["tokens"] for row in loader), began, 0)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
