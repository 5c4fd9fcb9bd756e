"""Every shipped role with every other: the combinations that resume is proven on.

`every_pair` chooses a few hundred combinations in which each two roles meet that can; `product`
gives all of them. What cannot meet says why, and a test holds penstock to refusing it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from resume.written import BLOCKED, IN_EPISODES, PARTS, SOURCES, STREAMS, TYPES, source

Settings = dict[str, Any]

IDS = ("tokens", "megatron")
"""Sources of token ids: here those of a text, and 0 at its end."""

TEXTS = {"csv": "text", "text": "text", "webdataset": "txt"}
"""Sources of texts without token ids beside them, with the column of the text."""


CHATS = ("chat", "conversation")
"""Processors of conversations."""

FILES = {"image": "pictures", "sound": "sounds", "video": "videos"}
"""Processors of files, and the folders in which these lie; both are named by the same column."""

CUTTING = ("split", "truncate")
"""What batchers may do to samples that are too long; none of those does to `WHOLE` ones."""

WHOLE = ("conversation", "sound", "video")
"""Processors of samples that count more than tokens."""


class Combination(NamedTuple):
    """Roles that make a job, by their names in job files, and when its lanes end."""

    source: str
    distributor: str
    processor: str
    batcher: str
    collator: str
    end: str

    @property
    def has_ids(self) -> bool:
        """Tell whether samples have `input_ids`."""
        return not (self.processor in ("identity", *FILES) and self.source in TEXTS)

    @property
    def is_even(self) -> bool:
        """Tell whether its samples are of one length: the collator stacks them."""
        return self.collator == "default"

    @property
    def row(self) -> int:
        """Return the tokens of a row: ragged samples may be longer, of even ones some make a row.

        So no even sample is cut, by the batchers that cut.
        """
        if self.processor in CHATS:
            return 2 * 35 if self.is_even else 80
        ends = self.processor == "tokenize" or self.source in IDS
        return 3 * (9 + ends) if self.is_even else 32


Variants = list[Callable[[Combination], Settings | None]]
"""What else a job says of a role: its forms come in turns. None = this one does not go here."""


def _plain(*variants: Settings) -> Variants:
    return [lambda _, variant=variant: variant for variant in variants]


def _packs(*variants: Settings) -> Variants:
    """Return the forms of a batcher that fills rows of tokens."""

    def form(variant: Settings, roles: Combination) -> Settings | None:
        if roles.processor in WHOLE and variant.get("overlong") in CUTTING:
            return None
        limit = "max_sequence_length" if "max_sequence_length" in variant else "max_tokens"
        found = {**variant, limit: roles.row}
        return found if roles.has_ids else {**found, "length_key": TEXTS[roles.source]}

    return [lambda roles, variant=variant: form(variant, roles) for variant in variants]


def _counts(variant: Settings) -> Callable[[Combination], Settings]:
    return lambda roles: (
        variant if roles.has_ids else {**variant, "length_key": TEXTS[roles.source]}
    )


def _part(roles: Combination, part: str, weight: int) -> Any:
    if roles.source not in STREAMS:
        return weight
    draws = {"type": "iterable", "source": part, "buffer_size": 3}
    return {"weight": weight, "distributor": draws}


def _mixture(by: str, *, is_nested: bool = False) -> Callable[[Combination], Settings | None]:
    def form(roles: Combination) -> Settings | None:
        if by == "tokens" and not roles.has_ids and roles.batcher not in LENGTHS:
            return None
        parts = {part: _part(roles, part, 2 - n) for n, part in enumerate(PARTS)}
        if is_nested:
            inner = {"type": "mixture", "parts": parts, "weights_by": "items"}
            parts = {"all": {"weight": 1, "distributor": inner}}
        return {"parts": parts, "weights_by": by}

    return form


def _blocks(roles: Combination) -> Settings | None:
    return {"shuffle": "blocks", "window_blocks": 2} if roles.source in BLOCKED else None


def _full(roles: Combination) -> Settings | None:
    return None if roles.source in BLOCKED else {"shuffle": "full"}


def _of_picture(roles: Combination) -> Settings:
    if roles.is_even:
        return {"flip": 0.5, "layout": "CHW"}
    if roles.collator in ("padded", "packed", "vlm"):  # which stack what is no sequence
        return {"transform": "./roles.py:corner", "transform_takes": "array"}
    return {"decoder": "pillow"}


DISTRIBUTORS: dict[str, Variants] = {
    "map": [
        _full,
        _blocks,
        *_plain({"shuffle": "none"}, {"sample_ratio": 1.4, "resample": True}),
    ],
    "mixture": [_mixture("items"), _mixture("tokens"), _mixture("tokens", is_nested=True)],
    "rank_partitioned": [
        lambda roles: {"parts": {part: _part(roles, part, 1) for part in PARTS}},
    ],
    "episodes": _plain(
        {"pool": 2, "episode_column": "episode"},
        {"stride": 2, "frames": "in_order", "episode_column": "episode"},
        {"weights": {"episodes": {"0": 1.5}}, "episode_column": "episode", "source": "one"},
        {"shuffle": False, "drop_last_n": 1, "episode_column": "episode", "source": "two"},
    ),
    "iterable": _plain({"source": "one", "buffer_size": 5}, {"source": "two"}),
}

PROCESSORS: dict[str, Variants] = {
    "identity": _plain({}),
    "tokenize": [
        lambda roles: {
            "tokenizer": "tokenizer.json",
            "column": TEXTS.get(roles.source, "text"),
            "append": "<eos>",
        }
    ],
    "chat": [
        lambda roles: {
            "tokenizer": "chat",
            "column": {"text": "text", "webdataset": "json"}.get(roles.source, "messages"),
        }
    ],
    "image": [
        lambda roles: {
            "column": {"text": "text", "webdataset": "png"}.get(roles.source, "picture"),
            "columns": [TEXTS.get(roles.source, "input_ids")],
            **_of_picture(roles),
        }
    ],
    "sound": [
        lambda roles: {
            "column": {"text": "text", "webdataset": "wav"}.get(roles.source, "picture"),
            "columns": [TEXTS.get(roles.source, "input_ids")],
            "dtype": "int16",
        }
    ],
    "video": [
        lambda roles: {
            "column": {"text": "text", "webdataset": "avi"}.get(roles.source, "picture"),
            "columns": [TEXTS.get(roles.source, "input_ids")],
            # Few enough that they are closed, and frames that are held.
            "decoders": 2,
            "frame_bytes": 4_000,
        }
    ],
    "conversation": [
        lambda roles: {
            "tokenizer": "kimi",
            "column": {"text": "text", "webdataset": "json"}.get(roles.source, "messages"),
            # Two layouts of packed rows can hide its tokens.
            "fake_image": roles.collator != "packed",
        }
    ],
    "function": _plain({}),
}

BATCHERS: dict[str, Variants] = {
    "simple": _plain({"batch_size": 3}, {"batch_size": 2, "drop_last": True}),
    "sequential": [
        *_packs(
            {"max_sequence_length": 0, "lookahead_limit": 3},
            {"max_sequence_length": 0, "lookahead_limit": 2, "rows": 2},
        ),
        _counts({"max_samples_per_batch": 4, "lookahead_limit": 2}),
    ],
    "pool": _packs({"pool_size": 5, "max_batch_size": 3}, {"pool_size": 4, "max_batch_size": None}),
    "best_fit": _packs(
        {"pool_size": 6, "overlong": "split"},
        {"pool_size": 7, "overlong": "truncate", "rows": 2},
        {"pool_size": 4, "overlong": "drop"},
        {"pool_size": 5, "overlong": "alone"},
        {"pool_size": 5, "overlong": "error"},
    ),
    "first_fit": _packs({"open_rows": 3, "rows": 2}, {"open_rows": 5, "overlong": "split"}),
    "next_fit": _packs({}, {"overlong": "truncate"}),
    "open_best_fit": _packs({"open_rows": 4, "overlong": "truncate"}, {"open_rows": 2}),
    "balanced": _packs({"open_rows": 3}),
    "knapsack": _packs(
        {"window": 6, "packing_ratio": 0.9},
        {"window": 7, "drop_long_samples": True, "max_packs": 3},
    ),
    "best_fit_decreasing": _packs({"window": 8, "rows": 2}, {"window": 5}),
    "window": _packs({"window": 5}, {"window": 4, "sort": True, "sort_over": 8}),
    "concat": _packs({}, {"rows": 2}),
    "user's": _plain({}),
}

LENGTHS = tuple(name for name in BATCHERS if name not in ("simple", "user's"))
"""Batchers that may be told which value's length is a sample's size."""


SEQUENCES = {"sound": ["sound"], "video": ["video", "frame_numbers", "frame_times"]}
"""What the collator `padded` is told of samples that differ in length, by processor."""


def _padded(variant: Settings) -> Callable[[Combination], Settings]:
    return lambda roles: (
        {**variant, "sequences": SEQUENCES[roles.processor]}
        if roles.processor in SEQUENCES
        else variant
    )


def _layout(name: str) -> Callable[[Combination], Settings | None]:
    def form(roles: Combination) -> Settings | None:
        learns = name != "seams" or roles.processor not in CHATS
        return {"layout": name} if learns else None

    return form


COLLATORS: dict[str, Variants] = {
    "default": _plain({}),
    "padded": [
        _padded({}),
        _padded({"labels": "shifted", "pad_to_multiple_of": 8, "mask_dtype": "bool"}),
    ],
    "packed": [_layout(name) for name in ("flash", "megatron", "thd", "indexed", "neat", "seams")],
    "lists": _plain({}),
    "vlm": _plain({}, {"layout": "indexed"}),
    "function": _plain({}),
}

ENDS: dict[str, int | None] = {"endless": None, "two epochs": 2}

FACTORS: dict[str, Mapping[str, Any]] = {
    "source": SOURCES,
    "distributor": DISTRIBUTORS,
    "processor": PROCESSORS,
    "batcher": BATCHERS,
    "collator": COLLATORS,
    "end": ENDS,
}

Roles = dict[str, str]
"""Some of the roles of a combination, by factor."""

Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two roles, each a factor with a name; in the order of the factors."""


