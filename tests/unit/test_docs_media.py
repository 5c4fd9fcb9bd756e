"""docs/media.md: its job gives what it says, and its words are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import pictures
from penstock.server.jobs.load import load
from penstock.server.media.image_header import FORMATS
from penstock.server.media.jpeg import MAX_SCANS
from penstock.server.media.picture import DECODERS
from penstock.server.media.resize import KERNELS
from penstock.server.pipeline.line import Line
from penstock.wire import frame
from penstock.wire.v1.feed_pb2 import BatchHeader

PAGE = (Path(__file__).parents[2] / "docs" / "media.md").read_text()
JOB, TRANSFORMED = (
    yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
)
AUGMENT = re.findall(r"<!-- file: augment.py -->\n```python\n(.*?)^```", PAGE, re.M | re.S)[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the page's job names."""
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    lines = []
    for number in range(40):
        name = f"cats/{number}.jpg"
        image = pictures.photograph(300 + number, 240)
        (tmp_path / "pictures" / name).write_bytes(pictures.encoded(image, "JPEG"))
        lines.append(json.dumps({"image": name, "label": number % 5}) + "\n")
    (tmp_path / "items.jsonl").write_text("".join(lines))
    (tmp_path / "augment.py").write_text(AUGMENT)
    return tmp_path


def shapes(folder: Path, job: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a job's first batch."""
    (folder / "jobs.yaml").write_text(yaml.safe_dump(job))
    line = Line(load(str(folder / "jobs.yaml")).job("pictures"), 0)
    made = line.make(line.advance())
    sent = bytearray(made.nbytes)
    header = BatchHeader.FromString(made.write(memoryview(sent)))
    values = frame.decode_values(header, frame.completed(header, sent))
    return {name: tuple(value.shape) for name, value in values.items()}


def test_the_jobs_of_the_page_give_what_it_says(folder: Path) -> None:
    """As they stand there; with a transform in the second one's place of the processor."""
    assert "`image`, uint8 (32, 3, 224, 224), and `label`" in PAGE
    assert shapes(folder, JOB) == {"image": (32, 3, 224, 224), "label": (32,)}

    job = {**JOB["jobs"]["pictures"], **TRANSFORMED}
    assert shapes(folder, {"jobs": {"pictures": job}}) == {"image": (32, 224, 224, 3)}


def test_the_page_names_what_there_is() -> None:
    """Formats, decoders, kernels and the bound on scans."""
    assert f"{', '.join(FORMATS[:-1])} and {FORMATS[-1]} are read" in PAGE
    assert all(f"`decoder: {name}`" in PAGE for name in DECODERS)
    assert all(re.search(rf"^\* `{name}`", PAGE, re.M) for name in KERNELS)
    assert f"more than {MAX_SCANS} scans" in PAGE


def test_prose_has_one_sentence_per_line() -> None:
    """A changed sentence is one changed line."""
    prose = re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S)
    prose = re.sub(r"`[^`]*`", "`code`", prose)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "#", "*"))]
    assert [line for line in lines if re.search(r"[.!?] [A-Z]", line)] == []
