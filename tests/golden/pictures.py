"""What decoders and kernels give, pinned: `python tests/golden/pictures.py` writes it anew.

Digests name the decoder with its version, the scale and the kernel. Decoded pixels are the same in
every version so far; those of a kernel may be others on another class of processor, which is named.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pictures
from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ImageProcessor, ProcessContext
from penstock.server.usercode import libraries

FILE = Path(__file__).resolve().parent / "pictures.json"

WAYS: dict[str, dict[str, Any]] = {
    "jpeg, full": {"scale": "full"},
    "pillow, full": {"decoder": "pillow", "scale": "full"},
    "jpeg, full, pillow": {"scale": "full", "resize": "exact", "resize_to": 96},
    "jpeg, full, pillow, bicubic": {
        **{"scale": "full", "filter": "bicubic", "resize": "exact", "resize_to": 96}
    },
    "jpeg, 2, pillow": {"resize": "exact", "resize_to": 96},
    "jpeg, 1, pillow": {"scale": 1, "resize": "exact", "resize_to": 96},
    "pillow, 2, pillow": {"decoder": "pillow", "resize": "exact", "resize_to": 96},
    "jpeg, 2, torch": {"kernel": "torch", "resize": "exact", "resize_to": 96},
    "jpeg, 1, opencv": {"scale": 1, "kernel": "opencv", "resize": "exact", "resize_to": 96},
    "jpeg, 2, pillow, everything random": {
        **{"crop": "random_resized", "crop_to": [64, 48], "flip": 0.5, "layout": "CHW"}
    },
}
"""By decoder, scale and kernel."""

OF_THE_PROCESSOR = ("torch", "opencv")
"""Kernels that choose their code by the class of the processor."""


def compute(ways: Iterable[str] = WAYS) -> dict[str, dict[str, str]]:
    """Return the digest of each photograph by each way."""
    names = ("rocket.jpg", "hubble_deep_field.jpg", "chelsea.png")
    files = {name: pictures.photographs()[name].read_bytes() for name in names}
    found: dict[str, dict[str, str]] = {}
    for way in ways:
        processor = ImageProcessor(**WAYS[way])
        found[way] = {}
        for name, data in files.items():
            context = ProcessContext(ItemRef("main", 5, 1), 7, [HeldMedium(name, data)])
            image = processor.process(data, context)["image"]
            text = f"{image.dtype} {image.shape}".encode()
            found[way][name] = hashlib.sha256(text + image.tobytes()).hexdigest()
    return found


def stored() -> dict[str, Any]:
    """Return what is pinned."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def versions() -> dict[str, str]:
    """Return what decodes and resizes here."""
    names = ("Pillow", "simplejpeg", "torch", "opencv-python-headless")
    return {
        name: version
        for name, version in libraries.in_use().items()
        if name == "processor" or name.rpartition(" ")[2] in names
    }


if __name__ == "__main__":
    content = compute()
    told = {"digests": content, "versions": {**versions(), "image": ImageProcessor.version}}
    FILE.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"wrote {FILE}\n")
