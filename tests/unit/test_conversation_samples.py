"""Conversations with pictures: against transformers' own processors, and what becomes of each."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from chats import PLAIN
from penstock.server.job.job import Job
from penstock.server.media.families.rope_positions import rope_positions
from penstock.server.media.jpeg import simplejpeg
from penstock.server.media.medium import HeldMedium
from penstock.server.planning.make.measuring import Measuring
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.collators import PackedCollator, PaddedCollator
from penstock.server.roles.context import CollateContext
from penstock.server.roles.processors import ConversationProcessor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob, MissingExtra
from talks import (
    SMALL,
    Turn,
    as_openai,
    as_placeholders,
    as_sharegpt,
    as_transformers,
    generated,
    marked,
    media_of,
    processed,
    skipped,
    talk,
    transformers_positions,
)
from vision import (
    CLASSES,
    drawn,
    encoded,
    vision_tokenizer,
    whole_processor,
    write_vision_folder,
)


@pytest.mark.parametrize("patches", ["uint8", "float32"])
@pytest.mark.parametrize("kind", CLASSES)
def test_pictures_are_put_together_again(kind: str, patches: str, home: Path) -> None:
    """To be looked at: each as it was resized, whatever became of it in patches."""
    role = ConversationProcessor(home / kind, patches=patches)
    images = [drawn(120, 60, 1), drawn(60, 150, 2)]
    turns = talk(random.Random(1), len(images))
    raw = as_openai(turns, [encoded(image) for image in images])

    sample = processed(role, raw)
    found = role.pictures(sample)

    assert len(found) == 2
    family = role._load().family
    for image, picture in zip(images, found, strict=True):
        again = family.patches(np.ascontiguousarray(picture))
        assert np.array_equal(family.patches(np.asarray(image)), again)


@pytest.mark.parametrize("kind", CLASSES)
def test_samples_are_those_of_transformers(kind: str, home: Path) -> None:
    """Ids, labels, grids and pixels, of random conversations in three forms of data."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    role = ConversationProcessor(home / kind)
    theirs = whole_processor(kind, home / kind, **SMALL.get(kind, {}))
    for number in range(6):
        images = [
            drawn(draw.randint(20, 160), draw.randint(20, 160), number + place)
            for place in range(draw.randint(1, 3))
        ]
        turns = talk(draw, len(images))
        files = [encoded(image) for image in images]
        forms = (as_sharegpt(turns, files, draw), as_openai(turns, files))

        samples = [processed(role, form) for form in (*forms, as_placeholders(turns, files))]

        messages = as_transformers(turns)
        text = theirs.apply_chat_template(messages, tokenize=False)
        expected = theirs(text=[text], images=images)
        ids = list(expected["input_ids"][0])
        labels = (
            generated(home / kind, messages, ids, 576) if kind == "llava" else marked(kind, ids)
        )
        for sample in samples:
            assert sample["input_ids"].tolist() == ids, (seed, number)
            assert sample["labels"].tolist() == labels, (seed, number)
            assert np.array_equal(sample["token_mask"], sample["labels"] != -100)
            pixels = np.asarray(expected["pixel_values"], np.float32)
            assert np.array_equal(sample["pixel_values"], pixels)
            assert ("image_grid_thw" in expected) == ("image_grid_thw" in sample)
            if "image_grid_thw" in sample:
                grids = np.asarray(expected["image_grid_thw"])
                assert np.array_equal(sample["image_grid_thw"], grids)
                assert sample["image_grid_thw"].dtype == np.int64
            assert list(sample) == role.keys_of_samples(None) or set(sample) == set(
                role.keys_of_samples(None) or ()
            )


