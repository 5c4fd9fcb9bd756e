"""Finding the code that a job names: `./file.py:name` or `package.module:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.common.nearest import nearest
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_text
from penstock.server.usercode.neighbours import add_folder, neighbours, source_hash
from penstock.wire.errors import InvalidJob

_HERE = Path(__file__).parent

SOURCE_HASH = "__penstock_source_sha256__"
"""The attribute of a module from a file that holds the hash of the source that was run, and of the
modules that it imports from its own folder."""


def load_attribute(spec: str) -> Any:
    """Return what `spec` names; the module is imported if it is not yet.

    A file becomes a module whose name is made of its stem and the hash of its content, so every
    process that loads the same file knows it under the same name. Its folder is appended to
    `sys.path`, after everything else: the file may import its neighbours.

    Args:
        spec: `./file.py:name` (relative to the working directory), `/abs/file.py:name` or
            `package.module:name`. The name may have dots: `module:Class.make`.

    Raises:
        InvalidJob: The form is another, the file or name does not exist, or the import fails.
    """
    origin, colon, name = spec.rpartition(":")
    if not colon or not origin or not name:
        raise InvalidJob(
            f"{spec!r} names no code: write ./file.py:name or package.module:name", spec=spec
        )
    try:
        value: Any = load_module(origin)
    except InvalidJob as error:
        error.spec = spec  # as the caller wrote it
        raise
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            known = sorted(key for key in vars(value) if not key.startswith("_"))
            near = nearest(part, known, folds_case=False)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
            raise InvalidJob(f"{origin} has no {name!r}; {hint}", spec=spec) from None
    return value


def is_file_spec(origin: str) -> bool:
    """Tell whether the part before the colon names a file rather than a module."""
    return origin.endswith(".py") or "/" in origin


def load_module(origin: str) -> ModuleType:
    """Return the module that a file or a dotted name gives.

    Raises:
        InvalidJob: There is no such file or module, or its import fails.
    """
    if is_file_spec(origin):
        return _load_file(Path(origin).expanduser().absolute(), origin)
    try:
        return contained(lambda: importlib.import_module(origin))
    except ModuleNotFoundError as error:
        if error.name is not None and (origin + ".").startswith(error.name + "."):
            raise InvalidJob(
                f"there is no module {error.name!r}; a file is named as ./{origin}.py:name, "
                "a package must be installed where the server runs",
                spec=origin,
            ) from None
        raise _failed(origin, error) from error
    except Exception as error:
        raise _failed(origin, error) from error


def _load_file(path: Path, origin: str) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InvalidJob(
            f"{origin} cannot be read ({error.strerror}): it was looked for at {path}; "
            "paths in a job file are relative to the job file",
            spec=origin,
        ) from None
    digest = hashlib.sha256(source).hexdigest()
    name = f"penstock_user_{path.stem}_{digest[:16]}"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        # The same text in another folder: what it reads beside itself, or imports, is not the same.
        name += f"_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InvalidJob(f"{origin} is not a Python file: its name must end in .py", spec=origin)
    module = importlib.util.module_from_spec(spec)
    add_folder(path.parent)
    beside = neighbours(source, name, "", path.parent)
    setattr(module, SOURCE_HASH, source_hash(source, beside))
    sys.modules[name] = module  # before it runs: dataclasses and pickles look their module up there
    try:
        # These bytes, not the import system's cache of them: that one trusts times and sizes.
        contained(lambda: exec(compile(source, str(path), "exec"), vars(module)))
    except Exception as error:
        del sys.modules[name]
        raise _failed(origin, error) from error
    return module


def _failed(origin: str, error: Exception) -> InvalidJob:
    """Tell why an import failed, with the frames of the user's code alone."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and Path(frame.filename).parent != _HERE
    ]
    where = ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    elif frames:
        where = f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})"
    return InvalidJob(
        f"{origin} cannot be imported: {type(error).__name__}: {_line(error)}{where}",
        spec=origin,
        traceback="".join(traceback.format_list(frames)),
    )


def _line(error: Exception) -> str:
    return (error.msg if isinstance(error, SyntaxError) else error_text(error)).partition("\n")[0]
