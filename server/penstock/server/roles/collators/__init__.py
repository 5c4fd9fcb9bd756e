"""Collators: rows of samples become the named values of a batch.

* `default.py`: stacks samples of one shape.
* `padded.py`: pads samples to one length.
* `lists.py`: keeps each sample's values apart, in lists.
* `packed_collator.py`: lays documents one after another and says where the seams are.
* `vlm.py`: samples with pictures: their tokens by one of these, their pictures joined.
* `segments.py`: where each document of packed rows begins.
* `layouts.py`: the names and forms of packed values.
* `function_collator.py`: a user's function, as torch's `collate_fn`.
* `sample_arrays.py`: what they share.
"""

from penstock.server.roles.collator import BatchCollator
from penstock.server.roles.collators.default import DefaultBatchCollator
from penstock.server.roles.collators.function_collator import FunctionCollator
from penstock.server.roles.collators.lists import ListsCollator
from penstock.server.roles.collators.packed_collator import PackedCollator
from penstock.server.roles.collators.padded import PaddedCollator
from penstock.server.roles.collators.vlm import VlmCollator

BUILTIN_COLLATORS: dict[str, type[BatchCollator]] = {
    cls.type_name: cls
    for cls in (DefaultBatchCollator, PaddedCollator, PackedCollator, ListsCollator, VlmCollator)
}
"""What `type:` of a collator may name; `function:` in its place makes a `FunctionCollator`."""

__all__ = [
    "BUILTIN_COLLATORS",
    "DefaultBatchCollator",
    "FunctionCollator",
    "ListsCollator",
    "PackedCollator",
    "PaddedCollator",
    "VlmCollator",
]
