"""The contracts of a source and of the four roles: small classes, one required method each.

```
Source            DataDistributor ->  RawItemProcessor  ->  SampleBatcher  ->  BatchCollator
fetches by index  which item next     raw item -> samples   samples -> rows    rows -> named values
```

Every role is a pure function of what it is given. None of them knows a rank, a worker or a node.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from penstock.server.core.contained import contained
from penstock.server.core.frames import error_line, user_place, user_traceback
from penstock.server.core.imports import SOURCE_HASH
from penstock.server.core.neighbours import module_source_hash
from penstock.server.core.refs import Group, ItemRef, Row, SampleRef
from penstock.server.roles import state as role_state
from penstock.wire.errors import InvalidJob, PenstockError

if TYPE_CHECKING:
    from penstock.server.sources.catalog import Catalog

RawItem = Any
"""What a source gives: a dict of columns, bytes, or whatever its data is."""

Sample = dict[str, Any]
"""What a processor gives: named values of one example."""


class Role:
    """What sources and roles have in common: recorded parameters, a version, an identity.

    Class attributes that a subclass may set:
        type_name: The name in job files; built-ins set it, others are named by their import path.
        version: The semantic version of what the role computes. Changing bytes means raising it.
            A user's role without a `version` of its own is identified by its module's source.
        path_params: Constructor parameters that name local files relative to the job file. They do
            not decide bytes: the content of the files does (`content`).
    """

    type_name: ClassVar[str] = ""
    version: ClassVar[int | str | None] = None
    path_params: ClassVar[tuple[str, ...]] = ()

    arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the constructor's arguments: the role's parameters, in a file or in Python."""
        if cls.__init__ is object.__init__ and (args or kwargs):  # which would take them silently
            raise TypeError(f"{cls.__name__}() takes no parameters")
        self = super().__new__(cls)
        try:
            bound = _signature(cls.__init__).bind(self, *args, **kwargs)
        except TypeError:
            self.arguments = {}  # __init__ itself raises right after this, in Python's own words
        else:
            arguments = dict(list(bound.arguments.items())[1:])
            for parameter in bound.signature.parameters.values():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.name in arguments:
                    arguments.update(arguments.pop(parameter.name))
            self.arguments = arguments
        return self

    def clone(self) -> Any:
        """Return a fresh role with the same parameters: every lane has a batcher of its own.

        It gets copies of lists, dicts and the like, of those that are defaults, too: what one
        lane's batcher does to a list that it was given must not reach another's.
        """
        made = _construct(type(self), _copied({**_shared_defaults(type(self)), **self.arguments}))
        made.arguments = self.arguments  # as they were given, whatever the role does to its own
        return made

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes: those equal to their default are left out."""
        defaults = {
            name: parameter.default
            for name, parameter in _signature(type(self).__init__).parameters.items()
        }
        return {
            name: value
            for name, value in self.arguments.items()
            if name not in self.path_params
            and not (
                defaults.get(name, inspect.Parameter.empty) is value
                or _same(defaults.get(name), value)
            )
        }

    def code_of(self, method: str = "") -> str:
        """Return how errors name the code behind this role: what its author would look for.

        A role that calls somebody's function or object names that, with its file, and not itself.

        Args:
            method: The role's method that was called; empty = the role as a whole.
        """
        name = type(self).__name__
        return f"{name}.{method}()" if method else name

    def content(self) -> dict[str, str]:
        """Return hashes of the content behind `path_params`, by parameter: part of the identity.

        By default, of a user's class, the local files that these parameters name: whole up to
        64 MiB, else sampled. Folders, globs and URLs are the class's own to hash.
        """
        if _is_builtin(type(self)):
            return {}
        named = {name: self.arguments.get(name) for name in self.path_params}
        return {name: digest for name, path in named.items() if (digest := _file_hash(path))}

    def identity(self) -> dict[str, Any]:
        """Return what of this role decides bytes, as JSON-able values: a part of the log id."""
        cls = type(self)
        # A user's class goes by its own name: its module's depends on where and how it was loaded,
        # and a `type_name` that it inherits would make it the built-in.
        identity: dict[str, Any] = {"type": cls.type_name if _is_builtin(cls) else cls.__qualname__}
        if cls.version is not None:
            identity["version"] = cls.version
        if not _is_builtin(cls) and "version" not in vars(cls):
            identity["source"] = module_hash(cls)
        if parameters := self.parameters():
            identity["parameters"] = parameters
        if content := self.content():
            identity["content"] = content
        return identity


_signature = cache(inspect.signature)
"""The signature of a constructor, `self` included: read once."""


def asked(role: Role, method: str, *arguments: Any) -> Any:
    """Return what a method of a role gives where a job is built, or looked at.

    Raises:
        InvalidJob: It raised something; names the code behind it, and its line.
    """
    try:
        return contained(lambda: getattr(role, method)(*arguments))
    except PenstockError:
        raise
    except Exception as error:
        raise failing(role, method, error) from error


def failing(role: Role, method: str, error: Exception) -> InvalidJob:
    """Return the error of a job that cannot be built because a method of a role raised."""
    place = user_place(error)
    return InvalidJob(
        f"{role.code_of(method)} fails with {error_line(error)}" + (f" ({place})" if place else ""),
        traceback=user_traceback(error),
    )


def file_of(thing: Any) -> str:
    """Return the name of the file that defines a class or function; empty = it has none."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    return Path(path).name if path else ""


