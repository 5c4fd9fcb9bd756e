"""A user's function as a processor: what `function: ./data.py:to_sample` makes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from penstock.server.roles.base import (
    ProcessContext,
    RawItem,
    RawItemProcessor,
    Sample,
    module_hash,
)
from penstock.wire.errors import InvalidJob

SampleFunction = Callable[..., Sample | Sequence[Sample] | None]


class FunctionProcessor(RawItemProcessor):
    """Call a function for every item: `function(raw)`, or `function(raw, context)`.

    The context is given where the function has a parameter of that name, or a second one without a
    default. The function returns a sample, None to filter the item, or a list of samples.

    A function that draws nothing from the global generators of random, numpy and torch may say so
    with an attribute, `to_sample.uses_global_rng = False`: they are not seeded for it then, which
    saves 10 us an item. To draw from `context.rng` is not to draw from these.

    In the job's identity stands the function's `version` attribute where it has one, else the hash
    of its module's source. What a function closes over, or reads from files, is known to neither.

    Args:
        function: A callable, `package.module:name` or `/path/to/file.py:name`.
        one_to_one: A promise that the function returns exactly one sample for every item, so that
            batches can be planned without calling it.

    Raises:
        InvalidJob: `function` is neither text nor callable.
    """

    type_name: ClassVar[str] = "function"
    version: ClassVar[int | str | None] = 1

    def __init__(self, function: str | SampleFunction, one_to_one: bool = False) -> None:
        if not isinstance(function, str) and not callable(function):
            raise InvalidJob(
                f"function is {function!r}; give a function, or where to find one, such as "
                "'./data.py:to_sample'",
                key="function",
            )
        self.function = function
        self.one_to_one = one_to_one  # type: ignore[misc]  # here it is the job's word, not the class's
        self._call: Callable[[RawItem, ProcessContext], Any] | None = None

    def parameters(self) -> dict[str, Any]:
        """Return the function's own name: where its file lies decides no bytes."""
        function = self._find()
        return {"function": getattr(function, "__qualname__", type(function).__qualname__)}

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
                f"function is a {type(function).__name__}, whose values are not part of the job's "
                "identity; give it a `version` attribute, or write a def around it",
                key="function",
            )
        return {**super().identity(), "source": module_hash(function)}

    def setup(self) -> None:
        """Import the function; `process` does so by itself where nobody called this.

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
        self.uses_global_rng = draws  # type: ignore[misc]  # here it is the function's word
        self._call = _bind(function)

    def process(self, raw: RawItem, context: ProcessContext) -> Sample | Sequence[Sample] | None:
        """Return what the function returns.

        Raises:
            Exception: Whatever the function raises.
            TypeError: It returned something else than a sample, None or a list of samples.
        """
        if self._call is None:
            self.setup()
        assert self._call is not None
        result = self._call(raw, context)
        if result is None or isinstance(result, dict):
            return result
        if isinstance(result, Mapping):
            return dict(result)
        if isinstance(result, list | tuple) and all(isinstance(part, dict) for part in result):
            return result
        name = self.parameters()["function"]
        raise TypeError(
            f"{name} returned {type(result).__name__}; return a dict of named values, None to "
            "leave the item out, or a list of dicts"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out how to call: that is made of the function again, where this one arrives."""
        return {**vars(self), "_call": None}

    def _find(self) -> SampleFunction:
        if not isinstance(self.function, str):
            return self.function
        from penstock.server.core.imports import load_attribute

        found = load_attribute(self.function)
        if not callable(found):
            raise InvalidJob(
                f"function {self.function!r} is a {type(found).__name__} and cannot be called; "
                "name a function",
                key="function",
            )
        if inspect.isclass(found) and issubclass(found, RawItemProcessor):
            raise InvalidJob(
                f"function {self.function!r} is a processor class; write it as type: in place of "
                "function:",
                key="function",
            )
        function: SampleFunction = found
        return function


def _bind(function: SampleFunction) -> Callable[[RawItem, ProcessContext], Any]:
    """Return how to call `function` with an item and a context, as its signature asks."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # builtins such as dict do not tell
        return lambda raw, _context: function(raw)
    named = parameters.get("context")
    if named is not None and named.kind is not inspect.Parameter.POSITIONAL_ONLY:
        return lambda raw, context: function(raw, context=context)
    required = [
        parameter
        for parameter in parameters.values()
        if parameter.kind
        in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is inspect.Parameter.empty
    ]
    if len(required) >= 2:
        return lambda raw, context: function(raw, context)
    return lambda raw, _context: function(raw)


__all__ = ["FunctionProcessor", "SampleFunction"]
