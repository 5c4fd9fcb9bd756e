"""CONTRIBUTING says which files a change touches: each list is that of a real example."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_an_operation_of_the_store_is_where_the_page_says() -> None:
    """The example's name stands in these files of the store and in no others."""
    part = PAGE[PAGE.index("An operation of the store") : PAGE.index("A class of rows")]
    example, *named = re.findall(r"`([^`]+)`", part)
    rooms = ("server/penstock/server/store", "server/penstock/server/testing")
    found = {
        file.name
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        if example in file.read_text()
    }

    assert found == {"log_operations.py", "lanes.py", "store.py"}
    assert found <= {Path(name).name for name in named}
    for name in named:
        assert list((ROOT / "server/penstock/server").rglob(Path(name).name)), name
