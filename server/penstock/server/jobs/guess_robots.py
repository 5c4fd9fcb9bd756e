"""What a job needs to know of a LeRobot folder, beside its source."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.server.sources.lerobot import LerobotSource
from penstock.server.sources.lerobot_info import LIST, NUMBERS

_WINDOWED = "action"
"""The feature of which policies want several frames at a time, as LeRobot names it."""


@dataclass(frozen=True, kw_only=True)
class RobotGuess:
    """What is known of a LeRobot folder.

    Attributes:
        episodes: How many there are.
        fps: Frames a second.
        cameras: The features that are pixels, of videos or of pictures.
        windowed: A feature of numbers of which a window may be wanted; None = there is none.
        is_ragged: Some feature has another length in each frame.
    """

    episodes: int
    fps: float
    cameras: tuple[str, ...]
    windowed: str | None
    is_ragged: bool

    @property
    def offsets_s(self) -> list[float]:
        """Return a window of four frames from the frame itself on, in seconds."""
        return [round(frame / self.fps, 6) for frame in range(4)]


def guess_robots(source: LerobotSource) -> RobotGuess:
    """Return what an open folder declares."""
    info = source.meta.info
    features = info.features.values()
    names = [feature.name for feature in features if feature.kind == NUMBERS]
    return RobotGuess(
        episodes=len(source.episode_table()),
        fps=info.fps,
        cameras=tuple(feature.name for feature in features if feature.is_camera),
        windowed=_WINDOWED if _WINDOWED in names else next(iter(names), None),
        is_ragged=any(feature.kind == LIST for feature in features),
    )
