"""What turns a raw item into samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from penstock.server.media.medium import Medium
from penstock.server.media.pictures_shown import Picture, pictures_in
from penstock.server.media.video.frame_counts import FrameCounts
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.role import Role, failing
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.server.roles.source import Source
from penstock.server.usercode.contained import contained
from penstock.wire.errors import InvalidJob, PenstockError


def _length(value: Any) -> int | None:
    if isinstance(value, (str, bytes)):
        return None
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) == 1 else None


class RawItemProcessor(Role, ABC):
    """Turns a raw item into samples. Pure: random numbers come from `context.rng`.

    Class attributes:
        one_to_one: True promises exactly one sample for every item, never a filter. Then, where the
            batcher needs no sizes or `size` knows them, batches are planned from refs alone and
            items are processed only when they leave the pool, by any worker.
        uses_global_rng: The generators of random, numpy and torch are seeded before each item, so
            that existing augmentation code is reproducible without changes; False promises not to
            use them, and saves about 10 us an item.
        size_columns: The columns that `size` looks at, where items are dicts: a source that reads
            columns alone brings only these until the batch is made. None = the whole item.
        measures: What samples count beside the size by which they are packed, such as `images`. A
            property, where parameters decide it.

    Glossary:
        processor: Turns a raw item into samples.
    """

    one_to_one: ClassVar[bool] = False
    uses_global_rng: ClassVar[bool] = True
    size_columns: ClassVar[Sequence[str] | None] = None

    @property
    def measures(self) -> Sequence[str]:
        """Return what samples count beside their size; most subclasses count nothing else."""
        return ()

    @abstractmethod
    def process(self, raw: RawItem, context: ProcessContext) -> Sample | Sequence[Sample] | None:
        """Return the sample of an item, several samples, or None to filter it.

        Raises:
            Exception: If it raises twice for the same bytes, the item is a `BadItem`. Errors that
                may be temporary are retried, and never make one: see `core.transient`.
        """

    def author(self, source: Source) -> Role:
        """Return the role whose code decides what `process` gives: errors name it.

        Args:
            source: Where the item comes from.
        """
        return self

    def process_batch(
        self, raws: Sequence[RawItem], contexts: Sequence[ProcessContext]
    ) -> list[Sample | Sequence[Sample] | None]:
        """Return what `process` gives for each item; override it if many at once are cheaper."""
        return [self.process(raw, context) for raw, context in zip(raws, contexts, strict=True)]

    def gains_together(self) -> bool:
        """Tell whether several items at once are cheaper, so that more are processed ahead.

        By default whether a subclass overrides `process_batch`.
        """
        return not self.keeps(RawItemProcessor, "process_batch")

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return what a sample counts, in the order of `measures`: what `size` gave, if it did."""
        return ()

    def size(self, raw: RawItem) -> int | SampleSizes | None:
        """Return the size of the one sample of an item without decoding it; None = not known.

        Where there are `measures`, it is `SampleSizes`.

        It must not change `raw`: the same object may go to `process`. With `size_columns`, and
        with a source that has heads of items, it may be given these in place of the whole item.
        """
        return None

    def knows_size(self) -> bool:
        """Tell whether `size` gives an answer: by default whether a subclass overrides it."""
        return not self.keeps(RawItemProcessor, "size")

    def keeps_sizes(self) -> bool:
        """Tell whether a sample is as large as its item, so that the source's `sizes` hold for it.

        It is called if `size` is not overridden; the promise is part of `one_to_one`.
        """
        return False

    def for_lengths(self, key: str) -> RawItemProcessor:
        """Return a processor that filters, splits and fails alike, for who only takes lengths.

        In its samples `key` may hold anything that is as long: an index of sizes needs no more. Its
        `counts` tells of them what whole samples count.

        Args:
            key: Whose length is taken.
        """
        return self

    def passes_items(self) -> bool:
        """Tell whether a sample is its item, unchanged: then nothing need be called for it."""
        return False

    def least_sample_bytes(self, source: Source) -> int:
        """Return how many bytes the values of each sample take at least; 0 = not known.

        It is asked before anything is read: of a batch that a node cannot hold nothing is made.

        Args:
            source: Where the items come from.
        """
        return 0

    def check_columns(self, columns: Mapping[str, str]) -> None:  # optional
        """Refuse a source whose items lack a column that this needs; called with the job's source.

        Args:
            columns: What `Source.columns_of_items` returns, if that is not None.

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

    def stand_in(self, empty: Sample, most: int | None) -> Sample:
        """Return what stands in for each sample of a batch of which quarantine has left none.

        The batch is padding: nothing of it is learned, but a model still has to take it. Override
        this where values have to agree with one another, such as tokens with pictures.

        Args:
            empty: By default this: a sample of some item, with zeros in place of its content. It is
                cut if it is larger than `most`.
            most: The largest size that it may have; None = any.
        """
        return empty


def measures_of(processor: RawItemProcessor) -> tuple[str, ...]:
    """Return what the samples of a processor count beside their size, in order.

    Raises:
        InvalidJob: These are no different names, or asking for them fails.
    """
    try:
        given = contained(lambda: processor.measures)
        found = contained(lambda: tuple(given))
    except PenstockError:
        raise
    except Exception as error:
        raise failing(processor, "measures", error) from error
    are_names = all(isinstance(each, str) and each for each in found)
    # A text is a sequence of texts, too: of its letters.
    if not are_names or isinstance(given, str) or len(set(found)) < len(found):
        raise InvalidJob(
            f"{processor.code_of('measures')} gave {given!r}: give names of counts, all different, "
            "such as images and patches",
            key="processor",
        )
    return found


class MediaProcessor(RawItemProcessor):
    """A processor of items that hold pictures or sound, or refer to them.

    What `references` names is fetched for it, several files at once and ahead of decoding, and is
    there as `context.media`. For `size` headers are read, no more.

    Class attributes:
        reads_whole: False = it reads parts of large files, by `Medium.at`, so they are not fetched
            ahead of it, but for what `parts_read` tells.
    """

    reads_whole: ClassVar[bool] = True

    @abstractmethod
    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the media of an item, in an order that the item decides.

        Each is bytes, a dict with `bytes` or `path`, a path, a URL, or `lmdb: DB::KEY`.
        It must not change `raw`.

        Raises:
            Exception: The item is not as it should be: it is a `BadItem`.
        """

    @property
    def frame_counts(self) -> FrameCounts | None:
        """Return what was decoded of videos so far in this process; None = it decodes none."""
        return None

    def most_video_bytes(self) -> int:
        """Return how much memory open videos and decoded frames may take in a worker, in bytes."""
        return 0

    def pictures(self, sample: Sample) -> list[Picture]:
        """Return the pictures of a sample as people look at them: uint8 (height, width, 3) each.

        By default what among its values looks like one; override it where they have another form,
        such as patches.
        """
        return pictures_in(sample)

    def parts_read(
        self, raw: RawItem, media: Sequence[Medium], *, for_size: bool
    ) -> Sequence[Sequence[tuple[int, int]] | None]:
        """Return which parts of media will be read, so that they are fetched ahead.

        It is asked of media that are far, and reads nothing; what it lacks is read when it is
        needed.

        Args:
            raw: The item.
            media: What it refers to.
            for_size: By `size`; else by `process`.

        Returns:
            Of each medium `[start, stop)` of some parts, in bytes; None = its head for `size`, and
            all of it for `process` where the processor reads all.
        """
        return [None] * len(media)

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> int | SampleSizes | None:
        """Return the size of the one sample of an item from headers; None = not known.

        Args:
            raw: The item.
            media: What it refers to, as `context.media` has it; only heads should be read.
        """
        return None

    def knows_size(self) -> bool:
        """Tell whether `size` gives an answer: by default whether a subclass overrides it."""
        return not self.keeps(MediaProcessor, "size")
