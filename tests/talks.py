"""Random conversations with pictures in the forms of data sets, and what transformers gives."""

from __future__ import annotations

import base64
import importlib
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.media.media_reference import read_reference
from penstock.server.media.medium import HeldMedium
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.processors import ConversationProcessor
from vision import vision_tokenizer, whole_processor

Turn = tuple[str, list[Any]]
"""Who speaks, and what: texts, and numbers of pictures."""

WORDS = ("What is the answer?", "It is four.", "You are helpful.", "Thank you.\nuser", "a")
SMALL = {"qwen3_vl": {"size": {"shortest_edge": 1024, "longest_edge": 65536}}}
"""Settings that keep pictures of tests small."""


def media_of(role: MediaProcessor, item: Any) -> list[HeldMedium]:
    """Return what is fetched for a processor: here items hold the bytes."""
    found = [read_reference(each, number) for number, each in enumerate(role.references(item))]
    held = [medium for medium in found if isinstance(medium, HeldMedium)]
    assert len(held) == len(found)
    return held


def context(media: Sequence[HeldMedium] = ()) -> ProcessContext:
    return ProcessContext(ItemRef("main", 0, 0), seed=1, media=media)


def processed(role: ConversationProcessor, item: Any) -> Any:
    return role.process(item, context(media_of(role, item)))


def skipped(role: ConversationProcessor, item: Any) -> str | None:
    told = context(media_of(role, item))
    assert role.process(item, told) is None
    return told.skipped


def talk(draw: random.Random, pictures: int) -> list[Turn]:
    """Return a conversation of so many pictures, all in users' turns."""
    pairs = draw.randint(1, 3)
    places = sorted(draw.choices(range(pairs), k=pictures))
    turns: list[Turn] = []
    if draw.random() < 0.4:
        turns.append(("system", [draw.choice(WORDS)]))
    number = 0
    for pair in range(pairs):
        said: list[Any] = [draw.choice(WORDS)] if draw.random() < 0.7 else []
        for _ in range(places.count(pair)):
            said.append(number)
            number += 1
            if draw.random() < 0.6:
                said.append(draw.choice(WORDS))
        turns += [("user", said or [draw.choice(WORDS)]), ("assistant", [draw.choice(WORDS)])]
    return turns


WILD = (
    *WORDS,
    *(
        "",
        "  lead",
        "trail \n",
        "\n\n",
        "\t",
        "\r\n",
        "a" * 300,
        "&lt;image&gt;",
        "{{ x }}",
        "{% if %}",
    ),
    *("\u00e9\u6f22\u5b57\U0001f642", "\u0645\u0631\u062d\u0628\u0627", "a\u0300\u200d"),
    *("<|vision_start|>", "x<|vision_end|>y", "<|media_begin|>", "<|media_end|>"),
    *("<|im_end|>", "<|im_start|>", "<s>"),
)
"""Texts that template or tokenizer could take for something else."""


def wild_talk(draw: random.Random, pictures: int) -> list[Turn]:
    """Return a conversation of such texts, in which answers may show pictures, too."""
    pairs = draw.randint(1, 5)
    places = draw.choices(range(pairs), k=pictures)
    turns: list[Turn] = []
    if draw.random() < 0.4:
        turns.append(("system", [draw.choice(WILD)]))
    number, in_answers = 0, draw.random() < 0.3
    for pair in range(pairs):
        if draw.random() < 0.1:
            turns.append(("user", [draw.choice(WILD)]))
        for role in ("user", "assistant"):
            said: list[Any] = [draw.choice(WILD)]
            shown = places.count(pair) if (role == "assistant") == in_answers else 0
            for _ in range(shown):
                said += [number, draw.choice(WILD)]
                number += 1
            turns.append((role, said[draw.random() < 0.3 and shown > 0 :]))
    return turns


def as_sharegpt(turns: list[Turn], files: list[Any], draw: random.Random) -> dict[str, Any]:
    """Return it as LLaVA's data has it: `<image>` in the texts, in any case, and blanks."""
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    said = [
        {
            "from": names[role],
            "value": draw.choice(["", "\n"]).join(
                part
                if isinstance(part, str)
                else draw.choice(["<image>", "<IMAGE>", "<Image>\n", " <image> "])
                for part in parts
            ),
        }
        for role, parts in turns
    ]
    return {"conversations": said, "images": files}


