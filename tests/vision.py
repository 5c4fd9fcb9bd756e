"""Folders of small vision-language processors, and transformers' own over the same files."""

from __future__ import annotations

import importlib
import io
import json
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
            {%- elif part.type == 'video' %}{{- '<|vision_start|><|video_pad|><|vision_end|>' }}
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
    if kind in MODULES:
        (folder / "video_preprocessor_config.json").write_text(json.dumps(video_settings(kind)))
    if kind == "qwen2_5_vl":
        (folder / "config.json").write_text('{"vision_config": {"tokens_per_second": 2}}')
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


def video_settings(kind: str) -> dict[str, Any]:
    """Return what transformers writes of a video processor, with bounds that keep tests small."""
    each = 16 if kind == "qwen3_vl" else 14
    half = [0.5, 0.5, 0.5]
    clip = [[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]]
    mean, std = [half, half] if kind == "qwen3_vl" else clip
    return {
        "video_processor_type": "Qwen2VLVideoProcessor",
        "size": {"shortest_edge": 4 * each**2, "longest_edge": 200 * each**2},
        "image_mean": mean,
        "image_std": std,
        "patch_size": each,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_frames": 4,
        "max_frames": 768,
    }


def image_processor(kind: str, **pictures: Any) -> Any:
    """Return the image processor of transformers, over Pillow."""
    if kind == "kimi":
        return TorchvisionPictures(kind, "pillow", **pictures)
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


def whole_processor(kind: str, folder: Path, *, kernel: str = "pillow", **pictures: Any) -> Any:
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
        """Whose video processor is transformers' own code, over torch in torchvision's place."""

        def check_argument_for_proper_class(self, argument: str, value: Any) -> Any:
            if value is None or isinstance(value, TorchvisionPictures | TorchvisionVideos):
                return None
            return super().check_argument_for_proper_class(argument, value)

    Processor.__name__ = name
    videos = TorchvisionVideos(kind, kernel) if kind in MODULES else None
    more: dict[str, Any] = {"video_processor": videos}
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


class TorchvisionPictures:
    """An image processor of transformers over torchvision, where torchvision is not installed.

    Its own code sizes, crops, pads, normalizes and cuts. What it asks of torchvision is done here
    as torchvision does it: by torch's operation, or where a test says so by Pillow's.

    Args:
        kind: One of `CLASSES`.
        kernel: What resizes.
        settings: Beside the class's own.
    """

    model_input_names = ("pixel_values", "image_grid_thw")

    def __init__(self, kind: str, kernel: str = "torch", **settings: Any) -> None:
        folder, name = {
            "kimi": ("kimi_k25", "Kimi_K25ImageProcessor"),
            "llava": ("clip", "CLIPImageProcessor"),
        }.get(kind, ("qwen2_vl", "Qwen2VLImageProcessor"))
        self._resize = _RESIZES[kernel]
        with _torchvision(self._resize):
            self._module = importlib.import_module(
                f"transformers.models.{folder}.image_processing_{folder}"
            )
        self._theirs: Any = object.__new__(getattr(self._module, name))
        own = {
            key: getattr(self._theirs, key, None)
            for key in (
                *("do_resize", "size", "resample", "do_rescale", "do_normalize", "image_mean"),
                *("image_std", "patch_size", "merge_size", "temporal_patch_size", "max_patches"),
                *("do_center_crop", "crop_size"),
            )
        }
        self._settings = {**own, "rescale_factor": 1 / 255, "do_pad": False, **settings}
        self.merge_size = self._settings["merge_size"]

    def __call__(self, images: Any, **_: Any) -> Any:
        """Return what it gives for pictures."""
        import torch
        from transformers.image_utils import SizeDict

        told = dict(self._settings)
        for name in ("size", "crop_size"):
            if told[name] is not None:
                told[name] = SizeDict(**told[name])
        for name in ("image_mean", "image_std"):
            told[name] = tuple(told[name])
        tensors = [
            torch.from_numpy(np.asarray(image.convert("RGB")).transpose(2, 0, 1).copy())
            for image in (images if isinstance(images, list) else [images])
        ]
        with _torchvision(self._resize):
            return self._theirs._preprocess(
                tensors, **told, pad_size=None, disable_grouping=False, return_tensors=None
            )

    def fetch_images(self, images: Any) -> Any:
        """Return them: they are there."""
        return images

    def function(self, name: str) -> Any:
        """Return a function of its module."""
        return getattr(self._module, name)


