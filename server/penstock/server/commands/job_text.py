"""The text of a job file that `penstockd init` writes, with the comments that explain it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from penstock.server.jobs.guess import BATCH_SIZE, Guess
from penstock.server.jobs.guess_columns import IDS
from penstock.server.jobs.guess_robots import RobotGuess


def render(found: Guess, name: str) -> str:
    """Return the job file's text."""
    store = f"sqlite:///{Path(name).stem}.db"
    has_pictures = found.pictures is not None or (
        found.media is not None and found.media.kind in ("image", "video")
    )
    look = "--pictures batch.png" if has_pictures or found.robots is not None else "--text"
    lines = [
        f"# A penstock job file. Check it:  penstockd check {name}",
        f"# Look at a batch:                penstockd show {name} main --position 0 {look}",
        f"# Serve it:                       penstockd serve {name}",
        "# Paths are relative to this file. docs/reference.md explains every key; for editors:",
        "#   penstockd schema > penstock.schema.json",
        "server:",
        "  listen: 127.0.0.1:50051         # 0.0.0.0:50051, and tls, for other machines",
        "  metrics: 127.0.0.1:9090",
        # A store has one holder: job files of one folder, each with its own, can all be served.
        f"  store: {_text(store)}  # cursors and checkpoints: keep this file",
        "  workers: auto",
        "jobs:",
        "  main:",
        "    seed: 0",
        f"    lanes: {found.lanes}  # cannot change later; chosen for {found.items:,} items",
        "    epochs: null  # endless",
        _on_item_error(found),
    ]
    lines += [f"    # {note}" for note in found.notes]
    lines += _source(found)
    if found.robots is not None:
        return "\n".join([*lines, *_frames(found, found.robots)]) + "\n"
    if found.media_places is not None:
        lines += ["    media:  # where names of items lead"]
        lines += [f"      {key}: {_text(value)}" for key, value in found.media_places.items()]
    lines += _processor(found)
    if found.media is not None:
        of_any = {"sound": "lists  # of any length", "video": "lists  # of any size"}
        collator = of_any.get(found.media.kind, "default")
        lines += [
            f"    batch_size: {found.batch_size or BATCH_SIZE}",
            f"    collator: {collator}",
        ]
    elif not found.gives_tokens:
        lines += _plain(found)
    elif found.batch_size is not None:
        collator = "padded" if found.pictures is None else "vlm"
        lines += [f"    batch_size: {found.batch_size}", f"    collator: {collator}"]
    else:
        lines += _packing(found)
    return "\n".join(lines) + "\n"


def _on_item_error(found: Guess) -> str:
    if found.on_item_error == "stop":
        return "    on_item_error: stop  # or quarantine: leave out items that fail twice"
    return "    on_item_error: quarantine  # items fail, see below; stop ends a lane there"


SIDE = 224
"""Pixels of both sides of a picture, and of the shorter one of a video."""

FRAMES, POOL_EPISODES = 8, 1024
"""Frames of a video; episodes from which a lane draws."""


def _frames(found: Guess, robots: RobotGuess) -> list[str]:
    """Return what follows the source of a LeRobot folder."""
    lines = []
    if robots.windowed is not None:
        window = f"{_text(robots.windowed)}: {json.dumps(robots.offsets_s)}"
        lines = [
            f"      # windows, in seconds around a frame, of {robots.fps:g} in a second:",
            f"      # delta_timestamps: {{{window}}}",
        ]
    collator = "lists  # some features differ in length" if robots.is_ragged else "default"
    return [
        *lines,
        "    distributor:",
        "      type: episodes",
        f"      pool: {POOL_EPISODES}  # episodes that a lane draws from: a few times the batch",
        "    processor:",
        "      type: robot  # decodes the cameras; other features go into batches as they are",
        "      # pixels: yuv420p  # half of the bytes, of which trainers make RGB",
        f"      # resize: exact  # all cameras to {SIDE} x {SIDE} pixels, as RGB",
        f"      # resize_to: {SIDE}",
        f"    batch_size: {found.batch_size or BATCH_SIZE}",
        f"    collator: {collator}",
    ]


def _processor(found: Guess) -> list[str]:
    if found.media is not None:
        return _decoding(found)
    if not found.gives_tokens:
        return []
    if found.ids_column is not None:
        if found.ids_column == IDS:
            return ["    processor: identity  # tokenized already: items have input_ids"]
        renamed = f"{{type: identity, rename: {{{_text(found.ids_column)}: {IDS}}}}}"
        return [f"    processor: {renamed}  # tokenized already"]
    head = ["    processor:"]
    tokenizer = [f"      tokenizer: {_text(found.tokenizer)}"]
    if found.pictures is not None:
        return [*head, *_conversation(found, tokenizer[0])]
    if found.chat_column is not None:
        tokenizer[0] += "  # its chat template is applied"
        return [
            *head,
            "      type: chat",
            *tokenizer,
            f"      column: {_text(found.chat_column)}",
            "      unmatched: error  # or search, skip: where answers are not found among tokens",
        ]
    lines = [*head, "      type: tokenize", *tokenizer, f"      column: {_text(found.text_column)}"]
    if found.end_token is not None:
        return [*lines, f"      append: {_text(found.end_token)}  # after every document"]
    return [*lines, '      # append: "<eos>"  # the vocabulary has none of the usual names']