# --- what there is ---


def why_not(roles: Roles) -> str | None:
    """Return why there is no job of some roles; None = nothing speaks against it."""
    kind, processor = roles.get("source"), roles.get("processor")
    distributor, collator = roles.get("distributor"), roles.get("collator")
    if kind is not None and distributor == "iterable" and kind not in STREAMS:
        return "iterable deals the shards of a stream, and these sources give items by number"
    if kind in STREAMS and distributor == "map":
        return "map draws items by number, and a stream has none"
    if kind is not None and distributor == "episodes" and kind not in IN_EPISODES:
        return "episodes needs items by number, and a column that names their episode"
    if kind in IDS and processor in ("tokenize", *FILES, *CHATS):
        return "items are token ids already, without a text, a file or a conversation"
    if processor in ("conversation", *FILES) and roles.get("batcher") == "concat":
        return "concat cuts documents, and pictures, sounds and videos are not cut"
    if processor in SEQUENCES and collator == "vlm":
        return "vlm stacks what is neither tokens nor pictures, and these differ in length"
    if (
        kind in TEXTS
        and processor in ("identity", *FILES)
        and collator in ("padded", "packed", "vlm")
    ):
        return "items are texts alone, and the collator needs token ids"
    return None


def product() -> Iterator[Combination]:
    """Yield every combination that there is."""
    for roles in itertools.product(*FACTORS.values()):
        found = Combination(*roles)
        if why_not(found._asdict()) is None:
            yield found


