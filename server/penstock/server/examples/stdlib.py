"""The running Python's standard library as a corpus: Parquet files, a tokenizer, a job file.

Run it as a program: `python -m penstock.server.examples.stdlib [FOLDER]` makes the corpus once and
prints one JSON object that says where it lies and what it holds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tokenize import detect_encoding

from penstock.server.process.extra import require_server
from penstock.wire.errors import InvalidRequest, MissingExtra, PenstockError

FORMAT = 2
"""Goes up when the same Python would make another corpus."""

VOCABULARY = 8192
TRAINED_ON = 8
"""The tokenizer is trained on every so many files.

On all of them it takes 7 s instead of 2, and the corpus then has 2.5 % fewer tokens (Python 3.11).
"""
END_TOKEN = "<eos>"
ROWS_PER_FILE, ROWS_PER_GROUP = 512, 32

JOB_FILE = "stdlib.yaml"
ABOUT = "about.json"


@dataclass(frozen=True)
class Corpus:
    """What was made, and where.

    Attributes:
        folder: Holds `stdlib.yaml`, `tokenizer.json` and `corpus/*.parquet`.
        files: How many `.py` files the corpus holds, one row each.
        bytes: The length of their text in UTF-8.
        skipped: Files left out because they are not text in the encoding that they name.
        python: The version of Python whose library it is.
    """

    folder: str
    files: int
    bytes: int
    skipped: int
    python: str

    @property
    def job_file(self) -> Path:
        """The job file."""
        return Path(self.folder) / JOB_FILE


def default_folder() -> Path:
    """Return where the corpus of this Python is kept: below the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    identity = json.dumps([FORMAT, sys.version, sysconfig.get_path("stdlib"), VOCABULARY])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    name = f"stdlib-{platform.python_version()}-{digest}"
    return Path(cache).expanduser().absolute() / "penstock" / name


def make(folder: Path | None = None) -> Corpus:
    """Make the corpus if it is not there, and return what it holds.

    Everything is made in a folder beside and moved into place at once: an interrupted run leaves
    no half of a corpus, and two runs at once do no harm.

    Args:
        folder: Where to; None = `default_folder()`.

    Raises:
        MissingExtra: `tokenizers`, or a package of the server half, is not installed.
        InvalidRequest: The folder holds something else, or cannot be written.
    """
    require_server("the corpus of the demo", extras="server,tokenizers")
    folder = (folder or default_folder()).absolute()
    about = folder / ABOUT
    if about.exists():
        return Corpus(**{**json.loads(about.read_text()), "folder": str(folder)})
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequest(
            f"{folder} holds something else than this corpus: name an empty or a new folder",
            field="folder",
            value=str(folder),
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InvalidRequest(
            f"cannot write below {folder.parent}: {error.strerror}; name another folder, or set "
            "XDG_CACHE_HOME",
            field="folder",
            value=str(folder),
        ) from error
    try:
        corpus = _make_in(work, folder)
        if folder.exists():
            folder.rmdir()
        work.rename(folder)
    except OSError as error:
        if not about.exists():  # else another run was faster, and made the same
            raise InvalidRequest(
                f"cannot write {folder}: {error.strerror or error}",
                field="folder",
                value=str(folder),
            ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return corpus


def texts(library: Path | None = None) -> Iterator[tuple[str, str | None]]:
    """Yield (path, text) of every `.py` file of the standard library, in the order of their paths.

    The text is None where a file is not what its encoding line says: the library's own tests have
    a few of those.
    """
    library = library or Path(sysconfig.get_path("stdlib"))
    found = (path.relative_to(library).as_posix() for path in library.rglob("*.py"))
    for name in sorted(found):
        if {"site-packages", "dist-packages", "__pycache__"}.isdisjoint(name.split("/")):
            yield name, _text(library / name)


def _text(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            encoding, _ = detect_encoding(file.readline)
        return path.read_text(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return None


def _make_in(work: Path, folder: Path) -> Corpus:
    rows: list[tuple[str, str]] = []
    skipped = 0
    for name, text in texts():
        if text is None:
            skipped += 1
        else:
            rows.append((name, text))
    _write_parquet(work / "corpus", rows)
    _train_tokenizer(work / "tokenizer.json", [text for _, text in rows[::TRAINED_ON]])
    shutil.copyfile(Path(__file__).with_name(JOB_FILE), work / JOB_FILE)
    corpus = Corpus(
        folder=str(folder),
        files=len(rows),
        bytes=sum(len(text.encode()) for _, text in rows),
        skipped=skipped,
        python=platform.python_version(),
    )
    # Last: a folder that has it is whole.
    (work / ABOUT).write_text(json.dumps(asdict(corpus)) + "\n")
    return corpus


def _write_parquet(folder: Path, rows: Sequence[tuple[str, str]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    schema = pa.schema([("path", pa.string()), ("text", pa.string())])
    for number, start in enumerate(range(0, len(rows), ROWS_PER_FILE)):
        part = rows[start : start + ROWS_PER_FILE]
        columns = [[path for path, _ in part], [text for _, text in part]]
        table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)
        pq.write_table(
            table,
            folder / f"part-{number:03}.parquet",
            row_group_size=ROWS_PER_GROUP,
            compression="zstd",
        )


def _train_tokenizer(path: Path, documents: Sequence[str]) -> None:
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtra(
            "training a tokenizer needs the `tokenizers` package: "
            "pip install 'penstock[server,tokenizers]'",
            package="tokenizers",
            extra="tokenizers",
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the corpus and print what it holds as one JSON object."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.server.examples.stdlib",
        description="Write the .py files of this Python's standard library as Parquet, with a "
        "byte-level BPE tokenizer and a job file. What is there already is left as it is.",
    )
    parser.add_argument("folder", nargs="?", type=Path, help=f"default: {default_folder()}")
    try:
        corpus = make(parser.parse_args(arguments).folder)
    except PenstockError as error:
        sys.stderr.write(f"penstock: error: {error.message} [{error.code}]\n")
        return 2
    sys.stdout.write(json.dumps({**asdict(corpus), "job_file": str(corpus.job_file)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