def _is_builtin(cls: type[Any]) -> bool:
    return cls.__module__.startswith("penstock.server.")


def _file_hash(path: Any) -> str | None:
    if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
        return None
    from penstock.server.sources.content import WHOLE_BYTES, content_hash

    size = Path(path).stat().st_size
    with Path(path).open("rb") as stream:

        def read_at(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        return content_hash(read_at, size, whole=size <= WHOLE_BYTES)


def _copied(value: Any) -> Any:
    """Return a value with copies of all plain containers and arrays in it."""
    if type(value) in (list, tuple, set, frozenset, deque):
        if isinstance(value, deque):
            return deque(map(_copied, value), maxlen=value.maxlen)
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list | dict | set | deque):  # a Counter, a class of the user's
        return copy.deepcopy(value)
    return value.copy() if isinstance(value, np.ndarray | bytearray) else value


def _shared_defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the defaults that all instances would share: `def __init__(self, buffer=[])`."""
    return {
        name: parameter.default
        for name, parameter in _signature(cls.__init__).parameters.items()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        and isinstance(parameter.default, list | dict | set | deque | np.ndarray | bytearray)
    }


def _construct(cls: type[Any], arguments: Mapping[str, Any]) -> Any:
    positional: list[Any] = []
    keywords = dict(arguments)
    for name, parameter in list(_signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in keywords:
            positional.append(keywords.pop(name))
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and name in keywords:
            positional += keywords.pop(name)
    return cls(*positional, **keywords)


def module_hash(thing: Any) -> str:
    """Return the SHA-256 of the source of the module that defines a class or function.

    Where the module imports others from its own folder, of theirs, too.
    """
    module = sys.modules.get(thing.__module__)
    if (loaded := getattr(module, SOURCE_HASH, None)) is not None:
        return str(loaded)  # what was run: the file may have been edited since
    if module is not None and (digest := module_source_hash(module)) is not None:
        return digest
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):  # defined at a prompt: nothing to read but its name
        return hashlib.sha256(f"{thing.__module__}:{thing.__qualname__}".encode()).hexdigest()


def _same(default: Any, value: Any) -> bool:
    return type(default) is type(value) and not isinstance(value, np.ndarray) and default == value


# --- the source -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """The storage blocks of a source: what is read and decoded as one, such as a row group.

    Attributes:
        items: How many items each block holds, in index order; blocks of none are allowed.
        nbytes: About how many bytes each takes in memory when it is decoded. From content alone,
            never measured: default windows are chosen by it, and they are part of the log id.
            None = not known.
        stored: How many bytes of each lie in storage, of the columns that are read; None = not
            known.
    """

    items: Sequence[int]
    nbytes: Sequence[int] | None = None
    stored: Sequence[int] | None = None

    def __len__(self) -> int:
        """Return how many blocks there are."""
        return len(self.items)


class Source(Role, ABC):
    """Raw records by index. Its data is immutable for as long as a job lives.

    Class attributes:
        uses_global_rng: True says that `fetch` may draw from the generators of random, numpy or
            torch (a Dataset that augments in `__getitem__`); then items are fetched one by one,
            with these generators seeded before each.
        gives_fresh_items: True promises that `fetch` makes every item anew and keeps no part of
            it. Else items are copied before a processor sees them: one that writes into what it is
            given would change what the source gives the next time.
        may_read_ahead: True says that `fetch` may be called from another thread than the one that
            processes, while that one works: a call at a time, never two at once. Where a call takes
            long, coming items are read meanwhile.
    """

    uses_global_rng: ClassVar[bool] = False
    gives_fresh_items: ClassVar[bool] = False
    may_read_ahead: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items at `indices`, in that order; reads are coalesced, duplicates allowed.

        Raises:
            SourceUnavailable: The bytes cannot be read at this moment (OSError, timeout, 5xx).
            SourceChanged: A file is not the one that was opened.
        """

    def heads(self, indices: Sequence[int], columns: Sequence[str] | None = None) -> list[RawItem]:
        """Return what `RawItemProcessor.size` needs of the items at `indices`, in that order.

        By default the items themselves. Override it where a part of an item is cheaper to read than
        the whole, and the sizes are known from it: a header, a column, an index of lengths.

        Args:
            indices: Which items.
            columns: The processor's `size_columns`: the columns that `size` looks at.

        Raises:
            SourceUnavailable, SourceChanged: As `fetch`.
        """
        return self.fetch(indices)

    def has_heads(self, columns: Sequence[str] | None) -> bool:
        """Tell whether `heads` gives less than whole items, where `size` looks at these columns.

        Else items that were read for their sizes are kept for who makes the batch.
        """
        return type(self).heads is not Source.heads

    def blocks(self) -> Blocks | None:
        """Return the storage blocks; None = random access is cheap."""
        return None

    def keep_blocks(self, count: int) -> None:  # optional
        """Keep so many decoded blocks, those used last: all that is read from; 0 = forget all.

        Called by the process that fetches, at first and whenever it reads from more places or from
        fewer.
        """

    def check_present(self) -> None:  # optional
        """Look whether all that is read from is still there, as it was when the source was opened.

        Called as a run begins, in a thread of its own, maybe while others fetch: without reading,
        and leaving out what only a network can tell.

        Raises:
            SourceChanged: It is not; names the file.
        """

    def fingerprint(self) -> Any:
        """Return what identifies the content, as JSON: names, sizes, hashes; no times or places."""
        return {"length": len(self)}

    def columns_of_items(self) -> Mapping[str, str] | None:
        """Return the keys that items may have, with Arrow's name of their type; "" = unknown.

        None = items are not dicts, or nothing is known before they are read.
        """
        return None

    def unseen(self) -> str | None:
        """Return a sentence about content that `fingerprint` does not tell, or None."""
        if type(self).fingerprint is Source.fingerprint:
            return unseen_sentence(type(self).__name__)
        return None

    def identity(self) -> dict[str, Any]:
        """Return the role's identity with the fingerprint of the content in it."""
        return {**super().identity(), "fingerprint": asked(self, "fingerprint")}

    def hand_over(self) -> Catalog | None:
        """Return what this process knows of the source's files, for the workers of its node.

        They open the source without looking at the files again. None: it has no such catalog, and
        every process opens the files for itself.
        """
        return None

    def read_bytes(self) -> int:
        """Return how many bytes were read from storage since the last call: a metric."""
        return 0

    def close(self) -> None:  # most sources hold nothing
        """Let go of files and connections."""


