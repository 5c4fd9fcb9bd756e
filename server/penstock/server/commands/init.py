"""`penstockd init`: write a job file for existing data."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import click

from penstock.server.commands.say import say
from penstock.server.examples import chat as chat_example
from penstock.server.jobs.guess import BATCH_SIZE, Guess, guess
from penstock.server.jobs.load import load
from penstock.wire.errors import InvalidRequest

CHAT = Path(chat_example.__file__)
"""The processor of conversations: copied, so that it is the user's."""


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
@click.option("--force", is_flag=True, help="Replace files that are there already.")
def init(
    files: tuple[str, ...],
    output: str,
    tokenizer: str | None,
    column: str | None,
    max_tokens: int | None,
    batch_size: int | None,
    force: bool,
) -> None:
    """Write a commented job file for FILES: Parquet, JSON, CSV, text, Arrow, tars, token ids, URLs.

    Guesses the source, the column that holds the text, a tokenizer beside the data, and sizes that
    suit the amount of it. The file is a start: it passes `penstockd check`, and every line is
    yours to change.

    Conversations (a column of role and content, or of from and value) are written by the chat
    template of the tokenizer's folder, with loss on the answers; the processor for them is copied
    beside the job file, as chat.py.

    \b
    Examples:
      penstockd init corpus/*.parquet --tokenizer tokenizer.json
      penstockd init notes.jsonl --column body --max-tokens 4096 -o notes.yaml
      penstockd init chats.jsonl --tokenizer my-model/
      penstockd init 's3://bucket/corpus/*.jsonl' --tokenizer tokenizer.json
      penstockd init photos/ --batch-size 32
    """  # noqa: D301 - \b is for click
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent} to write {path.name} in")
    _refuse_to_replace(path, force)
    found = guess(
        files,
        path.absolute().parent,
        tokenizer,
        column=column,
        max_tokens=max_tokens,
        batch_size=batch_size,
    )
    if found.chat_column is not None and found.tokenizer is not None:
        beside = path.with_name(CHAT.name)
        if not (beside.exists() and beside.read_bytes() == CHAT.read_bytes()):
            _refuse_to_replace(beside, force)
            shutil.copyfile(CHAT, beside)
    path.write_text(render(found, path.name), encoding="utf-8")
    _ = load(str(path)).jobs["main"].log_id  # what we write, we can read
    _say(found, output)


