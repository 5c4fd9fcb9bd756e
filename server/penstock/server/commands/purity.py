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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.core.permutation import MAX_ITEMS
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.load import Config, load
from penstock.server.pipeline.items import Items, Outcome
from penstock.server.pipeline.known_verdicts import Quarantined, content_hash
from penstock.server.pipeline.line import Computed, Line
from penstock.server.pipeline.processing import Filtered
from penstock.server.pipeline.retry import RETRY_DEADLINE_S
from penstock.server.process.environment import FIXED, THREAD_VARIABLES, worker_environment
from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.condition import Kept
from penstock.server.roles.distributor import DataDistributor
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.distributors.joined_sources import Drawn
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.role import Role, asked, failing
from penstock.server.roles.source import Source
from penstock.server.sources.meta import MetaSource
from penstock.server.usercode.contained import contained
from penstock.server.usercode.seeding import drawn_since, purpose_key, seeded_globals
from penstock.wire.errors import (
    BadSnapshot,
    InvalidJob,
    LogDiverged,
    PastEnd,
    PenstockError,
)
from penstock.wire.frame import decode_values, read_header, with_position
from penstock.wire.order import Order
from penstock.wire.sent_errors import decode_error, encode_error

Facts = dict[str, str]
"""Name of a value -> its digest."""

HASH_SEEDS = ("4711", "4712")
"""PYTHONHASHSEED of the other process, not ours: so a dependence on a set's order shows."""

OTHER_LOCALES = ("de_DE.UTF-8", "en_US.UTF-8")
"""Locales to compare with, the first one that this machine has; `C` is everywhere."""

CHUNK = 1 << 20
"""Draws that are looked at together for the data sets that they are of."""

MAX_WAITED = 50
"""Times the batches that were asked for, made at most for a set of roles that comes seldom."""

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
    """Return the first `count` draws of a job, lanes in turn; fewer if it ends before.

    After them comes an item of each data set of a meta file, however small it is beside the others.
    """
    found: dict[ItemRef, None] = {}
    going = {
        (lane, number): (part.roles, _opened(part))
        for lane in range(job.lanes)
        for number, part in enumerate(job.lane_roles(lane))
    }
    epochs = [roles.distributor.epoch_draws(roles.lanes) for roles in job.role_sets]
    known = [epoch for epoch in epochs if epoch is not None]
    epoch = max(known) if len(known) == len(epochs) else None
    k = 0
    while len(found) < count and going:
        for place, (roles, draws) in list(going.items()):
            item = _next_draw(roles, draws)
            if item is None:
                del going[place]
            else:
                found[item] = None
            if len(found) == count:
                break
        k += 1
        if epoch is not None and k > 2 * epoch:  # a small job has fewer items than count
            break
    return list(dict.fromkeys([*found, *_items_of_data_sets(job)]))


def _items_of_data_sets(job: Job) -> Iterator[ItemRef]:
    """Yield the first item of each data set that an epoch draws, wherever `map` draws it."""
    for roles in job.role_sets:
        for distributor in _with_inner(roles.distributor):
            if not isinstance(distributor, MapDistributor):
                continue
            for number, name in enumerate(distributor.drawn_from()):
                source = roles.sources[name]
                if not isinstance(source, MetaSource):
                    continue
                spans = [*source.spans().values()]
                if distributor.choice.draws_each(name):
                    kept = distributor.choice.kept(name)
                    items = [_first_kept(kept, *span) for span in spans]
                else:
                    items = _first_drawn(distributor.drawn, number, spans)
                yield from (ItemRef(name, item, 0) for item in items if item is not None)


def _with_inner(distributor: DataDistributor) -> Iterator[DataDistributor]:
    yield distributor
    for part in distributor.inner():
        yield from _with_inner(part)


def _first_kept(kept: Kept | None, start: int, stop: int) -> int | None:
    """Return the first item in `[start, stop)` that is kept; None = there is none."""
    if kept is not None:
        rank = kept.before(start)
        start = kept[rank] if rank < len(kept) else stop
    return start if start < stop else None


