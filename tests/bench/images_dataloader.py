"""Pictures the usual way: a map-style Dataset that decodes and resizes by Pillow, 2 workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from images_files import BATCH, SIDE, files, rates


def main(folder: str, width: int) -> None:
    """Read; print the rates."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    paths = files(folder)

    class Pictures(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            with Image.open(paths[index]) as image:
                small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            return torch.from_numpy(np.array(small))

    def batches() -> Iterator[int]:
        loader = DataLoader(
            Pictures(), batch_size=BATCH, num_workers=2, shuffle=True, persistent_workers=True
        )
        while True:
            for batch in loader:
                yield len(batch)

    torch.set_num_threads(1)
    print(json.dumps(rates(batches(), 0, width)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
