"""The builders of `datasets`, which open files of many formats, quietly, and fail in a sentence."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.server.files.filesystems import plain_url, require
from penstock.server.sources.prepared import load_builder
from penstock.server.usercode.frames import error_text
from penstock.wire.errors import InvalidJob, PenstockError

DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]

MAX_REASON = 300
"""Characters of what the library says in an error: it may list every column of a file."""


class OpenBuilder(NamedTuple):
    """A builder with its files.

    Attributes:
        builder: That of `datasets`.
        split: What is read of it.
        by_split: The files of every split.
        chosen: The splits that `split` is made of.
    """

    builder: Any
    split: str
    by_split: Mapping[str, Sequence[str]]
    chosen: Sequence[str]

    @property
    def files(self) -> list[str]:
        """Return the files that are read, in order."""
        return [file for name in self.chosen for file in self.by_split[name]]


def open_builder(
    builder: str,
    path: str,
    data_files: DataFiles | None,
    split: str | None,
    options: Mapping[str, Any],
) -> OpenBuilder:
    """Open a builder of `datasets`; nothing is read yet.

    Args:
        builder: Its name, or a folder.
        path: What the job calls it, for messages.
        data_files: Its files.
        split: The split that is wanted; None = the only one.
        options: More parameters of `load_dataset_builder`.

    Raises:
        InvalidJob: It has no such split, or no files.
        Exception: Whatever the library raises.
    """
    datasets = require("datasets")
    found = load_builder(datasets, builder, data_files=plain_files(data_files), **options)
    files = found.config.data_files or {}
    by_split = {str(key): [str(file) for file in own] for key, own in files.items()}
    chosen, names = choose_splits(path, split, list(by_split))
    opened = OpenBuilder(found, chosen, by_split, names)
    if not opened.files:
        raise InvalidJob(
            f"no file matches {data_files or path!r}: check the path; in a job file it is relative "
            "to the job file",
            key="source.data_files",
        )
    return opened


def builder_name(path: str, data_files: DataFiles | None) -> str | None:
    """Return the builder that `path` names, or None if it is a folder.

    A job file's relative paths arrive absolute, so `json` may arrive as `/jobs/json`: the last part
    is a builder's name unless there is such a folder and no data files.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as BUILDERS

    last = Path(path).name
    if last in BUILDERS and (data_files is not None or not Path(path).is_dir()):
        if data_files is None:
            raise InvalidJob(
                f"the builder {last!r} needs data_files: give a path, a glob or a list",
                key="source.data_files",
            )
        return last
    if Path(path).is_dir():
        return None
    raise InvalidJob(
        f"{path!r} is neither a folder nor a builder ({', '.join(BUILDERS)}); the hub is not "
        "read over the network: download it first and name the folder",
        key="source.path",
    )


def choose_splits(path: str, split: str | None, splits: Sequence[str]) -> tuple[str, list[str]]:
    """Return the split to read, and which of the dataset's splits it is made of."""
    if split is None:
        if len(splits) != 1:
            raise InvalidJob(
                f"{path!r} has the splits {', '.join(splits)}: choose one with split",
                key="source.split",
            )
        return splits[0], [*splits]
    # `train`, `train[:10%]`, `train[:100]+test`, `all`: the names before the brackets.
    named = re.findall(r"[^\W\d][\w.-]*", re.sub(r"\[[^]]*\]|\([^)]*\)", "", split))
    unknown = [name for name in named if name not in (*splits, "all")]
    if unknown or not named:
        raise InvalidJob(
            f"{path!r} has no split {split!r}: it has {', '.join(splits)}", key="source.split"
        )
    return split, [name for name in splits if name in named or "all" in named]


def plain_files(data_files: DataFiles | None) -> Any:
    """Return `data_files` in lists and dicts, as `datasets` takes them."""
    if data_files is None:
        return None
    if isinstance(data_files, str):
        return plain_url(data_files)
    if isinstance(data_files, Mapping):
        return {split: plain_files(files) for split, files in data_files.items()}
    return [plain_url(file) for file in data_files]


@contextlib.contextmanager
def quietly(
    datasets: Any, path: str, data_files: DataFiles | None, builder: str | None
) -> Iterator[None]:
    """Open without progress bars, and turn what `datasets` raises into one sentence."""
    try:
        with silence.kept(datasets):
            yield
    except PenstockError:
        raise
    except Exception as error:
        what = repr(path if data_files is None else data_files)
        what = what if len(what) <= 300 else f"{what[:300]} ..."
        kind = "" if builder is None else f" as {builder}"
        raise InvalidJob(
            f"datasets cannot read {what}{kind}: {innermost(error)}; a source needs files of one "
            "kind with the same columns, and at least one item in them",
            key="source.path" if data_files is None else "source.data_files",
        ) from error


def innermost(error: BaseException) -> str:
    """Return what went wrong, on one line: the library wraps a parser's error in its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(error_text(error, MAX_REASON).split())
    return f"{type(error).__name__}: {text or 'no rows, or nothing that can be parsed'}"


class _Silence:
    """Switches off what `datasets` writes, for the whole process, while any thread wants that.

    A meta file opens several data sets at once: the first to begin notes how it was, and the last
    to end restores that. If each did so, one would restore what another had switched off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before = (True, 0)

    @contextlib.contextmanager
    def kept(self, datasets: Any) -> Iterator[None]:
        """Switch it off within the block."""
        with self._lock:
            if not self._wanted:
                bars = not datasets.are_progress_bars_disabled()
                self._before = bars, datasets.logging.get_verbosity()
                datasets.disable_progress_bars()
                # It logs what it raises as well.
                datasets.logging.set_verbosity(datasets.logging.CRITICAL)
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if not self._wanted:
                    bars, verbosity = self._before
                    datasets.logging.set_verbosity(verbosity)
                    if bars:
                        datasets.enable_progress_bars()


silence = _Silence()
