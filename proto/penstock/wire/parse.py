"""Bytes of the other side as a message: the one place where penstock parses protobuf."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from penstock.wire.errors import BadFrame

MessageT = TypeVar("MessageT", bound=Message)


def parse(message: type[MessageT], data: bytes, sender: str = "") -> MessageT:
    """Return the message that bytes are.

    Args:
        message: The class of the message.
        data: Its bytes.
        sender: Who sent them in answer to what, for the error; empty = the error does not say.

    Raises:
        BadFrame: They are not such a message.
    """
    try:
        return message.FromString(data)
    except (DecodeError, ValueError) as error:  # ValueError: a text that is not UTF-8
        name = message.DESCRIPTOR.name
        raise BadFrame(
            f"{sender}{': ' if sender else ''}{len(data)} bytes are not a message {name}: {error}; "
            "check that both sides run one version, and that nothing between them changes bytes"
        ) from error
