"""What nodes follow: a number for each log, group and node, which one look finds all of."""

from __future__ import annotations

from penstock.server.store.rows import Change, Drop, FollowedRow, Put

Key = tuple[str, str, str]
"""The key of a `FollowedRow`."""


def log_key(log_id: bytes) -> Key:
    """Return the key of a log."""
    return "log", log_id.hex(), ""


def group_key(job: str, name: str) -> Key:
    """Return the key of a group."""
    return "group", job, name


def node_key(node_id: str) -> Key:
    """Return the key of a node's latest incarnation."""
    return "node", node_id, ""


def outlived_key(node_id: str) -> Key:
    """Return the key of the latest incarnation of a node that ran on beside a later one."""
    return "outlived", node_id, ""


def now_at(key: Key, number: int) -> list[Change]:
    """Let those who follow something find another number."""
    return [Put(FollowedRow(*key, number))]


def is_gone(key: Key) -> list[Change]:
    """Let those who follow something find that it is gone."""
    return [Drop(FollowedRow, key)]
