"""What a role holds, as canonical JSON-able values: any batcher is restored exactly, unasked.

The state of an object is its instance attributes other than its constructor's parameters, as
far as they are plain: None, bool, int, float, str, `SampleRef`, `ItemRef`, `Span`, and lists,
tuples, deques and dicts of these. Anything else is refused by its name: a state must be the same
bytes on every node.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import Any

from penstock.server.core.refs import ItemRef, SampleRef, Span
from penstock.wire.errors import InvalidJob


def _attributes(role: Any) -> list[tuple[str, Any]]:
    """Return the attributes that are state: those that are no parameter of the constructor."""
    given = {"arguments", *inspect.signature(type(role).__init__).parameters}
    return sorted(
        ((name, value) for name, value in vars(role).items() if name not in given),
        key=lambda pair: pair[0],
    )


def capture(role: Any) -> dict[str, Any]:
    """Return the state of `role`.

    Raises:
        InvalidJob: An attribute holds what cannot be in a snapshot.
    """
    return {
        name: _encode(value, f"{type(role).__name__}.{name}") for name, value in _attributes(role)
    }


def restore(role: Any, state: dict[str, Any]) -> None:
    """Give `role` back what `capture` took."""
    for name, value in state.items():
        setattr(role, name, _decode(value))


def find_refs(role: Any) -> list[SampleRef]:
    """Return every `SampleRef` that `role` holds in its attributes."""
    found: list[SampleRef] = []

    def walk(value: Any) -> None:
        if isinstance(value, SampleRef):
            found.append(value)
        elif isinstance(value, dict):
            for inner in value.values():
                walk(inner)
        elif isinstance(value, (list, tuple, deque)):
            for inner in value:
                walk(inner)

    for _, value in _attributes(role):
        walk(value)
    return found


def _encode(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) in (int, float):
        return value
    if isinstance(value, SampleRef):
        return {"ref": value.to_json()}
    if isinstance(value, ItemRef):
        return {"item": list(value)}
    if isinstance(value, Span):
        return {"span": list(value)}
    if isinstance(value, list):
        return [_encode(inner, where) for inner in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(inner, where) for inner in value]}
    if isinstance(value, deque):
        return {"deque": [_encode(inner, where) for inner in value], "maxlen": value.maxlen}
    if isinstance(value, dict):
        return {"dict": [[_encode(k, where), _encode(v, where)] for k, v in value.items()]}
    raise InvalidJob(
        f"{where} holds a {type(value).__name__}, which cannot be part of a snapshot: keep "
        "numbers, strings, lists, dicts and refs, or override state() and restore()",
        attribute=where,
    )


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if "ref" in value:
        return SampleRef.from_json(value["ref"])
    if "item" in value:
        return ItemRef(*value["item"])
    if "span" in value:
        return Span(*value["span"])
    if "tuple" in value:
        return tuple(_decode(inner) for inner in value["tuple"])
    if "deque" in value:
        return deque((_decode(inner) for inner in value["deque"]), maxlen=value["maxlen"])
    return {_decode(k): _decode(v) for k, v in value["dict"]}


__all__ = ["capture", "find_refs", "restore"]
