"""A `tokenizer.json` read and checked, for every processor that makes token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.common.nearest import nearest
from penstock.server.core.refs import ItemRef
from penstock.wire.errors import InvalidJob, MissingExtra, SourceUnavailable

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(path: Path) -> bytes:
    """Return the bytes of a tokenizer's file.

    Raises:
        InvalidJob: There is no such file, or it may not be read.
        SourceUnavailable: It cannot be read at the moment.
    """
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise InvalidJob(
            f"tokenizer {str(path)!r} is a folder; name the tokenizer.json in it", key="tokenizer"
        ) from None
    except FileNotFoundError:
        raise InvalidJob(
            f"there is no tokenizer file {str(path)!r}; give the path of a tokenizer.json, "
            f"relative to the job file{from_the_hub(path)}",
            key="tokenizer",
        ) from None
    except (PermissionError, NotADirectoryError) as error:
        raise InvalidJob(
            f"the tokenizer {str(path)!r} cannot be read: {error.strerror}; let the user that runs "
            "this read it, or give another path",
            key="tokenizer",
        ) from None
    except OSError as error:
        raise SourceUnavailable(
            f"the tokenizer {str(path)!r} cannot be read at the moment: {error.strerror}",
            item=str(path),
        ) from error


WHOLE = "--include '*.j*'"
"""What `hf download` takes of a model for its tokenizer with the chat template: .json, .jinja."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def from_the_hub(path: Path, files: str = "tokenizer.json") -> str:
    """Return the end of a sentence: how to get the tokenizer of a model on the Hub.

    Empty where the path does not look like a model's name, as `AutoTokenizer` takes it: nothing is
    downloaded here, since a job's files must be the same for every node.

    Args:
        path: What is not there; absolute.
        files: What `hf download` takes of the model.
    """
    there = next(parent for parent in path.parents if parent.is_dir())
    name = str(path.relative_to(there))
    if path.suffix in (".json", ".model") or not _HUB_NAME.fullmatch(name):
        return ""
    return (
        f"; to get it from the Hugging Face Hub: hf download {name} {files} --local-dir {path.name}"
    )


def parse_tokenizer(data: bytes, path: Path, user: str, extra: str = "tokenizers") -> Tokenizer:
    """Return the tokenizer of a file's bytes, with padding and truncation switched off.

    Args:
        data: The bytes.
        path: Where they come from, for errors.
        user: The processor that needs it, for errors.
        extra: The extra that brings all that this processor needs.

    Raises:
        InvalidJob: It is not one, or gives a text other ids every time.
        MissingExtra: The package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra(
            f"the processor {user} needs the package tokenizers; "
            f"install it with: pip install 'penstock[{extra}]'",
            package="tokenizers",
            extra=extra,
        ) from None
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises nothing narrower than Exception
        raise InvalidJob(
            f"{str(path)!r} is not a tokenizer: {' '.join(str(error).split())[:200]}; give a "
            "tokenizer.json as tokenizers or transformers save it",
            key="tokenizer",
        ) from None
    if getattr(tokenizer.model, "dropout", None):
        raise InvalidJob(
            f"the tokenizer {str(path)!r} has a dropout of {tokenizer.model.dropout}, which gives "
            "one text other ids every time; set its dropout to null",
            key="tokenizer",
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def no_column(column: str, columns: Iterable[Any], item: ItemRef | None = None) -> InvalidJob:
    """Return the error of items that lack the column that a processor reads.

    Args:
        column: The column.
        columns: What they have.
        item: The one that lacks it, where others may have it; None = no item has.
    """
    names = [str(name) for name in columns]
    near = nearest(column, names, 1, likeness=0.4)
    remedy, whose = "name one of these", "the items have"
    if item is not None:
        whose = f"item {item} has"
        remedy += (
            f", or where only some lines of JSON lack it say columns: [{column}] in the source, "
            "and it is null there"
        )
    if near:
        remedy = f"did you mean {near[0]!r}?"
    return InvalidJob(
        f"processor.column is {column!r}, and {whose} "
        f"{', '.join(map(repr, names)) or 'no columns'}; {remedy}",
        key="processor.column",
        columns=names,
    )


def check_unicode(text: str) -> None:
    """Refuse a text with an unpaired surrogate: tokenizers reject it without saying where it is.

    Raises:
        ValueError: Says where it is.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise ValueError(
            f"the text holds half a surrogate pair, {half} at character {error.start:,}, which is "
            "not Unicode: it was cut within a character, or decoded wrongly"
        ) from None
