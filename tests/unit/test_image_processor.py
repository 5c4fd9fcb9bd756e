"""The `image` processor: pixels of a picture, the same everywhere, and sizes without decoding."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pictures
from penstock.server.core.refs import ItemRef
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.medium import HEAD_BYTES, HeldMedium, Medium
from penstock.server.media.picture import DECODERS
from penstock.server.media.resize import FILTERS, KERNELS
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processors import ImageProcessor
from penstock.wire.errors import InvalidJob, MissingExtra

PHOTO = pictures.photograph()
JPEG = pictures.encoded(PHOTO, "JPEG", quality=90)
PNG = pictures.encoded(PHOTO, "PNG")


class Head(Medium):
    """A file of which nothing but its head may be read."""

    def __init__(self, data: bytes) -> None:
        self.name, self.data = "a.jpg", data

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes, at most 64 KiB."""
        assert count <= HEAD_BYTES
        return self.data[:count]

    def read(self) -> bytes:
        """Refuse."""
        raise AssertionError("it was decoded")


def context(data: bytes, index: int = 3, epoch: int = 0) -> ProcessContext:
    return ProcessContext(ItemRef("main", index, epoch), 7, [HeldMedium("a.jpg", data)])


def pixels(processor: ImageProcessor, data: bytes, index: int = 3, epoch: int = 0) -> np.ndarray:
    """Return the image of a sample."""
    found: np.ndarray = processor.process({"image": data}, context(data, index, epoch))["image"]
    return found


