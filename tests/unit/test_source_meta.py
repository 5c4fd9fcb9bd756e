"""A meta file: several data sets as one source, with their columns, tags and ratios."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.server.commands.purity import first_items
from penstock.server.job.job import Job
from penstock.server.roles.condition import Condition
from penstock.server.roles.distributors import MapDistributor, MixtureDistributor
from penstock.server.sources import MetaSource
from penstock.wire.errors import BadItem, InvalidJob


def write_rows(path: Path, count: int, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"{path.stem} {n}", **more} for n in range(count)]
    text = json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows))
    path.write_text(text)


def write_meta(path: Path, content: Any) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def ids(source: MetaSource) -> list[str]:
    return [item["id"] for item in source.fetch(range(len(source)))]


def test_data_sets_follow_one_another_by_name(tmp_path: Path) -> None:
    """Whatever their order in the file and their types; names are relative to the meta file."""
    write_rows(tmp_path / "data" / "one.json", 3)
    write_rows(tmp_path / "data" / "two.jsonl", 2)
    (tmp_path / "data" / "three.csv").write_text("id\nthree 0\n")
    meta = write_meta(
        tmp_path / "meta.json",
        {
            "c": {"file_name": "data/one.json"},
            "a": {"file_name": str(tmp_path / "data" / "two.jsonl")},
            "b": {"file_name": "data/three.csv"},
        },
    )

    source = MetaSource(meta)

    assert ids(source) == ["two 0", "two 1", "three 0", "one 0", "one 1", "one 2"]
    assert ids(MetaSource(meta, ["c", "b"])) == ["three 0", "one 0", "one 1", "one 2"]
    assert source.blocks().items == [2, 1, 3]  # type: ignore[union-attr]


def test_a_yaml_list_is_read_in_its_order(tmp_path: Path) -> None:
    """The form of LMMS-Engine: `datasets` with path and data_type."""
    import datasets

    datasets.disable_progress_bars()
    write_rows(tmp_path / "z.jsonl", 2)
    datasets.Dataset.from_list([{"id": "saved"}]).save_to_disk(tmp_path / "saved")
    meta = write_meta(
        tmp_path / "meta.yaml",
        "datasets:\n- {path: z.jsonl, data_type: jsonl, data_folder: }\n"
        "- {path: saved, data_type: hf_dataset}\n",
    )

    assert ids(MetaSource(meta)) == ["z 0", "z 1", "saved"]


def test_ratios_take_parts_and_copies(tmp_path: Path) -> None:
    """Half of the items are always the same ones, from every block; 2.3 is twice and a part."""
    write_rows(tmp_path / "a.jsonl", 100)
    write_rows(tmp_path / "b.jsonl", 10)

    def make(seed: int = 42) -> MetaSource:
        content = {
            "a": {"file_name": "a.jsonl", "sample_ratio": 0.5, "options": {"block_bytes": 200}},
            "b": {"file_name": "b.jsonl", "sample_ratio": 2.3},
        }
        return MetaSource(write_meta(tmp_path / "meta.json", content), seed=seed)

    source = make()
    counts = Counter(ids(source))
    halves = [name for name in counts if name.startswith("a")]
    others = {name: count for name, count in counts.items() if name.startswith("b")}

    assert len(source) == 50 + 23
    assert len(halves) == 50
    assert {counts[name] for name in halves} == {1}
    assert sorted(others.values()) == [2] * 7 + [3] * 3
    assert ids(make()) == ids(source)
    assert ids(make(seed=1)) != ids(source)
    assert make(seed=1).identity() != source.identity()
    blocks = source.blocks()
    assert blocks is not None
    assert max(blocks.items) - min(n for n in blocks.items[:-2] if n) <= 10


def test_a_tiny_ratio_gives_one_item(tmp_path: Path) -> None:
    """A data set that is named is never left out."""
    write_rows(tmp_path / "a.jsonl", 10)
    meta = write_meta(tmp_path / "meta.json", {"a": {"file_name": "a.jsonl", "ratio": 0.01}})

    assert len(MetaSource(meta)) == 1


def test_columns_and_tags_give_one_form_of_conversations(tmp_path: Path) -> None:
    """Whatever the files call them, items have messages with role and content."""
    turns = [
        {"from": "system", "value": "be short"},
        {"from": "human", "value": "hi"},
        {"from": "gpt", "value": "ho"},
    ]
    expected = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ho"},
    ]
    write_rows(tmp_path / "share.json", 1, conversations=turns)
    own = [{"who": "Q", "what": "hi"}, {"who": "A", "what": "ho"}]
    write_rows(tmp_path / "own.jsonl", 1, chat=own, images=["a.png"])
    write_rows(tmp_path / "open.jsonl", 1, messages=expected)
    tags = {"role_tag": "who", "content_tag": "what", "user_tag": "Q", "assistant_tag": "A"}
    meta = write_meta(
        tmp_path / "meta.json",
        {
            "a": {"file_name": "share.json", "columns": {"messages": "conversations"}, "tags": {}},
            "b": {
                "file_name": "own.jsonl",
                "columns": {"messages": "chat", "images": "images"},
                "tags": tags,
            },
            "c": {"file_name": "open.jsonl", "columns": {"messages": "messages"}},
            "d": {
                "file_name": "share.json",
                "columns": {"messages": "conversations"},
                "tags": {"role_tag": "from"},
            },
        },
    )

    first, second, third, fourth = MetaSource(meta).fetch(range(4))

    assert first == {"messages": turns}
    assert second == {"messages": expected[1:], "images": ["a.png"]}
    assert third == {"messages": expected}
    assert fourth == {"messages": expected}


def test_an_item_without_what_the_file_promises_is_named(tmp_path: Path) -> None:
    """By data set and index: the meta file or the item is wrong."""
    write_rows(tmp_path / "a.jsonl", 2, chat=[{"role": "user"}])
    columns = {"messages": "conversations"}
    meta = write_meta(
        tmp_path / "meta.json",
        {
            "a": {"file_name": "a.jsonl", "columns": columns},
            "b": {
                "file_name": "a.jsonl",
                "columns": {"messages": "chat"},
                "tags": {"user_tag": "u"},
            },
        },
    )
    source = MetaSource(meta)

    with pytest.raises(BadItem, match="item 1 of data set 'a' has no column 'conversations'"):
        source.fetch([1])
    with pytest.raises(BadItem, match="item 0 of data set 'b' has turns without 'from'"):
        source.fetch([2])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "or is a list of such: it has none"),
        ([], "it has none"),
        ({"a": {"columns": {}}}, "a has no file_name"),
        ({"a": {"file_name": "a.jsonl", "sample_ration": 2}}, "did you mean sample_ratio"),
        ({"a": {"file_name": "a.jsonl", "sample_ratio": 0}}, "sample_ratio is 0: .* above 0"),
        ({"a": {"file_name": "a.jsonl", "sample_ratio": 1e9}}, "give a number .* up to 10,000"),
        ({"a": {"file_name": "a.jsonl", "columns": {"text": "x"}}}, "has a key 'text'"),
        ({"a": {"file_name": "a.jsonl", "tags": {"user": "x"}}}, "did you mean user_tag"),
        ({"a": {"file_name": "a.jsonl", "media_dir": ["m"]}}, r"media_dir is \['m'\]: give a path"),
        ({"a": {"file_name": "a.xyz"}}, "does not tell what it holds: give its type"),
        ({"a": {"file_name": "a.jsonl", "type": "jsonx"}}, "no type 'jsonx' .* jsonl"),
        (
            {"a": {"file_name": "a.jsonl", "options": {"x": 1}}},
            "options.x is not a parameter of jsonl",
        ),
        ({"a": {"file_name": "a.jsonl", "type": "json"}}, "data set 'a' .* must be an array"),
        ({"a": {"file_name": "b.jsonl"}}, r"data set 'a' of .*meta\.json: no file matches"),
        ([{"path": "a.jsonl"}, {"path": "a.jsonl"}], "two data sets have the name 'a'"),
        ('{"a": {"file_name": "a.jsonl"}, "a": {}}', "a is given twice"),
        ("{", r"meta\.json:1: this is not YAML"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    """Data set, key, value and remedy; a nearest name where one is near."""
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')

    with pytest.raises(InvalidJob, match=sentence):
        MetaSource(write_meta(tmp_path / "meta.json", content))


def test_names_that_are_not_in_the_file_are_refused(tmp_path: Path) -> None:
    """With those that are; and a file that is not there is named."""
    write_rows(tmp_path / "a.jsonl", 1)
    meta = write_meta(tmp_path / "meta.json", {"code": {"file_name": "a.jsonl"}})

    with pytest.raises(InvalidJob, match="no data set 'coda': did you mean code"):
        MetaSource(meta, ["coda"])
    with pytest.raises(InvalidJob, match="give a list of names, of code"):
        MetaSource(meta, [])
    with pytest.raises(InvalidJob, match="meta file cannot be read: No such file"):
        MetaSource(str(tmp_path / "no.json"))


def test_the_identity_knows_every_data_set_and_no_place(tmp_path: Path) -> None:
    """Copied elsewhere it is the same; another byte, ratio or tag in one makes another log."""
    folder = tmp_path / "here"
    write_rows(folder / "a.jsonl", 3)
    entry: dict[str, Any] = {"file_name": "a.jsonl", "columns": {"messages": "id"}}
    first = MetaSource(write_meta(folder / "meta.json", {"a": entry})).identity()

    shutil.copytree(folder, tmp_path / "there")
    assert MetaSource(str(tmp_path / "there" / "meta.json")).identity() == first
    for change in ({"ratio": 2}, {"tags": {"user_tag": "x"}}, {"columns": {"images": "id"}}):
        changed = write_meta(folder / "meta.json", {"a": {**entry, **change}})
        assert MetaSource(changed).identity() != first
    write_meta(folder / "meta.json", {"a": entry})
    (folder / "a.jsonl").write_text((folder / "a.jsonl").read_text().replace("1", "9"))
    assert MetaSource(str(folder / "meta.json")).identity() != first


def test_a_distributor_draws_every_item_of_every_data_set(tmp_path: Path) -> None:
    """In blocks, with those of all data sets mixed."""
    write_rows(tmp_path / "a.jsonl", 30)
    write_rows(tmp_path / "b.json", 20)
    options = {"options": {"block_bytes": 100}}
    meta = write_meta(
        tmp_path / "meta.json",
        {"a": {"file_name": "a.jsonl", **options}, "b": {"file_name": "b.json", **options}},
    )
    source = MetaSource(meta)
    distributor = MapDistributor()
    distributor.bind({"main": source}, seed=1, epochs=1, lanes=4)

    drawn = [distributor.draw(g % 4, 4, g // 4) for g in range(50)]
    items = [source.fetch([item.index])[0]["id"] for item in drawn if item is not None]

    assert sorted(items) == sorted(ids(source))
    assert len({name[0] for name in items[:16]}) == 2


def test_a_condition_keeps_items_of_every_data_set_and_copy(tmp_path: Path) -> None:
    """Copies of a ratio above 1 are items of their own; renamed columns cannot be asked for."""
    write_rows(tmp_path / "a.jsonl", 4)
    write_rows(tmp_path / "b.json", 3)
    a = {"file_name": "a.jsonl", "sample_ratio": 2.5}
    meta = write_meta(tmp_path / "meta.json", {"a": a, "b": {"file_name": "b.json"}})
    source = MetaSource(meta)

    kept = source.matching(Condition({"id": ["a 0", "b 2"]}))

    assert source.has_column("id")
    expected = [n for n, name in enumerate(ids(source)) if name in ("a 0", "b 2")]
    assert [kept[n] for n in range(len(kept))] == expected
    assert len(kept) >= 3
    renamed = {"a": {**a, "columns": {"messages": "id"}}}
    assert not MetaSource(write_meta(tmp_path / "other.json", renamed)).has_column("messages")


@pytest.mark.parametrize(("where", "first"), [(None, 300), ({"id": "rare 1"}, 301)])
def test_a_check_meets_every_data_set(
    where: dict[str, Any] | None, first: int, tmp_path: Path
) -> None:
    """However small one is beside the others: the first item of it that a job may draw."""
    for name, count in (("a", 300), ("rare", 2), ("z", 300)):
        write_rows(tmp_path / f"{name}.jsonl", count)
    names = {name: {"file_name": f"{name}.jsonl"} for name in ("a", "rare", "z")}
    source = MetaSource(write_meta(tmp_path / "meta.json", names))
    drawn = MapDistributor(where=where)
    mixed = MixtureDistributor({"main": {"weight": 1, "distributor": MapDistributor(where=where)}})

    for distributor in (drawn, mixed):
        job = Job(source, distributor, batch_size=2, lanes=2)
        found = {ref.index for ref in first_items(job, 4)}

        assert first in found
        assert where is not None or {0, 302} < found
        assert len(found) == (1 if where else 7)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.5])
@pytest.mark.parametrize("where", [None, {"id": {"not": "a 0"}}])
def test_a_check_makes_no_item_that_is_not_drawn(
    where: dict[str, Any] | None, ratio: float, tmp_path: Path
) -> None:
    """Where a part of the items is drawn, the first of a data set may be left out."""
    names = ("a", "b", "rare", "z")
    for name, count in zip(names, (300, 200, 1, 100), strict=True):
        write_rows(tmp_path / f"{name}.jsonl", count)
    content = {name: {"file_name": f"{name}.jsonl"} for name in names}
    source = MetaSource(write_meta(tmp_path / "meta.json", content))
    distributor = MapDistributor(where=where, sample_ratio=ratio)
    job = Job(source, distributor, batch_size=2, lanes=2, epochs=1)

    found = {ref.index for ref in first_items(job, 4)}

    draws = [distributor.draw(0, 1, k) for k in range(distributor.items)]
    drawn = {ref.index for ref in draws if ref is not None}
    assert found <= drawn
    for start, stop in ((0, 300), (300, 500), (500, 501), (501, 601)):
        of_set = [index for index in drawn if start <= index < stop]
        assert not of_set or min(of_set) in found


def test_stand_ins_are_looked_for_in_every_data_set(tmp_path: Path) -> None:
    """However small one is beside the others: its first item is looked at."""
    content = {}
    for name, count in (("a", 300), ("b", 1), ("c", 300)):
        write_rows(tmp_path / f"{name}.jsonl", count)
        content[name] = {"file_name": f"{name}.jsonl"}
    source = MetaSource(write_meta(tmp_path / "meta.json", content))

    looked = list(source.spread(8))

    assert looked[:3] == [0, 300, 301]
    assert looked[3:] == [120, 240, 360, 480]
    assert list(source.spread(2)) == [0, 300]
