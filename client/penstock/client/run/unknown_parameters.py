"""Parameters that a Loader has not: where that is said instead, or what was meant."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from penstock.common.elsewhere import ELSEWHERE
from penstock.common.nearest import hint
from penstock.wire.errors import InvalidRequest

OF_JOBS = frozenset(
    (
        *("seed", "lanes", "epochs", "source", "sources", "distributor", "processor", "function"),
        *("batcher", "collator", "on_item_error", "plan", "joint"),
        *("files", "columns", "column", "tokenizer", "max_tokens", "pad_to", "sample_ratio"),
    )
)
"""Keys of a job file, of a job or of its roles, that somebody may pass to a Loader."""

OF_NODES = frozenset(("ready_bytes", "store", "listen"))
"""Keys of a node."""


def refuse_unknown(given: Mapping[str, Any], signature: inspect.Signature) -> NoReturn:
    """Refuse the first of some parameters that a Loader has not.

    Args:
        given: Those that were passed beside the known ones; at least one.
        signature: The Loader's.

    Raises:
        InvalidRequest: Always; says where to write it instead, or which name is near.
    """
    name, value = next(iter(given.items()))
    known = [each.name for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    raise InvalidRequest(
        f"Loader has no parameter {name}: {_remedy(name, known)}", field=name, value=repr(value)
    )


def _remedy(name: str, known: Collection[str]) -> str:
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if name in OF_NODES:
        return (
            f"it is a key of the node: write {name}: ... below server: in the job file, or "
            f"penstockd serve --{name.replace('_', '-')}"
        )
    if name in OF_JOBS:
        return (
            f"{name}: is a key of the job file, which decides content and order for all readers "
            "alike"
        )
    return hint(name, known)
