"""Notices frameworks that hold a batch ahead of the one that they train on."""

from __future__ import annotations

import sys
from types import FrameType

_HOLDERS = {
    "lightning.pytorch.loops.fetchers": (
        "Lightning",
        "give its Trainer penstock.client.frameworks.lightning.LoaderCallback(loader)",
    ),
    "pytorch_lightning.loops.fetchers": (
        "Lightning",
        "give its Trainer penstock.client.frameworks.lightning.LoaderCallback(loader)",
    ),
    "accelerate.data_loader": (
        "Accelerate's data loader",
        "iterate the Loader itself, without a DataLoader around it",
    ),
}
"""By module: the class that fetches a batch ahead there, and what to do about it."""


def reader_ahead(has_length: bool) -> str | None:
    """Return why states of the pass that begins now will count a batch too many; None = they won't.

    Looks at who is calling, which is known nowhere else: the first batch of a pass is asked
    for by the framework's own fetcher.

    Args:
        has_length: `len()` of the Loader works, and Lightning needs no look-ahead.
    """
    frame: FrameType | None = sys._getframe(1)
    keeps_state = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        # A StatefulDataLoader within Accelerate's keeps the state from before the look-ahead.
        keeps_state |= module.startswith("torchdata.")
        if module in _HOLDERS:
            who, remedy = _HOLDERS[module]
            if keeps_state if module == "accelerate.data_loader" else has_length:
                return None
            return (
                f"{who} holds a batch ahead that it has not trained on, and state_dict() counts "
                "it, so a run that resumes from this state would never train on it: "
                f"{remedy}, or call loader.mark(position) after each batch; "
                "docs/frameworks.md has a whole script"
            )
        frame = frame.f_back
    return None