def unseen_sentence(name: str) -> str:
    """Return what to say of a source or a Dataset that does not tell what its content is."""
    return (
        f"{name} has no fingerprint(), so the log id does not know the data that it reads: where "
        "that changes, a run goes on in the changed data without an error; give it a method "
        "fingerprint() that returns names, sizes and hashes of its files, or a version"
    )


# --- the distributor ------------------------------------------------------------------------------


class Reading(NamedTuple):
    """How the draws of a job read a source of storage blocks: it decides where lanes are placed.

    Attributes:
        source: The name of the source.
        groups: Lane l draws from the blocks of reading group `l mod groups`; lanes of one group
            belong into one worker, which then decodes their blocks alone. None = all lanes draw
            from the same blocks, and any worker may have any lane.
        blocks: How many decoded blocks a group draws from at a time, or all lanes where there are
            no groups; None = not known.
        all_blocks: How many blocks the source has.
        block_bytes: About how many bytes a decoded block takes; 0 = not known.
        stored_bytes: Bytes of a block in storage, in the mean; 0 = not known.
        item_bytes: Bytes of an item in storage, in the mean; 0 = not known.
    """

    source: str
    groups: int | None
    blocks: int | None
    all_blocks: int
    block_bytes: float
    stored_bytes: float
    item_bytes: float

    @property
    def held(self) -> int:
        """Return how many decoded blocks all lanes together draw from at a time."""
        if self.blocks is None:
            return self.all_blocks
        return min(self.all_blocks, (self.groups or 1) * self.blocks)

    @property
    def is_read_by_all(self) -> bool:
        """Tell whether all workers read all blocks in each epoch: they go through its window."""
        return self.groups is None and self.blocks is not None and self.blocks < self.all_blocks


