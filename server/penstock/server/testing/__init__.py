"""The contracts that roles and stores keep, as checks to run in your own tests.

penstock's tests use the same code for its own roles and stores. Each `check_` function takes a role
and raises an AssertionError whose message says which property it lacks; none needs pytest. A
store's suite is a class for pytest and pytest-asyncio: `penstock.server.testing.store`.
"""

from penstock.server.testing.job_contract import check_job
from penstock.server.testing.roles import (
    check_batcher,
    check_collator,
    check_processor,
    check_source,
    check_stream,
)

__all__ = [
    "check_batcher",
    "check_collator",
    "check_job",
    "check_processor",
    "check_source",
    "check_stream",
]
