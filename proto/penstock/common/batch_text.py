"""A batch as text for people: a line about it, and its documents with a seam before each.

`penstock cat` and `penstockd show` print the same for the same batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.common.documents import document_numbers, token_table
from penstock.wire.plain import plain, plain_lines
from penstock.wire.value_types import NDArray

Decode = Callable[[Sequence[int]], str]
"""Token ids -> their text."""

SHOWN_IDS, SHOWN_VALUES, SHOWN_CHARACTERS = 12, 8, 240
"""How many ids of a document, elements of an array and characters of another value are shown."""


REPEATS = 32
"""So many equal tokens in a row are said once."""


class DocumentText(NamedTuple):
    """A document of a batch.

    Attributes:
        row: Its row.
        number: Its number in the batch; 0 = padding.
        ids: Its token ids, of shape (t,), t >= 1.
    """

    row: int
    number: int
    ids: NDArray


FIRST_COUNTS = ("tokens", "samples")
"""They stand first: a narrow terminal shows the beginning of a line."""


def headline(record: Mapping[str, Any], *, padding: bool) -> str:
    """Return one line about a batch.

    Args:
        record: From `describe.batch_record`.
        padding: The batch is padding.
    """
    first = [name for name in FIRST_COUNTS if name in record["counts"]]
    names = dict.fromkeys((*first, *record["counts"]))
    counts = ", ".join(f"{record['counts'][name]:,} {plain(name)}" for name in names)
    beside = accounting_text({**record["accounting"], "drawn": 0})
    made_by = f"{plain(record['dataset_name'])}  " if "dataset_name" in record else ""
    return (
        f"{record['position']}  step {record['step']}  lane {record['lane']}:{record['offset']}  "
        f"{made_by}{record['digest'][:16]}  {counts or 'no counts'}{_sources(record['items'])}"
        f"{'  padding' if padding else ''}{f'  beside: {beside}' if beside else ''}"
    )


def _sources(items: Sequence[Sequence[Any]]) -> str:
    """Return how many samples are of which source, where sources have names."""
    counts = Counter(item[0] for item in items)
    if set(counts) <= {"main"}:
        return ""
    return f"  of {', '.join(f'{plain(name)} {count:,}' for name, count in sorted(counts.items()))}"


def accounting_text(accounting: Mapping[str, int]) -> str:
    """Return what was drawn, left out and cut, by name: `12 filtered:too short`."""
    return ", ".join(f"{value:,} {plain(name)}" for name, value in accounting.items() if value)


def value_text(name: str, described: Mapping[str, Any]) -> str:
    """Return the name of a value with the dtype and shape of a tensor.

    Args:
        name: Its name.
        described: From `describe.describe_values`.
    """
    if described["kind"] != "tensor":
        return f"{plain(name)} {described['kind']}"
    return f"{plain(name)} {described['dtype']}{described['shape']}"


def documents(values: Mapping[str, Any]) -> list[DocumentText] | None:
    """Return the documents of a batch in order, padding among them; None = it has no token ids.

    `penstock.common.documents` says which they are.
    """
    table = token_table(values)
    if table is None:
        return None
    numbers = document_numbers(values, table)
    found: list[DocumentText] = []
    for row, (tokens, owners) in enumerate(zip(table, numbers, strict=True)):
        seams = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(tokens)]
        found += [
            DocumentText(row, int(owners[start]), tokens[start:stop])
            for start, stop in itertools.pairwise(seams)
            if stop > start
        ]
    return found


def batch_text(values: Mapping[str, Any], decode: Decode | None) -> str:
    """Return a batch as people read it: documents with a seam before each, else its values."""
    found = documents(values)
    if found is None:
        return "\n".join(f"{plain(name)}: {summary(value)}" for name, value in values.items())
    lines: list[str] = []
    for row, number, ids in found:
        kind = f"document {number}" if number else "padding"
        lines.append(f"--- row {row}, {kind}, {len(ids):,} tokens ---")
        if number:
            lines.append(ids_text(ids, decode))
    return "\n".join(lines)


def ids_text(ids: NDArray, decode: Decode | None) -> str:
    """Return a document as text, or its first ids if nothing decodes them."""
    if decode is not None:
        said = repeats_said(ids.tolist(), decode, REPEATS)
        return plain_lines(said)  # text from the web may hold escapes, too
    shown = " ".join(map(str, ids[:SHOWN_IDS].tolist()))
    return shown + (" ..." if len(ids) > SHOWN_IDS else "")


def repeats_said(ids: Sequence[int], decode: Decode, least: int) -> str:
    """Return what ids say; a token that comes so often in a row is said once, with how often.

    Those that hold the place of a picture are hundreds.
    """
    said: list[str] = []
    waiting: list[int] = []
    for token, group in itertools.groupby(ids):
        count = len(list(group))
        if count < least:
            waiting += [token] * count
            continue
        said += [decode(waiting) if waiting else "", f"[{decode([token]).strip()} x {count:,}] "]
        waiting = []
    return "".join([*said, decode(waiting) if waiting else ""])


def summary(value: Any) -> str:
    """Return a value of a batch on one line: dtype and shape of an array, else what it is."""
    if isinstance(value, np.ndarray):
        first = " ".join(map(str, value.reshape(-1)[:SHOWN_VALUES].tolist()))
        more = " ..." if value.size > SHOWN_VALUES else ""
        return f"{value.dtype}{list(value.shape)}  {first}{more}"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 4] + " ..."
