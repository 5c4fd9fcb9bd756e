"""What turns the token ids of a job back into text."""

from __future__ import annotations

from penstock.common.batch_text import Decode
from penstock.server.job.role_set import RoleSet


def decoder(roles: RoleSet) -> Decode | None:
    """Return what turns token ids of a set of roles back into text, or None if nothing does.

    A processor takes part by having a method `decode(ids) -> str`.
    """
    own = getattr(roles.processor, "decode", None)
    return (lambda ids: str(own(list(ids)))) if callable(own) else None