# --- positions in three dimensions ---


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_the_model(kind: str, home: Path) -> None:
    """Of time, rows and columns; with a fake picture, those of the tokens that are seen."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    role = ConversationProcessor(home / kind)
    faking = ConversationProcessor(home / kind, fake_image=True)
    for number in range(6):
        shapes = [(draw.randint(20, 300), draw.randint(20, 300)) for _ in range(number % 4)]
        files = [encoded(drawn(*shape)) for shape in shapes]
        item = as_openai(talk(draw, len(files)), files)

        sample = processed(role, item)
        faked = processed(faking, item)

        assert sample["position_ids"].dtype == np.int32
        assert sample["position_ids"].shape == (3, len(sample["input_ids"]))
        assert np.array_equal(sample["position_ids"], transformers_positions(kind, sample)), seed
        if files:
            assert np.array_equal(faked["position_ids"], sample["position_ids"])
            assert faked["attention_mask"].all()
            continue
        mask = faked["attention_mask"]
        theirs = transformers_positions(kind, faked, mask)
        assert np.array_equal(faked["position_ids"][:, mask], theirs[:, mask]), seed
        assert np.array_equal(faked["position_ids"][:, mask], sample["position_ids"]), seed


def test_positions_of_pictures_side_by_side_and_at_the_ends() -> None:
    """Worked out by hand: a picture of 2 by 3 tokens, one of 1 by 1, a token after it."""
    found = rope_positions(8, [0, 6], [(1, 4, 6), (1, 2, 2)], 2)

    assert found.tolist() == [
        [0, 0, 0, 0, 0, 0, 3, 4],
        [0, 0, 0, 1, 1, 1, 3, 4],
        [0, 1, 2, 0, 1, 2, 3, 4],
    ]
    seen = np.array([False] * 6 + [True] * 2)
    hidden = rope_positions(8, [0, 6], [(1, 4, 6), (1, 2, 2)], 2, seen)
    assert hidden[:, 6:].tolist() == [[0, 1]] * 3


# --- sizes known from headers ---


@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=12, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(10, 260), st.integers(10, 260)), max_size=3),
    seed=st.integers(0, 1 << 20),
    fake=st.booleans(),
    most=st.sampled_from([None, 120, 700]),
    form=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]),
)
def test_headers_tell_what_a_sample_counts(
    kind: str, shapes: Any, seed: int, fake: bool, most: int | None, form: str, home: Path
) -> None:
    """Tokens, media tokens, pictures, patches and pixels; also of what is only counted."""
    draw = random.Random(seed)
    role = ConversationProcessor(
        home / kind, fake_image=fake, max_length=most, overlong="truncate", patches="uint8"
    )
    files = [encoded(drawn(*shape), form) for shape in shapes]
    item = as_sharegpt(talk(draw, len(files)), files, draw)
    counting = role.for_lengths("input_ids")

    told = role.size(item, media_of(role, item))
    sample = processed(role, item)
    counted = processed(counting, item)

    if sample is None:
        assert told is None
        assert counted is None
        return
    assert told is not None
    assert told.size == len(sample["input_ids"]) == len(counted["input_ids"])
    assert told.counts == tuple(role.counts(sample)) == tuple(counting.counts(counted))
    measured = dict(zip(role.measures, told.counts, strict=True))
    images = len(sample["image_grid_thw"] if kind != "llava" else sample["pixel_values"])
    assert measured["images"] == images == len(files) or fake or most is not None
    assert sample["pixel_values"].dtype == np.uint8
    if most is not None:
        assert told.size <= most


def test_sizes_need_no_more_than_headers(home: Path) -> None:
    """A file that is cut off after its header has a size, and no sample."""
    role = ConversationProcessor(home / "qwen2_vl")
    data = encoded(drawn(200, 150), "JPEG")
    item = as_openai([("user", [0]), ("assistant", ["a"])], [data])
    whole = role.size(item, [HeldMedium("a", data)])

    assert role.size(item, [HeldMedium("a", data[:1000])]) == whole
    with pytest.raises(ValueError, match="picture 0: this JPEG cannot be decoded: Premature end"):
        processed(role, as_openai([("user", [0]), ("assistant", ["a"])], [data[:1000]]))


@pytest.mark.parametrize("unanswered", ["drop", "error"])
def test_an_index_is_made_from_headers(unanswered: str, home: Path) -> None:
    """Whether or not items are filtered: what is cut off after its header is measured, too."""
    role = ConversationProcessor(home / "kimi", unanswered=unanswered)
    data = [encoded(drawn(60 + 30 * number, 90), "JPEG") for number in range(4)]
    items: list[Any] = [as_placeholders([("user", [0]), ("assistant", ["a"])], [d]) for d in data]
    if unanswered == "drop":
        items[2]["messages"].pop()
    told = [role.size(item, media_of(role, item)) for item in items]
    for item in items:
        item["images"] = [item["images"][0]["bytes"][:900]]
    job = Job(ItemsSource(items), processor=role, batcher=BestFitPackingBatcher(max_tokens=500))

    measured = Measuring(job).block("main", 0, len(items))

    sizes = measured.sizes
    assert sizes.counts.tolist() == [1, 1, int(unanswered == "error"), 1]
    assert sizes.sizes.tolist() == [each.size for each in told if each is not None]
    assert sizes.measured is not None
    assert [tuple(row) for row in sizes.measured.tolist()] == [
        each.counts for each in told if each is not None
    ]


@pytest.mark.parametrize(
    ("settings", "one_to_one"),
    [
        ({}, False),
        ({"unanswered": "error"}, True),
        ({"unanswered": "error", "max_length": 9}, False),
        ({"unanswered": "error", "max_length": 9, "overlong": "error"}, True),
        ({"unanswered": "error", "unmatched": "skip"}, False),
    ],
)
def test_what_never_filters_is_planned_from_headers(
    settings: dict[str, Any], one_to_one: bool, home: Path
) -> None:
    """Where every item gives a sample or an error, pictures are decoded when a batch is made."""
    role = ConversationProcessor(home / "qwen2_vl", **settings)

    assert role.one_to_one == one_to_one
    assert role.clone().one_to_one == one_to_one
    assert role.knows_size()
    if settings == {"unanswered": "error"}:
        for item in ({"messages": None}, {"messages": [{"role": "user", "content": "a"}]}):
            with pytest.raises(ValueError, match="set unanswered: drop"):
                processed(role, item)


# --- where pictures are ---


def said(role: ConversationProcessor, item: Any) -> str:
    """Return the conversation's text, each picture as one token."""
    text = role.decode(processed(role, item)["input_ids"].tolist())
    while "<|image_pad|><|image_pad|>" in text:
        text = text.replace("<|image_pad|><|image_pad|>", "<|image_pad|>")
    return text.replace("<|vision_start|><|image_pad|><|vision_end|>", "[P]")


