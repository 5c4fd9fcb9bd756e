"""Conversations to token ids, by a model's chat template, with labels on the answers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import (
    PATH,
    AtLeast,
    FilePath,
    NamesByNames,
    OfType,
    OneOf,
    declared,
)
from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors.answer_finder import NOT_FOUND, UNMATCHED, AnswerFinder
from penstock.server.roles.processors.answer_tokens import Span
from penstock.server.roles.processors.chat_template import ChatTemplate
from penstock.server.roles.processors.tokenizer_file import no_column
from penstock.server.roles.processors.turns import ConversationTurns
from penstock.server.roles.samples import RawItem, Sample

NO_LOSS = -100
COLUMNS = ("messages", "conversations")


@declared
class ChatProcessor(RawItemProcessor):
    """Turn a conversation into token ids, with labels on the assistant's turns.

    Gives, for a conversation of t tokens:

    * `input_ids`: int32 (t,), the whole conversation by the model's chat template.
    * `labels`: int32 (t,), the ids of the answers and of the token that ends each; else -100.
    * `token_mask`: bool (t,), True where there is a label.
    * `pad_token_id`: int, the tokenizer's, or that of its end: collators pad with it.

    A conversation is a list of `{"role": ..., "content": ...}`, as of OpenAI, or of `{"from": ...,
    "value": ...}`, as of ShareGPT, or the JSON text of one. System turns are kept. It is tokenized
    once; which tokens are answers is known by `{% generation %}` where the template has it, else by
    the tokens that the template writes around answers.

    An item without a conversation is filtered, under the reason `null`; one without an answer under
    `no answer`.

    Args:
        tokenizer: A tokenizer's folder with a chat template, as `save_pretrained` of transformers
            writes it. The content of its files is part of the job's identity, its path is not.
        column: The column that holds the conversation. None = `messages`, else `conversations`.
        chat_template: A file with a template in place of the folder's own.
        template_args: What else the template is given, such as `enable_thinking`. It cannot ask for
            today's date: give it a `date_string`.
        roles: Further names of speakers, each with the role that the template knows:
            `{observation: tool}`. Known are human, gpt, chatgpt, bot and model beside user,
            assistant, system, developer, tool and function.
        tags: The names that turns use where they are others: `role_tag` and `content_tag`, the
            keys, `user_tag`, `assistant_tag` and `system_tag`, the speakers.
        unknown_roles: What becomes of a turn by another speaker. `error`: the item is a bad item.
            `skip`: the turn is left out.
        unmatched: What becomes of a conversation whose answers are not found among its tokens, as
            the template ends them by no token of its own, or the texts hold such tokens. `error`:
            it is a bad item. `skip`: it is filtered, as `answers not found`. `search`: the texts of
            the answers are looked for, and the batch counts them under `searched_answers`; if one
            is not there it is a bad item.
        max_length: The most tokens of a conversation. None = any number, and the batcher decides.
        overlong: What becomes of a longer one. `drop`: it is filtered, as `overlong`. `truncate`:
            it is cut on the right, after its labels are made, and filtered as `overlong` if no
            label is left. `error`: it is a bad item.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "chat"
    version: ClassVar[int | str | None] = 1
    uses_global_rng: ClassVar[bool] = False
    path_params: ClassVar[tuple[str, ...]] = ("tokenizer", "chat_template")

    tokenizer: Annotated[FilePath, OfType(PATH, "a path")]
    column: str | None = None
    chat_template: Annotated[FilePath | None, OfType(PATH, "a path")] = None
    template_args: Annotated[dict[str, Any] | None, OfType((Mapping,), "values by names")] = None
    roles: Annotated[
        dict[str, str] | None, NamesByNames("names by names, such as {observation: tool}")
    ] = None
    tags: Annotated[
        dict[str, str] | None, NamesByNames("names by names, such as {role_tag: speaker}")
    ] = None
    unknown_roles: Annotated[str, OneOf(("error", "skip"))] = "error"
    unmatched: Annotated[str, OneOf(UNMATCHED)] = "error"
    max_length: Annotated[int | None, AtLeast(1, "the tokens of a conversation")] = None
    overlong: Annotated[str, OneOf(("drop", "truncate", "error"))] = "drop"

    def __post_init__(self) -> None:
        folder = Path(self.tokenizer)
        self.folder = folder.parent if folder.name == "tokenizer.json" else folder
        self.template_file = None if self.chat_template is None else Path(self.chat_template)
        self.columns = COLUMNS if self.column is None else (self.column,)
        self.turns = ConversationTurns(self.roles, self.tags, self.unknown_roles)
        self._template: ChatTemplate | None = None
        self._finder: AnswerFinder

    def content(self) -> dict[str, str]:
        """Return hashes of the tokenizer, the template and the special tokens, after checking them.

        Raises:
            InvalidJob: As `setup`: a job with a wrong tokenizer ends before any worker starts.
            MissingExtra: The package `tokenizers` or `jinja2` is not installed.
        """
        return self._load().hashes

    def setup(self) -> None:
        """Load the tokenizer and its template; otherwise the first `process` does so.

        Raises:
            InvalidJob: There is no tokenizer or no template, or it has no token to pad with.
            MissingExtra: The package `tokenizers` or `jinja2` is not installed.
        """
        self._load()

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without the column.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        if self.keeps(ChatProcessor, "process") and not any(
            name in columns for name in self.columns
        ):
            raise no_column(self.columns[0], columns)

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the four keys that samples have, unless a subclass makes other ones."""
        if not self.keeps(ChatProcessor, "process"):
            return None
        return ["input_ids", "labels", "token_mask", "pad_token_id"]

    def process(self, raw: RawItem, context: ProcessContext) -> Sample | None:
        """Return the sample of a conversation, or None if there is nothing to learn in it.

        Raises:
            InvalidJob: The item has no such column, or the tokenizer is not fit (see `setup`).
            TypeError: The column holds no conversation.
            ValueError: A turn, the template or a rule refuses the conversation.
        """
        template = self._load()
        conversation = self._conversation(raw, context.item)
        if conversation is None:
            context.skip("null")
            return None
        messages = self.turns.messages(conversation)
        expected = sum(message["role"] == "assistant" for message in messages)
        if not expected:
            context.skip("no answer")
            return None
        written = template.write(messages)
        tokens = template.tokens(written.text)
        found = self._finder.find(messages, written, tokens, expected)
        if found is None:
            context.skip(NOT_FOUND)
            return None
        sample = self._sample(tokens.ids, found.spans, template.pad_id, context)
        if sample is not None and found.searched:
            sample["noted"] = {"searched_answers": expected}
        return sample

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones included.

        Raises:
            InvalidJob: The tokenizer is missing or not one (see `setup`).
            MissingExtra: The package `tokenizers` is not installed.
        """
        return str(self._load().tokenizer.decode(list(ids), skip_special_tokens=False))

    def _load(self) -> ChatTemplate:
        if self._template is None:
            loaded = ChatTemplate(self.folder, self.template_file, self.template_args)
            self._finder = AnswerFinder(loaded, self.unmatched, self.folder)
            self._template = loaded
        return self._template

    def _conversation(self, raw: RawItem, item: ItemRef) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        for name in self.columns:
            if name in raw:
                return raw[name]
        raise no_column(self.columns[0], raw, item)

    def _sample(
        self, ids: Sequence[int], answers: Sequence[Span], pad_id: int, context: ProcessContext
    ) -> Sample | None:
        length = len(ids)
        if self.max_length is not None and length > self.max_length:
            if self.overlong == "error":
                raise ValueError(
                    f"the conversation has {length} tokens, and max_length is {self.max_length}; "
                    "raise it, or set overlong to drop or truncate"
                )
            if self.overlong == "drop":
                context.skip("overlong")
                return None
            length = self.max_length
        chosen = np.zeros(len(ids), dtype=bool)
        for start, stop in answers:
            chosen[start:stop] = True
        chosen = chosen[:length]
        if not chosen.any():
            context.skip("overlong" if length < len(ids) else "no answer")
            return None
        input_ids = np.array(ids[:length], dtype=np.int32)
        return {
            "input_ids": input_ids,
            "labels": np.where(chosen, input_ids, np.int32(NO_LOSS)),
            "token_mask": chosen,
            "pad_token_id": pad_id,
        }
