"""What a log says of an error: its frames, and never the values of their variables."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import structlog
from penstock.server.logs import configure

configure(sys.argv[1], "info")

def opens(options):
    token = "hunter2"
    raise RuntimeError("cannot open")

try:
    opens({"secret_access_key": "hunter3"})
except RuntimeError as error:
    structlog.get_logger("test").exception("a bug", exc_info=error)
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_tracebacks_show_no_locals(log_format: str) -> None:
    """Tokens and storage options are values of variables: they stay out of logs."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format], capture_output=True, text=True, check=True
    )

    assert "cannot open" in ended.stderr
    assert "opens" in ended.stderr
    shown = ended.stderr.replace('token = "hunter2"', "").replace('"hunter3"})', "")
    assert "hunter" not in shown
    if log_format == "json":
        json.loads(ended.stderr)