FILE = encoded(Image.new("RGB", (28, 28)))


@pytest.mark.parametrize(
    ("user", "images", "settings", "expected"),
    [
        ("<image>\na", [FILE], {}, "[P]a"),
        ("a <ImAgE> b<image>", [FILE, FILE], {}, "a[P]b[P]"),
        (" a ", None, {}, "a"),
        ("", [], {}, ""),
        ("<image>a", FILE, {}, "[P]a"),
        ("<image>a<image>", [FILE], {"surplus_placeholders": "skip"}, "[P]a"),
        ("<image>", None, {"surplus_placeholders": "skip"}, ""),
        ("a", [FILE, FILE], {"unplaced_images": "first_turn"}, "[P][P]a"),
        ("<image>a", [FILE, FILE], {"unplaced_images": "drop"}, "[P]a"),
    ],
)
def test_pictures_take_their_places(
    user: str, images: Any, settings: dict[str, Any], expected: str, home: Path
) -> None:
    """In order, texts between them stripped; what has no counterpart as the job says."""
    turns = [{"from": "human", "value": user}, {"from": "gpt", "value": " b <image> "}]
    item = {"conversations": turns, "images": images}

    text = said(ConversationProcessor(home / "qwen2_vl", **settings), item)

    assert text == f"<|im_start|>user\n{expected}<|im_end|>\n<|im_start|>assistant\n" + (
        " b <image> <|im_end|>\n"
    )


def test_pictures_without_counterpart_are_refused_or_counted(home: Path) -> None:
    """The default is a bad item, which says how many there are; else the batch counts them."""
    strict = ConversationProcessor(home / "qwen2_vl")
    lenient = ConversationProcessor(
        home / "qwen2_vl", surplus_placeholders="skip", unplaced_images="first_turn"
    )
    turns = [("user", ["a", 0, "b"]), ("assistant", ["c"])]
    fewer = {**as_placeholders(turns, [FILE]), "images": None}
    more = {**as_placeholders(turns, [FILE]), "images": [FILE] * 3}

    with pytest.raises(ValueError, match="1 placeholders of pictures and 0 pictures"):
        processed(strict, fewer)
    with pytest.raises(ValueError, match="3 pictures and placeholders for 1"):
        processed(strict, more)
    assert processed(lenient, fewer)["noted"] == {"surplus_placeholders": 1}
    sample = processed(lenient, more)
    assert sample["noted"] == {"unplaced_images": 2}
    assert len(sample["image_grid_thw"]) == 3
    collate = CollateContext(1, 0, 0)
    sample.pop("position_ids")
    PaddedCollator().collate([[sample]], collate)
    assert collate.counts["unplaced_images"] == 2


