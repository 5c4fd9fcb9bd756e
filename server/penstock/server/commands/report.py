"""How every command tells of an error: the user's frames where there are any, then one sentence."""

from __future__ import annotations

from penstock.server.commands.say import say
from penstock.wire.errors import PenstockError
from penstock.wire.terminal import plain, plain_lines


def report(error: PenstockError) -> None:
    """Print an error on stderr: `penstockd: error: SENTENCE [code]`."""
    for frames in getattr(error, "__notes__", ()):
        say(plain_lines(frames.rstrip("\n")), error=True)
    sentence = " ".join(error.message.split())  # libraries' reasons may have lines of their own
    say(f"penstockd: error: {plain(sentence)} [{error.code}]", error=True)


__all__ = ["report"]
