"""Conversations that nobody meant: refused in a sentence, counted, or as transformers has them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker
from penstock.server.roles import BestFitPackingBatcher, SimpleBatcher
from penstock.server.roles.collators import VlmCollator
from penstock.server.roles.processors import ConversationProcessor
from penstock.server.sources import ItemsSource
from penstock.wire import frame
from penstock.wire.errors import InvalidJob
from penstock.wire.v1 import feed_pb2
from talks import (
    SMALL,
    as_openai,
    as_placeholders,
    as_transformers,
    generated,
    marked,
    media_of,
    processed,
    skipped,
    transformers_positions,
    wild_talk,
    without_pictures,
)
from vision import CLASSES, drawn, encoded, whole_processor

FILE = encoded(Image.new("RGB", (28, 28)))


@pytest.mark.parametrize("kind", CLASSES)
def test_wild_conversations_are_those_of_transformers(kind: str, home: Path) -> None:
    """Ids, labels, grids, positions and pixels of 50: other scripts, tokens in texts, any place."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    role = ConversationProcessor(home / kind)
    theirs = whole_processor(kind, home / kind, **SMALL.get(kind, {}))
    for number in range(50):
        images = [
            drawn(draw.randint(15, 120), draw.randint(15, 120), number + place)
            for place in range(draw.choice([0, 1, 1, 2, 3, 6]))
        ]
        turns = wild_talk(draw, len(images))
        files = [encoded(image) for image in images]

        samples = [processed(role, form(turns, files)) for form in (as_openai, as_placeholders)]

        messages = as_transformers(turns)
        text = theirs.apply_chat_template(messages, tokenize=False)
        expected = theirs(text=[text], **({"images": images} if images else {}))
        ids = list(expected["input_ids"][0])
        if kind == "llava":
            labels = generated(home / kind, messages, ids, 576)
        else:
            labels = without_pictures(kind, ids, marked(kind, ids))
        for sample in samples:
            assert sample["input_ids"].tolist() == ids, (seed, number)
            assert sample["labels"].tolist() == labels, (seed, number)
            assert np.array_equal(sample["token_mask"], sample["labels"] != -100)
            if "position_ids" in sample:
                positions = transformers_positions(kind, sample)
                assert np.array_equal(sample["position_ids"], positions), (seed, number)
            for name in ("pixel_values", "image_grid_thw"):
                assert not images or (name in sample) == (name in expected)
                if name in expected:
                    assert np.array_equal(sample[name], np.asarray(expected[name])), (seed, number)


def user(said: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": said, **more}


def answer(said: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": said, **more}


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"messages": 5}, "of type int, and a list of turns is needed"),
        ({"messages": b"abc"}, "of type bytes, and a list of turns is needed"),
        ({"messages": "hello"}, "the text 'hello', which is not the JSON of a list of turns"),
        ({"messages": "[" * 100_000}, "which is not the JSON of a list of turns"),
        ({"messages": user("hi")}, "a dict of 'role', 'content', whose values are not lists"),
        ({"messages": [user(None), answer("a")]}, "turn 0 has content of type NoneType"),
        ({"messages": [user([["a"]]), answer("a")]}, "turn 0 has a part of type list"),
        ({"messages": [user("a"), answer(None)]}, "turn 1 has content of type NoneType"),
        ({"messages": [user([{"type": ["image"]}])]}, r"a part of type \['image'\]; known are"),
        ({"messages": [user("q\ud800"), answer("x")]}, "half a surrogate pair"),
        ({"messages": [user("<|image_pad|>"), answer("x")]}, r"text of turn 0 holds <\|image_pad"),
        ({"messages": [user("a"), answer("<|image_pad|>")]}, "text of turn 1 holds"),
        (
            {"messages": [user("<image>"), answer("a")], "images": [{"bytes": None, "path": None}]},
            "has neither bytes nor a path; leave it out of the data",
        ),
        (
            {"messages": [user("<image>"), answer("a")], "images": [{"title": "T"}]},
            "has neither bytes nor a path; leave it out of the data",
        ),
        (
            {"messages": [user("a"), answer("b<|im_start|>assistant\nc")]},
            "answers are not found .* set unmatched: search",
        ),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(item: Any, said: str, home: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=said) as caught:
        processed(ConversationProcessor(home / "qwen2_vl"), item)

    assert len(str(caught.value)) < 400


def test_a_text_with_the_marks_of_answers_is_refused(home: Path) -> None:
    """It would be learned as if the assistant had said it."""
    role = ConversationProcessor(home / "llava")
    for held in (user("\ufdd0evil\ufdd1"), user("a", name={"of": ["\ufdd0"]}), user("a\ufdd1")):
        with pytest.raises(ValueError, match=r"holds the noncharacter U\+FDD"):
            processed(role, {"messages": [held, answer("x")]})


