"""What an index holds of each data set of a meta file: samples, tokens and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.server.job.role_set import RoleSet
from penstock.server.planning.index.block import LeftOut
from penstock.server.planning.index.index_file import IndexedSizes, SizeIndex
from penstock.server.planning.index.inputs import kept_items
from penstock.server.roles.condition import Kept
from penstock.server.sources.meta import MetaSource

READ_ITEMS = 1 << 20
"""Positions that are read from the file at once."""

DataSets = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Counts by source and by data set: items, samples, tokens, left_out."""


def data_sets(index: SizeIndex, roles: RoleSet) -> DataSets:
    """Return the counts of the data sets of every meta file that is drawn from.

    Args:
        index: The index of the sources' sizes.
        roles: The set of roles that it was made for, open.

    Raises:
        InvalidJob: The index is damaged.
        SourceUnavailable: It cannot be read at the moment.
    """
    return {
        name: _counted(source.spans(), sizes, kept_items(roles, name))
        for name, sizes in index.sources.items()
        if isinstance(source := roles.sources[name], MetaSource)
    }


def _counted(
    spans: Mapping[str, tuple[int, int]], sizes: IndexedSizes, kept: Kept | None
) -> dict[str, dict[str, Any]]:
    found = {}
    for name, span in spans.items():
        # The index counts the items that `where` keeps, and no others.
        first, last = span if kept is None else map(kept.before, span)
        samples, tokens, left_out = 0, 0, Counter[str]()
        for start in range(first, last, READ_ITEMS):
            read = sizes.read(start, min(start + READ_ITEMS, last))
            samples += len(read.sizes)
            tokens += int(read.sizes.sum())
            assert isinstance(read.left_out, LeftOut)  # it was read
            left_out.update(read.left_out.tally())
        found[name] = {
            "items": last - first,
            "samples": samples,
            "tokens": tokens,
            "left_out": dict(left_out),
        }
    return found
