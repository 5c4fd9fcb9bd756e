"""What computes a log beside its job: versions of libraries, and the class of the processor.

They are not part of the log id, since most of them change no byte. Those that do (float32 in
another NumPy, another decoder) would go unnoticed, so they are recorded beside the log id,
and a process that computes with others says so.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = {
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "tokenizers": "tokenizers",
    "datasets": "datasets",
    "torch": "torch",
    "PIL": "Pillow",
    "soundfile": "soundfile",
}
"""Modules that decide bytes where they are imported, and the packages that bring them."""

NATIVE = {"libsndfile": ("soundfile", "__libsndfile_version__")}
"""Libraries of C that decide bytes: the module that says which version it uses, and how."""

_X86_CLASSES = (("avx512f", "avx512"), ("avx2", "avx2"), ("avx", "avx"))


def in_use() -> dict[str, str]:
    """Return the versions of what this process computes with, by name; only what is imported."""
    found = {
        "penstock": _version("penstock"),
        "Python": platform.python_version(),
        "processor": processor_class(),
    }
    for module, package in LIBRARIES.items():
        if module in sys.modules:
            found[package] = _version(package)
    for library, (module, attribute) in NATIVE.items():
        if module in sys.modules:
            found[library] = str(getattr(sys.modules[module], attribute, "unknown"))
    return found


def processor_class() -> str:
    """Return the machine and the vectors that its libraries choose their code by: `x86_64 avx2`."""
    machine = platform.machine() or "unknown"
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return machine
    lines = (line.partition(":") for line in text.splitlines())
    flags = next(
        (set(value.split()) for key, _, value in lines if key.strip() in ("flags", "Features")),
        set(),
    )
    if machine == "aarch64":
        return f"{machine} {'sve' if 'sve' in flags else 'neon'}"
    return " ".join([machine, *[name for flag, name in _X86_CLASSES if flag in flags][:1]])


def differences(ours: Mapping[str, str], recorded: Mapping[str, str]) -> list[str]:
    """Return what is in use here in another version than is recorded, with both, by name."""
    return [
        f"{name} {version} (recorded: {recorded[name]})"
        for name, version in sorted(ours.items())
        if recorded.get(name, version) != version
    ]


def sentence(job: str, found: list[str]) -> str:
    """Return the warning for `differences`."""
    return (
        f"job {job!r} is computed here with {', '.join(found)}: the log began with what is "
        "recorded, and other versions may give other bytes; compare them by `penstockd show`, or "
        "install the recorded ones on every node"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a module of that name from somewhere else
        return "unknown"
