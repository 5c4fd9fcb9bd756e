"""Locks of sessions: by whom they are held for too long, and what ends that."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.store import postgres_sql as sql

UNHEARD_S = 10.0
"""So long a node may hold up others that the server hears nothing of."""

# A node that is stopped between its lock and its transaction holds others up no longer than one
# that is stopped within: else the session is idle, and may be so for ever.
LOCK = (
    "SELECT pg_advisory_lock(number), set_config('idle_session_timeout', '10000', false) "
    "FROM unnest(%s::bigint[]) AS number"
)
UNLOCK = "SELECT pg_advisory_unlock_all(), set_config('idle_session_timeout', '0', false)"

END_UNHEARD = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND (classid::bigint << 32) | objid::bigint = ANY(%s::bigint[]) "
    "AND wait_event IN ('ClientRead', 'ClientWrite') "
    "AND state_change < clock_timestamp() - make_interval(secs => %s)"
)
"""The server itself ends a session that is idle, within a transaction or out of it. But statements
go out together, and between two of them a session counts as active: where a node is stopped or cut
off there, it would hold its locks until TCP gives it up, by default after two hours."""


def end_unheard(numbers: Sequence[int]) -> sql.Statement:
    """Return what ends the sessions that hold locks, and whose nodes are not heard of."""
    return END_UNHEARD, (sql.array(numbers), UNHEARD_S)


__all__ = ["LOCK", "UNLOCK", "end_unheard"]
