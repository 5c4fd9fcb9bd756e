"""What a picture becomes, in every family: against transformers' own image processors."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage import data_dir

from penstock.client import media
from penstock.client.media import normalizing
from penstock.server.media.families.family import Family
from penstock.server.media.families.fixed_families import DefaultFamily, Llava
from penstock.server.media.families.patch_families import Kimi, Qwen3Vl, QwenVl
from penstock.server.media.families.processor_folder import load_family
from penstock.server.media.image_header import parse_header
from penstock.server.media.picture import Decoding
from penstock.wire.errors import InvalidJob, InvalidRequest
from vision import (
    CLASSES,
    TorchvisionPictures,
    drawn,
    encoded,
    image_processor,
    write_vision_folder,
)

MADE: dict[str, tuple[type[Family], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (QwenVl, {}, {}),
    "qwen2_vl, few pixels": (
        QwenVl,
        {"min_pixels": 4 * 28 * 28, "max_pixels": 40 * 28 * 28},
        {"size": {"shortest_edge": 4 * 28 * 28, "longest_edge": 40 * 28 * 28}},
    ),
    "qwen2_vl, other patches": (
        QwenVl,
        {"patch_size": 8, "merge_size": 3, "temporal_patch_size": 1, "resample": 2},
        {"patch_size": 8, "merge_size": 3, "temporal_patch_size": 1, "resample": 2},
    ),
    "qwen3_vl": (Qwen3Vl, {"max_pixels": 1 << 18}, {"size": {
        "shortest_edge": 65536, "longest_edge": 1 << 18}}),
    "kimi": (Kimi, {}, {}),
    "kimi, few patches": (
        Kimi,
        {"max_patches": 100, "max_side_patches": 20},
        {"max_patches": 100, "size": {"max_height": 20, "max_width": 20}},
    ),
    "llava": (Llava, {}, {}),
    "llava, not normalized": (Llava, {"do_normalize": False}, {"do_normalize": False}),
    "llava, a crop larger than the picture": (
        Llava,
        {"do_resize": False, "crop_size": {"height": 201, "width": 334}},
        {"do_resize": False, "crop_size": {"height": 201, "width": 334}},
    ),
}  # fmt: skip
"""Families with settings, and those of transformers that say the same."""

every_family = pytest.mark.parametrize("name", MADE)
sides = st.integers(1, 700)


def family_of(name: str) -> Family:
    cls, given, _ = MADE[name]
    return cls(given, "SomeProcessor")


@cache
def theirs_of(name: str) -> Any:
    return image_processor(name.split(",")[0], **MADE[name][2])


@every_family
@settings(max_examples=12, deadline=None)
@given(width=sides, height=sides, seed=st.integers(0, 99))
def test_pixels_and_grids_are_those_of_transformers(
    name: str, width: int, height: int, seed: int
) -> None:
    """To the bit, in float32; and a header's size tells how many patches there will be."""
    family, theirs = family_of(name), theirs_of(name)
    picture = drawn(width, height, seed)
    if max(width, height) > 200 * min(width, height) and not name.startswith("kimi"):
        if name.startswith("qwen"):
            with pytest.raises(ValueError, match="200 times as long"):
                family.size(width, height)
        return

    patches = family.patches(np.asarray(picture))
    size = family.size(width, height)

    expected = theirs(images=[picture])
    values = np.asarray(expected["pixel_values"])
    found = family.values(patches)
    assert patches.dtype == np.uint8
    assert found.dtype == np.float32
    assert found.shape[1:] == family.shape()
    assert np.array_equal(found, values.astype(np.float32)), (width, height, seed)
    if family.has_grids:
        assert size.grid == tuple(np.asarray(expected["image_grid_thw"])[0])
        assert size.patches == len(values)
        assert size.tokens * family.settings["merge_size"] ** 2 == size.patches
    assert size.pixels == size.patches * family.settings["patch_size"] ** 2 or not family.has_grids


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen3_vl", "kimi", "kimi, few patches"])
@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 9000), height=st.integers(1, 9000))
def test_sizes_of_large_pictures_are_those_of_transformers(
    name: str, width: int, height: int
) -> None:
    """The numbers alone, up to shapes that no test would decode."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    family = family_of(name)
    own = family.settings
    factor = own["patch_size"] * own["merge_size"]
    if name.startswith("kimi"):
        _, (tall, wide) = theirs_of(name).function("navit_resize")(
            height, width, 14, 2, own["max_patches"], own["max_side_patches"]
        )
    elif max(width, height) > 200 * min(width, height):
        return
    else:
        bounds = own["min_pixels"], own["max_pixels"]
        tall, wide = smart_resize(height, width, factor, *bounds)

    size = family.size(width, height)

    assert size.grid == (1, tall // own["patch_size"], wide // own["patch_size"])
    assert size.tokens == (tall // factor) * (wide // factor)


def test_a_thin_picture_is_refused_before_it_takes_memory() -> None:
    """Where its shorter side would be made longer, and most of it cropped."""
    with pytest.raises(ValueError, match="1x700 pixels would be resized to 336x235200 and cropped"):
        Llava({}, "LlavaProcessor").size(1, 700)


@pytest.mark.parametrize("side", [(60_000_000, 1), (1, 60_000_000)])
def test_a_line_is_not_padded_to_gigabytes(side: tuple[int, int]) -> None:
    """Neither its size nor its pixels: both by one rule, before memory is taken."""
    kimi = Kimi({"do_resize": False}, "KimiK25Processor")
    width, height = side
    line = np.broadcast_to(np.zeros((1, 1, 3), np.uint8), (height, width, 3))

    tracemalloc.start()
    try:
        for call in (lambda: kimi.size(width, height), lambda: kimi.patches(line)):
            with pytest.raises(ValueError, match=f"{width}x{height} pixels would be padded to"):
                call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20
    assert kimi.size(10_001, 3).grid == (1, 2, 716)


def test_llava_pads_to_a_square_and_others_resize_both_sides() -> None:
    """LLaVA's own image processor, and SigLIP's, which crops nothing."""
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    sides = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    padded = Llava({"do_pad": True, **sides}, "LlavaProcessor")
    with pytest.raises(ValueError, match="would be padded to 60000x60000"):
        padded.size(60_000, 1)
    both = {"size": {"height": 70, "width": 56}, "do_center_crop": False}
    plain = DefaultFamily({**both, "image_seq_length": 20}, "SomeProcessor")
    for shape in ((90, 31), (31, 90), (40, 40)):
        picture = drawn(*shape)
        for family, theirs in (
            (padded, LlavaImageProcessorPil(do_pad=True, **sides)),
            (
                plain,
                SiglipImageProcessorPil(
                    size=both["size"],
                    image_mean=plain.settings["image_mean"],
                    image_std=plain.settings["image_std"],
                ),
            ),
        ):
            found = family.values(family.patches(np.asarray(picture)))
            expected = np.asarray(theirs(images=[picture])["pixel_values"])
            assert np.array_equal(found, expected), (family.name, shape)
    assert plain.size(90, 31).tokens == 20
    assert padded.size(90, 31).tokens == 16, "four by four patches, with and without the class one"


OVER_TORCHVISION = {
    "qwen2_vl": (QwenVl, {}),
    "qwen2_vl, bilinear": (QwenVl, {"resample": 2}),
    "qwen3_vl": (Qwen3Vl, {}),
    "kimi, few patches": (Kimi, {"max_patches": 100}),
    "llava": (Llava, {}),
    "llava, not normalized": (Llava, {"do_normalize": False}),
    "llava, not scaled": (Llava, {"do_rescale": False}),
}


@pytest.mark.parametrize("name", OVER_TORCHVISION)
def test_by_torch_pixels_are_those_of_transformers_over_torchvision(name: str) -> None:
    """The same bits again: resized by torch, and with mean and deviation scaled."""
    cls, given = OVER_TORCHVISION[name]
    family = cls(given, "SomeProcessor", "torch")
    more = dict(given)
    if cls is Qwen3Vl:
        own = ("patch_size", "image_mean", "image_std")
        more = {key: family.settings[key] for key in own}
        more["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
    if cls is Llava:
        more |= {key: family.settings[key] for key in ("size", "crop_size")}
    theirs = TorchvisionPictures(name.split(",")[0], **more)
    for number, (width, height) in enumerate([(500, 375), (31, 240), (640, 200), (300, 301)]):
        picture = drawn(width, height, number)

        found = family.values(family.patches(np.asarray(picture)))

        expected = np.asarray(theirs(images=[picture])["pixel_values"], np.float32)
        assert np.array_equal(found, expected), (width, height)
        by_pillow = cls(given, "SomeProcessor").values(cls(given, "S").patches(np.asarray(picture)))
        assert number or not np.array_equal(found, by_pillow), "the kernels are told apart"


def test_a_filter_that_torch_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"resample of Some .* is lanczos, which torch does not"):
        QwenVl({"resample": 1}, "Some", "torch")


# --- pictures ---


def test_transparent_pictures_are_on_white_as_in_transformers() -> None:
    """Alpha, and a palette with a transparent colour."""
    from transformers.image_transforms import convert_to_rgb

    alpha = np.asarray(drawn(20, 10).convert("RGBA")).copy()
    alpha[:, :10, 3] = np.arange(0, 200, 20)
    faded = Image.fromarray(alpha)
    palette = drawn(20, 10).quantize(8)
    palette.info["transparency"] = 3
    for image in (faded, palette):
        data = encoded(image)
        expected = convert_to_rgb(Image.open(io.BytesIO(data)), return_numpy=True)
        found = Decoding().decode(data, parse_header(data, "a"), "a")
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("file", ["chelsea.png", "rocket.jpg", "camera.png"])
def test_photographs_come_out_as_from_transformers(file: str) -> None:
    """Of scikit-image, by three families: JPEG and PNG, grey and coloured."""
    data = (Path(data_dir) / file).read_bytes()
    header = parse_header(data, file)
    image = Image.open(io.BytesIO(data)).convert("RGB")
    for name in ("qwen2_vl", "kimi", "llava"):
        family = family_of(name)
        found = family.values(family.patches(Decoding().decode(data, header, file)))
        expected = theirs_of(name)(images=[image])["pixel_values"]
        assert np.array_equal(found, np.asarray(expected)), name
        assert family.size(header.width, header.height).patches > 0


# --- settings and folders ---


@pytest.mark.parametrize("kind", CLASSES)
def test_a_folder_tells_its_family(kind: str, tmp_path: Path) -> None:
    """By the processor's class; and with the settings that transformers would take."""
    folder = write_vision_folder(tmp_path / kind, kind)

    family = load_family(folder, None, None)

    picture = drawn(100, 80)
    expected = np.asarray(image_processor(kind)(images=[picture])["pixel_values"])
    assert kind.startswith(family.name[:5])
    assert np.array_equal(family.values(family.patches(np.asarray(picture))), expected)