def test_pictures_in_answers_are_not_learned(home: Path) -> None:
    """A part of an answer may be a picture, and `<image>` in one where the job says so."""
    placing = ConversationProcessor(home / "qwen2_vl", answer_images="place")
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b <image> c"}]
    parts = [{"type": "text", "text": "b"}, {"type": "image"}, {"type": "text", "text": "c"}]
    inline = [turns[0], {"role": "assistant", "content": parts}]

    sample = processed(placing, {"messages": turns, "images": [FILE]})
    same = processed(ConversationProcessor(home / "qwen2_vl"), {"messages": inline, "image": FILE})

    assert np.array_equal(sample["input_ids"], same["input_ids"])
    assert placing.decode(sample["labels"][sample["token_mask"]].tolist()) == "bc<|im_end|>"
    assert (sample["labels"] == -100).sum() == len(sample["labels"]) - 3


def test_what_a_part_says_besides_is_kept_for_the_template(home: Path, tmp_path: Path) -> None:
    """Beside the column's pictures, and in parts."""
    folder = write_vision_folder(tmp_path / "named", "qwen2_vl")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(
        template.replace("'<|vision_start|>", "(part.title or '') + '<|vision_start|>")
    )
    role = ConversationProcessor(folder)
    turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "b"}]
    own = {"type": "image", "image": {"bytes": FILE}, "title": "T"}

    assert "T[P]" in said(role, {"messages": turns, "images": [{"bytes": FILE, "title": "T"}]})
    turns[0] = {"role": "user", "content": [own]}  # type: ignore[dict-item]
    assert "T[P]" in said(role, {"messages": turns})


@pytest.mark.parametrize(
    ("given", "reference"),
    [
        ("a.jpg", "a.jpg"),
        ({"path": "a.jpg", "bytes": None}, {"path": "a.jpg"}),
        ({"bytes": b"x", "path": "a.jpg"}, {"bytes": b"x", "path": "a.jpg"}),
        ({"type": "image", "image": "a.jpg"}, "a.jpg"),
        ({"type": "image_url", "image_url": {"url": "s3://b/a.jpg", "detail": "high"}}, None),
        ({"type": "image", "path": "a.jpg"}, {"path": "a.jpg"}),
        ("data:image/png;base64,eHg=", {"bytes": b"xx", "path": "picture 0"}),
        # As `meta` gives them, of a data set with a media_dir.
        ({"path": "a.jpg", "dir": "one"}, {"path": "a.jpg", "dir": "one"}),
        ({"url": "a.jpg", "dir": "one"}, {"path": "a.jpg", "dir": "one"}),
        ({"lmdb": "d::k", "dir": "one"}, {"lmdb": "d::k", "dir": "one"}),
        (
            {"type": "image", "image": {"path": "a.jpg", "dir": "one"}},
            {"path": "a.jpg", "dir": "one"},
        ),
        (
            {"type": "image_url", "image_url": {"url": {"path": "a.jpg", "dir": "one"}}},
            {"path": "a.jpg", "dir": "one"},
        ),
        (
            {"path": "a.tar", "offset": 512, "length": 9},
            {"path": "a.tar", "offset": 512, "length": 9},
        ),
    ],
)
def test_references_are_what_the_data_names(given: Any, reference: Any, home: Path) -> None:
    role = ConversationProcessor(home / "qwen2_vl")
    in_column = [
        {"role": "user", "content": "<image>"},
        {"role": "assistant", "content": "b"},
    ]
    item: Any = {"messages": in_column, "images": [given]}
    if isinstance(given, dict) and "type" in given:
        item = {"messages": [{"role": "user", "content": [given]}, in_column[1]]}

    assert role.references(item) == ["s3://b/a.jpg" if reference is None else reference]


# --- fake pictures ---


