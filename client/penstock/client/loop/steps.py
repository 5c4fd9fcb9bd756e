"""What the training loop gets: batches with their position, steps with their totals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

from numpy.typing import NDArray

from penstock.client.run.ranks import WorldRank, torch_distributed
from penstock.wire.errors import BadState, InvalidRequest
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2

_SHOWN = (
    *("position", "step", "lane", "offset", "micro", "is_last_of_step", "epoch", "counts"),
    *("is_padding", "is_filler", "nbytes"),
)
"""Attributes of a `BatchInfo` that its `repr` has."""


@dataclass(frozen=True, repr=False)
class BatchInfo:
    """The position of a batch and its counts.

    What most loops do not ask for is worked out when somebody does.

    Attributes:
        position: Its number in the whole job.
        counts: Integers that travel with it: tokens, loss_tokens, samples, ...
        header: The message that came over the wire; it speaks of the body as it lies here.
        body: uint8 (nbytes,), the bytes that its tensors on the host are views of.
    """

    position: int
    counts: Mapping[str, int]
    header: feed_pb2.BatchHeader
    body: NDArray[Any] | None
    _share: Share

    def __repr__(self) -> str:
        return f"BatchInfo({', '.join(f'{name}={getattr(self, name)!r}' for name in _SHOWN)})"

    @property
    def step(self) -> int:
        """The step that holds it."""
        return self._share.step(self.position)

    @property
    def lane(self) -> int:
        """Its lane."""
        return self.header.lane

    @property
    def offset(self) -> int:
        """How many batches of the lane come before it."""
        return self.header.offset

    @property
    def micro(self) -> int:
        """Which of this rank's micro batches of the step it is, from 0."""
        return self._share.micro(self.position)

    @property
    def is_last_of_step(self) -> bool:
        """Whether it is this rank's last of the step, after which the optimizer steps."""
        return self.micro == self._share.batches_per_rank - 1

    @property
    def epoch(self) -> int:
        """The epoch of its earliest item: how many times every item had been drawn before.

        It grows in an endless job; a finite job of `epochs: n` has 0 to n - 1 in each pass.
        """
        return self.header.epoch

    @property
    def is_padding(self) -> bool:
        """Whether it is padding, which must not train; all counts are 0.

        A blanked copy that fills the last step of a finite pass, a filler, or a batch whose items
        are all in quarantine.
        """
        return self.header.padding

    @property
    def is_filler(self) -> bool:
        """Whether it is padding because this rank has fewer batches of the step than others.

        With `uneven="fill"`; its position is the last of the step, another rank's.
        """
        return self._share.is_filler(self.position)

    @property
    def nbytes(self) -> int:
        """The length of its body in bytes."""
        return self.header.body_bytes

    @property
    def weight(self) -> int:
        """What its loss and its metrics count: 0 for padding, else 1."""
        return 0 if self.is_padding else 1

    @property
    def samples(self) -> list[tuple[str, int, int]]:
        """The items that it was made of, in order: (source, index, epoch) each."""
        return [(ref.source, ref.index, ref.epoch) for ref in self.header.samples]


class BatchLayout(NamedTuple):
    """How samples lie in the values of every batch of a job.

    Attributes:
        name: `padded`, or a layout of the collator `packed`, such as `flash`; empty = the collator
            does not say.
        labels_shifted: The label of a token is the token that follows it; else the model shifts.
        ignore_index: The label that losses leave out; None = it is not known whether there are
            labels.
    """

    name: str
    labels_shifted: bool
    ignore_index: int | None


class Batch(dict[str, Any]):
    """Named values, for `model(**batch)`, with the metadata of `BatchInfo` as attributes.

    A framework that rebuilds the dict drops the metadata: `loader.last` still has it, and
    `meta=True` puts the position among the values.
    """

    info: BatchInfo | None

    def __init__(self, *values: Any, info: BatchInfo | None = None, **more: Any) -> None:
        super().__init__(*values, **more)
        self.info = info

    def __getattr__(self, name: str) -> Any:
        # Reached only where the dict has no such attribute.
        if name.startswith("_") or name not in _BATCH_ATTRIBUTES:
            way = f": it is a value, batch[{name!r}]" if name in self else ""
            raise AttributeError(f"a Batch has no attribute {name!r}{way}")
        info = self.__dict__.get("info")
        if info is None:
            raise AttributeError(
                f"this Batch was rebuilt without its metadata, so it has no {name}: read "
                f"loader.last.{name}, or pass meta=True"
            )
        return getattr(info, name)


_BATCH_ATTRIBUTES = dict.fromkeys((*_SHOWN, "header", "body", "samples", "weight"))
"""Attributes of `BatchInfo` that a `Batch` has, in the order of the docs; asked for at each."""


