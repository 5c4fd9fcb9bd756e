"""One log for all that a process says; of an error its frames, and never values of variables."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import structlog
from penstock.server.logs.handlers import configure

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


SAYS = """
import logging, sys, threading, warnings
import structlog
from penstock.server.logs.handlers import configure

configure(sys.argv[1], sys.argv[2])
structlog.get_logger("penstock.node").info("of structlog", job="a")
logging.getLogger("penstock").info("of %s", "logging")
logging.getLogger("penstock").debug("nobody reads this")
logging.getLogger("mine").warning("of a role")
logging.getLogger("mine").info("nobody reads this")
logging.getLogger("mine").warning("wrong: %d", "words")
warnings.warn("of a warning", stacklevel=1)
print("of a print,", "in two", file=sys.stderr)
try:
    {}["k"]
except KeyError:
    logging.getLogger("penstock").exception("of an error")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("the end")
"""


def said(log_format: str, level: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", SAYS, log_format, level],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    return ended.stderr.splitlines()


def test_each_line_of_standard_error_is_an_event() -> None:
    """Of structlog, of loggers, warnings, prints and errors that nothing caught: one pipeline."""
    events = [json.loads(line) for line in said("json", "info")]

    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
    assert "nobody reads this" not in {event["event"] for event in events}
    told = [(event["event"], event["level"], event.get("logger")) for event in events]
    assert told[:3] == [
        ("of structlog", "info", None),
        ("of logging", "info", None),
        ("of a role", "warning", "mine"),
    ]
    assert events[0]["job"] == "a"
    assert ("of a print, in two", "warning", "stderr") in told
    assert any("of a warning" in event and name == "py.warnings" for event, _, name in told)
    failed = {event["event"]: event["exception"] for event in events if "exception" in event}
    assert failed["of an error"][0]["exc_type"] == "KeyError"
    assert [event["exception"][0]["exc_type"] for event in events if event["event"] == "a bug"] == [
        "ZeroDivisionError",
        "RuntimeError",
    ]


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_level_holds_for_both_kinds_of_loggers(level: str) -> None:
    """What is below it is said by nobody."""
    events = [json.loads(line) for line in said("json", level)]

    levels = {"warning": {"warning", "error", "critical"}, "error": {"error", "critical"}}
    assert {event["level"] for event in events} == levels[level]


def test_people_read_the_same_sentences() -> None:
    """With the fields of each, and without JSON."""
    lines = "\n".join(said("console", "info"))

    for one in ("of structlog job=a", "of logging", "of a role [mine]", "of a print, in two"):
        assert one in lines
    assert "KeyError: 'k'" in lines