@pytest.mark.parametrize("kind", CLASSES)
def test_a_fake_picture_is_hidden_and_counted_and_teaches_nothing(kind: str, home: Path) -> None:
    """Without its tokens the conversation is what it was; and the batch counts it."""
    plain = ConversationProcessor(home / kind)
    faking = ConversationProcessor(home / kind, fake_image=True)
    item = {"messages": [{"role": r, "content": "a b"} for r in ("system", "user", "assistant")]}

    before, sample = processed(plain, item), processed(faking, item)

    seen = sample["attention_mask"]
    assert sample["noted"] == {"fake_images": 1}
    assert (sample["labels"][~seen] == -100).all()
    assert len(before["pixel_values"]) == 0
    assert before["pixel_values"].shape[1:] == sample["pixel_values"].shape[1:]
    assert faking.counts(sample)[:2] == (faking.size(item).counts[0], 1)  # type: ignore[union-attr]
    if kind != "llava":  # there a line's end stands after the picture, and is seen
        assert sample["input_ids"][seen].tolist() == before["input_ids"].tolist()
        assert sample["labels"][seen].tolist() == before["labels"].tolist()
    if kind.startswith("qwen2"):
        assert (~seen).sum() == 4 + 2, "56 by 56 pixels, and what stands around them"
        assert (sample["pixel_values"] == sample["pixel_values"].reshape(16, 3, -1)[:, :, :1]
                .repeat(392, 2).reshape(16, -1)).all()  # fmt: skip
    assert "attention_mask" not in before


def test_a_conversation_with_a_picture_gets_no_fake_one(home: Path) -> None:
    """And one in which no user speaks gets a turn for it."""
    faking = ConversationProcessor(home / "qwen2_vl", fake_image=True)
    real = as_openai([("user", [0]), ("assistant", ["a"])], [FILE])
    alone = {"messages": [{"role": "assistant", "content": "a"}]}

    sample = processed(faking, real)

    assert "noted" not in sample
    assert sample["attention_mask"].all()
    assert said(faking, alone) == (
        "<|im_start|>user\n[P]<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
    )
    assert not processed(faking, alone)["attention_mask"].all()


def test_a_fake_picture_stays_hidden_in_packs(home: Path) -> None:
    """The packed form has the document number 0 on its tokens, so no mask lets them through."""
    faking = ConversationProcessor(home / "llava", fake_image=True)
    item = {"messages": [{"role": r, "content": "a b"} for r in ("user", "assistant")]}
    samples = [processed(faking, item) for _ in range(2)]
    hidden = np.concatenate([~sample["attention_mask"] for sample in samples])

    packed = PackedCollator(layout="indexed").collate([samples], CollateContext(1, 0, 0))

    assert np.array_equal(packed["attention_mask"][0] == 0, hidden)
    assert (packed["labels"][0][hidden] == -100).all()


# --- what is too long ---


