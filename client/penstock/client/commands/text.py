"""Documents of a packed batch with their seams, for eyes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.wire.errors import InvalidRequest, MissingExtra

Decode = Callable[[list[int]], str]

SHOWN_TOKENS = 12
SHOWN_CHARACTERS = 240


def load_decoder(path: Path) -> Decode:
    """Return what makes text of token ids.

    Raises:
        MissingExtra: tokenizers is not installed.
        InvalidRequest: The file is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra(
            "--tokenizer needs the package tokenizers: pip install 'penstock[tokenizers]', or "
            "leave it out and see token ids",
            package="tokenizers",
            extra="tokenizers",
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise InvalidRequest(
            f"--tokenizer {path}: no tokenizer.json could be read there ({error})", path=str(path)
        ) from error
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))


def documents(batch: Mapping[str, Any]) -> list[tuple[int, int, NDArray[Any]]] | None:
    """Return (row, document, token ids) of a packed batch; document 0 is padding.

    `document_ids` says where documents are; without it each row is one document, less what
    `attention_mask` says is padding. None where the batch has no `input_ids` of rows.
    """
    ids = batch.get("input_ids")
    if not isinstance(ids, np.ndarray) or ids.ndim != 2:
        return None
    numbers = batch.get("document_ids")
    if not isinstance(numbers, np.ndarray) or numbers.shape != ids.shape:
        mask = batch.get("attention_mask")
        if not isinstance(mask, np.ndarray) or mask.shape != ids.shape:
            mask = np.ones_like(ids)
        numbers = np.where(mask != 0, np.arange(1, len(ids) + 1)[:, None], 0)
    found = []
    for row, (tokens, owners) in enumerate(zip(ids, numbers, strict=True)):
        seams = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(tokens)]
        found += [
            (row, int(owners[start]), tokens[start:stop])
            for start, stop in itertools.pairwise(seams)
            if stop > start
        ]
    return found


def render_text(batch: Mapping[str, Any], decode: Decode | None) -> str:
    """Return the documents of a batch, one block each; other values as they are."""
    found = documents(batch)
    if found is None:
        return "\n".join(f"  {name}: {_short(repr(value))}" for name, value in batch.items())
    lines = []
    for row, document, tokens in found:
        kind = "padding" if document == 0 else f"document {document}"
        lines.append(f"  --- row {row}, {kind}, {len(tokens):,} tokens ---")
        if document:
            lines.append(f"  {_text(tokens, decode)}")
    return "\n".join(lines)


def _text(tokens: NDArray[Any], decode: Decode | None) -> str:
    if decode is not None:
        return _short(repr(decode(tokens.tolist())))
    shown = " ".join(map(str, tokens[:SHOWN_TOKENS].tolist()))
    return f"{shown} ..." if len(tokens) > SHOWN_TOKENS else shown


def _short(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} ... {text[-half:]}"
