"""The collator that stacks nothing: each sample's values stay its own, in lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar

from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators.sample_arrays import (
    as_array,
    bad_batch,
    count_noted,
    not_stacked,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.parameters import TrueOrFalse, declared
from penstock.server.roles.samples import Sample
from penstock.wire.errors import InvalidJob


@declared
class ListsCollator(BatchCollator):
    """Keep what every sample has apart: a list per key, with a value for each sample.

    For values of a shape of their own that nothing can stack: pictures in their own sizes, several
    to a sample, and what describes them. Keys come in the order in which samples first have them.

    * Arrays, tensors, images and regular lists of numbers stay arrays, numbers and texts what they
      are, and a dict is sent as JSON. A list of arrays stays one, so the batch has a list of lists.
    * A key that a sample lacks, or has as None, is left out for that sample: its list is shorter
      than the batch. `placeholders` names keys whose None stays, so that they stay in line.

    With `nested`, `flat`, `once` and `batch_axis` it gives what `VFMListCollator` of
    cosmos-framework gives: see docs/coming-from.md.

    A batch that quarantine has emptied is made of zeros, in the shapes of a real one; one that it
    has thinned has fewer samples.

    Counts: `samples`; `tokens`, where there are `input_ids`; what processors noted of samples.

    Args:
        nested: Keys of which every sample has a list, such as `images`: a value that is none counts
            as a list of one. The batch has a list of lists.
        flat: Keys whose lists are joined: the batch has one list of all samples' values.
        once: Keys of which the batch has the first sample's value alone, such as a note about how
            it was made.
        placeholders: Keys whose None stays where a sample has it or lacks the key.
        batch_axis: Give arrays and numbers of other keys a first axis of 1, as if each sample were
            a batch that was stacked.

    Raises:
        InvalidJob: A parameter has a value that cannot be, or a key is named twice.
    """

    type_name: ClassVar[str] = "lists"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    fixed_keys: ClassVar[bool] = False

    _: KW_ONLY
    nested: Sequence[str] = ()
    flat: Sequence[str] = ()
    once: Sequence[str] = ()
    placeholders: Sequence[str] = ()
    batch_axis: Annotated[bool, TrueOrFalse()] = False

    def __post_init__(self) -> None:
        """Check the lists of keys: each of the first three says something else of a key."""
        said: dict[str, str] = {}
        for parameter in ("nested", "flat", "once", "placeholders"):
            keys = getattr(self, parameter)
            if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
                raise InvalidJob(
                    f"{parameter} is {keys!r}; give a list of keys: [images]", key=parameter
                )
            for key in keys if parameter != "placeholders" else ():
                if key in said:
                    raise InvalidJob(
                        f"{key!r} is named in {said[key]} and in {parameter}: name it in one",
                        key=parameter,
                    )
                said[key] = parameter

    def collate(self, rows: Sequence[Sequence[Sample]], context: CollateContext) -> dict[str, Any]:
        """Return the lists; the samples of all rows, one after another.

        Raises:
            BadBatch: A key of `flat` has a value that is no list.
        """
        samples = [sample for row in rows for sample in row]
        noted = not_stacked(samples)
        names = dict.fromkeys(name for s in samples for name in s if name not in noted)
        values = {}
        for name in dict.fromkeys([*names, *self.placeholders] if samples else ()):
            found = list(self._found(name, samples))
            if name in self.once:
                values[name] = kept(found[0]) if found else None
            elif found:
                values[name] = list(self._listed(name, found, context))
        count_noted(samples, context)
        context.count("samples", len(samples))
        if "input_ids" in names:
            ids = [sample.get("input_ids") for sample in samples]
            context.count("tokens", sum(len(each) for each in ids if isinstance(each, Sized)))
        return values

    def _found(self, name: str, samples: Sequence[Sample]) -> Iterator[Any]:
        """Yield what samples have of a key; None only where it holds a place."""
        for sample in samples:
            value = sample.get(name)
            if value is not None or name in self.placeholders:
                yield value

    def _listed(self, name: str, found: Sequence[Any], context: CollateContext) -> Iterator[Any]:
        for value in found:
            if name in self.flat:
                if not isinstance(value, list | tuple):
                    raise bad_batch(
                        context,
                        f"{name!r} of a sample is {type(value).__name__}, and flat joins lists: "
                        "give a list in the processor, or leave the key out of flat",
                    )
                yield from map(kept, value)
            elif name in self.nested:
                yield (
                    [kept(each) for each in value]
                    if isinstance(value, list | tuple)
                    else [kept(value)]
                )
            else:
                yield _with_axis(value) if self.batch_axis else kept(value)


def kept(value: Any) -> Any:
    """Return a value as a batch holds it: arrays as views that nobody writes to.

    The sample may be read again by another batch, and a copy of pictures would cost as much as
    writing them.
    """
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    array = as_array(value)
    if array is not None:
        view = array.view()
        view.flags.writeable = False
        return view
    return [kept(each) for each in value] if isinstance(value, list | tuple) else value


def _with_axis(value: Any) -> Any:
    array = as_array(value)
    return kept(value if array is None else array[None])
