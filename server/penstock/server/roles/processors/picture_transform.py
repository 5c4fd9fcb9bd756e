"""A user's pipeline of transforms for pictures, called as its library calls it."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.files.filesystems import unusable
from penstock.server.media.pillow import pillow
from penstock.server.roles.role import module_hash
from penstock.server.usercode.imports import SOURCE_HASH, load_attribute, load_module
from penstock.server.usercode.neighbours import module_source_hash
from penstock.wire.errors import InvalidJob

TAKES = ("pillow", "array", "albumentations")

Transform = str | Callable[..., Any]


class PictureTransform:
    """A pipeline of transforms, or a function: what it is given, and what comes of its result.

    Args:
        transform: `./file.py:name`, `package.module:name`, or a callable.
        takes: `pillow`: it is called with a picture of Pillow, as pipelines of torchvision are.
            `array`: with uint8 (height, width, 3). `albumentations`: with that as `image=`, and
            seeded by the item before.
    """

    def __init__(self, transform: Transform, takes: str) -> None:
        self.transform, self.takes = transform, takes
        self._found: Any = None

    def name(self) -> str:
        """Return its own name: the path of its file decides no bytes."""
        if isinstance(self.transform, str):
            return self.transform.rpartition(":")[2]
        return str(getattr(self.transform, "__qualname__", type(self.transform).__qualname__))

    def identity(self) -> dict[str, Any]:
        """Return its name with its `version`, or with the hash of the source that makes it.

        Raises:
            InvalidJob: It cannot be found; or it is an object without a name to find it by.
        """
        found = self.find()
        version = getattr(found, "version", None)
        if version is not None:
            return {"name": self.name(), "version": version}
        if isinstance(self.transform, str):
            module = load_module(self.transform.rpartition(":")[0])
            source = getattr(module, SOURCE_HASH, None) or module_source_hash(module)
            return {"name": self.name(), "source": source}
        if inspect.isroutine(found) or inspect.isclass(found):
            return {"name": self.name(), "source": module_hash(found)}
        raise InvalidJob(
            f"transform is of type {type(found).__name__}, whose values are not part of the job's "
            "identity: name where it is made, as ./augment.py:pipeline, or give it a `version`",
            key="transform",
        )

    def find(self) -> Callable[..., Any]:
        """Return the pipeline, imported once in each process.

        Raises:
            InvalidJob: It cannot be found or imported, or not be called.
        """
        if self._found is None:
            found = self.transform
            if isinstance(found, str):
                found = _loaded(found)
            if not callable(found):
                raise InvalidJob(
                    f"transform {self.transform!r} is of type {type(found).__name__} and cannot be "
                    "called: name a pipeline or a function",
                    key="transform",
                )
            self._found = found
        return self._found  # type: ignore[no-any-return]

    def call(self, pixels: np.ndarray, generator: Callable[[], np.random.Generator]) -> Any:
        """Return what it makes of pixels.

        Args:
            pixels: uint8 (height, width, 3).
            generator: Gives the item's random numbers.

        Returns:
            uint8 (height, width, 3) of a picture in colour, whether Pillow's or an array; else an
            array as it is: of a tensor too.

        Raises:
            TypeError: It returns something else.
            Exception: Whatever it raises.
        """
        call = self.find()
        if self.takes == "albumentations":
            seed = getattr(call, "set_random_seed", None)
            if seed is not None:  # its own generators; before 1.4.19 it drew from the global ones
                seed(int(generator().integers(1 << 32)))
            found = call(image=pixels)
            if isinstance(found, Mapping):
                found = found["image"]
        elif self.takes == "array":
            found = call(pixels)
        else:
            found = call(pillow().fromarray(pixels))
        if isinstance(found, np.ndarray):
            return found
        if isinstance(found, pillow().Image):
            return np.asarray(found)
        if hasattr(found, "detach") and hasattr(found, "numpy"):
            return np.ascontiguousarray(found.detach().numpy())
        raise TypeError(
            f"transform {self.name()} returned {type(found).__name__}: return a picture of Pillow, "
            "an array or a tensor"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was imported: the process that gets this copy does so itself."""
        return {**vars(self), "_found": None}


def _loaded(spec: str) -> Any:
    """Return what a spec names.

    Raises:
        InvalidJob: As `load_attribute`.
        MissingExtra: An installed torchvision cannot be imported.
    """
    try:
        return load_attribute(spec)
    except InvalidJob as error:
        cause = error.__cause__
        if cause is None:
            raise
        frames = traceback.extract_tb(cause.__traceback__)
        if not any("torchvision" in Path(frame.filename).parts for frame in frames):
            raise
        raise unusable(f"transform {spec!r}", "torchvision", "", cause) from cause
