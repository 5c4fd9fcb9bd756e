"""What a caller may pass to a store: every value that is stored is checked here first."""

from __future__ import annotations

from penstock.server.store.records import BeginRequest
from penstock.wire import MAX_NAME, MAX_TOKEN, MAX_WORLD_SIZE
from penstock.wire.errors import InvalidRequest
from penstock.wire.order import MAX_POSITION, Share

MAX_STEP = MAX_POSITION
"""Steps are stored in 63 bits."""

MOVED = "moved:"
"""The prefix of the token of a seek's or restore's generation: no rank may present it."""


def check_begin(request: BeginRequest) -> None:
    """Refuse a request that is invalid whatever the store holds.

    Raises:
        InvalidRequest: A name, token, step or count is invalid.
        RankOutOfRange: The rank is not below the world size.
    """
    check_name("job", request.job.name)
    check_name("group", request.group)
    check_name("attempt token", request.token, MAX_TOKEN)
    check_text("owner", request.owner)
    if request.token.startswith(MOVED):
        raise InvalidRequest(
            f"the attempt token {request.token!r} begins with {MOVED!r}, which seeks and restores "
            "keep for themselves: choose another",
            field="token",
            value=request.token,
        )
    if request.world_size > MAX_WORLD_SIZE:
        raise InvalidRequest(
            f"the world size is at most {MAX_WORLD_SIZE:,}, not {request.world_size:,}: every rank "
            "of an attempt has a row in the store",
            field="world_size",
            value=request.world_size,
        )
    Share(max(1, request.world_size), request.rank, request.world_size)  # the rank alone
    for name, value in (
        ("batches_per_step", request.batches_per_step),
        ("the job's batches_per_step", request.default_batches_per_step),
    ):
        if value is not None and not 1 <= value <= MAX_STEP:
            raise InvalidRequest(
                f"{name} is at least 1, not {value}", field="batches_per_step", value=value
            )
    if request.start_step is not None:
        check_step("a start", request.start_step)


def check_step(what: str, step: int) -> None:
    """Refuse a step that is negative or does not fit.

    Raises:
        InvalidRequest: With the value and the bounds.
    """
    if not 0 <= step <= MAX_STEP:
        raise InvalidRequest(
            f"{what} names a step between 0 and {MAX_STEP}, not {step}", field="step", value=step
        )


def check_name(what: str, name: str, limit: int = MAX_NAME) -> None:
    """Refuse a name that is empty, too long or not printable.

    Raises:
        InvalidRequest: With the name.
    """
    if not name:
        raise InvalidRequest(f"the {what} is empty: give it a name")
    check_text(what, name, limit)


def check_text(what: str, text: str, limit: int = MAX_NAME) -> None:
    """Refuse a text that is too long, or holds what no terminal, message or metric should be given.

    Raises:
        InvalidRequest: With its start, and the first character that is not allowed.
    """
    if len(text) > limit:
        raise InvalidRequest(
            f"the {what} {text[:40]!a}... has {len(text):,} characters: it may have {limit}"
        )
    if not text.isprintable():
        odd = next(character for character in text if not character.isprintable())
        raise InvalidRequest(
            f"the {what} {text[:40]!a} holds {odd!a}: use characters that can be printed"
        )


def printable(text: str, limit: int = MAX_NAME) -> str:
    """Return a text for people, such as an owner: cut, and `?` for what cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in text[:limit])


def clean(text: str) -> str:
    """Return the text with what UTF-8 cannot hold (lone surrogates of a file name) as `?`."""
    return text.encode("utf-8", "replace").decode()