def test_older_files_and_the_jobs_word(tmp_path: Path) -> None:
    """`min_pixels` beside `size`, one number for both sides, and settings over both."""
    saved = {
        "processor_class": "Qwen2VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": [0.4, 0.4, 0.4],
        "size": {"shortest_edge": 3136, "longest_edge": 12845056},
        "max_pixels": 784 * 100,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(saved))

    family = load_family(tmp_path, None, {"min_pixels": 784})

    assert (family.settings["min_pixels"], family.settings["max_pixels"]) == (784, 78400)
    assert family.settings["image_mean"] == [0.4, 0.4, 0.4]
    old = {"image_mean": [0.4, 0.4, 0.4], "size": 56, "crop_size": 56, "do_center_crop": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    family = load_family(tmp_path, "llava", {"patch_size": 7})
    assert family.size(1, 1).tokens == 64


def test_kimis_own_code_has_other_names(tmp_path: Path) -> None:
    """`media_proc_cfg`, and the class in `auto_map`; what the family has not is refused."""
    told = {"in_patch_limit": 65536, "patch_limit_on_one_side": 99, "merge_kernel_size": [2, 2]}
    saved: dict[str, Any] = {
        "auto_map": {"AutoProcessor": "kimi_k25_processor.KimiK25Processor"},
        "media_proc_cfg": {**told, "patch_size": 14, "fixed_output_tokens": None},
    }
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(saved))

    family = load_family(tmp_path, None, None)

    names = ("max_patches", "max_side_patches", "merge_size")
    assert [family.settings[name] for name in names] == [65536, 99, 2]
    saved["media_proc_cfg"]["transparent_bg_config"] = {"type": "chessboard"}
    file.write_text(json.dumps(saved))
    with pytest.raises(InvalidJob, match="transparent_bg_config in"):
        load_family(tmp_path, None, None)


