"""Damages files and reads them, as a process of its own: a crash of a library ends only it.

    python -m damaged.reading SEED FIRST STOP [FORMAT ...]

Prints a line of JSON before each case and one after it. The same seed, case and format give the
same damage on every machine.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from penstock.wire.errors import BadBatch, BadItem, InvalidJob, PenstockError

HUNG_S = 120.0
CPU_S = 10.0
PEAK_BYTES = 300 << 20
"""More than any of these small files may take, by far: blocks, codecs and errors together."""

ADDRESS_BYTES = 16 << 30
ITEMS = 200
BLAMES_BYTES = (InvalidJob, BadItem, BadBatch)


def plain(value: Any) -> Any:
    """Return a value without arrays, which prints all that it has."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value


def read(opened: Any) -> tuple[list[str], list[PenstockError]]:
    """Return what a reader gives: every item as text, and the errors of items that are bad."""
    from damaged.formats import Values

    if isinstance(opened, Values):
        return [repr(plain(opened.values))], []
    said = repr((opened.fingerprint(), opened.columns_of_items(), opened.blocks()))
    indices = list(range(min(len(opened), ITEMS)))
    found, errors = [], []
    for index in reversed(indices):
        try:
            found.append(repr(plain(opened.fetch([index])[0])))
        except BadItem as error:
            errors.append(error)
            found.append(f"bad: {error.message}")
    if not errors:
        together = [repr(plain(item)) for item in opened.fetch(indices)]
        assert together == found[::-1], "items that are read together differ from single ones"
    for column in ("ids", "input_ids"):
        if errors or not hasattr(opened, "sequence_dtype") or not opened.has_column(column):
            continue
        if (dtype := opened.sequence_dtype(column)) is not None:
            at = np.array(indices, np.int64)
            lengths = opened.lengths(column, at)
            at, lengths = at[lengths >= 0], lengths[lengths >= 0]
            out = np.empty(int(lengths.sum()), dtype)
            opened.gather(column, at, np.zeros(len(at), np.int64), lengths, out)
            found.append(repr(out.tolist()))
    opened.close()
    return [said, *found], errors


def attempt(kind: Any, folder: Path) -> tuple[str, list[str], list[PenstockError]]:
    """Return the outcome of reading a folder: its class, what was read, and what was said."""
    try:
        found, errors = read(kind.open(folder))
    except PenstockError as error:
        return type(error).__name__, [error.message], [error]
    return "bad items" if errors else "read", found, errors


def wrong_sentence(error: PenstockError, names: list[str]) -> str | None:
    """Return what is wrong with an error about a damaged file; None = nothing."""
    if not isinstance(error, BLAMES_BYTES):
        return f"a damaged file is blamed as {error.code}"
    if not any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", error.message) for name in names):
        return "the sentence does not name the file"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in error.message):
        return "the sentence has characters that a terminal obeys"
    if len(error.message) > 1500:
        return f"the sentence has {len(error.message)} characters"
    return None


def findings(kind: Any, folder: Path, whole: list[str]) -> list[str]:
    """Read a damaged folder twice; return what must not be."""
    names = [path.name for path in folder.rglob("*")]
    try:
        outcome, found, errors = attempt(kind, folder)
        again = attempt(kind, folder)
    except BaseException:  # any error that is not ours; a panic in Rust is no Exception
        return [traceback.format_exc()]
    wrong = []
    if (outcome, found) != again[:2]:
        wrong.append(f"read again it gives {again[:2]} and gave {(outcome, found)}")
    wrong += [
        f"{said}: {type(error).__name__}: {error.message[:600]}"
        for error in errors[:3]
        if (said := wrong_sentence(error, names)) is not None
    ]
    if outcome == "read" and kind.theirs is not None and found != whole:
        try:
            theirs = [repr(plain(row)) for row in kind.theirs(folder)]
        except Exception as error:  # of their library: then there is nothing to compare with
            print(json.dumps({"note": f"theirs: {type(error).__name__}"}))
        else:
            ours = found[1 : 1 + len(theirs)][::-1]
            if theirs[:ITEMS] != ours:
                wrong.append(f"other items than the format's own library: {ours} / {theirs}")
    return wrong


def peak_bytes() -> int:
    """Return the most memory that this process has had since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def forget_peak() -> int:
    """Begin a new peak; return the memory that is in use."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def case(name: str, number: int, seed: int, pristine: Path, folder: Path) -> list[str]:
    """Damage one file of a format's folder, and return what is wrong with how it is read."""
    from damaged.formats import FORMATS

    kind = FORMATS[name]
    draw = random.Random(f"{seed} {name} {number}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder)
    damaged = folder / draw.choice(kind.names)
    damaged.write_bytes(kind.damage(damaged.read_bytes(), draw))
    whole = json.loads((pristine.parent / "whole").read_text())
    before, started = forget_peak(), time.process_time()
    wrong = findings(kind, folder, whole)
    taken, cpu_s = peak_bytes() - before, time.process_time() - started
    if taken > PEAK_BYTES:
        wrong.append(f"it takes {taken >> 20} MiB")
    if cpu_s > CPU_S:
        wrong.append(f"it takes {cpu_s:.1f} s of the CPU")
    return wrong


def main() -> None:
    """Run the cases that the command line names."""
    from damaged.formats import FORMATS, SLOW

    os.environ["PENSTOCK_HASH_CACHE"] = "off"
    warnings.simplefilter("error", RuntimeWarning)
    seed, first, stop = map(int, sys.argv[1:4])
    names = sys.argv[4:] or list(FORMATS)
    home = Path(tempfile.mkdtemp(prefix="damaged-"))
    try:
        for name in names:
            pristine = home / name.replace(" ", "-") / "pristine"
            pristine.mkdir(parents=True)
            FORMATS[name].write(pristine)
            outcome, whole, _ = attempt(FORMATS[name], pristine)
            assert outcome == "read", (name, whole)
            (pristine.parent / "whole").write_text(json.dumps(whole))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_BYTES,) * 2)
        for number in range(first, stop):
            for name in names:
                if number * SLOW.get(name, 1.0) % 1 >= SLOW.get(name, 1.0):
                    continue
                print(json.dumps({"begins": [name, number]}), flush=True)
                faulthandler.dump_traceback_later(HUNG_S, exit=True)
                pristine = home / name.replace(" ", "-") / "pristine"
                wrong = case(name, number, seed, pristine, pristine.parent / "damaged")
                faulthandler.cancel_dump_traceback_later()
                print(json.dumps({"ended": [name, number], "wrong": wrong}), flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
