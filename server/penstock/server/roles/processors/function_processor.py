"""A user's function as a processor: what `function: ./data.py:to_sample` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import declared
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.role import Role
from penstock.server.roles.samples import RawItem, Sample
from penstock.server.roles.user_function import FunctionRole


@declared
class FunctionProcessor(FunctionRole, RawItemProcessor):
    """Call a function for every item: `function(raw)`, or `function(raw, context)`.

    The context is passed if the function has a parameter of that name, or a second one without a
    default. The function returns a sample, None to filter the item, or a list of samples.

    A function that draws nothing from the global generators of random, numpy and torch may say so
    with an attribute, `to_sample.uses_global_rng = False`: they are not seeded for it then, which
    saves 10 us an item. `context.rng` is not one of these.

    Args:
        one_to_one: A promise that the function returns exactly one sample for every item: batches
            of `batch_size` are then planned without calling it, and every position is reached at
            once.

    Raises:
        InvalidJob: `function` is neither text nor callable.
    """

    kind: ClassVar[str] = "processor"
    base: ClassVar[type[Role]] = RawItemProcessor
    example: ClassVar[str] = "./data.py:to_sample"

    one_to_one: bool = False  # type: ignore[misc]  # here it is the job's word, not the class's

    def process(self, raw: RawItem, context: ProcessContext) -> Sample | Sequence[Sample] | None:
        """Return what the function returns.

        Raises:
            Exception: Whatever the function raises.
            TypeError: It returned something else than a sample, None or a list of samples.
        """
        result = self.call(raw, context)
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
