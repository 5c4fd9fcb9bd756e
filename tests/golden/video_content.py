"""What jobs of videos and of robots' episodes give, of files that are kept in `films`.

Encoders differ from version to version of libav; decoders of these codecs do not. That of MPEG-4
does, so no film is MPEG-4. The films were written by `videos.written` with PyAV 18.1.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ProcessContext, RobotProcessor, VideoProcessor
from penstock.server.roles.processor import MediaProcessor
from penstock.server.sources import LerobotSource
from penstock.wire.colours import COLOURS
from robots import CAMERAS, RobotFolder

FILMS = Path(__file__).resolve().parent / "films"

FORMS: dict[str, dict[str, Any]] = {
    "by number": {"numbers": [7, 0, 11, 7]},
    "by rate, smaller": {"fps": 7, "resize": "shortest", "resize_to": 40},
    "planes": {"nframes": 3, "pixels": "yuv420p"},
}


def videos() -> dict[str, Any]:
    """Return digests of what `video` makes of each film."""
    found: dict[str, Any] = {}
    for file in sorted(FILMS.iterdir()):
        raw = {"video": file.read_bytes()}
        for name, parameters in FORMS.items():
            found[f"{file.name}, {name}"] = _told(
                VideoProcessor(**parameters), raw, [HeldMedium(file.name, raw["video"])]
            )
    return found


def robots() -> dict[str, Any]:
    """Return digests of what a folder's frames become, with windows."""
    film = (FILMS / "episodes.mp4").read_bytes()
    folder = RobotFolder(lengths=(5, 7), cameras=CAMERAS[:1], tables=(2,))
    steps = {CAMERAS[0]: [-0.1, 0.0, 0.3], "action": [0.0, 0.1, 0.2]}
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = folder.write(Path(temporary) / "robots", lambda path, *_: _put(path, film))
        items = LerobotSource(str(root), delta_timestamps=steps).fetch(range(folder.frames))
        for pixels in ("rgb24", "yuv420p"):
            processor = RobotProcessor(pixels=pixels)
            for number, item in enumerate(items):
                media = [HeldMedium("film", film) for _ in processor.references(item)]
                found[f"frame {number}, {pixels}"] = _told(processor, item, media)
    return found


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _told(
    processor: MediaProcessor, raw: Mapping[str, Any], media: Sequence[HeldMedium]
) -> dict[str, Any]:
    sample: Any = processor.process(raw, ProcessContext(ItemRef("main", 0, 0), 7, media))
    found = {}
    for name, value in sample.items():
        if isinstance(value, str):
            found[name] = value
        else:
            array = np.asarray(value)
            if name.endswith(COLOURS):
                array = array[..., :2]  # not the siting, which PyAV before 17 does not tell
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            found[name] = f"{array.dtype.name} {[*array.shape]} {digest}"
    return found