def _decoding(found: Guess) -> list[str]:
    """Return the processor that makes arrays of pictures, sounds or videos."""
    assert found.media is not None
    lines = ["    processor:", f"      type: {found.media.kind}"]
    lines.append(f"      column: {_text(found.media.name)}")
    if found.media.beside:
        lines.append(f"      columns: [{', '.join(map(_text, found.media.beside))}]")
    if found.media.kind == "sound":
        return [*lines, "      sample_rate: 16000  # points in a second"]
    if found.media.kind == "video":
        return [
            *lines,
            f"      nframes: {FRAMES}  # evenly from each; or fps: 4, or a column of numbers",
            f"      resize: shortest  # to {SIDE} pixels; without it, as they are",
            f"      resize_to: {SIDE}",
        ]
    return [
        *lines,
        f"      resize: shortest  # to {SIDE} pixels, and then the middle of the picture",
        f"      resize_to: {SIDE}",
        "      crop: centre  # or random_resized, with flip: 0.5 and no resize",
        f"      crop_to: {SIDE}",
        "      layout: CHW  # or HWC",
    ]


def _conversation(found: Guess, tokenizer: str) -> list[str]:
    """Return the parameters of `conversation`."""
    assert found.pictures is not None
    lines = [
        "      type: conversation",
        f"{tokenizer}  # of a vision-language model: its processor's settings are applied",
        f"      column: {_text(found.chat_column)}",
    ]
    if found.pictures.column is not None:
        lines.append(f"      image_column: {_text(found.pictures.column)}")
    if found.pictures.unplaced:
        lines.append("      unplaced_images: first_turn  # of some there is no <image>")
    if found.pictures.some_without:
        lines.append("      fake_image: true  # so that every rank encodes pixels")
    return [
        *lines,
        "      # A quarter of the bytes of float32, which a loop normalizes as they arrive:",
        "      # Loader(..., arrive=penstock.client.media.normalize). A loop that does not needs",
        "      # float32, which is what the model takes.",
        "      patches: uint8",
        "      # settings: {max_pixels: 802816}  # fewer pixels of a picture are fewer tokens",
        "      unmatched: error  # or search, skip: where answers are not found among tokens",
    ]


def _source(found: Guess) -> list[str]:
    lines = ["    source:"]
    lines += [f"      {key}: {_text(value)}" for key, value in found.source.items()]
    if found.left_out and found.takes_columns and "columns" not in found.source:
        read, left = ", ".join(map(_text, found.read_columns)), ", ".join(found.left_out)
        lines.append(f"      columns: [{read}]  # left out: {one_line(left)}")
    return lines


def _packing(found: Guess) -> list[str]:
    collator = ["      type: packed"]
    limits, of_pictures = [], ""
    if found.pictures is not None:
        of_pictures = ", those of pictures among them"
        collator = [
            "      type: vlm",
            "      layout: indexed  # for masks.for_attention of penstock.client; or neat",
        ]
        limits = ["      # limits: {images: 8, patches: 16384}  # of a row, beside its tokens"]
    return [
        "    batcher:",
        "      type: best_fit",
        f"      max_tokens: {found.max_tokens}  # tokens in a row{of_pictures}",
        f"      pool_size: {found.pool_size}  # with more, rows are fuller and wait longer",
        "      rows: 1",
        f"      overlong: {_overlong(found)}",
        *limits,
        "    collator:",
        *collator,
        f"      pad_to: {found.max_tokens}",
    ]


def _overlong(found: Guess) -> str:
    if found.pictures is not None:  # a picture cannot be cut
        return "drop  # or alone, error"
    if found.chat_column is not None:  # the rest of a conversation makes no sense by itself
        return "truncate  # or split, drop, error"
    return "split  # or truncate, drop, error"


def _plain(found: Guess) -> list[str]:
    lines = [f"    batch_size: {found.batch_size or BATCH_SIZE}  # items as they are, stacked"]
    if found.pictures is not None:  # lists of any length
        return [
            f"    batch_size: {found.batch_size or BATCH_SIZE}  # items as they are",
            "    collator: lists",
            "    # penstockd init --tokenizer FOLDER, of a vision-language model, writes the",
            "    # processor conversation, a packing batcher and the collator vlm",
        ]
    if found.chat_column is None and found.text_column is None:
        return [
            *lines,
            "    # your own processing: a function from an item to a dict of arrays",
            "    # function: ./data.py:to_sample",
        ]
    column = found.chat_column or found.text_column
    processor = f"{{type: tokenize, tokenizer: tokenizer.json, column: {_text(column)}}}"
    if found.chat_column is not None:
        processor = f"{{type: chat, tokenizer: FOLDER, column: {_text(column)}}}"
        lines.append("    # penstockd init --tokenizer FOLDER writes these, with the processor:")
    else:
        lines.append("    # For packed tokens put these in place of batch_size:")
    tokens, pool = found.max_tokens, found.pool_size
    return [
        *lines,
        f"    # processor: {processor}",
        f"    # batcher: {{type: best_fit, max_tokens: {tokens}, pool_size: {pool}}}",
        f"    # collator: {{type: packed, pad_to: {tokens}}}",
    ]


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./]*")
_CONSTANTS = ("null", "true", "false")


def _text(value: Any) -> str:
    """Return a value as YAML: plain words as they are, the rest as JSON, which is YAML."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _CONSTANTS:
        return value
    return json.dumps(value, ensure_ascii=False)


def one_line(text: str) -> str:
    """Return a text without line breaks, cut where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:56] + " ..."
