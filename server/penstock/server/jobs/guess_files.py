"""Which source reads some files, by their names and first bytes: its section of a job file."""

from __future__ import annotations

import glob
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.server.files.filesystems import is_web
from penstock.server.sources.files import FileSet
from penstock.server.sources.kinds import COMPRESSED, PICTURES, SOUNDS, VIDEOS, kind_of
from penstock.server.sources.kinds import KINDS as SOURCES
from penstock.wire.errors import InvalidJob, InvalidRequest

TOKENIZER = "tokenizer.json"

INFO = "meta/info.json"
"""Of a folder that LeRobot recorded."""

MAX_OBJECT_BYTES = 1 << 20
"""A larger file is taken for rows without a look: no list of data sets is as long."""


def find_source(
    paths: Sequence[str], base: Path, notes: list[str], options: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Path]]:
    """Return the source's section, and the folders of the data."""
    if any("://" in text for text in paths):
        return _of_urls(paths), []
    files: list[Path] = []
    patterns: list[str] = []
    for text in paths:
        path = Path(text).expanduser().absolute()
        if path.is_dir():
            if (written := _written_whole(path)) is not None:
                if len(paths) > 1:
                    raise InvalidRequest(
                        f"{text} is a folder that is read as one: give it alone, a job reads one"
                    )
                kind, key = written
                return {"type": kind, key: named(path, base)}, [path, path.parent]
            if (media := _folder_of_media(path, base, notes)) is not None:
                if len(paths) > 1:
                    raise InvalidRequest(
                        f"{text} is a folder of media, and a job reads one: give it alone, or the "
                        "folder above all of them"
                    )
                return media, [path]
            inside, pattern = _folder(path, base, notes)
            files += inside
            patterns.append(pattern)
        elif path.is_file():
            files.append(path)
            patterns.append(named(path, base))
        elif matches := sorted(glob.glob(str(path), recursive=True)):
            files += [Path(match) for match in matches if Path(match).is_file()]
            patterns.append(named(path, base))
        else:
            raise _of_path(f"there is no file or folder {text!r}{_of_the_hub(text)}", text)
    if not files:
        raise _of_path(f"{' '.join(paths)} holds no files", paths[0])
    # With a dtype a file without a header is one of ids.
    kinds = Counter("tokens" if "dtype" in options else _kind(file) for file in files)
    if len(kinds) > 1:
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        raise InvalidRequest(
            f"the files are of several kinds ({listed}): a source reads one, so name those to use"
        )
    [kind] = kinds
    folders = list(dict.fromkeys(file.parent for file in files))
    chosen = _shorten(files, patterns, base)
    if kind.startswith("hf "):
        return {"type": "hf", "path": kind[3:], "data_files": chosen}, folders
    spec: dict[str, Any] = {"type": kind, "files": chosen}
    if kind == "text":
        _refuse_binary(files[0])
        if len(files) > 1:
            spec["sample_by"] = "document"
            notes.append("every file is one item; without sample_by every line is one")
        else:
            notes.append("every line is one item; sample_by: document takes whole files")
    if any(file.suffix == ".tsv" for file in files):
        spec["delimiter"] = "\t"
    return spec, folders


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def _of_the_hub(text: str) -> str:
    """Return the end of a sentence about what may be a data set of the Hub."""
    if not _HUB_NAME.fullmatch(text) or kind_of(text) is not None:
        return ""
    folder = text.rpartition("/")[2]
    return (
        f"; a data set of the Hugging Face Hub comes by: hf download {text} --repo-type dataset "
        f"--local-dir {folder}, and then: penstockd init {folder}/"
    )


def _of_urls(paths: Sequence[str]) -> dict[str, Any]:
    """Return the source of files at URLs by their names, or of one folder that LeRobot recorded.

    Raises:
        InvalidRequest: The names do not tell what the files hold.
        SourceUnavailable: The store of a folder does not answer.
        MissingExtra: The package of the store of a folder is not installed.
    """
    kinds = {kind_of(path) for path in paths}
    if len(paths) == 1 and kinds == {None} and _was_recorded(paths[0]):
        return {"type": "lerobot", "root": paths[0]}
    if len(kinds) > 1 or kinds & {None, "hf"}:
        raise _of_path(
            f"{' '.join(paths)} does not say what is read: name URLs of one kind by their ending, "
            "such as s3://bucket/folder/*.parquet; a folder that LeRobot recorded is one that has "
            "meta/info.json in it, on a store that lists its files",
            paths[0],
        )
    return {"type": kinds.pop(), "files": paths[0] if len(paths) == 1 else list(paths)}


def _was_recorded(url: str) -> bool:
    """Tell whether a URL is a folder of LeRobot's; of web servers, which list nothing, none is."""
    if is_web(url):
        return False
    try:
        FileSet(url.rstrip("/") + f"/{INFO}", suffix=".json")
    except InvalidJob:
        return False
    return True


def _written_whole(folder: Path) -> tuple[str, str] | None:
    """Return the type of a folder that a library wrote as one, and the parameter that names it."""
    if (folder / INFO).exists():
        return "lerobot", "root"
    if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
        return "saved", "path"
    if (folder / "index.json").exists() and next(folder.rglob("*.mds*"), None) is not None:
        return "mds", "files"
    return None


_BESIDE_MEDIA = (".txt", ".text", ".md")
"""Notes, licences and captions of the files that they lie beside."""


