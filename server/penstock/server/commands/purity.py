"""Are a job's roles pure? The same items and batches again, in another order and another process.

The batches a third time, from a snapshot after each: can the job be resumed?

In the other process everything differs that a role could depend on by accident: the order, the hash
seed, the time zone, the locale, the number of threads, the working folder. Only if something
differs, further processes find out which of them matters.

What is compared are digests of every value, so the first one that differs can be named. Run as a
module, this file is the other process.
"""

from __future__ import annotations

import json
import locale
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.environment import FIXED, THREAD_VARIABLES, worker_environment
from penstock.server.job import Job
from penstock.server.pipeline.items import Filtered, Items, Outcome
from penstock.server.pipeline.line import Computed, Line
from penstock.server.pipeline.retry import RETRY_DEADLINE_S
from penstock.server.pipeline.verdicts import Quarantined, content_hash
from penstock.server.roles.base import BatchCollator, RawItemProcessor, Source
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.role import Role, asked, failing
from penstock.server.usercode.contained import contained
from penstock.server.usercode.seeding import drawn_since, purpose_key, seeded_globals
from penstock.wire import frame
from penstock.wire.errors import (
    BadSnapshot,
    InvalidJob,
    LogDiverged,
    PastEnd,
    PenstockError,
    decode_error,
    encode_error,
)
from penstock.wire.order import Order

Facts = dict[str, str]
"""Name of a value -> its digest."""

HASH_SEEDS = ("4711", "4712")
"""PYTHONHASHSEED of the other process, not ours: so a dependence on a set's order shows."""

OTHER_LOCALES = ("de_DE.UTF-8", "en_US.UTF-8")
"""Locales to compare with, the first one that this machine has; `C` is everywhere."""

RETRY_S = 1.0
"""A file that is not there in another folder will not be there later."""


@dataclass(frozen=True)
class Surroundings:
    """How another process differs from the ones that compute.

    Attributes:
        name: What differs, for people.
        variables: What differs in its environment.
        folder: It runs in another working folder.
    """

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    folder: bool = False


def plain() -> Surroundings:
    """Return a process like those that compute: only order and hash seed differ."""
    return Surroundings("another order and process")


def other_surroundings() -> list[Surroundings]:
    """Return what a role might depend on, one by one; each is a process of its own."""
    other = "C"
    ours = locale.setlocale(locale.LC_ALL)
    for name in OTHER_LOCALES:
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
            other = name
            break
    locale.setlocale(locale.LC_ALL, ours)
    return [
        Surroundings("time zone", {"TZ": "<+0945>-09:45"}),  # needs no database of zones
        Surroundings("locale", {"LC_ALL": other, "LANG": other}),
        Surroundings("number of threads", dict.fromkeys(THREAD_VARIABLES, "2")),
        Surroundings("working folder", folder=True),
    ]


def all_at_once() -> Surroundings:
    """Return a process in which everything differs."""
    variables: dict[str, str] = {}
    for changed in other_surroundings():
        variables |= changed.variables
    return Surroundings("other surroundings", variables, folder=True)


def first_items(job: Job, count: int) -> list[ItemRef]:
    """Return the first `count` draws of a job, lanes in turn; fewer if it ends before."""
    found: dict[ItemRef, None] = {}
    going = {lane: asked(job.distributor, "open", lane, job.lanes) for lane in range(job.lanes)}
    epoch = job.distributor.epoch_draws(job.lanes)
    k = 0
    while len(found) < count and going:
        for lane, draws in list(going.items()):
            item = _next_draw(job, draws)
            if item is None:
                del going[lane]
            else:
                found[item] = None
            if len(found) == count:
                break
        k += 1
        if epoch is not None and k > 2 * epoch:  # a small job has fewer items than count
            break
    return list(found)


def _next_draw(job: Job, draws: LaneDraws) -> ItemRef | None:
    try:
        return contained(draws.next)
    except PenstockError:
        raise
    except Exception as error:
        raise failing(job.distributor, "draw", error) from error


def item_facts(outcome: Outcome) -> Facts:
    """Return the digests of what processing one item gave."""
    if isinstance(outcome, Filtered):
        return {"filtered": outcome.reason}
    if isinstance(outcome, Quarantined):
        return {"quarantined": outcome.verdict.reason}
    if len(outcome) == 1:
        return {key: content_hash(value) for key, value in outcome[0].items()}
    return {
        f"{key} of sample {part}": content_hash(value)
        for part, sample in enumerate(outcome)
        for key, value in sample.items()
    }


