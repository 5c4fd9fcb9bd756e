"""Text for people: durations, and token ids by a file that the caller names."""

from __future__ import annotations

from pathlib import Path

from penstock.common.batch_text import Decode
from penstock.wire.errors import InvalidRequest, MissingExtra


def duration(seconds: float, nothing: str = "0 s") -> str:
    """Return a duration for people; `nothing` for 0."""
    if not seconds:
        return nothing
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def load_decoder(path: Path) -> Decode:
    """Return what makes text of token ids.

    Raises:
        MissingExtra: tokenizers is not installed.
        InvalidRequest: The file is not a tokenizer.
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
            f"--tokenizer {path}: no tokenizer.json could be read there ({error})",
            field="path",
            value=str(path),
        ) from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
