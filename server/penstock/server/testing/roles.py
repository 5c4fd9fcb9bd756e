"""What every source, processor, batcher and collator guarantees."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.server.core.refs import ItemRef, Rows, SampleRef
from penstock.server.media.media_reference import read_reference
from penstock.server.media.medium import HeldMedium
from penstock.server.roles.batcher import SampleBatcher, facts_of
from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor, measures_of
from penstock.server.roles.samples import RawItem, Sample, SampleSizes, ref_of, wrong_counts
from penstock.server.roles.source import IndexedSource, StreamSource
from penstock.server.testing.compare import as_bytes, check_identity, holds
from penstock.wire.errors import BadItem
from penstock.wire.item_numbers import row_index
from penstock.wire.value_types import to_plain

SampleRows = Sequence[Sequence[Sample]]


# --- sources ---


def check_source(source: IndexedSource) -> None:
    """Test a source of items by index; its items are fetched several times.

    Items come by index in the order asked, repeats included; an index outside is an IndexError;
    blocks add up to the length; the identity can be hashed.

    Raises:
        AssertionError: A property does not hold; says which.
    """
    name, count = type(source).__name__, len(source)
    holds(count > 0, f"{name} holds no item")
    whole = as_bytes(source.fetch(range(count)))[1:]
    holds(len(whole) == count, f"{name}.fetch() gave {len(whole)} items for {count} indices")
    asked = [*reversed(range(count)), 0, count - 1, 0]
    holds(
        as_bytes(source.fetch(asked))[1:] == [whole[index] for index in asked],
        f"{name}.fetch() does not give the items in the order asked, or gives others the second "
        "time",
    )
    holds(source.fetch([]) == [], f"{name}.fetch([]) is not an empty list")
    for index in (-1, count):
        try:
            source.fetch([0, index])
        except IndexError:
            continue
        raise AssertionError(f"{name}.fetch([0, {index}]) raises no IndexError")
    blocks = source.blocks()
    holds(
        blocks is None or (sum(blocks.items) == count and min(blocks.items) > 0),
        f"{name}.blocks() does not add up to its {count} items, or has an empty block",
    )
    check_identity(source)


def check_stream(source: StreamSource) -> None:
    """Test a stream; its shards are read from the start, and from every mark.

    Reading from a mark gives the same rows and marks as reading from the start; marks are
    JSON; rows are found in any order; the identity can be hashed.

    Raises:
        AssertionError: A property does not hold; says which.
    """
    name, shards = type(source).__name__, source.shards()
    holds(list(source.shards()) == list(shards), f"{name}.shards() gives others the second time")
    indices: list[int] = []
    for shard in range(len(shards)):
        whole = list(source.open(shard, None))
        rows, marks = as_bytes([raw for raw, _ in whole]), [mark for _, mark in whole]
        holds(_plain(marks) == marks, f"{name}.open() gives a mark that JSON changes: {marks}")
        for row, mark in enumerate(marks, 1):
            if mark is None:
                continue
            rest = list(source.open(shard, mark))
            holds(
                as_bytes([raw for raw, _ in rest])[1:] == rows[1 + row :],
                f"{name}.open({shard}, {mark!r}) does not begin with row {row}, or gives others",
            )
            holds(
                [after for _, after in rest] == marks[row:],
                f"{name}.open({shard}, {mark!r}) gives other marks than a reading from the start: "
                "they are part of snapshots, and must not depend on where reading began",
            )
        indices += [row_index(shard, row) for row in range(len(whole))]
    holds(len(indices) > 0, f"{name} holds no row")
    ordered = as_bytes(source.fetch(indices))[1:]
    holds(
        as_bytes(source.fetch(indices[::-1]))[1:] == ordered[::-1],
        f"{name} gives other rows in another order",
    )
    check_identity(source)
    source.close()


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None


# --- processors ---


def check_processor(processor: RawItemProcessor, items: Sequence[RawItem]) -> None:
    """Test a processor, with items as its source gives them.

    The item alone decides the samples: whatever was processed before, by any copy of the role. The
    item is not changed. None comes with a reason, and `one_to_one` never filters. Samples are as
    long after `for_lengths`. They count what the `measures` are, and what `size` tells. The
    identity can be hashed.

    Args:
        processor: The processor.
        items: The items; those of a `MediaProcessor` hold the bytes of their media.

    Raises:
        AssertionError: A property does not hold; says which.
    """
    holds(items, "give at least one item")
    for number, item in enumerate(items):
        _check_item(processor, item, items[number - 1], number)
    check_identity(processor)


def _check_item(processor: RawItemProcessor, item: RawItem, other: RawItem, number: int) -> None:
    where = f"{type(processor).__name__}.process() of item {number}"
    before, given, told = (
        copy.deepcopy(item),
        copy.deepcopy(item),
        _context_of(processor, item, number),
    )
    used = processor.clone()
    used.setup()
    first = used.process(given, told)
    kept = (as_bytes(first), told.skipped)
    holds(as_bytes(given) == as_bytes(before), f"{where} changes the item that it is given")
    holds(
        (first is None) == (told.skipped is not None),
        f"{where} gives None without a reason, or a reason with a sample: return context.skip(why)",
    )
    if processor.one_to_one:
        holds(isinstance(first, dict), f"{where} gives {first!r}, and says one_to_one")
    used.process(copy.deepcopy(other), _context_of(processor, other, number + 1))
    sent: RawItemProcessor = pickle.loads(pickle.dumps(processor))
    copies = {"a second time": used, "by a clone": processor.clone(), "by a pickled copy": sent}
    for how, copied in copies.items():
        if copied is not used:
            copied.setup()
        told = _context_of(processor, before, number)
        again = as_bytes(copied.process(copy.deepcopy(before), told))
        holds((again, told.skipped) == kept, f"{where} gives other samples {how}: it is not pure")
    samples = [first] if isinstance(first, dict) else list(first or ())
    _check_counts(processor, before, samples, where)
    if processor.measures and samples and (sizes := _sizes(processor, before)) is not None:
        holds(
            tuple(sizes.counts) == tuple(processor.counts(samples[0])),
            f"{where} gives a sample that counts {tuple(processor.counts(samples[0]))}, and size() "
            f"said {tuple(sizes.counts)} of {tuple(processor.measures)}",
        )
    for key in sorted({key for sample in samples for key in sample}):
        counting, told = processor.clone().for_lengths(key), _context_of(processor, before, number)
        counting.setup()
        found = counting.process(copy.deepcopy(before), told)
        counted = [found] if isinstance(found, dict) else list(found or ())
        holds(
            _lengths(counted, key) == _lengths(samples, key),
            f"{where} gives other lengths of {key!r} after for_lengths({key!r})",
        )


def _check_counts(
    processor: RawItemProcessor, item: RawItem, samples: Sequence[Sample], where: str
) -> None:
    """Test that samples, and what is told of them, count as much as there are measures."""
    measures = measures_of(processor)
    counts = [tuple(processor.counts(sample)) for sample in samples]
    if (
        processor.one_to_one
        and processor.knows_size()
        and not isinstance(processor, MediaProcessor)
    ):
        told = processor.size(copy.deepcopy(item))
        counts += [told.counts if isinstance(told, SampleSizes) else ()]
    for found in counts:
        why = wrong_counts(found, measures)
        holds(why is None, f"{where} counts {found}: {why}")


def _lengths(samples: Sequence[Sample], key: str) -> list[int | None]:
    return [_length(sample.get(key)) for sample in samples]


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:  # a number, or an array without dimensions
        return None


def _context_of(processor: RawItemProcessor, item: RawItem, number: int) -> ProcessContext:
    """Return what an item is processed with: its media, too, which it must hold."""
    return ProcessContext(ItemRef("main", number, 0), seed=7, media=_media(processor, item))


def _media(processor: RawItemProcessor, item: RawItem) -> list[HeldMedium]:
    if not isinstance(processor, MediaProcessor):
        return []
    media = [read_reference(each, n) for n, each in enumerate(processor.references(item))]
    held = [medium for medium in media if isinstance(medium, HeldMedium)]
    holds(
        len(held) == len(media),
        f"{type(processor).__name__} gets its media from files here: give items that hold bytes",
    )
    return held


def _sizes(processor: RawItemProcessor, item: RawItem) -> SampleSizes | None:
    if isinstance(processor, MediaProcessor):
        found = processor.size(item, _media(processor, item))
    else:
        found = processor.size(item)
    return found if isinstance(found, SampleSizes) else None


# --- batchers ---


def check_batcher(
    batcher: SampleBatcher, samples: Sequence[tuple[int | SampleSizes, Sample]]
) -> None:
    """Test a batcher, with samples of your sizes.

    Nothing is lost or repeated: after every sample each one is in a group, pending or counted as
    dropped. A batcher restored from its state at any point goes on as if it had not been restored,
    even one that was restored from a restored one. Equal histories give equal groups and states.
    What `facts` promises holds.

    Args:
        batcher: The batcher.
        samples: The size of each sample, with its counts if it has some, and its content, which is
            given to it if it `needs_content`. Without a job the counts are those of `limits`, in
            order.

    Raises:
        AssertionError: A property does not hold; says which.
    """
    name = type(batcher).__name__
    refs = [ref_of(ItemRef("main", n, 0), size) for n, (size, _) in enumerate(samples)]
    content = {ref: sample for ref, (_, sample) in zip(refs, samples, strict=True)}
    truth = tell(batcher.clone(), refs, content)
    holds(tell(batcher.clone(), refs, content) == truth, f"{name} gives other groups each time")
    _check_conserved(batcher.clone(), refs, content)
    check_facts(batcher, refs, content)
    running = batcher.clone()
    for point, ref in enumerate(refs):
        check_restored(running, refs[point:], content)
        add(running, ref, content)
    check_identity(batcher)


def add(
    batcher: SampleBatcher, ref: SampleRef, content: Mapping[SampleRef, Sample]
) -> list[Rows] | None:
    """Add a sample as a planner does; None = it was refused as a bad item."""
    try:
        return list(batcher.add(ref, content[ref] if batcher.needs_content else None))
    except BadItem:
        return None


def frozen(batcher: SampleBatcher) -> bytes:
    """Return the bytes of a snapshot."""
    return json.dumps(batcher.state(), allow_nan=False).encode()


def thawed(batcher: SampleBatcher, state: bytes) -> SampleBatcher:
    """Return a fresh batcher of the same parameters, restored from a snapshot's bytes."""
    fresh: SampleBatcher = batcher.clone()
    fresh.restore(json.loads(state))
    return fresh


