"""The table of errors is complete both ways, and an error crosses the wire as what it is."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire import errors
from penstock.wire.errors import ERRORS, BadFrame, BadItem, PenstockError, StaleGeneration
from penstock.wire.plain import clean_text, plain_lines
from penstock.wire.sent_errors import ERROR_METADATA_KEY, decode_error, encode_error
from penstock.wire.v1 import error_pb2

EVERY = sorted(ERRORS.values(), key=lambda cls: cls.code)


def test_every_error_class_is_in_the_table_once() -> None:
    """Each class of the module has a code of its own, is in the table and is exported."""
    classes = [
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, PenstockError)
    ]

    assert len({cls.code for cls in classes}) == len(classes)
    assert set(classes) == set(EVERY)
    assert {cls.__name__ for cls in classes} <= set(errors.__all__)
    assert all(ERRORS[cls.code] is cls for cls in classes)


def test_the_tree_at_the_top_of_the_file_names_every_error() -> None:
    tree = str(errors.__doc__).split("```")[1].replace(" (", ", (")
    lines = [line for line in tree.splitlines() if line.startswith("    ")]
    named = [name.strip() for line in lines for name in line.split(",") if "(" not in name]
    assert sorted(name for name in named if name) == sorted(
        cls.__name__ for cls in ERRORS.values() if cls is not PenstockError
    )
    # In the order of the file.
    places = [inspect.getsourcelines(getattr(errors, name))[1] for name in named if name]
    assert places == sorted(places)


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_says_what_it_is(cls: type[PenstockError]) -> None:
    """Its code is its own name in lower case, its status a canonical one; it is documented."""
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    assert cls.code == snake
    assert cls.status in grpc.StatusCode.__members__
    assert cls.status not in ("OK", "CANCELLED")
    assert "code" in vars(cls)
    assert "status" in vars(cls)
    assert cls.__doc__


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_crosses_the_wire(cls: type[PenstockError]) -> None:
    """Class, sentence and fields arrive, over gRPC and between processes."""
    fields: dict[str, Any] = {"n": 1, "t": "é", "l": [1, None], "message": "m", "self": {"a": 0.5}}
    error = cls.with_fields("what is, and what to do", fields)

    for found in (decode_error(encode_error(error)), pickle.loads(pickle.dumps(error))):
        assert type(found) is cls
        assert str(found) == "what is, and what to do"
        assert found.fields == fields


def test_the_metadata_key_is_binary() -> None:
    """Metadata of gRPC takes bytes only under keys that end in -bin, and only lower case."""
    assert ERROR_METADATA_KEY.endswith("-bin")
    assert ERROR_METADATA_KEY.islower()


def test_an_unknown_code_is_the_base_class() -> None:
    """A newer server's error is still an error with its sentence and fields."""
    data = error_pb2.Error(code="from_the_future", message="m", fields='{"a": 1}')

    found = decode_error(data.SerializeToString())

    assert type(found) is PenstockError
    assert (str(found), found.fields) == ("m", {"a": 1})


def test_a_long_traceback_costs_neither_code_nor_sentence() -> None:
    """It is cut to its last lines, which say what was raised; the other fields stay whole."""
    lines = [f"  File data.py, line {n}, in decode" for n in range(10_000)]
    traceback = "\n".join([*lines, "ValueError: not an image"])

    found = decode_error(
        encode_error(BadItem("item 3 fails", item=["s", 3, 0], traceback=traceback))
    )

    assert type(found) is BadItem
    assert str(found) == "item 3 fails"
    assert found.fields["item"] == ["s", 3, 0]
    assert found.fields["traceback"].endswith("in decode\nValueError: not an image")
    assert found.fields["traceback"].startswith("...")


