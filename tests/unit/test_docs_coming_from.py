"""docs/coming-from.md: each job file of the page makes batches, which are what its tables say."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

import sounds
from chats import CHATML, write_chat_folder
from indexes import made
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line
from penstock.wire import frame
from videos import film
from vision import drawn, encoded, write_vision_folder

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text()
FILES: dict[str, str] = dict(
    re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```", PAGE, re.M | re.S)
)
MDS = Path(__file__).parents[1] / "data" / "formats" / "mds" / "plain"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, with small data of every kind that they name."""
    folder = tmp_path_factory.mktemp("coming")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "instruct").mkdir()
    rows = [{"input_ids": [n] * (1 + n % 40), "labels": [n] * (1 + n % 40)} for n in range(60)]
    for name in ("instruct/0", "instruct/1", "math"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    write_chat_folder(folder / "model", CHATML)
    chats = [
        {
            "conversations": [
                {"from": "human", "value": "What is the answer?" * (1 + n % 4)},
                {"from": "gpt", "value": f"It is {n}."},
            ]
        }
        for n in range(40)
    ]
    (folder / "sharegpt.json").write_text(json.dumps(chats))
    (folder / "more.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    for name in ("web", "code"):
        shutil.copytree(MDS, folder / name)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "0.tar", "w") as archive:
        for n in range(20):
            for ending, data in (("txt", f"text {n}".encode()), ("cls", str(n % 3).encode())):
                member = tarfile.TarInfo(f"{n:03}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    write_media(folder)
    write_corpora(folder / "corpora")
    return folder


def write_corpora(folder: Path) -> None:
    """Write rows as four corpora have them, with pictures as Parquet files on the hub hold them."""
    folder.mkdir()
    image = {"bytes": encoded(drawn(60, 70, 1)), "path": "1.png"}
    menu = {"menu": [{"nm": "tea"}, {"nm": "rice"}], "total": 7}
    rows: dict[str, dict[str, Any]] = {
        "rdr": {"image": image, "text": "the answer"},
        "cord_v2": {"image": image, "ground_truth": json.dumps({"gt_parse": menu})},
        "medpix": {"image_id": image, "question": "What is it?", "answer": "the answer"},
        "magicoder": {"problem": "Write it.", "solution": "the answer"},
    }
    for name, row in rows.items():
        pq.write_table(pa.Table.from_pylist([row] * 6), folder / f"{name}.parquet")


SHOWN = 24


def write_media(folder: Path) -> None:
    """Write conversations with no, one and two pictures, in every form of the page, and sounds."""
    write_vision_folder(folder / "vlm", "qwen2_vl")
    for name in ("photos", "clips", "llava_ov"):
        (folder / name).mkdir()
    sharegpt, openai, stored, heard = [], [], [], []
    for n in range(SHOWN):
        names = [f"{n}-{place}.png" for place in range(n % 3)]
        files = [encoded(drawn(60 + 10 * (n % 5), 70 + n, n)) for _ in names]
        for name, data in zip(names, files, strict=True):
            (folder / "photos" / name).write_bytes(data)
        asked, answer = f"What is {n}?", {"from": "gpt", "value": f"It is {n}."}
        turns = [{"from": "human", "value": "<image>\n" * len(names) + asked}, answer]
        sharegpt.append({"conversations": turns, "images": names})
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": name}} for name in names
        ]
        parts.append({"type": "text", "text": asked})
        said = {"role": "assistant", "content": [{"type": "text", "text": answer["value"]}]}
        openai.append({"messages": [{"role": "user", "content": parts}, said]})
        image = {"bytes": files[0], "path": names[0]} if files else None
        stored.append(
            {"image": image, "conversations": [{"from": "human", "value": asked}, answer]}
        )
        clip = sounds.written(sounds.drawn(1 + n % 4, 8000, seed=n), 8000, "wav")
        (folder / "clips" / f"{n}.wav").write_bytes(clip)
        heard.append({"audio": f"{n}.wav", "text": f"sound {n}"})
    (folder / "described.json").write_text(json.dumps(sharegpt))
    for file, rows in (("pictures.jsonl", openai), ("sounds.jsonl", heard)):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(2):
        part = pa.Table.from_pylist(stored[number::2])
        pq.write_table(part, folder / "llava_ov" / f"{number}.parquet")


class Batch(NamedTuple):
    """What the tests below look at: values, the sources of the samples, tokens of padding."""

    values: dict[str, Any]
    sources: set[str]
    padding: int


def batches(folder: Path, name: str, count: int, job: str = "train", lane: int = 1) -> list[Batch]:
    """Return a lane's first batches."""
    line = Line(load(str(folder / name), environ={}).job(job), lane)
    found = []
    for _ in range(count):
        made = line.make(line.advance())
        body = bytearray(made.nbytes)
        header = frame.read_header(made.write(memoryview(body)))
        sources = {sample.source for sample in header.samples}
        values = frame.decode_values(header, body)
        found.append(Batch(values, sources, made.counts.get("padding_tokens", 0)))
    return found


def test_every_job_file_of_the_page_is_run_here() -> None:
    """None is shown that no test below has made batches of."""
    shown = {name for name, text in FILES.items() if text.startswith("jobs:")}
    run = set(re.findall(r'batches\(folder, "(\S+)"', Path(__file__).read_text()))

    assert shown == run
    assert len(shown) == 12


def test_cosmos_sets_keep_their_ratios_and_their_keys(folder: Path) -> None:
    """Three batches in four of the one set; widths are multiples of 16, and masks are bool."""
    made = batches(folder, "cosmos.yaml", 20)

    assert Counter(batch.values["dataset_name"] for batch in made) == {"instruct": 15, "math": 5}
    for values, sources, _ in made:
        assert sources == {values["dataset_name"]}
        assert values["input_ids"].shape[1] % 16 == 0
        assert values["attention_mask"].dtype == np.bool_
        assert (values["labels"][~values["attention_mask"]] == -100).all()


def test_automodel_trains_on_answers_in_neat_rows(folder: Path) -> None:
    """The keys of neat packing; some tokens are learned, and most are not."""
    [(values, _, _)] = batches(folder, "automodel.yaml", 1)

    assert {"input_ids", "labels", "position_ids", "attention_mask"} <= set(values)
    assert values["input_ids"].shape == (1, 4096)
    learned = (values["labels"] != -100).sum()
    assert 0 < learned < (values["attention_mask"] > 0).sum() / 2
    assert values["attention_mask"].max() > 1


def test_lmms_packs_become_padded_batches(folder: Path) -> None:
    """Each sample of a pack is a row of its own, and together they keep to the budget."""
    made = [batch.values for batch in batches(folder, "lmms.yaml", 8)]

    for values in made:
        assert values["attention_mask"].sum() <= 512
        assert len(values["input_ids"]) == len(values["labels"])
    assert all(len(values["input_ids"]) > 1 for values in made)


def test_torchdata_nodes_are_roles(folder: Path) -> None:
    """The weights of the parts, the filter of the function, the values of its collator."""
    made = batches(folder, "torchdata.yaml", 40)
    drawn = [number for batch in made for number in batch.values["numbers"]]

    assert all(n % 7 for n in drawn)
    assert sum(n >= 1000 for n in drawn) / len(drawn) == pytest.approx(0.75, abs=0.05)


def test_streams_of_mosaicml_are_parts(folder: Path) -> None:
    """Shards as they are written, both streams, rows without padding."""
    made = batches(folder, "streaming.yaml", 20)

    assert {source for batch in made for source in batch.sources} == {"web", "code"}
    assert all(batch.values["input_ids"].shape == (1, 16) for batch in made)
    assert all(batch.padding == 0 for batch in made)


def test_samples_of_webdataset_are_dicts(folder: Path) -> None:
    """Texts and classes are decoded, and belong together."""
    for values, _, _ in batches(folder, "webdataset.yaml", 10):
        assert [int(text.split()[1]) % 3 for text in values["text"]] == list(values["label"])


@pytest.mark.parametrize("job", ["train", "streamed"])
def test_cosmos_pads_conversations_with_their_pictures(job: str, folder: Path) -> None:
    """A sample a batch; widths are multiples of 16, and a picture without a place is shown."""
    made = [batch.values for batch in batches(folder, "cosmos-vision.yaml", 9, job)]

    assert {int(values["n_images_per_sample"][0]) for values in made} == {0, 1}
    for values in made:
        assert len(values["input_ids"]) == 1
        assert values["input_ids"].shape[1] % 16 == 0
        assert values["attention_mask"].dtype == np.bool_
        assert ("pixel_values" in values) == values["n_images_per_sample"].any()
        if "pixel_values" in values:
            patches = values["image_grid_thw"].prod(axis=1).sum()
            assert values["pixel_values"].shape == (patches, 1176)
        assert 0 < (values["labels"] != -100).sum() < values["attention_mask"].sum() / 2


def test_cosmos_decodes_the_videos_of_its_messages(folder: Path) -> None:
    """By keys of another column; two videos of one key are alike."""
    part = {"type": "video", "video": "k", "text": None}
    text = {"type": "text", "video": None, "text": "And?"}
    turns = [
        {"role": "user", "content": [part, text, part]},
        {"role": "assistant", "content": [{**text, "text": "It falls."}]},
    ]
    texts = pa.array([turns] * 3)
    medium = [("k", film("H.264, key frame every 2nd"))]
    media = pa.array([medium] * 3, pa.map_(pa.string(), pa.binary()))
    pq.write_table(pa.table({"texts": texts, "media": media}), folder / "videophy2.parquet")

    [(values, _, _)] = batches(folder, "videophy2.yaml", 1, lane=0)

    assert values["n_videos_per_sample"].tolist() == [2]
    assert values["video_grid_thw"].tolist() == [values["video_grid_thw"][0].tolist()] * 2
    first, second = np.split(values["pixel_values_videos"], 2)
    assert np.array_equal(first, second)
    assert values["input_ids"].shape[1] % 16 == 0


def test_the_job_of_another_page_shows_videos(folder: Path) -> None:
    """As docs/conversations.md has it: a file twice, and a list of pictures."""
    page = (Path(__file__).parents[2] / "docs" / "conversations.md").read_text()
    found = dict(re.findall(r"<!-- file: (talks\S+) -->\n```\w+\n(.*?)^```", page, re.M | re.S))
    write_vision_folder(folder / "Qwen2.5-VL-3B-Instruct", "qwen2_5_vl")
    (folder / "clips" / "walk").mkdir(parents=True)
    (folder / "clips" / "cup.mp4").write_bytes(film("H.264, key frame every 2nd"))
    for number in range(3):
        picture = encoded(drawn(60, 80, number), "JPEG")
        (folder / "clips" / "walk" / f"{number}.jpg").write_bytes(picture)
    for name, text in found.items():
        (folder / name).write_text(text)
    file = "talks.yaml"

    [(values, _, _)] = batches(folder, file, 1, job="talks", lane=0)

    seconds = {float(each) for each in values["second_per_grid_ts"]}
    assert values["n_videos_per_sample"].sum() == len(values["video_grid_thw"])
    assert seconds == {1.0, 0.5, 2.0}


def test_automodel_packs_pictures_in_steps_that_are_balanced(folder: Path) -> None:
    """Rows of the keys of neat packing; a step's batches come sorted by their media tokens."""
    file = folder / "automodel-vision.yaml"
    file.write_text(re.sub(r"(max_tokens|pad_to): 4096", r"\1: 128", file.read_text()))
    made(load(str(file), environ={}).jobs.unplanned("train"), folder / "pictures.index")

    step = [batches(folder, "automodel-vision.yaml", 1, lane=lane)[0] for lane in range(8)]

    found = [batch.values for batch in step]
    cost = [values["image_grid_thw"].prod(axis=1).sum() // 4 for values in found]
    assert len(set(cost)) > 4
    assert cost == sorted(cost) or cost == sorted(cost, reverse=True)
    for values in found:
        assert {"input_ids", "labels", "position_ids", "attention_mask"} <= set(values)
        assert values["input_ids"].shape == (1, 128)
        assert values["position_ids"].shape == (3, 1, 128)
        assert len(values["image_grid_thw"]) >= 1
        assert 0 < (values["labels"] != -100).sum() < (values["attention_mask"] > 0).sum()
        assert (values["attention_mask"] > 0).sum() <= 0.9 * 128


@pytest.mark.parametrize("job", ["rdr", "cord_v2", "medpix", "magicoder"])
def test_corpora_that_are_no_conversations_become_some(job: str, folder: Path) -> None:
    """The answer alone is learned, as the page's class writes it; pictures are the item's own."""
    answers = {
        "cord_v2": "<s_total>7</s_total><s_menu><s_nm>tea</s_nm><sep/><s_nm>rice</s_nm></s_menu>"
    }
    tokenizer = Tokenizer.from_file(str(folder / "vlm" / "tokenizer.json"))
    for values, _, _ in batches(folder, "automodel-corpora.yaml", 2, job=job, lane=0):
        for ids in values["labels"]:
            learned = tokenizer.decode(ids[ids >= 0], skip_special_tokens=True)
            plain = re.sub(r"\s", "", learned)
            assert plain == re.sub(r"\s", "", answers.get(job, "the answer"))
        assert len(values["image_grid_thw"]) == 2


def test_the_subclass_of_another_page_makes_conversations_of_captions(folder: Path) -> None:
    """As docs/conversations.md has it, in place of the class for rdr."""
    page = (Path(__file__).parents[2] / "docs" / "conversations.md").read_text()
    [code] = re.findall(r"<!-- file: described.py -->\n```python\n(.*?)^```", page, re.M | re.S)
    (folder / "described.py").write_text(code.replace('raw["caption"]', 'raw["text"]'))
    text = FILES["automodel-corpora.yaml"].replace("./corpora.py:Rdr", "./described.py:Described")
    name = "described.yaml"
    (folder / name).write_text(text)

    [(values, _, _)] = batches(folder, name, 1, job="rdr", lane=0)

    assert len(values["image_grid_thw"]) == 2
    assert (values["labels"] >= 0).any(axis=1).all()


def test_lmms_packs_of_pictures_become_padded_batches(folder: Path) -> None:
    """Each sample of a pack is a row of its own, with its pictures."""
    made = [batch.values for batch in batches(folder, "lmms-vision.yaml", 3)]

    for values in made:
        assert values["attention_mask"].sum() <= 512
        assert len(values["input_ids"]) == len(values["n_images_per_sample"]) > 1
        assert len(values["image_grid_thw"]) == values["n_images_per_sample"].sum()
    assert any(len(values["image_grid_thw"]) for values in made)


def test_lmms_packs_of_sounds_keep_to_both_budgets(folder: Path) -> None:
    """Tokens of a rule, and seconds; each sound with its text."""
    made = [batch.values for batch in batches(folder, "lmms-audio.yaml", 4)]

    for values in made:
        points = [len(sound) for sound in values["sound"]]
        assert sum(points) <= 20 * 16000 < sum(points) + 4 * 16000
        assert [len(ids) for ids in values["input_ids"]] == [25 * n // 16000 for n in points]
        assert len(values["text"]) == len(points) > 1


def test_a_key_of_cosmos_is_set_from_the_command_line(folder: Path) -> None:
    """As the page writes it, for the job that it shows: the log of the edited file."""
    [option] = re.findall(r"`--set (train\.\S+)`", PAGE)
    edited = folder / "cosmos-edited.yaml"
    edited.write_text(FILES["cosmos.yaml"].replace("max_tokens: 16000", "max_tokens: 12000"))

    job = load(str(folder / "cosmos.yaml"), environ={}, assignments=[option]).job("train")

    assert job.log_id == load(str(edited), environ={}).job("train").log_id
    assert job.log_id != load(str(folder / "cosmos.yaml"), environ={}).job("train").log_id
