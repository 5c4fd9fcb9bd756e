"""The collator of samples with pictures: tokens padded or packed, pictures one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.collators.lists import kept
from penstock.server.roles.collators.packed_collator import PackedCollator
from penstock.server.roles.collators.padded import PaddedCollator
from penstock.server.roles.collators.sample_arrays import Array, as_array, bad_batch, token_ids
from penstock.server.roles.collators.segments import lay_out
from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import BatchSizes, Filling, RowWidth
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.samples import MAX_SIZE, Sample
from penstock.wire.errors import InvalidJob
from penstock.wire.joined import Joined, joined
from penstock.wire.packed_rows import made

PIXELS = ("pixel_values", "pixel_values_videos")
"""Values of which a sample has an entry for each patch or picture."""

ON_HOST = {
    "image_grid_thw": KeySpec("image_grid_thw", dtype="int64", shape=(-1, 3)),
    "video_grid_thw": KeySpec("video_grid_thw", dtype="int64", shape=(-1, 3)),
    "second_per_grid_ts": KeySpec("second_per_grid_ts", dtype="float32", shape=(-1,)),
    "image_sizes": KeySpec("image_sizes", dtype="int64", shape=(-1, 2)),
    "image_grid_hws": KeySpec("image_grid_hws", dtype="int64", shape=(-1, 2)),
    "grid_thws": KeySpec("grid_thws", dtype="int64", shape=(-1, 3)),
}
"""Those that a model's code reads in Python, each with its dtype and shape."""

COUNTED = {
    "n_images_per_sample": ("image_grid_thw", "image_sizes", "image_grid_hws", "grid_thws"),
    "n_videos_per_sample": ("video_grid_thw",),
}
"""What counts pictures: the entries of the first of these that a sample has."""

WHOLE = {"n_images_per_sample": "pixel_values", "n_videos_per_sample": "pixel_values_videos"}
"""What counts them in samples that have none of these: pictures of one shape, (n, channels, height,
width), or longer where each is a row of several. Patches of Qwen's models have two axes."""

GRIDS = {
    "pixel_values": ("image_grid_thw", "grid_thws", "image_grid_hws"),
    "pixel_values_videos": ("video_grid_thw",),
}
"""What says how many patches each picture has among a sample's pixels."""

APART = ("raw_image", "raw_video")
NORM = "pixel_norm"
"""What normalizes pixels that travel as levels: the same in every sample."""
POSITIONS, MASK = "position_ids", "attention_mask"


