"""Calls of sources: one at a time, seeded where they draw, each item that fails named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.retry import RETRY_DEADLINE_S, Calls, Progress, RoleCall
from penstock.server.roles.context import item_key
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import Source
from penstock.server.usercode.copies import own_copy
from penstock.server.usercode.seeding import BorrowedGlobals
from penstock.wire.errors import BadItem, PenstockError

_Read = TypeVar("_Read")


class SourceCalls(Calls):
    """Calls the sources of one job in one process.

    Args:
        job: The job.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        careful: One item at a time, none ahead: something here has ended a worker, and `progress`
            shall name it.
        globals: The global generators, for roles that draw from them.
        read_s: How long a call of `fetch` usually takes.
        fetching: What a call of each source is, by name.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        super().__init__(job, progress, retry_deadline_s)
        self.careful = False
        self.globals = BorrowedGlobals()
        self.read_s = 0.0
        self._reading = threading.Lock()  # a source is called by one thread at a time
        # A torch Dataset decodes what it reads: an error of its own is like one of process().
        self.fetching = {
            name: RoleCall(source, "fetch", reading=not source.uses_global_rng)
            for name, source in job.sources.items()
        }
        pure = [name for name, source in job.sources.items() if not source.uses_global_rng]
        self._only_source = pure[0] if len(pure) == len(job.sources) == 1 else None

    def read(self, items: Sequence[ItemRef], *, heads: bool = False) -> list[RawItem]:
        """Return raw items, or their heads, from their sources."""
        if self._only_source is not None and items:
            return self._fetch(self._only_source, items, heads)
        found: list[RawItem] = [None] * len(items)
        by_source: dict[str, list[int]] = {}
        for place, item in enumerate(items):
            by_source.setdefault(item.source, []).append(place)
        for name, places in by_source.items():
            source = self.job.sources[name]
            if source.uses_global_rng:
                # A torch Dataset augments in __getitem__: every item is seeded on its own.
                with self.globals:
                    for place in places:
                        found[place] = self._fetch(name, [items[place]], heads)[0]
            else:
                for place, raw in zip(
                    places,
                    self._fetch(name, [items[place] for place in places], heads),
                    strict=True,
                ):
                    found[place] = raw
        return found

    def _fetch(self, name: str, items: Sequence[ItemRef], heads: bool = False) -> list[RawItem]:
        """Return items of one source: all at once, or where that fails one by one, to name one."""
        source, what = self.job.sources[name], self.fetching[name]
        self.progress("fetch", items[0])

        read = self._seeded if source.uses_global_rng else self.items_of
        fetch = partial(read, source, items, heads)
        if len(items) > 1:
            try:
                return self.retried(fetch, what, items[0])
            except PenstockError:
                raise
            except Exception as error:
                # One of them fails, and is named when it is alone.
                found = [self._fetch(name, [item], heads)[0] for item in items]
                self.tell_of(what._replace(what_for=" of several items"), error)
                return found
        try:
            return self.twice(fetch, what, items[0], PenstockError)
        except BadItem as error:
            raise self.damaged(items[0], error) from error
        except PenstockError:
            raise
        except Exception as error:
            raise self.bad_item("draw", what, items[0], error) from error

    def _seeded(
        self, source: Source, items: Sequence[ItemRef], heads: bool = False
    ) -> list[RawItem]:
        """Read an item for which the borrowed generators are seeded."""
        self.seed(items[0])
        return self.items_of(source, items, heads)

    def items_of(
        self, source: Source, items: Sequence[ItemRef], heads: bool = False
    ) -> list[RawItem]:
        """Return items of one source, or their heads, in one call of it."""
        indices = [item.index for item in items]
        read = partial(source.fetch, indices)
        if heads:
            columns = self.job.roles_of(items[0].source).processor.size_columns
            read = partial(source.heads, indices, columns)
        began_s = time.perf_counter()
        raws = self.of_source(read)
        self.read_s += 0.1 * (time.perf_counter() - began_s - self.read_s)
        # A processor may write into what it is given: that must not be the source's own.
        return raws if source.gives_fresh_items else [own_copy(raw) for raw in raws]

    def of_source(self, read: Callable[[], _Read]) -> _Read:
        """Return what a call of a source gives: one thread at a time calls sources."""
        with self._reading:
            return read()

    def seed(self, item: ItemRef) -> None:
        """Seed the borrowed generators for an item."""
        self.globals.seed(item_key(self.job.seed, item))
