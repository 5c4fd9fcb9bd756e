"""What a role holds, as canonical JSON-able values: any batcher is restored exactly, unasked.

The state of an object is its instance attributes other than its constructor's parameters, as
far as they are plain: None, bool, int, float, str, `SampleRef`, `ItemRef`, `Span`, and lists,
tuples, deques and dicts of these. Anything else is refused by its name: a state must be the same
bytes on every node. So is what would come back as something else: an attribute that bears a
parameter's name and has changed since the constructor, and one list or dict that is held twice.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from penstock.server.core.refs import ItemRef, SampleRef, Span
from penstock.wire.errors import InvalidJob

TOLD = "_penstock_"
"""How attributes begin that a job gives to a role, beside its parameters: they are no state."""

_FRESH = f"{TOLD}fresh"
"""Where a role keeps the attributes of a fresh one that bear names of parameters."""

_Seen = dict[int, str]
"""Where each list, deque and dict was met, by its id."""


def _attributes(role: Any) -> list[tuple[str, Any]]:
    """Return the attributes that are state: those that are no parameter of the constructor."""
    given = {"arguments", *_parameters(type(role))}
    return sorted(
        (
            (name, value)
            for name, value in _held(role).items()
            if name not in given and not name.startswith(TOLD)
        ),
        key=lambda pair: pair[0],
    )


_signature = cache(inspect.signature)  # asked for at every batch


def _parameters(cls: type[Any]) -> tuple[str, ...]:
    return tuple(_signature(cls.__init__).parameters)


def _held(role: Any) -> dict[str, Any]:
    """Return all attributes of an instance, those in `__slots__` included."""
    held = dict(getattr(role, "__dict__", {}))
    cls: Any = type(role)
    for stored in _slots(cls):
        if hasattr(role, stored):
            held[stored] = getattr(role, stored)
    return held


@cache
def _slots(cls: Any) -> tuple[str, ...]:
    """Return the names under which the classes of an object keep what is in their `__slots__`."""
    found: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            stored = f"_{base.__name__.lstrip('_')}{name}" if hidden else name
            if stored not in ("__dict__", "__weakref__"):
                found.append(stored)
    return tuple(found)


def capture(role: Any) -> dict[str, Any]:
    """Return the state of `role`.

    Raises:
        InvalidJob: An attribute holds what cannot be in a snapshot, or what would not be the same
            after one; names it.
    """
    _check_parameters(role)
    _check_class(type(role))
    seen: _Seen = {}
    return {
        name: _encode(value, f"{type(role).__name__}.{name}", seen)
        for name, value in _attributes(role)
    }


def _check_parameters(role: Any) -> None:
    """Refuse an attribute of a parameter's name that is not what the constructor makes of it."""
    held = _held(role)
    fresh = held.get(_FRESH)
    if fresh is None:
        made = _held(role.clone())
        fresh = {name: made[name] for name in _parameters(type(role)) if name in made}
        object.__setattr__(role, _FRESH, fresh)
    for name in _parameters(type(role)):
        if (name in held) != (name in fresh) or (
            name in held and not _same(held[name], fresh[name])
        ):
            where = f"{type(role).__name__}.{name}"
            raise InvalidJob(
                f"{where} has changed since the constructor, and is taken for its parameter "
                f"{name!r}, which no snapshot holds: keep what changes in an attribute of another "
                "name",
                attribute=where,
            )


def _check_class(cls: type) -> None:
    """Refuse samples that are held by the class: all lanes would share them, and no snapshot."""
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, list | dict | deque) and next(_refs(value), None) is not None:
                raise InvalidJob(
                    f"{base.__name__}.{name} belongs to the class and holds samples, so that all "
                    "lanes share them: make it in the constructor, as self." + name,
                    attribute=f"{base.__name__}.{name}",
                )


def _same(ours: Any, fresh: Any, depth: int = 0) -> bool:
    """Tell whether two values are alike, as far as that can be seen from outside."""
    if ours is fresh:
        return True
    if type(ours) is not type(fresh):
        return False
    if isinstance(ours, list | tuple | deque):
        return len(ours) == len(fresh) and all(
            _same(own, other, depth + 1) for own, other in zip(ours, fresh, strict=True)
        )
    if isinstance(ours, dict):
        return list(ours) == list(fresh) and all(
            _same(value, fresh[name], depth + 1) for name, value in ours.items()
        )
    if isinstance(ours, np.ndarray):
        return np.array_equal(ours, fresh, equal_nan=ours.dtype.kind in "fc")
    if isinstance(ours, float):
        return repr(ours) == repr(fresh)  # NaN is itself
    if hasattr(ours, "__array__"):
        return np.array_equal(np.asarray(ours), np.asarray(fresh))
    if _compares(type(ours)):
        return bool(ours == fresh)
    if isinstance(ours, Iterator):
        return False  # it keeps its state where nobody can see it
    if depth < 5:
        return _same(_held(ours), _held(fresh), depth + 1)
    return True  # a function, a library's object: it says nothing of what is in it


def restore(role: Any, state: dict[str, Any]) -> None:
    """Give `role` back what `capture` took."""
    for name, value in state.items():
        setattr(role, name, _decode(value))


def _compares(cls: Any) -> bool:
    return cls.__eq__ is not object.__eq__


def find_refs(role: Any) -> list[SampleRef]:
    """Return every `SampleRef` that `role` holds in its attributes."""
    return [ref for _, value in _attributes(role) for ref in _refs(value)]


def _refs(value: Any) -> Iterator[SampleRef]:
    if isinstance(value, SampleRef):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _refs(inner)
    elif isinstance(value, (list, tuple, deque)):
        for inner in value:
            yield from _refs(inner)


def _encode(value: Any, where: str, seen: _Seen) -> Any:
    if value is None or type(value) in (bool, str, int, float):
        return value
    if isinstance(value, SampleRef):
        return {"ref": value.to_json()}
    if isinstance(value, ItemRef):
        return {"item": list(value)}
    if isinstance(value, Span):
        return {"span": list(value)}
    if type(value) is tuple:
        return {"tuple": [_encode(inner, where, seen) for inner in value]}
    if type(value) in (list, deque, dict):
        return _encode_container(value, where, seen)
    raise InvalidJob(
        f"{where} is of type {type(value).__name__}, which cannot be part of a snapshot: keep "
        "numbers, strings, lists, dicts and refs, or override state() and restore()",
        attribute=where,
    )


def _encode_container(value: Any, where: str, seen: _Seen) -> Any:
    before = seen.get(id(value))
    seen[id(value)] = where
    if before is not None:
        raise InvalidJob(
            f"{before} and {where} hold one and the same {type(value).__name__}, and after a "
            "snapshot they would be two: keep it in one place, or copy it",
            attribute=where,
        )
    if type(value) is list:
        return [_encode(inner, where, seen) for inner in value]
    if type(value) is deque:
        return {"deque": [_encode(inner, where, seen) for inner in value], "maxlen": value.maxlen}
    return {"dict": [[_encode(k, where, seen), _encode(v, where, seen)] for k, v in value.items()]}


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
