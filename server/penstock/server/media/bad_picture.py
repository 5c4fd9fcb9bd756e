"""The error of a file that does not give the picture that it should."""

from __future__ import annotations


class BadPicture(ValueError):
    """A file is not a picture, is damaged, or holds more than the job allows.

    It fails alike on every node, so its item is a `BadItem`.
    """
