"""How many episodes the samples of a batch come from: how well a pool mixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.roles.episode_table import EpisodeTable

EPISODES = "episodes"
"""How the header of a batch calls the number."""


def distinct_episodes(tables: Mapping[str, EpisodeTable], items: Iterable[ItemRef]) -> int:
    """Return from how many episodes items come.

    Args:
        tables: The episodes of sources, by name; items of others come from none.
        items: The items.
    """
    indices: dict[str, list[int]] = {name: [] for name in tables}
    for source, index, _ in items:
        if source in indices:
            indices[source].append(index)
    return sum(
        len(np.unique(tables[name].of_items(np.array(found))))
        for name, found in indices.items()
        if found
    )
