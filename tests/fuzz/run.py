"""Fuzzes what reads bytes of others, with atheris: `make fuzz`, or `make fuzz NAMES='job tokens'`.

Each target runs for a while (`FUZZ_S`, 60 s) in a process of its own: from its real values, from
what was a defect once (`tests/data/fuzz`), and from what earlier runs have found (`.fuzz`, which
may be deleted). What it raises that it should not, an input that takes more than 2 s, and a
process of more than 1 GiB end its run; the input then lies in `.fuzz`, and is printed.

    python tests/fuzz/run.py                   # all targets
    python tests/fuzz/run.py job .fuzz/crash-x # one input, with its traceback
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = ROOT / ".fuzz"
SECONDS = int(os.environ.get("FUZZ_S", "60"))
HUNG_S, MOST_MB = 2, 1024
"""An input may take this long, in whole seconds as libFuzzer has them, and a process so much."""

NAMES = (
    "frame replies errors tokens bearer from-server from-worker job index block certificates medium"
)


def main(names: list[str]) -> int:
    """Run targets one after another; return how many have found something."""
    failed = []
    for name in names or NAMES.split():
        corpus = FOUND / name
        corpus.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, __file__, "--one", name, str(corpus)),
            *(f"-max_total_time={SECONDS}", f"-timeout={HUNG_S}", f"-rss_limit_mb={MOST_MB}"),
            *(f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1", "-verbosity=0"),
        ]
        ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        stats = dict(
            line[len("stat::") :].split(":", 1)
            for line in ran.stderr.splitlines()
            if line.startswith("stat::")
        )
        runs, peak = (
            stats.get(key, "?").strip() for key in ("number_of_executed_units", "peak_rss_mb")
        )
        print(f"{name}: {runs} inputs, at most {peak} MB", flush=True)
        if ran.returncode:
            failed.append(name)
            said = [
                line
                for line in (ran.stdout + ran.stderr).splitlines()
                if not line.startswith(("INFO: Instrumenting", "stat::"))
            ]
            print("\n".join(said[-60:]), flush=True)
    if failed:
        print(f"found something: {', '.join(failed)}")
    return len(failed)


def fuzz(name: str, arguments: list[str]) -> None:
    """Run one target in this process; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["penstock", "yaml", "json"]):
        from fuzz.targets import KEPT, MAX_INPUT_BYTES, TARGETS, attempt

    target = TARGETS[name]
    corpus = Path(arguments[0])
    if corpus.is_dir():
        for number, seed in enumerate(target.seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        kept = [str(KEPT / name)] if (KEPT / name).is_dir() else []
        arguments = [str(corpus), *kept, f"-max_len={MAX_INPUT_BYTES}", *arguments[1:]]

    def run(data: bytes) -> None:
        attempt(target, data)

    atheris.Setup([sys.argv[0], *arguments], run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / room) for room in ("tests", "proto", "server", "client")]
    match sys.argv[1:]:
        case ["--one", name, *arguments]:
            fuzz(name, arguments)
        case [name, file] if Path(file).is_file():
            fuzz(name, [file])
        case names:
            sys.exit(main(names))
