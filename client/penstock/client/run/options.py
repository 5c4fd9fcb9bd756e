"""The arguments of a Loader as one value: refused early, with the value and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.client.calls.node_address import Address
from penstock.client.run.ranks import Ranks
from penstock.client.values.arrival import steps_of
from penstock.common.checks import (
    as_integer,
    choice_argument,
    count_argument,
    flag_argument,
    name_argument,
    seconds_argument,
)
from penstock.common.resources import usable_memory_bytes
from penstock.wire.errors import InvalidRequest
from penstock.wire.order import MAX_POSITION

MAX_BODY_BYTES = 4 << 30

PREFETCH_BYTES = 512 << 20
"""Four batches of 128 MB; a larger `prefetch` of small batches stays below this, too."""


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
        pinned_bytes: The most bytes of the host's memory that are pinned for a CUDA device. Of them
            the Loader takes room for eight of the largest batch, and 16 MiB at least; what a node
            on this host lends is pinned where it lies, in arenas of 64 MiB or more, if they fit as
            well, and else copied once more. `None` takes at most a sixteenth of the memory that
            there is for each process of the run on this host. Raise it if the log says that lent
            batches are copied; lower it if other processes need the memory.

    Raises:
        InvalidRequest: A value is not a whole number of at least 1, or more is to be pinned than
            this host has.
    """

    prefetch_bytes: int = PREFETCH_BYTES
    max_body_bytes: int = MAX_BODY_BYTES
    device_batches: int = 2
    pinned_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("prefetch_bytes", "max_body_bytes", "device_batches"):
            object.__setattr__(self, name, count_argument(name, getattr(self, name)))
        if self.pinned_bytes is not None:
            pinned = count_argument("pinned_bytes", self.pinned_bytes)
            if pinned > (usable := usable_memory_bytes()):
                _refuse(
                    f"pinned_bytes={pinned}: this host, or its container, has {usable} bytes of "
                    "memory, and what is pinned stays there: pass a small part of that, or leave "
                    "it out"
                )
            object.__setattr__(self, "pinned_bytes", pinned)


LIMITS = Limits()


@dataclass(frozen=True)
class Options:
    """What a Loader was given; see there for what each means.

    Raises:
        InvalidRequest: Names the argument that cannot be, or the two that do not go together, and
            what to pass instead.
    """

    address: Address
    job: str
    group: str | None
    batches_per_step: int | None
    ranks: Ranks
    start: str | int
    mode: str
    device: Any
    memory: str
    arrive: Any
    attempt: str | None
    prefetch: int | None
    limits: Limits
    deadline_s: float
    tail: str
    uneven: str
    meta: bool
    max_steps: int | None
    as_numpy: bool | None
    metrics: Any

    def __post_init__(self) -> None:
        choice_argument("mode", self.mode, ("stream", "eval"))
        choice_argument("tail", self.tail, ("pad", "drop"))
        choice_argument("uneven", self.uneven, ("error", "fill"))
        choice_argument("memory", self.memory, ("auto", "torch", "cupy", "plain"))
        self._keep("start", self._start())
        for name in ("batches_per_step", "prefetch", "max_steps"):
            value = getattr(self, name)
            if value is not None:
                self._keep(name, count_argument(name, value))
        for name, cls in (("ranks", Ranks), ("limits", Limits)):
            if not isinstance(getattr(self, name), cls):
                _refuse(f"{name}={getattr(self, name)!r}: pass {cls.__name__}(...)")
        self._keep("deadline_s", seconds_argument("deadline_s", self.deadline_s))
        if not self.job or not isinstance(self.job, str):
            _refuse(f"job={self.job!r}: pass the name of a job of the server")
        if self.group is not None:
            name_argument("group", self.group, "None for an ephemeral reader")
        if self.attempt is not None:
            name_argument("attempt", self.attempt, "leave it out")
        flag_argument("meta", self.meta)
        if self.as_numpy is not None:
            flag_argument("as_numpy", self.as_numpy)
        steps_of(self.arrive)
        if self.metrics is not None and not callable(getattr(self.metrics, "register", None)):
            _refuse(
                f"metrics={self.metrics!r}: pass a CollectorRegistry of prometheus_client, such as "
                "prometheus_client.REGISTRY"
            )
        self._check_eval()

    def _keep(self, name: str, value: Any) -> None:
        """Keep an argument as what it stands for: 64 for 64.0, or an integer of NumPy."""
        object.__setattr__(self, name, value)

    @property
    def tail_pad(self) -> bool:
        """Whether the last step of a finite job is filled."""
        return self.tail == "pad"

    @property
    def fills_uneven(self) -> bool:
        """Whether ranks that get fewer batches of a step than others get fillers."""
        return self.uneven == "fill"

    @property
    def is_eval(self) -> bool:
        """Whether every iter() is one whole pass."""
        return self.mode == "eval"

    def cut(self, steps: int | None) -> int | None:
        """Return how many of a pass's steps are read; None = all of an endless one."""
        if steps is None or self.max_steps is None:
            return self.max_steps if steps is None else steps
        return min(steps, self.max_steps)

    def _start(self) -> str | int:
        start: Any = self.start
        if isinstance(start, str) and start in ("cursor", "state"):
            return start
        number = as_integer(start)
        if number is None or not 0 <= number <= MAX_POSITION:
            _refuse(f'start={start!r}: use "cursor", "state" or a step from 0 to {MAX_POSITION}')
        return number

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
