"""The process that measures blocks.

It is told the numbers of the sets of roles that it is for, and says which inputs each has; then it
is told a block at a time, a line of JSON `[source, start, stop, careful]`, and says how far it is
and at last what the block holds: a line of JSON, with the number of bytes that follow it. An error
ends it.
"""

from __future__ import annotations

import json
import time
from typing import Any, BinaryIO

from penstock.server.core.canonical import canonical
from penstock.server.core.refs import ItemRef
from penstock.server.jobs.definition import decode
from penstock.server.planning.index.block import encode_block
from penstock.server.planning.make.measuring import Measuring
from penstock.server.processes.background import attend
from penstock.server.processes.child import Inherited

TELL_S = 0.25
"""Seconds between two words of how far it is."""

MAX_NAMED = 100
"""How many items of a block that fail are named, with why; the block itself counts all of them."""


class _Teller:
    """Says how far a block is, now and then."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._reported_s = out, time.monotonic()

    def __call__(self, done: int) -> None:
        if (now := time.monotonic()) - self._reported_s >= TELL_S:
            self._reported_s = now
            say(self._out, {"done": done})


def say(out: BinaryIO, message: dict[str, Any], data: bytes = b"") -> None:
    """Write a line, and the bytes that belong to it."""
    out.write(json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data)
    out.flush()


def work(inherited: Inherited, heard: BinaryIO, out: BinaryIO) -> None:
    """Measure the blocks that are asked for, until nothing more is."""
    definition = decode(inherited.definition)
    name = definition.name

    def progress(stage: str, item: ItemRef | None) -> None:
        inherited.page.note(stage, name, None, item)

    inherited.page.note("build", name)
    job = definition.build(planned=False)
    sets = [Measuring(job, progress, number) for number in json.loads(inherited.arguments[0])]
    say(out, {"ready": True}, canonical([each.inputs for each in sets]))
    of_source = {source: each for each in sets for source in each.positions}
    tell = _Teller(out)
    while line := heard.readline():
        source, first, stop, careful = json.loads(line)
        measuring = of_source[source]
        measuring.items.careful = careful
        found = measuring.block(source, first, stop, tell)
        progress("idle", None)
        bad = found.bad[:MAX_NAMED]
        told = {"done": stop - first, "drew": found.drew, "bad": bad, "whole": True}
        say(out, told, encode_block(found.sizes, first))


def main(inherited: Inherited) -> None:
    """Take the task that was inherited, and end with it."""
    attend(inherited, work, lambda out, error: say(out, {"error": True}, error))