@declared
class VlmCollator(BatchCollator):
    """Collate samples of token ids with the pictures that are shown in them.

    The ids, labels and masks are those that `padded` gives, or `packed` in its `layout`. Beside
    them, B = number of rows, T = tokens of a row:

    * `pixel_values`, `image_grid_thw`, `pixel_values_videos`, `video_grid_thw`,
      `second_per_grid_ts`, `image_sizes`, `image_grid_hws` and `grid_thws`, where samples have
      them: one after another along the first axis, in the order of the rows. Pixels have their own
      dtype; the others are int64, `second_per_grid_ts` float32, and stay on the host.
    * `n_images_per_sample`, int64 (B,): the pictures of each row: of the sample where rows are
      padded, of the pack where they are packed. `n_videos_per_sample`, where there are videos.
    * `position_ids`: int64 (3, B, T), where samples have theirs as (3, tokens), such as the
      positions of mRoPE: each sample's own, so they start anew in every document; 0 on padding. A
      sample without its own counts its tokens in all three.
    * `mm_token_type_ids`, where samples have them: (B, T), 0 on padding.
    * `pixel_norm`, where samples have it: float32, one for the whole batch.
    * `raw_image` and `raw_video`, where samples have them: a list of each sample's own.

    With `layout: padded` all other keys are stacked as `default` does; `packed` carries no others.
    A token that a sample's `attention_mask` hides, such as those of a fake picture, stays hidden:
    `padded`, `indexed` and `neat` say so, and `flash`, which cannot, refuses the sample.

    A batch in which no sample has a picture lacks these keys but the last two, as models of
    transformers fail on pixels of no picture. A model that is sharded over ranks needs them in
    every batch: with `fake_image` of the processor they are there.

    Counts: those of `padded` or `packed`, `images`, and `videos` where there are any.

    Args:
        layout: `padded`: a sample is a row. Or how packed rows are described: `flash`, `indexed` or
            `neat`.
        pad_to: The length T of every row, in tokens; a longer one is an error. None = the longest
            of each batch.
        pad_to_multiple_of: With `padded`: rounds T up to a multiple of this; FP8 needs 16. None =
            1.
        labels: `unshifted` or `shifted`, as of `padded` and `packed`. None = `shifted` in `neat`,
            `unshifted` in the others.
        pad_value: The id on padding in `input_ids`. None = the samples' `pad_token_id`, else 0.
        mask_dtype: With `padded`: the dtype of `attention_mask`, `int64` or `bool`. None = int64.
        max_documents: With `flash`: the most documents of a batch, as of `packed`.
        ids_dtype: With packed rows: the dtype of ids, `int64` or `int32`. None = int64.

    Raises:
        InvalidJob: A parameter has a value that cannot be, or is none of the layout's.
    """

    type_name: ClassVar[str] = "vlm"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    fixed_keys: ClassVar[bool] = False

    layout: Annotated[str, OneOf(("padded", "flash", "indexed", "neat"))] = "padded"
    pad_to: Annotated[int | None, AtLeast(1)] = None
    pad_to_multiple_of: Annotated[int | None, AtLeast(1)] = None
    labels: Annotated[str | None, OneOf(("unshifted", "shifted"))] = None
    pad_value: Annotated[int | None, AtLeast(0)] = None
    mask_dtype: Annotated[str | None, OneOf(("int64", "bool"))] = None
    max_documents: Annotated[int | None, AtLeast(1)] = None
    ids_dtype: Annotated[str | None, OneOf(("int64", "int32"))] = None

    def __post_init__(self) -> None:
        """Make the collator of the tokens."""
        is_padded = self.layout == "padded"
        for name in (
            ("max_documents", "ids_dtype")
            if is_padded
            else (
                "pad_to_multiple_of",
                "mask_dtype",
            )
        ):
            if getattr(self, name) is not None:
                raise InvalidJob(
                    f"{name} says nothing of layout: {self.layout}; leave it out", key=name
                )
        given = {
            name: value
            for name in ("pad_to", "labels", "pad_value", "mask_dtype", "max_documents")
            if (value := getattr(self, name)) is not None
        }
        self._tokens: PaddedCollator | PackedCollator
        if is_padded:
            if self.pad_to_multiple_of is not None:
                given["pad_to_multiple_of"] = self.pad_to_multiple_of
            self._tokens = PaddedCollator(**given)
        else:
            if self.ids_dtype is not None:
                given["ids_dtype"] = self.ids_dtype
            self._tokens = PackedCollator(layout=self.layout, **given)

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the values of the tokens, and of pictures.

        Raises:
            BadBatch: As of `padded` and `packed`; or values of pictures do not go together, or
                positions are not one for each token.
        """
        return self._collate(rows, context, to_send=False)

    def collate_to_send(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext
    ) -> dict[str, Any]:
        """Return what `collate` gives; what follows from packed ids is left to readers."""
        alone = self.keeps(VlmCollator, "collate")
        return self._collate(rows, context, to_send=True) if alone else self.collate(rows, context)

    def _collate(
        self, rows: Sequence[Sequence[Sample]], context: CollateContext, *, to_send: bool
    ) -> dict[str, Any]:
        samples = [sample for row in rows for sample in row]
        masks = any(MASK in sample for sample in samples)
        positions = _own_positions(samples, context)
        texts = [[_text(sample, masks, positions, context) for sample in row] for row in rows]
        collate = self._tokens.collate_to_send if to_send else self._tokens.collate
        values = collate(texts, context)
        height, width = values["input_ids"].shape
        starts = self._starts(rows, width, context)
        lengths = [len(sample["input_ids"]) for sample in samples]
        places = list(zip(samples, starts, lengths, strict=True))
        if positions is not None:
            values[POSITIONS] = _positions(places, positions, (height, width), context)
        if (types := _types(places, (height, width), context)) is not None:
            values["mm_token_type_ids"] = types
        entries = {
            name: [
                _entry(name, number, s[name], context) if s.get(name) is not None else None
                for number, s in enumerate(samples)
            ]
            for name in (*PIXELS, *ON_HOST)
            if any(s.get(name) is not None for s in samples)
        }
        _check_grids(entries, len(samples), context)
        per_row = [1] * len(samples) if self.layout == "padded" else list(map(len, rows))
        values |= _counted(entries, per_row, height)
        context.count("images", int(values["n_images_per_sample"].sum()))
        if "n_videos_per_sample" in values:
            context.count("videos", int(values["n_videos_per_sample"].sum()))
        for name, found in entries.items():
            if any(each is not None and len(each) for each in found):
                values[name] = _joined(name, found, context)
        if (norm := _norm(samples, context)) is not None:
            values[NORM] = norm
        for name in APART:
            if any(name in sample for sample in samples):
                values[name] = [kept(sample.get(name)) for sample in samples]
        return values if to_send else made(values)

    def _starts(
        self, rows: Sequence[Sequence[Sample]], width: int, context: CollateContext
    ) -> list[int]:
        """Return where each sample begins in the flattened rows; one without tokens anywhere."""
        lengths = [np.array([len(s["input_ids"]) for s in row], np.int64) for row in rows]
        if self.layout == "padded":
            return [number * width for number in range(sum(map(len, rows)))]
        real = [row[row > 0] for row in lengths] or [np.empty(0, np.int64)]
        segments, _, _ = lay_out(real, RowWidth(self.pad_to), context)
        starts = iter(segments.starts[segments.lengths > 0].tolist())
        return [next(starts) if length else 0 for row in lengths for length in row]

    def blank(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with no label that is learned."""
        return self._tokens.blank(values)

    def specs(self) -> list[KeySpec]:
        """Return the keys of the tokens, and of what is told of pictures if there are any."""
        found = [spec for spec in self._tokens.specs() if spec.name != POSITIONS]
        images, videos = (
            KeySpec(name, dtype="int64", shape=(-1,), place="host", least=0) for name in COUNTED
        )
        of_videos = replace(videos, optional=True)
        told = (replace(spec, optional=True, place="host") for spec in ON_HOST.values())
        return [*found, images, of_videos, *told]

    def value_layout(self) -> ValueLayout:
        """Return how the tokens lie."""
        return self._tokens.value_layout()

    def filling(self, batches: BatchSizes) -> Filling | None:
        """Return what `collate` counts of tokens, from sizes alone."""
        return None if self.is_of_user() else self._tokens.filling(batches)


