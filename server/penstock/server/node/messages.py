"""What a worker may say: the form of every message, checked where it is received.

A role is a stranger's code in the worker's process: it may write to any file descriptor, fork, or
damage memory. So whatever is not said exactly as a worker of ours says it is refused here, before
anything in the node's books is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from penstock.server.core.refs import Verdict
from penstock.server.node.channel import Message, Misspoken
from penstock.server.node.page import STAGES
from penstock.wire.errors import clean_json, clean_text
from penstock.wire.frame import MAX_HEADER_BYTES
from penstock.wire.order import MAX_POSITION

MAX_TEXT = 8000
"""Characters that are kept of a text: an error's sentence, its fields, a warning."""

MAX_LIBRARIES = 64
"""Libraries whose versions are recorded."""

_CASES = ("open", "close", "job", "plan", "produce", "make", "verify", "snapshot", "free", "hurry")


class Ticket(Protocol):
    """What the check asks of a ticket: whether plans answer it, or a batch does."""

    plans: bool


class Arena(Protocol):
    """What the check asks of an arena: how long it is, and where batches lie in it."""

    size_bytes: int
    starts: set[int]


def check(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> Message:
    """Return a message as it may be acted upon: of the right form, its texts clean and cut.

    Args:
        message: What came over the socket.
        tickets: What this worker was asked and has not answered.
        arenas: What it has announced.
        jobs: The jobs that it was told of.

    Raises:
        Misspoken: No worker of ours says this.
    """
    op = message.get("op")
    if not isinstance(op, str) or op not in _CHECKS:
        raise Misspoken(f"it says {clean_text(repr(op), 100)}, which nobody knows")
    _CHECKS[op](message, tickets, arenas, jobs)
    if "cost" in message:
        _check_cost(message["cost"], jobs)
    if "counted" in message:
        _check_counted(message["counted"], jobs)
    return message


def check_arena(message: Message, arenas: Collection[int]) -> tuple[int, int]:
    """Return the number and the size of an arena that a worker announces.

    Raises:
        Misspoken: No worker of ours says this.
    """
    number, size = message.get("number"), message.get("size")
    _need(_count(number) and number == len(arenas), "number of an arena", number)
    _need(_count(size) and size in range(1, 1 << 46), "size of an arena", size)
    return number, size  # type: ignore[return-value]  # _count has seen that they are int


def _need(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise Misspoken(f"its {what} is {clean_text(repr(value), 100)}")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_POSITION


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        type(one) is int and -(1 << 63) <= one < 1 << 63 for one in value.values()
    )


def _known_job(value: Any, jobs: Collection[str]) -> bool:
    return isinstance(value, str) and value in jobs


def _ticket(message: Message, tickets: Mapping[int, Ticket], *, plans: bool) -> None:
    number = message.get("ticket")
    _need(type(number) is int and number in tickets, "ticket", number)
    _need(tickets[number].plans is plans, "kind of answer to ticket", number)  # type: ignore[index]


def _snapshots(message: Message, blobs: int) -> None:
    offsets = message.get("snapshots")
    _need(isinstance(offsets, list) and all(map(_count, offsets)), "list of snapshots", offsets)
    _need(len(offsets) == blobs, "number of snapshots", offsets)  # type: ignore[arg-type]


def _check_ready(message: Message, *_: Any) -> None:
    """There is nothing to check: it may say so at any time."""


def _check_set_up(message: Message, *_: Any) -> None:
    """There is nothing to check but whether it was asked, which the node knows."""


def _check_done(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    _ticket(message, tickets, plans=False)
    nbytes, where, blobs = message.get("nbytes"), message.get("where"), message["blobs"]
    _need(_count(nbytes), "number of bytes", nbytes)
    if where is None:
        _need(nbytes == 0, "place of a batch", where)
    else:
        _need(isinstance(where, list) and len(where) == 2, "place of a batch", where)
        number, start = where
        _need(type(number) is int and number in arenas, "arena", number)
        arena = arenas[number]
        _need(_count(start) and start not in arena.starts, "start of a batch", start)
        _need(0 < nbytes <= arena.size_bytes - start, "number of bytes", nbytes)  # type: ignore[operator]
    _need(len(blobs) >= 2 and len(blobs[0]) <= MAX_HEADER_BYTES, "header", len(blobs))
    _need(_counts(message.get("counts")), "counts", message.get("counts"))
    _need(type(message.get("emptied")) is bool, "emptied", message.get("emptied"))
    if "libraries" in message:
        message["libraries"] = _libraries(message["libraries"])
    _snapshots(message, len(blobs) - 2)


def _libraries(versions: Any) -> dict[str, str]:
    fits = (
        isinstance(versions, dict)
        and len(versions) <= MAX_LIBRARIES
        and all(isinstance(one, str) for one in versions.values())
    )
    _need(fits, "libraries", versions)
    return {clean_text(name, 100): clean_text(one, 100) for name, one in versions.items()}


def _check_planned(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    _ticket(message, tickets, plans=True)
    plans = message.get("plans")
    most = len(message["blobs"])
    _need(_count(plans) and plans in range(1, most + 1), "number of plans", plans)
    _need(type(message.get("broken")) is bool, "broken", message.get("broken"))
    _snapshots(message, most - plans)  # type: ignore[operator]


def _check_failed(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    number, of = message.get("ticket"), message.get("of")
    _need(isinstance(of, str) and of in _CASES, "question", of)
    if of in ("plan", "produce", "make"):
        _ticket(message, tickets, plans=of == "plan")
    else:
        _need(number is None, "ticket", number)
    if of in ("plan", "produce", "make", "open", "job", "verify"):
        _need(_known_job(message.get("job"), jobs), "job", message.get("job"))
    line = message.get("line")
    _need(line is None or type(line) is int, "line", line)
    code, text, fields = message.get("code"), message.get("message"), message.get("fields")
    _need(isinstance(code, str), "code", code)
    _need(isinstance(text, str), "sentence", text)
    _need(isinstance(fields, dict), "fields", fields)
    message["message"] = clean_text(text, MAX_TEXT)  # type: ignore[arg-type]
    message["fields"] = clean_json(fields, MAX_TEXT)


def _check_verified(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    _need(type(message.get("check")) is int, "check", message.get("check"))
    _need(len(message["blobs"]) == 1, "number of headers", len(message["blobs"]))


def _check_warning(message: Message, *_: Any) -> None:
    _need(isinstance(message.get("text"), str), "text", message.get("text"))
    message["text"] = clean_text(message["text"], MAX_TEXT)


def _check_verdict(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    _need(_known_job(message.get("job"), jobs), "job", message.get("job"))
    line, entry = message.get("line"), message.get("verdict")
    _need(line is None or type(line) is int, "line", line)
    try:
        verdict = Verdict.from_json(entry)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise Misspoken(f"its verdict is {clean_text(repr(entry), 100)}") from None
    source, index, epoch = verdict.item
    texts = (source, verdict.content_hash, verdict.reason)
    places = (index, epoch, verdict.lane, verdict.offset, verdict.above, verdict.number)
    _need(verdict.stage in ("draw", "exit", "size"), "stage of a verdict", verdict.stage)
    _need(all(isinstance(one, str) and len(one) <= MAX_TEXT for one in texts), "verdict", entry)
    _need(all(map(_count, places)) and type(verdict.every_epoch) is bool, "verdict", entry)
    # Its store gives it a number, and people release it.
    _need((verdict.number, verdict.released) == (0, None), "verdict", entry)
    message["verdict"] = verdict._replace(reason=clean_text(verdict.reason, MAX_TEXT)).to_json()


def _check_snapshots(
    message: Message,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    jobs: Collection[str],
) -> None:
    lines = message.get("lines")
    fits = isinstance(lines, list) and all(
        isinstance(one, list) and len(one) == 2 and _count(one[0]) and _count(one[1])
        for one in lines
    )
    _need(fits, "list of lines", lines)
    assert isinstance(lines, list)
    _need(len({number for number, _ in lines}) == len(lines), "list of lines", lines)
    _need(len(lines) == len(message["blobs"]), "number of lines", len(lines))


def _check_cost(cost: Any, jobs: Collection[str]) -> None:
    _need(
        isinstance(cost, dict)
        and set(cost) == {"job", "batches", "stages_s", "read_bytes", "drawn"},
        "cost",
        cost,
    )
    _need(_known_job(cost["job"], jobs), "job", cost["job"])
    _need(_count(cost["batches"]), "number of batches", cost["batches"])
    _need(_count(cost["read_bytes"]), "number of bytes", cost["read_bytes"])
    _need(_count(cost["drawn"]), "number of draws", cost["drawn"])
    stages = cost["stages_s"]
    fits = isinstance(stages, dict) and all(
        stage in STAGES and type(seconds) in (int, float) and 0 <= seconds < 1e12
        for stage, seconds in stages.items()
    )
    _need(fits, "seconds by stage", stages)


def _check_counted(counted: Any, jobs: Collection[str]) -> None:
    _need(
        isinstance(counted, dict) and set(counted) == {"job", "lane", "counters", "before"},
        "counts",
        counted,
    )
    _need(_known_job(counted["job"], jobs), "job", counted["job"])
    _need(_count(counted["lane"]), "lane", counted["lane"])
    for name in ("counters", "before"):
        _need(_counts(counted[name]), name, counted[name])


_CHECKS: dict[str, Callable[..., None]] = {
    "ready": _check_ready,
    "set_up": _check_set_up,
    "done": _check_done,
    "planned": _check_planned,
    "failed": _check_failed,
    "verified": _check_verified,
    "warning": _check_warning,
    "verdict": _check_verdict,
    "snapshots": _check_snapshots,
}


__all__ = ["MAX_TEXT", "check", "check_arena"]
