"""What every processor keeps: purity, plain samples, an identity; and how functions are called."""

from __future__ import annotations

import functools
import hashlib
import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import pictures
import videos
from chats import CHATML, write_chat_folder
from penstock.server.core.refs import ItemRef
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors import (
    BUILTIN_PROCESSORS,
    ChatProcessor,
    ConversationProcessor,
    FunctionProcessor,
    IdentityProcessor,
    ImageProcessor,
    RobotProcessor,
    SoundProcessor,
    TokenizeProcessor,
    VideoProcessor,
)
from penstock.server.testing import check_processor
from penstock.wire.errors import InvalidJob
from sounds import drawn, written
from vision import write_vision_folder


def context(index: int = 3) -> ProcessContext:
    return ProcessContext(ItemRef("main", index, 0), seed=7)


def noisy(raw: dict[str, Any], context: ProcessContext) -> dict[str, Any]:
    """Add noise of the item's own generator."""
    return {"x": raw["x"] + context.rng.standard_normal(len(raw["x"]))}


def several(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Give one sample per number."""
    return [{"x": number} for number in raw["x"]]


def nothing(raw: dict[str, Any], context: ProcessContext) -> None:
    """Filter everything."""
    return context.skip("unwanted")


def mirrored(image: Any) -> Any:
    """Transform a picture of Pillow."""
    return image.transpose(0)


JPEG = pictures.encoded(pictures.colours(), "JPEG", exif=pictures.exif(6))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "<eos>": 3}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    write_chat_folder(path.parent / "chat", CHATML)
    write_vision_folder(path.parent / "qwen2_vl", "qwen2_vl")
    return path


CHAT = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "b a"}]


SOUND = {"audio": written(drawn(0.3, 24000, 2), 24000, "flac"), "text": "a b", "end": 0.2}

FILM = videos.written(replace(videos.H264, frames=6))
FRAME = {
    "index": np.int64(3),
    "front": {"bytes": FILM, "path": "a.mp4", "times": [0.1, 0.0]},
    "front_is_pad": np.array([False, True]),
    "task": "wave",
}

VIDEO = {"video": videos.film("H.264"), "text": "a b", "frames": [50, 3, 3]}


CASES: dict[str, tuple[Callable[[Path], RawItemProcessor], Any]] = {
    "identity": (lambda _: IdentityProcessor(), {"x": np.arange(3), "name": "a"}),
    "identity, renamed": (
        lambda _: IdentityProcessor(rename={"x": "input_ids"}),
        {"x": np.arange(3), "name": "a"},
    ),
    "identity of a tuple": (lambda _: IdentityProcessor(), (np.arange(3), 1)),
    "tokenize": (lambda path: TokenizeProcessor(path, append="<eos>"), {"text": "a b a"}),
    "tokenize nothing": (lambda path: TokenizeProcessor(path), {"text": ""}),
    "chat": (lambda path: ChatProcessor(path.parent / "chat"), {"messages": CHAT}),
    "chat cut": (
        lambda path: ChatProcessor(path.parent / "chat", max_length=24, overlong="truncate"),
        {"conversations": [{"from": t["role"], "value": t["content"]} for t in CHAT]},
    ),
    "chat without an answer": (
        lambda path: ChatProcessor(path.parent / "chat"),
        {"messages": CHAT[:1]},
    ),
    "image": (lambda _: ImageProcessor(columns=["label"]), {"image": JPEG, "label": 3}),
    "image, everything random": (
        lambda _: ImageProcessor(
            "jpg", kernel="torch", crop="random_resized", crop_to=[20, 30], flip=0.5, layout="CHW"
        ),
        {"jpg": {"bytes": JPEG, "path": "a.jpg"}},
    ),
    "image padded, by OpenCV": (
        lambda _: ImageProcessor(scale=1, kernel="opencv", resize="pad", resize_to=16),
        JPEG,
    ),
    "image transformed": (
        lambda _: ImageProcessor(transform=mirrored, decoder="pillow"),
        {"image": JPEG},
    ),
    "conversation": (
        lambda path: ConversationProcessor(path.parent / "qwen2_vl", fake_image=True),
        {"messages": CHAT},
    ),
    "conversation with a video of pictures": (
        lambda path: ConversationProcessor(path.parent / "qwen2_vl", fps=1),
        {
            "messages": [{"role": "user", "content": "<video>"}, *CHAT[1:]],
            "videos": [[JPEG, JPEG, JPEG]],
        },
    ),
    "conversation without an answer": (
        lambda path: ConversationProcessor(path.parent / "qwen2_vl"),
        {"messages": CHAT[:1]},
    ),
    "robot": (lambda _: RobotProcessor(), FRAME),
    "robot, pictures": (
        lambda _: RobotProcessor(cameras=["left"]),
        {"left": [{"bytes": JPEG, "path": None}] * 2, "left_is_pad": np.array([True, False])},
    ),
    "robot, resized": (lambda _: RobotProcessor(resize="exact", resize_to=[30, 40]), FRAME),
    "sound": (lambda _: SoundProcessor(columns=["text"]), SOUND),
    "sound, resampled": (
        lambda _: SoundProcessor(sample_rate=16000, dtype="int16", stop_s="end"),
        SOUND,
    ),
    "sound by tokens": (
        lambda _: SoundProcessor(channels="all", tokens_per_second=12.5),
        {"audio": {"bytes": SOUND["audio"], "path": "a.flac"}},
    ),
    "video": (lambda _: VideoProcessor(columns=["text"], fps=5), VIDEO),
    "video, by numbers": (
        lambda _: VideoProcessor(numbers="frames", resize="exact", resize_to=[30, 40]),
        VIDEO,
    ),
    "video, planes": (
        lambda _: VideoProcessor(nframes=7, pixels="yuv420p"),
        {"video": {"bytes": VIDEO["video"], "path": "a.mp4"}},
    ),
    "function": (lambda _: FunctionProcessor(noisy), {"x": np.arange(3.0)}),
    "function of many": (lambda _: FunctionProcessor(several), {"x": [1, 2]}),
    "function of none": (lambda _: FunctionProcessor(nothing), {"x": [1, 2]}),
}
every_processor = pytest.mark.parametrize(("make", "raw"), CASES.values(), ids=CASES.keys())
Make = Callable[[Path], RawItemProcessor]


def test_the_suite_covers_every_built_in(tokenizer: Path) -> None:
    """No built-in processor is without this contract."""
    covered = {type(make(tokenizer)) for make, _ in CASES.values()}

    assert covered == {*BUILTIN_PROCESSORS.values(), FunctionProcessor}
    assert all(cls.type_name == name for name, cls in BUILTIN_PROCESSORS.items())


@every_processor
def test_every_processor_keeps_the_contract(make: Make, raw: Any, tokenizer: Path) -> None:
    """The published one; and no built-in's identity knows a place."""
    processor = make(tokenizer)

    check_processor(processor, [raw])

    assert processor.identity()["type"] == type(processor).type_name
    assert str(tokenizer) not in json.dumps(processor.identity())


# --- IdentityProcessor ---


class Pair(NamedTuple):
    """What some Datasets return."""

    image: int
    label: int


@pytest.mark.parametrize(
    ("raw", "sample"),
    [
        ({"a": 1}, {"a": 1}),
        ({0: 1}, {"0": 1}),
        ((5, 6), {"0": 5, "1": 6}),
        ([5, 6], {"0": 5, "1": 6}),
        (Pair(5, 6), {"image": 5, "label": 6}),
        (7, {"value": 7}),
        ("text", {"value": "text"}),
        (b"bytes", {"value": b"bytes"}),
    ],
)
def test_identity_names_what_has_no_name(raw: Any, sample: dict[str, Any]) -> None:
    """Mappings stay, tuples are numbered or named by their fields, the rest is `value`."""
    assert IdentityProcessor().process(raw, context()) == sample


def test_identity_does_not_copy_values() -> None:
    """An image of megabytes passes through by reference."""
    image = np.zeros((4, 4))

    assert IdentityProcessor().process(image, context())["value"] is image


def test_identity_gives_values_other_names() -> None:
    """The others keep theirs, and the log id is what it was where nothing is renamed."""
    processor = IdentityProcessor(rename={"tokens": "input_ids"})

    assert processor.process({"tokens": [1], "x": 2}, context()) == {"input_ids": [1], "x": 2}
    assert processor.keys_of_samples({"tokens": "list", "x": "int"}) == ["input_ids", "x"]
    assert IdentityProcessor().identity() == IdentityProcessor(None).identity()
    assert processor.identity() != IdentityProcessor().identity()
    for item in ({"x": 2}, {"tokens": [1], "input_ids": [2]}):
        with pytest.raises(ValueError, match="rename"):
            processor.process(item, context())


@pytest.mark.parametrize(
    ("rename", "columns", "said"),
    [
        ({"token": "input_ids"}, ["tokens"], "did you mean tokens"),
        ({"tokens": "x"}, ["tokens", "x"], "which the items have already"),
        ({}, None, "give new names by old ones"),
        (["tokens"], None, "give new names by old ones"),
        ({"a": "x", "b": "x"}, None, "two values one name"),
    ],
)
def test_identity_refuses_names_that_cannot_be(
    rename: Any, columns: list[str] | None, said: str
) -> None:
    with pytest.raises(InvalidJob, match=said):
        IdentityProcessor(rename).check_columns(dict.fromkeys(columns or (), "list"))


# --- FunctionProcessor ---


def test_a_function_is_told_the_context_where_it_asks() -> None:
    """By name, by keyword, or as the second parameter without a default."""

    def named(raw: Any, scale: int = 2, context: Any = None) -> dict[str, Any]:
        return {"got": context.item.index}

    def keyword(raw: Any, *, context: Any) -> dict[str, Any]:
        return {"got": context.item.index}

    def second(raw: Any, ctx: Any) -> dict[str, Any]:
        return {"got": ctx.item.index}

    for function in (named, keyword, second):
        assert FunctionProcessor(function).process(1, context(index=9)) == {"got": 9}


def test_a_function_is_told_the_item_alone_where_it_asks_no_more() -> None:
    """Parameters with defaults keep them, and builtins work."""

    def plain(raw: Any) -> dict[str, Any]:
        return {"raw": raw}

    def defaulted(raw: Any, scale: int = 2) -> dict[str, Any]:
        return {"raw": raw * scale}

    assert FunctionProcessor(plain).process(3, context()) == {"raw": 3}
    assert FunctionProcessor(defaulted).process(3, context()) == {"raw": 6}
    assert FunctionProcessor(dict).process([("a", 1)], context()) == {"a": 1}


def test_one_to_one_is_the_jobs_word() -> None:
    """A promise about one function changes neither the class nor the bytes."""
    promised = FunctionProcessor(noisy, one_to_one=True)

    assert promised.one_to_one
    assert promised.clone().one_to_one
    assert not FunctionProcessor(noisy).one_to_one
    assert promised.identity() == FunctionProcessor(noisy).identity()


def test_a_function_is_found_by_its_file(tmp_path: Path) -> None:
    """`file.py:name` loads the user's code; its place decides nothing, its source does."""
    source = "def to_sample(raw):\n    return {'double': raw * 2}\n"
    places = [tmp_path / "one" / "data.py", tmp_path / "two" / "data.py"]
    for place, text in zip(places, (source, source.replace("double", "twice")), strict=True):
        place.parent.mkdir()
        place.write_text(text)
    moved = tmp_path / "data.py"
    moved.write_text(source)

    here, changed = (FunctionProcessor(f"{place}:to_sample") for place in places)

    assert here.process(4, context()) == {"double": 8}
    assert changed.process(4, context()) == {"twice": 8}
    assert here.identity() == FunctionProcessor(f"{moved}:to_sample").identity()
    assert here.identity() != changed.identity()
    assert here.identity()["source"] == hashlib.sha256(source.encode()).hexdigest()


def test_a_version_stands_for_the_source(tmp_path: Path) -> None:
    """With a `version` the log is the same after a new comment, and another after a new version."""
    template = textwrap.dedent(
        """
        def to_sample(raw):
            return {{"raw": raw}}  # {comment}

        to_sample.version = {version}
        """
    )
    identities = []
    for number, (comment, version) in enumerate([("first", 1), ("second", 1), ("second", 2)]):
        path = tmp_path / f"data{number}.py"
        path.write_text(template.format(comment=comment, version=version))
        identities.append(FunctionProcessor(f"{path}:to_sample").identity())

    assert identities[0] == identities[1]
    assert identities[1] != identities[2]


def test_a_partial_needs_a_version() -> None:
    """What a partial carries would be missing from the identity: it is refused, with the way on."""
    partial: Any = functools.partial(dict, extra=1)

    with pytest.raises(InvalidJob, match="version"):
        FunctionProcessor(partial).identity()

    partial.version = 3
    assert FunctionProcessor(partial).identity()["function_version"] == 3


@pytest.mark.parametrize("result", [5, "text", np.zeros(2), [1, 2], ({"a": 1}, None)])
def test_a_function_that_returns_something_else_is_named(result: Any) -> None:
    """The error says which function and what it may return."""

    def wrong(raw: Any) -> Any:
        return result

    with pytest.raises(TypeError, match=r"wrong returned .*; return a dict"):
        FunctionProcessor(wrong).process(1, context())


def test_what_cannot_be_called_is_refused(tmp_path: Path) -> None:
    """A number, a module's constant or a processor class in place of a function: one sentence."""
    path = tmp_path / "data.py"
    path.write_text("from penstock.server.roles.processors import IdentityProcessor\nLIMIT = 3\n")

    with pytest.raises(InvalidJob, match="function is 5"):
        FunctionProcessor(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="cannot be called"):
        FunctionProcessor(f"{path}:LIMIT").setup()
    with pytest.raises(InvalidJob, match="type:"):
        FunctionProcessor(f"{path}:IdentityProcessor").setup()
    with pytest.raises(InvalidJob, match="to_sample"):
        FunctionProcessor(f"{path}:to_sample").setup()
