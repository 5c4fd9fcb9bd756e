"""The contact sheet: what a batch shows and says, as one picture.

Samples stand in the order of the batch, each with its pictures and its text; a line is drawn at
every seam of a packed row. Text that is learned is green, and what attention does not see is grey
and struck through.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.common.batch_text import Decode, headline, repeats_said
from penstock.server.commands.sheet import counted
from penstock.server.commands.token_text import decoder
from penstock.server.core.refs import ItemRef
from penstock.server.files.filesystems import require
from penstock.server.job.job import Job
from penstock.server.media.pictures_shown import Picture, pictures_in
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Computed
from penstock.server.roles.processor import MediaProcessor
from penstock.wire.describe import batch_record
from penstock.wire.errors import InvalidRequest
from penstock.wire.frame import read_header

WIDTH, MARGIN, GAP = 1200, 16, 8
THUMB_HEIGHT, THUMB_WIDTH = 144, 400
LINE_HEIGHT, FONT_SIZE, MOST_LINES = 18, 14, 16
MOST_SAMPLES, MOST_HEIGHT = 32, 24_000
"""Samples of one batch, and pixels of the sheet: what more there is, is said."""

MOST_TEXT = 400
"""Characters of a value that is text, such as what is said of a picture."""

MOST_VALUES = 16
"""Numbers of a row that are said, such as the times of frames."""

ALIKE = 4
"""So many equal tokens in a row are one word: those that hold the place of a picture are many."""

SCALARS = (bool, int, float, str, np.generic)
INK, LEARNED, HIDDEN, SEAM = (30, 30, 30), (0, 110, 50), (150, 150, 150), (200, 60, 40)
BAND, FRAME = (232, 236, 240), (190, 190, 190)


class TextRun(NamedTuple):
    """A stretch of a sample's tokens that are alike.

    Attributes:
        text: What they say.
        color: Learned, hidden, or neither.
    """

    text: str
    color: tuple[int, int, int]


class Shown(NamedTuple):
    """One sample of a batch.

    Attributes:
        row: Its row.
        pictures: What it shows.
        runs: What it says.
    """

    row: int
    pictures: Sequence[Picture]
    runs: Sequence[TextRun]


class ContactSheet:
    """Draws batches below each other.

    Args:
        job: The job whose batches they are.

    Raises:
        MissingExtra: Pillow is not installed, or cannot be imported.
    """

    def __init__(self, job: Job) -> None:
        fonts = require("PIL.ImageFont", package="pillow", extra="images", who="a contact sheet")
        self._job, self._items = job, Items(job)
        self._font = fonts.load_default(FONT_SIZE)
        self._strips: list[Any] = []
        self._height = self._left_out = 0

    def add(self, computed: Computed, batches_per_step: int) -> None:
        """Draw a batch below those that are there, if there is room."""
        if self._height > MOST_HEIGHT:
            self._left_out += 1
            return
        header = read_header(computed.header)
        record = batch_record(header, computed.body, header.position // batches_per_step)
        self._band(headline(record, padding=header.padding))
        row = -1
        for sample in self._samples(header.samples[:MOST_SAMPLES]):
            if sample.row != row:
                row = sample.row
                self._line(f"row {row}")
            else:
                self._rule()
            self._sample(sample)
        if (left := len(header.samples) - MOST_SAMPLES) > 0:
            self._band(f"and {left:,} more samples")

    def write(self, file: Path) -> None:
        """Write what was drawn as a PNG.

        Raises:
            InvalidRequest: The file cannot be written.
        """
        from PIL import Image

        if self._left_out:
            self._band(f"and {counted(self._left_out, 'batch')} more")
        sheet = Image.new("RGB", (WIDTH, self._height + MARGIN), "white")
        top = 0
        for strip in self._strips:
            sheet.paste(strip, (0, top))
            top += strip.height
        try:
            sheet.save(file, "PNG")
        except OSError as error:
            raise InvalidRequest(
                f"the contact sheet cannot be written to {file}: {error.strerror or error}",
                field="pictures",
            ) from error

    # --- what there is ---

    def _samples(self, listed: Sequence[Any]) -> Iterator[Shown]:
        items = [ItemRef(one.source, one.index, one.epoch) for one in listed]
        for one, item in zip(listed, items, strict=True):
            [outcome] = self._items.samples([item], "exit")
            if not isinstance(outcome, list) or one.part >= len(outcome):
                continue
            roles = self._job.roles_of(item.source)
            sample = outcome[one.part]
            if one.HasField("start"):
                size = roles.batcher.size_of(sample)
                sample = roles.processor.cut(sample, one.start, one.stop, size)
            processor = roles.processor
            found = (
                processor.pictures(sample)
                if isinstance(processor, MediaProcessor)
                else pictures_in(sample)
            )
            yield Shown(one.row, found, list(runs_of(sample, decoder(roles))))

    # --- how it is drawn ---

    def _strip(self, height: int, color: Any = "white") -> Any:
        from PIL import Image, ImageDraw

        strip = Image.new("RGB", (WIDTH, height), color)
        self._strips.append(strip)
        self._height += height
        return strip, ImageDraw.Draw(strip)

    def _band(self, text: str) -> None:
        _, draw = self._strip(LINE_HEIGHT + 2 * GAP, BAND)
        draw.text((MARGIN, GAP), self._fitting(text), INK, self._font)

    def _line(self, text: str) -> None:
        _, draw = self._strip(LINE_HEIGHT + GAP)
        draw.text((MARGIN, GAP), self._fitting(text), INK, self._font)

    def _rule(self) -> None:
        _, draw = self._strip(GAP + 1)
        draw.line((MARGIN, GAP // 2, WIDTH - MARGIN, GAP // 2), SEAM)

    def _fitting(self, text: str) -> str:
        room = WIDTH - 2 * MARGIN
        while text and self._font.getlength(text) > room:
            text = text[: -max(1, len(text) // 20)]
        return text

    def _sample(self, sample: Shown) -> None:
        self._thumbs(sample.pictures)
        lines = list(itertools.islice(self._wrapped(sample), MOST_LINES + 1))
        for line in lines[:MOST_LINES]:
            _, draw = self._strip(LINE_HEIGHT)
            for left, run in line:
                draw.text((left, 0), run.text, run.color, self._font)
                if run.color == HIDDEN:
                    width = self._font.getlength(run.text)
                    draw.line((left, LINE_HEIGHT / 2, left + width, LINE_HEIGHT / 2), HIDDEN)
        if len(lines) > MOST_LINES:
            self._line("...")

    def _thumbs(self, pictures: Sequence[Picture]) -> None:
        from PIL import Image

        left, strip, draw = WIDTH, None, None
        for picture in pictures:
            thumb = Image.fromarray(picture)
            thumb.thumbnail((THUMB_WIDTH, THUMB_HEIGHT))
            if left + thumb.width > WIDTH - MARGIN:
                strip, draw = self._strip(THUMB_HEIGHT + GAP)
                left = MARGIN
            assert strip is not None
            assert draw is not None
            # Framed, or a white picture would not be seen.
            draw.rectangle((left - 1, 0, left + thumb.width, 1 + thumb.height), outline=FRAME)
            strip.paste(thumb, (left, 1))
            left += thumb.width + GAP

    def _wrapped(self, sample: Shown) -> Iterator[list[tuple[int, TextRun]]]:
        """Yield lines, each of words with the place where they stand."""
        line: list[tuple[int, TextRun]] = []
        left = float(MARGIN)
        for run in sample.runs:
            for piece in run.text.splitlines(keepends=True):
                for word in _words(piece):
                    width = self._font.getlength(word)
                    if left + width > WIDTH - MARGIN and line:
                        yield line
                        line, left = [], float(MARGIN)
                    line.append((int(left), TextRun(word.rstrip("\n"), run.color)))
                    left += width
                if piece.endswith("\n"):
                    yield line
                    line, left = [], float(MARGIN)
        if line:
            yield line


def _words(text: str) -> Iterator[str]:
    """Yield words with the blank after each; one without blanks in pieces that fit a line."""
    for word in text.split(" "):
        for start in range(0, max(1, len(word)), 80):
            piece = word[start : start + 80]
            yield piece + (" " if start + 80 >= len(word) else "")


def runs_of(sample: Mapping[str, Any], decode: Decode | None) -> Iterator[TextRun]:
    """Yield the stretches of a sample's tokens that are learned, hidden, or neither.

    Args:
        sample: Named values; without `input_ids` the numbers and texts of these are said, and which
            of several keys show how many pictures.
        decode: What turns ids into text; None = they are shown as numbers.
    """
    if sample.get("input_ids") is None:
        yield TextRun("   ".join(_values_said(sample)), INK)
        return
    ids = np.asarray(sample["input_ids"])
    labels, mask = sample.get("labels"), sample.get("attention_mask")
    learned = np.zeros(len(ids), bool) if labels is None else np.asarray(labels) != -100
    hidden = np.zeros(len(ids), bool) if mask is None else np.asarray(mask) == 0
    if learned.shape != ids.shape or hidden.shape != ids.shape:
        learned, hidden = np.zeros((2, len(ids)), bool)
    states = np.where(hidden, 2, np.where(learned, 1, 0))
    seams = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), len(ids)]
    for start, stop in itertools.pairwise(seams):
        if stop > start:
            color = (INK, LEARNED, HIDDEN)[int(states[start])]
            yield TextRun(repeats_said(ids[start:stop].tolist(), decode or _numbers, ALIKE), color)


def _values_said(sample: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of values: numbers, texts, and short rows, such as times and pads."""
    shown = {name: len(pictures_in({name: value})) for name, value in sample.items()}
    shown = {name: count for name, count in shown.items() if count}
    if len(shown) > 1:
        names = (f"{name} ({count})" if count > 1 else name for name, count in shown.items())
        yield f"pictures: {', '.join(names)}"
    for name, value in sample.items():
        if _is_one(value):
            yield f"{name}: {_cut(value)}"
        elif _is_short_row(value):
            yield f"{name}: {' '.join(f'{each:.6g}' for each in value)}"


def _is_short_row(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and 0 < len(value) <= MOST_VALUES
        and value.dtype.kind in "biuf"
    )


def _is_one(value: Any) -> bool:
    return isinstance(value, SCALARS) and np.ndim(value) == 0


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."


def _numbers(ids: Sequence[int]) -> str:
    return "".join(f"{one} " for one in ids)
