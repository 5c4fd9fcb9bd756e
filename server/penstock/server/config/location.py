"""Where a key is in a job file: file, line and key path, for error messages about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.wire.errors import InvalidJob

KeyPath = tuple[str | int, ...]


def key_text(path: KeyPath) -> str:
    """Return a key path as people write it: `jobs.code.source.files[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True)
class Location:
    """A key of a job file.

    Attributes:
        file: The file as the user named it.
        base: The folder that relative paths start from, absolute.
        path: The keys from the top down to here.
        lines: The line of every key path, counted from 1; empty where the file has none.
        options: The option of the command line that has set a key path, in place of its line.
    """

    file: str
    base: Path
    path: KeyPath = ()
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    options: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)

    def at(self, *keys: str | int) -> Location:
        """Return the location of a key below this one."""
        return replace(self, path=self.path + keys)

    @property
    def key(self) -> str:
        """The key path as text."""
        return key_text(self.path)

    @property
    def line(self) -> int | None:
        """The line of this key, or of the nearest key above it; None where an option set it."""
        return self.lines.get(self._nearest)

    @property
    def _nearest(self) -> KeyPath:
        path = self.path
        while path and path not in self.lines and path not in self.options:
            path = path[:-1]
        return path

    def error(self, sentence: str, cause: InvalidJob | None = None) -> InvalidJob:
        """Return the error that says `sentence` about this location; the caller raises it.

        Args:
            sentence: What is wrong there.
            cause: The error that did not know the location; its other fields stay.
        """
        line = self.line
        where = self.options.get(self._nearest) or self.file
        where += "" if line is None else f":{line}"
        found = InvalidJob("") if cause is None else cause
        return replace(
            found, message=f"{where}: {sentence}", key=self.key, file=self.file, line=line
        )
