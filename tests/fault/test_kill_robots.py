"""Episodes of robots under random kills: each frame once an epoch, and the one that it says."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fault.jobs import ROBOTS, STEP
from fault.run import WORLD_SIZES, Run
from penstock.wire import frame
from robots import check_shown

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(("seed", "attempts", "kills"), [(21, 2, 4), (22, 4, 8)])
def test_every_frame_comes_once_whoever_dies(
    tmp_path: Path, seed: int, attempts: int, kills: int
) -> None:
    """Workers, node and one to four ranks are killed; then every picture is looked at, and counted.

    The digests of all that came are those of the batches that are looked at.
    """
    run = Run(tmp_path, seed, "robots")
    try:
        for _ in range(attempts):
            run.start_attempt(run.rng.choice(WORLD_SIZES))
            for _ in range(kills):
                run.progress(run.rng.randrange(1, 20))
                run.rng.choice([run.kill_worker] * 2 + [run.kill_server, run.kill_rank])()
            run.progress(2 * STEP)
            run.end_attempt()
        end = run.group().cursor * STEP
    finally:
        run.close()

    assert run.kills.total() >= attempts * kills // 2, run.kills
    seen: defaultdict[int, list[int]] = defaultdict(list)  # by epoch
    for position in range(end):
        header, _, body = run.purity.truth(position)
        values = frame.decode_values(header, body)
        check_shown(ROBOTS, values)
        assert [sample.index for sample in header.samples] == values["index"].tolist()
        for sample in header.samples:
            seen[sample.epoch].append(sample.index)
    whole = [indices for indices in seen.values() if len(indices) == ROBOTS.frames]
    assert len(whole) >= 1, {epoch: len(indices) for epoch, indices in seen.items()}
    assert all(sorted(indices) == list(range(ROBOTS.frames)) for indices in whole)
    assert all(len(set(indices)) == len(indices) for indices in seen.values())