def pillows(data: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return what Pillow decodes, and resizes."""
    with Image.open(io.BytesIO(data)) as image:
        image = image.convert("RGB")
        if size is not None:
            image = image.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(image)


def test_a_picture_is_its_pixels() -> None:
    """With nothing said: uint8, RGB, in its own size, and Pillow's to the byte."""
    found = ImageProcessor().process({"image": JPEG, "label": 3}, context(JPEG))

    assert list(found) == ["image"]
    assert found["image"].flags.c_contiguous
    assert np.array_equal(found["image"], pillows(JPEG))


def test_columns_are_passed_along_as_they_are() -> None:
    """A label, a text: in their order, the same objects."""
    text = "a motorcycle"
    raw = {"jpg": JPEG, "cls": 5, "txt": text}

    found = ImageProcessor("jpg", columns=["txt", "cls"]).process(raw, context(JPEG))

    assert list(found) == ["image", "txt", "cls"]
    assert found["txt"] is text


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_layouts(layout: str) -> None:
    """CHW is HWC with its axes in another order."""
    found = pixels(ImageProcessor(layout=layout, resize="exact", resize_to=[60, 80]), JPEG)

    whole = pixels(ImageProcessor(resize="exact", resize_to=[60, 80]), JPEG)
    assert found.flags.c_contiguous
    assert np.array_equal(found, whole if layout == "HWC" else whole.transpose(2, 0, 1))


def test_at_full_scale_with_pillow_it_is_what_pillow_gives() -> None:
    """Decoded by either, resized by Pillow: to the byte; by torch within a level."""
    for decoder in DECODERS:
        found = {
            kernel: pixels(
                ImageProcessor(
                    decoder=decoder, scale="full", kernel=kernel, resize="exact", resize_to=224
                ),
                JPEG,
            )
            for kernel in ("pillow", "torch")
        }
        theirs = pillows(JPEG, (224, 224))
        assert np.array_equal(found["pillow"], theirs)
        assert abs(found["torch"].astype(int) - theirs).max() <= 1


def test_a_smaller_decode_stays_near() -> None:
    """Twice as large as the result it changes a photograph by a quarter of a level in the mean."""
    data = pictures.encoded(pictures.photograph(1920, 1080), "JPEG", quality=90)
    made = {
        scale: pixels(ImageProcessor(scale=scale, resize="exact", resize_to=224), data).astype(int)
        for scale in ("full", 2, 1)
    }

    assert 0 < abs(made[2] - made["full"]).mean() < 0.5
    assert abs(made[1] - made["full"]).mean() < 2
    png = [
        pixels(ImageProcessor(scale=scale, resize="exact", resize_to=50), PNG)
        for scale in ("full", 2, 1)
    ]
    assert all(np.array_equal(png[0], other) for other in png[1:])


def test_sizes_come_from_headers_alone() -> None:
    """For every way to resize, as many pixels as the sample has."""
    ways: list[dict[str, Any]] = [
        {},
        {"resize": "exact", "resize_to": [100, 120]},
        {"resize": "shortest", "resize_to": 100},
        {"resize": "longest", "resize_to": 100},
        {"resize": "pad", "resize_to": [90, 200]},
        {"resize": "smart_resize", "most_pixels": 50_000},
        {"resize": "shortest", "resize_to": 100, "crop": "random", "crop_to": 64, "layout": "CHW"},
        {"crop": "random_resized", "crop_to": [32, 48]},
    ]
    for way in ways:
        for data in (JPEG, pictures.turned("JPEG", 6)):
            if way.get("crop") == "random" and data is not JPEG:
                data = PNG
            processor = ImageProcessor(**way)
            sample = processor.process({"image": data}, context(data))
            size = processor.size({"image": data}, [Head(data)])
            assert size is not None
            assert size.counts == tuple(processor.counts(sample)), way
            assert size.size == sample["image"].size // 3
    assert ImageProcessor().measures == ("pixels", "images")
    assert ImageProcessor().knows_size()


def test_a_picture_is_padded_in_the_middle() -> None:
    """With the colour that the job names on both sides, and nothing else is touched."""
    found = pixels(ImageProcessor(resize="pad", resize_to=[75, 140], background=[1, 2, 3]), PNG)

    assert found.shape == (75, 140, 3)
    assert (found[:, :20] == [1, 2, 3]).all()
    assert (found[:, 120:] == [1, 2, 3]).all()
    assert np.array_equal(found[:, 20:120], pillows(PNG, (100, 75)))


def test_what_is_random_follows_from_the_item() -> None:
    """The same item and epoch, the same part and side; others have others."""
    processor = ImageProcessor(crop="random_resized", crop_to=64, flip=0.5)

    first = pixels(processor, JPEG)
    assert np.array_equal(
        first, pixels(ImageProcessor(crop="random_resized", crop_to=64, flip=0.5), JPEG)
    )
    assert not np.array_equal(first, pixels(processor, JPEG, index=4))
    assert not np.array_equal(first, pixels(processor, JPEG, epoch=1))


def test_a_mirrored_picture_is_mirrored() -> None:
    """All are at 1, none at 0, some between."""
    whole = pixels(ImageProcessor(), PNG)

    assert np.array_equal(pixels(ImageProcessor(flip=1), PNG), whole[:, ::-1])
    assert np.array_equal(pixels(ImageProcessor(flip=0), PNG), whole)
    flipped = [
        np.array_equal(pixels(ImageProcessor(flip=0.5), PNG, index=n), whole) for n in range(40)
    ]
    assert 8 < sum(flipped) < 32


def test_crops_are_where_they_are_said_to_be() -> None:
    """The middle one; and random ones somewhere in the picture, without resizing."""
    whole = pixels(ImageProcessor(), PNG)

    centre = pixels(ImageProcessor(crop="centre", crop_to=[75, 100]), PNG)
    part = pixels(ImageProcessor(crop="random", crop_to=[300, 400]), PNG)

    assert np.array_equal(centre, whole[150:225, 200:300])
    places = [
        (top, left)
        for top in range(76)
        for left in range(101)
        if np.array_equal(whole[top, left : left + 400], part[0])
    ]
    assert len(places) == 1
    [(top, left)] = places
    assert np.array_equal(part, whole[top : top + 300, left : left + 400])


# --- what is refused ---


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"decoder": "jpg"}, "decoder is 'jpg': choose one of jpeg, pillow; did you mean jpeg"),
        ({"kernel": "cv2"}, "kernel is 'cv2': choose one of pillow, torch, opencv"),
        ({"scale": 4}, "scale is 4: write full, 2"),
        ({"scale": True}, "scale is True: write full, 2"),
        ({"kernel": "opencv"}, "write scale: 1, or kernel: torch"),
        ({"kernel": "opencv", "scale": 1, "filter": "bicubic"}, "has bilinear alone"),
        ({"resize": "exact"}, "resize_to is None with resize: exact: give the pixels"),
        ({"resize_to": 224}, "resize_to is 224 with resize: null"),
        ({"resize": "shortest", "resize_to": [1, 2]}, "takes the pixels of one side"),
        ({"resize": "exact", "resize_to": 0}, "resize_to is 0: give pixels"),
        ({"resize": "exact", "resize_to": [1, 2, 3]}, "give pixels, such as 224"),
        ({"crop": "centre"}, "crop_to is None with crop: centre"),
        ({"crop": "random_resized", "crop_to": 9, "resize": "exact", "resize_to": 9}, "by itself"),
        ({"crop": "centre", "crop_to": 9, "resize": "pad", "resize_to": 9}, "resize: pad"),
        ({"crop_scale": [0.5, 1.5]}, "crop_scale is [0.5, 1.5]: give two numbers above 0, and at"),
        ({"crop_ratio": [2, 1]}, "the smaller one first"),
        ({"flip": 2}, "flip is 2: give a number from 0"),
        ({"background": [0, 0]}, "background is [0, 0]: give red, green and blue"),
        ({"background": [0, 0, 256]}, "each from 0 to 255"),
        ({"columns": "label"}, "columns is 'label': give a list of names"),
        ({"columns": ["image"]}, "which is what the pixels are called"),
        ({"least_pixels": 10, "most_pixels": 9}, "least_pixels is 10, above most_pixels"),
        ({"max_pixels": 0}, "max_pixels is 0"),
        ({"layout": "NCHW"}, "layout is 'NCHW'"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_parameters_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    """In a sentence with the value and the remedy."""
    with pytest.raises(InvalidJob) as raised:
        ImageProcessor(**given)

    assert said in str(raised.value)


def test_what_an_item_lacks_is_said() -> None:
    """The column of the picture, one to pass along, or the picture itself."""
    with pytest.raises(InvalidJob, match=r"processor\.column is 'image', and the items have 'img'"):
        ImageProcessor().references({"img": JPEG})
    with pytest.raises(InvalidJob, match=r"processor\.column is 'label'"):
        ImageProcessor(columns=["label"]).process({"image": JPEG}, context(JPEG))
    with pytest.raises(ValueError, match="column 'image' is null"):
        ImageProcessor().references({"image": None})
    with pytest.raises(InvalidJob, match="did you mean 'image'"):
        ImageProcessor("imgae").check_columns({"image": "binary"})
    assert ImageProcessor().references(JPEG) == [JPEG]


def test_bounds_hold_for_sizes_and_pixels_alike() -> None:
    """A picture that is too large is a bad item where sizes are told, before it is read."""
    processor = ImageProcessor(max_pixels=100_000)

    with pytest.raises(BadPicture, match="max_pixels is 100,000"):
        processor.size({"image": JPEG}, [Head(JPEG)])
    with pytest.raises(BadPicture, match="max_pixels is 100,000"):
        processor.process({"image": JPEG}, context(JPEG))


@pytest.mark.parametrize("crop", [{}, {"crop": "centre", "crop_to": 224}])
def test_a_line_of_pixels_is_not_made_gigabytes(crop: dict[str, Any]) -> None:
    """By the header, for sizes and for pixels: of 200 bytes, 9 GB would have become."""
    line = pictures.encoded(Image.new("RGB", (1, 60_000)), "PNG")
    processor = ImageProcessor(resize="shortest", resize_to=224, **crop)

    for call in (
        lambda: processor.size({"image": line}, [HeldMedium("a.png", line)]),
        lambda: processor.process({"image": line}, context(line)),
    ):
        with pytest.raises(BadPicture, match="would make 224 x 13440000: leave it out"):
            call()
    assert pixels(ImageProcessor(resize="longest", resize_to=224), line).shape == (224, 1, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1)])
