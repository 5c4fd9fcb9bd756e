"""Pictures to pixels: decoded, resized, cropped and mirrored as a job says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server.media.geometry import CROPS, RESIZES, Extent, Geometry, Layout
from penstock.server.media.image_header import ImageHeader, parse_header, read_header
from penstock.server.media.medium import Medium
from penstock.server.media.picture import DECODERS, MAX_BYTES, MAX_PIXELS, Decoding, in_order
from penstock.server.media.pictures_shown import Picture
from penstock.server.media.resize import FILTERS, KERNELS, load_kernel, resize
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.processor import MediaProcessor
from penstock.server.roles.processors.picture_sides import Sides, extent_of
from penstock.server.roles.processors.picture_transform import TAKES, PictureTransform, Transform
from penstock.server.roles.processors.tokenizer_file import no_column
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.wire.errors import InvalidJob

KEY = "image"
"""What samples call their pixels."""


@dataclass(frozen=True)
class _Scale:
    """`full`, 2 or 1."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        if isinstance(value, bool) or value not in ("full", 2, 1):
            raise InvalidJob(
                f"{name} is {value!r}: write full, 2 (a JPEG is decoded at least twice as large as "
                "it becomes) or 1 (at least as large)",
                key=key,
            )


@dataclass(frozen=True)
class _Range:
    """Two numbers, of which the second is no smaller.

    Attributes:
        most: The largest one that makes sense.
    """

    most: float

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        pair = value if isinstance(value, list | tuple) else ()
        numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in pair)
        if len(pair) != 2 or not numbers or not 0 < pair[0] <= pair[1] <= self.most:
            bound = f", and at most {self.most:g}" if self.most < float("inf") else ""
            raise InvalidJob(
                f"{name} is {value!r}: give two numbers above 0{bound}, the smaller one first",
                key=key,
            )


@dataclass(frozen=True)
class _Colour:
    """Red, green and blue."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        parts = value if isinstance(value, list | tuple) else ()
        if len(parts) != 3 or not all(
            isinstance(part, int) and not isinstance(part, bool) and 0 <= part <= 255
            for part in parts
        ):
            raise InvalidJob(
                f"{name} is {value!r}: give red, green and blue, each from 0 to 255, such as "
                "[255, 255, 255]",
                key=key,
            )


@dataclass(frozen=True)
class _Chance:
    """A number from 0 to 1."""

    def check(self, name: str, value: Any, *, key: str, optional: bool) -> None:
        """Refuse anything else."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise InvalidJob(
                f"{name} is {value!r}: give a number from 0 (never) to 1 (always)", key=key
            )


