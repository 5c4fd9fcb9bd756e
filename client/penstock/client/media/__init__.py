"""Pixels that travelled as fewer bytes, made whole where the model is.

`normalize` is for pictures of conversations that travel unnormalized, and takes tensors of torch.
`ToRgb` is for frames of videos that travel as planes (`pixels: yuv420p`), and `resized` makes them
smaller; both take arrays of NumPy, cupy or torch, wherever they are.

```python
from penstock.client import Loader, media

frames = media.ToRgb(size=(224, 224), dtype="bfloat16", channels="first")
loader = Loader("dns:///penstock:50051", "robots", device="cuda", arrive=frames)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.client.media.normalizing import normalize, normalized
    from penstock.client.media.resizing import resized
    from penstock.client.media.to_rgb import ToRgb
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "ToRgb": "to_rgb",
            "normalize": "normalizing",
            "normalized": "normalizing",
            "resized": "resizing",
        },
    )

__all__ = ["ToRgb", "normalize", "normalized", "resized"]
