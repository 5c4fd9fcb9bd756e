"""The processor that leaves items as they are: they are samples already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from penstock.common.nearest import hint
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import NamesByNames, declared
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.role import Role
from penstock.server.roles.samples import RawItem, Sample
from penstock.server.roles.source import Source
from penstock.wire.errors import InvalidJob


@declared
class IdentityProcessor(RawItemProcessor):
    """Pass items through, with names for values that have none.

    * A mapping is a sample.
    * A named tuple gives its field names as keys.
    * Any other tuple or list, such as the `(x, y)` of a torch Dataset, gives `"0"`, `"1"`, ...
    * Everything else (an array, a number, a string) becomes `{"value": item}`.

    Args:
        rename: New names of values by their old ones, such as `{tokens: input_ids}`: packers and
            collators know token ids by the name `input_ids`. Others keep theirs. None = all do.

    Raises:
        InvalidJob: `rename` is not names by names, or gives two values one name.
    """

    type_name: ClassVar[str] = "identity"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = True

    rename: Annotated[
        Mapping[str, str] | None,
        NamesByNames("new names by old ones, such as {tokens: input_ids}", may_be_empty=False),
    ] = None

    def __post_init__(self) -> None:
        names = self.rename or {}
        if len(set(names.values())) < len(names):
            raise InvalidJob(f"rename gives two values one name: {names!r}", key="rename")

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without a value that is renamed, or with one of the new name already.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        if self.rename is None or not self.keeps(IdentityProcessor, "process"):
            return
        for old, new in self.rename.items():
            if old not in columns:
                raise InvalidJob(
                    f"rename names {old!r}, and the items have no such column: "
                    f"{hint(old, columns)}",
                    key="rename",
                    columns=list(columns),
                )
            if new in columns and new not in self.rename:
                raise InvalidJob(
                    f"rename gives {old!r} the name {new!r}, which the items have already: leave "
                    "that column out with columns: in the source, or take another name",
                    key="rename",
                    columns=list(columns),
                )

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the items' own keys, if they are known."""
        if columns is None or not self.keeps(IdentityProcessor, "process"):
            return None
        names = self.rename or {}
        return [names.get(column, column) for column in columns]

    def passes_items(self) -> bool:
        """Return True, unless values are renamed, or a subclass has a say in what samples are."""
        own = self.keeps(IdentityProcessor, "process", "process_batch", "cut", "size")
        return own and self.rename is None

    def keeps_sizes(self) -> bool:
        """Return True where a sample is its item."""
        return self.keeps(IdentityProcessor, "process") and self.rename is None

    def author(self, source: Source) -> Role:
        """Return the source: if an item cannot be passed on, its Dataset is the reason."""
        return source if self.keeps(IdentityProcessor, "process") else self

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Return the item as a dict with string keys; its values are shared, not copied.

        Raises:
            ValueError: It lacks a value that is renamed, or has one of the new name.
        """
        if type(raw) is dict or isinstance(raw, Mapping):  # the first test is faster
            found = {str(name): value for name, value in raw.items()}
        elif isinstance(raw, tuple | list):
            names = getattr(raw, "_fields", None) or map(str, range(len(raw)))
            found = dict(zip(names, raw, strict=True))
        else:
            found = {"value": raw}
        return found if self.rename is None else _renamed(found, self.rename)


def _renamed(sample: Sample, rename: Mapping[str, str]) -> Sample:
    for name in rename:
        if name not in sample:
            raise ValueError(f"it has no value {name!r}, which rename names; it has {[*sample]}")
    found = {rename.get(name, name): value for name, value in sample.items()}
    if len(found) < len(sample):
        raise ValueError(f"with rename two of its values have one name; it has {[*sample]}")
    return found
