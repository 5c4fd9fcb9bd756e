"""A model's chat template: the folder of its tokenizer read, and conversations written by it.

The environment of templates is the one that transformers documents for them: a sandbox of jinja
with `tojson`, `raise_exception`, loop controls and `{% generation %}`. There is one difference: a
template cannot ask for today's date, because the same conversation would give other tokens
tomorrow.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.server.media.pretrained import read_json
from penstock.server.roles.processors.tokenizer_file import (
    WHOLE,
    check_unicode,
    from_the_hub,
    parse_tokenizer,
    read_tokenizer,
)
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob, MissingExtra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Message = dict[str, Any]
"""A turn as templates take it: `role`, `content`, and what else it has."""

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""What is written around `{% generation %}` blocks while a template runs. They are noncharacters of
Unicode, which no text holds; one that does is refused."""

_OF_TEMPLATES = (
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RuntimeError,
)
"""What Python raises of an expression in a template: a division by zero, a macro without an end."""

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class Written(NamedTuple):
    """A conversation as text.

    Attributes:
        text: All of it.
        answers: From which character to which each `{% generation %}` block goes; None = the
            template has none.
    """

    text: str
    answers: list[tuple[int, int]] | None


class Tokens(NamedTuple):
    """A conversation as token ids.

    Attributes:
        ids: The ids.
        offsets: From which character to which each goes; None = they were not asked for.
    """

    ids: list[int]
    offsets: list[tuple[int, int]] | None


class ChatTemplate:
    """Writes conversations, and knows the tokenizer that reads them.

    Args:
        folder: A tokenizer's folder, as `save_pretrained` writes it.
        file: A template in place of the folder's own; None = that one.
        variables: What the template is given beside the conversation.
        user: The processor that needs it, for errors.
        extra: The extra that brings all that this processor needs.

    Raises:
        InvalidJob: There is no tokenizer or no template; it cannot be parsed; there is neither a
            token for padding nor one for an end.
        MissingExtra: `tokenizers` or `jinja2` is not installed.
    """

    def __init__(
        self,
        folder: Path,
        file: Path | None = None,
        variables: Mapping[str, Any] | None = None,
        user: str = "chat",
        extra: str = "tokenizers",
    ) -> None:
        if not folder.is_dir():
            raise InvalidJob(
                f"there is no folder {str(folder)!r}; give that of a tokenizer with a chat "
                "template, as save_pretrained of transformers writes it, relative to the job file"
                f"{from_the_hub(folder, WHOLE)}",
                key="tokenizer",
            )
        config = read_json(folder / "tokenizer_config.json")
        path = folder / "tokenizer.json"
        data = read_tokenizer(path)
        self.tokenizer: Tokenizer = parse_tokenizer(data, path, user, extra)
        self.source, place = _source(folder, file, config)
        self.special = _special_tokens(folder, config)
        self.added = frozenset(self.tokenizer.get_added_tokens_decoder())
        self.pad_id = self._pad_id(folder)
        self._variables = dict(variables or {})
        self.marks_answers = bool(re.search(r"{%[-+]?\s*generation\b", self.source))
        self._template = _compiled(self.source, place, user, extra)
        self.hashes = {
            name: hashlib.sha256(content).hexdigest()
            for name, content in (
                ("tokenizer", data),
                ("chat_template", self.source.encode()),
                ("special_tokens", json.dumps(self.special, sort_keys=True).encode()),
            )
        }
        """What decides tokens, by its name: a part of the job's identity."""

    def write(self, messages: Sequence[Message], *, prompt: bool = False) -> Written:
        """Return a conversation as the template writes it.

        Args:
            messages: Its turns.
            prompt: With the start of another answer, as a model is asked for one.

        Raises:
            ValueError: The template refuses it, or it holds noncharacters.
        """
        from jinja2 import TemplateError

        if self.marks_answers:
            _check_unmarked(messages)
        try:
            text: str = self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=prompt,
                **{**self.special, **self._variables},
            )
        except (TemplateError, *_OF_TEMPLATES) as error:
            said = error if isinstance(error, TemplateError) else error_line(error, 300)
            raise ValueError(
                f"the chat template refuses this conversation: {said}; what the template needs "
                "beside it is given by template_args"
            ) from error
        if not self.marks_answers:
            return Written(text, None)
        return _unmarked(text)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of what `write` gave; special tokens are in it already.

        Raises:
            ValueError: The text is not Unicode.
        """
        # Without character offsets, which cost a third of the time.
        try:
            [encoding] = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except TypeError:
            check_unicode(text)
            raise
        found: list[int] = encoding.ids
        return found

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of what `write` gave, with the places of a template that marks answers.

        Raises:
            ValueError: The text is not Unicode.
        """
        if not self.marks_answers:
            return Tokens(self.ids(text), None)
        try:
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            check_unicode(text)
            raise
        return Tokens(encoding.ids, encoding.offsets)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return from which character to which each of `ids(text)` goes."""
        found: list[tuple[int, int]] = self.tokenizer.encode(text, add_special_tokens=False).offsets
        return found

    def _pad_id(self, folder: Path) -> int:
        for name in ("pad_token", "eos_token"):
            token = self.special.get(name)
            found = None if token is None else self.tokenizer.token_to_id(token)
            if found is not None:
                return int(found)
        raise InvalidJob(
            f"the tokenizer in {str(folder)!r} has neither a pad_token nor an eos_token in its "
            "vocabulary: name one of them in its tokenizer_config.json",
            key="tokenizer",
        )


def _source(folder: Path, file: Path | None, config: Mapping[str, Any]) -> tuple[str, Path]:
    """Return the template's text, and the file that it stands in."""
    beside = folder / "chat_template.jinja"
    if file is not None:
        return _text(file, "chat_template"), file
    if beside.is_file():
        return _text(beside, "tokenizer"), beside
    found, place = config.get("chat_template"), folder / "tokenizer_config.json"
    for name in ("chat_template.json", "processor_config.json"):  # as processors were saved
        if not found:
            place = folder / name
            found = read_json(place).get("chat_template")
    if isinstance(found, list):  # several by name
        named = [each for each in found if isinstance(each, Mapping)]
        found = next((one.get("template") for one in named if one.get("name") == "default"), None)
    if isinstance(found, str) and found:
        return found, place
    raise InvalidJob(
        f"the tokenizer in {str(folder)!r} has no chat template: give the folder of one that has, "
        "as save_pretrained of transformers writes it, or a file by chat_template",
        key="tokenizer",
    )


