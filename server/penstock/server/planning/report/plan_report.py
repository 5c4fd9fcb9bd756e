"""All that `penstockd plan` says of a job, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.server.job.job import Job
from penstock.server.job.planned_batches import in_words
from penstock.server.planning.report.along import Along, along
from penstock.server.planning.report.figures import Figures, Processing
from penstock.server.planning.report.histograms import Bar, Spread
from penstock.server.planning.report.skew import Costs, RankSkew, skew
from penstock.server.planning.report.totals import BatchTotals
from penstock.wire.errors import InvalidJob
from penstock.wire.order import Tail, check_divides, divisors

FORMAT = 1
"""Version of the JSON: a name in it may be added, and none changes its meaning."""

MAX_WORLDS = 16
"""World sizes that are looked at where none are named: the divisors of G, the smallest first."""

DIGITS = 6
"""Of shares, as JSON has them."""


@dataclass(frozen=True)
class Packing:
    """How full the rows are.

    Attributes:
        tokens: In all batches.
        places: Tokens and padding.
        by_collator: As the collator pads; else it does not tell, and rows are taken to be padded to
            the longest of their batch.
    """

    tokens: int
    places: int
    by_collator: bool

    @classmethod
    def of(cls, tally: BatchTotals) -> Packing | None:
        """Return it for what was counted; None = sizes are not known."""
        if not tally.tokens:
            return None
        if tally.filled is not None:
            return cls(*tally.filled, by_collator=True)
        return cls(tally.tokens, tally.padded, by_collator=False)

    @property
    def padding(self) -> int:
        """Return the places without tokens."""
        return self.places - self.tokens

    @property
    def efficiency(self) -> float | None:
        """Return tokens divided by places; None where there are none."""
        return self.tokens / self.places if self.places else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "tokens": self.tokens,
            "padding_tokens": self.padding,
            "efficiency": _rounded(self.efficiency),
            "padded_to": "collator" if self.by_collator else "longest row",
        }


@dataclass(frozen=True)
class RankFigures:
    """What so many ranks meet.

    Attributes:
        world_size: W.
        micro_batches: The batches of a step for each rank.
        skews: By cost; None = there is no whole step.
    """

    world_size: int
    micro_batches: int
    skews: Mapping[str, RankSkew | None]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "world_size": self.world_size,
            "micro_batches": self.micro_batches,
            "cost_skew": {
                name: found and {"micro": found.micro.to_json(), "step": found.step.to_json()}
                for name, found in self.skews.items()
            },
        }


@dataclass(frozen=True)
class LanesRow:
    """What the same job makes with another number of lanes.

    Attributes:
        lanes: How many.
        batches: How many batches.
        packing: How full they are; None = sizes are not known.
        why_not: Why it was not planned; "" = it was.
    """

    lanes: int
    batches: int = 0
    packing: Packing | None = None
    why_not: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        if self.why_not:
            return {"lanes": self.lanes, "left_out": self.why_not}
        found = {} if self.packing is None else self.packing.to_json()
        return {"lanes": self.lanes, "batches": self.batches, **found}


@dataclass(frozen=True)
class PlanReport:
    """What a plan says.

    Attributes:
        job: The job's name.
        log_id: Hex.
        sizes_from: `source`, `size`, `index`; or `none`, where nobody needs them or knows them.
        is_planned: The job is planned: its batches were packed from an index.
        lanes: Lanes.
        epochs: How many epochs these figures are of.
        is_all: It is all of a finite job; else the log goes on after them.
        items: Items that are drawn.
        batches, rows, samples: How many.
        packing: Tokens and padding; None = sizes are not known.
        of_rows, of_batches: How many samples a row has, and a batch.
        of_episodes: From how many episodes a batch comes; None = from none.
        row_tokens: How many tokens a row has.
        lengths: The sizes of samples, a piece of a split one counted as one.
        bars: How many samples have which size.
        measured: What samples count beside their sizes, by measure: all of it, and how much of it a
            batch has.
        counts: What became of the other items and samples, each name with its kind.
        held: Samples that batchers hold at the end.
        sources: By source, samples and tokens in batches.
        balance: What the job's plan says that a batch costs; "" = nothing.
        batches_per_step: G.
        step_from: Who says G.
        steps: Whole steps; and `pad` and `drop`: how many a reader gets who has the last one filled
            up, or left out.
        ranks: For each world size, what ranks meet.
        along: By cost, that of a step along the run; None = there are not two whole steps.
        other_lanes: The same job with other numbers of lanes.
        processing: How often samples are processed, where batches hold pieces of them; None = once.
        notes: Sentences about what these figures are not.

    Glossary:
        forecast: What `penstockd plan` says a job will give, found from sizes alone.
    """

    job: str
    log_id: str
    sizes_from: str
    is_planned: bool
    lanes: int
    epochs: int
    is_all: bool
    items: int
    batches: int
    rows: int
    samples: int
    packing: Packing | None
    of_rows: Spread | None
    of_batches: Spread | None
    of_episodes: Spread | None
    row_tokens: Spread | None
    lengths: Spread | None
    bars: Sequence[Bar]
    measured: Mapping[str, tuple[int, Spread]]
    counts: Mapping[str, int]
    held: int
    sources: Mapping[str, tuple[int, int]]
    balance: str
    batches_per_step: int
    step_from: str
    steps: int
    ranks: Sequence[RankFigures]
    along: Mapping[str, Along | None]
    other_lanes: Sequence[LanesRow] = ()
    processing: Processing | None = None
    notes: Sequence[str] = field(default_factory=list)

    @property
    def tail(self) -> Tail:
        """Return how the last step is filled up."""
        return Tail(self.batches, self.batches_per_step)

    def counted(self, kind: str) -> dict[str, int]:
        """Return the counts of a kind, by reason: `filtered`, `dropped`, ..."""
        start = f"{kind}:"
        return {
            name.removeprefix(start): count
            for name, count in sorted(self.counts.items())
            if name.startswith(start)
        }

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        tail = self.tail
        return {
            "format": FORMAT,
            "job": self.job,
            "log_id": self.log_id,
            "sizes_from": self.sizes_from,
            "planned": self.is_planned,
            "lanes": self.lanes,
            "epochs": self.epochs,
            "all": self.is_all,
            "items": self.items,
            "batches": self.batches,
            "batches_per_epoch": _rounded(self.batches / self.epochs),
            "rows": self.rows,
            "samples": self.samples,
            **({} if self.packing is None else self.packing.to_json()),
            "samples_per_row": _spread(self.of_rows),
            "samples_per_batch": _spread(self.of_batches),
            **(
                {}
                if self.of_episodes is None
                else {"episodes_per_batch": _spread(self.of_episodes)}
            ),
            "tokens_per_row": _spread(self.row_tokens),
            "lengths": _spread(self.lengths),
            "length_histogram": [list(bar) for bar in self.bars],
            **({"measures": self._measures()} if self.measured else {}),
            "filtered": self.counted("filtered"),
            "quarantined": self.counted("quarantined"),
            "dropped": self.counted("dropped"),
            "batcher": self.counted("batcher"),
            "held": self.held,
            "processing": None
            if self.processing is None
            else {"times": _rounded(self.processing.times), "kept_tokens": self.processing.kept},
            "sources": {
                name: {"samples": samples, "tokens": tokens}
                for name, (samples, tokens) in self.sources.items()
            },
            "balance": self.balance or None,
            "batches_per_step": self.batches_per_step,
            "batches_per_step_from": self.step_from,
            "steps": self.steps,
            "steps_per_epoch": _rounded(self.batches / self.epochs / self.batches_per_step),
            "tail": {
                "pad": {"steps": tail.steps, "padding_batches": tail.end - self.batches},
                "drop": {
                    "steps": self.batches // self.batches_per_step,
                    "left_out_batches": self.batches % self.batches_per_step,
                },
            }
            if self.is_all
            else None,
            "ranks": [each.to_json() for each in self.ranks],
            "cost_along": {name: found and found.to_json() for name, found in self.along.items()},
            "other_lanes": [row.to_json() for row in self.other_lanes],
            "notes": list(self.notes),
        }

    def _measures(self) -> dict[str, Any]:
        return {
            name: {"total": total, "per_batch": _spread(spread)}
            for name, (total, spread) in self.measured.items()
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _spread(spread: Spread | None) -> dict[str, Any] | None:
    return None if spread is None else spread.to_json()


def global_batch(job: Job, asked: int | None, worlds: Sequence[int]) -> tuple[int, str]:
    """Return G, and who says it: `option`, `job`, `ranks` or `lanes`."""
    if asked is not None:
        return asked, "option"
    if job.batches_per_step is not None:
        return job.batches_per_step, "job"
    return (max(worlds), "ranks") if worlds else (job.lanes, "lanes")


def world_sizes(batches_per_step: int, asked: Sequence[int]) -> list[int]:
    """Return the world sizes to look at: those asked for, else the divisors of G.

    Raises:
        UnevenStep: One of them does not divide G.
    """
    for size in asked:
        check_divides(batches_per_step, size)
    if asked:
        return list(dict.fromkeys(asked))
    found = [size for size in divisors(batches_per_step) if size > 1]
    return found[:MAX_WORLDS] or [1]


def ranks_of(
    costs: Mapping[str, Costs], batches_per_step: int, worlds: Sequence[int]
) -> list[RankFigures]:
    """Return what ranks meet, for each world size.

    Args:
        costs: The costs of batches by their name, each by position.
        batches_per_step: G.
        worlds: The world sizes, which divide it.
    """
    return [
        RankFigures(
            world,
            batches_per_step // world,
            {name: skew(cost, batches_per_step, world) for name, cost in costs.items()},
        )
        for world in worlds
    ]


def report_of(
    job: Job,
    found: Figures,
    batches_per_step: tuple[int, str],
    worlds: Sequence[int],
    other_lanes: Sequence[LanesRow] = (),
) -> PlanReport:
    """Return what the figures of a job say.

    Args:
        job: The job.
        found: Its figures.
        batches_per_step: G, and who says it.
        worlds: World sizes, which divide it.
        other_lanes: What the job makes with other numbers of lanes.

    Raises:
        InvalidJob: It has no batch, and will have none: no node serves it.
    """
    if not found.tally.batches and not found.held:
        raise InvalidJob(
            f"job {job.name!r} gives no batch: over {found.epochs:,} "
            f"{'epoch' if found.epochs == 1 else 'epochs'} its planners count "
            f"{in_words(found.counts)}; loosen the filter, lower the batch size, or look at the "
            "data",
            key="batcher",
        )
    tally, step = found.tally, batches_per_step[0]
    packing = Packing.of(tally)
    sized = packing is not None
    notes = [] if sized else ["sizes are not known, nor looked at: a batch is so many samples"]
    return PlanReport(
        job=job.name,
        log_id=job.log_id.hex(),
        sizes_from=found.sizes_from,
        is_planned=found.is_planned,
        lanes=job.lanes,
        epochs=found.epochs,
        is_all=found.is_all,
        items=found.counts.get("drawn", 0),
        batches=tally.batches,
        rows=tally.rows,
        samples=tally.samples,
        packing=packing,
        of_rows=tally.of_rows.spread(),
        of_batches=tally.of_batches.spread(),
        of_episodes=tally.of_episodes.spread(),
        row_tokens=tally.row_tokens.spread() if sized else None,
        lengths=tally.lengths.spread() if sized else None,
        bars=tally.lengths.histogram() if sized else [],
        measured={
            name: (numbers.total, spread)
            for name, numbers in tally.measured.items()
            if (spread := numbers.spread()) is not None
        },
        counts=found.counts,
        held=found.held,
        sources=found.sources,
        balance=_balance(job),
        batches_per_step=step,
        step_from=batches_per_step[1],
        steps=found.positions // step,
        ranks=ranks_of(found.costs, step, worlds),
        along={name: along(costs, step) for name, costs in found.costs.items()},
        other_lanes=other_lanes,
        processing=found.processing,
        notes=[*found.notes, *notes],
    )


def _balance(job: Job) -> str:
    """Return what the batches of a job cost, as its plan says it."""
    plan = job.role_sets[0].plan
    return "" if plan is None or plan.balance is None else plan.balance.to_json()
