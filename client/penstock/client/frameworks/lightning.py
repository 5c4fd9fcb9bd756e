"""Lightning, fed by a Loader. Imported only where lightning, or pytorch_lightning, is installed.

Lightning fetches one batch ahead and asks the Loader for its state by itself, so the state counts a
batch that was not trained on, and a resumed run never trains on it. The callback here says after
each batch that it was trained on: from then on states and commits count that.
"""

from __future__ import annotations

from typing import Any

from penstock.client.loader import Loader

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    from pytorch_lightning.callbacks import Callback


class LoaderCallback(Callback):  # type: ignore[misc]
    """Tells a Loader what was trained on, and commits when a checkpoint is written.

    Lightning saves and loads the Loader's state itself, with its own checkpoints. Let
    `accumulate_grad_batches` be the number of micro batches that a rank gets of a step,
    `batches_per_step / world_size`: then every checkpoint after an optimizer step lies at a step's
    boundary and loads at any world size.

    Args:
        loader: What `trainer.fit` trains on.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._saved = False

    def on_train_batch_end(self, *args: Any, **more: Any) -> None:
        """Count one more batch, before any callback saves."""
        self._commit()  # what was written after the batch before
        self._loader.mark()

    def on_save_checkpoint(self, *args: Any, **more: Any) -> None:
        """Note that a checkpoint is being written; there is no event after it."""
        self._saved = True

    def on_train_end(self, *args: Any, **more: Any) -> None:
        """Commit what was written last."""
        self._commit()

    def _commit(self) -> None:
        saved, self._saved = self._saved, False
        if saved and self._loader.group is not None:
            self._loader.commit()