def tell(
    batcher: SampleBatcher, refs: Sequence[SampleRef], content: Mapping[SampleRef, Sample]
) -> list[Any]:
    """Return everything that can be observed of a batcher from here to the end of its lane."""
    seen: list[Any] = []
    for ref in refs:
        seen += [add(batcher, ref, content), batcher.counters(), frozen(batcher)]
    return [*seen, batcher.flush(), batcher.counters(), frozen(batcher)]


def check_restored(
    batcher: SampleBatcher, refs: Sequence[SampleRef], content: Mapping[SampleRef, Sample]
) -> None:
    """Test that a batcher restored from the current state goes on as this one would.

    Args:
        batcher: It is not changed.
        refs: What comes next.
        content: The samples.

    Raises:
        AssertionError: It goes on differently.
    """
    name, state = type(batcher).__name__, frozen(batcher)
    once = thawed(batcher, state)
    twice = thawed(once, frozen(once))
    holds(frozen(twice) == state, f"{name}.state() differs after restore()")
    holds(
        sorted(twice.pending) == sorted(batcher.pending),
        f"{name}.pending differs after restore()",
    )
    continued = tell(copy.deepcopy(batcher), refs, content)
    holds(
        tell(twice, refs, content) == continued,
        f"{name} goes on in another way after restore() than without it",
    )


