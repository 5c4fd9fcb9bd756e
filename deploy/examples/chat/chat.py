"""A processor for conversations: tokens of all turns, loss on the assistant's only."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from penstock.server.roles import RawItemProcessor

NO_LOSS = -100


class Chat(RawItemProcessor):
    """Turn `{"messages": [{"role", "content"}, ...]}` into `input_ids` and `labels`, int64 (t,).

    Args:
        tokenizer: Path of a `tokenizer.json`, relative to the job file.
        end: The token of its vocabulary behind every turn.
    """

    version = 1  # raise it when the same conversation would give other tokens
    path_params = ("tokenizer",)
    uses_global_rng = False

    def __init__(self, tokenizer: str, end: str = "<eos>") -> None:
        self.tokenizer, self.end = tokenizer, end

    def setup(self) -> None:
        """Load the tokenizer, once in each worker."""
        self.encoder = Tokenizer.from_file(self.tokenizer)
        self.end_id = self.encoder.token_to_id(self.end)
        if self.end_id is None:
            raise ValueError(f"{self.tokenizer} has no token {self.end!r}")

    def process(self, raw: Mapping[str, Any], context: Any) -> dict[str, Any] | None:
        """Return one conversation as one document."""
        ids: list[int] = []
        labels: list[int] = []
        for message in raw["messages"]:
            head = self.encoder.encode(f"{message['role']}: ").ids
            turn = [*self.encoder.encode(message["content"]).ids, self.end_id]
            is_answer = message["role"] == "assistant"
            ids += head + turn
            labels += [NO_LOSS] * len(head) + (turn if is_answer else [NO_LOSS] * len(turn))
        if all(label == NO_LOSS for label in labels):
            context.skip("no answer")
            return None
        return {"input_ids": np.array(ids), "labels": np.array(labels)}
