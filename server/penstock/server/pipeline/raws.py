"""Raw items: read from their sources, with what will be needed next read meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial

from penstock.server.core.copies import own_copy
from penstock.server.core.refs import ItemRef
from penstock.server.job import Job
from penstock.server.pipeline.kept import KEPT_BYTES, KeptItems
from penstock.server.pipeline.retry import RETRY_DEADLINE_S, Call, Calls, Progress
from penstock.server.roles.base import RawItem, Source
from penstock.server.roles.context import item_key
from penstock.server.usercode.contained import contained
from penstock.server.usercode.seeding import BorrowedGlobals
from penstock.wire.errors import BadItem, PenstockError

READ_AHEAD_S = 0.001
"""Where a source takes longer than this for a call, what comes next is read meanwhile by a thread;
below it a thread costs more than it saves."""


class RawItems(Calls):
    """Reads the items of one job in one process.

    Args:
        job: The job.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.

    Attributes:
        careful: One item at a time, none ahead: something here has ended a worker, and `progress`
            shall name it.
        kept_bytes: Raw items that are kept until they are needed again, or were read ahead, take at
            most so much memory.
        globals: The global generators, for roles that draw from them.
    """

    def __init__(
        self,
        job: Job,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        super().__init__(job, progress, retry_deadline_s)
        self.careful = False
        self.kept_bytes = KEPT_BYTES
        self.globals = BorrowedGlobals()
        self._may_read_ahead = all(source.may_read_ahead for source in job.sources.values())
        self._reading = threading.Lock()  # a source is called by one thread at a time
        self._read_s = 0.0  # how long a call of fetch() usually takes
        self._kept: KeptItems | None = None
        # A torch Dataset decodes what it reads: an error of its own is like one of process().
        self._fetching = {
            name: Call(source, "fetch", reading=not source.uses_global_rng)
            for name, source in job.sources.items()
        }
        pure = [name for name, source in job.sources.items() if not source.uses_global_rng]
        self._only_source = pure[0] if len(pure) == len(job.sources) == 1 else None

    def raws(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Return the raw items: read here, unless they were read before.

        Raises:
            SourceUnavailable: After retries to the deadline; names the item.
            BadItem: The source's own code fails twice on the same item.
        """
        if self._kept is None or not items:
            return self.read(items)
        self.progress("fetch", items[0])
        kept = self._kept.take(items)
        if not kept:
            return self.read(items)
        missing = [item for item in items if item not in kept]
        if missing:
            kept.update(zip(missing, self.read(missing), strict=True))
        return [kept[item] for item in items]

    def read_together(self, items: Sequence[ItemRef]) -> bool:
        """Read items at once and keep them until they are needed; tell whether they are kept.

        They are not where one of them fails: it is named once it is needed itself.

        Raises:
            SourceUnavailable: After retries to the deadline.
        """
        # A torch Dataset decodes what it reads: what is not needed yet would cost as much.
        if len(items) < 2 or not all(call.reading for call in self._fetching.values()):
            return False
        try:
            raws = self.raws(items)
        except BadItem:
            return False
        self.keeper().keep(items, raws)
        return True

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
        source, what = self.job.sources[name], self._fetching[name]
        self.progress("fetch", items[0])

        read = self._seeded if source.uses_global_rng else self._of_source
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
        return self._of_source(source, items, heads)

    def _of_source(
        self, source: Source, items: Sequence[ItemRef], heads: bool = False
    ) -> list[RawItem]:
        indices = [item.index for item in items]
        began_s = time.perf_counter()
        with self._reading:
            if heads:
                raws = source.heads(
                    indices, self.job.roles_of(items[0].source).processor.size_columns
                )
            else:
                raws = source.fetch(indices)
        self._read_s += 0.1 * (time.perf_counter() - began_s - self._read_s)
        # A processor may write into what it is given: that must not be the source's own.
        return raws if source.gives_fresh_items else [own_copy(raw) for raw in raws]

    def seed(self, item: ItemRef) -> None:
        """Seed the borrowed generators for an item."""
        self.globals.seed(item_key(self.job.seed, item))

    # --- what will be needed next ---

    @property
    def reads_ahead(self) -> bool:
        """Tell whether it is worth while to say what will be needed next."""
        return self._may_read_ahead and self._read_s > READ_AHEAD_S and not self.careful

    def read_ahead(self, items: Sequence[ItemRef]) -> None:
        """Have items read by another thread while this one goes on; only where `reads_ahead`."""
        if items:
            self.keeper().ask(items)

    def keeper(self) -> KeptItems:
        """Return what keeps raw items that will be needed."""
        if self._kept is None:
            self._kept = KeptItems(self._read_aside, self.kept_bytes)
        return self._kept

    def _read_aside(self, items: Sequence[ItemRef]) -> list[RawItem]:
        """Read items in another thread: once, for whoever needs them tries again."""
        found: dict[ItemRef, RawItem] = {}
        for name, source in self.job.sources.items():
            own = [item for item in items if item.source == name]
            if own:
                raws = contained(partial(self._of_source, source, own))
                found.update(zip(own, raws, strict=True))
        return [found[item] for item in items]


__all__ = ["RawItems"]
