"""Several nodes at one store in PostgreSQL, whose backends are ended in mid-transaction.

Attempts, commits, moves, deletions and verdicts of three stores interleave as a seed says, and
backends are ended between and within their transactions. Whatever was answered holds.
`POSTGRES_MODEL_SEED` repeats a run, `POSTGRES_MODEL_CALLS` lengthens it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psycopg

import postgres
from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import Store, open_store
from penstock.server.testing.store import LOG, NOTHING, ask
from penstock.wire.errors import (
    LogDiverged,
    StaleGeneration,
    StoreUnavailable,
    UnknownGroup,
)

SEED = int(os.environ.get("POSTGRES_MODEL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
CALLS = int(os.environ.get("POSTGRES_MODEL_CALLS", "60"))
GROUPS, RANKS = ("a", "b"), 2


class Answered(NamedTuple):
    """A call that was answered: what it was, what it gave, and when it began and ended."""

    what: str
    group: str
    generation: int
    rank: int
    step: int
    begun: int
    ended: int


class History:
    """What callers were told, with a clock of their calls."""

    def __init__(self) -> None:
        self.clock: Iterator[int] = count(1)
        self.calls: list[Answered] = []
        self.verdicts: list[Verdict] = []
        self.deletions: list[Answered] = []
        self.refused: Counter[str] = Counter()

    def generations(self, group: str) -> list[Answered]:
        """Return the calls that made a generation."""
        made = ("begin", "seek")
        return [call for call in self.calls if call.group == group and call.what in made]


async def one_node(store: Store, draw: random.Random, history: History, name: str) -> None:
    """Call a store as a node's readers and operators do."""
    known: dict[str, tuple[str, int]] = {}
    for number in range(CALLS):
        group, begun = draw.choice(GROUPS), next(history.clock)
        what = draw.choices(("begin", "commit", "seek", "verdict", "delete"), (3, 12, 1, 2, 0.5))[0]
        if what == "commit" and group not in known:
            what = "begin"
        generation, rank, step = 0, draw.randrange(RANKS), 0
        try:
            if what == "begin":
                token = f"{name}-{number}"
                answer = await store.begin(ask(token, RANKS, group=group))
                generation, step = answer.generation, answer.start_step
                known[group] = token, generation
            elif what == "commit":
                token, generation = known[group]
                step = draw.randrange(1000)
                await store.commit("code", group, token, generation, rank, step)
            elif what == "seek":
                step = draw.randrange(1000)
                moved = await store.seek("code", group, step, f"{name}-{number}", name)
                generation = moved.generation
            elif what == "verdict":
                item = ItemRef("s", draw.randrange(10**6), 0)
                lane = draw.randrange(2)
                verdict = Verdict("draw", item, "", name, True, lane, 10**6)
                history.verdicts.append(await store.add_verdict(LOG, verdict, NOTHING))
            else:
                generation = (await store.delete_group("code", group)).generation
        except (StaleGeneration, UnknownGroup, LogDiverged, StoreUnavailable) as error:
            history.refused[error.code] += 1
            continue
        finally:
            if what == "delete":  # one that was run again has found no group
                ended = next(history.clock)
                history.deletions.append(Answered(what, group, 0, 0, 0, begun, ended))
        call = Answered(what, group, generation, rank, step, begun, next(history.clock))
        history.calls.append(call)


async def end_backends(url: str, draw: random.Random, history: History, nodes: int) -> int:
    """End backends as calls go on, those within a transaction first; return how many."""
    ended, answered = 0, 0
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            if len(history.calls) - answered < draw.randrange(2, 12):
                await asyncio.sleep(0.001)
                if history.refused["done"] == nodes:
                    return ended
                continue
            answered = len(history.calls)
            cursor = await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'penstockd' ORDER BY state = 'idle', random() LIMIT 1"
            )
            ended += len(await cursor.fetchall())


async def test_what_several_nodes_were_answered_holds() -> None:
    """Through ended backends: no commit is lost, no generation twice, no fenced one commits."""
    server, draw, history = postgres.postgres_18(), random.Random(SEED), History()
    url = postgres.in_schema(server, postgres.new_schema())
    stores = [open_store(url, Path()) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        await _interleave(server, draw, history, stores)
    except BaseException as error:
        error.add_note(f"POSTGRES_MODEL_SEED={SEED}")
        raise
    finally:
        await asyncio.gather(*(store.close() for store in stores))


async def _interleave(
    server: str, draw: random.Random, history: History, stores: list[Store]
) -> None:
    async def call_and_tell(store: Store, number: int) -> None:
        await one_node(store, random.Random(f"{SEED}/{number}"), history, f"n{number}")
        history.refused["done"] += 1

    *_, ended = await asyncio.gather(
        *(call_and_tell(store, number) for number, store in enumerate(stores)),
        end_backends(server, draw, history, len(stores)),
    )

    assert ended > 0
    assert len({store.uuid for store in stores}) == 1
    for group in GROUPS:
        check_generations(history, group)
        await check_commits(history, group, stores[0])
    stored = await stores[1].verdicts(LOG)
    assert [verdict.number for verdict in stored] == list(range(1, len(stored) + 1))
    assert {*history.verdicts} <= {*stored}
    changes = await stores[2].changes(LOG, 0)
    assert changes.change == len(stored)


def check_generations(history: History, group: str) -> None:
    """No generation was given twice, and later calls got later ones."""
    made = history.generations(group)
    assert len({call.generation for call in made}) == len(made)
    for first in made:
        for later in made:
            if later.begun > first.ended:
                assert later.generation > first.generation, (first, later)
    for commit in history.calls:
        if commit.what == "commit" and commit.group == group:
            for newer in made:
                if newer.generation > commit.generation:
                    assert newer.ended > commit.begun, ("a fenced commit", commit, newer)


async def check_commits(history: History, group: str, store: Store) -> None:
    """The rows of the latest generation have all that was answered, and each begin did."""
    commits = [c for c in history.calls if c.what == "commit" and c.group == group]
    made = {call.generation: call for call in history.generations(group)}
    for begun in made.values():
        before = made.get(begun.generation - 1)
        if begun.what != "begin" or before is None:
            continue
        if any(
            call.group == group and call.begun < begun.ended and call.ended > before.begun
            for call in history.deletions
        ):
            continue  # it may have begun anew
        done = [before.step] * RANKS
        for commit in commits:
            if commit.generation == before.generation and commit.ended < begun.begun:
                done[commit.rank] = max(done[commit.rank], commit.step)
        assert begun.step >= min(done), (before, begun)
    try:
        (found,) = await store.groups("code", group)
    except UnknownGroup:
        return
    for commit in commits:
        if commit.generation == found.generation:
            assert found.rows[commit.rank] >= commit.step, commit


async def test_commits_of_three_nodes_all_count() -> None:
    """Each node commits for its own ranks of one group, at once."""
    url, ranks = postgres.in_schema(postgres.postgres_18(), postgres.new_schema()), 24
    stores = [open_store(url, Path()) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(store.begin(ask("t", ranks, rank=r)) for r, store in enumerate(stores)))

    async def commit(rank: int) -> None:
        for step in range(1, 21):
            await stores[rank % 3].commit("code", "run", "t", 1, rank, step)

    await asyncio.gather(*map(commit, range(ranks)))

    (found,) = await stores[0].groups("code", "run")
    assert found.rows == (20,) * ranks
    await asyncio.gather(*(store.close() for store in stores))
