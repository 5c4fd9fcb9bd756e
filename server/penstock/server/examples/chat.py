"""A processor for conversations: the model's own chat template, loss on the assistant's turns only.

`penstockd init chats.jsonl --tokenizer FOLDER` copies this file beside the job file that it writes:
it is yours from then on, to change as your data needs it. It needs `transformers` and `jinja2`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.roles import ProcessContext, RawItemProcessor

NO_LOSS = -100

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}
"""What ShareGPT calls the speakers, as templates know them; other names stay as they are."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
"""The files of a tokenizer's folder that decide ids; they are part of the job's identity."""


class Chat(RawItemProcessor):
    """Turn a conversation into `input_ids` and `labels`, int64 (t,), t tokens.

    A conversation is a list of `{"role": ..., "content": ...}`, as of OpenAI, or of
    `{"from": ..., "value": ...}`, as of ShareGPT. One without an assistant's turn is left out.

    Args:
        tokenizer: A folder that `save_pretrained` wrote, with a chat template; relative to the job
            file.
        column: The column that holds the conversation.
    """

    version = 1  # raise it when the same conversation would give other tokens
    path_params = ("tokenizer",)
    uses_global_rng = False

    def __init__(self, tokenizer: str, column: str = "messages") -> None:
        self.tokenizer, self.column = tokenizer, column

    def content(self) -> dict[str, str]:
        """Return the hashes of the tokenizer's files: what they hold counts, not where they lie."""
        files = [Path(self.tokenizer) / name for name in FILES]
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
            if file.is_file()
        }

    def setup(self) -> None:
        """Load the tokenizer, once in each worker."""
        from transformers import AutoTokenizer

        self.encoder = AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True)
        if not self.encoder.chat_template:
            raise ValueError(f"the tokenizer in {self.tokenizer} has no chat template")

    def process(self, raw: Mapping[str, Any], context: ProcessContext) -> dict[str, Any] | None:
        """Return one conversation as one document."""
        messages = [as_message(turn) for turn in raw[self.column]]
        answers = [n for n, turn in enumerate(messages) if turn["role"] == "assistant"]
        if not answers:
            context.skip("no answer")
            return None
        if "{% generation" in self.encoder.chat_template:  # the template itself marks the answers
            encoded = self.encoder.apply_chat_template(
                messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
            )
            learned = np.array(encoded["assistant_masks"], dtype=bool)
        else:
            text = self.encoder.apply_chat_template(messages, tokenize=False)
            encoded = self.encoder(text, add_special_tokens=False, return_offsets_mapping=True)
            starts = np.array(encoded["offset_mapping"])[:, 0]
            learned = np.zeros(len(starts), dtype=bool)
            for number in answers:
                begin, end = self.span(messages, number, text)
                learned |= (starts >= begin) & (starts < end)
        ids = np.array(encoded["input_ids"], dtype=np.int64)
        return {"input_ids": ids, "labels": np.where(learned, ids, NO_LOSS)}

    def span(self, messages: list[dict[str, Any]], number: int, text: str) -> tuple[int, int]:
        """Return from where to where in the whole text a turn lies, its end token included.

        Raises:
            ValueError: The template writes earlier turns otherwise once there are later ones.
        """
        render = self.encoder.apply_chat_template
        before = render(messages[:number], tokenize=False, add_generation_prompt=True)
        until = render(messages[: number + 1], tokenize=False)
        if not (text.startswith(until) and until.startswith(before)):
            raise ValueError(
                f"the chat template writes turn {number} otherwise once there are later ones; mark "
                "answers in it with {% generation %} and {% endgeneration %}, or keep one answer "
                "per conversation"
            )
        return len(before), len(until)

    def decode(self, ids: list[int]) -> str:
        """Return text, for `penstockd show --text` and `check`."""
        return str(self.encoder.decode(ids, skip_special_tokens=False))


def as_message(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn as chat templates take it; keys without a value are left out."""
    if "from" in turn:
        role = str(turn["from"])
        return {"role": ROLES.get(role, role), "content": turn["value"]}
    return {name: value for name, value in turn.items() if value is not None or name == "content"}


__all__ = ["Chat", "as_message"]
