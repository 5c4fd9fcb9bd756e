"""How many connections a port takes, by the files that its process may open."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from penstock.server.rpc.connections import FILES, MAX_CONNECTIONS, most_connections, raise_files


@pytest.fixture(autouse=True)
def files() -> Iterator[tuple[int, int]]:
    """The limits, which are as before afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("limit", "most"), [(512, 384), (1024, 768), (2400, 1800)])
def test_a_share_of_the_files_is_left_to_others(
    files: tuple[int, int], limit: int, most: int
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, files[1]))

    assert most_connections() == most <= MAX_CONNECTIONS


def test_a_process_takes_the_files_that_it_may_have(files: tuple[int, int]) -> None:
    """Up to its hard limit, which stays; and never fewer than it had."""
    hard = files[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))

    raise_files()
    raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_files()

    assert raised[0] == (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard))
    assert raised[1] == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