def test_a_side_of_one_pixel_is_turned_and_mirrored_as_any(
    size: tuple[int, int], orientation: int
) -> None:
    """For torch as well, which refuses strides that numpy leaves negative there."""
    exif = Image.Exif()
    exif[0x112] = orientation
    data = pictures.encoded(Image.new("RGB", size, (200, 90, 10)), "PNG", exif=exif)

    for flip in (0.0, 1.0):
        processor = ImageProcessor(kernel="torch", resize="exact", resize_to=8, flip=flip)
        assert (pixels(processor, data) == (200, 90, 10)).all()
        assert min(pixels(ImageProcessor(flip=flip), data).strides) > 0


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("size", [(1, 3), (3, 1), (1, 1), (1, 999), (999, 1), (3, 3), (2, 5)])
def test_a_picture_is_shown_as_it_is_whatever_its_sides(size: tuple[int, int], layout: str) -> None:
    """A side of 1 or 3 is not taken for its channels."""
    drawn = Image.fromarray(np.arange(size[0] * size[1] * 3).astype(np.uint8).reshape(*size, 3))
    out = io.BytesIO()
    drawn.save(out, "PNG")
    role = ImageProcessor(layout=layout)

    [shown] = role.pictures(role.process({"image": out.getvalue()}, context(out.getvalue())))

    assert np.array_equal(shown, np.asarray(drawn))


