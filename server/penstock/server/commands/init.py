"""`penstockd init`: write a job file for existing data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.server.commands.job_text import FRAMES, SIDE, one_line, render
from penstock.server.commands.say import say
from penstock.server.commands.try_out import try_out
from penstock.server.jobs.assign import value_of
from penstock.server.jobs.guess import BATCH_SIZE, Asked, Guess, guess
from penstock.wire.errors import BadItem, InvalidRequest, MissingExtra, PenstockError


@click.command(short_help="Write a commented job file for your data.")
@click.argument("files", nargs=-1, required=True)
@click.option(
    "-o", "--output", default="penstock.yaml", help="Where to write; default penstock.yaml."
)
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json; default: one near the data.")
@click.option(
    "--column", metavar="NAME", help="The column to read; default: the likeliest by its content."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    metavar="N",
    help="Length of packed rows; default 8192, or 1024 for little data.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Batches of N items, padded where they are tokens, in place of packed rows.",
)
@click.option(
    "--media",
    metavar="DIR",
    help="What names of media are relative to; default: a folder near the data.",
)
@click.option("--split", metavar="NAME", help="The split to read of a data set that has several.")
@click.option(
    "--source",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of the source, such as eos=50256 or dtype=uint16 for files of token ids; the "
    "value is YAML. May be given several times.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there already.")
def init(
    files: tuple[str, ...],
    output: str,
    tokenizer: str | None,
    column: str | None,
    max_tokens: int | None,
    batch_size: int | None,
    media: str | None,
    split: str | None,
    options: tuple[str, ...],
    force: bool,
) -> None:
    """Write a commented job file for FILES: tables, text, tars, media, token ids, robots, URLs.

    Guesses the source, the column that holds the text, a tokenizer beside the data, and sizes that
    suit the amount of it. What is written is tried out as `penstockd check` does it, with a few
    items and batches, and every line is yours to change.

    Conversations (a column of role and content, or of from and value) are written by the chat
    template of the tokenizer's folder, with loss on the answers; those with pictures by the folder
    of a vision-language model's processor. Pictures become 224 x 224 pixels, sounds 16 kHz; of
    videos 8 frames are taken. Of a folder that LeRobot recorded, items are frames.

    \b
    Examples:
      penstockd init corpus/*.parquet --tokenizer tokenizer.json
      penstockd init notes.jsonl --column body --max-tokens 4096 -o notes.yaml
      penstockd init chats.jsonl --tokenizer my-model/
      penstockd init pictures/ --batch-size 32
      penstockd init clips.jsonl --media clips/
      penstockd init robots/
      penstockd init s3://bucket/robots
      penstockd init 's3://bucket/corpus/*.jsonl' --tokenizer tokenizer.json
      penstockd init shards/ --batch-size 32
      penstockd init saved/ --split train --tokenizer tokenizer.json
      penstockd init train.bin --source dtype=uint16 --source eos=50256
    """  # noqa: D301 - \b is for click
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent} to write {path.name} in")
    _refuse_to_replace(path, force)
    found = guess(
        files,
        path.absolute().parent,
        Asked(
            tokenizer,
            column,
            max_tokens,
            batch_size,
            _source_options(options) | ({} if split is None else {"split": split}),
            media,
        ),
    )
    path.write_text(render(found, path.name), encoding="utf-8")
    _say(found, output, _tried(found, path, output))


def _source_options(options: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not (key.isidentifier() and equals):
            raise InvalidRequest(
                f"--source {option}: write KEY=VALUE, such as --source eos=50256",
                field="source",
                value=option,
            )
        found[key] = value_of(value, f"--source {key}")
    return found


def _tried(found: Guess, path: Path, output: str) -> dict[str, Any]:
    """Return what a check says of the file; one that items fail is written again, to skip them.

    Raises:
        MissingExtra: A package that it needs is not installed.
        PenstockError: It fails the check: what is wrong is not for us to guess.
    """
    try:
        try:
            return try_out(path)
        except BadItem as error:
            found.on_item_error = "quarantine"
            if not found.notes or "cannot be read" not in found.notes[0]:
                found.notes.append(f"items fail: {_first_line(error.message)}")
            path.write_text(render(found, path.name), encoding="utf-8")
            return try_out(path)
    except MissingExtra as error:
        raise error.reworded(
            f"{output} is written, and cannot be checked here: {error.message}"
        ) from error
    except PenstockError as error:
        raise error.reworded(
            f"{output} is written, and fails its check: {error.message}; change it there, or write "
            "a function: for these items, as docs/roles.md shows"
        ) from error


def _refuse_to_replace(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise InvalidRequest(
            f"{path} is there already: name another with --output, or replace it with --force",
            field="path",
            value=str(path),
        )


def _first_line(text: str) -> str:
    """Return a text as a comment of the file can hold it."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:196] + " ..."


def _say(found: Guess, output: str, tried: dict[str, Any]) -> None:
    items = f"{found.items:,} item{'' if found.items == 1 else 's'}"
    say(f"wrote {output}: {items}; lanes: {found.lanes}")
    media = found.media
    shape = f"packed into rows of {found.max_tokens:,}"
    if found.batch_size is not None:
        shape = f"{found.batch_size:,} to a batch, padded"
    if found.robots is not None:
        cameras = one_line(", ".join(found.robots.cameras)) or "none"
        say(
            f"  frames of {found.robots.episodes:,} episodes of robots, with the cameras {cameras};"
            f" {found.batch_size or BATCH_SIZE:,} to a batch"
        )
    elif found.ids_column:
        say(f"  takes the token ids of column {found.ids_column}, {shape}")
    elif media is not None:
        made = {
            "image": f"to {SIDE} x {SIDE} pixels",
            "sound": "to 16 kHz",
            "video": f"to {FRAMES} frames each, whose shorter side has {SIDE} pixels",
        }[media.kind]
        beside = f", with {one_line(', '.join(media.beside))}" if media.beside else ""
        say(
            f"  decodes column {media.name} {made}{beside}; "
            f"{found.batch_size or BATCH_SIZE:,} to a batch"
        )
    elif found.pictures and found.tokenizer:
        say(
            f"  writes the conversations of column {found.chat_column}, with their pictures, by "
            f"the processor in {found.tokenizer}, {shape}; loss is on the answers"
        )
    elif found.pictures:
        say(
            f"  column {found.chat_column} holds conversations with pictures, and no processor of "
            "a vision-language model was found, so batches hold them as they are; for tokens and "
            "pixels: penstockd init ... --tokenizer FOLDER, as save_pretrained of transformers "
            "writes it"
        )
    elif found.chat_column and found.tokenizer:
        say(
            f"  writes the conversations of column {found.chat_column} by the chat template in "
            f"{found.tokenizer}, {shape}; loss is on the answers"
        )
    elif found.chat_column:
        say(
            f"  column {found.chat_column} holds conversations, and no tokenizer with a chat "
            "template was found, so batches hold them as they are; for packed tokens: penstockd "
            "init ... --tokenizer FOLDER, as save_pretrained of transformers writes it"
        )
    elif found.tokenizer and found.text_column:
        say(f"  tokenizes column {found.text_column} with {found.tokenizer}, {shape}")
    elif found.text_column:
        say(
            "  no tokenizer.json was found, so batches hold the text of column "
            f"{found.text_column}; for packed tokens: penstockd init ... --tokenizer tokenizer.json"
        )
    else:
        columns = f"columns {one_line(', '.join(found.columns))}, " if found.columns else ""
        say(f"  {columns}{found.batch_size or BATCH_SIZE:,} items to a batch, stacked as they are")
    if found.left_out:
        say(f"  left out: {one_line(', '.join(found.left_out))}")
    for note in found.notes:
        say(f"  {note}")
    say(
        f"checked: {tried['items_run']:,} items and {tried['batches_run']:,} batches were made "
        "twice, in another order and process: the same"
    )
    say(f"next: penstockd check {output}    how fast it is, what it costs")
    say(f"      penstockd serve {output}")