class TorchvisionVideos:
    """A video processor of transformers, where torchvision is not installed: as the pictures'.

    Args:
        kind: One of `MODULES`.
        kernel: What resizes.
        settings: Over those of `video_settings`.
    """

    model_input_names = ("pixel_values_videos", "video_grid_thw")

    def __init__(self, kind: str, kernel: str = "torch", **settings: Any) -> None:
        module, name = {
            "qwen3_vl": ("qwen3_vl", "Qwen3VLVideoProcessor"),
        }.get(kind, ("qwen2_vl", "Qwen2VLVideoProcessor"))
        self._resize = _RESIZES[kernel]
        with _torchvision(self._resize):
            self._module = importlib.import_module(
                f"transformers.models.{module}.video_processing_{module}"
            )
        self._theirs: Any = object.__new__(getattr(self._module, name))
        self._settings = {**video_settings(kind), **settings}
        self.merge_size = self._settings["merge_size"]
        self.temporal_patch_size = self._settings["temporal_patch_size"]

    def __call__(self, videos: Any, video_metadata: Any = None, **_: Any) -> Any:
        """Return what it gives for videos, arrays of frames, and sampling none."""
        import torch
        from transformers.image_utils import SizeDict
        from transformers.video_utils import VideoMetadata

        told = {
            name: self._settings[name]
            for name in ("patch_size", "temporal_patch_size", "merge_size")
        }
        told |= {name: tuple(self._settings[name]) for name in ("image_mean", "image_std")}
        tensors = [torch.from_numpy(video.transpose(0, 3, 1, 2).copy()) for video in videos]
        with _torchvision(self._resize):
            found = self._theirs._preprocess(
                tensors,
                do_resize=True,
                size=SizeDict(**self._settings["size"]),
                resample=3,
                do_rescale=True,
                rescale_factor=1 / 255,
                do_normalize=True,
                cap_pixels_per_frame=self._settings.get("cap_pixels_per_frame", False),
                return_tensors=None,
                **told,
            )
        found["video_metadata"] = [VideoMetadata(**each) for each in video_metadata or ()]
        return found


@contextmanager
def _torchvision(resize: Callable[..., Any]) -> Iterator[None]:
    """Have modules of transformers find what they ask of torchvision."""
    import torch
    from transformers import image_processing_backends

    functional = types.SimpleNamespace(
        InterpolationMode=types.SimpleNamespace(LANCZOS="lanczos", BILINEAR="bilinear"),
        resize=resize,
        crop=lambda image, top, left, height, width: image[
            ..., top : top + height, left : left + width
        ],
        pad=lambda image, sides, fill=0, padding_mode="constant": torch.nn.functional.pad(
            image, (sides[0], sides[2], sides[1], sides[3]), value=fill
        ),
        normalize=lambda image, mean, std, inplace=False: (
            (image - torch.as_tensor(mean)[:, None, None]) / torch.as_tensor(std)[:, None, None]
        ),
    )
    names = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2")
    modules = {name: types.ModuleType(name) for name in names}
    modules[names[2]].functional = functional  # type: ignore[attr-defined]
    modules[f"{names[2]}.functional"] = functional  # type: ignore[assignment]
    filters = {2: "bilinear", 3: "bicubic"}
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.multiple(
            image_processing_backends,
            create=True,
            tvF=functional,
            pil_torch_interpolation_mapping=filters,
        ),
    ):
        yield


def _torch_resize(images: Any, size: Any, interpolation: str, antialias: bool) -> Any:
    import torch

    if tuple(images.shape[-2:]) == tuple(size):
        return images
    flat = images.reshape(-1, *images.shape[-3:])  # of videos each frame, as torchvision does
    found = torch.nn.functional.interpolate(
        flat, tuple(size), mode=interpolation, align_corners=False, antialias=antialias
    )
    return found.reshape(*images.shape[:-2], *size)


def _pillow_resize(images: Any, size: Any, interpolation: str, antialias: bool) -> Any:
    import torch

    if tuple(images.shape[-2:]) == tuple(size):
        return images
    by = Image.Resampling[interpolation.upper()]
    made = [
        np.asarray(Image.fromarray(each.permute(1, 2, 0).numpy()).resize(size[::-1], resample=by))
        for each in images.reshape(-1, *images.shape[-3:])
    ]
    stacked = torch.stack([torch.from_numpy(each.transpose(2, 0, 1).copy()) for each in made])
    return stacked.reshape(*images.shape[:-2], *size)


_RESIZES = {"torch": _torch_resize, "pillow": _pillow_resize}


def small_qwen() -> Any:
    """Return a Qwen2-VL of two layers, with a vision tower of one, for `vision_tokenizer`."""
    import torch
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    tokenizer = vision_tokenizer()
    ids = {
        name: tokenizer.token_to_id(token)
        for name, token in (
            ("image_token_id", "<|image_pad|>"),
            ("video_token_id", "<|video_pad|>"),
            ("vision_start_token_id", "<|vision_start|>"),
            ("vision_end_token_id", "<|vision_end|>"),
        )
    }
    config = Qwen2VLConfig(
        text_config={
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        },
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        attn_implementation="sdpa",
        **ids,
    )
    torch.manual_seed(0)
    return Qwen2VLForConditionalGeneration(config).eval()


def loss_and_tokens(model: Any, batch: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the summed loss of packed rows with unshifted labels, and of how many labels it is."""
    import torch

    from penstock.client import masks

    labels = batch["labels"]
    documents = masks.document_ids(batch)
    pixels = {name: batch[name] for name in ("pixel_values", "image_grid_thw") if name in batch}
    if not len(pixels.get("image_grid_thw", ())):
        pixels = {}
    logits = model(
        input_ids=batch["input_ids"],
        position_ids=batch["position_ids"],
        attention_mask=masks.block_causal(documents),
        use_cache=False,
        **pixels,
    ).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
    )
    return loss, int((labels[:, 1:] != -100).sum())


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
