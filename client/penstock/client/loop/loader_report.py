"""What a Loader says of itself: a line for people, and its statistics. It asks nobody."""

from __future__ import annotations

from typing import Any

from penstock.client.loop.reader import LoopReader
from penstock.client.loop.stats import report
from penstock.client.run.options import Options


def describe(reader: LoopReader, options: Options) -> str:
    """Return one line about where a Loader stands, for people."""
    at = reader.at
    who = f"<Loader of job {options.job!r} at {reader.opener.target}"
    if options.group is not None:
        who += f", group {options.group!r}"
    if at.session is not None:
        who += f", rank {at.session.share.rank} of {at.session.share.world_size}"
    return f"{who}: {_where(reader)}>"


def _where(reader: LoopReader) -> str:
    at = reader.at
    given = f"{at.tally.batches:,} batch{'' if at.tally.batches == 1 else 'es'} given"
    if reader.is_closed:
        return f"closed; {given}"
    if at.session is None:
        return "waits for load_state_dict()" if at.start is None else "nothing is read yet"
    if at.is_over:
        return f"at its end; {given}"
    return f"next is position {at.next:,}, step {at.session.share.step(at.next):,}; {given}"


def statistics(reader: LoopReader) -> dict[str, Any]:
    """Return what `Loader.stats` says."""
    at = reader.at
    ready = dict.fromkeys(
        ("dropped_batches", "dropped_samples", "buffered_batches", "buffer_bytes"), 0
    )
    tally = at.tally
    if at.feed is not None:
        ready = at.feed.statistics(at.next)
        tally = tally.with_feed(at.feed)
    return (
        report(tally, reader.intake.waits)
        | ready
        | reader.intake.statistics(at.feed)
        | {
            "position": at.last.position if at.last else None,
            "next_position": at.next if at.session else None,
        }
    )