@declared
class ImageProcessor(MediaProcessor):
    """Make `image` of a picture: uint8 (height, width, 3), RGB, or (3, height, width).

    The picture is decoded and turned upright as its EXIF says, what is transparent is laid on
    `background`, and then it is resized, cropped, padded and mirrored. What each kind of file
    becomes, and what decoders and kernels cost, is told by docs/media.md. JPEG, PNG, WebP, GIF, BMP
    and TIFF are read; of several frames or pages the first. A file that is damaged or cut off, or
    too large by its header, is a bad item; never a part of a picture.

    Its size is its number of pixels, known from its header where no `transform` is named; so
    batches are planned without decoding anything. Beside it counts `images`.

    Args:
        column: The column that holds the picture: its bytes, or what names its file. Items that
            are bytes or a path themselves need none.
        columns: Other columns, such as a label, that go into the sample as they are.
        decoder: `jpeg` decodes JPEG by simplejpeg, 1.5 times as fast, and all else by Pillow, CMYK
            too; `pillow` decodes all by Pillow. Both give the same pixels. `jpeg` notices more
            damage within a JPEG's data.
        scale: How small a JPEG may be decoded before it is resized: `full`, never reduced; 2, no
            smaller than twice what it becomes, which changes a picture of 2 megapixels by a quarter
            of a level in the mean; 1, no smaller than what it becomes, which changes it by one
            level, and one of 500 pixels by three. A smaller one costs less, the more the larger
            pictures are. Nothing but JPEG is concerned.
        kernel: What resizes. `pillow` is exact to the byte of what Pillow gives. `torch` differs by
            one level at most, and takes a third of the time; torch must be installed. `opencv` is
            the fastest, does not antialias, and is allowed with `scale: 1` alone.
        filter: `bilinear` or `bicubic`, which is sharper and takes longer.
        resize: `exact`: to `resize_to`, whatever the ratio. `shortest` and `longest`: so that this
            side has `resize_to`. `pad`: as large as fits into it, in the middle of `background`.
            `smart_resize`: to multiples of `factor`, as Qwen-VL models take them. None = not
            resized.
        resize_to: Pixels of both sides, or [height, width].
        crop: `centre` or `random`: a part of `crop_to`, after resizing. `random_resized`: a part
            of random area and ratio, resized to `crop_to`. None = not cropped.
        crop_to: Pixels of both sides, or [height, width].
        crop_scale: Which parts of the area `random_resized` takes.
        crop_ratio: Which ratios of width to height it takes.
        flip: How likely a picture is mirrored, left to right.
        factor: What the sides are multiples of after `smart_resize`.
        least_pixels: The fewest pixels after `smart_resize`.
        most_pixels: The most pixels after `smart_resize`. More show more detail, and cost as many
            more tokens.
        background: The colour behind what is transparent, and around what is padded.
        layout: `HWC`, or `CHW` as torch's convolutions take it, which costs 0.04 ms for 224 x 224.
        max_pixels: The most pixels of a picture; one with more is a bad item.
        max_bytes: The most bytes of its file, and of its pixels as they are decoded. Both bounds
            keep a worker's memory below what the node has; they are checked before it is taken.
        transform: A pipeline of transforms, or a function, that gets the pixels last: where it is
            found, as `./augment.py:pipeline` or `package.module:name`. What it draws from the
            generators of random, numpy and torch follows from the item. Its module's source is
            part of the job's identity, unless it has a `version`.
        transform_takes: `pillow`: a picture of Pillow, as pipelines of torchvision do. `array`:
            uint8 (height, width, 3). `albumentations`: that as `image=`, seeded by the item. What
            it returns is the sample's `image`: a tensor as it is, else in the `layout`.

    Raises:
        InvalidJob: A parameter makes no sense, or two of them do not go together.
    """

    type_name: ClassVar[str] = "image"
    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = True
    path_params: ClassVar[tuple[str, ...]] = ("transform",)

    column: str = "image"
    _: KW_ONLY
    columns: Sequence[str] = ()
    decoder: Annotated[str, OneOf(DECODERS)] = "jpeg"
    scale: Annotated[str | int, _Scale()] = 2
    kernel: Annotated[str, OneOf(KERNELS)] = "pillow"
    filter: Annotated[str, OneOf(FILTERS)] = "bilinear"
    resize: Annotated[str | None, OneOf(RESIZES)] = None
    resize_to: Annotated[int | Sequence[int] | None, Sides()] = None
    crop: Annotated[str | None, OneOf(CROPS)] = None
    crop_to: Annotated[int | Sequence[int] | None, Sides()] = None
    crop_scale: Annotated[Sequence[float], _Range(1.0)] = (0.08, 1.0)
    crop_ratio: Annotated[Sequence[float], _Range(float("inf"))] = (3 / 4, 4 / 3)
    flip: Annotated[float, _Chance()] = 0.0
    factor: Annotated[int, AtLeast(1)] = 28
    least_pixels: Annotated[int, AtLeast(1)] = 56 * 56
    most_pixels: Annotated[int, AtLeast(1)] = 28 * 28 * 1280
    background: Annotated[Sequence[int], _Colour()] = (255, 255, 255)
    layout: Annotated[str, OneOf(("HWC", "CHW"))] = "HWC"
    max_pixels: Annotated[int, AtLeast(1)] = MAX_PIXELS
    max_bytes: Annotated[int, AtLeast(1)] = MAX_BYTES
    transform: Transform | None = None
    transform_takes: Annotated[str, OneOf(TAKES)] = "pillow"

    def __post_init__(self) -> None:
        _check_together(self)
        red, green, blue = self.background
        self.decoding = Decoding(self.decoder, (red, green, blue), self.max_pixels, self.max_bytes)
        self.geometry = Geometry(
            self.resize,
            extent_of(self.resize_to),
            self.crop,
            extent_of(self.crop_to),
            (self.crop_scale[0], self.crop_scale[1]),
            (self.crop_ratio[0], self.crop_ratio[1]),
            self.flip,
            self.factor,
            self.least_pixels,
            self.most_pixels,
        )
        self.pipeline: PictureTransform | None = None
        if self.transform is not None:
            self.pipeline = PictureTransform(self.transform, self.transform_takes)
        # Its own random numbers are those of the context, which need no seeding.
        self.uses_global_rng = self.pipeline is not None  # type: ignore[misc]

    @property
    def measures(self) -> Sequence[str]:
        """Return `pixels` and `images`."""
        return ("pixels", "images")

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with the name of the transform."""
        found = super().parameters()
        if self.pipeline is not None:
            found["transform"] = self.pipeline.name()
        return found

    def identity(self) -> dict[str, Any]:
        """Return what of it decides bytes, the decoder and the kernel always among it.

        Raises:
            InvalidJob: The transform cannot be found, or has no identity.
        """
        found = {**super().identity(), "decodes": [self.decoder, self.scale, self.kernel]}
        if self.pipeline is not None:
            found["transform"] = self.pipeline.identity()
        return found

    def setup(self) -> None:
        """Import what decodes, resizes and transforms.

        Raises:
            MissingExtra: A package is not installed: none stands in for another.
            InvalidJob: The transform cannot be imported.
        """
        self.decoding.load()
        load_kernel(self.kernel)
        if self.pipeline is not None:
            self.pipeline.find()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a column that is named.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        if not self.keeps(ImageProcessor, "process", "references"):
            return
        for column in (self.column, *self.columns):
            if column not in columns:
                raise no_column(column, columns)

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return `image` and the columns that are passed along."""
        return [KEY, *self.columns] if self.keeps(ImageProcessor, "process") else None

    def knows_size(self) -> bool:
        """Tell that headers tell it, unless a transform decides."""
        return self.pipeline is None and super().knows_size()

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the one picture of an item.

        Raises:
            InvalidJob: It has no such column.
            ValueError: Nothing is there.
        """
        if isinstance(raw, Mapping):
            if self.column not in raw:
                raise no_column(self.column, raw)
            raw = raw[self.column]
        if raw is None:
            raise ValueError(f"there is no picture: column {self.column!r} is null")
        return [raw]

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> SampleSizes | None:
        """Return the pixels of the sample, by the picture's header.

        Raises:
            BadPicture: The header is damaged, or the picture too large or too small.
        """
        if self.pipeline is not None or not media:
            return None
        header = read_header(media[0])
        self.decoding.check(header, media[0].name)
        height, width = self.geometry.result(Extent(header.height, header.width), media[0].name)
        return SampleSizes(height * width, (height * width, 1))

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return the pixels of a sample, and 1."""
        shape = sample[KEY].shape
        sides = shape[-2:] if self.layout == "CHW" or len(shape) < 3 else shape[:2]
        return (int(np.prod(sides)), 1)

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return `image`, and the columns that are passed along.

        Raises:
            BadPicture: It is damaged, cut off, too large, or smaller than what is cropped.
            InvalidJob: The item lacks a column.
            Exception: Whatever the transform raises.
        """
        medium = context.media[0]
        data, name = medium.read(), medium.name
        header = parse_header(data, name)
        layout = self.geometry.lay_out(
            Extent(header.height, header.width), name, lambda: context.rng
        )
        pixels = self._laid_out(data, header, layout, name)
        if self.pipeline is not None:
            pixels = self.pipeline.call(pixels, lambda: context.rng)
        sample: Sample = {KEY: self._in_order(pixels)}
        for column in self.columns:
            if not isinstance(raw, Mapping) or column not in raw:
                raise no_column(column, raw if isinstance(raw, Mapping) else (), context.item)
            sample[column] = raw[column]
        return sample

    def pictures(self, sample: Sample) -> list[Picture]:
        """Return the picture, whichever its sides: its layout is known, and not to be guessed."""
        pixels = sample.get(KEY)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
            return super().pictures(sample)  # a transform made something else
        found = pixels.transpose(1, 2, 0) if self.layout == "CHW" else pixels
        if found.shape[2] != 3 or not found.size:
            return super().pictures(sample)
        return [np.ascontiguousarray(found)]

    def _laid_out(
        self, data: bytes | memoryview, header: ImageHeader, layout: Layout, name: str
    ) -> np.ndarray:
        """Return the pixels of a picture as it is laid out: uint8 (height, width, 3)."""
        picture, least = Extent(header.height, header.width), None
        if self.scale != "full":
            least = layout.least(picture, int(self.scale))
        pixels = self.decoding.decode(data, header, name, least)
        top, left, height, width = layout.part_of(picture, Extent(*pixels.shape[:2]))
        pixels = pixels[top : top + height, left : left + width]
        pixels = resize(pixels, layout.resized, self.kernel, self.filter)
        if layout.crop is not None:
            top, left, height, width = layout.crop
            pixels = pixels[top : top + height, left : left + width]
        if layout.flip:
            pixels = pixels[:, ::-1]
        if layout.canvas is not None:
            canvas = np.empty((*layout.canvas, 3), np.uint8)
            canvas[:] = self.decoding.background
            height, width = pixels.shape[:2]
            top, left = (layout.canvas.height - height) // 2, (layout.canvas.width - width) // 2
            canvas[top : top + height, left : left + width] = pixels
            pixels = canvas
        return in_order(pixels)

    def _in_order(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels in the job's layout; what a transform made otherwise stays as it is."""
        if self.layout == "CHW" and pixels.ndim == 3 and pixels.shape[2] == 3:
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)