def _own_positions(samples: Sequence[Sample], context: CollateContext) -> list[Array | None] | None:
    """Return the positions that samples have; None = they are of one axis, and as other values."""
    found = [as_array(sample.get(POSITIONS)) for sample in samples]
    if not any(each is not None and each.ndim > 1 for each in found):
        return None
    for sample, own in zip(samples, found, strict=True):
        if own is None and (value := sample.get(POSITIONS)) is not None:
            raise bad_batch(context, f"{POSITIONS!r} of a sample is {type(value).__name__}")
    return found


def _text(
    sample: Sample, masks: bool, positions: list[Array | None] | None, context: CollateContext
) -> Sample:
    """Return what of a sample its tokens decide, and what can be stacked."""
    apart = (*PIXELS, *ON_HOST, *APART, NORM, "mm_token_type_ids")
    text = {name: value for name, value in sample.items() if name not in apart}
    if positions is not None or text.get(POSITIONS) is None:
        text.pop(POSITIONS, None)
    if masks and text.get(MASK) is None:
        text[MASK] = np.ones(len(token_ids(sample, context)), np.int64)
    return text


Place = tuple[Sample, int, int]
"""A sample, where its tokens begin in the flattened rows, and how many they are."""


def _positions(
    places: Sequence[Place],
    positions: Sequence[Array | None],
    shape: tuple[int, int],
    context: CollateContext,
) -> Array:
    out = np.zeros((3, shape[0] * shape[1]), np.int64)
    for (_, start, length), given in zip(places, positions, strict=True):
        own = np.arange(length) if given is None else given
        if own.shape not in ((3, length), (1, length), (length,)) or not _is_whole(own):
            raise bad_batch(
                context,
                f"{POSITIONS!r} of a sample of {length} tokens is {own.dtype} of shape {own.shape};"
                f" give the three positions of each token, whole numbers of shape (3, {length})",
            )
        out[:, start : start + length] = own
    return out.reshape(3, *shape)


def _types(
    places: Sequence[Place], shape: tuple[int, int], context: CollateContext
) -> Array | None:
    name = "mm_token_type_ids"
    if all(sample.get(name) is None for sample, _, _ in places):
        return None
    out = np.zeros(shape[0] * shape[1], np.int64)
    for sample, start, length in places:
        if (value := sample.get(name)) is None:
            continue
        own = as_array(value)
        if own is None or own.shape != (length,) or not _is_whole(own):
            raise bad_batch(
                context,
                f"{name!r} of a sample are not one whole number for each of its {length} tokens",
            )
        out[start : start + length] = own
    return out.reshape(shape)


