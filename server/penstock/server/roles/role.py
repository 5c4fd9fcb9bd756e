"""What sources and roles have in common: recorded arguments, an identity, a name in errors.

You need not read this to write a role of your own: `base` says what to write.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_line, user_traceback
from penstock.server.usercode.imports import SOURCE_HASH
from penstock.server.usercode.neighbours import module_source_hash
from penstock.wire.errors import InvalidJob, PenstockError


class Role:
    """What sources and roles have in common: recorded parameters, a version, an identity.

    Class attributes that a subclass may set:
        type_name: The name in job files; built-ins set it, others are named by their import path.
        version: The semantic version of what the role computes. Changing bytes means raising it.
            A user's role without a `version` of its own is identified by its module's source.
        path_params: Constructor parameters that name local files relative to the job file. They do
            not decide bytes: the content of the files does (`content`).
        numbered_by: The parameter that a number in the name sets: `window_10` is `window` of 10.
        replaced_params: Parameters that other systems have in this place, with the end of a
            sentence that says what is given here instead.
    """

    type_name: ClassVar[str] = ""
    version: ClassVar[int | str | None] = None
    path_params: ClassVar[tuple[str, ...]] = ()
    numbered_by: ClassVar[str] = ""
    replaced_params: ClassVar[Mapping[str, str]] = {}

    arguments: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Record the constructor's arguments: the role's parameters, in a file or in Python."""
        if cls.__init__ is object.__init__ and (args or kwargs):  # which would take them silently
            raise TypeError(f"{cls.__name__}() takes no parameters")
        self = super().__new__(cls)
        try:
            bound = _signature(cls.__init__).bind(self, *args, **kwargs)
        except TypeError:
            self.arguments = {}  # __init__ itself raises right after this, in Python's own words
        else:
            arguments = dict(list(bound.arguments.items())[1:])
            for parameter in bound.signature.parameters.values():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.name in arguments:
                    arguments.update(arguments.pop(parameter.name))
            self.arguments = arguments
        return self

    @classmethod
    def with_roles(cls, parameters: dict[str, Any], make: Callable[..., Any]) -> dict[str, Any]:
        """Return a section's parameters with the roles built that are described in them.

        Args:
            parameters: As they stand in a job file.
            make: `(section, *keys)`: builds a role of the same kind, from what stands below these
                keys.
        """
        return parameters

    def clone(self) -> Any:
        """Return a fresh role with the same parameters: every lane has a batcher of its own.

        It gets copies of lists, dicts and the like, of those that are defaults, too: what one
        lane's batcher does to a list that it was given must not reach another's.
        """
        made = _construct(type(self), _copied({**_shared_defaults(type(self)), **self.arguments}))
        made.arguments = self.arguments  # as they were given, whatever the role does to its own
        return made

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes: those equal to their default are left out."""
        defaults = {
            name: parameter.default
            for name, parameter in _signature(type(self).__init__).parameters.items()
        }
        return {
            name: value
            for name, value in self.arguments.items()
            if name not in self.path_params
            and not (
                defaults.get(name, inspect.Parameter.empty) is value
                or _same(defaults.get(name), value)
            )
        }

    def own_name(self) -> str:
        """Return the name of the class or function whose code this is."""
        return type(self).__name__

    def code_of(self, method: str = "") -> str:
        """Return how errors name the code behind this role: what its author would look for.

        A role that calls somebody's function or object names that, with its file, and not itself.

        Args:
            method: The role's method that was called; empty = the role as a whole.
        """
        name = self.own_name()
        return f"{name}.{method}()" if method else name

    def is_of_user(self) -> bool:
        """Tell whether a user's code decides what this role gives."""
        return not _is_builtin(type(self))

    def keeps(self, owner: type[Role], *methods: str) -> bool:
        """Tell whether `owner`, which this is derived from, alone decides.

        Args:
            owner: The class that asks about its subclasses.
            methods: Those that no subclass overrides; without any there must be no subclass at all.
        """
        cls = type(self)
        return cls is owner or (
            bool(methods) and all(getattr(cls, name) is getattr(owner, name) for name in methods)
        )

    def content(self) -> dict[str, str]:
        """Return hashes of the content behind `path_params`, by parameter: part of the identity.

        By default, of a user's class, the local files that these parameters name: whole up to
        64 MiB, else sampled. Folders, globs and URLs are the class's own to hash.
        """
        if _is_builtin(type(self)):
            return {}
        named = {name: self.arguments.get(name) for name in self.path_params}
        return {name: digest for name, path in named.items() if (digest := _file_hash(path))}

    def check_identity(self) -> None:
        """Refuse parameters that cannot be, as soon as the job is built: no data is read.

        Raises:
            InvalidJob: A tokenizer that is not one, a function that is missing.
        """
        self.identity()

    def identity(self) -> dict[str, Any]:
        """Return what of this role decides bytes, as JSON-able values: a part of the log id."""
        cls = type(self)
        # A user's class goes by its own name: its module's depends on where and how it was loaded,
        # and a `type_name` that it inherits would make it the built-in.
        identity: dict[str, Any] = {"type": cls.type_name if _is_builtin(cls) else cls.__qualname__}
        if cls.version is not None:
            identity["version"] = cls.version
        if not _is_builtin(cls) and "version" not in vars(cls):
            identity["source"] = module_hash(cls)
        if parameters := self.parameters():
            identity["parameters"] = parameters
        if content := self.content():
            identity["content"] = content
        return identity