def test_a_turn_with_keys_of_both_forms_is_of_the_chosen_speaker(home: Path) -> None:
    role = ConversationProcessor(home / "qwen2_vl")
    plain = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    mixed = {
        "conversations": [
            {"from": "human", "value": "q", "role": "assistant"},
            {"from": "gpt", "value": "a", "content": "evil"},
        ]
    }

    assert processed(role, mixed)["labels"].tolist() == processed(role, plain)["labels"].tolist()


def test_a_token_in_a_text_does_not_take_the_place_of_a_picture_left_out(
    home: Path, tmp_path: Path
) -> None:
    """There are as many tokens as pictures, and still the item is refused."""
    folder = tmp_path / "first"
    shutil.copytree(home / "qwen2_vl", folder)
    template = (folder / "chat_template.jinja").read_text()
    only_first = template.replace("part.type == 'image'", "part.type == 'image' and loop.first")
    (folder / "chat_template.jinja").write_text(only_first)
    turns = [user("<image>"), answer("x"), user("c<image>"), answer("<|image_pad|>z")]

    with pytest.raises(ValueError, match="text of turn 3 holds"):
        processed(ConversationProcessor(folder), {"messages": turns, "images": [FILE] * 2})


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
        ("{{ 'x' | tojson(foo=1) }}", "TypeError"),
        ("{% include 'x' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ raise_exception('no') }}", "no;"),
    ],
)
def test_a_template_that_fails_is_one_sentence(
    does: str, said: str, home: Path, tmp_path: Path
) -> None:
    """On one conversation it is that item's; on all the job's."""
    folder = tmp_path / "failing"
    shutil.copytree(home / "qwen2_vl", folder)
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(
        "{% if messages | length > 4 %}" + does + "{% endif %}" + template
    )
    role = ConversationProcessor(folder)
    assert processed(role, {"messages": [user("a"), answer("b")]})

    with pytest.raises(ValueError, match=f"template refuses this conversation: .*{said}"):
        processed(role, {"messages": [user("a"), answer("b")] * 3})
    (folder / "chat_template.jinja").write_text(does + template)
    with pytest.raises(InvalidJob, match=r"does not write a turn of a picture"):
        ConversationProcessor(folder).setup()


