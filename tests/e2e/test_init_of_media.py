"""`penstockd init` on pictures, sounds and conversations with pictures: jobs that run unedited.

`init` ends with the check of what it wrote, and fails if that does.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import sounds
from penstock.client import Loader, media
from penstock.server.cli import run
from pictures import photograph
from vision import drawn, encoded, write_vision_folder

COUNT = 16


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    return tmp_path


def picture(number: int) -> bytes:
    return encoded(drawn(60 + 7 * number, 90 + number, number), "JPEG" if number % 2 else "PNG")


def write_pictures(folder: Path, *classes: str) -> None:
    for number in range(COUNT):
        below = folder / classes[number % len(classes)] if classes else folder
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{number}.{'JPG' if number % 2 else 'png'}").write_bytes(picture(number))


def write_classes(home: Path) -> list[str]:
    write_pictures(home / "photos", "cat", "dog")
    (home / "photos" / "LICENSE.txt").write_text("Anybody may use them.")
    (home / "photos" / "cat" / "notes.md").write_text("Nothing to read for a model.")
    return ["photos"]


def write_flat(home: Path) -> list[str]:
    write_pictures(home / "photos")
    return ["photos/"]


def write_tar(home: Path) -> list[str]:
    with tarfile.open(home / "shard.tar", "w") as archive:
        for number in range(COUNT):
            for ending, data in (("img", picture(number)), ("cls", b"%d" % (number % 3))):
                member = tarfile.TarInfo(f"{number:04}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return ["shard.tar"]


def write_structs(home: Path) -> list[str]:
    """As `datasets` keeps a column of type Image."""
    rows = [
        {"picture": {"bytes": picture(n), "path": f"{n}.png"}, "caption": f"number {n}"}
        for n in range(COUNT)
    ]
    pq.write_table(pa.Table.from_pylist(rows), home / "rows.parquet")
    return ["rows.parquet"]


def write_saved(home: Path) -> list[str]:
    from datasets import Dataset, Features, Image, Value

    rows = {
        "image": [{"bytes": picture(n), "path": None} for n in range(COUNT)],
        "label": list(range(COUNT)),
    }
    features = Features({"image": Image(), "label": Value("int64")})
    Dataset.from_dict(rows, features=features).save_to_disk(str(home / "saved"))
    return ["saved"]


def write_names(home: Path) -> list[str]:
    """A table beside the folder of what it names."""
    write_pictures(home / "data" / "images")
    names = sorted(path.name for path in (home / "data" / "images").iterdir())
    rows = [{"file_name": name, "text": f"{name} is shown"} for name in names]
    (home / "data" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return ["data/metadata.jsonl"]


PICTURES: dict[str, tuple[Callable[[Path], list[str]], str, list[str]]] = {
    "classes": (write_classes, "folder", ["label"]),
    "flat": (write_flat, "folder", []),
    "tar": (write_tar, "webdataset", ["cls"]),
    "structs": (write_structs, "parquet", ["caption"]),
    "saved": (write_saved, "saved", ["label"]),
    "names": (write_names, "jsonl", ["text"]),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_become_batches_of_pixels(
    kind: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever holds or names them, and what stands beside them comes along."""
    write, source, beside = PICTURES[kind]

    assert run(["init", *write(home)]) == 0, capsys.readouterr().err
    with Loader("local:penstock.yaml", "main", as_numpy=True) as loader:
        batch = next(iter(loader))

    job = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    assert job["source"]["type"] == source
    assert set(batch) == {"image", *beside}
    assert (batch["image"].shape, batch["image"].dtype) == ((8, 3, 224, 224), np.uint8)
    assert all(len(batch[name]) == 8 for name in beside)
    assert str(home) not in (home / "penstock.yaml").read_text()
    if kind == "classes":
        assert set(batch["label"].tolist()) <= {0, 1}
        assert "only media of one kind are read, not: .md, .txt" in capsys.readouterr().out


