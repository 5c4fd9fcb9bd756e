"""How every command tells of an error: the user's frames where there are any, then one sentence."""

from __future__ import annotations

import logging
import sys

from penstock.server.commands.say import say
from penstock.server.logs.captured import Printed
from penstock.wire.errors import PenstockError
from penstock.wire.plain import plain, plain_lines


def report(error: PenstockError) -> None:
    """Print an error on stderr: `penstockd: error: SENTENCE [code]`."""
    for frames in getattr(error, "__notes__", ()):
        say(plain_lines(frames.rstrip("\n")), error=True)
    sentence = " ".join(error.message.split())  # libraries' reasons may have lines of their own
    line = f"penstockd: error: {plain(sentence)} [{error.code}]"
    if isinstance(sys.stderr, Printed):  # it would be a warning, as what any code prints
        logging.getLogger("penstock").error("%s", line)
    else:
        say(line, error=True)
