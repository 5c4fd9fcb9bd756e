"""What a training checkpoint holds about a Loader: a few integers, and what they belong to.

At a step's boundary the state is the same on every rank and loads at any world size. Within a step
it also says how much of the step each rank has consumed, and loads only at the same world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.wire.errors import BadState, JobChanged, OtherStore
from penstock.wire.order import MAX_POSITION

FORMAT = 1


@dataclass(frozen=True)
class LoaderState:
    """Where a reader stands.

    Attributes:
        job: The job's name.
        timeline: The logs of the run, hex, each with the first step that is read from it. One
            today: a run that goes on in a changed job would have several.
        store: The UUID of the server's store.
        group: The group; None = ephemeral.
        batches_per_step: G.
        step: The first step that is not finished.
        consumed: How many of its own batches of that step each rank has consumed; 0 at a boundary.
        world_size: W; it matters within a step only.
    """

    job: str
    timeline: tuple[tuple[int, str], ...]
    store: str
    group: str | None
    batches_per_step: int
    step: int
    consumed: int = 0
    world_size: int = 1

    @property
    def log_id(self) -> str:
        """Return the log that is read at `step`, hex."""
        return self.timeline[-1][1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for any format of checkpoints."""
        return {
            "format": FORMAT,
            "job": self.job,
            "log_id": self.log_id,
            "timeline": [list(entry) for entry in self.timeline],
            "store": self.store,
            "group": self.group,
            "batches_per_step": self.batches_per_step,
            "step": self.step,
            # Always there: torch.distributed.checkpoint loads only keys that a fresh Loader has.
            "consumed": self.consumed,
            "world_size": self.world_size,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> LoaderState:
        """Return the state that `to_dict` wrote.

        Raises:
            BadState: It is not a state, or has a newer format.
        """
        if not isinstance(state, Mapping) or "format" not in state:
            raise BadState(
                f"this is not a state of a penstock Loader ({_short(state)}): pass what "
                "state_dict() gave"
            )
        if state["format"] != FORMAT:
            raise BadState(
                f"the state has format {state['format']!r} and this penstock reads {FORMAT}: load "
                "it with the version that wrote it",
                format=state["format"],
            )
        found = cls(
            job=_field(state, "job", str),
            timeline=_timeline(state),
            store=_field(state, "store", str),
            group=None if state.get("group") is None else _field(state, "group", str),
            batches_per_step=_field(state, "batches_per_step", int),
            step=_field(state, "step", int),
            consumed=_field(state, "consumed", int),
            world_size=_field(state, "world_size", int),
        )
        if wrong := found._impossible():
            raise BadState(
                f"the state holds impossible numbers: {wrong}; it was changed or damaged, so "
                "load another one, or go to a step with seek(step=)",
                step=found.step,
                consumed=found.consumed,
                world_size=found.world_size,
            )
        return found

    def _impossible(self) -> str:
        """Return, in words, what in the state no Loader writes; empty = nothing."""
        size, world = self.batches_per_step, self.world_size
        if size < 1 or not 0 <= self.step <= MAX_POSITION // size:
            return f"step {self.step} of {size} batches each"
        if world < 1:
            return f"steps of {size} batches, read by {world} ranks"
        each = -(-size // world)
        if not 0 <= self.consumed < each:
            return f"{self.consumed} consumed of a step in which each of {world} ranks has {each}"
        return ""

    def check_loadable(self, job: str, batches_per_step: int | None, world_size: int) -> None:
        """Refuse a state that is not for this reader.

        Args:
            job: The job that is read.
            batches_per_step: As the Loader was given it; None = it was not.
            world_size: How many ranks read.

        Raises:
            BadState: Another job or step size; or it was taken within a step at another world size:
                the error then names the nearest steps, which load at any.
        """
        if self.job != job:
            raise BadState(
                f"the state is of job {self.job!r} and this Loader reads {job!r}: load it into the "
                "Loader of its job",
                job=self.job,
            )
        if batches_per_step is not None and batches_per_step != self.batches_per_step:
            raise BadState(
                f"the state counts steps of {self.batches_per_step} batches and this Loader was "
                f"given batches_per_step={batches_per_step}: leave it out, or start a new group at "
                "the right step",
                batches_per_step=self.batches_per_step,
            )
        if self.consumed and self.world_size != world_size:
            raise BadState(
                f"the state was taken within step {self.step}, after {self.consumed} of each "
                f"rank's batches, by {self.world_size} ranks, and there are {world_size} now: load "
                f"it with {self.world_size} ranks, or go to the nearest boundary with "
                f"seek(step={self.step}) or seek(step={self.step + 1})",
                step=self.step,
                consumed=self.consumed,
                world_size=self.world_size,
            )

    def check_log(self, log_id: str) -> None:
        """Refuse a state of another log.

        Raises:
            JobChanged: The job is another log now.
        """
        if self.log_id != log_id:
            raise JobChanged(
                f"the state is of log {self.log_id[:12]} of job {self.job!r}, and the server has "
                f"{log_id[:12]} now: serve the job as it was, or start a new group at start=0",
                log_id=log_id,
                expected=self.log_id,
            )

    def check_store(self, store: str, *, start_is_given: bool) -> None:
        """Refuse a state of another store, unless the caller named a step to start at.

        Raises:
            OtherStore: It is another store: an empty one must not look like a fresh start.
        """
        if self.store != store and not start_is_given:
            raise OtherStore(
                f"the state comes from store {self.store}, and the server has store {store}: give "
                "the server its store back, or say with start=<step> that this one is to be used "
                f"(the state stands at step {self.step})",
                expected=self.store,
                store=store,
            )


def _timeline(state: Mapping[str, Any]) -> tuple[tuple[int, str], ...]:
    """Return the timeline of a state; one that has none is of a run that began with its log.

    Raises:
        BadState: It is none, or has several logs, or another one than the state.
    """
    log_id = _field(state, "log_id", str)
    found = state.get("timeline", [[0, log_id]])
    entries = list(found) if isinstance(found, list | tuple) else []
    if len(entries) > 1:
        raise BadState(
            f"the state is of a run that has read {len(entries)} logs, one after the other, and "
            "this penstock goes on in runs of one: load it with the version that wrote it",
            field="timeline",
        )
    if [list(entry) if isinstance(entry, tuple) else entry for entry in entries] != [[0, log_id]]:
        raise BadState(
            f"the state's 'timeline' is {_short(found)}, and its log is {log_id[:12]} from step 0 "
            "on: pass what state_dict() gave",
            field="timeline",
        )
    return ((0, log_id),)


def _field(state: Mapping[str, Any], name: str, kind: type) -> Any:
    value = state.get(name)
    if isinstance(value, bool) or not isinstance(value, kind):
        raise BadState(
            f"the state's {name!r} is {value!r}, not {'text' if kind is str else 'an integer'}: "
            "pass what state_dict() gave",
            field=name,
        )
    return value


def _short(state: Any) -> str:
    text = repr(state)
    return text if len(text) <= 120 else text[:117] + "..."
