"""A process that writes into a store, and tells every answer the moment it has it.

Each is a line of its own, and unbuffered: who kills the process has read what was answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from penstock.server.store import SqliteStore
from penstock.server.store.records import BeginRequest, JobRecord, SnapshotRecord

JOB = JobRecord("code", bytes(32), {"lanes": 2})


def tell(*answer: object) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


async def main(path: Path, token: str) -> None:
    store = SqliteStore(path)
    await store.open()
    tell("open", store.uuid)
    begun = await store.begin(BeginRequest(JOB, "run", token, 0, 2))
    step = begun.start_step
    tell("cursor", step)
    while True:
        step += 1
        await asyncio.gather(
            *(store.commit("code", "run", token, begun.generation, rank, step) for rank in (0, 1))
        )
        tell("cursor", step)
        if step % 7 == 0:
            await store.checkpoint("code", "run", f"at-{step}", step)
            tell("checkpoint", step)
        if step % 5 == 0:
            await store.put_snapshots([SnapshotRecord(bytes(32), 0, step, b"%d" % step * 3000)])
            tell("snapshot", step)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
