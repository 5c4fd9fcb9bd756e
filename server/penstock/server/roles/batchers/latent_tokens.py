"""How many tokens a sample takes whose media a model compresses: an estimate from shapes alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.server.roles.samples import Sample


class LatentTokens(NamedTuple):
    """The estimate of cosmos-framework's `SequentialPackingBatcher`.

    A sample takes one token more than its text has; `(H // s) * (W // s) * (1 + (T - 1) // t) + 2`
    for each picture and film, of T frames, one for a picture; one for each row of its actions; and
    `latent_fps` for each second of its sound, rounded down.

    Attributes:
        spatial: s: pixels of a side that become one token.
        temporal: t: frames that become one, but for the first.
        latent_fps: Tokens of a second of sound; 0 = it takes none.
        sample_rate: Points of a second of sound.
    """

    spatial: int
    temporal: int
    latent_fps: int
    sample_rate: int

    def of(self, sample: Sample, text: str) -> int:
        """Return the tokens of a sample.

        Args:
            sample: With `images` (C, H, W), `video` (C, T, H, W), `action` (rows, ...) and `sound`
                (..., points), each an array, a list of them or None, where it has them.
            text: The value that holds its token ids: (t,), (1, t) or a list of either.

        Raises:
            ValueError: A value has another shape.
        """
        found = 1 + _text(sample[text])
        for name, axes in (("images", 3), ("video", 4)):
            for value in _listed(sample.get(name)):
                shape = _shape(value, name, axes)
                frames = shape[1] if axes == 4 else 1
                height, width = shape[-2] // self.spatial, shape[-1] // self.spatial
                found += height * width * (1 + (frames - 1) // self.temporal) + 2
        found += sum(_shape(value, "action", 1)[0] for value in _listed(sample.get("action")))
        if self.latent_fps:
            for value in _listed(sample.get("sound")):
                points = _shape(value, "sound", 1)[-1]
                found += points * self.latent_fps // self.sample_rate
        return int(found)


def _listed(value: Any) -> list[Any]:
    values = value if isinstance(value, list | tuple) else [value]
    return [one for one in values if one is not None]


def _text(value: Any) -> int:
    if isinstance(value, list | tuple) and value and np.ndim(value[0]):
        return sum(_text(one) for one in value)
    shape = np.shape(value)
    return int(shape[-1]) if shape else 0


def _shape(value: Any, name: str, axes: int) -> tuple[int, ...]:
    shape = tuple(np.shape(value))
    if len(shape) < axes or (axes > 1 and len(shape) != axes):
        words = {"images": "(C, H, W)", "video": "(C, T, H, W)"}.get(name, "an array with rows")
        raise ValueError(f"{name!r} has the shape {shape}, and its tokens are estimated of {words}")
    return shape