def _refuse_to_replace(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise InvalidRequest(
            f"{path} is there already: name another with --output, or replace it with --force",
            field="path",
            value=str(path),
        )


def _say(found: Guess, output: str) -> None:
    items = f"{found.items:,} item{'' if found.items == 1 else 's'}"
    say(f"wrote {output}: {items}; lanes: {found.lanes}")
    shape = f"packed into rows of {found.max_tokens:,}"
    if found.batch_size is not None:
        shape = f"{found.batch_size:,} to a batch, padded"
    if found.ids_column:
        say(f"  takes the token ids of column {found.ids_column}, {shape}")
    elif found.chat_column and found.tokenizer:
        say(
            f"  wrote {CHAT.name}: it writes the conversations of column {found.chat_column} by "
            f"the chat template in {found.tokenizer}, {shape}; loss is on the answers"
        )
    elif found.chat_column:
        say(
            f"  column {found.chat_column} holds conversations, and no tokenizer with a chat "
            "template was found, so batches hold them as they are; for packed tokens: penstockd "
            "init ... --tokenizer FOLDER, as save_pretrained of transformers writes it (the "
            "example: penstock.server.examples.chat)"
        )
    elif found.tokenizer and found.text_column:
        say(f"  tokenizes column {found.text_column} with {found.tokenizer}, {shape}")
    elif found.text_column:
        say(
            "  no tokenizer.json was found, so batches hold the text of column "
            f"{found.text_column}; for packed tokens: penstockd init ... --tokenizer tokenizer.json"
        )
    else:
        columns = f"columns {_one_line(', '.join(found.columns))}, " if found.columns else ""
        say(f"  {columns}{found.batch_size or BATCH_SIZE:,} items to a batch, stacked as they are")
    for note in found.notes:
        say(f"  {note}")
    say(f"next: penstockd check {output}")


def render(found: Guess, name: str) -> str:
    """Return the job file's text."""
    store = f"sqlite:///{Path(name).stem}.db"
    lines = [
        f"# A penstock job file. Check it:  penstockd check {name}",
        f"# Look at a batch:                penstockd show {name} main --position 0 --text",
        f"# Serve it:                       penstockd serve {name}",
        "# Paths are relative to this file. docs/jobs.md explains every key; for editors:",
        "#   penstockd schema > penstock.schema.json",
        "server:",
        "  listen: 127.0.0.1:50051         # 0.0.0.0:50051 for trainers on other machines",
        "  metrics: 127.0.0.1:9090",
        # A store has one holder: job files of one folder, each with its own, can all be served.
        f"  store: {_text(store)}  # cursors and checkpoints: keep this file",
        "  workers: auto",
        "jobs:",
        "  main:",
        "    seed: 0",
        f"    lanes: {found.lanes}  # cannot change later; chosen for {found.items:,} items",
        "    epochs: null  # endless",
        "    on_item_error: stop  # or quarantine: leave out items that fail twice",
    ]
    lines += [f"    # {note}" for note in found.notes]
    lines += _source(found)
    lines += _processor(found)
    if not found.gives_tokens:
        lines += _plain(found)
    elif found.batch_size is not None:
        lines += [f"    batch_size: {found.batch_size}", "    collator: padded"]
    else:
        lines += _packing(found)
    return "\n".join(lines) + "\n"


def _processor(found: Guess) -> list[str]:
    if not found.gives_tokens:
        return []
    if found.ids_column is not None:
        return ["    processor: identity  # tokenized already: items have input_ids"]
    head = ["    processor:"]
    tokenizer = [f"      tokenizer: {_text(found.tokenizer)}"]
    if found.chat_column is not None:
        tokenizer[0] += "  # its chat template is applied"
        return [
            *head,
            f"      type: {_text(f'./{CHAT.name}:Chat')}  # yours to change",
            *tokenizer,
            f"      column: {_text(found.chat_column)}",
        ]
    lines = [*head, "      type: tokenize", *tokenizer, f"      column: {_text(found.text_column)}"]
    if found.end_token is not None:
        return [*lines, f"      append: {_text(found.end_token)}  # after every document"]
    return [*lines, '      # append: "<eos>"  # the vocabulary has none of the usual names']


def _source(found: Guess) -> list[str]:
    lines = ["    source:"]
    lines += [f"      {key}: {_text(value)}" for key, value in found.source.items()]
    wanted = found.ids_column or found.chat_column or found.text_column
    if wanted is not None and found.gives_tokens and len(found.columns) > 1 and found.takes_columns:
        left = ", ".join(column for column in found.columns if column != wanted)
        lines.append(f"      columns: [{_text(wanted)}]  # left out: {_one_line(left)}")
    return lines


def _packing(found: Guess) -> list[str]:
    return [
        "    batcher:",
        "      type: best_fit",
        f"      max_tokens: {found.max_tokens}  # tokens in a row",
        f"      pool_size: {found.pool_size}  # with more, rows are fuller and wait longer",
        "      rows: 1",
        f"      overlong: {_overlong(found)}",
        "    collator:",
        "      type: packed",
        f"      pad_to: {found.max_tokens}",
    ]


def _overlong(found: Guess) -> str:
    if found.chat_column is not None:  # the rest of a conversation makes no sense by itself
        return "truncate  # or split, drop, error"
    return "split  # or truncate, drop, error"


def _plain(found: Guess) -> list[str]:
    lines = [f"    batch_size: {found.batch_size or BATCH_SIZE}  # items as they are, stacked"]
    if found.chat_column is None and found.text_column is None:
        return [
            *lines,
            "    # your own processing: a function from an item to a dict of arrays",
            "    # function: ./data.py:to_sample",
        ]
    column = found.chat_column or found.text_column
    processor = f"{{type: tokenize, tokenizer: tokenizer.json, column: {_text(column)}}}"
    if found.chat_column is not None:
        processor = f'{{type: "./{CHAT.name}:Chat", tokenizer: FOLDER, column: {_text(column)}}}'
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


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:56] + " ..."


__all__ = ["init", "render"]
