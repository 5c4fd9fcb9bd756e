"""The names under which is counted what is left out, tried again, or not as it was told."""

from __future__ import annotations

QUARANTINED = ("quarantined:draw", "quarantined:exit", "quarantined:size")
"""By what stage a verdict leaves out an item, or a sample of a batch."""

SIZES = (
    "size:larger",
    "size:larger_tokens",
    "size:smaller",
    "size:smaller_tokens",
    "size:cut_tokens",
    "size:put_off",
    "size:later",
    "size:later_tokens",
)
"""Samples whose sizes were not as they were told, and by how many tokens; the tokens that a sample
which was planned in pieces has beyond the last of them; and samples that did not fit into their
batches, and those of them, with their tokens, that came in later ones."""

RETRIES = ("unavailable", "second_try")
"""Why something was tried again: an error that may be temporary; an item that failed once."""
