"""A job as an object: its roles, its lanes, its log id.

* `job`: a job, whose batches come from one set of roles; `joint_job`: from several of them.
* `role_set`: the source, the distributor, the processor, the batcher and the collator of a set.
* `planned_batches`: what a job asks of the batches that its plan gives.
* `set_choice`: which set makes a batch of a joint job.
"""

from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet

__all__ = ["Job", "JointJob", "RoleSet"]
