"""Text to token ids, by the `tokenizers` library."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from penstock.common.checks import check_whole
from penstock.common.malloc import release_memory
from penstock.common.nearest import nearest
from penstock.server.core.refs import ItemRef
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import PATH, FilePath, OfType, declared
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors.tokenizer_file import (
    check_unicode,
    no_column,
    parse_tokenizer,
    read_tokenizer,
)
from penstock.server.roles.samples import RawItem, Sample
from penstock.wire.errors import InvalidJob

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_NO_TEXT = re.compile(
    r"u?int|float|double|halffloat|bool|(large_|fixed_size_)?(binary|list)|struct|map|decimal|date"
    r"|time|duration"
)
"""Arrow's types whose values are not text; others, such as extensions, are decided item by item."""


LONG_TEXT, LONG_BY = 250_000, 8
"""Characters, and so many times the usual length. `tokenizers` takes about 130 bytes for each while
it encodes, and malloc would keep that in every worker for the rest of the run: 93 MiB after a text
of 750,000. Giving it back takes a quarter of the time that encoding such a text does, so it is done
only if these are rare."""

TOKEN = "a token of the vocabulary as text, such as '<eos>'"


@declared
class TokenizeProcessor(RawItemProcessor):
    """Turn one text column into `input_ids`, int32 of shape (t,), t >= 1 tokens.

    Padding and truncation that the tokenizer's file may ask for are switched off: rows are made by
    batchers and collators. An item whose text is null or gives no token is filtered, under the
    reason `null` or `empty`.

    Args:
        tokenizer: Path of a `tokenizer.json`, as `tokenizers` and `transformers` save it. Its
            bytes, not its path, are part of the job's identity.
        column: The column that holds the text; items that are plain strings need none. `json.text`
            is the value `text` of a column `json` that holds objects.
        append: A token of the vocabulary that is put after every document, such as `<eos>`.
        prepend: A token of the vocabulary that is put before every document, such as `<bos>`.
        max_length: The most tokens of a document, `append` and `prepend` included; longer ones are
            cut on the right, and what is cut is never trained on. None = never cut, and the batcher
            decides about long ones.
        add_special_tokens: Let the tokenizer add the special tokens of its own template.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "tokenize"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    path_params: ClassVar[tuple[str, ...]] = ("tokenizer",)

    tokenizer: Annotated[FilePath, OfType(PATH, "the path of a tokenizer.json")]
    column: str = "text"
    append: Annotated[str | None, OfType((str,), TOKEN)] = None
    prepend: Annotated[str | None, OfType((str,), TOKEN)] = None
    max_length: int | None = None
    add_special_tokens: bool = False

    def __post_init__(self) -> None:
        if self.max_length is not None:
            least = 1 + (self.append is not None) + (self.prepend is not None)
            check_whole("max_length", self.max_length, least, "the tokens of a text", optional=True)
        self.path = Path(self.tokenizer)
        self._content: dict[str, str] | None = None
        self._loaded: Tokenizer | None = None
        self._usual = 0.0  # characters of a text, in the mean
        self._before: list[int] = []
        self._after: list[int] = []
        self._room: int | None = None
        self._added = 0
        self._only_counts = False

    def content(self) -> dict[str, str]:
        """Return the SHA-256 of the tokenizer's file, after checking that it fits.

        Raises:
            InvalidJob: As `setup`: a job with a wrong tokenizer ends before any worker starts.
            MissingExtra: The package `tokenizers` is not installed.
        """
        if self._content is None:
            data = read_tokenizer(self.path)
            self._around(self._parse(data))
            self._content = {"tokenizer": hashlib.sha256(data).hexdigest()}
        return self._content

    def setup(self) -> None:
        """Load the tokenizer; otherwise the first `process` does so.

        Raises:
            InvalidJob: The file is missing or not a tokenizer, or `append` or `prepend` is not in
                its vocabulary, or `max_length` leaves no room.
            MissingExtra: The package `tokenizers` is not installed.
        """
        self._load()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without the column, or with something other than text in it.

        Raises:
            InvalidJob: Names the columns that there are, or the type.
        """
        if not self.keeps(TokenizeProcessor, "process"):
            return
        if self.column not in columns:
            if self.column.partition(".")[0] in columns and "." in self.column:
                return  # what objects hold shows only in items
            raise no_column(self.column, columns)
        if _NO_TEXT.match(columns[self.column]):
            raise InvalidJob(
                f"processor.column {self.column!r} holds {columns[self.column]}, and tokenize "
                "needs text; name a column of strings",
                key="processor.column",
                columns=list(columns),
            )

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the one key that samples have, unless a subclass makes other ones."""
        return ["input_ids"] if self.keeps(TokenizeProcessor, "process") else None

    def process(self, raw: RawItem, context: ProcessContext) -> Sample | None:
        """Return `{"input_ids": int32 (t,)}`, or None if there is no text.

        Raises:
            InvalidJob: The item has no such column, or the tokenizer is not fit (see `setup`).
            TypeError: The column holds no text.
            ValueError: The text is not Unicode.
        """
        tokenizer = self._loaded or self._load()
        text = self._text(raw, context.item)
        if text is None:
            context.skip("null")
            return None
        # encode_batch_fast leaves out the character offsets, which are not needed here. A list of
        # one was as fast as one of 16: 0.9 M tokens/s against 0.6 M/s for encode (8k BPE, the
        # standard library's sources, one core); and alone a text cannot depend on its neighbours.
        try:
            [found] = tokenizer.encode_batch_fast(
                [text], add_special_tokens=self.add_special_tokens
            )
        except TypeError:
            check_unicode(text)
            raise
        if len(text) > max(LONG_TEXT, LONG_BY * self._usual):
            release_memory()
        self._usual += 0.05 * (len(text) - self._usual)
        count = len(found)
        if count <= self._added:
            context.skip("empty")
            return None
        if self._room is not None:
            count = min(count, self._room)
        if self._only_counts:
            return {"input_ids": range(len(self._before) + count + len(self._after))}
        ids = found.ids
        del ids[count:]
        if self._before or self._after:
            ids = [*self._before, *ids, *self._after]
        return {"input_ids": np.array(ids, dtype=np.int32)}

    def for_lengths(self, key: str) -> TokenizeProcessor:
        """Return one that makes no array of the ids, a twentieth of the work, to count them."""
        if key != "input_ids" or not self.keeps(TokenizeProcessor, "process", "process_batch"):
            return self  # a subclass may do more with the ids than count them
        found = copy.copy(self)
        found._only_counts = True
        return found

    def _text(self, raw: RawItem, item: ItemRef) -> str | None:
        if isinstance(raw, Mapping):
            raw = raw[self.column] if self.column in raw else self._inner(raw, item)
            if raw is None:
                return None
        elif not isinstance(raw, str):
            raise InvalidJob(
                f"an item is of type {type(raw).__name__}, and tokenize needs a column "
                f"{self.column!r} or plain text; put a function: in its place that "
                "makes one of the other",
                key="processor",
            )
        if not isinstance(raw, str):
            raise TypeError(
                f"column {self.column!r} holds values of type {type(raw).__name__}, and tokenize "
                "needs text"
            )
        return raw

    def _inner(self, raw: Mapping[str, Any], item: ItemRef) -> Any:
        """Return what lies within objects: `json.text`.

        Raises:
            InvalidJob: There is no such value.
        """
        found: Any = raw
        for name in self.column.split("."):
            if not isinstance(found, Mapping) or name not in found:
                raise no_column(self.column, raw, item)
            found = found[name]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones included.

        Raises:
            InvalidJob: The file is missing or not a tokenizer (see `setup`).
            MissingExtra: The package `tokenizers` is not installed.
        """
        return str(self._load().decode(list(ids), skip_special_tokens=False))

    def _load(self) -> Tokenizer:
        if self._loaded is None:
            tokenizer = self._parse(read_tokenizer(self.path))
            self._before, self._after = self._around(tokenizer)
            around = len(self._before) + len(self._after)
            self._room = None if self.max_length is None else self.max_length - around
            if self.add_special_tokens:
                self._added = tokenizer.num_special_tokens_to_add(False)
                if self._room is not None:
                    # Cut by the library, which keeps the template's own last token in its place.
                    tokenizer.enable_truncation(self._room)
                    self._room = None
            self._loaded = tokenizer
        return self._loaded

    def _parse(self, data: bytes) -> Tokenizer:
        return parse_tokenizer(data, self.path, "tokenize")

    def _around(self, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
        before, after = (
            [] if token is None else [self._token_id(tokenizer, name, token)]
            for name, token in (("prepend", self.prepend), ("append", self.append))
        )
        if self.max_length is not None and self.add_special_tokens:
            least = len(before) + len(after) + tokenizer.num_special_tokens_to_add(False) + 1
            if self.max_length < least:
                raise InvalidJob(
                    f"max_length is {self.max_length}; with the tokens that are added to every "
                    f"document it must be at least {least}",
                    key="max_length",
                )
        return before, after

    def _token_id(self, tokenizer: Tokenizer, name: str, token: str) -> int:
        found: int | None = tokenizer.token_to_id(token)
        if found is None:
            near = _near_tokens(tokenizer, token)
            hint = f"near it are {', '.join(map(repr, near))}" if near else "it has none like it"
            raise InvalidJob(
                f"{name} is {token!r}, which is not in the vocabulary of {str(self.path)!r}; "
                f"{hint}",
                key=name,
            )
        return found


def _near_tokens(tokenizer: Tokenizer, token: str) -> list[str]:
    """Special tokens first; comparing a whole vocabulary of 200,000 would take seconds."""
    special = sorted(added.content for added in tokenizer.get_added_tokens_decoder().values())
    near = nearest(token, special, 4, likeness=0.4)
    if not near:
        same_start = sorted(
            word
            for word in tokenizer.get_vocab()
            if word[:1] == token[:1] and abs(len(word) - len(token)) <= 2
        )
        near = nearest(token, same_start, 4)
    return near or special[:4]