def pairs() -> Iterator[Pair]:
    """Yield each two roles of different kinds, whether or not a job has both."""
    for one, other in itertools.combinations(FACTORS, 2):
        for a, b in itertools.product(FACTORS[one], FACTORS[other]):
            yield (one, a), (other, b)


def every_pair() -> list[Combination]:
    """Return combinations in which each two roles of different kinds meet, if any job has both.

    Greedy, as in Cohen et al., "The AETG system" (IEEE TSE 23(7), 1997), without its randomness:
    from a pair that is not met yet, each further role is one that meets most new ones; of several
    that with which the roles so far have met least often.
    """
    levels = {name: list(found) for name, found in FACTORS.items()}
    missing = dict.fromkeys(
        pair for pair in pairs() if _completed(dict(pair), levels, (), Counter()) is not None
    )
    found: list[Combination] = []
    met: Counter[Pair] = Counter()
    while missing:
        roles = _completed(dict(next(iter(missing))), levels, missing, met)
        assert roles is not None
        found.append(Combination(**roles))
        for pair in itertools.combinations(found[-1]._asdict().items(), 2):
            missing.pop(pair, None)
            met[pair] += 1
    return found


def _completed(
    roles: Roles,
    levels: Mapping[str, list[str]],
    missing: Collection[Pair],
    met: Mapping[Pair, int],
) -> Roles | None:
    """Return some roles with those that are not given yet; None = no job has these."""
    if why_not(roles) is not None:
        return None
    factor = next((name for name in levels if name not in roles), None)
    if factor is None:
        return roles

    def worth(level: str) -> tuple[int, int]:
        added = {**roles, factor: level}
        names = [name for name in levels if name in added]
        with_it = [
            ((one, added[one]), (other, added[other]))
            for one, other in itertools.combinations(names, 2)
            if factor in (one, other)
        ]
        return sum(pair in missing for pair in with_it), -sum(map(met.__getitem__, with_it))

    for level in sorted(levels[factor], key=worth, reverse=True):
        found = _completed({**roles, factor: level}, levels, missing, met)
        if found is not None:
            return found
    return None


