"""Which source reads a file, by its name."""

from __future__ import annotations

import posixpath
import re

KINDS = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".tar": "webdataset",
    ".mds": "mds",
    ".npy": "tokens",
    ".bin": "megatron",
    ".idx": "megatron",
}
"""The source type of a file's last ending; `.bin` without a `.idx` beside it is of `tokens`."""

PICTURES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff",
)  # fmt: skip
SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".mp3")
VIDEOS = (".mp4", ".mkv", ".webm", ".mov", ".avi")
"""What names of media end in that processors decode."""

_QUERY = re.compile(r"\?[^/?*]*=[^/]*$")
"""Of a URL, with a name and a value: a `?` alone is of a glob."""

COMPRESSED = (".gz", ".zst", ".zstd", ".bz2", ".xz", ".br", ".snappy")

FOLDER_MARKS = {"state.json": "saved", "dataset_dict.json": "saved", "index.json": "mds"}
"""Files that say what wrote the folder that they are in."""


def kind_of(path: str) -> str | None:
    """Return the type of the source that reads a file, a glob or a URL; None = its name tells none.

    A compressed MDS shard is one; other compressed files are read by `hf`.
    """
    if "://" in path:
        path = _QUERY.sub("", path)
    name = posixpath.basename(path.rstrip("/"))
    if name in FOLDER_MARKS:
        return FOLDER_MARKS[name]
    stem, ending = posixpath.splitext(name)
    if ending in COMPRESSED:
        return "mds" if posixpath.splitext(stem)[1] == ".mds" else "hf"
    return KINDS.get(ending.lower())