def _first_drawn(drawn: Drawn, source: int, spans: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the first item of each span of a source that the first epoch draws; None = none.

    Of a part of the items: which these are only all draws say.
    """
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    order = np.argsort(starts, kind="stable")
    found = np.full(len(spans), MAX_ITEMS, np.int64)
    for part, items in enumerate(drawn.parts(0)):
        if drawn.places(part, 0, 0, 0).source != source:
            continue
        for first in range(0, items, CHUNK):
            positions = drawn.places(part, 0, first, min(first + CHUNK, items)).positions
            indices = drawn.indices(source, positions)
            # An empty span begins where the next one does, and stands before it.
            of = order[np.searchsorted(starts[order], indices, "right") - 1]
            np.minimum.at(found, of, indices)
    there = (found >= starts) & (found < stops)
    return [
        item if is_there else None for item, is_there in zip(found.tolist(), there, strict=True)
    ]


def _opened(part: LaneRoles) -> LaneDraws:
    draws: LaneDraws = asked(part.roles.distributor, "open", part.lane, part.roles.lanes)
    return draws


def _next_draw(roles: RoleSet, draws: LaneDraws) -> ItemRef | None:
    try:
        return contained(draws.next)
    except PenstockError:
        raise
    except Exception as error:
        raise failing(roles.distributor, "draw", error) from error


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
        line: A line, for its next batches; the sets of roles of its lane are looked at.

    Raises:
        InvalidJob: Names the role.
    """
    for roles, _ in job.lane_roles(line.lane):
        of_set = [item for item in refs if item.source in roles.sources]
        for name, source in roles.sources.items():
            own = [item for item in of_set if item.source == name]
            if _promises(source) and _draws(partial(items.raws, own)):
                raise _broken_promise(job, source, "source")
        # The generators are restored after each item of a source that says it draws from them.
        if _promises(roles.processor) and _draws(partial(items.samples, of_set, "draw")):
            raise _broken_promise(job, roles.processor, "processor")
    if any(_promises(roles.collator) for roles, _ in job.lane_roles(line.lane)):
        with suppress(PastEnd):
            for _ in range(batches_with_all(job, line, 1)):
                plan = line.advance()
                collator = job.role_sets[plan.role_set].collator
                draws = _draws(partial(line.make, plan))
                if draws and _promises(collator):
                    raise _broken_promise(job, collator, "collator")


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
    header = read_header(computed.header)
    values = decode_values(header, computed.body)
    facts = {name: content_hash(value) for name, value in values.items()}
    facts["counts"] = content_hash({count.name: count.value for count in header.counts})
    facts["items"] = content_hash([[s.source, s.index, s.epoch] for s in header.samples])
    return facts


def batches_with_all(job: Job, line: Line, count: int) -> int:
    """Return how many of the next batches of a line hold so many of each of its sets of roles.

    That is `count` where there is one set; a set that is hardly ever chosen is not waited for.
    """
    before, found = job.uses(line.lane, line.offset), count
    while found < MAX_WAITED * count:
        uses = job.uses(line.lane, line.offset + found)
        if min(now - then for now, then in zip(uses, before, strict=True)) >= count:
            break
        found += 1
    return found


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
        header = with_position(header, order.position(line.lane, offset))
        found.append(Computed(header, body, made.plan))
    return found


def resumed_batches(job: Job, lane: int, count: int) -> list[Computed]:
    """Return the same batches, each by a line that goes on from a snapshot of the one before.

    Raises:
        LogDiverged: The batcher does not take back what it gave.
    """
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
            batcher = _batchers(job, lane, "restore")
            raise LogDiverged(
                f"job {job.name!r} cannot be resumed: {batcher} does not take "
                f"what state() gave after batch {len(found) - 1} of lane {lane} "
                f"({error.__cause__!r})",
                what=f"batch {len(found) - 1}",
            ) from error
    return found


def first_lanes(job: Job) -> list[int]:
    """Return a lane of each set of roles: the first that has a batch, as far as that is known.

    In a small finite job lane 0 may be empty, and so may all lanes of one of several sets.
    """
    order, found = order_of(job), dict[int, int]()
    for position in range(job.lanes):
        with suppress(PastEnd):
            lane = order.lane_offset(position).lane
            for part in job.lane_roles(lane):
                found.setdefault(part.roles.number, lane)
        if len(found) == len(job.role_sets):
            break
    return list(dict.fromkeys(found.values()))


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
    batches: dict[str, list[Facts]] = {}
    resumed: dict[str, list[Facts]] = {}
    for lane in first_lanes(job):
        # With verdicts of its own: items were judged at `draw` here, whatever a line would do.
        line = Line(job, lane, Items(job, retry_deadline_s=retry_deadline_s))
        count = batches_with_all(job, line, batch_count)
        batches[str(lane)] = list(map(batch_facts, first_batches(line, count)))
        resumed[str(lane)] = list(map(batch_facts, resumed_batches(job, lane, count)))
    return {
        "log_id": job.log_id.hex(),
        "items": facts,
        "raws": raws,
        "batches": batches,
        "resumed": resumed,
    }


def gather_elsewhere(
    config: Config, job: str, item_count: int, batch_count: int, where: Surroundings
) -> dict[str, Any]:
    """Return `gather_backwards` of a job, from another process with another hash seed.

    Args:
        config: What the job was built from.
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
        command = [sys.executable, "-P", "-m", "penstock.server.commands.purity"]
        command += [config.target, job]
        command += [str(item_count), str(batch_count), str(answer)]
        command += [str(RETRY_S if where.folder else RETRY_DEADLINE_S), *config.assignments]
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

    What is fixed wherever a batch is computed (`penstock.server.process.environment`) cannot make
    two contents of one log id: to depend on it is worth a note and no error.

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
        ours: `{"log_id": hex, "items": {item: facts}, "raws": facts, "batches": {lane: [facts]}}`,
            from this process.
        theirs: The same from the other one, and the batches of lines that were resumed: `resumed`.

    Raises:
        LogDiverged: Names the item or batch, the key, and what to do.
    """
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
            source_name = item.rpartition("[")[0]
            source = job.sources[source_name]
            processor = job.roles_of(source_name).processor.author(source).code_of()
            raise LogDiverged(
                f"job {job.name!r} is not pure: {processor} gives item {item} another {key!r} in "
                "another order and process; take what is random from context.rng, and leave out "
                "clocks, hashes of strings, orders of sets and what earlier items left behind",
                what=f"{key!r} of item {item}",
                role=processor,
                ours=facts.get(key),
                theirs=theirs["items"].get(item, {}).get(key),
            )
    for lane, batches in ours["batches"].items():
        _compare_lane(job, int(lane), batches, theirs["batches"].get(lane, []))
    for lane, batches in ours["batches"].items():
        _compare_resumed(job, int(lane), batches, theirs["resumed"].get(lane, []))


def _batchers(job: Job, lane: int, method: str = "") -> str:
    """Return what the batchers of a lane are called in errors."""
    names = [part.roles.batcher.code_of(method) for part in job.lane_roles(lane)]
    return " or ".join(dict.fromkeys(names))


def _compare_lane(job: Job, lane: int, ours: Sequence[Facts], theirs: Sequence[Facts]) -> None:
    batcher = _batchers(job, lane)
    collators = [part.roles.collator.code_of() for part in job.lane_roles(lane)]
    collator = " or ".join(dict.fromkeys(collators))
    _compare_batches(
        ours,
        theirs,
        lambda number, key: (
            f"job {job.name!r} is not pure: its items are the same, and batch {number} of lane "
            f"{lane} has another {key!r} in another process; look at {batcher} and {collator}, and "
            "take what is random from context.rng"
        ),
        f"{batcher} or {collator}",
    )


def _compare_resumed(job: Job, lane: int, ours: Sequence[Facts], theirs: Sequence[Facts]) -> None:
    batcher = _batchers(job, lane)
    _compare_batches(
        ours,
        theirs,
        lambda number, key: (
            f"job {job.name!r} cannot be resumed: batch {number} of lane {lane} has another "
            f"{key!r} when its lane goes on from a snapshot; {batcher} holds something that its "
            "state leaves out, such as an attribute that changes and has the name of a "
            "constructor's parameter: rename it, or override state() and restore()"
        ),
        batcher,
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
    target: str,
    job: str,
    item_count: str,
    batch_count: str,
    answer: str,
    retry_s: str,
    *assignments: str,
) -> None:
    path = Path(answer)
    try:
        built = load(target, assignments=assignments).job(job)
        facts = gather_backwards(built, int(item_count), int(batch_count), float(retry_s))
    except PenstockError as error:
        path.with_suffix(".error").write_bytes(encode_error(error))
    else:
        path.write_text(json.dumps(facts))


if __name__ == "__main__":
    _main(*sys.argv[1:])