def as_openai(turns: list[Turn], files: list[Any]) -> dict[str, Any]:
    """Return it as OpenAI's interface takes it: each picture in its own part."""
    return {
        "messages": [
            {
                "role": role,
                "content": [
                    {"type": "text", "text": part}
                    if isinstance(part, str)
                    else {"type": "image_url", "image_url": {"url": _data_url(files[part])}}
                    for part in parts
                ],
            }
            for role, parts in turns
        ]
    }


def as_placeholders(turns: list[Turn], files: list[Any]) -> dict[str, Any]:
    """Return it with parts that only say where a picture is, and a column of pictures."""
    found = as_openai(turns, files)
    for message in found["messages"]:
        for part in message["content"]:
            if part["type"] == "image_url":
                part.clear()
                part.update(type="image", text=None)
    return {**found, "images": [{"bytes": file, "path": None} for file in files]}


def as_transformers(turns: list[Turn]) -> list[dict[str, Any]]:
    return [
        {
            "role": role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
                for part in parts
            ],
        }
        for role, parts in turns
    ]


def _data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def marked(kind: str, ids: list[int]) -> list[int]:
    """Return the labels that a scan for the template's marks gives, written in loops."""
    tokenizer = vision_tokenizer()
    marks = {"kimi": "<|im_assistant|>assistant<|im_middle|>"}
    mark = tokenizer.encode(marks.get(kind, "<|im_start|>assistant\n")).ids
    stop = tokenizer.token_to_id("<|im_end|>")
    labels, at = [-100] * len(ids), 0
    while at < len(ids):
        if ids[at : at + len(mark)] != mark:
            at += 1
            continue
        at += len(mark)
        while at < len(ids):
            labels[at] = ids[at]
            at += 1
            if ids[at - 1] == stop:
                break
    return labels


def generated(folder: Path, messages: Any, ids: list[int], each: int) -> list[int]:
    """Return the labels of `{% generation %}`, by transformers, with pictures widened."""
    tokenizer = whole_processor("llava", folder).tokenizer
    told = tokenizer.apply_chat_template(
        messages,
        chat_template=(folder / "chat_template.jinja").read_text(),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    picture = tokenizer.convert_tokens_to_ids("<image>")
    mask = [
        flag
        for token, flag in zip(told["input_ids"], told["assistant_masks"], strict=True)
        for _ in range(each if token == picture else 1)
    ]
    return [token if flag else -100 for token, flag in zip(ids, mask, strict=True)]


def without_pictures(kind: str, ids: list[int], labels: list[int]) -> list[int]:
    """Return labels with none on the tokens of pictures, from the one that opens each on."""
    token_id = vision_tokenizer().token_to_id
    names = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    if kind == "kimi":
        names = ("<|media_begin|>", "<|media_pad|>", "<|media_end|>")
    opening, picture, closing = map(token_id, names)
    found = list(labels)
    for at, token in enumerate(ids):
        if token != picture:
            continue
        start = at
        if ids[at - 1] != picture:
            while ids[start] != opening:
                start -= 1
        stop = at + 1 + (ids[at + 1] == closing)
        found[start:stop] = [-100] * (stop - start)
    return found


def transformers_positions(kind: str, sample: Any, mask: Any = None) -> Any:
    """Return what the model's own `get_rope_index` gives for a sample."""
    import torch

    module = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    name = {"qwen2_vl": "Qwen2VLModel", "qwen2_5_vl": "Qwen2_5_VLModel", "qwen3_vl": "Qwen3VLModel"}
    model = getattr(module, name[kind])
    vision = SimpleNamespace(spatial_merge_size=2, tokens_per_second=2)
    own = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
    own.get_vision_position_ids = partial(model.get_vision_position_ids, own)
    ids = torch.from_numpy(sample["input_ids"]).long()[None]
    token_id = vision_tokenizer().token_to_id
    grids = torch.from_numpy(sample["image_grid_thw"])
    of_videos = {
        name: torch.from_numpy(sample[name])
        for name in ("video_grid_thw", "second_per_grid_ts")
        if name in sample
    }
    types = (ids == token_id("<|image_pad|>")).int() + 2 * (ids == token_id("<|video_pad|>")).int()
    found, _ = model.get_rope_index(
        own,
        ids,
        mm_token_type_ids=types,
        image_grid_thw=grids if mask is None else None,
        attention_mask=None if mask is None else torch.from_numpy(mask)[None].long(),
        **of_videos,
    )
    return found[:, 0].numpy()
