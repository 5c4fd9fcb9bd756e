"""Every error that a client can meet, to be caught by its class: `except errors.PastEnd`.

They are those of the wire, which both halves share; docs/errors.md is their table.
"""

from __future__ import annotations

from penstock.wire.errors import *  # noqa: F403 - under another name, all of them
from penstock.wire.errors import __all__ as __all__
