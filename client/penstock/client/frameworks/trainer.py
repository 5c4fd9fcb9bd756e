"""The Trainer of transformers, fed by Loaders. Imported only where transformers is installed.

To resume, a Trainer reads and drops what was trained on already, by way of `dataloader.dataset`.
A Loader has none: it goes to a step. So skipping is switched off here, and the Loader's state is
saved in the `trainer_state.json` of every checkpoint.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from penstock.client.loader import Loader
from penstock.wire.errors import BadState

STATE_NAME = "PenstockLoader"
"""The key of the Loader's state in `trainer_state.json`: the name of the callback's class."""


class LoaderMixin:
    """Makes a Trainer train on Loaders; stands before the Trainer's class among the bases.

    An optimizer step of the Trainer is a step of the Loader where `gradient_accumulation_steps` is
    the number of micro batches that a rank gets of a step: `batches_per_step / world_size`. Then
    every checkpoint lies at a step's boundary and loads at any world size. With a group every rank
    commits when a checkpoint is written.

    Args:
        train_loader: What `train()` reads. An endless one needs `max_steps` among the arguments.
        eval_loader: What `evaluate()` reads, with `mode="eval"`, also in the middle of training; a
            dict of several by name; None = what the Trainer was given as `eval_dataset`.
        args, kwargs: The Trainer's own.
    """

    def __init__(
        self,
        *args: Any,
        train_loader: Loader,
        eval_loader: Loader | dict[str, Loader] | None = None,
        **kwargs: Any,
    ) -> None:
        self._train_loader = train_loader
        if eval_loader is not None:
            # Without one a Trainer refuses to evaluate while it trains.
            kwargs["eval_dataset"] = eval_loader
        super().__init__(*args, **kwargs)
        trainer: Any = self
        self._evaluated: tuple[str, int] | None = None  # prefix, batches of this rank
        trainer.args.ignore_data_skip = True
        trainer.add_callback(make_callback(train_loader))

    def get_train_dataloader(self) -> Any:
        """Return the Loader as it is: it reads this rank's share, and prefetches."""
        return self._train_loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the Loader for evaluation, or what the Trainer makes of a dataset."""
        trainer: Any = self
        given = trainer.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(given, str):
            given = trainer.eval_dataset[given]
        if isinstance(given, Loader):
            return given
        return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Evaluate, and count what was read: a Trainer takes every row of tokens for a sample."""
        evaluate = super().evaluation_loop  # type: ignore[misc]
        if not isinstance(dataloader, Loader):
            return evaluate(dataloader, *args, **kwargs)
        before = dataloader.stats()
        output = evaluate(dataloader, *args, **kwargs)
        after = dataloader.stats()
        trainer: Any = self
        samples = torch.tensor(after["samples"] - before["samples"], device=trainer.args.device)
        samples = trainer.accelerator.reduce(samples, "sum")
        # The Trainer's own, which makes steps of samples by the batch size of its arguments.
        prefix = kwargs.get("metric_key_prefix", "eval")
        self._evaluated = prefix, after["batches"] - before["batches"]
        return output._replace(num_samples=int(samples))

    def log(self, logs: MutableMapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log, with the rate of the batches that an evaluation has read."""
        self._correct(logs)
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict, with the rate of the batches that were read."""
        output = super().predict(*args, **kwargs)  # type: ignore[misc]
        self._correct(output.metrics)
        return output

    def _correct(self, metrics: MutableMapping[str, Any]) -> None:
        if self._evaluated is None:
            return
        prefix, batches = self._evaluated
        if f"{prefix}_steps_per_second" in metrics:
            rate = batches / metrics[f"{prefix}_runtime"]
            metrics[f"{prefix}_steps_per_second"] = round(rate, 3)
            self._evaluated = None


class LoaderTrainer(LoaderMixin, transformers.Trainer):  # type: ignore[misc]
    """The Trainer of transformers, trained on a Loader: see `LoaderMixin`."""


class LoaderStateCallback(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]
    """Saves and loads a Loader's state, with the Trainer's own state.

    Attributes:
        loader: The Loader. It belongs to the class: where a Trainer restores its callbacks it makes
            new ones of their classes, without arguments.
        data: What was saved, on a callback that was restored; None before training.
    """

    loader: Loader
    data: dict[str, Any] | None = None
    training = False

    def state(self) -> dict[str, Any]:
        """Return what `trainer_state.json` holds; the Trainer's contract for callbacks.

        It is asked for before training too, where nothing may be asked of the server yet.
        """
        data = self.loader.state_dict() if self.training else None
        return {"args": {}, "attributes": {"data": data}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Go to where the checkpoint was taken, if the Trainer resumes from one.

        Raises:
            BadState: The checkpoint holds no state of a Loader.
        """
        if state.global_step:
            saved = state.stateful_callbacks.get(STATE_NAME)
            data = saved["attributes"]["data"] if saved else None
            if data is None:
                raise BadState(
                    f"the checkpoint of step {state.global_step} holds no state of a Loader in its "
                    "trainer_state.json, so where its data stood is not known: resume from one "
                    "that was written with LoaderTrainer, or train anew from its weights"
                )
            self.loader.load_state_dict(data)
        self.training = True

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Commit: the checkpoint is written."""
        if self.loader.group is not None:
            self.loader.commit()


def make_callback(loader: Loader) -> LoaderStateCallback:
    """Return a callback of a class of its own, which a Trainer can make anew."""
    kind = type(STATE_NAME, (LoaderStateCallback,), {"loader": loader})
    made: LoaderStateCallback = kind()
    return made
