"""The arguments of a Loader as one value: refused early, with the value and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, NoReturn

from penstock.client.run.ranks import Ranks
from penstock.wire.errors import InvalidRequest
from penstock.wire.order import MAX_POSITION
from penstock.wire.transport import Transport

MAX_BODY_BYTES = 4 << 30

PREFETCH_BYTES = 512 << 20
"""Four batches of 128 MB; a larger `prefetch` of small batches stays below this, too."""


def _check_count(name: str, value: Any) -> None:
    """Refuse what is not a whole number from 1 to `MAX_POSITION`; one of NumPy is, or 64.0."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value // 1 or value < 1:
        _refuse(f"{name}={value!r}: use an integer of at least 1")
    if value > MAX_POSITION:
        _refuse(f"{name}={value!r}: use an integer of at most {MAX_POSITION}")


def _refuse(sentence: str) -> NoReturn:
    raise InvalidRequest(sentence)


@dataclass(frozen=True)
class Limits:
    """How much memory a Loader may take for batches.

    Args:
        prefetch_bytes: The most bytes of the batches that are ready beyond the one in use; the next
            batch comes whatever its size, so at most this and one batch are held. Where batches are
            large, fewer than `prefetch` are fetched ahead. Raise it if such a run waits for data
            while the host has memory left.
        max_body_bytes: The most bytes of one batch; a node that announces a larger one is refused
            before memory is taken for it. It guards against a wrong node; raise it only for larger
            batches.
        device_batches: How many batches may be on a CUDA device beyond the one in use; they are
            copied there while the loop works. Each takes its bytes of the device's memory. 1 hides
            the copy if batches come in time; the second bridges one that comes late. Take 1 if the
            device has no memory to spare.

    Raises:
        InvalidRequest: A value is not a whole number of at least 1.
    """

    prefetch_bytes: int = PREFETCH_BYTES
    max_body_bytes: int = MAX_BODY_BYTES
    device_batches: int = 2

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "max_body_bytes", "device_batches"):
            _check_count(name, getattr(self, name))


LIMITS = Limits()


@dataclass(frozen=True)
class Options:
    """What a Loader was given; see there for what each means.

    Raises:
        InvalidRequest: Names the argument that cannot be, or the two that do not go together, and
            what to pass instead.
    """

    target: str | Sequence[str] | Transport
    job: str
    group: str | None
    batches_per_step: int | None
    ranks: Ranks
    start: str | int
    mode: str
    device: Any
    attempt: str | None
    prefetch: int | None
    limits: Limits
    deadline_s: float
    tail: str
    meta: bool
    max_steps: int | None
    as_numpy: bool | None

    def __post_init__(self) -> None:
        for name, choices in (("mode", ("stream", "eval")), ("tail", ("pad", "drop"))):
            if getattr(self, name) not in choices:
                _refuse(f"{name}={getattr(self, name)!r}: use {' or '.join(map(repr, choices))}")
        self._check_start()
        for name in ("batches_per_step", "prefetch", "max_steps"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name, cls in (("ranks", Ranks), ("limits", Limits)):
            if not isinstance(getattr(self, name), cls):
                _refuse(f"{name}={getattr(self, name)!r}: pass {cls.__name__}(...)")
        seconds = self.deadline_s
        if isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) > 0:
            _refuse(f"deadline_s={seconds!r}: use seconds above 0")
        if not self.job or not isinstance(self.job, str):
            _refuse(f"job={self.job!r}: pass the name of a job of the server")
        self._check_name("group", "None for an ephemeral reader")
        self._check_name("attempt", "leave it out")
        self._check_eval()

    @property
    def tail_pad(self) -> bool:
        """Whether the last step of a finite job is filled."""
        return self.tail == "pad"

    @property
    def is_eval(self) -> bool:
        """Whether every iter() is one whole pass."""
        return self.mode == "eval"

    def _check_start(self) -> None:
        start = self.start
        if start not in ("cursor", "state") and (
            isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= MAX_POSITION
        ):
            _refuse(f'start={start!r}: use "cursor", "state" or a step from 0 to {MAX_POSITION}')

    def _check_name(self, name: str, otherwise: str) -> None:
        value = getattr(self, name)
        # What cannot be printed cannot be typed again, and half a surrogate pair cannot be sent.
        if value is not None and not (isinstance(value, str) and value and value.isprintable()):
            _refuse(f"{name}={value!r}: pass a name of printable characters, or {otherwise}")

    def _check_eval(self) -> None:
        if self.is_eval:
            if self.group is not None:
                _refuse(f'group={self.group!r}: mode="eval" is ephemeral; leave group out')
            if self.start not in ("cursor", 0):
                _refuse(
                    f'start={self.start!r}: with mode="eval" every pass starts at step 0; '
                    "leave it out"
                )
        elif self.max_steps is not None:
            _refuse(f'max_steps={self.max_steps}: it cuts passes of mode="eval"; leave it out')


def one_rank(rank: int | None, world_size: int | None, mesh: Any, ranks: Ranks | None) -> Ranks:
    """Return what was said of the rank, by three arguments or by one.

    Raises:
        InvalidRequest: By both.
    """
    given = {"rank": rank, "world_size": world_size, "mesh": mesh}
    if ranks is None:
        return Ranks(**given)
    twice = [f"{name}=" for name, value in given.items() if value is not None]
    if twice:
        _refuse(f"{', '.join(twice)} beside ranks=: pass it in Ranks(...) instead")
    return ranks


def check_step(call: str, step: int) -> int:
    """Return a step, or a position, as the integer that it is.

    Args:
        call: What was called, for the message.
        step: What was given.

    Raises:
        InvalidRequest: It is not an integer, or out of range.
    """
    try:
        number = index(step)
    except TypeError:
        raise InvalidRequest(
            f"{call}({step!r}): pass an integer", field="step", value=repr(step)
        ) from None
    if not 0 <= number <= MAX_POSITION:
        raise InvalidRequest(
            f"{call}({number}): steps and positions go from 0 to {MAX_POSITION}",
            field="step",
            value=number,
        )
    return number


__all__ = ["LIMITS", "Limits", "Options", "check_step", "one_rank"]
