"""What is shown in a terminal: other people's text stays text."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from pathlib import Path

import numpy as np
import pytest

from penstock.common.batch_text import batch_text
from penstock.common.terminal import columns_of, folded
from penstock.server.commands.error_text import report
from penstock.wire.errors import BadItem
from penstock.wire.plain import plain, plain_lines


def test_only_what_can_be_printed_stays() -> None:
    """Letters of every script stay; escapes, bells, tricks with direction and halves do not."""
    assert plain("straße 日本 😀 a b") == "straße 日本 😀 a b"
    assert plain("\x1b[2J\x07\r\n\u202e\x9b\udcff") == r"\x1b[2J\x07\r\n\u202e\x9b\udcff"
    assert plain_lines("a\tb\n\x1b[0m") == "a\tb\n" + r"\x1b[0m"


def test_documents_and_errors_on_the_servers_side_are_harmless(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`show --text` prints a corpus, and an error quotes a user's exception and its frames."""
    batch = {"input_ids": np.array([[1, 2]]), "\x1b]0;x\x07": 1}
    error = BadItem("no \x1b[31mgood\n")
    error.add_note("  File \x1b[2J\n    raise")

    text = batch_text(batch, lambda ids: "two\nlines\x1b[2J")
    named = batch_text({"\x1b]0;x\x07": 1}, None)
    report(error)

    assert text.endswith("two\nlines\\x1b[2J")
    assert named == "\\x1b]0;x\\x07: 1"
    said = capsys.readouterr().err
    assert said == "  File \\x1b[2J\n    raise\npenstockd: error: no \\x1b[31mgood [bad_item]\n"


def test_lines_break_between_words_at_the_width_of_a_terminal() -> None:
    """Further lines stand further in; a path stays whole; what fits is left as it is."""
    path = "/a/very/long/path/that/is/longer/than/any/line/of/this/terminal/can/be.yaml"
    text = f"  words of a line that goes on\n  one\ttab   and blanks\n{path} is not there"

    assert folded(text, 20).split("\n") == [
        "  words of a line",
        "    that goes on",
        "  one\ttab   and",
        "    blanks",
        path,
        "  is not there",
    ]
    assert folded(text, None) == text
    assert folded(text, 200) == text


def test_only_a_terminal_has_a_width(tmp_path: Path) -> None:
    """Files, pipes and closed streams have none, and neither has a terminal that tells no size."""
    ours, theirs = os.openpty()
    with (tmp_path / "out").open("w") as file, os.fdopen(theirs, "w") as terminal:
        assert columns_of(file) is None
        assert columns_of(io.StringIO()) is None
        assert columns_of(terminal) is None
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 97, 0, 0))
        assert columns_of(terminal) == 97
    assert columns_of(file) is None
    os.close(ours)