def raw_facts(items: Items, refs: Sequence[ItemRef], outcomes: Sequence[Outcome]) -> Facts:
    """Return the digests of raw items by item, those left out that a verdict removes."""
    kept = [
        item
        for item, outcome in zip(refs, outcomes, strict=True)
        if not isinstance(outcome, Quarantined)
    ]
    raws = zip(kept, items.raws(kept), strict=True)
    return {str(item): content_hash(raw) for item, raw in raws}


def check_promises(job: Job, items: Items, refs: Sequence[ItemRef], line: Line) -> None:
    """Refuse a role that says `uses_global_rng = False` and draws from these generators.

    Call it when all roles have run once: libraries may draw as they are imported.

    Args:
        job: The job.
        items: Has processed the items before.
        refs: Items that can be processed.
        line: A line, for its next batch.

    Raises:
        InvalidJob: Names the role.
    """
    for name, source in job.sources.items():
        own = [item for item in refs if item.source == name]
        if _promises(source) and _draws(partial(items.raws, own)):
            raise _broken_promise(job, source, "source")
    # The generators are restored after each item of a source that says it draws from them.
    if _promises(job.processor) and _draws(partial(items.samples, refs, "draw")):
        raise _broken_promise(job, job.processor, "processor")
    if _promises(job.collator):
        with suppress(PastEnd):
            plan = line.advance()
            if _draws(partial(line.make, plan)):
                raise _broken_promise(job, job.collator, "collator")


def _promises(role: Source | RawItemProcessor | BatchCollator) -> bool:
    """Tell whether code of a user says that it leaves the global generators alone."""
    return not role.uses_global_rng and role.is_of_user()


def _draws(call: Callable[[], object]) -> bool:
    key = purpose_key("penstock check")
    with seeded_globals(key):
        call()
        return drawn_since(key)


def _broken_promise(job: Job, role: Role, key: str) -> InvalidJob:
    return InvalidJob(
        f"{role.own_name()} of job {job.name!r} says uses_global_rng = False, and draws from the "
        "generators of random, numpy or torch all the same; take the random numbers from "
        "context.rng, or let it say nothing, so that they are seeded for it",
        key=key,
    )


def batch_facts(computed: Computed) -> Facts:
    """Return the digests of the values of one batch, and of its counts."""
    header = frame.read_header(computed.header)
    values = frame.decode_values(header, computed.body)
    facts = {name: content_hash(value) for name, value in values.items()}
    facts["counts"] = content_hash({count.name: count.value for count in header.counts})
    facts["items"] = content_hash([[s.source, s.index, s.epoch] for s in header.samples])
    return facts


def first_batches(line: Line, count: int) -> list[Computed]:
    """Return the next `count` batches of a line; fewer if the lane ends before."""
    found: list[Computed] = []
    order = order_of(line.job)
    while len(found) < count:
        offset = line.offset
        try:
            made = line.make(line.advance())
        except PastEnd:
            break
        body = bytearray(made.nbytes)
        header = made.write(memoryview(body))
        found.append(Computed(frame.with_position(header, order.position(line.lane, offset)), body))
    return found


def resumed_batches(job: Job, count: int) -> list[Computed]:
    """Return the same batches, each by a line that goes on from a snapshot of the one before.

    Raises:
        LogDiverged: The batcher does not take back what it gave.
    """
    lane = first_lane(job)
    line = Line(job, lane)
    found: list[Computed] = []
    while len(found) < count:
        batches = first_batches(line, 1)
        if not batches:
            break
        found += batches
        snapshot = line.planner.snapshot()
        try:
            line = Line(job, lane, snapshot=snapshot)
        except BadSnapshot as error:
            raise LogDiverged(
                f"job {job.name!r} cannot be resumed: {job.batcher.code_of('restore')} does "
                f"not take what state() gave after batch {len(found) - 1} of lane {lane} "
                f"({error.__cause__!r})",
                what=f"batch {len(found) - 1}",
            ) from error
    return found


def first_lane(job: Job) -> int:
    """Return the lane of position 0: in a small finite job lane 0 may be empty."""
    return order_of(job).lane_offset(0).lane


def order_of(job: Job) -> Order:
    """Return a job's order; without counting, where that takes a pass over all its items.

    Then its lanes count as endless ones, which differs only after the shortest lane's end.
    """
    if job.needs_counting:
        return job.numbering().order
    return job.order


