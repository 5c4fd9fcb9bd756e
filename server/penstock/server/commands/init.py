"""`penstockd init`: write a job file for existing data."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from penstock.server.commands.say import say
from penstock.server.commands.try_out import try_out
from penstock.server.jobs.assign import value_of
from penstock.server.jobs.guess import BATCH_SIZE, Asked, Guess, guess
from penstock.server.jobs.guess_columns import IDS
from penstock.wire.errors import BadItem, InvalidRequest, PenstockError


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
    split: str | None,
    options: tuple[str, ...],
    force: bool,
) -> None:
    """Write a commented job file for FILES: Parquet, JSON, CSV, text, Arrow, tars, token ids, URLs.

    Guesses the source, the column that holds the text, a tokenizer beside the data, and sizes that
    suit the amount of it. What is written is tried out as `penstockd check` does it, with a few
    items and batches, and every line is yours to change.

    Conversations (a column of role and content, or of from and value) are written by the chat
    template of the tokenizer's folder, with loss on the answers.

    \b
    Examples:
      penstockd init corpus/*.parquet --tokenizer tokenizer.json
      penstockd init notes.jsonl --column body --max-tokens 4096 -o notes.yaml
      penstockd init chats.jsonl --tokenizer my-model/
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
    shape = f"packed into rows of {found.max_tokens:,}"
    if found.batch_size is not None:
        shape = f"{found.batch_size:,} to a batch, padded"
    if found.ids_column:
        say(f"  takes the token ids of column {found.ids_column}, {shape}")
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
        columns = f"columns {_one_line(', '.join(found.columns))}, " if found.columns else ""
        say(f"  {columns}{found.batch_size or BATCH_SIZE:,} items to a batch, stacked as they are")
    if found.left_out:
        say(f"  left out: {_one_line(', '.join(found.left_out))}")
    for note in found.notes:
        say(f"  {note}")
    say(
        f"checked: {tried['items_run']:,} items and {tried['batches_run']:,} batches were made "
        "twice, in another order and process: the same"
    )
    say(f"next: penstockd check {output}    how fast it is, what it costs")
    say(f"      penstockd serve {output}")


def render(found: Guess, name: str) -> str:
    """Return the job file's text."""
    store = f"sqlite:///{Path(name).stem}.db"
    lines = [
        f"# A penstock job file. Check it:  penstockd check {name}",
        f"# Look at a batch:                penstockd show {name} main --position 0 --text",
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
    lines += _processor(found)
    if not found.gives_tokens:
        lines += _plain(found)
    elif found.batch_size is not None:
        lines += [f"    batch_size: {found.batch_size}", "    collator: padded"]
    else:
        lines += _packing(found)
    return "\n".join(lines) + "\n"


def _on_item_error(found: Guess) -> str:
    if found.on_item_error == "stop":
        return "    on_item_error: stop  # or quarantine: leave out items that fail twice"
    return "    on_item_error: quarantine  # items fail, see below; stop ends a lane there"


def _processor(found: Guess) -> list[str]:
    if not found.gives_tokens:
        return []
    if found.ids_column is not None:
        if found.ids_column == IDS:
            return ["    processor: identity  # tokenized already: items have input_ids"]
        renamed = f"{{type: identity, rename: {{{_text(found.ids_column)}: {IDS}}}}}"
        return [f"    processor: {renamed}  # tokenized already"]
    head = ["    processor:"]
    tokenizer = [f"      tokenizer: {_text(found.tokenizer)}"]
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


def _source(found: Guess) -> list[str]:
    lines = ["    source:"]
    lines += [f"      {key}: {_text(value)}" for key, value in found.source.items()]
    if found.left_out and found.takes_columns and "columns" not in found.source:
        read, left = ", ".join(map(_text, found.read_columns)), ", ".join(found.left_out)
        lines.append(f"      columns: [{read}]  # left out: {_one_line(left)}")
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


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:56] + " ..."
