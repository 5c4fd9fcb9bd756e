"""Tables for people: aligned on a terminal, escaped as HTML, the same cells in both."""

from __future__ import annotations

from penstock.wire.table import Table

CELLS = Table(
    [("3", "a <b>"), ("1,200", "c\x1b[2J")],
    ("number", "name"),
    frozenset((0,)),
)


def test_columns_are_aligned_and_control_characters_are_shown() -> None:
    """A number is flush right; a name of a file or of a user cannot move the cursor."""
    assert CELLS.lines(indent=2) == [
        "  number  name",
        "       3  a <b>",
        "   1,200  c\\x1b[2J",
    ]


def test_a_row_of_fewer_cells_widens_no_column() -> None:
    """Its last cell says why there are no others, at any length."""
    table = Table([("1", "2", "3"), ("4", "not planned: too long for a column")], ("a", "b", "c"))

    assert table.lines() == ["a  b  c", "1  2  3", "4  not planned: too long for a column"]
    assert Table([]).lines() == []


def test_html_has_the_same_cells() -> None:
    """Escaped, with heads only where there are some."""
    assert CELLS.html("figures").startswith(
        '<table class="figures"><thead><tr><th>number</th><th>name</th></tr></thead>'
    )
    assert "<td>a &lt;b&gt;</td>" in CELLS.html()
    assert "<thead>" not in Table([("1",)]).html()
