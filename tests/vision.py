"""Folders of small vision-language processors, and transformers' own over the same files."""

from __future__ import annotations

import importlib
import io
import json
import sys
import types
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from chats import small_tokenizer

QWEN = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}{{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}{{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
KIMI = """\
{%- for message in messages %}
    {{- '<|im_' + message.role + '|>' + message.role + '<|im_middle|>' }}
    {%- if message.content is string %}{{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}
                {{- '<|media_begin|>image<|media_content|><|media_pad|><|media_end|>' }}
            {%- else %}{{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}
"""
LLAVA = """\
{%- for message in messages %}
    {%- if message.role != 'system' %}{{- message.role.upper() + ': ' }}{% endif %}
    {%- for part in message.content | selectattr('type', 'equalto', 'image') %}
        {{- '<image>\\n' }}
    {%- endfor %}
    {%- for part in message.content | selectattr('type', 'equalto', 'text') %}
        {%- if message.role == 'assistant' %}
            {%- generation %}{{- part.text + '</s>' }}{% endgeneration %}
        {%- else %}{{- part.text + ' ' }}{% endif %}
    {%- endfor %}
{%- endfor %}
"""
TOKENS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<image>",
    "<|media_begin|>",
    "<|media_content|>",
    "<|media_pad|>",
    "<|media_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
)
CLASSES = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
    "llava": "LlavaProcessor",
    "kimi": "Kimi_K25Processor",
}
"""The processor's class of each kind of folder."""

TEMPLATES = {"llava": LLAVA, "kimi": KIMI}
MODULES = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "qwen3_vl": "qwen3_vl"}


@cache
def vision_tokenizer() -> Tokenizer:
    """Return a BPE that knows the tokens of pictures of all families."""
    found = Tokenizer.from_str(small_tokenizer().to_str())
    found.add_special_tokens(list(TOKENS))
    return found