def test_what_decodes_is_in_the_identity() -> None:
    """Also where it is the default: no other version of penstock may choose another one."""
    assert ImageProcessor().identity()["decodes"] == ["jpeg", 2, "pillow"]
    known = [
        ImageProcessor(decoder=decoder, scale=scale, kernel=kernel, filter=filtering).identity()
        for decoder in DECODERS
        for scale in ("full", 2, 1)
        for kernel in KERNELS
        for filtering in FILTERS
        if kernel != "opencv" or (scale == 1 and filtering == "bilinear")
    ]
    assert len({json.dumps(identity) for identity in known}) == len(known)


# --- transforms ---

AUGMENT = '''
import random

import numpy as np
from PIL import Image


def noisy(image):
    """Draws from all that a transform may draw from."""
    assert isinstance(image, Image.Image)
    turned = image.rotate(random.randrange(4) * 90)
    return np.asarray(turned).astype(np.float32) + np.random.rand()


class Pipeline:
    """Callable, as a Compose is."""

    def __init__(self, value):
        self.value = value

    def __call__(self, image):
        return image.point(lambda level: level // self.value)


pipeline = Pipeline(2)


def of_array(pixels):
    return pixels[:, :, 0]


def nothing(image):
    return None
'''


@pytest.fixture
def augment(tmp_path: Path) -> str:
    """Return the path of a file of transforms."""
    path = tmp_path / "augment.py"
    path.write_text(AUGMENT)
    return str(path)


