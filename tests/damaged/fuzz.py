"""Damages files of all formats and reads them, for as long as is asked.

    cd tests && PYTHONPATH=.:../proto:../server:../client python -m damaged.fuzz --seconds 3600

Prints the seed, and what must not be, each kind of it once, with the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

CASES_AT_ONCE = 200
"""Cases of every format in one process: what a reader leaves in memory ends with it."""


class Finding(NamedTuple):
    """Something that must not be.

    Attributes:
        format: The format of the file.
        case: The number of the case.
        said: What happened.
    """

    format: str
    case: int
    said: str

    def kind(self) -> str:
        """Return what is alike of cases of one kind: no numbers, no values, no paths."""
        last = self.said.strip().splitlines()[-1]
        frames = re.findall(r'penstock/server/(\S+?)", line (\d+)', self.said)
        return f"{self.format.split()[0]} {frames[-1:]} {re.sub(r'[0-9]+|/[^ ]*', '', last)[:90]}"


class Ran(NamedTuple):
    """What became of some cases.

    Attributes:
        cases: How many ended.
        findings: What must not be.
    """

    cases: int
    findings: list[Finding]


def run(seed: int, first: int, stop: int, formats: Sequence[str] = ()) -> Ran:
    """Damage and read, in processes of their own: the next one goes on after a crash."""
    done, found = 0, []
    for name in formats or [""]:
        at = first
        while at < stop:
            ended, begun, errors = _process(seed, at, stop, [name] if name else [])
            done += sum(1 for _ in ended)
            found += [
                Finding(*answer["ended"], said) for answer in ended for said in answer["wrong"]
            ]
            if begun is None:
                break
            found.append(Finding(*begun, errors))
            at = begun[1] + 1
    return Ran(done, found)


def _process(
    seed: int, first: int, stop: int, formats: Sequence[str]
) -> tuple[list[Any], list[Any] | None, str]:
    """Return the cases that ended, the one that did not, and what the process said then."""
    command = [sys.executable, "-m", "damaged.reading", str(seed), str(first), str(stop), *formats]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    ended = [line for line in lines if "ended" in line]
    if ran.returncode == 0:
        return ended, None, ""
    begun = [line["begins"] for line in lines if "begins" in line]
    if not begun or begun[-1] == (ended[-1]["ended"] if ended else None):
        raise RuntimeError(f"{command} ended with {ran.returncode}: {ran.stderr[-3000:]}")
    said = f"the process ended with {ran.returncode}: {ran.stderr[-3000:]}"
    return ended, begun[-1], said


def until(seconds: float, seed: int, formats: Sequence[str]) -> Iterator[Ran]:
    """Yield what became of cases, some at a time."""
    started, first = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        yield run(seed, first, first + CASES_AT_ONCE, formats)
        first += CASES_AT_ONCE


def main() -> None:
    """Run until the time is over; print every kind of finding once."""
    from damaged.formats import FORMATS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("formats", nargs="*", metavar="FORMAT")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    kinds: dict[str, int] = {}
    cases = 0
    for ran in until(given.seconds, given.seed, given.formats or list(FORMATS)):
        cases += ran.cases
        for finding in ran.findings:
            kind = finding.kind()
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] == 1:
                again = f"{given.seed} {finding.case} {finding.case + 1} '{finding.format}'"
                print(f"\n== {kind}\npython -m damaged.reading {again}\n{finding.said[-1500:]}")
        print(f"-- {cases} cases, {len(kinds)} kinds of findings", flush=True)
    for kind, count in sorted(kinds.items(), key=lambda pair: -pair[1]):
        print(f"{count:6} {kind}")
    sys.exit(bool(kinds))


if __name__ == "__main__":
    main()