_signature = cache(inspect.signature)
"""The signature of a constructor, `self` included: read once."""


def asked(role: Role, method: str, *arguments: Any) -> Any:
    """Return what a method of a role gives where a job is built, or looked at.

    Raises:
        InvalidJob: It raised something; names the code behind it, and its line.
    """
    try:
        return contained(lambda: getattr(role, method)(*arguments))
    except PenstockError:
        raise
    except Exception as error:
        raise failing(role, method, error) from error


def failing(role: Role, method: str, error: Exception) -> InvalidJob:
    """Return the error of a job that cannot be built because a method of a role raised."""
    line = user_line(error)
    return InvalidJob(
        f"{role.code_of(method)} fails with {error_line(error)}" + (f" ({line})" if line else ""),
        traceback=user_traceback(error),
    )


def file_of(thing: Any) -> str:
    """Return the name of the file that defines a class or function; empty = it has none."""
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    return Path(path).name if path else ""


def _is_builtin(cls: type[Any]) -> bool:
    return cls.__module__.startswith("penstock.server.")


def _file_hash(path: Any) -> str | None:
    if not isinstance(path, str | os.PathLike) or not Path(path).is_file():
        return None
    from penstock.server.files.content import WHOLE_BYTES, content_hash

    size = Path(path).stat().st_size
    with Path(path).open("rb") as stream:

        def read_at(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        return content_hash(read_at, size, whole=size <= WHOLE_BYTES)


def _copied(value: Any) -> Any:
    """Return a value with copies of all plain containers and arrays in it."""
    if type(value) in (list, tuple, set, frozenset, deque):
        if isinstance(value, deque):
            return deque(map(_copied, value), maxlen=value.maxlen)
        return type(value)(map(_copied, value))
    if type(value) is dict:
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, list | dict | set | deque):  # a Counter, a class of the user's
        return copy.deepcopy(value)
    return value.copy() if isinstance(value, np.ndarray | bytearray) else value


def _shared_defaults(cls: type[Any]) -> dict[str, Any]:
    """Return the defaults that all instances would share: `def __init__(self, buffer=[])`."""
    return {
        name: parameter.default
        for name, parameter in _signature(cls.__init__).parameters.items()
        if parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
        and isinstance(parameter.default, list | dict | set | deque | np.ndarray | bytearray)
    }


def _construct(cls: type[Any], arguments: Mapping[str, Any]) -> Any:
    positional: list[Any] = []
    keywords = dict(arguments)
    for name, parameter in list(_signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in keywords:
            positional.append(keywords.pop(name))
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL and name in keywords:
            positional += keywords.pop(name)
    return cls(*positional, **keywords)


def module_hash(thing: Any) -> str:
    """Return the SHA-256 of the source of the module that defines a class or function.

    Where the module imports others from its own folder, of theirs, too.
    """
    module = sys.modules.get(thing.__module__)
    if (loaded := getattr(module, SOURCE_HASH, None)) is not None:
        return str(loaded)  # what was run: the file may have been edited since
    if module is not None and (digest := module_source_hash(module)) is not None:
        return digest
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):  # defined at a prompt: nothing to read but its name
        return hashlib.sha256(f"{thing.__module__}:{thing.__qualname__}".encode()).hexdigest()


def _same(default: Any, value: Any) -> bool:
    return type(default) is type(value) and not isinstance(value, np.ndarray) and default == value
