"""A job as an object: its roles, its lanes, its log id.

* `job`: a job, whose batches come from one set of roles; `joint_job`: from several of them.
* `role_set`: the source, the distributor, the processor, the batcher and the collator of a set.
* `planned_batches`: what a job asks of the batches that its plan gives.
* `set_choice`: which set makes a batch of a joint job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.server.job.job import Job as Job
    from penstock.server.job.joint_job import JointJob as JointJob
    from penstock.server.job.role_set import RoleSet as RoleSet
else:  # what makes batches of one set of roles loads nothing of several
    _FILES = {"Job": "job", "JointJob": "joint_job", "RoleSet": "role_set"}
    __getattr__, __all__ = lazy_names(__name__, _FILES), [*_FILES]
