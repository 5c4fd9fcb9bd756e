"""Pixels are those that were pinned, by each decoder, scale and kernel."""

from __future__ import annotations

import pytest

from golden import pictures
from penstock.server.roles import ImageProcessor
from penstock.server.usercode.libraries import processor_class


@pytest.mark.parametrize("way", pictures.WAYS)
def test_pixels_are_those_of_before(way: str) -> None:
    """In whatever version of a library; else the log of a job would become another one."""
    pinned = pictures.stored()
    if way.endswith(pictures.OF_THE_PROCESSOR) and pinned["versions"]["processor"] != (
        processor_class()
    ):
        pytest.skip(f"its kernel was pinned on {pinned['versions']['processor']}")

    found = pictures.compute([way])

    assert found[way] == pinned["digests"][way], (
        f"pinned with {pinned['versions']}, computed with {pictures.versions()}: raise `version` "
        "of ImageProcessor, name the change in CHANGELOG.md and run `python "
        "tests/golden/pictures.py`; or tell which version of a library gives other pixels"
    )
    assert pinned["versions"]["image"] == ImageProcessor.version
