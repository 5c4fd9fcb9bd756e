"""Which files can be read now."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from penstock.common.readable import readable

HIGH = 1100
"""A descriptor that `select.select` refuses."""


@pytest.fixture
def room_for_files() -> Iterator[None]:
    """Let this process open enough files, where it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_has_come_is_told_in_the_order_of_the_files() -> None:
    quiet, its_other = socket.socketpair()
    ours, theirs = socket.socketpair()
    ended, gone = socket.socketpair()
    with quiet, its_other, ours, theirs, ended:
        theirs.send(b"x")
        gone.close()
        assert readable([ended, quiet, ours], 60) == [ended, ours]
        assert readable([ours, quiet, ended.fileno()]) == [ours, ended.fileno()]
        assert readable([quiet, theirs], 0) == []


def test_high_descriptors_are_files_like_others(room_for_files: None) -> None:
    """A process with many readers or open shards has numbers that `select` does not take."""
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, HIGH)
    try:
        assert readable([high], 0) == []
        os.write(writing, b"x")
        assert readable([high], 60) == [high]
    finally:
        for fd in (reading, writing, high):
            os.close(fd)
