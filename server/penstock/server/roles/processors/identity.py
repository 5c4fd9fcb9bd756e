"""The processor that leaves items as they are: they are samples already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock.server.roles.base import RawItem, RawItemProcessor, Sample, Source
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.role import Role


class IdentityProcessor(RawItemProcessor):
    """Pass items through, with names for values that have none.

    * A mapping is a sample.
    * A named tuple gives its field names as keys.
    * Any other tuple or list, such as the `(x, y)` of a torch Dataset, gives `"0"`, `"1"`, ...
    * Everything else (an array, a number, a string) becomes `{"value": item}`.
    """

    type_name: ClassVar[str] = "identity"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = True

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the items' own keys, if they are known."""
        if columns is None or not self.keeps(IdentityProcessor, "process"):
            return None
        return list(columns)

    def passes_items(self) -> bool:
        """Return True, unless a subclass has a say in what samples or their pieces are."""
        return self.keeps(IdentityProcessor, "process", "process_batch", "cut", "size")

    def keeps_sizes(self) -> bool:
        """Return True: a sample is its item."""
        return self.keeps(IdentityProcessor, "process")

    def author(self, source: Source) -> Role:
        """Return the source: if an item cannot be passed on, its Dataset is the reason."""
        return source if self.keeps(IdentityProcessor, "process") else self

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return the item as a dict with string keys; its values are shared, not copied."""
        if type(raw) is dict or isinstance(raw, Mapping):  # the first test is faster
            return {str(name): value for name, value in raw.items()}
        if isinstance(raw, tuple | list):
            names = getattr(raw, "_fields", None) or map(str, range(len(raw)))
            return dict(zip(names, raw, strict=True))
        return {"value": raw}


__all__ = ["IdentityProcessor"]
