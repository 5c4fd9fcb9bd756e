"""tf.data service, both ends: run by an interpreter that has TensorFlow, and maybe not penstock.

`tfdata.py serve` starts a dispatcher and one worker in one process and prints its address;
`tfdata.py read ADDRESS PID SIZE FREED COUNT WARM` reads ready batches from it. Bytes travel as they
are: a service that compresses would be measured by how well constant batches compress.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from clock import Stopwatch, free_block


def serve() -> None:
    """Serve until killed."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print(dispatcher.target, flush=True)
    worker.join()


def read(address: str, pid: int, size: int, count: int, warm: int) -> dict[str, float]:
    """Read `count` batches of `size` bytes, which the worker holds in its cache."""
    service = tf.data.experimental.service

    def batch(_: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"data": tf.cast(tf.range(size) % 256, tf.uint8)}

    ready = tf.data.Dataset.from_tensors(0).map(batch).cache().repeat()
    batches = iter(
        ready.apply(
            service.distribute(service.ShardingPolicy.OFF, service=address, compression=None)
        )
    )
    nbytes = 0
    for _ in range(warm):
        next(batches)
    watch = Stopwatch(pid)
    for _ in range(count):
        nbytes += next(batches)["data"].shape[0]
    return watch.per_gb(nbytes)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        pid, size, freed, count, warm = map(int, sys.argv[3:])
        free_block(freed)
        print(json.dumps(read(sys.argv[2], pid, size, count, warm)))
