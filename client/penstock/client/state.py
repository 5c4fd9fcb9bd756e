"""What a training checkpoint holds of a Loader: a few integers and who they belong to.

At a step's boundary the state is the same on every rank and loads at any world size. Within a step
it also says how much of the step each rank has consumed, and loads only at the same world size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.wire.errors import BadState

FORMAT = 1


@dataclass(frozen=True)
class State:
    """Where a reader stands.

    Attributes:
        job: The job's name.
        log_id: The log, hex.
        store: The UUID of the server's store.
        group: The group; None = ephemeral.
        batches_per_step: G.
        step: The first step that is not finished.
        consumed: How many of its own batches of that step each rank has consumed; 0 at a boundary.
        world_size: W, within a step; None at a boundary.
    """

    job: str
    log_id: str
    store: str
    group: str | None
    batches_per_step: int
    step: int
    consumed: int = 0
    world_size: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for any format of checkpoints."""
        state: dict[str, Any] = {
            "format": FORMAT,
            "job": self.job,
            "log_id": self.log_id,
            "store": self.store,
            "group": self.group,
            "batches_per_step": self.batches_per_step,
            "step": self.step,
        }
        if self.consumed:
            state |= {"world_size": self.world_size, "consumed": self.consumed}
        return state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> State:
        """Return the state that `to_dict` wrote.

        Raises:
            BadState: It is not one, or of a newer format.
        """
        if not isinstance(state, Mapping) or "format" not in state:
            raise BadState(
                f"this is no state of a penstock Loader ({_short(state)}): pass what state_dict() "
                f"gave"
            )
        if state["format"] != FORMAT:
            raise BadState(
                f"the state has format {state['format']!r} and this penstock reads {FORMAT}: load "
                f"it "
                "with the version that wrote it",
                format=state["format"],
            )
        found = cls(
            job=_field(state, "job", str),
            log_id=_field(state, "log_id", str),
            store=_field(state, "store", str),
            group=None if state.get("group") is None else _field(state, "group", str),
            batches_per_step=_field(state, "batches_per_step", int),
            step=_field(state, "step", int),
            consumed=_field(state, "consumed", int) if "consumed" in state else 0,
            world_size=_field(state, "world_size", int) if "consumed" in state else None,
        )
        if found.step < 0 or found.batches_per_step < 1 or found.consumed < 0:
            raise BadState(f"the state holds numbers that cannot be: {_short(state)}")
        return found

    def check_world_size(self, world_size: int) -> None:
        """Refuse a state from within a step at another world size.

        Raises:
            BadState: Names the nearest steps, which load at any world size.
        """
        if self.consumed and self.world_size != world_size:
            raise BadState(
                f"the state was taken within step {self.step}, after {self.consumed} of each "
                f"rank's "
                f"batches, by {self.world_size} ranks, and there are {world_size} now: load it "
                f"with "
                f"{self.world_size} ranks, or go to the nearest boundary with "
                f"seek(step={self.step}) or seek(step={self.step + 1})",
                step=self.step,
                consumed=self.consumed,
                world_size=self.world_size,
            )


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


__all__ = ["FORMAT", "State"]
