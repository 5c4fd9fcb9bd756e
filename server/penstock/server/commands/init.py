"""`penstockd init`: write a job file for data that is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from penstock.server.commands.say import say
from penstock.server.config import load
from penstock.server.guess import BATCH_SIZE, Guess, guess
from penstock.wire.errors import InvalidRequest


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option(
    "-o", "--output", default="penstock.yaml", help="Where to write; default penstock.yaml."
)
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json; default: one near the data.")
@click.option("--force", is_flag=True, help="Replace a job file that is there already.")
def init(files: tuple[str, ...], output: str, tokenizer: str | None, force: bool) -> None:
    """Write a commented job file for FILES: Parquet, JSON lines, CSV, text, Arrow, or a folder.

    Guesses the source, the column that holds the text, a tokenizer beside the data, and sizes that
    suit the amount of it. The file is a start: it passes `penstockd check`, and every line is
    yours to change.

    \b
    Examples:
      penstockd init corpus/*.parquet --tokenizer tokenizer.json
      penstockd init notes.jsonl --output notes.yaml
      penstockd init photos/
    """  # noqa: D301 - \b is for click
    path = Path(output)
    if path.exists() and not force:
        raise InvalidRequest(
            f"{output} is there already: name another with --output, or replace it with --force",
            path=output,
        )
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"there is no folder {path.parent} to write {path.name} in")
    found = guess(files, path.absolute().parent, tokenizer)
    path.write_text(render(found, path.name), encoding="utf-8")
    _ = load(str(path)).jobs["main"].log_id  # what we write, we can read
    _say(found, output)


def _say(found: Guess, output: str) -> None:
    say(f"wrote {output}: {found.items:,} items; lanes: {found.lanes}")
    if found.ids_column:
        say(f"  packs the token ids of column {found.ids_column}")
    elif found.tokenizer and found.text_column:
        say(f"  tokenizes column {found.text_column} with {found.tokenizer}")
    elif found.text_column:
        say(
            "  no tokenizer.json was found, so batches hold the text of column "
            f"{found.text_column}; for packed tokens: penstockd init ... --tokenizer tokenizer.json"
        )
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
        f"    lanes: {found.lanes}  # fixed for good: {found.items:,} items now",
        "    epochs: null  # endless",
        "    on_item_error: stop  # or quarantine: leave out items that fail twice",
    ]
    lines += [f"    # {note}" for note in found.notes]
    lines += _source(found)
    if found.ids_column is not None:
        lines += ["    processor: identity  # tokenized already: items have input_ids"]
        lines += _packing(found)
    elif found.tokenizer is not None and found.text_column is not None:
        lines += [
            "    processor:",
            "      type: tokenize",
            f"      tokenizer: {_text(found.tokenizer)}",
            f"      column: {_text(found.text_column)}",
        ]
        if found.end_token is not None:
            lines += [f"      append: {_text(found.end_token)}  # after every document"]
        else:
            lines += ['      # append: "<eos>"  # the vocabulary has none of the usual names']
        lines += _packing(found)
    else:
        lines += _plain(found)
    return "\n".join(lines) + "\n"


def _source(found: Guess) -> list[str]:
    lines = ["    source:"]
    lines += [f"      {key}: {_text(value)}" for key, value in found.source.items()]
    wanted = found.ids_column or found.text_column
    if wanted is not None and (found.tokenizer or found.ids_column) and len(found.columns) > 1:
        left = ", ".join(column for column in found.columns if column != wanted)
        lines.append(f"      columns: [{_text(wanted)}]  # left out: {_one_line(left)}")
    return lines


def _packing(found: Guess) -> list[str]:
    return [
        "    batcher:",
        "      type: best_fit",
        f"      max_tokens: {found.max_tokens}  # tokens in a row",
        f"      pool_size: {found.pool_size}  # more packs tighter, and mixes longer",
        "      rows: 1",
        "      overlong: split  # or truncate, drop, error",
        "    collator:",
        "      type: packed",
        f"      pad_to: {found.max_tokens}",
    ]


def _plain(found: Guess) -> list[str]:
    lines = [f"    batch_size: {BATCH_SIZE}  # items as they are, stacked"]
    if found.text_column is None:
        lines += ["    # your own processing: a function from an item to a dict of arrays", ""]
        return [*lines[:-1], "    # function: ./data.py:to_sample"]
    column, tokens, pool = _text(found.text_column), found.max_tokens, found.pool_size
    return [
        *lines,
        "    # For packed tokens put these in place of batch_size:",
        f"    # processor: {{type: tokenize, tokenizer: tokenizer.json, column: {column}}}",
        f"    # batcher: {{type: best_fit, max_tokens: {tokens}, pool_size: {pool}}}",
        f"    # collator: {{type: packed, pad_to: {found.max_tokens}}}",
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