def _folder_of_media(path: Path, base: Path, notes: list[str]) -> dict[str, Any] | None:
    """Return the source of a folder of media of a kind; None = tables or texts lie in it."""
    suffixes = Counter(file.suffix for file in _inside(path))
    if any(suffix in SOURCES and suffix not in _BESIDE_MEDIA for suffix in suffixes):
        return None
    of_kind = {
        kind: {suffix: suffixes[suffix] for suffix in suffixes if suffix.lower() in endings}
        for kind, endings in (("image", PICTURES), ("audio", SOUNDS), ("video", VIDEOS))
    }
    key = max(of_kind, key=lambda kind: sum(of_kind[kind].values()))
    count = sum(of_kind[key].values())
    others = {suffix: count for suffix, count in suffixes.items() if suffix not in of_kind[key]}
    if not count or count < max(others.values(), default=0):
        return None
    spec: dict[str, Any] = {"type": "folder", "path": named(path, base)}
    if key != "image":
        spec["key"] = key
    if others:
        names = ", ".join(sorted(name or "no ending" for name in others))
        notes.append(f"only media of one kind are read, not: {names}")
        spec["endings"] = sorted({suffix.lower() for suffix in of_kind[key]})
    return spec


def _inside(path: Path) -> list[Path]:
    """Return the files of a folder and of those in it; hidden ones are left out."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and file.name != TOKENIZER
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


def _folder(path: Path, base: Path, notes: list[str]) -> tuple[list[Path], str]:
    """Return the files of the most common kind in a folder, and their glob."""
    inside = _inside(path)
    if not inside:
        raise _of_path(f"the folder {path} holds no files", path)
    suffixes = Counter(file.suffix for file in inside)
    suffix = min(suffixes, key=lambda name: (name not in SOURCES, -suffixes[name], name))
    if len(suffixes) > 1:
        others = ", ".join(sorted(name or "no ending" for name in suffixes if name != suffix))
        notes.append(f"only the {suffix or 'unnamed'} files of the folder are read, not: {others}")
    chosen = [file for file in inside if file.suffix == suffix]
    deep = any(file.parent != path for file in chosen)
    return chosen, named(path / ("**" if deep else "") / f"*{suffix}", base)


def _shorten(files: Sequence[Path], patterns: list[str], base: Path) -> Any:
    """Return the patterns; where the files are all of their kind in one folder, their glob."""
    if len(patterns) == 1:
        return patterns[0]
    folders, suffixes = {file.parent for file in files}, {file.suffix for file in files}
    if len(folders) == 1 and len(suffixes) == 1:
        [folder], [suffix] = folders, suffixes
        if suffix and set(folder.glob(f"*{suffix}")) == set(files):
            return named(folder / f"*{suffix}", base)
    return patterns


_BUILDERS = {"jsonl": "json", "webdataset": "webdataset", "csv": "csv", "json": "json"}
"""What `datasets` calls the kinds of compressed files."""


def _kind(file: Path) -> str:
    """Return the type of a file's source; `hf BUILDER` of a compressed one."""
    found = kind_of(str(file))
    if found == "hf":
        return f"hf {_BUILDERS.get(kind_of(file.stem) or '', 'text')}"
    if found == "json":
        with file.open("rb") as stream:
            head = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
        if head.startswith(b"["):
            return "json"
        _refuse_object(file)
        return "jsonl"
    if file.suffix == ".bin" and not file.with_suffix(".idx").exists():
        return "text"  # if it is, and not ids whose dtype nobody knows
    return found or "text"


def _refuse_object(file: Path) -> None:
    """Refuse a file of a single JSON object, such as a list of data sets."""
    if file.stat().st_size > MAX_OBJECT_BYTES:
        return
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return  # an object on each line, if they are right
    if isinstance(found, dict):
        raise _of_path(
            f"{file} is one JSON object, and rows of data are an array or an object on each line: "
            "if it lists data sets, write the job file by hand, with source: {type: meta, file: "
            "...}; docs/sources.md shows it",
            file,
        )


_REFUSED = (
    (
        (".bin",),
        "is not text, and has no .idx beside it, as Megatron's files have: if it holds token ids, "
        "add --source dtype=uint16, or what they are, and --source eos=ID, the id after each "
        "document",
    ),
    (
        (*PICTURES, *SOUNDS, *VIDEOS),
        "is one picture, sound or video: name its folder, whose files are then the items (type: "
        "folder)",
    ),
    (
        (".txt", ".text", ".md"),
        "is not UTF-8: write it again as UTF-8; where it is Latin-1, by iconv -f LATIN1 -t UTF-8 "
        "OLD -o NEW",
    ),
    ((".zip", ".7z", ".rar"), "is an archive: unpack it, and name the files that were in it"),
)
"""What is said of files that are not text, by their endings."""


def _refuse_binary(file: Path) -> None:
    if file.suffix in COMPRESSED:
        return
    try:
        with file.open(encoding="utf-8") as stream:
            # Small ids of two or four bytes are UTF-8 too, and full of zeros, which no text has.
            if "\0" not in stream.read(4096):
                return
    except UnicodeDecodeError:
        pass
    neither = (
        f"is neither text nor a known kind ({', '.join(SOURCES)}): write a source of your own, "
        "docs/roles.md shows how"
    )
    said = (said for endings, said in _REFUSED if file.suffix.lower() in endings)
    raise _of_path(f"{file} {next(said, neither)}", file)


def _of_path(said: str, path: object) -> InvalidRequest:
    """Return the error of a path that was given."""
    return InvalidRequest(said, field="path", value=str(path))


def named(path: Path, base: Path) -> str:
    """Return a path as the job file names it: relative if it is below the file's folder."""
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