def gather_backwards(
    job: Job, item_count: int, batch_count: int, retry_deadline_s: float = RETRY_DEADLINE_S
) -> dict[str, Any]:
    """Return the facts of items, one by one from the last to the first, and of batches."""
    items = Items(job, retry_deadline_s=retry_deadline_s)
    facts: dict[str, Facts] = {}
    raws: Facts = {}
    for item in reversed(first_items(job, item_count)):
        [outcome] = items.samples([item], "draw")
        facts[str(item)] = item_facts(outcome)
        raws |= raw_facts(items, [item], [outcome])
    # With verdicts of its own: here items were judged at stage `draw`, whatever a line would do.
    line = Line(job, first_lane(job), Items(job, retry_deadline_s=retry_deadline_s))
    batches = first_batches(line, batch_count)
    return {
        "log_id": job.log_id.hex(),
        "items": facts,
        "raws": raws,
        "batches": [batch_facts(batch) for batch in batches],
        "resumed": [batch_facts(batch) for batch in resumed_batches(job, batch_count)],
    }


def gather_elsewhere(
    target: str, job: str, item_count: int, batch_count: int, where: Surroundings
) -> dict[str, Any]:
    """Return `gather_backwards` of a job, from another process with another hash seed.

    Args:
        target: What `penstock.server.jobs.load.load` takes.
        job: The job's name.
        item_count: How many items.
        batch_count: How many batches.
        where: What else differs there.

    Raises:
        PenstockError: What went wrong over there.
        LogDiverged: The other process died: what worked here does not work there.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        answer = Path(folder) / "answer"
        # The answer goes by a file: a user's code may print.
        command = [sys.executable, "-P", "-m", "penstock.server.commands.purity", target, job]
        command += [str(item_count), str(batch_count), str(answer)]
        command += [str(RETRY_S if where.folder else RETRY_DEADLINE_S)]
        hash_seed = next(s for s in HASH_SEEDS if s != os.environ.get("PYTHONHASHSEED"))
        environment = {
            **worker_environment(os.environ),
            "PYTHONHASHSEED": hash_seed,
            **where.variables,
        }
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder if where.folder else None,
            capture_output=True,
            check=False,
        )
        failure = answer.with_suffix(".error")
        if failure.exists():
            raise decode_error(failure.read_bytes())
        if done.returncode != 0 or not answer.exists():
            last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no output"])[-1]
            raise LogDiverged(
                f"job {job!r} works in this process, and ended with status {done.returncode} in "
                f"another one: {last}",
                what=job,
                traceback=done.stderr.decode(errors="replace"),
            )
        found: dict[str, Any] = json.loads(answer.read_bytes())
        return found


Gather = Callable[[Surroundings], dict[str, Any]]
"""Gives `gather_backwards` of a job from a process with other surroundings."""


def find_dependences(job: Job, ours: dict[str, Any], gather: Gather) -> list[str]:
    """Compare with a process where everything differs, and find out what of it matters.

    What is fixed wherever a batch is computed (`penstock.server.environment`) cannot make two
    contents of one log id: to depend on it is worth a note and no error.

    Args:
        job: The job.
        ours: As `compare` takes it.
        gather: Gives the facts of another process.

    Returns:
        A sentence for each of the surroundings that the job depends on.

    Raises:
        LogDiverged: Something is not pure, or depends on the working folder, which is not fixed.
        PenstockError: What goes wrong in another process of the same environment.
    """
    try:
        compare(job, ours, gather(all_at_once()))
    except PenstockError as error:
        first = error
    else:
        return []
    compare(job, ours, gather(plain()))
    notes: list[str] = []
    for where in other_surroundings():
        try:
            compare(job, ours, gather(where))
        except PenstockError as error:
            notes.append(_dependence(job, where, error))
    if not notes:
        notes.append(
            f"it depends on time zone, locale, number of threads and working folder together: "
            f"{_difference_there(first)}"
        )
    return notes


def _difference_there(error: PenstockError) -> str:
    if isinstance(error, LogDiverged) and error.role is not None:
        return f"{error.role} gives another value there, first {error.what}"
    return f"it fails there: {error.message}"


def _dependence(job: Job, where: Surroundings, error: PenstockError) -> str:
    """Return the note on a dependence.

    Raises:
        LogDiverged: Nothing fixes what it depends on, and the bytes differ.
    """
    if not where.folder:
        names = [name for name in where.variables if name in FIXED]
        fixed = f"{names[0]}={FIXED[names[0]]}" + (" and its like" if len(names) > 2 else "")
        return (
            f"it depends on the {where.name}: {_difference_there(error)}; penstock computes with "
            f"{fixed} everywhere, so batches are the same, and code that does the same outside of "
            "it may differ"
        )
    remedy = "name files relative to your code: Path(__file__).parent"
    if isinstance(error, LogDiverged) and error.role is not None:
        raise error.reworded(
            f"job {job.name!r} is not pure: it depends on the {where.name}, which may be another "
            f"on every node: {_difference_there(error)}; {remedy}"
        ) from error
    return f"it depends on the {where.name}: {_difference_there(error)}; {remedy}"


def compare(job: Job, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Find the first value that differs.

    Args:
        job: The job, for its name and those of its roles.
        ours: `{"log_id": hex, "items": {item: facts}, "raws": facts, "batches": [facts]}`, from
            this process.
        theirs: The same from the other one, and the batches of lines that were resumed: `resumed`.

    Raises:
        LogDiverged: Names the item or batch, the key, and what to do.
    """
    collator = job.collator.code_of()
    if ours["log_id"] != theirs["log_id"]:
        raise LogDiverged(
            f"job {job.name!r} has another log id in another process; what parameters() and "
            "fingerprint() of its roles return must be the same everywhere: sort what comes from a "
            "set, and leave out clocks",
            what="the log id",
            role="its plan",
            ours=ours["log_id"],
            theirs=theirs["log_id"],
        )
    if item := _difference(ours["raws"], theirs["raws"]):
        sources = ", ".join(sorted({source.code_of() for source in job.sources.values()}))
        raise LogDiverged(
            f"job {job.name!r} is not pure: {sources} gives another raw item {item} in another "
            "order and process; an item must depend on its index alone, so leave out clocks, "
            "orders of sets and what earlier items left behind",
            what=item,
            role=sources,
            ours=ours["raws"].get(item),
            theirs=theirs["raws"].get(item),
        )
    for item, facts in ours["items"].items():
        if key := _difference(facts, theirs["items"].get(item, {})):
            source = job.sources[item.rpartition("[")[0]]
            processor = job.processor.author(source).code_of()
            raise LogDiverged(
                f"job {job.name!r} is not pure: {processor} gives item {item} another {key!r} in "
                "another order and process; take what is random from context.rng, and leave out "
                "clocks, hashes of strings, orders of sets and what earlier items left behind",
                what=f"{key!r} of item {item}",
                role=processor,
                ours=facts.get(key),
                theirs=theirs["items"].get(item, {}).get(key),
            )
    _compare_batches(
        ours["batches"],
        theirs["batches"],
        lambda number, key: (
            f"job {job.name!r} is not pure: its items are the same, and batch {number} of lane "
            f"{first_lane(job)} has another {key!r} in another process; look at "
            f"{job.batcher.code_of()} and {collator}, and take what is random from "
            "context.rng"
        ),
        f"{job.batcher.code_of()} or {collator}",
    )
    _compare_batches(
        ours["batches"],
        theirs["resumed"],
        lambda number, key: (
            f"job {job.name!r} cannot be resumed: batch {number} of lane {first_lane(job)} has "
            f"another {key!r} when its lane goes on from a snapshot; "
            f"{job.batcher.code_of()} holds something that its state leaves out, such as an "
            "attribute that changes and has the name of a constructor's parameter: rename it, or "
            "override state() and restore()"
        ),
        job.batcher.code_of(),
    )