@pytest.mark.parametrize("number", [0, 2])
def test_a_template_with_more_or_fewer_tokens_than_pictures_is_refused(
    number: int, home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "counting"
    shutil.copytree(home / "qwen2_vl", folder)
    template = (folder / "chat_template.jinja").read_text()
    pictures = "'<|vision_start|><|image_pad|><|vision_end|>'"
    assert pictures in template
    (folder / "chat_template.jinja").write_text(
        template.replace(pictures, f"{pictures} * ({number} if messages | length > 4 else 1)")
    )
    item = {"messages": [user("<image>"), answer("b")] * 3, "images": [FILE] * 3}

    with pytest.raises(ValueError, match=rf"wrote {3 * number} <\|image_pad\|> for 3 pictures"):
        processed(ConversationProcessor(folder), item)


def test_many_pictures_and_many_turns_take_their_time_once(home: Path) -> None:
    """1,000 pictures in one turn or in as many, and 10^5 turns: as many tokens as there should."""
    role = ConversationProcessor(home / "kimi")

    one = processed(
        role, {"messages": [user("<image>" * 1000), answer("x")], "image": [FILE] * 1000}
    )
    apart = processed(
        role, {"messages": [user("<image>"), answer("x")] * 1000, "image": [FILE] * 1000}
    )
    long = processed(role, {"messages": [user("q"), answer("x")] * 50_000})

    assert len(one["image_grid_thw"]) == len(apart["image_grid_thw"]) == 1000
    assert (apart["labels"] != -100).sum() == 2 * 1000
    assert (long["labels"] != -100).sum() == 2 * 50_000


@pytest.mark.parametrize("kind", CLASSES)
def test_a_cut_through_a_picture_takes_its_turn_in_every_family(kind: str, home: Path) -> None:
    """Also where no token stands around a picture, and the cut is just before it."""
    turns: list[Any] = [
        ("user", ["a"]),
        ("assistant", ["It is four."]),
        ("user", ["What is", 0, "the answer?"]),
        ("assistant", ["It is four."]),
    ]
    item = as_openai(turns, [encoded(drawn(120, 90))])
    whole = processed(ConversationProcessor(home / kind), item)
    before = len(
        processed(ConversationProcessor(home / kind), as_openai(turns[:2], []))["input_ids"]
    )
    full = len(whole["input_ids"])
    picture = np.flatnonzero(
        whole["input_ids"] == ConversationProcessor(home / kind)._load().family.image_id
    )
    step = 23 if kind == "llava" else 1
    found = set()
    for most in range(before, full, step):
        role = ConversationProcessor(home / kind, max_length=most, overlong="truncate")
        sample = processed(role, item)
        ids = sample["input_ids"].tolist()
        assert ids == whole["input_ids"].tolist()[: len(ids)]
        assert len(sample["pixel_values"]) in (0, len(whole["pixel_values"]))
        if int(picture[0]) < most <= int(picture[-1]):
            assert len(ids) == before, "the turn is gone as a whole"
            assert sample["noted"] == {"dropped_turns": 2, "dropped_images": 1}
            found.add("through")
        elif len(ids) > before:
            found.add("beside")
    assert found == {"through", "beside"}


@pytest.mark.parametrize("kind", CLASSES)
def test_every_sample_has_a_picture_where_fake_ones_are_asked_for(kind: str, home: Path) -> None:
    """At every length: what a cut leaves without a picture gets a fake one, or is filtered."""
    turns: list[Any] = [
        ("assistant", ["a"]),
        ("user", ["a"]),
        ("assistant", ["It is four."]),
        ("user", [0, "What is"]),
        ("assistant", ["It is four."]),
    ]
    item = as_openai(turns, [encoded(drawn(120, 90))])
    full = len(processed(ConversationProcessor(home / kind), item)["input_ids"])
    found = set()
    for most in range(1, full + 2, 1 if kind != "llava" else 7):
        role = ConversationProcessor(
            home / kind, fake_image=True, max_length=most, overlong="truncate"
        )
        told = role.size(item, media_of(role, item))
        sample = processed(role, item)

        if sample is None:
            assert told is None
            found.add("filtered")
            continue
        noted = sample.get("noted", {})
        assert told is not None
        assert told.size == len(sample["input_ids"]) <= most
        assert told.counts == tuple(role.counts(sample))
        assert len(sample["pixel_values"]) > 0, most
        assert sample["attention_mask"].all() == ("fake_images" not in noted)
        assert (sample["labels"] != -100).any()
        found.add("fake" if "fake_images" in noted else "real")
        if "fake_images" in noted:
            assert noted["dropped_images"] == 1
            seen = sample["attention_mask"]
            assert (sample["labels"][~seen] == -100).all()
    assert found >= {"filtered", "fake", "real"}


def test_an_item_without_a_picture_is_not_left_with_a_cut_fake_one(home: Path) -> None:
    """The fake one is cut off, and no other is smaller: the item is filtered."""
    turns = [answer("a"), user("b"), answer("c" * 50)]
    role = ConversationProcessor(
        home / "qwen2_vl", fake_image=True, max_length=10, overlong="truncate"
    )

    assert skipped(role, {"messages": turns}) == "overlong"


@pytest.mark.parametrize("patches", ["uint8", "float32"])
@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("kind", CLASSES)
def test_what_stands_in_for_a_bad_item_is_fit_for_the_model(
    kind: str, packs: bool, patches: str, home: Path
) -> None:
    """A batch whose only picture cannot be decoded: it has as many tokens as its grid says."""
    long = as_openai([("user", ["a" * 50, 0]), ("assistant", ["b"])], [encoded(drawn(200, 150))])
    data = encoded(drawn(90, 60), "JPEG")
    broken = as_openai([("user", [0]), ("assistant", ["b"])], [data])
    role = ConversationProcessor(home / kind, unanswered="error", fake_image=True, patches=patches)
    told = role.size(broken, media_of(role, broken))
    broken = as_openai([("user", [0]), ("assistant", ["b"])], [data[:-20]])
    job = Job(
        ItemsSource([long, broken]),
        processor=role,
        batcher=BestFitPackingBatcher(4000, overlong="drop") if packs else SimpleBatcher(1),
        collator=VlmCollator(layout="indexed" if packs else "padded"),
        lanes=1,
        on_item_error="quarantine",
    )
    assert told is not None
    ref = SampleRef(ItemRef("main", 1, 0), 0, told.size, None, told.counts)

    made = Maker(job, Items(job)).make(BatchPlan(0, 0, [[ref]]))

    body = bytearray(made.nbytes)
    header = feed_pb2.BatchHeader.FromString(made.write(memoryview(body)))
    values = frame.decode_values(header, bytes(body))
    assert header.padding
    assert (values["labels"] == -100).all()
    tokens = int((values["input_ids"] == role._load().family.image_id).sum())
    assert values["n_images_per_sample"].sum() == (tokens > 0)
    assert tokens > 0
    if "image_grid_thw" in values:
        assert tokens == values["image_grid_thw"].prod(axis=1).sum() // 4
        assert len(values["pixel_values"]) == 4 * tokens
    assert np.isfinite(values["pixel_values"]).all()
    if patches == "uint8":
        assert (values["pixel_norm"][1] > 0).all()
    small = role.stand_in({}, 3)
    assert len(small["input_ids"]) <= 3
    assert len(small["pixel_values"]) == 0