def test_a_cut_never_goes_through_a_picture(home: Path) -> None:
    """At every length: a picture is whole or gone, and its turn goes with it."""
    turns: list[Turn] = [
        ("system", ["You are helpful."]),
        ("user", ["a", 0]),
        ("assistant", ["It is four."]),
        ("user", ["What is", 1, "the answer?"]),
        ("assistant", ["It is four."]),
    ]
    item = as_openai(turns, [encoded(drawn(84, 56)), encoded(drawn(60, 140))])
    whole = processed(ConversationProcessor(home / "qwen2_vl"), item)
    picture = vision_tokenizer().token_to_id("<|image_pad|>")
    opening = vision_tokenizer().token_to_id("<|vision_start|>")
    closing = vision_tokenizer().token_to_id("<|vision_end|>")
    full = len(whole["input_ids"])
    dropped = set()
    for most in range(1, full + 2):
        role = ConversationProcessor(home / "qwen2_vl", max_length=most, overlong="truncate")
        told = role.size(item, media_of(role, item))

        sample = processed(role, item)

        if sample is None:
            assert skipped(role, item) == "overlong"
            assert told is None
            continue
        ids = sample["input_ids"].tolist()
        assert told is not None
        assert told.size == len(ids) <= most
        assert ids == whole["input_ids"].tolist()[: len(ids)]
        assert np.array_equal(sample["labels"], whole["labels"][: len(ids)])
        assert np.array_equal(sample["position_ids"], whole["position_ids"][:, : len(ids)])
        kept = len(sample["image_grid_thw"])
        tokens = int((sample["image_grid_thw"].prod(1) // 4).sum())
        assert ids.count(picture) == tokens
        assert ids.count(opening) == ids.count(closing) == kept
        assert len(sample["pixel_values"]) == 4 * tokens
        assert np.array_equal(sample["pixel_values"], whole["pixel_values"][: 4 * tokens])
        noted = sample.get("noted", {})
        assert noted.get("dropped_images", 0) == 2 - kept
        dropped.add(noted.get("dropped_turns"))
        if noted.get("dropped_turns"):
            assert role.decode(ids).endswith("It is four.<|im_end|>\n")
        if most >= full:
            assert len(ids) == full
    assert dropped == {None, 2}, "both kinds of cuts are met"


def test_too_long_is_dropped_or_refused(home: Path) -> None:
    item = as_openai([("user", ["a", 0]), ("assistant", ["b"])], [FILE])

    assert skipped(ConversationProcessor(home / "kimi", max_length=9), item) == "overlong"
    with pytest.raises(ValueError, match=r"has \d+ tokens, and max_length is 9; raise it"):
        processed(ConversationProcessor(home / "kimi", max_length=9, overlong="error"), item)


def test_a_conversation_is_never_split(home: Path) -> None:
    """A batcher that would is told what to do."""
    role = ConversationProcessor(home / "qwen2_vl")
    sample = processed(role, as_openai([("user", [0]), ("assistant", ["b"])], [FILE]))

    with pytest.raises(InvalidJob, match="set overlong of the batcher to drop or error"):
        role.cut(sample, 0, 5, len(sample["input_ids"]))


# --- what is refused ---


def openai(*parts: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": list(parts)}, {"role": "assistant", "content": "b"}]
    return {"messages": turns}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (openai({"type": "input_audio", "input_audio": {}}), "a part of type 'input_audio'"),
        (openai({"type": "tune"}), "a part of type 'tune'; known are text, image"),
        (openai({"type": "text"}), "of type text without a text"),
        (openai(5), "a part of type int"),
        (openai({"type": "image", "image": "data:image/png,xx"}), "only base64 is known"),
        (openai({"type": "image", "image": "data:image/png;base64,x"}), "which is not base64"),
        ({"messages": [{"role": "user", "content": 5}]}, "content of type int"),
        ({**openai({"type": "image"}), "images": [None]}, "is null"),
        (openai({"type": "image", "image": {"bytes": b"xx"}}), "picture 0"),
        (openai({"type": "text", "text": "<|image_pad|>"}), "text of turn 0 holds <|image_pad|>"),
        (
            openai({"type": "image", "image": {"bytes": encoded(Image.new("RGB", (1000, 2)))}}),
            "more than 200 times as long",
        ),
    ],
)
def test_items_that_cannot_be_are_named(item: Any, said: str, home: Path) -> None:
    """One sentence with what is wrong and where."""
    with pytest.raises(ValueError, match=said.replace("|", r"\|")):
        processed(ConversationProcessor(home / "qwen2_vl"), item)


def test_items_without_a_conversation_or_an_answer_are_filtered(home: Path) -> None:
    role = ConversationProcessor(home / "qwen2_vl")

    assert skipped(role, {"messages": None}) == "null"
    assert skipped(role, {"conversations": [{"from": "human", "value": "a"}]}) == "no answer"
    with pytest.raises(InvalidJob, match=r"processor\.column is 'messages'"):
        role.references({"text": "a"})


def test_answers_that_are_not_marked_are_searched_or_skipped(tmp_path: Path) -> None:
    """A template without tokens of its own around answers."""
    folder = write_vision_folder(tmp_path / "plain", "qwen2_vl")
    content = "{{ '<|image_pad|>' * (message.content | selectattr('type', 'equalto', 'image') | list | length) + (message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join) }}"  # noqa: E501
    (folder / "chat_template.jinja").write_text(PLAIN.replace("{{ message.content }}", content))
    item = as_openai([("user", ["a", 0]), ("assistant", ["It is four."])], [FILE])
    searching = ConversationProcessor(folder, unmatched="search")

    sample = processed(searching, item)

    assert (
        searching.decode(sample["labels"][sample["token_mask"]].tolist()).strip() == "It is four."
    )
    assert sample["noted"] == {"searched_answers": 1}
    assert skipped(ConversationProcessor(folder, unmatched="skip"), item) == "answers not found"
    with pytest.raises(InvalidJob, match="does not tell where answers end"):
        ConversationProcessor(folder).setup()


def test_a_family_whose_tokens_are_not_found_is_refused_by_its_class(tmp_path: Path) -> None:
    """At load, before any item."""
    from chats import small_tokenizer

    for kind, cls in CLASSES.items():
        folder = write_vision_folder(tmp_path / kind, kind)
        small_tokenizer().save(str(folder / "tokenizer.json"))
        with pytest.raises(InvalidJob, match=f"pictures of {cls} .* are not found") as caught:
            ConversationProcessor(folder).content()
        assert caught.value.fields["key"] == "tokenizer"


def test_folders_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    """A name of the Hub, a template of text alone, and one that leaves pictures out."""
    with pytest.raises(InvalidJob, match=r"there is no folder .*hf download"):
        ConversationProcessor(tmp_path / "Qwen" / "Qwen2-VL-7B").setup()
    folder = write_vision_folder(tmp_path / "text", "qwen2_vl")
    for template in (
        PLAIN,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}"
        "{% endfor %}<|im_end|>{% endfor %}",
    ):
        (folder / "chat_template.jinja").write_text(template)
        with pytest.raises(InvalidJob, match=r"with one <\|image_pad\|> for the picture"):
            ConversationProcessor(folder).setup()