class DataDistributor(Role, ABC):
    """Decides the draws of every lane: which item comes next."""

    sources: Mapping[str, Source]
    seed: int
    epochs: int | None

    def bind(
        self, sources: Mapping[str, Source], seed: int, epochs: int | None, lanes: int
    ) -> None:
        """Take the job's sources, seed and lanes; called once when the job is built."""
        self.sources, self.seed, self.epochs = sources, seed, epochs

    def reading(self) -> Reading | None:
        """Return how a source of storage blocks is read; None = there is none, or by chance."""
        return None

    @abstractmethod
    def draw(self, lane: int, lanes: int, k: int) -> ItemRef | None:
        """Return the k-th draw of a lane, purely from the arguments; None = the lane is over."""

    def draws(self, lane: int, lanes: int) -> int | None:
        """Return how many draws a lane has, by arithmetic; None = endless or unknown."""
        return None

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Return the draws of one lane as a stream with a state; most distributors keep this."""
        return LaneDraws(self, lane, lanes)

    def epoch_draws(self, lanes: int) -> int:
        """Return about how many draws of a lane make an epoch."""
        total = sum(len(source) for source in self.sources.values())
        return max(1, -(-total // lanes))


class LaneDraws:
    """The draws of one lane, one after another; its whole state is the integer `k`."""

    def __init__(self, distributor: DataDistributor, lane: int, lanes: int) -> None:
        self.distributor, self.lane, self.lanes = distributor, lane, lanes
        self.k = 0
        self._peeked: dict[int, ItemRef] = {}  # by k: what was looked at is drawn once

    def next(self) -> ItemRef | None:
        """Return the next item, or None when the lane is over."""
        item = self._peeked.pop(self.k, None)
        if item is None:
            item = self.distributor.draw(self.lane, self.lanes, self.k)
        if item is not None:
            self.k += 1
        return item

    def peek(self, count: int) -> list[ItemRef]:
        """Return up to `count` coming items without taking them: what to fetch ahead."""
        items: dict[int, ItemRef] = {}
        for k in range(self.k, self.k + count):
            item = self._peeked.get(k)
            if item is None:
                item = self.distributor.draw(self.lane, self.lanes, k)
            if item is None:
                break
            items[k] = item
        self._peeked = items
        return list(items.values())

    def state(self) -> Any:
        """Return a JSON-able state of a few integers."""
        return {"k": self.k}

    def restore(self, state: Any) -> None:
        """Go on where `state` was taken."""
        self.k = int(state["k"])


# --- the processor --------------------------------------------------------------------------------


class ProcessContext:
    """What a processor is told beside the raw item.

    Attributes:
        item: Which item, in which epoch.
        rng: A generator seeded from (seed, epoch, item); made when first used.
        skipped: The reason that `skip` was given, or None.
    """

    def __init__(self, item: ItemRef, seed: int) -> None:
        self.item = item
        self.seed = seed
        self.skipped: str | None = None
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Return this item's own random generator: the same on every node and in every order."""
        if self._rng is None:
            self._rng = np.random.Generator(np.random.Philox(key=item_key(self.seed, self.item)))
        return self._rng

    @property
    def drew(self) -> bool:
        """Tell whether `rng` was used."""
        return self._rng is not None

    def skip(self, reason: str) -> None:
        """Filter this item with a counted reason: `return context.skip("too short")`."""
        self.skipped = reason


def item_key(seed: int, item: ItemRef) -> int:
    """Return 128 bits that decide everything random about one item in one epoch."""
    text = f"item\0{seed}\0{item.source}\0{item.index}\0{item.epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


def batch_key(seed: int, lane: int, offset: int) -> int:
    """Return 128 bits that decide everything random about collating one batch."""
    text = f"batch\0{seed}\0{lane}\0{offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")