def _compare_batches(
    ours: Sequence[Facts],
    theirs: Sequence[Facts],
    sentence: Callable[[int, str], str],
    role: str,
) -> None:
    for number, facts in enumerate(ours):
        other = theirs[number] if number < len(theirs) else {}
        if key := _difference(facts, other):
            raise LogDiverged(
                sentence(number, key),
                what=f"{key!r} of batch {number}",
                role=role,
                ours=facts.get(key),
                theirs=other.get(key),
            )


def _difference(ours: Facts, theirs: Facts) -> str | None:
    for key in [*ours, *theirs]:
        if ours.get(key) != theirs.get(key):
            return key
    return None


def _main(
    target: str, job: str, item_count: str, batch_count: str, answer: str, retry_s: str
) -> None:
    from penstock.server.jobs.load import load

    path = Path(answer)
    try:
        facts = gather_backwards(
            load(target).job(job), int(item_count), int(batch_count), float(retry_s)
        )
    except PenstockError as error:
        path.with_suffix(".error").write_bytes(encode_error(error))
    else:
        path.write_text(json.dumps(facts))


if __name__ == "__main__":
    _main(*sys.argv[1:])


__all__ = [
    "Gather",
    "Surroundings",
    "batch_facts",
    "check_promises",
    "compare",
    "find_dependences",
    "first_batches",
    "first_items",
    "first_lane",
    "gather_backwards",
    "gather_elsewhere",
    "item_facts",
    "order_of",
    "raw_facts",
    "resumed_batches",
]
