"""What `penstockd show --pictures` draws: the pictures and texts of a batch, as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from harness import call_command, write_job_file
from penstock.server.commands.contact_sheet import (
    FRAME,
    HIDDEN,
    INK,
    LEARNED,
    SEAM,
    TextRun,
    runs_of,
)
from penstock.server.media.pictures_shown import pictures_in

Image = pytest.importorskip("PIL.Image")

FUNCTION = """
import numpy as np


def shown(raw, context):
    picture = np.full((60, 90, 3), raw["color"], np.uint8)
    return {"input_ids": raw["ids"], "picture": picture, "label": raw["n"]}
"""
COLORS = ([200, 10, 10], [10, 200, 10], [10, 10, 200], [200, 200, 10], [10, 200, 200])


def write_job(folder: Path, **more: Any) -> Path:
    (folder / "data.py").write_text(FUNCTION)
    items = [
        {"n": number, "color": color, "ids": list(range(number + 1))}
        for number, color in enumerate(COLORS)
    ]
    job = {
        "source": {"type": "items", "items": items},
        "processor": {"function": "./data.py:shown"},
        "distributor": {"type": "map", "shuffle": "none"},
        "lanes": 1,
        **more,
    }
    return write_job_file(folder / "job.yaml", {"pictures": job})


def colors_down(sheet: npt.NDArray[np.uint8]) -> list[list[int]]:
    """Return the planted colors in the order in which they come, from the top."""
    found: list[list[int]] = []
    for row in sheet[:, 20]:
        color = row.tolist()
        if color in COLORS and color not in found:
            found.append(color)
    return found


def test_show_draws_the_batches_in_their_order(tmp_path: Path) -> None:
    """Each picture once, below each other as the rows are; exit 0, and a PNG."""
    file = write_job(tmp_path, batch_size=2, collator="lists", epochs=1)
    sheet = tmp_path / "sheet.png"

    for position, expected in ((0, COLORS[:2]), (2, COLORS[4:])):
        done = call_command(
            "penstockd",
            "show",
            str(file),
            "pictures",
            f"--position={position}",
            f"--pictures={sheet}",
        )
        assert done.returncode == 0, done.stderr
        with Image.open(sheet) as image:
            assert image.format == "PNG"
            assert colors_down(np.asarray(image)) == list(expected)


def test_check_draws_the_first_batches_and_stops_where_they_end(tmp_path: Path) -> None:
    file = write_job(tmp_path, batch_size=2, collator="lists", epochs=1)
    sheet = tmp_path / "sheet.png"

    done = call_command("penstockd", "check", str(file), "--batches=9", f"--pictures={sheet}")

    assert done.returncode == 0, done.stderr
    with Image.open(sheet) as image:
        assert colors_down(np.asarray(image)) == list(COLORS)


def test_a_white_picture_is_seen_by_its_frame(tmp_path: Path) -> None:
    """As the fake one of conversations is."""
    sheet = tmp_path / "sheet.png"
    job = {
        "source": {"type": "items", "items": [{"n": 0, "color": [255] * 3, "ids": [1]}]},
        "processor": {"function": "./data.py:shown"},
        "collator": "lists",
        "batch_size": 1,
    }
    (tmp_path / "data.py").write_text(FUNCTION)
    file = write_job_file(tmp_path / "job.yaml", {"pictures": job})

    done = call_command(
        "penstockd", "show", str(file), "pictures", "--position=0", f"--pictures={sheet}"
    )

    assert done.returncode == 0, done.stderr
    with Image.open(sheet) as image:
        framed = (np.asarray(image) == FRAME).all(axis=2)
    assert (int(framed.any(axis=0).sum()), int(framed.any(axis=1).sum())) == (92, 62)


def test_a_seam_is_drawn_between_samples_of_a_row(tmp_path: Path) -> None:
    """And none between rows."""
    sheet = tmp_path / "sheet.png"
    for batcher, seams in (({"type": "next_fit", "max_tokens": 100}, 4), ("simple", 0)):
        settings = {"batch_size": 5} if batcher == "simple" else {"batcher": batcher}
        file = write_job(tmp_path, collator="lists", epochs=1, **settings)
        done = call_command(
            "penstockd", "show", str(file), "pictures", "--position=0", f"--pictures={sheet}"
        )
        assert done.returncode == 0, done.stderr
        with Image.open(sheet) as image:
            column = np.asarray(image)[:, 600]
        assert int((column == SEAM).all(axis=1).sum()) == seams


def test_a_sheet_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    file = write_job(tmp_path, batch_size=2, collator="lists")
    nowhere = tmp_path / "nowhere" / "sheet.png"

    done = call_command(
        "penstockd", "show", str(file), "pictures", "--position=0", f"--pictures={nowhere}"
    )

    assert done.returncode == 2
    assert f"the contact sheet cannot be written to {nowhere}: No such file" in done.stderr


def test_frames_are_told_by_their_camera_number_time_and_pad() -> None:
    """In the order of the pictures; long rows are left out."""
    sample = {
        "front": np.zeros((2, 4, 4, 3), np.uint8),
        "wrist": np.zeros((4, 4, 3), np.uint8),
        "frame_numbers": np.array([0, 15]),
        "frame_times": np.array([0.0, 0.5]),
        "front_is_pad": np.array([True, False]),
        "embedding": np.zeros(17, np.float32),
        "task": "wave",
    }

    [run] = runs_of(sample, None)

    assert run.text.split("   ") == [
        "pictures: front (2), wrist",
        "frame_numbers: 0 15",
        "frame_times: 0 0.5",
        "front_is_pad: 1 0",
        "task: wave",
    ]


def test_tokens_are_told_apart_by_what_becomes_of_them() -> None:
    """Hidden before learned; many equal ones are one word."""
    sample = {
        "input_ids": [7, 7, 7, 7, 7, 1, 2, 3, 4],
        "attention_mask": [1, 1, 1, 1, 1, 0, 1, 1, 1],
        "labels": [-100, -100, -100, -100, -100, 1, -100, 3, 4],
    }

    runs = list(runs_of(sample, lambda ids: "".join("abcdefgh"[one] for one in ids)))

    assert runs == [
        TextRun("[h x 5] ", INK),
        TextRun("b", HIDDEN),
        TextRun("c", INK),
        TextRun("de", LEARNED),
    ]
    assert list(runs_of({"label": 3, "x": np.ones((2, 2))}, None)) == [TextRun("label: 3", INK)]
    [caption] = runs_of({"text": "word " * 100}, None)
    assert caption.text == "text: " + "word " * 80 + " ...", "long ones are cut, and not left out"


@pytest.mark.parametrize(
    ("value", "shapes"),
    [
        (np.zeros((5, 6, 3), np.uint8), [(5, 6, 3)]),
        (np.zeros((3, 5, 6), np.uint8), [(5, 6, 3)]),
        (np.zeros((5, 6), np.uint8), [(5, 6, 3)]),
        (np.zeros((2, 5, 6, 3), np.uint8), [(5, 6, 3)] * 2),
        (
            [np.zeros((5, 6, 3), np.uint8), None, np.zeros((1, 4, 4), np.uint8)],
            [(5, 6, 3), (4, 4, 3)],
        ),
        (np.zeros((5, 6, 3)), []),
        (np.zeros((5, 6, 7), np.uint8), []),
        (b"abc", []),
        ([1, 2], []),
        (np.zeros(4, np.uint8), []),
    ],
)
def test_what_looks_like_a_picture_is_found(value: Any, shapes: list[tuple[int, ...]]) -> None:
    assert [picture.shape for picture in pictures_in({"x": value})] == shapes