def test_settings_alone_make_a_family(tmp_path: Path) -> None:
    """A folder without the files of a processor, and a job that says what they would."""
    family = load_family(tmp_path, "default", {"image_seq_length": 9, "image_token": "<pic>"})

    assert (family.image_token, family.size(640, 480).tokens) == ("<pic>", 9)


@pytest.mark.parametrize(
    ("saved", "name", "given", "said"),
    [
        ({}, None, {}, "does not say of which processor it is"),
        ({"processor_class": "MysteryProcessor"}, None, {}, "is that of MysteryProcessor"),
        ({}, "qwen", {}, "family is 'qwen'; give one of qwen2_vl, qwen2_5_vl"),
        ({}, "qwen2_vl", {"max_pixel": 9}, "max_pixels"),
        ({}, "qwen2_vl", {"max_pixels": 0}, "settings.max_pixels is 0; give a whole number from 1"),
        ({}, "qwen2_vl", {"image_mean": [0, 1]}, "give three numbers"),
        ({}, "llava", {"image_std": [0, 1, 1]}, "three numbers above 0"),
        ({"patch_size": "14"}, "qwen2_vl", {}, r"patch_size in '.*preprocessor_config.json' is"),
        ({}, "llava", {"do_center_crop": False}, "give settings a height and a width"),
        ({}, "llava", {"size": {"longest_edge": 9}}, "give settings {size: {shortest_edge: 336}}"),
        ({}, "default", {}, "does not say how many tokens"),
        (
            {"processor_class": "Idefics3Processor", "do_image_splitting": True},
            "default",
            {"image_seq_length": 64},
            "Idefics3Processor cuts pictures into several",
        ),
    ],
)
def test_what_makes_no_family_is_one_sentence(
    saved: dict[str, Any], name: str | None, given: Any, said: str, tmp_path: Path
) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(saved))

    with pytest.raises(InvalidJob, match=said):
        load_family(tmp_path, name, given)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text("{")

    with pytest.raises(InvalidJob, match=r"preprocessor_config\.json"):
        load_family(tmp_path, "qwen2_vl", None)


