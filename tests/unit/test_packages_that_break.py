"""A package that is installed and cannot be imported: one kind of sentence, whichever it is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.files.filesystems import require
from penstock.server.media import jpeg, resize
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.pillow import pillow
from penstock.server.media.sound_decoding import load_soundfile
from penstock.wire.errors import MissingExtra


def an_lmdb(folder: Path) -> Any:
    (folder / "a.mdb").write_bytes(b"x")
    [medium] = MediaReader(MediaFiles(str(folder))).media(["lmdb: a.mdb::key"])
    return medium.read()


USERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "simplejpeg": ("decoder: jpeg", lambda _: jpeg.simplejpeg.__wrapped__()),
    "cv2": ("kernel: opencv", lambda _: resize._opencv.__wrapped__()),
    "torch": ("kernel: torch", lambda _: resize._torch.__wrapped__()),
    "soundfile": ("the processor sound", lambda _: load_soundfile()),
    "PIL": ("decoding pictures", lambda _: pillow()),
    "lmdb": ("a medium in an LMDB", an_lmdb),
}
NAMES = {"cv2": "opencv-python-headless", "PIL": "pillow"}

BREAKS = {
    "raise OSError('libx.so.1: cannot open shared object file')": "OSError: libx.so.1: cannot open",
    "raise ImportError('undefined symbol: f')": "ImportError: undefined symbol: f",
    "raise RuntimeError('built for another\\nversion')": "RuntimeError: built for another",
    "import nothing_of_this_name": "ModuleNotFoundError: No module named 'nothing_of_this_name'",
    "raise AttributeError('numpy.bool')": "AttributeError: numpy.bool",
}


@pytest.mark.parametrize("code", BREAKS)
@pytest.mark.parametrize("name", USERS)
def test_it_is_said_which_and_why(
    name: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever importing it raises; what is not installed says so."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(code + "\n")
    (tmp_path / "media").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    who, use = USERS[name]

    with pytest.raises(MissingExtra) as caught:
        use(tmp_path / "media")

    package = NAMES.get(name, name)
    assert caught.value.message == (
        f"{who} needs the package {package}, which is installed and cannot be imported "
        f"({caught.value.message.partition('(')[2].partition('): ')[0]}): install it anew, with "
        "what it needs, in a version that belongs to the others here"
    )
    assert f"({BREAKS[code]}" in caught.value.message
    assert caught.value.package == package


def test_what_is_not_installed_is_told_apart() -> None:
    """With what installs it."""
    with pytest.raises(MissingExtra) as caught:
        require("no_such_package.part", extra="sound", who="the processor sound", package="nosuch")
    assert caught.value.message == (
        "the processor sound needs the package nosuch, which is not installed: pip install "
        "'penstock[sound]' wherever this job is computed"
    )
