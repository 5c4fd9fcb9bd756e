"""What only the hf source has: splits, media, saved folders, and another library's errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server.sources import HfSource, ParquetSource
from penstock.wire.errors import InvalidJob, SourceChanged


@pytest.fixture(scope="module", autouse=True)
def _hf_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what `datasets` converts out of the user's cache, and the hub out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import datasets

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("hf"))
        yield


def write_jsonl(path: Path, numbers: range) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"n": n, "list": [n, n]}) + "\n" for n in numbers))
    return str(path)


def test_splits_are_chosen_by_name_or_slice(tmp_path: Path) -> None:
    """One split needs no name, several do; slices and sums work as in `datasets`."""
    files = {
        "train": write_jsonl(tmp_path / "train.jsonl", range(10)),
        "test": [write_jsonl(tmp_path / "test.jsonl", range(10, 14))],
    }

    def numbers(split: str) -> list[int]:
        source = HfSource("json", data_files=files, split=split)
        return [item["n"] for item in source.fetch(range(len(source)))]

    assert numbers("train") == [*range(10)]
    assert numbers("test") == [*range(10, 14)]
    assert numbers("train[:20%]+test[1:]") == [0, 1, 11, 12, 13]
    with pytest.raises(InvalidJob, match="splits train, test: choose one"):
        HfSource("json", data_files=files)
    with pytest.raises(InvalidJob, match="no split 'tst': it has train, test"):
        HfSource("json", data_files=files, split="tst")


def test_the_files_of_other_splits_are_not_in_the_identity(tmp_path: Path) -> None:
    """A split is its own files: the test set may change without changing the training run."""
    files = {
        "train": write_jsonl(tmp_path / "train.jsonl", range(5)),
        "test": write_jsonl(tmp_path / "test.jsonl", range(5)),
    }
    before = HfSource("json", data_files=files, split="train").identity()

    write_jsonl(tmp_path / "test.jsonl", range(6))

    assert HfSource("json", data_files=files, split="train").identity() == before
    assert HfSource("json", data_files=files["train"]).identity() == before


def test_a_builders_name_may_arrive_as_a_path_beside_the_job_file(tmp_path: Path) -> None:
    """Job files resolve `path: json` against their folder: the builder is found all the same."""
    files = write_jsonl(tmp_path / "rows.jsonl", range(3))

    resolved = HfSource(str(tmp_path / "json"), data_files=files)

    assert resolved.identity() == HfSource("json", data_files=files).identity()


def test_lists_are_what_the_parquet_source_gives(tmp_path: Path) -> None:
    """A column has one class of value, whichever source reads it."""
    import datasets

    files = write_jsonl(tmp_path / "rows.jsonl", range(3))
    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"n": n, "list": [n, n]} for n in range(3)]).to_parquet(
        tmp_path / "rows.parquet"
    )

    [ours] = HfSource("json", data_files=files).fetch([2])
    [theirs] = ParquetSource(str(tmp_path / "rows.parquet")).fetch([2])

    assert type(ours["list"]) is type(theirs["list"])
    assert ours["list"].dtype == theirs["list"].dtype
    assert ours["list"].tolist() == theirs["list"].tolist() == [2, 2]


def test_images_come_undecoded_with_their_bytes_and_without_their_place(tmp_path: Path) -> None:
    """A folder of images gives the files' own bytes and bare names, wherever it lies."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "here"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        image.new("RGB", (4, 4), (len(label), 0, 0)).save(folder / label / f"{label}.png")
    shutil.copytree(folder, tmp_path / "there")

    items = HfSource("imagefolder", data_files=str(folder / "**")).fetch([0, 1])
    moved = HfSource("imagefolder", data_files=str(tmp_path / "there" / "**")).fetch([0, 1])

    assert items == moved
    assert items[0]["image"] == {
        "bytes": (folder / "cat" / "cat.png").read_bytes(),
        "path": "cat.png",
    }


def test_a_saved_folder_that_changes_is_noticed(tmp_path: Path) -> None:
    """A mapped file that is written again is SourceChanged, not other rows."""
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset.from_list([{"n": n} for n in range(3)]).save_to_disk(tmp_path / "saved")
    source = HfSource(str(tmp_path / "saved"))
    [path] = (tmp_path / "saved").glob("*.arrow")
    data = path.read_bytes()
    path.unlink()  # the map keeps the old file; the name has a new one
    path.write_bytes(data + b"more")

    with pytest.raises(SourceChanged, match=r"\.arrow changed"):
        source.fetch([0])


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    """Names, files, columns and splits that are wrong are named, with what there is."""
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_list([{"n": 1}])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(tmp_path / "two")
    good = write_jsonl(tmp_path / "rows.jsonl", range(3))
    (tmp_path / "bad.jsonl").write_text('{"n": 1}\nthis is no JSON\n')
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"path": "user/corpus"}, "neither a folder nor a builder.*download it first"),
        ({"path": "json"}, "'json' needs data_files"),
        (
            {"path": "json", "data_files": str(tmp_path / "no*.jsonl")},
            r"no file matches .*no\*\.jsonl",
        ),
        (
            {"path": "json", "data_files": str(tmp_path / "bad.jsonl")},
            r"datasets cannot open json: .*bad\.jsonl'.*JSON parse error",
        ),
        ({"path": "json", "data_files": good, "columns": ["m"]}, "no column 'm'.* n, list"),
        ({"path": "json", "data_files": good, "options": {"nosuch": 1}}, "nosuch"),
        ({"path": str(tmp_path / "one"), "split": "train"}, "without splits: leave split out"),
        ({"path": str(tmp_path / "two")}, "splits train, test: choose one"),
        ({"path": str(tmp_path / "two"), "split": "train[:1]"}, "it has train, test"),
    ]
    for parameters, sentence in mistakes:
        with pytest.raises(InvalidJob, match=sentence):
            HfSource(**parameters)