ODD: list[Any] = [
    *(None, 0, 1, -1, 14, 10**30, 1e308, 0.5, float("inf"), True, "", "14", [], [1], [1, 2, 3]),
    *([0, 0, 0], [1, "a", 2], [1e-320] * 3, {}, {"height": 9, "width": 9}, {"content": 5}),
    *({"shortest_edge": 5}, {"shortest_edge": 5, "longest_edge": 10**9}, {"a": None}, [[1]]),
]
OTHER_KEYS = (
    *("image_token", "extra_special_tokens", "auto_map", "media_proc_cfg", "image_processor"),
    *("size", "crop_size", "resample", "do_pad", "image_processor_type", "min_pixels"),
    *("max_pixels", "max_patches", "image_seq_length", "rescale_factor", "temporal_patch_size"),
)


def test_files_of_any_content_make_a_family_or_one_sentence(tmp_path: Path) -> None:
    """Nothing else fails, at load or with a picture, and nothing divides by zero."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    for kind in CLASSES:
        write_vision_folder(tmp_path / kind, kind)
    loaded = 0
    for number in range(500):
        kind = draw.choice(list(CLASSES))
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in (tmp_path / kind).glob("*_config.json"):
            saved = json.loads(file.read_text())
            for _ in range(draw.randint(0, 2)):
                saved[draw.choice([*saved, *OTHER_KEYS])] = draw.choice(ODD)
            (folder / file.name).write_text(json.dumps(saved))
        try:
            family = load_family(folder, draw.choice([None, "default", "llava"]), None)
        except InvalidJob:
            continue
        loaded += 1
        try:
            size = family.size(64, 48)
        except ValueError:
            continue
        if size.pixels < 1 << 20:
            values = family.values(family.patches(np.zeros((48, 64, 3), np.uint8)))
            assert np.isfinite(values).all(), (seed, number)
            assert np.isfinite(family.norm()).all(), (seed, number)
    assert loaded > 50


# --- pixels that travel as bytes ---

NORMALIZED = ("qwen2_vl", "qwen3_vl", "kimi", "llava", "llava, not normalized")


@pytest.mark.parametrize("name", NORMALIZED)
def test_the_trainer_makes_the_familys_own_values(name: str) -> None:
    """Of all 256 levels in all channels: within 1/255 of a level, then rounded to the dtype."""
    family = family_of(name)
    level = 1 / 255 / family.norm()[1].max()
    picture = (np.arange(224 * 224 * 3) % 257).astype(np.uint8).reshape(224, 224, 3)
    family.settings["do_resize"] = False
    pixels = family.patches(picture)
    assert all(len(np.unique(picture[:, :, channel])) == 256 for channel in range(3))
    expected = torch.from_numpy(family.values(pixels))

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = media.normalized(torch.from_numpy(pixels), family.norm(), dtype=dtype)
        exact = media.normalized(torch.from_numpy(pixels), family.norm(), dtype=torch.float32)
        assert found.shape == pixels.shape
        assert (exact - expected).abs().max().item() <= level
        assert torch.equal(found, exact.to(dtype))


def test_pictures_of_any_number_are_normalized_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and where chunks end changes nothing."""
    family = family_of("qwen2_vl")
    pixels = torch.from_numpy(family.patches(np.asarray(drawn(140, 112))))
    whole = media.normalized(pixels, family.norm(), dtype=torch.float32)

    monkeypatch.setattr(normalizing, "CHUNK", 3 * pixels.shape[1])

    assert torch.equal(media.normalized(pixels, family.norm(), dtype=torch.float32), whole)
    assert media.normalized(pixels[:0], family.norm()).shape == (0, 1176)
    theirs = np.asarray(theirs_of("qwen2_vl")(images=[drawn(140, 112)])["pixel_values"])
    assert np.abs(whole.numpy() - theirs).max() < 1e-6


