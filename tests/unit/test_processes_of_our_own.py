"""What only processes of penstock's own do: look for garbage seldom, and hide what they lack."""

from __future__ import annotations

import gc
import importlib.util
import sys

import pytest

from penstock.server.process.garbage import SELDOM, collect_as_usual, collect_seldom
from penstock.server.process.hidden import hidden


def test_garbage_is_looked_for_seldom_and_then_as_usual() -> None:
    """What the start has made is left alone from then on; what comes after it is not."""
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_threshold() == SELDOM

        collect_as_usual()

        assert gc.get_threshold() == before
        assert gc.get_freeze_count() > 0
        round_about: list[object] = []
        round_about.append(round_about)
        del round_about
        assert gc.collect() > 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_a_hidden_package_is_missing_inside_and_there_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)

    with hidden("this"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("this")

    assert "this" not in sys.modules
    assert importlib.util.find_spec("this") is not None


def test_a_package_that_is_there_is_not_hidden() -> None:
    """Whoever has it may be using it."""
    with hidden("json"):
        assert importlib.import_module("json") is sys.modules["json"]

    assert sys.modules["json"] is not None