def _check_together(processor: ImageProcessor) -> None:
    """Refuse parameters that do not go together.

    Raises:
        InvalidJob: Says which, and what to write.
    """

    def refuse(key: str, said: str) -> None:
        raise InvalidJob(said, key=key)

    given = processor.columns
    if isinstance(given, str) or not all(isinstance(name, str) for name in given):
        refuse("columns", f"columns is {given!r}: give a list of names, such as [label]")
    if KEY in given:
        refuse("columns", f"columns names {KEY!r}, which is what the pixels are called")
    if processor.kernel == "opencv":
        if processor.scale != 1:
            refuse(
                "kernel",
                f"kernel is 'opencv' with scale: {processor.scale}: it does not antialias, so it "
                "is for pictures that are hardly larger than what they become; write scale: 1, or "
                "kernel: torch",
            )
        if processor.filter != "bilinear":
            refuse("filter", "filter is 'bicubic', and kernel: opencv has bilinear alone")
    to, needs_one = processor.resize_to, processor.resize in ("exact", "shortest", "longest", "pad")
    if needs_one != (to is not None):
        refuse(
            "resize_to",
            f"resize_to is {to!r} with resize: {processor.resize or 'null'}: "
            + ("give the pixels" if needs_one else "leave it out, or say resize: exact"),
        )
    if processor.resize in ("shortest", "longest") and not isinstance(to, int):
        refuse(
            "resize_to",
            f"resize_to is {to!r}: resize: {processor.resize} takes the pixels of one side",
        )
    if (processor.crop is None) != (processor.crop_to is None):
        refuse(
            "crop_to",
            f"crop_to is {processor.crop_to!r} with crop: {processor.crop or 'null'}: give both, "
            "or none",
        )
    if processor.crop == "random_resized" and processor.resize is not None:
        refuse(
            "resize",
            f"resize is {processor.resize!r}, and crop: random_resized resizes to crop_to by "
            "itself: leave resize and resize_to out",
        )
    if processor.crop is not None and processor.resize == "pad":
        refuse("crop", f"crop is {processor.crop!r} with resize: pad: write resize: shortest")
    if processor.least_pixels > processor.most_pixels:
        refuse(
            "least_pixels",
            f"least_pixels is {processor.least_pixels:,}, above most_pixels, which is "
            f"{processor.most_pixels:,}",
        )