def test_a_batch_is_normalized_as_it_arrives() -> None:
    """`pixel_norm` goes; float32 pixels change their dtype; a batch of text stays."""
    family = family_of("llava")
    pixels = torch.from_numpy(family.patches(np.asarray(drawn(50, 40))))
    norm = torch.from_numpy(family.norm())

    found = media.normalize({"pixel_values": pixels, "pixel_norm": norm, "x": 1})
    several = norm.expand(4, *norm.shape)
    stacked = media.normalize({"pixel_values": pixels, "pixel_norm": several})

    assert sorted(found) == ["pixel_values", "x"]
    assert found["pixel_values"].dtype == torch.bfloat16
    assert torch.equal(found["pixel_values"], stacked["pixel_values"])
    already = media.normalize({"pixel_values": found["pixel_values"].float()}, dtype=torch.float16)
    assert already["pixel_values"].dtype == torch.float16
    assert media.normalize({"input_ids": pixels}) == {"input_ids": pixels}


@pytest.mark.parametrize("name", ["qwen2_vl", "kimi", "llava"])
def test_stacked_pixels_are_normalized_as_they_are(name: str) -> None:
    """However many axes stand before a patch or a picture: collators stack what is of one shape."""
    family = family_of(name)
    pixels = torch.from_numpy(family.patches(np.asarray(drawn(60, 60))))

    flat = media.normalized(pixels, family.norm(), dtype=torch.float32)
    stacked = media.normalized(pixels[None, None], family.norm()[None], dtype=torch.float32)

    assert stacked.shape == (1, 1, *pixels.shape)
    assert torch.equal(stacked[0, 0], flat)


def test_what_cannot_be_normalized_is_one_sentence() -> None:
    pixels, norm = torch.zeros((2, 12), dtype=torch.uint8), np.ones((2, 12), np.float32)

    with pytest.raises(InvalidRequest, match="no pixel_norm"):
        media.normalize({"pixel_values": pixels})
    with pytest.raises(InvalidRequest, match=r"dtype is torch\.int32"):
        media.normalized(pixels, norm, dtype=torch.int32)
    with pytest.raises(InvalidRequest, match="not normalized yet"):
        media.normalized(pixels.float(), norm)
    for wrong in (norm[0], norm[:, :3], np.ones((2, 3, 1, 1), np.float32)):
        with pytest.raises(InvalidRequest, match=r"pixel_norm has the shape \("):
            media.normalized(pixels, wrong)
