"""The error of a file that does not give the frames that it should."""

from __future__ import annotations


class BadVideo(ValueError):
    """A file is not a video, is damaged, or lacks a frame that is wanted.

    It fails alike on every node, so its item is a `BadItem`.
    """
