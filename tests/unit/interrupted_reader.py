# ruff: noqa: D102 - what a Reader does is called what a training loop calls it
"""A reader that is interrupted again and again: `python -m unit.interrupted_reader ADDRESS HOW N`.

It reads as a notebook does: an exception comes out of a call, it is caught, and the next call reads
on. The exceptions come from a signal handler at random times (`signals`), or between two chosen
bytecodes of the main thread (`bytecodes`), which no signal could reach more finely. Or nothing is
raised, and each function that the main thread enters is looked at (`entered`). It prints one JSON
object: what it did, and the first thing that was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dis
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from penstock.client import Loader
from penstock.client.testing import SimulatedDevice
from penstock.wire.errors import UnknownGroup

RETURN_VALUE = dis.opmap["RETURN_VALUE"]
"""No handler runs right before it: what it follows is a store, and not a call."""

STALL_S = 20.0
"""No call of a reader whose node is well takes as long as this."""


HOW_OFTEN = {
    "read": 400,
    "step": 100,
    "total": 40,
    "state": 40,
    "commit": 20,
    "checkpoint": 6,
    "stats": 10,
    "length": 4,
    "seek": 4,
    "load": 4,
    "reopen": 2,
    "begin": 20,
}
"""How often a reader makes which call."""


class Interrupted(BaseException):
    """What Ctrl-C is to a notebook."""


class Wrong(Exception):
    """A position that should not have come, a call that failed or took too long."""


class Signals:
    """Raises in the main thread at random times, but never in the loop of the reader itself.

    There nobody can tell a batch that was given from one that was not.
    """

    def __init__(self, rng: random.Random, longest_s: float) -> None:
        self._rng, self._longest_s = rng, longest_s
        self._armed = False
        self._in_a_row = 0  # a slow machine gets more time with each, so that calls end at last
        self.count = 0
        signal.signal(signal.SIGALRM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            return
        if frame is None or frame.f_globals.get("__name__") == __name__:
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
            return
        self._armed = False
        self.count += 1
        raise Interrupted

    def attempt(self, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Return whether a call was interrupted, and what it returned."""
        self._armed = True
        longest_s = self._longest_s * (1 + self._in_a_row / 10)
        signal.setitimer(signal.ITIMER_REAL, self._rng.uniform(1e-6, longest_s))
        try:
            result = call()
        except Interrupted:
            self._in_a_row += 1
            return True, None
        else:
            self._in_a_row = 0
            return False, result
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class Bytecodes:
    """Raises before the n-th bytecode of a call, n = 1, 2, 3 and so on until a call has no more."""

    def __init__(self, rng: random.Random, stride: int) -> None:
        self._rng, self._stride = rng, stride
        self._left = self._at = 0
        self._next: dict[str, int] = {}
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals.get("__name__") == __name__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] != RETURN_VALUE:
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self.count += 1
                raise Interrupted
        return self._trace

    def attempt(self, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Return whether a call was interrupted, and what it returned."""
        name = getattr(call, "__name__", "call")
        self._left = self._next.get(name, 0) + self._rng.randint(1, self._stride)
        self._next[name] = self._left
        sys.settrace(self._trace)
        try:
            result = call()
        except Interrupted:
            return True, None
        finally:
            sys.settrace(None)
        self._next[name] = 0  # it has no more bytecodes than that: from the first one on again
        return False, result


class Entered:
    """Looks at every function of Python that a call enters on this thread; raises nothing.

    What takes a lock there and is broken off may keep it for ever. `with lock:` over a lock of C is
    safe; a class whose `__enter__` takes one is not.
    """

    LOCKING = ("threading", "logging", "importlib", "grpc", "concurrent")
    """Packages that take locks in code of Python."""

    HARMLESS = frozenset({"threading.Event.__init__", "threading.Condition.__init__"})
    """They take none: what they make is known to nobody else yet."""

    def __init__(self) -> None:
        self.count = 0
        self.taken: dict[str, list[str]] = {}  # by name: from where

    def _enter(self, frame: FrameType, event: str, argument: Any) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event == "call" and module.partition(".")[0] in self.LOCKING:
            name = f"{module}.{frame.f_code.co_qualname}"
            if name not in self.HARMLESS and name not in self.taken:
                self.taken[name] = [
                    f"{above.f_code.co_filename}:{above.f_lineno}" for above in _above(frame)
                ]

    def attempt(self, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Return False, and what a call returned."""
        self.count += 1
        sys.setprofile(self._enter)
        try:
            return False, call()
        finally:
            sys.setprofile(None)

    def check(self) -> None:
        """Refuse what was entered."""
        for name, way in self.taken.items():
            raise Wrong(f"{name} runs on the thread that reads, called by {', '.join(way[:6])}")


def _above(frame: FrameType) -> Iterator[FrameType]:
    above = frame.f_back
    while above is not None:
        yield above
        above = above.f_back


class Reader:
    """Reads with every call that a training loop makes, and holds what comes against what is due.

    Args:
        address: The node.
        rng: Decides which call comes next.
        holds_positions: Batches hold what those of a `ServedNode` hold.
        is_ahead: They are copied to a device ahead of it.
    """

    def __init__(
        self, address: str, rng: random.Random, holds_positions: bool, is_ahead: bool
    ) -> None:
        self._rng, self.due, self.calls = rng, 0, 0
        self._has_begun = False
        self._holds_positions = holds_positions
        self._values: dict[str, Any] = {"as_numpy": True}
        if is_ahead:
            self._values = {"device": SimulatedDevice(tensors=True)}
        self._open(address)

    def _open(self, address: str, **options: Any) -> None:
        self._address = address
        self.loader = Loader(
            address,
            "code",
            group="run",
            attempt=f"attempt {self.calls}",
            rank=0,
            world_size=1,
            batches_per_step=4,
            deadline_s=STALL_S,
            **self._values,
            **options,
        )
        self.batches: Iterator[Any] = iter(self.loader)
        self.steps: Iterator[Any] = self.loader.steps()

    def run(self, source: Any, count: int) -> None:
        """Go on until so many interrupts came."""
        while source.count < count:
            self.calls += 1
            [name] = self._rng.choices(tuple(HOW_OFTEN), tuple(HOW_OFTEN.values()))
            getattr(self, name)(source)

    def attempt(self, source: Any, call: Callable[[], Any]) -> tuple[bool, Any]:
        """Make one call; it ends in time, whether it is interrupted or not."""
        began = time.monotonic()
        found = source.attempt(call)
        if time.monotonic() - began > STALL_S / 2:
            raise Wrong(f"{call} took {time.monotonic() - began:.1f} s")
        return found

    def expect(self, batch: Any) -> None:
        """Take the batch that is due, and no other."""
        if batch.position != self.due:
            raise Wrong(f"position {batch.position} came where {self.due} was due")
        if self._holds_positions and int(batch["input_ids"][0, 0]) != self.due:
            raise Wrong(f"position {self.due} holds {batch['input_ids'][0, 0]}")
        self.due += 1
        self._has_begun = True

    def read(self, source: Any) -> None:
        broken, batch = self.attempt(source, self.batches.__next__)
        if not broken:
            self.expect(batch)

    def step(self, source: Any) -> None:
        """The rest of a step: nothing is skipped, for all of it is taken."""
        broken, step = self.attempt(source, self.steps.__next__)
        if broken:
            return
        if step.index != self.due // 4:
            raise Wrong(f"step {step.index} came where position {self.due} was due")
        micro = iter(step)
        for _ in range(len(step)):
            self.expect(self.settled(source, micro.__next__))

    def total(self, source: Any) -> None:
        """A total is right wherever the step was entered, and gives no batch away."""
        fresh = self.loader.steps()
        if self.due % 4:
            return
        broken, step = self.attempt(source, fresh.__next__)
        if broken:
            return
        broken, total = self.attempt(source, lambda: step.total("tokens"))
        if (
            not broken
            and self._holds_positions
            and total != sum(10 + step.index * 4 + n for n in range(4))
        ):
            raise Wrong(f"the total of step {step.index} is {total}")

    def state(self, source: Any) -> None:
        broken, state = self.attempt(source, self.loader.state_dict)
        if not broken and state["step"] * 4 + state["consumed"] != self.due:
            raise Wrong(f"the state says {state['step']}, {state['consumed']} at {self.due}")

    def commit(self, source: Any) -> None:
        broken, cursor = self.attempt(source, self.loader.commit)
        if not broken and cursor != self.due // 4:
            raise Wrong(f"the cursor is {cursor} at position {self.due}")
        self._has_begun |= not broken

    def checkpoint(self, source: Any) -> None:
        """The group begins with what reads or commits: all of that may have been broken off."""
        try:
            self.attempt(source, lambda: self.loader.checkpoint(f"at-{self.calls}"))
        except UnknownGroup:
            if self._has_begun:
                raise

    def stats(self, source: Any) -> None:
        broken, stats = self.attempt(source, self.loader.stats)
        if not broken and self.due and stats["next_position"] not in (None, self.due):
            raise Wrong(f"stats say {stats['next_position']} at {self.due}")

    def seek(self, source: Any) -> None:
        """Go to a place; repeated until it was done, as one would by hand."""
        target = self.due // 4 + self._rng.randint(-2, 3)
        self.settled(source, lambda: self.loader.seek(max(0, target)))
        self.due = max(0, target) * 4

    def load(self, source: Any) -> None:
        """Go to a state, most often one from within a step."""
        state = self.settled(source, self.loader.state_dict)
        self.settled(source, lambda: self.loader.load_state_dict(state))

    def reopen(self, source: Any) -> None:
        """Close, and go on with another Loader."""
        state = self.settled(source, self.loader.state_dict)
        self.settled(source, self.loader.close)
        self._open(self._address, start="state")
        self.settled(source, lambda: self.loader.load_state_dict(state))

    def settled(self, source: Any, call: Callable[[], Any]) -> Any:
        """Make a call until it was not interrupted; return what it returned."""
        while True:
            broken, result = self.attempt(source, call)
            if not broken:
                return result

    def length(self, source: Any) -> None:
        """An endless job has none; what matters is that asking breaks nothing."""

        def ask() -> None:
            with contextlib.suppress(TypeError):
                len(self.loader)

        self.attempt(source, ask)

    def begin(self, source: Any) -> None:
        self.batches, self.steps = iter(self.loader), self.loader.steps()


def main() -> int:
    """Read; print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("how", choices=("signals", "bytecodes", "entered"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--longest-s", type=float, default=1e-3)
    parser.add_argument("--positions-only", action="store_true")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--ahead", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    source: Any
    if args.how == "signals":
        source = Signals(rng, args.longest_s)
    elif args.how == "bytecodes":
        source = Bytecodes(rng, args.stride)
    else:
        source = Entered()
    reader = Reader(args.address, rng, not args.positions_only, args.ahead)
    wrong = None
    began = time.monotonic()
    try:
        reader.run(source, args.count)
        if isinstance(source, Entered):
            source.check()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    ran_s = time.monotonic() - began
    began = time.monotonic()
    while source.attempt(reader.loader.close)[0]:
        pass
    found = {
        "interrupts": source.count,
        "calls": reader.calls,
        "position": reader.due,
        "wrong": wrong,
        "ran_s": round(ran_s, 3),
        "close_s": round(time.monotonic() - began, 3),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if wrong is None else 1


if __name__ == "__main__":
    sys.exit(main())