# --- what a job file says of it ---


def jobs(combinations: list[Combination]) -> list[Settings]:
    """Return what job files say of combinations: where a role has several forms, in turns."""
    turns: Counter[tuple[str, str]] = Counter()
    found = []
    for number, roles in enumerate(combinations):
        forms: dict[str, Settings] = {}
        for factor in ("distributor", "processor", "batcher", "collator"):
            name = getattr(roles, factor)
            variants = FACTORS[factor][name]
            while True:
                turn = turns[factor, name] % len(variants)
                turns[factor, name] += 1
                if (form := variants[turn](roles)) is not None:
                    break
            forms[factor] = form
        found.append(_job(roles, forms, number))
    return found


def _job(roles: Combination, forms: Mapping[str, Settings], number: int) -> Settings:
    kind = "even" if roles.is_even else "ragged"
    lines = "chats" if roles.processor in CHATS else "texts"
    if roles.processor in FILES:
        lines = "pictures"
    job: Settings = {
        "seed": number,
        "lanes": 3,
        "snapshot_every": 4,
        "on_item_error": "quarantine",
        "epochs": ENDS[roles.end],
        "distributor": {"type": roles.distributor, **forms["distributor"]},
        "batcher": {"type": TYPES.get(roles.batcher, roles.batcher), **forms["batcher"]},
        "collator": {"type": roles.collator, **forms["collator"]},
    }
    if roles.distributor == "map":
        job["source"] = source(roles.source, kind, "one", lines)
    else:
        job["sources"] = {part: source(roles.source, kind, part, lines) for part in PARTS}
    if roles.collator == "function":
        job["collator"] = {"function": "./roles.py:collate"}
    if roles.processor == "function":
        job["function"] = "./roles.py:to_samples"
    else:
        job["processor"] = {"type": roles.processor, **forms["processor"]}
    if roles.processor in FILES:
        job["media"] = {"dir": f"{FILES[roles.processor]}/{kind}", "endings": ["p"]}
    return job


__all__ = [
    "FACTORS",
    "TEXTS",
    "Combination",
    "Pair",
    "Roles",
    "every_pair",
    "jobs",
    "pairs",
    "product",
    "why_not",
]
