"""Which library takes the place of malloc, and what of that a process passes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.server.process import allocator
from penstock.server.process.allocator import Allocator, chosen, prefer, preloaded, withdraw
from penstock.wire.errors import InvalidRequest


@pytest.fixture(autouse=True)
def own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test prefers holds for it alone, and only its folder is looked into."""
    monkeypatch.setattr(allocator, "_chosen", [])
    monkeypatch.setattr(allocator, "_folders", lambda: iter(()))


def library(path: Path) -> Path:
    """Write what looks like a library for this machine."""
    path.write_bytes(Path("/proc/self/exe").read_bytes()[:64])
    return path


def look_into(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(allocator, "_folders", lambda: iter([folder]))


def test_jemalloc_comes_before_mimalloc_and_without_them_the_system_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_into(monkeypatch, tmp_path)
    prefer("auto", tmp_path)
    assert chosen() is None

    mimalloc = library(tmp_path / "libmimalloc.so.2")
    prefer("auto", tmp_path)
    assert chosen() == Allocator("mimalloc", str(mimalloc))
    jemalloc = library(tmp_path / "libjemalloc.so.2")
    prefer("auto", tmp_path)
    assert chosen() == Allocator("jemalloc", str(jemalloc))
    prefer("mimalloc", tmp_path)
    assert chosen() == Allocator("mimalloc", str(mimalloc))
    prefer("off", tmp_path)
    assert chosen() is None


def test_a_library_for_another_machine_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_into(monkeypatch, tmp_path)
    head = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    head[18] ^= 0xFF
    (tmp_path / "libjemalloc.so.2").write_bytes(head)
    prefer("auto", tmp_path)

    assert chosen() is None
    with pytest.raises(InvalidRequest, match="is not a shared library for this machine"):
        prefer("libjemalloc.so.2", tmp_path)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("jemalloc", "there is no libjemalloc.so.2 here: install it .*libjemalloc2"),
        ("mimalloc", "there is no libmimalloc.so.3 or libmimalloc.so.2 here"),
        ("tcmaloc", "tcmaloc is not a file: give auto, off, jemalloc, mimalloc, or the path"),
        ("notes.txt", "notes.txt is not a shared library for this machine"),
    ],
)
def test_a_library_that_is_named_and_not_there_is_refused(
    tmp_path: Path, setting: str, sentence: str
) -> None:
    (tmp_path / "notes.txt").write_text("no library")

    with pytest.raises(InvalidRequest, match=sentence):
        prefer(setting, tmp_path)


@pytest.mark.parametrize("name", ["two words", "a:b"])
def test_a_path_that_cannot_be_listed_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Colons and blanks part the names of LD_PRELOAD: each worker would start with a complaint."""
    (tmp_path / name).mkdir()
    library(tmp_path / name / "libjemalloc.so.2")
    look_into(monkeypatch, tmp_path / name)

    prefer("auto", tmp_path)

    assert chosen() is None
    with pytest.raises(InvalidRequest, match="it has a colon or a blank: link the library"):
        prefer(f"{name}/libjemalloc.so.2", tmp_path)


def test_a_variable_that_names_nothing_is_left_to_the_process_that_reads_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOCATOR", str(tmp_path / "none.so"))

    assert chosen() is None
    assert preloaded({"A": "b"}) == {"A": "b"}


def test_a_library_that_goes_away_while_the_node_runs_keeps_no_worker_from_starting(
    tmp_path: Path,
) -> None:
    """The loader of programs says so and starts it with the system's."""
    path = library(tmp_path / "libjemalloc.so.2")
    prefer(str(path), tmp_path)
    path.unlink()

    assert preloaded({})["LD_PRELOAD"] == str(path)


def test_a_path_is_relative_to_the_folder_of_the_job_file(tmp_path: Path) -> None:
    path = library(tmp_path / "libtcmalloc_minimal.so.4")

    prefer("libtcmalloc_minimal.so.4", tmp_path)

    assert chosen() == Allocator("libtcmalloc_minimal.so.4", str(path))


@pytest.mark.parametrize(
    "before",
    [
        {},
        {"LD_PRELOAD": "libfaketime.so.1"},
        {"LD_PRELOAD": "libfaketime.so.1", "MALLOC_CONF": "narenas:9"},
    ],
)
def test_a_program_gives_back_what_it_was_lent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: dict[str, str]
) -> None:
    """What it starts itself has the environment of before, whatever was in it."""
    path = library(tmp_path / "libjemalloc.so.2")
    prefer(str(path), tmp_path)
    lent = preloaded(before)
    assert lent["LD_PRELOAD"].split(":") == [*before.get("LD_PRELOAD", "").split(), str(path)]
    assert lent["MALLOC_CONF"] == before.get("MALLOC_CONF", allocator._SETTINGS["jemalloc"][1])
    monkeypatch.setattr(os, "environ", dict(lent))

    assert withdraw() == Allocator("jemalloc", str(path))
    assert os.environ == before
    assert withdraw() is None


@pytest.mark.parametrize("theirs", ["/opt/libtcmalloc.so.4", "libjemalloc.so.2:libx.so"])
def test_an_allocator_that_somebody_preloads_stays(tmp_path: Path, theirs: str) -> None:
    prefer(str(library(tmp_path / "libmimalloc.so.2")), tmp_path)

    assert preloaded({"LD_PRELOAD": theirs, "A": "b"}) == {"LD_PRELOAD": theirs, "A": "b"}
