"""What is done with the values of each batch as they arrive, in order: `Loader(arrive=)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from penstock.wire.errors import InvalidRequest
from penstock.wire.frame import Entries


class ArrivalStep(NamedTuple):
    """One thing that is done.

    Attributes:
        name: Of the value that it is done with; None = with the whole batch, a dict of values.
        transform: Returns the value, or the values, in its place.
    """

    name: str | None
    transform: Callable[[Any], Any]


def steps_of(arrive: Any) -> tuple[ArrivalStep, ...]:
    """Return what `Loader(arrive=)` asks for.

    Args:
        arrive: None; transforms by the names of values; a function of a whole batch; or a list of
            these.

    Raises:
        InvalidRequest: It is none of these.
    """
    if arrive is None:
        return ()
    if isinstance(arrive, Mapping):
        for name, transform in arrive.items():
            if not isinstance(name, str) or not callable(transform):
                _refuse(
                    f"arrive={{{name!r}: {transform!r}}}: pass the name of a value, and a function "
                    "of it such as Cast('int64')"
                )
        return tuple(ArrivalStep(name, transform) for name, transform in arrive.items())
    if callable(arrive):
        return (ArrivalStep(None, arrive),)
    if isinstance(arrive, Sequence) and not isinstance(arrive, (str, bytes)):
        return tuple(step for part in arrive for step in steps_of(part))
    _refuse(
        f"arrive={arrive!r}: pass a dict of functions by the names of values, a function of a "
        "whole batch, or a list of these"
    )


class Arrival:
    """Makes what the loop gets of what has come: integer labels as int64, then what was asked for.

    Args:
        steps: What was asked for.
    """

    def __init__(self, steps: tuple[ArrivalStep, ...] = ()) -> None:
        self._steps = steps

    def is_due(self, values: Mapping[str, Any]) -> bool:
        """Tell whether there is anything to do with the values of a batch."""
        return bool(self._steps) or _is_narrow(values.get(LABELS))

    def apply(
        self,
        values: dict[str, Any],
        entries: Entries,
        widen: Callable[[Any], Any],
        *,
        on_device: bool,
    ) -> dict[str, Any]:
        """Return the values of a batch that the loop gets.

        Args:
            values: As they came; changed in place.
            entries: What the header says of them.
            widen: Makes an int64 of an array or a tensor.
            on_device: Values whose place is the device lie there, and others do not.

        Raises:
            InvalidRequest: A value that is asked for is not there, or lies on the host while others
                do not; or a transform has returned nothing.
            Exception: What a transform raises.
        """
        if LABELS in values:
            values[LABELS] = _widened(values[LABELS], widen)
        host = {entry.name for entry in entries if entry.is_host} if on_device else frozenset()
        for name, transform in self._steps:
            if name is None:
                values = self._whole(transform, values)
                continue
            if name not in values:
                _refuse(
                    f"arrive={{{name!r}: ...}}: this batch has no such value, but "
                    f"{', '.join(map(repr, values)) or 'none'}: take one of these, or pass a "
                    "function of the whole batch for one that comes now and then"
                )
            if name in host:
                _refuse(
                    f"arrive={{{name!r}: ...}}: the job keeps this value on the host, for the loop "
                    "to read: change it in the loop, or have the collator place it on the device"
                )
            found = transform(values[name])
            if found is None and values[name] is not None:
                _refuse(f"arrive={{{name!r}: {transform!r}}} returned None: return the value")
            values[name] = found
        return values

    def _whole(self, transform: Callable[[Any], Any], values: dict[str, Any]) -> dict[str, Any]:
        found = transform(values)
        if not isinstance(found, Mapping):
            _refuse(
                f"arrive={transform!r} returned a {type(found).__name__}: return a dict of all "
                "values of the batch"
            )
        return dict(found)


LABELS = "labels"
"""The name under which trainers and losses look for the targets: losses take int64 alone, and a job
may send int32 to halve its bytes. Tensors of other dtypes, and values of other names, are kept."""

NARROW = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"})
"""Dtypes whose every value int64 holds too."""


def _widened(value: Any, widen: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_widened(inner, widen) for inner in value]
    return widen(value) if _is_narrow(value) else value


def _is_narrow(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_narrow, value))
    # "int32" of NumPy, "torch.int32" of torch; what is not a tensor has no dtype.
    return str(getattr(value, "dtype", "")).removeprefix("torch.") in NARROW


def _refuse(sentence: str) -> NoReturn:
    raise InvalidRequest(sentence)
