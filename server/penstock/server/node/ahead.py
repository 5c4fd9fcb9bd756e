"""How far ahead of its readers a node makes batches."""

from __future__ import annotations

FAR_AHEAD = 2
"""So many times as many positions are made ahead of readers where batches are small."""


def made_ahead(least: int, nbytes: int, batch_bytes: float) -> int:
    """Return how many positions are made ahead of a reader.

    Args:
        least: So many in any case, and at most `FAR_AHEAD` times as many.
        nbytes: What those beyond `least` may take, together with these.
        batch_bytes: What one batch takes.
    """
    return max(least, min(FAR_AHEAD * least, int(nbytes / max(1.0, batch_bytes))))


__all__ = ["FAR_AHEAD", "made_ahead"]
