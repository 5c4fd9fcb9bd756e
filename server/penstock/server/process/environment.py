"""The environment in which batches are computed: what a role may depend on unseen is fixed.

Every process that computes a batch has it: the workers of a node, that of `local:` too, and
`penstockd show` and `check` themselves. So a time zone, a locale, a hash seed or the number of
threads of a numeric library cannot make two contents of one log id. `penstockd serve` has it, too:
it computes log ids, which the workers compute again.

Nothing here imports a library that reads the environment: the commands call it before they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

THREAD_VARIABLES = (
    *(
        f"{library}_NUM_THREADS"
        for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM", "BLIS", "RAYON")
    ),
    "OPENCV_FOR_THREADS_NUM",
)
"""Sums of floating-point numbers depend on how they are cut: one thread cuts none."""

FIXED: Mapping[str, str] = {
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "TOKENIZERS_PARALLELISM": "false",  # its threads would compete with the other workers
    **dict.fromkeys(THREAD_VARIABLES, "1"),
}
"""Variables that have these values wherever a batch is computed."""


ARROW_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0",
}
"""Which allocator Arrow takes, where nobody chose one, and that all threads share its memory.

Of decoded blocks that come and go, Arrow's own default kept 20 to 50 % more than was in use
(48 blocks of 4 MiB, pyarrow 26). jemalloc with an arena for each thread keeps what one of them has
freed from the next one, and blocks are read by several threads in turn: 10 MiB in each worker of
what one block of 4 MiB took to decode. With one arena for all it keeps 1 %, and takes as long.
"""


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that computes: hidden inputs are fixed.

    Args:
        environment: The one of the process that starts it; what is not fixed is kept.
    """
    return {
        **(ARROW_MEMORY if sys.platform == "linux" else {}),
        **environment,
        **FIXED,
        # The same import world as the process that starts it, whatever put it there.
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path),
    }


def fix_this_process(*, measures: bool = False) -> None:
    """Start this program again in the environment of the workers, unless it has it already.

    It keeps its process id, its files and its arguments. For the first line of a command: what was
    imported before is imported again.

    Args:
        measures: It says how fast a worker is, so it has a worker's allocator, too.
    """
    wanted = {**os.environ, **FIXED}
    if measures:
        # Here and not above: a node's own process, which starts twice, needs none of it.
        from penstock.server.process.allocator import is_marked, preloaded, withdraw

        wanted = wanted if is_marked() else preloaded(wanted)
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)
    if measures:
        withdraw()
