"""What reads bytes of others refuses them with a sentence: those that were defects once, and more.

`make fuzz` looks for further ones, guided by what an input reaches. `FUZZ_SEED` repeats a run of
this file, and `FUZZ_INPUTS` lengthens it.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import pytest

from damaged.mutations import mutate
from fuzz.run import NAMES
from fuzz.targets import KEPT, MAX_INPUT_BYTES, TARGETS, attempt

INPUTS = int(os.environ.get("FUZZ_INPUTS", "500"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or random.randrange(1, 1 << 32)
MOST_BYTES = 64 << 20
"""What reading some KB may take, by far: a job file's classes and errors among it."""


def test_every_target_is_run() -> None:
    assert NAMES.split() == list(TARGETS)
    assert {path.name for path in KEPT.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_real_values_are_read(name: str) -> None:
    """At least one of a target's: else its damaged ones would reach nothing."""
    target = TARGETS[name]

    assert None in [attempt(target, seed) for seed in target.seeds()]


@pytest.mark.parametrize("path", sorted(KEPT.glob("*/*")), ids=lambda path: path.name)
def test_what_was_a_defect_once_is_refused(path: Path) -> None:
    """Each in a folder with the name of its target."""
    assert attempt(TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_values_are_read_or_refused(name: str) -> None:
    """With a sentence, and without much memory."""
    target, draw = TARGETS[name], random.Random(f"{SEED} {name}")
    seeds = list(target.seeds())
    attempt(target, seeds[0])  # what is made once is no part of an input's memory
    tracemalloc.start()
    try:
        for number in range(INPUTS):
            data = draw.choice(seeds)
            for _ in range(draw.randrange(1, 4)):
                data = mutate(data, draw)[:MAX_INPUT_BYTES]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                attempt(target, data)
            except Exception as error:
                error.add_note(f"FUZZ_SEED={SEED}, input {number} of {name}: {data!r}")
                raise
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < MOST_BYTES, f"FUZZ_SEED={SEED}, input {number}: {data!r}"
    finally:
        tracemalloc.stop()