def test_sounds_become_lists(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of them, and a table that holds their bytes."""
    (home / "clips").mkdir()
    clips = [
        sounds.written(sounds.drawn(0.1 + n / 50, 8000, seed=n), 8000, "wav") for n in range(9)
    ]
    for number, clip in enumerate(clips):
        (home / "clips" / f"{number}.wav").write_bytes(clip)
    rows = [{"audio": {"bytes": clip, "path": None}, "text": "words"} for clip in clips]
    pq.write_table(pa.Table.from_pylist(rows), home / "clips.parquet")

    for given, keys in (("clips", set()), ("clips.parquet", {"text"})):
        assert run(["init", given, "--force", "--batch-size", "2"]) == 0, capsys.readouterr().err
        with Loader("local:penstock.yaml", "main", as_numpy=True) as loader:
            batch = next(iter(loader))
        assert set(batch) == {"sound", "sample_rate", *keys}
        assert [len(sound) >= 1600 for sound in batch["sound"]] == [True, True]


def write_chats(
    home: Path, form: str, *, placeholders: bool = True, folder: str = "photos"
) -> Path:
    """Write conversations of no, one and two pictures, as `form` has them."""
    (home / folder).mkdir(parents=True)
    items: list[dict[str, Any]] = []
    for number in range(COUNT):
        names = [f"{number}-{place}.png" for place in range(number % 3)]
        for name in names:
            (home / folder / name).write_bytes(encoded(drawn(70 + number, 80, number)))
        tags = "<image>\n" * len(names) if placeholders else ""
        if form == "openai":
            parts: list[dict[str, Any]] = [
                {"type": "image_url", "image_url": {"url": name}} for name in names
            ]
            parts.append({"type": "text", "text": f"What is {number}?"})
            turns = [
                {"role": "user", "content": parts},
                {"role": "assistant", "content": f"It is {number}."},
            ]
            items.append({"messages": turns})
            continue
        said = [
            {"from": "human", "value": f"{tags}What is {number}?"},
            {"from": "gpt", "value": f"It is {number}."},
        ]
        # As LLaVA's files are: where there is no picture, there is no column.
        items.append(
            {"id": str(number), "conversations": said, **({"image": names} if names else {})}
        )
    if form == "openai":
        (home / "chats.jsonl").write_text("\n".join(map(json.dumps, items)))
        return home / "chats.jsonl"
    (home / "chats.json").write_text(json.dumps(items))
    return home / "chats.json"


def chat_batch(home: Path) -> dict[str, Any]:
    """Return the first batch of the job that was written."""
    with Loader("local:penstock.yaml", "main", as_numpy=True) as loader:
        return dict(next(iter(loader)))


@pytest.mark.parametrize("form", ["sharegpt", "openai"])
def test_conversations_are_packed_with_their_pictures(
    form: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a model's processor beside them, whose folder is found, as is that of the pictures."""
    data = write_chats(home, form)
    write_vision_folder(home / "model", "qwen2_vl")

    status = run(["init", data.name, "--tokenizer", "model", "--max-tokens", "512"])

    assert status == 0, capsys.readouterr().err
    job = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    assert job["media"] == {"dir": "photos"}
    assert job["processor"]["fake_image"] is True
    assert job["processor"]["patches"] == "uint8"
    assert "arrive=penstock.client.media.normalize" in (home / "penstock.yaml").read_text()
    assert "with their pictures, by the processor in model" in capsys.readouterr().out
    batch = chat_batch(home)
    assert batch["input_ids"].shape == (1, 512)
    assert len(batch["image_grid_thw"]) == batch["n_images_per_sample"].sum() >= 1
    assert batch["position_ids"].shape == (3, 1, 512)
    assert batch["pixel_values"].dtype == np.uint8
    with Loader("local:penstock.yaml", "main", arrive=media.normalize) as loader:
        ready = dict(next(iter(loader)))
    assert ready["pixel_values"].dtype.is_floating_point
    assert "pixel_norm" not in ready
    assert 0 < (batch["labels"] != -100).sum() < (batch["attention_mask"] > 0).sum()


def test_pictures_without_a_place_are_shown_first(home: Path) -> None:
    """And a batch of a size is padded."""
    data = write_chats(home, "sharegpt", placeholders=False, folder="data/deep/photos")
    write_vision_folder(home / "model", "llava")
    photos = ["--media", "data/deep/photos"]

    assert run(["init", data.name, "--tokenizer", "model", "--batch-size", "2", *photos]) == 0

    job = yaml.safe_load((home / "penstock.yaml").read_text())["jobs"]["main"]
    assert job["processor"]["unplaced_images"] == "first_turn"
    assert job["collator"] == "vlm"
    assert chat_batch(home)["pixel_values"].shape[1:] == (3, 336, 336)


def test_names_that_lead_nowhere_are_asked_about(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written; with the folder they are found."""
    data = write_chats(home, "sharegpt", folder="far/below/photos")
    write_vision_folder(home / "model", "qwen2_vl")
    write_vision_folder(home / "other", "qwen2_vl")
    (home / "other" / "preprocessor_config.json").unlink()

    for arguments, said in (
        (
            ["--tokenizer", "model"],
            "items name files, such as '1-0.png', that lie in no folder near the data",
        ),
        (
            ["--media", "nowhere", "--tokenizer", "model"],
            "--media nowhere: there is no such folder",
        ),
        (["--media", "far", "--tokenizer", "other"], "does not say of which processor it is"),
    ):
        assert run(["init", data.name, *arguments]) == 2
        assert said in capsys.readouterr().err
        assert not (home / "penstock.yaml").exists()


def test_conversations_without_a_processor_are_batches_of_what_they_are(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what to add is said, in the file, too."""
    data = write_chats(home, "sharegpt")

    assert run(["init", data.name]) == 0, capsys.readouterr().err

    assert "no processor of a vision-language model was found" in capsys.readouterr().out
    assert "penstockd init --tokenizer FOLDER" in (home / "penstock.yaml").read_text()


@pytest.mark.parametrize(
    "name",
    ["https://a.b/{}.jpg", "far/{}.jpg", "a" * 300 + "{}.jpg", "\0{}.png"],
    ids=["url", "far", "long", "null"],
)
def test_a_column_of_names_of_nothing_is_text(name: str, home: Path) -> None:
    """A file's name is a text where no such file is there, or can be."""
    rows = [{"source": name.format(n), "text": f"words {n}"} for n in range(COUNT)]
    (home / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    assert run(["init", "rows.jsonl"]) == 0

    assert "type: image" not in (home / "penstock.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["photo.png"], "is one picture, sound or video: name its folder"),
        (["photos", "more"], "photos is a folder of media, and a job reads one"),
        (["photos", "--media", "photos"], "these items name none: leave it out"),
        (["photos", "--max-tokens", "64"], "packs tokens, and these items give none"),
    ],
)
def test_what_does_not_go_with_pictures_is_refused(
    arguments: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is one sentence with the way on."""
    write_pictures(home / "photos")
    write_pictures(home / "more")
    (home / "photo.png").write_bytes(encoded(photograph(40, 30)))

    assert run(["init", *arguments]) == 2

    assert said in capsys.readouterr().err
    assert not (home / "penstock.yaml").exists()
