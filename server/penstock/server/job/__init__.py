"""A job as an object: its roles, its lanes, its log id.

* `job`: a job, whose batches come from one set of roles; `joint_job`: from several of them.
* `role_set`: the source, the distributor, the processor, the batcher and the collator of a set.
* `planned_batches`: what a job asks of the batches that its plan gives.
* `set_choice`: which set makes a batch of a joint job.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.server.job.job import Job
    from penstock.server.job.joint_job import JointJob
    from penstock.server.job.role_set import RoleSet

_FILES = {"Job": "job", "JointJob": "joint_job", "RoleSet": "role_set"}
"""Whoever makes batches of one set of roles loads nothing of several."""

if not TYPE_CHECKING:  # a type checker shall miss what is not there

    def __getattr__(name: str) -> Any:
        if name not in _FILES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
        globals()[name] = value
        return value


__all__ = ["Job", "JointJob", "RoleSet"]