wild = st.text(max_size=50) | st.text(min_size=1, max_size=9).map(lambda text: text * 2000)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | wild | st.builds(object),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(wild, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("red \x1b[31m and a title \x1b]0;x\x07", "red \\x1b[31m and a title \\x1b]0;x\\x07"),
        ("two\nlines\tand a\rreturn", "two\nlines\tand a\\rreturn"),
        ("turned \u202earound", "turned \\u202earound"),
        ("half \ud800", "half \\ud800"),
        ("é, 漢 and 🙂 as they are", "é, 漢 and 🙂 as they are"),
    ],
)
def test_no_terminal_obeys_what_an_error_says(said: str, shown: str) -> None:
    """Neither one that was raised here, nor one that came over the wire, nor its traceback."""
    raised = BadItem(said, traceback=f"{said}\nValueError: x")
    message = error_pb2.Error(code="bad_item", message=said.encode(errors="replace").decode())

    assert str(raised) == shown
    assert raised.traceback == f"{shown}\nValueError: x"
    assert raised.__notes__ == [raised.traceback]
    assert str(decode_error(encode_error(raised))) == shown
    assert str(decode_error(message.SerializeToString())) == plain_lines(message.message)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of what it has drawn
@settings(deadline=None)
@given(
    st.text(st.characters()) | wild,
    st.dictionaries(st.text(min_size=1, max_size=9), values, max_size=40),
)
def test_no_error_outgrows_the_metadata(message: str, fields: dict[str, Any]) -> None:
    """In base64, beside the sentence once more, any error stays below what HTTP/2 peers accept."""
    data = encode_error(StaleGeneration.with_fields(message, fields))

    assert len(data) * 4 / 3 < 6 << 10
    found = decode_error(data)
    assert type(found) is StaleGeneration
    sent = plain_lines(message)
    kept, note, _ = str(found).rpartition("... (")
    assert sent.startswith(kept if note and str(found) != sent else str(found))
    assert str(found) == sent or len(str(found).encode()) > 1490


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        error_pb2.Error(code="bad_item", fields="{").SerializeToString(),
        error_pb2.Error(code="bad_item", fields="[" * 100_000).SerializeToString(),
    ],
)
def test_an_error_that_cannot_be_read_is_a_bad_frame(data: bytes) -> None:
    """Metadata that something has damaged does not hide that there was an error."""
    found = decode_error(data)

    assert type(found) is BadFrame
    assert "output" in str(found)


def test_fields_that_are_no_object_are_left_out() -> None:
    """The class and the sentence are worth more than fields nobody can name."""
    found = decode_error(
        error_pb2.Error(code="bad_item", message="m", fields="[1]").SerializeToString()
    )

    assert type(found) is BadItem
    assert (str(found), found.fields) == ("m", {})


def test_every_error_class_is_raised_under_its_name_alone() -> None:
    """The table stands in one file: no other file of the wire defines an error."""
    folder = Path(errors.__file__).parent

    definitions = [
        path.name
        for path in sorted(folder.glob("*.py"))
        if re.search(r"^class \w+\((\w*Error|Exception)\)", path.read_text(), re.MULTILINE)
    ]

    assert definitions == ["errors.py"]


@given(text=st.text(st.characters(), max_size=300), limit=st.integers(64, 200))
def test_a_clean_text_is_unicode_and_bounded(text: str, limit: int) -> None:
    """Whatever a text holds, what is left of it is whole Unicode and no longer than asked."""
    clean = clean_text(text, limit)

    assert clean.encode() is not None
    assert len(clean) <= limit


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_clean_text_that_fits_is_the_text(text: str) -> None:
    """A text of whole Unicode within the limit stays as it is."""
    assert clean_text(text, 300) == text


def test_a_text_that_is_cut_says_how_much_is_missing() -> None:
    """The beginning is kept, half surrogate pairs are readable, and the count is exact."""
    assert clean_text("a" * 1000, 64) == "a" * 38 + "... (962 more characters)"
    assert clean_text("bad \udcff name", 64) == "bad \\udcff name"
    cut = clean_text("\udcff" * 50, 64)
    assert cut == "\\udcff" * 6 + "... (44 more characters)"