def _text(path: Path, key: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8; convert it"
        raise InvalidJob(
            f"the chat template {str(path)!r} cannot be read: {said}", key=key
        ) from None


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens by their names, as templates use them."""
    found = {}
    for place in (read_json(folder / "special_tokens_map.json"), config):
        for name in _SPECIAL:
            token = place.get(name)
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str):
                if not _is_unicode(text):
                    raise InvalidJob(
                        f"{name} of the tokenizer in {str(folder)!r} is {text[:50]!a}, which "
                        "is not Unicode: write it again, as save_pretrained of transformers does",
                        key="tokenizer",
                    )
                found[name] = text
    return found


def _is_unicode(text: str) -> bool:
    """Tell whether a text holds no half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _compiled(source: str, place: Path, user: str, extra: str) -> Any:
    try:
        from jinja2 import TemplateSyntaxError, nodes
        from jinja2.exceptions import TemplateError
        from jinja2.ext import Extension
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise MissingExtra(
            f"the processor {user} needs the package jinja2; "
            f"install it with: pip install 'penstock[{extra}]'",
            package="jinja2",
            extra=extra,
        ) from None

    class GenerationMarks(Extension):  # type: ignore[misc,unused-ignore]
        """Writes marks around `{% generation %} ... {% endgeneration %}`."""

        tags = {"generation"}  # noqa: RUF012  # as jinja's own have it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            marks = (
                nodes.Output([nodes.TemplateData(mark)]).set_lineno(line) for mark in (OPEN, CLOSE)
            )
            return [next(marks), *body, next(marks)]

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationMarks, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        source.encode()
        return environment.from_string(source)
    except (UnicodeEncodeError, RecursionError, SyntaxError) as error:
        # Half a surrogate pair; brackets that are nested more deeply than Python can follow.
        raise InvalidJob(
            f"the chat template in {str(place)!r} cannot be parsed ({error_line(error, 300)}): "
            "write it again, as save_pretrained of transformers does",
            key="tokenizer",
        ) from None
    except TemplateSyntaxError as error:
        raise InvalidJob(
            f"line {error.lineno} of the chat template in {str(place)!r} cannot be parsed: "
            f"{error.message}",
            key="tokenizer",
        ) from None


def _check_unmarked(messages: Sequence[Message]) -> None:
    """Refuse a conversation that holds the marks of answers: it could mark text as one.

    Raises:
        ValueError: Says which it holds.
    """
    for text in _texts(messages):
        for mark in (OPEN, CLOSE):
            if mark in text:
                raise ValueError(
                    f"the conversation holds the noncharacter U+{ord(mark):04X}, which marks "
                    "answers while the template runs: take it out of the data"
                )


def _texts(held: Any) -> Iterator[str]:
    """Yield all texts in lists and dicts, names included."""
    waiting, seen = [held], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif id(value) in seen:
            continue  # a source of objects may give one that holds itself
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += value
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value


def _unmarked(text: str) -> Written:
    """Return the text without marks, and where they were."""
    pieces: list[str] = []
    answers: list[tuple[int, int]] = []
    length, begun = 0, None
    for piece in _pieces(text):
        if piece == OPEN and begun is None:
            begun = length
        elif piece == CLOSE and begun is not None:
            answers.append((begun, length))
            begun = None
        elif piece in (OPEN, CLOSE):
            raise ValueError(
                "the chat template has a {% generation %} block within another one, or holds the "
                f"noncharacter U+{ord(piece):04X}: take it out of the template"
            )
        else:
            pieces.append(piece)
            length += len(piece)
    return Written("".join(pieces), answers)


def _pieces(text: str) -> list[str]:
    found: list[str] = []
    for number, part in enumerate(text.split(OPEN)):
        if number:
            found.append(OPEN)
        for inner, piece in enumerate(part.split(CLOSE)):
            if inner:
                found.append(CLOSE)
            found.append(piece)
    return found
