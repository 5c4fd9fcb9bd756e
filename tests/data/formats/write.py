"""Write the sample files of formats whose own libraries are too heavy to install for the tests.

They were written once by the real libraries, mosaicml-streaming 0.13.0 and megatron-core 0.16.1:

    python tests/data/formats/write.py

The items are those of `ITEMS`, which the tests compare with what the sources give.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent

TEXTS = ["alpha", "needle", "", "gamma delta", "épsilon", "zeta", "eta"]

ITEMS: list[dict[str, Any]] = [
    {
        "text": text,
        "number": number,
        "small": number - 3,
        "half": number / 2,
        "digits": 10**25 + number,
        "raw": bytes([number, 255]),
        "turns": [{"role": "user", "content": text}],
        "ids": np.arange(number + 1, dtype=np.int32),
        "any": np.full((2, number + 1), number, np.uint16),
        "fixed": np.array([number, -number], np.int64),
    }
    for number, text in enumerate(TEXTS)
]

COLUMNS = {
    "text": "str",
    "number": "int",
    "small": "int16",
    "half": "float32",
    "digits": "str_int",
    "raw": "bytes",
    "turns": "json",
    "ids": "ndarray:int32",
    "any": "ndarray",
    "fixed": "ndarray:int64:2",
}

DOCUMENTS = [[[5, 6, 7], [8]], [[9]], [[10, 11], [12, 13], [14]], [[15] * 9]]
"""Documents of sequences of token ids."""


def write_mds() -> None:
    """Write the items without compression in two shards, and with each compression in one."""
    from streaming.base.format.mds.writer import MDSWriter

    for name, compression, limit in (
        ("plain", None, 1100),
        *((name, name, None) for name in ("zstd", "gz", "bz2", "br", "snappy")),
    ):
        out = HERE / "mds" / name
        with MDSWriter(
            out=str(out), columns=COLUMNS, compression=compression, size_limit=limit
        ) as writer:
            for item in ITEMS:
                writer.write(item)


def write_megatron() -> None:
    """Write the documents as uint16 and as int32."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    for dtype in (np.uint16, np.int32):
        prefix = HERE / "megatron" / np.dtype(dtype).name
        prefix.parent.mkdir(exist_ok=True)
        builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
        for document in DOCUMENTS:
            flat = torch.tensor([token for sequence in document for token in sequence])
            builder.add_document(flat, [len(sequence) for sequence in document])
        builder.finalize(f"{prefix}.idx")


if __name__ == "__main__":
    write_mds()
    write_megatron()
