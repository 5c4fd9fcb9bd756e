"""What unit tests of several files share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a processor of each kind of model that sees; nobody writes into it."""
    # Not every Python that runs unit tests has what these import.
    from talks import SMALL
    from vision import CLASSES, write_vision_folder

    home = tmp_path_factory.mktemp("processors")
    for kind in CLASSES:
        write_vision_folder(home / kind, kind, **SMALL.get(kind, {}))
    return home
