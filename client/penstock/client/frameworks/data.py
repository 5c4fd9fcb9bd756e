"""A Loader as a Dataset, for torch's DataLoader and torchdata's StatefulDataLoader.

Only for code that insists on a DataLoader: a Loader by itself is iterated as one. Imported only
where torch is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from penstock.client.loader import Loader
from penstock.client.loop.steps import Batch
from penstock.wire.errors import InvalidRequest


class LoaderDataset(IterableDataset[Any]):  # type: ignore[misc]
    """The batches of a Loader, for `StatefulDataLoader(LoaderDataset(loader), batch_size=None)`.

    `batch_size=None` because they are batches already; `num_workers=0`, the default, because the
    node's workers make them. torchdata saves and loads the Loader's state as the Dataset's.

    Args:
        loader: What is read.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches.

        Raises:
            InvalidRequest: A DataLoader reads it in a worker process.
            PenstockError: As iterating the Loader.
        """
        if get_worker_info() is not None:
            raise InvalidRequest(
                "a DataLoader reads this Loader in a worker process, where it would run ahead of "
                "what is trained on: pass num_workers=0; the node's workers make the batches"
            )
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return where the Loader stands."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was taken."""
        self.loader.load_state_dict(state)