def check_facts(
    batcher: SampleBatcher, refs: Sequence[SampleRef], content: Mapping[SampleRef, Sample]
) -> None:
    """Test what a batcher promises in `facts`.

    Args:
        batcher: It is not changed.
        refs: What comes.
        content: The samples.

    Raises:
        AssertionError: A promise does not hold; says which.
    """
    name, facts, working = type(batcher).__name__, facts_of(batcher), batcher.clone()
    least, most = facts.sizes_kept or (0, -1)
    batches: list[Rows] = []
    for ref in refs:
        dropped = working.dropped()
        found = add(working, ref, content)
        is_kept = found is not None and working.dropped() == dropped
        holds(
            is_kept or not least <= ref.size <= most,
            f"{name}.facts() has sizes_kept {facts.sizes_kept}, and size {ref.size} was left out",
        )
        holds(
            facts.may_refuse or found is not None, f"{name} refuses {ref}, and says it never does"
        )
        batches += found or []
    batches += working.flush()
    pieces = [ref for ref in _refs_of(batches) if ref.span is not None and ref.span.start]
    holds(facts.may_split or not pieces, f"{name} splits {pieces[:1]}, and says it never does")
    count = facts.batches(len(refs))
    holds(
        count is None or count == len(batches),
        f"{name} made {len(batches)} batches of {len(refs)} samples, and facts() tell {count}",
    )
    for row in (row for batch in batches for row in batch):
        limit = facts.row_limit
        holds(
            limit is None or len(row) == 1 or sum(ref.size for ref in row) <= limit,
            f"{name} has a row above its row_limit of {limit}: {row}",
        )
        for place, most in facts.row_counts:
            holds(
                len(row) == 1 or sum(ref.counts[place] for ref in row) <= most,
                f"{name} has a row that counts more than {most}: {row}",
            )


