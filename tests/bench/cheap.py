"""Processors that cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np


def document(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a document of 5 to 36 tokens, whose length and content follow from its number."""
    number = raw["n"]
    return {"input_ids": np.full(5 + number * 7919 % 32, number, np.int32)}


def two_megabytes(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an array of 2 MB."""
    return {"x": np.full(500_000, raw["n"], np.float32)}


def image(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an image of 600 KB."""
    return {"x": np.full((448, 448, 3), raw["n"] % 256, np.uint8)}


def array_of(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the bytes of a row as an array."""
    return {"x": np.frombuffer(raw["b"], np.uint8)}


def number(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is; for all that penstock knows, it may draw random numbers."""
    return raw


def number_without_drawing(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is, and promise to draw nothing."""
    return raw


number_without_drawing.uses_global_rng = False  # type: ignore[attr-defined]