class RawItemProcessor(Role, ABC):
    """Turns a raw item into samples. Pure: what is random comes from `context.rng`.

    Class attributes:
        one_to_one: True promises exactly one sample for every item, never a filter. Then, where the
            batcher needs no sizes or `size` knows them, batches are planned from refs alone and
            items are processed only when they leave the pool, by any worker.
        uses_global_rng: The generators of random, numpy and torch are seeded before each item, so
            that existing augmentation code is reproducible unedited; False promises not to use
            them, and saves about 10 us an item.
        size_columns: The columns that `size` looks at, where items are dicts: a source that reads
            columns alone brings only these until the batch is made. None = the whole item.
    """

    one_to_one: ClassVar[bool] = False
    uses_global_rng: ClassVar[bool] = True
    size_columns: ClassVar[Sequence[str] | None] = None

    @abstractmethod
    def process(self, raw: RawItem, context: ProcessContext) -> Sample | Sequence[Sample] | None:
        """Return the sample of an item, several samples, or None to filter it.

        Raises:
            Exception: Whatever it raises twice for the same bytes makes a `BadItem`. What may be
                gone in a moment is retried and never does: see `core.transient`.
        """

    def author(self, source: Source) -> Role:
        """Return whose code decides what `process` gives, and is to blame where it fails.

        Args:
            source: Where the item comes from.
        """
        return self

    def process_batch(
        self, raws: Sequence[RawItem], contexts: Sequence[ProcessContext]
    ) -> list[Sample | Sequence[Sample] | None]:
        """Return what `process` gives for each item; override where many at once are cheaper."""
        return [self.process(raw, context) for raw, context in zip(raws, contexts, strict=True)]

    def size(self, raw: RawItem) -> int | None:
        """Return the size of the one sample of an item without decoding it; None = not known.

        It must leave `raw` as it is: the same object may go to `process`. With `size_columns`, and
        with a source that has heads of items, it may be given these in place of the whole item.
        """
        return None

    def knows_size(self) -> bool:
        """Tell whether `size` gives an answer: by default whether a subclass overrides it."""
        return type(self).size is not RawItemProcessor.size

    def check_columns(self, columns: Mapping[str, str]) -> None:  # optional
        """Refuse a source whose items have no column that this needs; called with the job's own.

        Args:
            columns: What `Source.columns_of_items` tells, where it tells something.

        Raises:
            InvalidJob: Every item would fail.
        """

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the keys that samples have, given those of the items; None = not known."""
        return None

    def setup(self) -> None:  # optional
        """Load what processing needs; called once in each worker before the first item."""

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Return elements `[start, stop)` of a sample of `size` elements.

        By default every one-dimensional value of exactly `size` elements is sliced and all others
        are kept whole.
        """
        return {
            name: value[start:stop] if _length(value) == size else value
            for name, value in sample.items()
        }


def _length(value: Any) -> int | None:
    if isinstance(value, (str, bytes)):
        return None
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) == 1 else None


# --- the batcher ----------------------------------------------------------------------------------


class SampleBatcher(Role, ABC):
    """Forms groups of samples from a stream of them: one per lane, sequential, on refs and sizes.

    What it holds between calls must be plain: numbers, strings, lists, tuples, deques, dicts and
    `SampleRef`s in attributes. `state` and `restore` carry exactly these; samples themselves never.

    Class attributes:
        needs_sizes: False promises that sizes are not looked at: they may be 0.
        needs_content: True asks for the sample in `add`. It may be looked at there, and not kept.
    """

    needs_sizes: ClassVar[bool] = True
    needs_content: ClassVar[bool] = False

    @abstractmethod
    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Group]:
        """Take one sample (its size is `ref.size`); return the groups it finished, in order."""

    def flush(self) -> list[Group]:
        """Return what is left when the lane is over."""
        return []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the samples that are held and not yet in a finished group, in any order."""
        return role_state.find_refs(self)

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: then its state is copied before an item of several samples.

        False promises that it takes every sample; it saves that copy.
        """
        return True

    def check_keys(self, keys: Iterable[str]) -> None:  # optional
        """Refuse samples that lack a value that this needs; called where their keys are known.

        Raises:
            InvalidJob: Every sample would fail.
        """

    def size_of(self, sample: Sample) -> int:
        """Return the size of a processed sample: by default `len(sample["input_ids"])`."""
        return len(sample["input_ids"])

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out since the lane's start.

        A sample that `add` takes and counts here will be in no group: only this says so, not the
        name of any count. The reasons are few words, the same for every lane; those that are known
        beforehand are there from the start, at 0.
        """
        return {}

    def counters(self) -> dict[str, int]:
        """Return what else is counted since the lane's start, for example truncated samples."""
        return {}

    def batches(self, draws: int) -> int | None:
        """Return how many groups `draws` samples make, flush included; None = unknown."""
        return None

    def draws_before(self, offset: int) -> int | None:
        """Return how many samples precede group `offset`, if nothing is held across that border.

        Where this is known a lane starts at any offset in O(1).
        """
        return None

    def state(self) -> Any:
        """Return what is held, JSON-able and canonical."""
        return role_state.capture(self)

    def restore(self, state: Any) -> None:
        """Take back what `state` gave; called on a fresh batcher with the same parameters."""
        role_state.restore(self, state)


