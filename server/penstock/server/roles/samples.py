"""What goes from role to role: raw items and samples."""

from __future__ import annotations

from typing import Any

RawItem = Any
"""What a source gives: a dict of columns, bytes, or whatever its data is."""

Sample = dict[str, Any]
"""What a processor gives: the named values of an example."""
