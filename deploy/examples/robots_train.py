"""Train a small policy from episodes of robots: `python robots_train.py --steps 1000`.

It learns to tell the next actions from what all cameras show and from the robot's state. Started
again, it goes on where its last checkpoint was. `--dummy` takes the batches and trains nothing:
what it prints then is the rate of the data alone.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping

import torch
from torch import nn

from penstock.client import Loader, media

CHECKPOINT = "robots_policy.pt"
STATE, ACTION = "observation.state", "action"
SIDE = 96


class Policy(nn.Module):
    """Actions from cameras and state.

    Args:
        cameras: The keys of cameras, each float32 (batch, 3, SIDE, SIDE).
        states: Numbers of the state.
        steps: Actions that are told at once.
        actions: Numbers of an action.
    """

    def __init__(self, cameras: list[str], states: int, steps: int, actions: int) -> None:
        super().__init__()
        self.cameras, self.shape = cameras, (steps, actions)
        self.eyes = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(3, 16, 8, stride=4),
                nn.ReLU(),
                nn.Conv2d(16, 32, 4, stride=2),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
            )
            for _ in cameras
        )
        self.head = nn.Sequential(
            nn.Linear(128 * len(cameras) + states, 128),
            nn.ReLU(),
            nn.Linear(128, steps * actions),
        )

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return actions: float32 (batch, steps, actions)."""
        seen = [eye(batch[name]) for eye, name in zip(self.eyes, self.cameras, strict=True)]
        told = self.head(torch.cat([*seen, batch[STATE]], dim=1))
        return told.reshape(-1, *self.shape)

    def loss(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the mean distance from the actions that were taken, without pads."""
        away = (self(batch) - batch[ACTION]).abs().mean(dim=-1)
        real = ~batch[f"{ACTION}_is_pad"]
        return (away * real).sum() / real.sum()


def policy_for(batch: Mapping[str, torch.Tensor]) -> Policy:
    """Return a new policy, as large as a batch needs it."""
    cameras = [name for name, value in batch.items() if torch.is_tensor(value) and value.ndim == 4]
    return Policy(sorted(cameras), batch[STATE].shape[-1], *batch[ACTION].shape[1:])


def main() -> None:
    """Train, and save a checkpoint now and then."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="spawn:robots.yaml", help="of a node, or a job file")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dummy", action="store_true", help="take batches, and train nothing")
    options = parser.parse_args()

    saved = None
    if not options.dummy and os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT, map_location=options.device)
    arrive = media.ToRgb(size=(SIDE, SIDE), dtype="float32", channels="first")
    where = {} if options.dummy else {"group": "robots", "start": "state" if saved else 0}
    loader = Loader(options.address, "robots", device=options.device, arrive=arrive, **where)
    if saved:
        loader.load_state_dict(saved["data"])

    torch.manual_seed(0)
    policy = optimizer = None
    began, frames = time.monotonic(), 0
    with loader:
        for step in loader.steps():
            for batch in step:
                frames += len(batch[ACTION])
                if options.dummy:
                    continue
                if policy is None:
                    policy = policy_for(batch).to(options.device)
                    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
                    if saved:
                        policy.load_state_dict(saved["policy"])
                        optimizer.load_state_dict(saved["optimizer"])
                loss = policy.loss(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                print(f"step {step.index} loss {loss.item():.4f}", flush=True)
            if policy is not None and step.index % options.save_every == options.save_every - 1:
                state = {"policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"data": loader.state_dict()}, f"{CHECKPOINT}.new")
                os.replace(f"{CHECKPOINT}.new", CHECKPOINT)
                loader.commit()  # the checkpoint is safe: the cursor may follow
            if step.index == options.steps - 1:
                break
    print(f"{frames:,} items, {frames / (time.monotonic() - began):,.1f} in a second")


if __name__ == "__main__":
    main()
