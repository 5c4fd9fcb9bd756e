"""The token of an attempt: all ranks of one start of a run have it, and no other start has."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from penstock.client.run.ranks import WorldRank, torch_distributed
from penstock.wire.attempt_names import moves_between
from penstock.wire.errors import InvalidRequest

# Restart counts alone would be wrong: they begin at 0 again with every submission, and a changed
# membership does not raise them. So every variable that differs between two starts is part of it.
_TORCHRUN = (
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "WORLD_SIZE",
)
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NTASKS")


def attempt_token(
    attempt: str | None, world_rank: WorldRank, environ: Mapping[str, str] | None = None
) -> str:
    """Return the token that all ranks of this attempt present.

    In this order: `attempt`; drawn here where this is the only rank; drawn by rank 0 and broadcast
    by torch.distributed (a collective: every process makes this call); torchrun's variables, if
    its run id is set; SLURM's.

    Raises:
        InvalidRequest: Several ranks and nothing that they share; an empty or overlong `attempt`.
    """
    if attempt is not None:
        if not 0 < len(attempt) <= 200:
            raise InvalidRequest(
                f"attempt= has {len(attempt)} characters: pass 1 to 200, the same on all ranks and "
                "another for every start of the run"
            )
        if moves_between(attempt.rpartition("#")[0], attempt) is not None:
            raise InvalidRequest(
                f"attempt={attempt!r} ends like the name of an attempt that has moved: leave '#' "
                "and the number out"
            )
        return attempt
    dist = torch_distributed()
    if dist is not None and world_rank.source != "arguments":
        drawn: list[str | None] = [uuid.uuid4().hex if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(drawn, src=0)
        return str(drawn[0])
    if world_rank.world_size == 1:
        return uuid.uuid4().hex
    environ = os.environ if environ is None else environ
    # "none" is what torchrun says when nobody gave a run id: two submissions would look alike.
    if all(name in environ for name in _TORCHRUN) and environ[_TORCHRUN[0]] not in ("", "none"):
        return "torchrun:" + ":".join(environ[name] for name in _TORCHRUN)
    if all(name in environ for name in _SLURM):
        restarts = environ.get("SLURM_RESTART_COUNT", "0")
        return "slurm:" + ":".join([*(environ[name] for name in _SLURM), restarts])
    raise InvalidRequest(
        f"{world_rank.world_size} ranks of one attempt need a token in common, and there is "
        "nothing to make it of: pass attempt= (the same on all ranks, another for every start of "
        "the run), or initialise torch.distributed before the first batch",
        field="world_size",
        value=world_rank.world_size,
    )