def test_a_transform_gets_the_pixels_last(augment: str) -> None:
    """A pipeline gets a picture of Pillow, and what it returns is laid out as the rest."""
    processor = ImageProcessor(
        resize="exact", resize_to=40, layout="CHW", transform=f"{augment}:pipeline"
    )

    found = pixels(processor, JPEG)

    plain = pixels(ImageProcessor(resize="exact", resize_to=40, layout="CHW"), JPEG)
    assert np.array_equal(found, plain // 2)
    assert processor.uses_global_rng
    assert not ImageProcessor().uses_global_rng
    assert not processor.knows_size()
    assert processor.size({"image": JPEG}, [Head(JPEG)]) is None
    assert processor.counts({"image": found}) == (1600, 1)


def test_a_function_may_take_an_array(augment: str) -> None:
    """And what it returns that is no picture in colour is passed on as it is."""
    processor = ImageProcessor(transform=f"{augment}:of_array", transform_takes="array")

    assert np.array_equal(pixels(processor, PNG), pillows(PNG)[:, :, 0])


def test_a_tensor_is_passed_on_as_it_is() -> None:
    """A torch pipeline decides dtype and layout itself."""
    import torch

    def to_tensor(image: Image.Image) -> Any:
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255

    found = pixels(ImageProcessor(layout="CHW", transform=to_tensor), PNG)

    assert found.dtype == np.float32
    assert np.array_equal(found, pillows(PNG).transpose(2, 0, 1).astype(np.float32) / 255)


def test_a_transform_is_known_by_its_source(augment: str, tmp_path: Path) -> None:
    """Not by its folder; another text is another job, and an object without a name is none."""
    first = ImageProcessor(transform=f"{augment}:pipeline").identity()
    (tmp_path / "other").mkdir()
    same = tmp_path / "other" / "augment.py"
    same.write_text(AUGMENT)
    moved = ImageProcessor(transform=f"{same}:pipeline").identity()
    changed = tmp_path / "changed.py"
    changed.write_text(AUGMENT.replace("Pipeline(2)", "Pipeline(3)"))

    assert first == moved
    assert first != ImageProcessor(transform=f"{changed}:pipeline").identity()
    assert str(tmp_path) not in json.dumps(first)
    with pytest.raises(InvalidJob, match=r"name where it is made, as \./augment\.py:pipeline"):
        ImageProcessor(transform=_Callable()).identity()


class _Callable:
    def __call__(self, image: Any) -> Any:
        return image


def test_what_a_transform_cannot_be_is_said(augment: str) -> None:
    """Missing, not callable, or with a result of another kind."""
    with pytest.raises(InvalidJob, match="did you mean pipeline"):
        ImageProcessor(transform=f"{augment}:pipelin").setup()
    with pytest.raises(InvalidJob, match="cannot be called: name a pipeline or a function"):
        ImageProcessor(transform=f"{augment}:__name__").setup()
    with pytest.raises(TypeError, match="transform nothing returned NoneType"):
        pixels(ImageProcessor(transform=f"{augment}:nothing"), PNG)


def test_a_torchvision_that_cannot_be_loaded_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheel beside a torch of another build raises this, deep in its own code."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import _meta_registrations\n")
    (package / "_meta_registrations.py").write_text(
        'raise RuntimeError("operator torchvision::nms does not exist")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    path = tmp_path / "augment.py"
    path.write_text("from torchvision.transforms import v2\n\npipeline = v2.Compose([])\n")

    with pytest.raises(MissingExtra) as raised:
        ImageProcessor(transform=f"{path}:pipeline").identity()

    said = str(raised.value)
    assert (
        "needs the package torchvision, which is installed and cannot be imported "
        "(RuntimeError: operator torchvision::nms does not exist): install it anew"
    ) in said
    assert "\n" not in said
    assert raised.value.fields.get("traceback") is None


COMPOSE = """
import albumentations as A

pipeline = A.Compose([A.RandomResizedCrop((32, 48)), A.HorizontalFlip(), A.ColorJitter(p=1)])
"""


def test_a_pipeline_of_albumentations_runs_unedited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded by the item, whatever it was called with before: its generators are its own.

    TEST_ALBUMENTATIONS may name the folder of `pip install --target FOLDER albumentations`.
    """
    if folder := os.environ.get("TEST_ALBUMENTATIONS"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    pytest.importorskip("albumentations")
    made = []
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(COMPOSE + f"# {name}\n")
        spec = f"{tmp_path / name}.py:pipeline"
        made.append(ImageProcessor(transform=spec, transform_takes="albumentations"))

    first = [pixels(made[0], PNG, index=n) for n in (0, 1, 2)]
    second = [pixels(made[1], PNG, index=n) for n in (2, 0, 0, 1)]

    assert first[0].shape == (32, 48, 3)
    assert not np.array_equal(first[0], first[1])
    for one, other in ((0, 1), (0, 2), (1, 3), (2, 0)):
        assert np.array_equal(first[one], second[other])
