"""A processor that costs nothing: documents of 5 to 36 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np


def document(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose length and content follow from its number."""
    number = raw["n"]
    return {"input_ids": np.full(5 + number * 7919 % 32, number, np.int32)}
