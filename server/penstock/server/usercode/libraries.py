"""What computes a log beside its job: versions of libraries, and the class of the processor.

They are not part of the log id, since most of them change no byte. Those that do (float32 in
another NumPy, another decoder) would go unnoticed, so they are recorded beside the log id,
and a process that computes with others says so.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = {
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "tokenizers": "tokenizers",
    "datasets": "datasets",
    "torch": "torch",
    "PIL": "Pillow",
    "simplejpeg": "simplejpeg",
    "cv2": "opencv-python-headless",
    "torchvision": "torchvision",
    "albumentations": "albumentations",
    "soundfile": "soundfile",
    "av": "av",
    "torchcodec": "torchcodec",
}
"""Modules that decide bytes where they are imported, and the packages that bring them."""

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
            found[package] = _version(package, module)
            if module in _DECODERS:
                library, of = _DECODERS[module]
                found[f"{library} of {package}"] = of()
    return found


@cache
def _turbo_of_pillow() -> str:
    from PIL import features

    return features.version("libjpeg_turbo") or "none"


@cache
def _turbo_of_simplejpeg() -> str:
    """Return what is written in its binary: it has no function that says it."""
    file = sys.modules["simplejpeg"]._jpeg.__file__
    found = re.search(rb"libjpeg-turbo version ([0-9.]+)", Path(file).read_bytes())
    return found[1].decode() if found else "unknown"


def _libsndfile() -> str:
    return str(sys.modules["soundfile"].__libsndfile_version__)


def _libav() -> str:
    """Return the versions of the libraries that demux, decode and convert."""
    versions: Mapping[str, tuple[int, ...]] = sys.modules["av"].library_versions
    used = ("libavformat", "libavcodec", "libswscale")
    return ", ".join(f"{name[3:]} {'.'.join(map(str, versions[name]))}" for name in used)


def _libav_of_torchcodec() -> str:
    """Return the versions of the FFmpeg that it found, which is installed beside it."""
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        mapped = ""
    found = dict(re.findall(r"/lib(avformat|avcodec|swscale)\.so\.([0-9.]+)$", mapped, re.M))
    if not found:
        return f"FFmpeg {sys.modules['torchcodec'].ffmpeg_major_version}"
    return ", ".join(f"{name} {found[name]}" for name in sorted(found))


_DECODERS: dict[str, tuple[str, Callable[[], str]]] = {
    "PIL": ("libjpeg-turbo", _turbo_of_pillow),
    "simplejpeg": ("libjpeg-turbo", _turbo_of_simplejpeg),
    "soundfile": ("libsndfile", _libsndfile),
    "av": ("libav", _libav),
    "torchcodec": ("libav", _libav_of_torchcodec),
}
"""Modules with a library of their own that decides their pixels or points."""


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


def _version(package: str, module: str = "") -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # the module comes from somewhere else, or in another package
        return str(getattr(sys.modules.get(module), "__version__", "unknown"))
