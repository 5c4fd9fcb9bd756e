"""One batch of a job as people read it: its rows, their seams, and the text between them."""

from __future__ import annotations

import contextlib
from typing import Any

from penstock.common.batch_text import Decode, documents, ids_text, summary
from penstock.server.job.job import Job
from penstock.server.node.demand.wanted import WantedBatch
from penstock.wire.errors import PenstockError
from penstock.wire.frame import decode_values, read_header

MOST_BYTES = 16 << 20
"""Larger batches are not copied for people: the node's loop would wait for it."""

SHOWN_DOCUMENTS, SHOWN_TOKENS, SHOWN_CHARACTERS = 200, 160, 500
"""How many documents, and of each how many tokens and characters, a page is sent."""

OWN = "penstock."
"""Processors of modules below this may be called here; code of users runs in workers alone."""


class Copied:
    """A batch, copied out of the memory that its node may need again.

    Args:
        entry: A batch that is ready, or kept.
    """

    def __init__(self, entry: WantedBatch) -> None:
        self.header, self.body = entry.header, bytes(entry.body)
        self.position = entry.key.position


def decoder(job: Job) -> Decode | None:
    """Return what makes text of a job's token ids here; None = nothing of ours does."""
    for roles in job.role_sets:
        own = getattr(roles.processor, "decode", None)
        if callable(own) and type(roles.processor).__module__.startswith(OWN):
            return lambda ids: str(own(list(ids)))
    return None


def shown(copied: Copied, decode: Decode | None) -> dict[str, Any]:
    """Return a batch for the page. It may take a while: a tokenizer is loaded.

    Args:
        copied: The batch.
        decode: Makes text of token ids; None = ids are shown.

    Returns:
        `documents` with `row`, `number` (0 = padding), `tokens` and `text`; for a batch without
        token ids `values` instead, a line for each.
    """
    header = read_header(copied.header)
    values = decode_values(header, copied.body)
    found = documents(values)
    batch: dict[str, Any] = {
        "position": copied.position,
        "lane": header.lane,
        "offset": header.offset,
        "bytes": header.body_bytes,
        "counts": {count.name: count.value for count in header.counts},
        "samples": [[each.source, each.index, each.epoch] for each in header.samples][
            :SHOWN_DOCUMENTS
        ],
    }
    if found is None:
        return {**batch, "values": {name: summary(value) for name, value in values.items()}}
    return {
        **batch,
        "left_out": max(0, len(found) - SHOWN_DOCUMENTS),
        "documents": [
            {
                "row": row,
                "number": number,
                "tokens": len(ids),
                "text": _text(ids[:SHOWN_TOKENS], decode) if number else "",
                "whole": len(ids) <= SHOWN_TOKENS,
            }
            for row, number, ids in found[:SHOWN_DOCUMENTS]
        ],
    }


def _text(ids: Any, decode: Decode | None) -> str:
    if decode is not None:
        with contextlib.suppress(PenstockError):  # no tokenizers here: ids are shown instead
            return ids_text(ids, decode)[:SHOWN_CHARACTERS]
    return " ".join(map(str, ids.tolist()))[:SHOWN_CHARACTERS]
