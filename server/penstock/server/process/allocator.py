"""Which allocator the processes have that compute: jemalloc or mimalloc, where one is installed.

A tokenizer allocates and frees millions of small strings, and glibc's malloc takes 40 % of a worker
that does nothing else. The library is preloaded, by `LD_PRELOAD` in the environment of a program
that is started; it is taken out of the environment again as that begins, so nothing that it starts
itself inherits it. No batch depends on it, and no process of users is started with it.

Nothing here imports more than the standard library: the commands call it before anything else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

AUTO, OFF = "auto", "off"

VARIABLE = "PENSTOCK_ALLOCATOR"
"""The setting `allocator` as an environment variable."""

_LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2",),
    "mimalloc": ("libmimalloc.so.3", "libmimalloc.so.2"),
}
"""What is looked for, by name, the first one first."""

_SETTINGS = {"jemalloc": ("MALLOC_CONF", "narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0")}
"""Variable and value that a library is set up by, where nobody has set it.

jemalloc keeps an arena for each thread, and what is freed for 10 s; with two for all threads and a
second a worker takes less memory than with glibc.
"""

_MARK = "_PENSTOCK_PRELOADED"
"""The variable that holds what others were before, as JSON; with it the process knows its library.

Not of the form of a setting: a variable of that form that is none is refused.
"""


class Allocator(NamedTuple):
    """A library that takes the place of malloc.

    Attributes:
        name: `jemalloc`, `mimalloc`, or the name of the file.
        path: Where it is.
    """

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} ({self.path})"


class _NotThere(Exception):
    """What the setting names is not there; says what to do."""


_chosen: list[Allocator | None] = []  # what was found, where a setting was read


def prefer(setting: str, base: Path) -> None:
    """Set which allocator the processes have that this one starts from now on.

    Args:
        setting: The setting `allocator`: `auto`, `off`, a name or a path.
        base: The folder that a relative path starts from.

    Raises:
        InvalidRequest: The library that it names is not there, or not for this machine.
    """
    try:
        _chosen[:] = [_find(setting, base)]
    except _NotThere as error:
        from penstock.wire.errors import InvalidRequest

        raise InvalidRequest(str(error), field="allocator", value=setting) from None


def chosen() -> Allocator | None:
    """Return the allocator of processes that this one starts; None = the system's.

    Where no setting was read it is that of the variable. What that names may be missing: the
    process that is started reads the settings, and says so.
    """
    if _chosen:
        return _chosen[0]
    try:
        return _find(os.environ.get(VARIABLE, AUTO), Path.cwd())
    except _NotThere:
        return None


def preloaded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment by which a program that is started has the chosen allocator.

    The program calls `withdraw` first. Where somebody preloads an allocator already, that stays.
    """
    found = chosen()
    before = environment.get("LD_PRELOAD", "")
    if found is None or any(name in before for name in (*_LIBRARIES, "malloc", found.path)):
        return dict(environment)
    # After what is preloaded already: that was preloaded for a reason, and wins where both define
    # the same.
    changed = {"LD_PRELOAD": f"{before}:{found.path}" if before else found.path}
    if setting := _SETTINGS.get(found.name):
        name, value = setting
        if name not in environment:
            changed[name] = value
    was = {name: environment.get(name) for name in changed}
    mark = json.dumps({"allocator": found, "was": was})
    return {**environment, **changed, _MARK: mark}


def withdraw() -> Allocator | None:
    """Put the environment back to what it was before `preloaded`, for what this process starts.

    Returns:
        The allocator that this process has; None = it was started without one of ours.
    """
    mark = os.environ.pop(_MARK, None)
    if mark is None:
        return None
    told = json.loads(mark)
    for name, value in told["was"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return Allocator(*told["allocator"])


def is_marked() -> bool:
    """Tell whether this process was started with one of ours and has not called `withdraw` yet."""
    return _MARK in os.environ


def _find(setting: str, base: Path) -> Allocator | None:
    if setting == OFF or sys.platform != "linux":
        return None
    if setting != AUTO and setting not in _LIBRARIES:
        path = base / Path(setting).expanduser()
        _check(path, setting)
        return Allocator(_name_of(path), str(path))
    for name in _LIBRARIES if setting == AUTO else (setting,):
        for file in _LIBRARIES[name]:
            for folder in _folders():
                path = folder / file
                if _can_be_listed(path) and _header(path) == _header(Path("/proc/self/exe")):
                    return Allocator(name, str(path))
    if setting == AUTO:
        return None
    raise _NotThere(
        f"allocator={setting!r}: there is no {' or '.join(_LIBRARIES[setting])} here: install it "
        f"(Debian's package {_PACKAGES[setting]}), give the path of one, or leave allocator out"
    )


_PACKAGES = {"jemalloc": "libjemalloc2", "mimalloc": "libmimalloc2.0"}


def _check(path: Path, setting: str) -> None:
    if not _can_be_listed(path):
        raise _NotThere(
            f"allocator={setting!r}: LD_PRELOAD cannot name {path}, for it has a colon or a blank: "
            "link the library into another folder"
        )
    own = _header(Path("/proc/self/exe"))
    if _header(path) != own:
        what = "is not a shared library for this machine" if path.is_file() else "is not a file"
        raise _NotThere(
            f"allocator={setting!r}: {path} {what}: give auto, off, {', '.join(_LIBRARIES)}, or "
            "the path of a library that takes the place of malloc"
        )


def _can_be_listed(path: Path) -> bool:
    """Tell whether LD_PRELOAD can name a file: what parts its names cannot be quoted."""
    return not any(character == ":" or character.isspace() for character in str(path))


def _name_of(path: Path) -> str:
    return next((name for name in _LIBRARIES if name in path.name), path.name)


def _folders() -> Iterator[Path]:
    """Where libraries lie: what the user says, the interpreter's own (conda), the system's."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Path(folder)
    yield Path(sys.prefix, "lib")
    for root in ("/usr/local/lib", "/usr/lib", "/lib"):
        yield Path(root, f"{os.uname().machine}-linux-gnu")
        yield Path(f"{root}64")
        yield Path(root)


def _header(path: Path) -> bytes | None:
    """Return what says which machine an ELF file is for; None = there is no such file."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    return head[4:6] + head[18:20] if head[:4] == b"\x7fELF" else None
