"""Which libraries are recorded beside a log."""

from __future__ import annotations

import cv2
import PIL
import simplejpeg

from penstock.server.usercode import libraries


def test_what_decodes_pictures_is_recorded() -> None:
    """With the libjpeg-turbo in each: it decides pixels, and neither package's version tells it."""
    found = libraries.in_use()

    assert found["Pillow"] == PIL.__version__
    assert found["simplejpeg"] == simplejpeg.__version__
    assert found["opencv-python-headless"].startswith(cv2.__version__)
    for package in ("Pillow", "simplejpeg"):
        assert found[f"libjpeg-turbo of {package}"].count(".") == 2


def test_another_libjpeg_is_a_difference() -> None:
    """As another version of anything else that is recorded."""
    ours = libraries.in_use()

    [said] = libraries.differences(ours, {**ours, "libjpeg-turbo of simplejpeg": "2.1.5"})

    assert said.endswith("(recorded: 2.1.5)")
