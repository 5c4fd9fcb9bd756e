"""A processor that costs nothing: documents of 5 to 36 tokens."""

from __future__ import annotations

from typing import Any

import numpy as np


def document(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose length and content follow from its number."""
    number = raw["n"]
    return {"input_ids": np.full(5 + number * 7919 % 32, number, np.int32)}


def number(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is; for all that penstock knows, it may draw random numbers."""
    return raw


def number_without_drawing(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is, and promise to draw nothing."""
    return raw


number_without_drawing.uses_global_rng = False  # type: ignore[attr-defined]
