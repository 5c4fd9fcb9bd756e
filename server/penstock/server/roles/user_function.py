"""A user's function in place of a role: how it is found, identified and called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from penstock.server.roles.parameters import declared
from penstock.server.roles.role import Role, file_of, module_hash
from penstock.wire.errors import InvalidJob


@declared
class FunctionRole(Role):
    """What the roles that call a function share.

    The job's identity holds the function's `version` attribute if it has one, else the hash of its
    module's source. What a function closes over, or reads from files, is in neither.

    Args:
        function: A callable, `package.module:name` or `/path/to/file.py:name`.

    Raises:
        InvalidJob: `function` is neither text nor callable.
    """

    type_name: ClassVar[str] = "function"
    version: ClassVar[int | str | None] = 1

    kind: ClassVar[str]
    """Which role this is, as job files name it."""
    base: ClassVar[type[Role]]
    """What a class must be derived from to be such a role without a function."""
    example: ClassVar[str]
    """How a job file names such a function."""

    function: str | Callable[..., Any]

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) and not callable(self.function):
            raise InvalidJob(
                f"function is {self.function!r}; give a function, or where to find one, such as "
                f"{self.example!r}",
                key="function",
            )
        self.uses_global_rng = True  # until the function was asked
        self._call: Callable[[Any, Any], Any] | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the function's own name: the path of its file decides no bytes."""
        function = self._find()
        return {"function": getattr(function, "__qualname__", type(function).__qualname__)}

    def own_name(self) -> str:
        """Return the function's name."""
        return str(self.parameters()["function"])

    def is_of_user(self) -> bool:
        """Tell that a user's code decides: the function."""
        return True

    def code_of(self, method: str = "") -> str:
        """Return the function's own name and its file."""
        name, file = self.own_name(), file_of(self._find())
        return f"{name}{'()' if method else ''}{f' ({file})' if file else ''}"

    def identity(self) -> dict[str, Any]:
        """Return the function's name with its `version`, or with the hash of its module's source.

        Raises:
            InvalidJob: It is a `functools.partial` or an object without a `version`: what it
                carries would be missing from the identity.
        """
        function = self._find()
        version = getattr(function, "version", None)
        if version is not None:
            return {**super().identity(), "function_version": version}
        if not (inspect.isroutine(function) or inspect.isclass(function)):
            raise InvalidJob(
                f"function is of type {type(function).__name__}, whose values are not part of the "
                "job's identity; give it a `version` attribute, or write a def around it",
                key="function",
            )
        return {**super().identity(), "source": module_hash(function)}

    def setup(self) -> None:
        """Import the function; otherwise the first call does so.

        Raises:
            InvalidJob: It cannot be found, or is not callable.
        """
        function = self._find()
        draws = getattr(function, "uses_global_rng", True)
        if not isinstance(draws, bool):
            raise InvalidJob(
                f"{self.parameters()['function']}.uses_global_rng is {draws!r}: set it to False "
                "where the function draws nothing from random, numpy.random and torch, or leave "
                "it out",
                key="function",
            )
        self.uses_global_rng = draws
        self._call = _bind(function)

    def call(self, value: Any, context: Any) -> Any:
        """Return what the function returns for a value, and the context if it takes that."""
        if self._call is None:
            self.setup()
        assert self._call is not None
        return self._call(value, context)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out how to call it: that is found out again in the process that gets this copy."""
        return {**vars(self), "_call": None}

    def _find(self) -> Callable[..., Any]:
        if not isinstance(self.function, str):
            return self.function
        from penstock.server.usercode.imports import load_attribute

        found = load_attribute(self.function)
        if not callable(found):
            raise InvalidJob(
                f"function {self.function!r} is of type {type(found).__name__} and cannot be "
                "called; name a function",
                key="function",
            )
        if inspect.isclass(found) and issubclass(found, self.base):
            raise InvalidJob(
                f"function {self.function!r} is a {self.kind} class; write it as type: in "
                "place of function:",
                key="function",
            )
        function: Callable[..., Any] = found
        return function


def _bind(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return how to call `function` with a value and a context, as its signature asks."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # builtins such as dict do not tell
        return lambda value, _context: function(value)
    named = parameters.get("context")
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return lambda value, context: function(value, context=context)
    required = [
        parameter
        for parameter in parameters.values()
        if parameter.kind
        in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is inspect.Parameter.empty
    ]
    if len(required) >= 2:
        return lambda value, context: function(value, context)
    return lambda value, _context: function(value)