def _check_conserved(
    batcher: SampleBatcher, refs: Sequence[SampleRef], content: Mapping[SampleRef, Sample]
) -> None:
    name, refused = type(batcher).__name__, 0
    seen: list[SampleRef] = []
    for count, ref in enumerate(refs, 1):
        groups = add(batcher, ref, content)
        refused += groups is None
        seen += _refs_of(groups or [])
        _check_places(name, refs[:count], [*seen, *batcher.pending], batcher, refused)
    seen += [*_refs_of(batcher.flush()), *batcher.pending]
    _check_places(name, refs, seen, batcher, refused)


def _refs_of(groups: Sequence[Rows]) -> list[SampleRef]:
    return [ref for group in groups for row in group for ref in row]


def _check_places(
    name: str,
    given: Sequence[SampleRef],
    found: Sequence[SampleRef],
    batcher: SampleBatcher,
    refused: int,
) -> None:
    """Hold what was found to what was given: each whole once, or in pieces that follow."""
    pieces: dict[tuple[ItemRef, int], list[SampleRef]] = {}
    for ref in found:
        pieces.setdefault((ref.item, ref.part), []).append(ref)
    missing = 0
    for ref in given:
        own = pieces.pop((ref.item, ref.part), None)
        missing += own is None
        if own is None or own == [ref]:
            continue
        spans = sorted(piece.span for piece in own if piece.span is not None)
        follows = [0, *(span.stop for span in spans[:-1])]
        holds(
            len(spans) == len(own) and [span.start for span in spans] == follows,
            f"{name} gives {ref.item} twice, or pieces of it that do not follow each other",
        )
    holds(not pieces, f"{name} gives samples that it was not given: {list(pieces)[:3]}")
    dropped = sum(batcher.dropped().values())
    holds(
        missing == refused + dropped,
        f"{name} has lost samples: {missing} of {len(given)} are in no group and not pending, "
        f"{refused} were refused and {dropped} counted by dropped()",
    )


# --- collators ---


def check_collator(collator: BatchCollator, rows: SampleRows, later: SampleRows) -> None:
    """Test a collator, with the rows of two batches.

    The rows alone decide the batch, and are not changed. Names, their order, types and dtypes
    are those of every batch (with `fixed_keys`), and what `specs` announced. Every value can be
    sent. A padding batch has the same names, dtypes and shapes.

    Raises:
        AssertionError: A property does not hold; says which.
        UnsupportedValue: A value cannot be sent.
    """
    name = f"{type(collator).__name__}.collate()"
    before, told = copy.deepcopy(rows), _batch_context()
    values = collator.collate(rows, told)
    kept, counts = as_bytes(values), dict(told.counts)
    second = collator.collate(later, _batch_context())
    told = _batch_context()
    again = collator.clone().collate(copy.deepcopy(before), told)
    holds(
        as_bytes(again) == kept and told.counts == counts,
        f"{name} gives another batch the second time: it is not pure",
    )
    holds(as_bytes(rows) == as_bytes(before), f"{name} changes the samples that it is given")
    holds(
        not collator.fixed_keys or list(values) == list(second),
        f"{name} gives {list(values)} of one batch and {list(second)} of another",
    )
    for key, value in values.items():
        to_plain(value, key)
        other = second.get(key, value)
        holds(
            _kind(value) == _kind(other),
            f"{name} gives {key!r} as {_kind(value)} in one batch and {_kind(other)} in another",
        )
    holds(
        all(type(count) is int for count in counts.values()),
        f"{name} counts in something else than int: {counts}",
    )
    _check_specs(collator, values)
    blank = collator.blank(values)
    holds(as_bytes(values) == kept, f"{type(collator).__name__}.blank() changes what it is given")
    holds(
        [(key, _form(value)) for key, value in blank.items()]
        == [(key, _form(value)) for key, value in values.items()],
        f"{type(collator).__name__}.blank() gives other names, dtypes or shapes",
    )
    check_identity(collator)


def _check_specs(collator: BatchCollator, values: Mapping[str, Any]) -> None:
    for spec in collator.specs():
        if spec.name not in values:
            holds(spec.optional, f"{spec.name!r} is announced by specs() and is not in the batch")
            continue
        value = values[spec.name]
        if isinstance(value, np.ndarray) and spec.kind == "tensor":
            fits = len(spec.shape) == value.ndim and all(
                want in (-1, have) for want, have in zip(spec.shape, value.shape, strict=True)
            )
            holds(
                value.dtype.name == spec.dtype and fits,
                f"{spec.name!r} is {_form(value)}, and specs() says {spec.dtype} {spec.shape}",
            )


def _kind(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.ndim)
    return (type(value).__name__,)


def _form(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.shape)
    return (type(value).__name__,)


def _batch_context() -> CollateContext:
    return CollateContext(seed=7, lane=2, offset=5)
