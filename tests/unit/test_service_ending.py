"""How the edge ends a call with an error, whatever the error holds."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from penstock.server.rpc.ending import ending
from penstock.wire.errors import BadItem, Internal
from penstock.wire.sent_errors import decode_error


class Broken:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


def nested(depth: int) -> Any:
    """Return a list in a list in a list."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [Broken(), nested(2_000), {1, 2}, {Broken(): 1}])
def test_every_error_gives_a_status_that_grpc_takes(value: Any) -> None:
    """A field that has no form on the wire costs itself, never the call's end."""
    status, text, [(_, data)] = ending(BadItem("item 3 fails\udcff", item=value))

    text.encode()
    found = decode_error(data)
    assert (status, type(found)) in {
        (grpc.StatusCode.DATA_LOSS, BadItem),
        (grpc.StatusCode.INTERNAL, Internal),
    }


def test_a_bug_is_told_by_its_type_and_line() -> None:
    """What is no error of penstock's is an internal one."""
    status, text, _ = ending(KeyError("lane"))

    assert status is grpc.StatusCode.INTERNAL
    assert "KeyError: 'lane'" in text
