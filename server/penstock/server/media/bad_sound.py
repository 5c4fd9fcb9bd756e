"""The error of a file that does not give the sound that it should."""

from __future__ import annotations


class BadSound(ValueError):
    """A file is not sound, is damaged, or holds more than the job allows.

    It fails alike on every node, so its item is a `BadItem`.
    """
