"""Processors beside each other: what an item costs in a worker, and beside a bare tokenizer.

Items are every 32nd document of the standard library, which lie in memory, in many short rounds.
They go the way that they go in a worker: fetched 16 at a time, each with a context, generators
seeded where the processor has not promised to draw nothing. `chat` gets a document as turns of
2,000 characters by user and assistant in alternation; each of its templates has answers found in
another way. Tokens are counted as the processor gives them.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from support import (
    ROUNDS,
    Column,
    Rounds,
    compare,
    corpus,
    interleaved,
    median,
    middle,
    ratio,
    spread,
)

from penstock.server.core.refs import ItemRef
from penstock.server.job import Job
from penstock.server.pipeline.processing import Filtered, ProcessedItems
from penstock.server.pipeline.verdicts import Bad
from penstock.server.roles import IndexedSource, RawItemProcessor
from penstock.server.roles.processors import (
    ChatProcessor,
    FunctionProcessor,
    IdentityProcessor,
    TokenizeProcessor,
)

EVERY, AT_ONCE, TURN = 32, 16, 2000
SHORT = 4
"""Rounds in place of one: the speed of a machine changes within seconds, and ratios shall not."""
BARE = "bare, a text at a time"
REPEATS = 40
"""How often ready ids are processed in a round: alone they are done too soon to be timed."""

END = "<|im_end|>"
TURNS = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"  # noqa: E501 - one line, as templates keep their line breaks
MARKED = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"  # noqa: E501
PLAIN = "{% for m in messages %}{{ m.role.upper() + ': ' + m.content + '\\n' }}{% endfor %}"


class Held(IndexedSource):
    """Items that lie in memory; each fetch gives dicts of their own.

    Args:
        items: The items.
    """

    version = 1
    gives_fresh_items = True

    def __init__(self, items: Sequence[dict[str, Any]]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def fetch(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return copies of the items."""
        return [dict(self.items[index]) for index in indices]


def as_it_is(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is; for all that penstock knows, it may draw random numbers."""
    return raw


def without_drawing(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is, and promise to draw nothing."""
    return raw


without_drawing.uses_global_rng = False  # type: ignore[attr-defined]


def run() -> None:
    """Print the table."""
    from tokenizers import Tokenizer

    data = corpus()
    files = sorted((data / "corpus").glob("*.parquet"))
    texts = [text for file in files for text in pq.read_table(file)["text"].to_pylist()][::EVERY]
    texts = [text for text in texts if text]
    file = data / "tokenizer.json"
    bare = Tokenizer.from_file(str(file))
    ids = [
        {"input_ids": np.array(one.ids, np.int32)}
        for one in bare.encode_batch_fast(texts, add_special_tokens=False)
    ]
    as_text = [{"text": text} for text in texts]
    turned = [{"messages": _turns(text)} for text in texts]
    with tempfile.TemporaryDirectory() as name:

        def chat(template: str, **more: Any) -> ChatProcessor:
            folder = Path(tempfile.mkdtemp(dir=name))
            return ChatProcessor(str(_chat_folder(folder, file, template)), **more)

        ways: dict[str, Callable[[], Mapping[str, float]]] = {
            BARE: partial(_bare, bare, texts, 1),
            "bare, 64 at a time": partial(_bare, bare, texts, 64),
            "bare, with offsets": partial(_bare, bare, texts, 1, fast=False),
            "tokenize": partial(_once, TokenizeProcessor(file), as_text),
            "tokenize, append": partial(_once, TokenizeProcessor(file, append="<eos>"), as_text),
            "chat, generation marks": partial(_once, chat(MARKED), turned),
            "chat, tokens around answers": partial(_once, chat(TURNS), turned),
            "chat, search": partial(_once, chat(PLAIN, unmatched="search"), turned),
        }
        of_text = list(ways)
        ways |= {
            "identity": partial(_once, IdentityProcessor(), ids, REPEATS),
            "function": partial(_once, FunctionProcessor(as_it_is), ids, REPEATS),
            "function, draws nothing": partial(
                _once, FunctionProcessor(without_drawing), ids, REPEATS
            ),
        }
        results = interleaved(ways, SHORT * ROUNDS)
    compare(
        f"Processors: {len(texts)} documents of {sum(map(len, texts)) / 1e6:.1f} M characters, "
        f"CPU time, medians and ranges of {SHORT * ROUNDS} rounds",
        "processor",
        results,
        Column(("us an item",), lambda results, way: [_timed(results[way])]),
        middle("us per 1k tokens", "us_per_1k", ",.2f"),
        middle("M tokens/s", "tokens_per_us", ",.2f"),
        Column(
            ("of bare",),
            lambda results, way: [
                ratio(results, way, BARE, "tokens_per_us") if way in of_text else "-"
            ],
        ),
    )


def _timed(rounds: Rounds) -> str:
    form = ",.1f" if median(rounds, "us") < 100 else ",.0f"
    return f"{median(rounds, 'us'):{form}} ({spread(rounds, 'us', form)})"


def _turns(text: str) -> list[dict[str, str]]:
    """Return a text as a conversation that ends with an answer."""
    pieces = [text[start : start + TURN] for start in range(0, len(text), TURN)]
    pieces += ["go on"] * (len(pieces) % 2)
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": piece} for n, piece in enumerate(pieces)]


def _chat_folder(folder: Path, tokenizer: Path, template: str) -> Path:
    """Write the corpus's tokenizer with the tokens of turns, and a template."""
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(tokenizer))
    found.add_special_tokens(["<|im_start|>", END])
    found.save(str(folder / "tokenizer.json"))
    config = {"eos_token": END, "pad_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _bare(tokenizer: Any, texts: Sequence[str], at_once: int, fast: bool = True) -> Any:
    encode = tokenizer.encode_batch_fast if fast else tokenizer.encode_batch
    tokens = 0
    began = time.process_time()
    for start in range(0, len(texts), at_once):
        for one in encode(texts[start : start + at_once], add_special_tokens=False):
            tokens += len(np.array(one.ids, np.int32))
    return _figures(time.process_time() - began, len(texts), tokens)


def _once(
    processor: RawItemProcessor, items: Sequence[dict[str, Any]], repeats: int = 1
) -> Mapping[str, float]:
    job = Job(source=Held(items), processor=processor, batch_size=1)
    processed = ProcessedItems(job)
    processed.set_up()
    tokens = 0
    began = time.process_time()
    for epoch in range(repeats):
        for start in range(0, len(items), AT_ONCE):
            refs = [
                ItemRef("main", index, epoch)
                for index in range(start, min(start + AT_ONCE, len(items)))
            ]
            for outcome in processed.outcomes(refs, "draw"):
                if isinstance(outcome, Filtered | Bad):
                    raise RuntimeError(f"an item is not a sample: {outcome}")
                tokens += sum(len(sample["input_ids"]) for sample in outcome)
    return _figures(time.process_time() - began, repeats * len(items), tokens)


def _figures(seconds: float, items: int, tokens: int) -> dict[str, float]:
    return {
        "us": 1e6 * seconds / items,
        "us_per_1k": 1e9 * seconds / tokens,
        "tokens_per_us": tokens / (1e6 * seconds),
    }


if __name__ == "__main__":
    run()
