"""Three nodes over one PostgreSQL, ranks of one group, and faults of all processes.

`FLEET_SEED` repeats a schedule, `FLEET_FAULTS` lengthens the long one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fault.fleet_jobs import STEP
from fault.fleet_run import FleetRun

pytestmark = pytest.mark.fault

SEED = int(os.environ.get("FLEET_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
FAULTS = int(os.environ.get("FLEET_FAULTS", "200"))


@pytest.mark.parametrize("job", ["drawn", "sized"])
@pytest.mark.parametrize("faults", [pytest.param(10, id="few"), pytest.param(FAULTS, id="many")])
@pytest.mark.timeout(1800 + 30 * FAULTS)
def test_a_group_is_read_exactly_through_faults_of_all_processes(
    tmp_path: Path, faults: int, job: str
) -> None:
    """Nothing is lost, repeated or changed, and no answered commit is lost, whatever fails when."""
    run: FleetRun | None = None
    try:
        run = FleetRun(tmp_path, SEED, job)
        run.start_attempt()
        for number in range(faults):
            run.progress(run.rng.randrange(1, 20 * STEP))
            if number == faults // 2:
                run.repair()
            run.fault()
        run.progress(STEP)
        run.check()

        assert run.fleet.faults.total() >= faults, run.fleet.faults
        assert run.ledger.trained > 0
    except BaseException as error:
        error.add_note(f"FLEET_SEED={SEED}, after {run.fleet.faults if run else 'no faults'}")
        if run is not None:
            error.add_note(run.what_all_said())
        raise
    finally:
        if run is not None:
            run.close()