def write_vision_folder(folder: Path, kind: str, **pictures: Any) -> Path:
    """Write what `save_pretrained` writes of a processor.

    Args:
        folder: Where.
        kind: One of `CLASSES`.
        pictures: Settings of its image processor, beside the class's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vision_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATES.get(kind, QWEN))
    saved = {"processor_class": CLASSES[kind], **image_settings(kind, **pictures)}
    (folder / "preprocessor_config.json").write_text(json.dumps(saved))
    if kind == "llava":
        told = {
            "processor_class": CLASSES[kind],
            "patch_size": 14,
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "vision_feature_select_strategy": "default",
        }
        (folder / "processor_config.json").write_text(json.dumps(told))
    return folder


def image_settings(kind: str, **pictures: Any) -> dict[str, Any]:
    """Return what transformers writes of an image processor."""
    if kind == "kimi":
        found = {
            "image_processor_type": "Kimi_K25ImageProcessor",
            "size": {"max_height": 512, "max_width": 512},
            "max_patches": 16384,
            "patch_size": 14,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
            "rescale_factor": 0.00392156862745098,
            "resample": 3,
        }
        return {**found, **pictures}
    made: dict[str, Any] = image_processor(kind, **pictures).to_dict()
    return made


def image_processor(kind: str, **pictures: Any) -> Any:
    """Return the image processor of transformers, over Pillow."""
    if kind == "kimi":
        return KimiPictures(**pictures)
    if kind == "llava":
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

        sides = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
        return CLIPImageProcessorPil(**{**sides, **pictures})
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own: dict[str, Any] = {}
    if kind == "qwen3_vl":
        half = [0.5, 0.5, 0.5]
        own = {"patch_size": 16, "image_mean": half, "image_std": half}
        own["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
    return Qwen2VLImageProcessorPil(**{**own, **pictures})


def whole_processor(kind: str, folder: Path, **pictures: Any) -> Any:
    """Return the processor of transformers over the tokenizer of a folder."""
    from transformers import PreTrainedTokenizerFast

    name = CLASSES[kind]
    module = {"llava": "llava", "kimi": "kimi_k25"}.get(kind, kind)
    found = importlib.import_module(f"transformers.models.{module}.processing_{module}")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(folder / "tokenizer.json")),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<s>",
    )

    class Processor(getattr(found, name)):  # type: ignore[misc]
        """Without videos: their processors need a torchvision that loads."""

        def check_argument_for_proper_class(self, argument: str, value: Any) -> Any:
            if value is None or isinstance(value, KimiPictures):
                return None
            return super().check_argument_for_proper_class(argument, value)

    Processor.__name__ = name
    more: dict[str, Any] = {"video_processor": None}
    if kind == "llava":
        more = {"patch_size": 14, "vision_feature_select_strategy": "default"}
        more["num_additional_image_tokens"] = 1
    template = (folder / "chat_template.jinja").read_text()
    return Processor(
        image_processor=image_processor(kind, **pictures),
        tokenizer=tokenizer,
        chat_template=template,
        **more,
    )


class KimiPictures:
    """Kimi's image processor of transformers, which is there over torchvision alone.

    Its own code sizes, pads, normalizes and cuts. What it asks of torchvision is done here:
    resizing by Pillow, which is what penstock has in its place, padding and (x - mean) / std.
    """

    model_input_names = ("pixel_values", "image_grid_thw")

    def __init__(self, max_patches: int = 16384, side: int = 512) -> None:
        self.merge_size = self._merge = 2
        self._most, self._side = max_patches, side

    def __call__(self, images: Any, **_: Any) -> Any:
        """Return what it gives for pictures."""
        import torch

        module = _kimi()
        theirs: Any = object.__new__(module.Kimi_K25ImageProcessor)
        theirs.resize = _pillow_resize
        theirs.pad = lambda image, pad_size: torch.nn.functional.pad(
            image, (0, pad_size.width - image.shape[-1], 0, pad_size.height - image.shape[-2])
        )
        theirs.normalize = lambda image, mean, std, inplace: (
            (image - mean[:, None, None]) / std[:, None, None]
        )
        tensors = [
            torch.from_numpy(np.asarray(image.convert("RGB")).transpose(2, 0, 1).copy())
            for image in (images if isinstance(images, list) else [images])
        ]
        kind = module.Kimi_K25ImageProcessor
        from transformers.image_utils import SizeDict

        return theirs._preprocess(
            tensors,
            do_resize=True,
            size=SizeDict(max_height=self._side, max_width=self._side),
            resample=3,
            do_rescale=True,
            rescale_factor=1 / 255,
            do_normalize=True,
            image_mean=tuple(kind.image_mean),
            image_std=tuple(kind.image_std),
            patch_size=kind.patch_size,
            merge_size=kind.merge_size,
            max_patches=self._most,
            disable_grouping=False,
            return_tensors=None,
        )

    def fetch_images(self, images: Any) -> Any:
        """Return them: they are there."""
        return images


@cache
def _kimi() -> Any:
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    stand_in = {name: types.ModuleType(name) for name in names}
    stand_in[names[2]].functional = types.SimpleNamespace(  # type: ignore[attr-defined]
        InterpolationMode=object
    )
    with mock.patch.dict(sys.modules, stand_in):
        return importlib.import_module("transformers.models.kimi_k25.image_processing_kimi_k25")


def _pillow_resize(image: Any, size: Any, resample: int) -> Any:
    import torch

    if tuple(image.shape[-2:]) == (size.height, size.width):
        return image
    return torch.stack(
        [
            torch.from_numpy(
                np.asarray(
                    Image.fromarray(each.permute(1, 2, 0).numpy()).resize(
                        (size.width, size.height), resample=resample
                    )
                )
                .transpose(2, 0, 1)
                .copy()
            )
            for each in image
        ]
    )


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture with coarse and fine detail."""
    rng = np.random.default_rng([seed, width, height])
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), np.uint8))
    found = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noise = rng.integers(-30, 31, found.shape)
    return Image.fromarray((found + noise).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    """Return a picture as a file has it."""
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()