class StepSource(Protocol):
    """What a Step needs of its Loader."""

    @property
    def world_rank(self) -> WorldRank:
        """Which data-parallel rank this is, of how many."""
        ...

    def batches_of(self, index: int) -> Iterator[Batch]:
        """Return the batches of step `index` that are still to be given."""
        ...

    def counts_ahead(self, index: int) -> dict[int, Mapping[str, int]]:
        """Wait until the rest of step `index` is here, and return its counts by position."""
        ...

    def dp_process_group(self) -> Any:
        """Return the process group of the data-parallel ranks; None = all processes."""
        ...


class Step:
    """One global step, as this rank sees it: iterate it once, for its micro batches.

    They are not kept: to use them again, make a list of them, `list(step)`.

    Attributes:
        index: Its number; step `index` holds the same batches for any number of ranks.
    """

    def __init__(
        self, source: StepSource, index: int, own: Sequence[int], due: int, given: Mapping[int, Any]
    ) -> None:
        """Make a step; its Loader does.

        Args:
            source: The Loader.
            index: The step's number.
            own: The positions of this rank's batches of it.
            due: Which of them is given next.
            given: The counts of those that were given, by position; it grows with each.
        """
        self.index = index
        self._source, self._own, self._given = source, own, given
        self._remaining = sum(position >= due for position in own)
        self._per_rank: dict[str, tuple[int, ...]] = {}

    def __repr__(self) -> str:
        return f"Step(index={self.index}, batches={self._remaining})"

    def __len__(self) -> int:
        """Return how many of its micro batches this rank gets, from the Loader's position on."""
        return self._remaining

    def __iter__(self) -> Iterator[Batch]:
        return self._source.batches_of(self.index)

    @property
    def counts(self) -> dict[str, int]:
        """The summed counts of this rank's micro batches of the step; waits for them.

        Raises:
            BadState: Reading began within this step, so its first batches are not here.
        """
        found = {**self._given, **self._source.counts_ahead(self.index)}
        if any(position not in found for position in self._own):
            raise BadState(
                f"reading began within step {self.index}, so the counts of its first batches are "
                "not here: totals are right again from the next step on",
                step=self.index,
            )
        sums: dict[str, int] = {}
        for position in self._own:
            for key, value in found[position].items():
                sums[key] = sums.get(key, 0) + value
        return sums

    def total(self, key: str, process_group: Any = None) -> int:
        """Return the sum of a count over all ranks and micro batches of the step.

        It is the sum of `per_rank`, and a collective as that is.

        Args:
            key: A name in `counts`; if no batch has it the total is 0.
            process_group: The data-parallel ranks; default: the mesh's, else all processes.

        Raises:
            InvalidRequest: There are several ranks and no process group of just them.
            BadState: Reading began within this step.
        """
        return sum(self.per_rank(key, process_group))

    def per_rank(self, key: str, process_group: Any = None) -> tuple[int, ...]:
        """Return a count of each data-parallel rank, summed over its micro batches of the step.

        With several ranks it is a collective: every rank calls it, in the same order. It waits
        until this rank's batches of the step have arrived, so it can be called before the first
        backward. `total` and `per_rank` of one count are one collective.

        Args:
            key: A name in `counts`; a rank whose batches lack it has 0.
            process_group: The data-parallel ranks; default: the mesh's, else all processes.

        Returns:
            As many numbers as there are ranks, by rank.

        Raises:
            InvalidRequest: There are several ranks and no process group of just them.
            BadState: Reading began within this step.
        """
        if key not in self._per_rank:
            self._per_rank[key] = self._gathered(self.counts.get(key, 0), process_group)
        return self._per_rank[key]

    def _gathered(self, value: int, process_group: Any) -> tuple[int, ...]:
        place = self._source.world_rank
        rank, world_size = place.rank, place.world_size
        if world_size == 1:
            return (value,)
        dist = torch_distributed()
        if dist is None:
            _refuse(
                f"counts of {world_size} ranks need torch.distributed, which is not "
                "initialised: call init_process_group first and pass process_group= where it holds "
                "more than the data-parallel ranks, or sum step.counts yourself"
            )
        group = process_group if process_group is not None else self._source.dp_process_group()
        size = dist.get_world_size(group)
        if size != world_size:
            _refuse(
                f"the process group has {size} processes where {world_size} data-parallel ranks "
                "read: pass process_group= with exactly those ranks"
            )
        import torch

        # Where gloo is there the sum stays on the host; NCCL alone needs a tensor on the device.
        on_host = "nccl" not in str(dist.get_backend(group)) or "gloo" in str(
            dist.get_backend(group)
        )
        device = "cpu" if on_host else torch.device("cuda", torch.cuda.current_device())
        # A sum, where each rank has a place of its own, and not a gathering: the group may have its
        # processes in another order than the ranks.
        own = [value if other == rank else 0 for other in range(world_size)]
        tensor = torch.tensor(own, dtype=torch.int64, device=device)
        dist.all_reduce(tensor, group=group)
        return tuple(tensor.tolist())


def _refuse(sentence: str) -> NoReturn:
    raise InvalidRequest(sentence)
