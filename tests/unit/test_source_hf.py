"""What only the hf source has: splits, media, saved folders, and another library's errors."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server.sources import HfSource, ParquetSource
from penstock.server.sources.hf_builders import quietly
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


def test_json_that_is_stored_as_text_is_values_again(tmp_path: Path) -> None:
    """Objects of several shapes, as turns of which some call tools, are what `datasets` gives."""
    rows = [
        {"turns": [{"role": "user"}, {"role": "tool", "calls": [{"x": 1}]}], "a": {"b": [1]}},
        {"turns": [{"role": "user", "calls": "none"}], "a": None},
        {"turns": [], "a": {"b": [{"c": 1}, 2]}},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))

    source = HfSource("json", data_files=str(tmp_path / "rows.jsonl"))

    import datasets

    theirs = datasets.load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), split="train")
    assert source.fetch(range(3)) == [*theirs]
    assert source.fetch([0])[0]["turns"][0]["role"] == "user"


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
    (tmp_path / "empty.jsonl").touch()
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
            r"datasets cannot read '.*bad\.jsonl' as json: .*JSON parse error",
        ),
        (
            {"path": "json", "data_files": str(tmp_path / "empty.jsonl")},
            r"datasets cannot read '.*empty\.jsonl' as json: .*at least one item",
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


def numbers(source: HfSource) -> list[int]:
    return [item["n"] for item in source.fetch(range(len(source)))]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("by_folder", [False, True])
def test_an_edited_line_under_a_kept_time_gives_the_new_rows(
    tmp_path: Path, own_cache: Path, suffix: str, by_folder: bool
) -> None:
    """What is prepared is known by its content: same path, size and time, and still other rows."""
    path = tmp_path / "data" / f"rows.jsonl{suffix}"
    path.parent.mkdir()

    def write(values: list[int]) -> HfSource:
        text = "".join(json.dumps({"n": n}) + "\n" for n in values).encode()
        path.write_bytes(gzip.compress(text, mtime=0) if suffix else text)
        os.utime(path, (10**9, 10**9))
        if by_folder:
            return HfSource(str(path.parent))
        return HfSource("json", data_files=str(path))

    before = write([1, 2, 3])
    after = write([1, 7, 3])

    assert numbers(before) == [1, 2, 3]  # what was opened stays what it was
    assert numbers(after) == [1, 7, 3]
    assert after.fingerprint() != before.fingerprint()


def test_a_bare_touch_prepares_nothing_anew(tmp_path: Path, own_cache: Path) -> None:
    """Times are no content: the same bytes use what was prepared of them."""
    files = write_jsonl(tmp_path / "rows.jsonl", range(5))
    first = HfSource("json", data_files=files)
    [info] = own_cache.glob("penstock/*/rows/dataset_info.json")
    made = info.stat().st_mtime_ns

    os.utime(files, (1, 1))
    second = HfSource("json", data_files=files)

    assert numbers(first) == numbers(second) == [*range(5)]
    assert [path.stat().st_mtime_ns for path in own_cache.rglob("dataset_info.json")] == [made]


def test_rows_that_others_prepared_are_not_looked_at(tmp_path: Path, own_cache: Path) -> None:
    """The user's own `load_dataset` of the same file leaves rows that are keyed by times."""
    import datasets

    files = write_jsonl(tmp_path / "rows.jsonl", range(5))
    os.utime(files, (10**9, 10**9))
    datasets.load_dataset("json", data_files=files, cache_dir=str(own_cache))

    write_jsonl(tmp_path / "rows.jsonl", range(5, 9))
    os.utime(files, (10**9, 10**9))

    assert numbers(HfSource("json", data_files=files)) == [5, 6, 7, 8]


def test_what_a_killed_process_left_is_prepared_anew(tmp_path: Path, own_cache: Path) -> None:
    """Only a folder that was finished, and whose files stayed as they were, is used."""
    files = write_jsonl(tmp_path / "rows.jsonl", range(5))
    HfSource("json", data_files=files)
    [done] = own_cache.glob("penstock/*/complete")
    done.unlink()  # killed before it could say so
    for arrow in done.parent.rglob("*.arrow"):
        arrow.write_bytes(b"half")

    assert numbers(HfSource("json", data_files=files)) == [*range(5)]


def test_processes_that_prepare_at_once_get_the_same_rows(tmp_path: Path) -> None:
    """Server and workers open a source at the same time: one prepares, all read that."""
    files = write_jsonl(tmp_path / "rows.jsonl", range(2000))
    code = (
        "import sys; from penstock.server.sources import HfSource;"
        "source = HfSource('json', data_files=sys.argv[1]);"
        "print(sum(item['n'] for item in source.fetch(range(len(source)))))"
    )
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}

    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, files],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=240) for process in running]

    assert [out.strip() for out, _ in said] == [str(sum(range(2000)))] * 3, said
    assert len([*(tmp_path / "cache").rglob("dataset_info.json")]) == 1


def test_a_file_that_changes_while_it_is_prepared_is_refused(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of other bytes never lie in the folder of these, not even for the next process."""
    import datasets

    files = write_jsonl(tmp_path / "rows.jsonl", range(5))
    prepare = datasets.DatasetBuilder.download_and_prepare

    def edited_first(builder: Any, *args: Any, **kwargs: Any) -> None:
        write_jsonl(tmp_path / "rows.jsonl", range(5, 10))
        prepare(builder, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(datasets.DatasetBuilder, "download_and_prepare", edited_first)
        with pytest.raises(SourceChanged, match=r"rows\.jsonl changed while"):
            HfSource("json", data_files=files)
    write_jsonl(tmp_path / "rows.jsonl", range(5))

    assert numbers(HfSource("json", data_files=files)) == [*range(5)]


def test_what_the_library_writes_is_as_it_was_after_several_were_opened_at_once() -> None:
    """As a meta file opens them: one that ends while another goes on brings no bars back."""
    import datasets

    datasets.enable_progress_bars()
    before = datasets.logging.get_verbosity()
    one, other = (quietly(datasets, "json", name, "json") for name in ("a.jsonl", "b.jsonl"))

    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    meanwhile = datasets.are_progress_bars_disabled()
    other.__exit__(None, None, None)

    assert meanwhile
    assert not datasets.are_progress_bars_disabled()
    assert datasets.logging.get_verbosity() == before
