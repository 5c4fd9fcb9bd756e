"""An object that a user's code makes: a Dataset, by a class or a function that a job file names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.server.roles.role import file_of, module_hash
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line, user_line, user_traceback
from penstock.server.usercode.imports import is_file_spec, load_attribute
from penstock.server.usercode.seeding import purpose_key, seeded_globals
from penstock.wire.errors import InvalidJob, PenstockError


class MadeObject:
    """An object, and the code that it comes from.

    Args:
        kind: The source's type, for errors and for the seed of the factory.
        factory: `./file.py:name` or `package.module:name`; None = the object is given.
        given: The object, in the place of a factory.
        arguments: Passed to the factory by name.

    Attributes:
        object: The object.

    Raises:
        InvalidJob: Neither or both of factory and object are given, or the factory cannot be found
            or fails.
    """

    def __init__(
        self, kind: str, factory: str | None, given: Any, arguments: Mapping[str, Any]
    ) -> None:
        if (factory is None) == (given is None):
            raise InvalidJob(
                f"a {kind} source takes either factory: ./data.py:make or, in Python, dataset=",
                key="source.factory",
            )
        self._kind, self._factory, self._arguments = kind, factory, arguments
        if factory is None:
            self.object, self._maker = given, type(given)
        else:
            self._maker = load_attribute(factory)
            self.object = self._make(factory)

    def content(self) -> dict[str, str]:
        """Return what was called, and the hash of the module that defines it."""
        name = getattr(self._maker, "__qualname__", type(self._maker).__qualname__)
        path, _, attribute = (self._factory or "").rpartition(":")
        if path:
            # A file is identified by its content, wherever it is; a package's module by its name.
            name = attribute if is_file_spec(path) else self._factory or name
        thing = self._maker if hasattr(self._maker, "__module__") else type(self._maker)
        return {"factory": f"{name}:{module_hash(thing)}"}

    def fingerprint(self) -> Callable[[], Any] | None:
        """Return the method `fingerprint` of the object, else of what made it; None = neither."""
        for holder in (self.object, self._maker):
            own = getattr(holder, "fingerprint", None)
            if callable(own):
                return own  # type: ignore[no-any-return]
        return None

    def name(self) -> str:
        """Return how errors name it, with its file."""
        maker = type(self.object) if self._factory is None else self._maker
        name, file = getattr(maker, "__name__", type(self.object).__name__), file_of(maker)
        return f"{name}{f' ({file})' if file else ''}"

    def _make(self, factory: str) -> Any:
        try:
            with seeded_globals(purpose_key(f"penstock {self._kind} factory")):
                return contained(lambda: self._maker(**self._arguments))
        except PenstockError:
            raise
        except Exception as error:
            line = user_line(error)
            raise InvalidJob(
                f"{factory} failed: {error_line(error)}" + (f" ({line})" if line else ""),
                key="source.factory",
                traceback=user_traceback(error),
            ) from error
