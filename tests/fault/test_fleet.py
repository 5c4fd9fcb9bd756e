"""Three nodes over one PostgreSQL, ranks of one group, and faults of all processes.

`FLEET_SEED` repeats a schedule, `FLEET_FAULTS` lengthens the long one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fault.fleet import STEP, Fleet

pytestmark = pytest.mark.fault

SEED = int(os.environ.get("FLEET_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
FAULTS = int(os.environ.get("FLEET_FAULTS", "200"))


@pytest.mark.parametrize("job", ["drawn", "sized"])
@pytest.mark.parametrize("faults", [pytest.param(10, id="few"), pytest.param(FAULTS, id="many")])
@pytest.mark.timeout(1800)
def test_a_group_is_read_exactly_through_faults_of_all_processes(
    tmp_path: Path, faults: int, job: str
) -> None:
    """Nothing is lost, repeated or changed, and no answered commit is lost, whatever fails when."""
    fleet: Fleet | None = None
    try:
        fleet = Fleet(tmp_path, SEED, job)
        fleet.start_attempt()
        for number in range(faults):
            fleet.progress(fleet.rng.randrange(1, 20 * STEP))
            if number == faults // 2:
                fleet.repair()
            fleet.fault()
        fleet.progress(STEP)
        fleet.check()

        assert fleet.faults.total() >= faults, fleet.faults
    except BaseException as error:
        error.add_note(f"FLEET_SEED={SEED}, after {fleet.faults if fleet else 'no faults'}")
        if fleet is not None:
            error.add_note(fleet.what_all_said())
        raise
    finally:
        if fleet is not None:
            fleet.close()
