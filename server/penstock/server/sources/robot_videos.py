"""Whether the videos of a LeRobot folder hold the frames that `meta/` says they do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import HEAD_BYTES, Medium
from penstock.server.media.video.indexing import index_video
from penstock.server.sources.files import FileSet, refusing
from penstock.server.sources.frame_windows import TOLERANCE_S
from penstock.server.sources.lerobot_episodes import LerobotMeta
from penstock.server.sources.lerobot_info import VIDEO, fixed_folder
from penstock.server.sources.patterns import DataFile


class FolderFault(NamedTuple):
    """A table or a video that does not hold what it should.

    Attributes:
        name: The file's name in the folder.
        said: What is wrong with it, as a sentence's part.
    """

    name: str
    said: str


class _DataMedium(Medium):
    """A file of a folder, read in parts."""

    def __init__(self, files: FileSet, file: DataFile) -> None:
        self.name, self._files, self._file = file.name, files, file

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return its first bytes."""
        return self.at(0, count)

    def read(self) -> bytes:
        """Return all its bytes."""
        return self.at(0, self._file.size)

    def size(self) -> int:
        """Return how many bytes it has."""
        return self._file.size

    def at(self, start: int, stop: int) -> bytes:
        """Return a part of it."""
        return self._files.read(self._file, min(start, self._file.size), min(stop, self.size()))


class RobotVideos:
    """The videos of some episodes.

    Args:
        meta: What `meta/` says.
        chosen: int64 (k,): the places of the episodes in `meta.episodes`.
        root: The folder that `videos` is in, or its URL.
        storage_options: For its filesystem.

    Attributes:
        names: The names of the videos, in the order of cameras and episodes.
        lacking: Those that are not there.

    Raises:
        InvalidJob: There are no videos at all.
        SourceUnavailable: They cannot be listed at the moment.
    """

    def __init__(
        self,
        meta: LerobotMeta,
        chosen: NDArray[np.int64],
        root: str,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._meta = meta
        self._shown: dict[str, list[tuple[str, int]]] = {}  # of each file: cameras and episodes
        for camera in (f.name for f in meta.info.features.values() if f.kind == VIDEO):
            for at in chosen.tolist():
                self._shown.setdefault(meta.video_file(camera, at), []).append((camera, at))
        self.names = list(self._shown)
        self._found: dict[str, DataFile] = {}
        self.lacking: list[str] = []
        if not self.names:
            return
        folder = fixed_folder(meta.info.video_path)
        cut = len(folder) + 1 if folder else 0
        self._files = FileSet(
            f"{root.rstrip('/')}/{folder}".rstrip("/"),
            suffix=tuple({name[name.rfind(".") :] for name in self.names}),
            storage_options=storage_options,
            key="source.root",
            among=[name[cut:] for name in self.names],
        )
        by_name = {file.name: file for file in self._files.files}
        self._found = {name: by_name[name[cut:]] for name in self.names if name[cut:] in by_name}
        self.lacking = [name for name in self.names if name not in self._found]

    def look(self, name: str) -> FolderFault | None:
        """Return what a video lacks, by its index; None = it holds the frames of its episodes.

        Raises:
            SourceUnavailable: It cannot be read at the moment.
            MissingExtra: PyAV is not installed.
        """
        if (file := self._found.get(name)) is None:
            return FolderFault(name, "is not there")
        with refusing(file, "source.root"):
            try:
                self._check(name, _DataMedium(self._files, file))
            except BadVideo as error:
                return FolderFault(name, str(error))
        return None

    def _check(self, name: str, medium: Medium) -> None:
        """Compare the frames of a video with those of its episodes.

        Raises:
            BadVideo: It is damaged, or lacks some.
        """
        index = index_video(medium)
        fps, recorded = self._meta.info.fps, self._meta.episodes
        for camera, at in self._shown[name]:
            number, frames = int(recorded.numbers[at]), int(recorded.lengths[at])
            begin_s = float(recorded.cameras[camera].begin_s[at])
            try:
                first = index.number_at(begin_s, TOLERANCE_S)
                last = index.number_at(begin_s + (frames - 1) / fps, TOLERANCE_S)
            except BadVideo as error:
                raise BadVideo(f"lacks frames of episode {number}: {error}") from error
            if last - first != frames - 1:
                raise BadVideo(
                    f"has {last - first + 1} frames in the time of episode {number}, which has "
                    f"{frames}"
                )