# --- the collator ---------------------------------------------------------------------------------


class CollateContext:
    """What a collator is told beside the rows.

    Attributes:
        lane: The lane of the batch.
        offset: Its offset.
        rng: A generator seeded from (seed, lane, offset); made when first used.
        counts: Integers that travel in the header: see `count`.
    """

    def __init__(self, seed: int, lane: int, offset: int) -> None:
        self.seed, self.lane, self.offset = seed, lane, offset
        self.counts: dict[str, int] = {}
        self._rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Return this batch's own random generator."""
        if self._rng is None:
            key = batch_key(self.seed, self.lane, self.offset)
            self._rng = np.random.Generator(np.random.Philox(key=key))
        return self._rng

    def count(self, name: str, value: int) -> None:
        """Set an integer that travels with the batch: tokens, loss_tokens, or one of your own."""
        self.counts[name] = int(value)


class BatchCollator(Role, ABC):
    """Turns rows of samples into named values. Pure; fixes names, dtypes, order and layout.

    Class attributes:
        uses_global_rng: The generators of random, numpy and torch are seeded before each batch;
            False promises not to use them.
        pads_empty: True promises that `collate` makes of rows that are all empty a batch of padding
            with the keys, dtypes and shapes of every other batch. Else it never gets such rows: a
            batch that quarantine has emptied is collated from samples of zeros in the shapes of a
            real one, and then given to `blank`.
    """

    uses_global_rng: ClassVar[bool] = True
    pads_empty: bool = False

    @abstractmethod
    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values of one batch.

        Args:
            rows: The rows of the batch, each a list of samples. A row may be empty where items were
                quarantined; all of them only with `pads_empty`.
            context: Lane, offset, random generator, counts.
        """

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a batch of the same shapes that must not train: by default the values as they are.

        The header marks it as padding and its counts are zero, whatever this returns.
        """
        return values

    def specs(self) -> list[KeySpec]:
        """Return what is known of the values before any is made; empty = nothing is known."""
        return []

    def value_layout(self) -> Layout:
        """Return how samples lie in the values; by default nothing is known of it."""
        return Layout()


@dataclass(frozen=True)
class KeySpec:
    """What is known of one value of every batch, before any is made.

    Attributes:
        name: Its name.
        kind: tensor, list, int, float, bool, str, bytes or json.
        dtype: NumPy's name of the dtype, or bfloat16; empty where it is no tensor.
        shape: -1 = differs between batches.
        optional: Some batches lack it.
        place: `device`, or `host` for what the trainer reads in Python.
        least: No element is below it; None = not known.
        most: No element is above it; None = not known.
    """

    name: str
    kind: str = "tensor"
    dtype: str = ""
    shape: tuple[int, ...] = ()
    optional: bool = False
    place: str = "device"
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class Layout:
    """How samples lie in a batch's values, for those that show or train on them.

    Attributes:
        name: `packed` (documents one after the other in rows), `padded` (a sample per row); empty =
            not known.
        labels_shifted: The label of a token is the token that follows it.
        ignore_index: The label that losses leave out; None = there are no labels that are known.
    """

    name: str = ""
    labels_shifted: bool = False
    ignore_index: int | None = None


__all__ = [
    "BatchCollator",
    "Blocks",
    "CollateContext",
    "DataDistributor",
    "Group",
    "ItemRef",
    "KeySpec",
    "LaneDraws",
    "Layout",
    "ProcessContext",
    "RawItem",
    "RawItemProcessor",
    "Reading",
    "Role",
    "Row",
    "Sample",
    "SampleBatcher",
    "SampleRef",
    "Source",
    "asked",
    "batch_key",
    "failing",
    "file_of",
    "item_key",
    "module_hash",
    "unseen_sentence",
]