def _is_whole(array: Array) -> bool:
    """Tell whether an array holds whole numbers; one of no elements may have any dtype."""
    return array.dtype.kind in "iub" or not array.size


def _entry(name: str, number: int, value: Any, context: CollateContext) -> Array | None:
    """Return what a sample has of pictures, an entry for each; None = it has an empty list."""
    array = as_array(value)
    if array is None or array.ndim == 0:
        raise bad_batch(
            context,
            f"{name!r} of sample {number} is {type(value).__name__}, not an array with an "
            "entry for each picture; keep values of another form apart with the collator lists",
        )
    if array.shape == (0,):
        return None
    if (spec := ON_HOST.get(name)) is None:
        return array
    is_whole = spec.dtype == "int64"
    fits = (array >= 1).all() and (array <= MAX_SIZE).all() if is_whole else True
    if array.shape[1:] != spec.shape[1:] or not fits or not (_is_whole(array) or not is_whole):
        needs = "whole numbers from 1 on" if is_whole else "numbers"
        shape = ", ".join(["n", *map(str, spec.shape[1:])]) + ("" if spec.shape[1:] else ",")
        raise bad_batch(
            context,
            f"{name!r} of sample {number} is {array.dtype} of shape {array.shape}"
            f"{f': {array.tolist()}' if array.size < 10 else ''}; give {needs} of shape ({shape}), "
            "of n pictures",
        )
    return array.astype(spec.dtype, copy=False)


Entries = dict[str, list[Array | None]]
"""By name, what each sample has of pictures."""


def _check_grids(entries: Entries, number: int, context: CollateContext) -> None:
    """Refuse samples whose pixels are not those of their grids: a model would mix up pictures."""
    for name, names in GRIDS.items():
        grids = next((each for each in names if each in entries), None)
        if grids is None:
            continue
        pixels = entries.get(name, [None] * number)
        for sample, (grid, own) in enumerate(zip(entries[grids], pixels, strict=True)):
            patches = 0 if grid is None else int(grid.prod(axis=1).sum())
            if patches != (0 if own is None else len(own)):
                has = "none" if own is None else f"of shape {own.shape}"
                raise bad_batch(
                    context,
                    f"{name!r} of sample {sample} is {has}, and {grids!r} says {patches} patches; "
                    "give both of the same pictures",
                )


def _counted(entries: Entries, per_row: Sequence[int], height: int) -> dict[str, Array]:
    """Return how many pictures, and videos where there are any, the samples of each row have.

    Args:
        entries: What samples have.
        per_row: How many samples lie in each row.
        height: How many rows there are.
    """
    rows = np.repeat(np.arange(len(per_row)), per_row)
    found = {}
    for name, keys in COUNTED.items():
        counts = np.zeros(height, np.int64)
        for number, row in enumerate(rows.tolist()):
            own = [entries[key][number] for key in keys if key in entries]
            whole = entries[WHOLE[name]][number] if WHOLE[name] in entries else None
            if whole is not None and whole.ndim >= 4:
                own.append(whole)
            counts[row] += len(next((each for each in own if each is not None), ()))
        if name == "n_images_per_sample" or counts.any():
            found[name] = counts
    return found


def _norm(samples: Sequence[Sample], context: CollateContext) -> Array | None:
    given = [as_array(sample[NORM]) for sample in samples if sample.get(NORM) is not None]
    found = [each for each in given if each is not None and each.dtype.kind in "iuf"]
    if len(found) < len(given):
        raise bad_batch(context, f"{NORM!r} of a sample is not an array of numbers")
    if any(not np.array_equal(one, found[0]) for one in found):
        raise bad_batch(
            context,
            f"{NORM!r} differs between samples, so no batch has one: give all samples of a job the "
            "same",
        )
    return found[0].astype(np.float32, copy=False) if found else None


def _joined(name: str, entries: Sequence[Array | None], context: CollateContext) -> Array | Joined:
    parts = [(number, each) for number, each in enumerate(entries) if each is not None]
    number, first = parts[0]
    for other, array in parts:
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise bad_batch(
                context,
                f"{name!r} is {first.dtype} of shape {first.shape} in sample {number} and "
                f"{array.dtype} of shape {array.shape} in sample {other}; only the first axis may "
                "differ",
            )
    return joined([array for _, array in parts], stack=False)
