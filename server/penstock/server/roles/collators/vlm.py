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
from penstock.server.roles.samples import Sample
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

    A batch in which no sample has a picture lacks the keys of pictures. A model that is sharded
    over ranks needs them in every batch: `fake_image` of the processor sees to it.

    Counts: those of `padded` or `packed`, and `images`.

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
        texts = [[_text(sample, masks, context) for sample in row] for row in rows]
        collate = self._tokens.collate_to_send if to_send else self._tokens.collate
        values = collate(texts, context)
        height, width = values["input_ids"].shape
        starts = self._starts(rows, width, context)
        lengths = [len(sample["input_ids"]) for sample in samples]
        places = list(zip(samples, starts, lengths, strict=True))
        if any(_axes(sample) for sample in samples):
            values[POSITIONS] = _positions(places, (height, width), context)
        if (types := _types(places, (height, width), context)) is not None:
            values["mm_token_type_ids"] = types
        counted = [[sample] for sample in samples] if self.layout == "padded" else rows
        values |= _counted(counted, height)
        context.count("images", int(values["n_images_per_sample"].sum()))
        for name in (*PIXELS, *ON_HOST):
            if parts := [(n, s[name]) for n, s in enumerate(samples) if s.get(name) is not None]:
                values[name] = _joined(name, parts, context)
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


def _axes(sample: Sample) -> bool:
    """Tell whether a sample has positions of several axes."""
    return getattr(sample.get(POSITIONS), "ndim", 1) > 1


def _text(sample: Sample, masks: bool, context: CollateContext) -> Sample:
    """Return what of a sample its tokens decide, and what can be stacked."""
    apart = (*PIXELS, *ON_HOST, *APART, NORM, "mm_token_type_ids")
    text = {name: value for name, value in sample.items() if name not in apart}
    if _axes(sample):
        del text[POSITIONS]
    if masks and text.get(MASK) is None:
        text[MASK] = np.ones(len(token_ids(sample, context)), np.int64)
    return text


Place = tuple[Sample, int, int]
"""A sample, where its tokens begin in the flattened rows, and how many they are."""


def _positions(places: Sequence[Place], shape: tuple[int, int], context: CollateContext) -> Array:
    out = np.zeros((3, shape[0] * shape[1]), np.int64)
    for sample, start, length in places:
        own = as_array(sample.get(POSITIONS)) if _axes(sample) else np.arange(length)[None]
        if own is None or own.shape not in ((3, length), (1, length)):
            raise bad_batch(
                context,
                f"{POSITIONS!r} of a sample of {length} tokens is "
                f"{type(own).__name__ if own is None else f'of shape {own.shape}'}; give the three "
                f"positions of each token, shape (3, {length})",
            )
        out[:, start : start + length] = own
    return out.reshape(3, *shape)


def _types(
    places: Sequence[Place], shape: tuple[int, int], context: CollateContext
) -> Array | None:
    name = "mm_token_type_ids"
    if not any(name in sample for sample, _, _ in places):
        return None
    out = np.zeros(shape[0] * shape[1], np.int64)
    for sample, start, length in places:
        own = as_array(sample.get(name, ()))
        if own is not None and own.shape == (length,):
            out[start : start + length] = own
        elif name in sample:
            raise bad_batch(context, f"{name!r} of a sample are not one for each of its tokens")
    return out.reshape(shape)


def _counted(rows: Sequence[Sequence[Sample]], height: int) -> dict[str, Array]:
    """Return how many pictures, and videos where there are any, the samples of each row have."""
    found = {}
    for name, keys in COUNTED.items():
        counts = np.zeros(height, np.int64)
        for number, row in enumerate(rows):
            for sample in row:
                of = next((sample[key] for key in keys if sample.get(key) is not None), ())
                counts[number] += len(of)
        if name == "n_images_per_sample" or counts.any():
            found[name] = counts
    return found


def _norm(samples: Sequence[Sample], context: CollateContext) -> Array | None:
    found = [np.asarray(s[NORM], np.float32) for s in samples if s.get(NORM) is not None]
    if any(not np.array_equal(one, found[0]) for one in found):
        raise bad_batch(
            context,
            f"{NORM!r} differs between samples, so no batch has one: give all samples of a job the "
            "same",
        )
    return found[0] if found else None


def _joined(name: str, parts: Sequence[tuple[int, Any]], context: CollateContext) -> Array | Joined:
    arrays: list[Array] = []
    for number, value in parts:
        array = as_array(value)
        if name in ON_HOST and array is not None:
            array = array.astype(ON_HOST[name].dtype)
        if array is None or array.ndim == 0:
            raise bad_batch(
                context,
                f"{name!r} of sample {number} is {type(value).__name__}, not an array with an "
                "entry for each picture; keep values of another form apart with the collator lists",
            )
        arrays.append(array)
    first = arrays[0]
    for (number, _), array in zip(parts, arrays, strict=True):
        if array.shape[1:] != first.shape[1:] or array.dtype != first.dtype:
            raise bad_batch(
                context,
                f"{name!r} is {first.dtype} of shape {first.shape} in sample {parts[0][0]} and "
                f"{array.dtype} of shape {array.shape} in sample {number}; only the first axis may "
                "differ",
            )
    return joined(arrays, stack=False)