def test_a_template_that_takes_texts_where_there_is_no_picture(tmp_path: Path) -> None:
    """Some take parts only where a turn has a picture; which one it is, is found out."""
    folder = write_vision_folder(tmp_path / "mixed", "qwen2_vl")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages if m.role == 'assistant' %}{% set x = m.content + 'a' %}{% endfor %}"
        + template
    )

    assert said(
        ConversationProcessor(folder), as_openai([("user", [0]), ("assistant", ["b"])], [FILE])
    ) == "<|im_start|>user\n[P]<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"  # fmt: skip


@pytest.mark.parametrize("package", ["tokenizers", "jinja2", "simplejpeg", "PIL"])
def test_a_package_that_is_missing_is_named_with_its_extra(
    package: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simplejpeg.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[(vlm|images)\]'"):
        ConversationProcessor(home / "kimi").setup()


def test_older_folders_have_their_template_in_json(home: Path, tmp_path: Path) -> None:
    """`chat_template.json`, as processors were saved before."""
    folder = write_vision_folder(tmp_path / "older", "qwen2_vl")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    item = as_openai([("user", [0]), ("assistant", ["b"])], [FILE])

    older = processed(ConversationProcessor(folder), item)

    newer = processed(ConversationProcessor(home / "qwen2_vl"), item)
    assert np.array_equal(older["input_ids"], newer["input_ids"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patches": "int8"}, "patches"),
        ({"fake_image": "yes"}, "fake_image"),
        ({"answer_images": "keep"}, "answer_images"),
        ({"surplus_placeholders": "drop"}, "surplus_placeholders"),
        ({"unplaced_images": "skip"}, "unplaced_images"),
        ({"unanswered": "skip"}, "unanswered"),
        ({"settings": [1]}, "settings"),
        ({"max_length": 0}, "max_length"),
        ({"tokenizer": 5}, "tokenizer"),
    ],
)
def test_parameters_that_make_no_sense_are_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        ConversationProcessor(**{"tokenizer": "folder", **settings})

    assert caught.value.fields["key"] == said


def test_what_decides_bytes_is_part_of_the_identity(home: Path, tmp_path: Path) -> None:
    """Settings of pictures, from either place; and no path."""
    plain = ConversationProcessor(home / "qwen2_vl")
    few = ConversationProcessor(home / "qwen2_vl", settings={"max_pixels": 401408})
    folder = write_vision_folder(
        tmp_path / "few", "qwen2_vl", size={"shortest_edge": 3136, "longest_edge": 401408}
    )

    contents = [role.content()["pictures"] for role in (plain, few, ConversationProcessor(folder))]

    assert contents[0] != contents[1] == contents[2]
    assert str(home) not in json.dumps(plain.identity())
    assert plain.identity() != few.identity()
