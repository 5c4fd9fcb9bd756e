"""A map-style Dataset of the user as a source, without changes. Torch itself is not needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from penstock.server.roles.role import failing, file_of
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource, unseen_sentence
from penstock.server.sources.factory import MadeObject
from penstock.server.sources.requirements import check_indices
from penstock.server.usercode.contained import contained
from penstock.wire.errors import InvalidJob, PenstockError


class TorchDatasetSource(IndexedSource):
    """The items of any object with `__len__` and `__getitem__`.

    It is identified by its length, the source of the module that defines it, the factory's name and
    arguments, and, if the dataset has a method `fingerprint()`, what that returns (JSON-able: give
    one where the data behind the dataset can change).

    `__getitem__` is called with the global generators of random, numpy and torch seeded from (seed,
    epoch, item), so augmentation in it is reproducible without changes, and differs in every epoch;
    the factory is called with them seeded alike on every node. What it returns is copied before a
    processor sees it, so a Dataset may return rows that it keeps.

    Args:
        factory: `./file.py:name` or `package.module:name`: a Dataset class, or a function that
            returns a Dataset.
        dataset: A Dataset, in Python, in place of a factory.
        arguments: Passed to the factory by name.

    Raises:
        InvalidJob: Neither or both of factory and dataset are given, the factory cannot be found or
            fails, or what it returns has no length or no items by index.
    """

    type_name: ClassVar[str] = "torch"
    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("factory",)
    uses_global_rng: ClassVar[bool] = True

    def __init__(
        self, factory: str | None = None, *, dataset: Any = None, **arguments: Any
    ) -> None:
        self._made, self._made_with = MadeObject("torch", factory, dataset, arguments), arguments
        self.dataset = self._made.object
        for method, what in (("__len__", "a length"), ("__getitem__", "items by index")):
            if not hasattr(type(self.dataset), method):
                raise InvalidJob(
                    f"{factory or 'dataset'} gave a value of type {type(self.dataset).__name__}, "
                    f"which has no {method}: a source needs {what}; iterable datasets have none",
                    key="source.factory",
                )
        try:
            self._length = contained(lambda: len(self.dataset))
        except PenstockError:
            raise
        except Exception as error:
            raise failing(self, "__len__", error) from error

    def __len__(self) -> int:
        return self._length

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return `dataset[index]` for every index, in that order.

        Raises:
            IndexError: An index is negative or not below the length.
            Exception: Whatever `__getitem__` raises. An OSError of the system is retried; what an
                item raises twice makes it a `BadItem`.
        """
        check_indices(indices, len(self))
        return [self.dataset[index] for index in indices]

    def code_of(self, method: str = "") -> str:
        """Return the Dataset's class and its file."""
        name, file = type(self.dataset).__name__, file_of(type(self.dataset))
        called = ".__getitem__()" if method == "fetch" else f".{method}()" if method else ""
        return f"{name}{called}{f' ({file})' if file else ''}"

    def parameters(self) -> dict[str, Any]:
        """Return the factory's arguments."""
        return dict(self._made_with)

    def content(self) -> dict[str, str]:
        """Return what was called, and the hash of the module that defines it."""
        return self._made.content()

    def fingerprint(self) -> dict[str, Any]:
        """Return the length, and the dataset's own fingerprint where it has one."""
        fingerprint: dict[str, Any] = {"length": len(self)}
        if self._own_fingerprint is not None:
            fingerprint["dataset"] = self._own_fingerprint()
        return fingerprint

    def unseen(self) -> str | None:
        """Return what the log id does not know of a dataset without a `fingerprint()`."""
        if self._own_fingerprint is not None:
            return None
        return unseen_sentence(type(self.dataset).__name__)

    @property
    def _own_fingerprint(self) -> Callable[[], Any] | None:
        own = getattr(self.dataset, "fingerprint", None)
        return own if callable(own) else None

    def close(self) -> None:
        """Close the dataset, where it can be closed."""
        close = getattr(self.dataset, "close", None)
        if callable(close):
            close()
