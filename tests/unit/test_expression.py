"""Cost expressions: the value of every element as IEEE 754 says it, and a sentence for the rest."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from penstock.server.planning.log.cost_expression import (
    MAX_CHARS,
    MAX_NESTED,
    MAX_SIGNS,
    Expression,
)
from penstock.wire.errors import InvalidJob

NAMES = ("tokens", "squares", "samples")
KEY = "jobs.sft.plan.balance"


class Rounded:
    """A float64 whose every operation is done in exact fractions, then rounded once."""

    def __init__(self, value: float | Fraction) -> None:
        self.value = float(value)

    def __add__(self, other: Rounded) -> Rounded:
        return Rounded(Fraction(self.value) + Fraction(other.value))

    def __sub__(self, other: Rounded) -> Rounded:
        return Rounded(Fraction(self.value) - Fraction(other.value))

    def __mul__(self, other: Rounded) -> Rounded:
        return Rounded(Fraction(self.value) * Fraction(other.value))

    def __truediv__(self, other: Rounded) -> Rounded:
        return Rounded(Fraction(self.value) / Fraction(other.value))

    def __pow__(self, power: int) -> Rounded:
        found = self
        for _ in range(power - 1):
            found = found * self
        return found

    def __neg__(self) -> Rounded:
        return Rounded(-self.value)

    def __lt__(self, other: Rounded) -> bool:
        return self.value < other.value


def random_text(rng: random.Random, depth: int) -> tuple[str, str]:
    """Return an expression, and the same for Python to evaluate with `Rounded` numbers."""
    kind = rng.choice(["name", "number"] if depth == 0 else ["two", "two", "choice", "power", "-"])
    if kind == "name":
        name = rng.choice(NAMES)
        return name, name
    if kind == "number":
        number = rng.choice(["2", "0.1", ".5", "8192", "1e-3", "3.", "12345678901234567890"])
        return number, f"R({number})"
    text, same = random_text(rng, depth - 1)
    if kind == "power":
        power = rng.choice((2, 3, 4))
        return f"({text}) ** {power}", f"({same}) ** {power}"
    if kind == "-":
        return f"-({text})", f"-({same})"
    other, other_same = random_text(rng, depth - 1)
    if kind == "choice":
        name = rng.choice(("min", "max"))
        return f"{name}({text}, {other})", f"{name}({same}, {other_same})"
    sign = rng.choice("+-*/")
    return f"({text}){sign}  ({other})", f"({same}) {sign} ({other_same})"


def test_every_operation_is_rounded_once() -> None:
    """Random expressions give the bits of a loop in exact fractions, rounded at every operation."""
    rng = random.Random(20)
    values = {
        "tokens": np.array([1, 7, 8192, 131_072, 3], dtype=np.int64),
        "squares": np.array([1, 49, 2**53 + 1, 2**34 + 1, 5], dtype=np.int64),
        "samples": np.array([0.1, 3, 1 / 3, -2.5, 1e6]),
    }
    compared = 0
    while compared < 300:
        text, same = random_text(rng, rng.randrange(1, 5))
        try:
            found = Expression(text, NAMES, KEY).of(values)
        except InvalidJob as error:
            assert any(why in error.message for why in ("zero", "names nothing", "exceeds"))  # noqa: PT017
            continue
        for element in range(5):
            numbers = {name: Rounded(array[element]) for name, array in values.items()}
            expected = eval(same, {"R": Rounded, **numbers})
            assert found[element].tobytes() == np.float64(expected.value + 0.0).tobytes(), text
        compared += 1


def test_it_reads_as_python_does() -> None:
    """Precedence, unary minus before powers, line breaks, integers of any kind."""
    values = {name: np.array([5], dtype) for name, dtype in zip(NAMES, "Bef", strict=True)}
    for text, expected in {
        "-tokens ** 2": -25,
        "2 + tokens * 3": 17,
        "tokens - 1 - 1": 3,
        "tokens / 2 / 5": 0.5,
        "\n  tokens\n  + 1\t": 6,
        "max(tokens, 9, 7, squares)": 9,
        "min(tokens, 9, 2)": 2,
        "tokens ** (2)": 25,
        "tokens - -tokens": 10,
    }.items():
        found = Expression(text, NAMES, KEY).of(values)
        assert found.dtype == np.float64
        assert found.tolist() == [expected]


def test_one_text_has_one_canonical_text() -> None:
    """Spaces and spellings of a number do not count, and it is an expression of the same value."""
    texts = ("tokens+squares/8192", " tokens + squares / 8192.0 ", "tokens + (squares/8.192e3)")
    assert {Expression(text, NAMES, KEY).to_json() for text in texts} == {
        "(tokens + (squares / 8192.0))"
    }
    rng = random.Random(4)
    for _ in range(100):
        text, _ = random_text(rng, 3)
        try:
            written = Expression(text, NAMES, KEY).to_json()
        except InvalidJob:
            continue
        assert Expression(written, NAMES, KEY).to_json() == written
    assert Expression("-max(tokens, 1)**3", NAMES, KEY).to_json() == "(-(max(tokens, 1.0) ** 3))"
    assert Expression("samples + tokens", NAMES, KEY).names == ("samples", "tokens")


def test_zeros_have_no_sign() -> None:
    """Which of 0.0 and -0.0 is larger is not defined, so neither reaches the result."""
    values = {"tokens": np.array([0.0, -0.0]), "samples": np.array([-0.0, 0.0])}
    for text in ("max(tokens, samples)", "min(tokens, samples)", "-tokens", "0 * -samples"):
        assert not np.signbit(Expression(text, NAMES, KEY).of(values)).any()


def test_what_is_not_finite_is_told_with_its_element() -> None:
    """Also where a later operation would hide it."""
    values = {"tokens": np.array([3, 0, 1]), "samples": np.array([1.0, 2.0, 1e200])}
    for text, sentence in {
        "samples / tokens": r"\(samples / tokens\) divides by zero, in element 1 "
        r"\(samples = 2, tokens = 0\)",
        "1 / (1 / tokens)": "divides by zero, in element 1",
        "min(samples ** 2, 5)": r"\(samples \*\* 2\) exceeds 1.8e308, in element 2",
        "-samples * samples": "exceeds 1.8e308, in element 2",
    }.items():
        with pytest.raises(InvalidJob, match=sentence) as caught:
            Expression(text, NAMES, KEY).of(values)
        assert caught.value.key == KEY
    for bad in (np.nan, np.inf):
        with pytest.raises(InvalidJob, match=f"tokens is {bad}, in element 1"):
            Expression("min(tokens, 1)", NAMES, KEY).of({"tokens": np.array([1.0, bad])})
    with pytest.raises(ValueError, match="needs squares, given are samples, tokens"):
        Expression("squares + 1", NAMES, KEY).of(values)
    with pytest.raises(ValueError, match="differ in length"):
        Expression("samples + tokens", NAMES, KEY).of({**values, "samples": np.ones(2)})
    with pytest.raises(ValueError, match=r"shape \(1, 1\)"):
        Expression("tokens + 1", NAMES, KEY).of({"tokens": np.ones((1, 1))})
    assert len(Expression("tokens + 1", NAMES, KEY).of({"tokens": np.ones(0)})) == 0


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("", 1, "it ends: allowed are numbers"),
        (" \n", 1, "it ends"),
        ("tokens + tokns", 10, "'tokns' is not known: did you mean tokens"),
        ("tokens +", 9, "missing or too much"),
        ("tokens tokens", 8, "missing or too much"),
        ("12", 1, "names nothing"),
        ("tokens // 2", 8, "'//' is not allowed"),
        ("tokens % 2", 8, "'%' is not allowed"),
        ("tokens ** 5", 11, "a power is not one of 2, 3, 4"),
        ("tokens ** 2.0", 11, "a power is not"),
        ("tokens ** -2", 11, "a power is not"),
        ("tokens ** tokens", 11, "a power is not"),
        ("2 ** 3 ** 2 + tokens", 6, "a power is not"),
        ("__import__(tokens)", 1, "'__import__' is not known"),
        ("tokens.__class__", 1, "something is not allowed"),
        ("tokens[0]", 7, "is not allowed"),
        ("(lambda: tokens)()", 8, "':' is not allowed"),
        ("tokens if True else 0", 1, "something is not allowed"),
        ("1e5or tokens", 1, "'1e5or' is not allowed"),
        ("tokens == 1", 8, "'=' is not allowed"),
        ("tokens, 1", 1, "something is not allowed"),
        ("()", 1, ""),
        ("+tokens", 1, "something is not allowed"),
        ("*tokens", 1, ""),
        ("tokens(1)", 1, "tokens is called"),
        ("min", 1, "not allowed"),
        ("min(tokens)", 1, "fewer than two"),
        ("min(*tokens, 1)", 5, "not allowed"),
        ("max()", 1, "fewer than two"),
        ("(tokens", 1, "missing or too much"),
        ("tokens)", 7, "missing or too much"),
        ("1_000 * tokens", 1, "'1_000' is not allowed"),
        ("0x10 * tokens", 1, "'0x10' is not allowed"),
        ("2j * tokens", 1, "'2j' is not allowed"),
        ("007 * tokens", 1, ""),
        ("1e999 * tokens", 1, "a number exceeds"),
        ("9" * 999, 1, "a number exceeds"),
        ("tokens\N{SUPERSCRIPT TWO}", 7, "is not allowed"),
        ("t\N{FULLWIDTH LATIN SMALL LETTER O}kens", 2, "is not allowed"),
        ("tokens\0", 7, "is not allowed"),
        ("tokens  # all", 9, "'#' is not allowed"),
        ("tokens" + " " * MAX_CHARS, MAX_CHARS + 1, f"at most {MAX_CHARS} characters"),
        ("(" * MAX_CHARS, MAX_NESTED + 1, "parentheses within each other"),
        ("-" * (MAX_SIGNS + 1) + "tokens", MAX_SIGNS + 1, f"more than {MAX_SIGNS} signs"),
    ],
)
def test_other_texts_are_refused_with_the_place(text: str, place: int, why: str) -> None:
    """Hostile ones, too: nothing runs, and no limit of the parser is met."""
    with pytest.raises(InvalidJob) as caught:
        Expression(text, NAMES, KEY)

    message = caught.value.message
    assert message.startswith(f'{KEY} is "')
    assert f", and at character {place} " in message
    assert why in message
    assert len(message) < 800


def test_long_texts_of_one_shape_are_read_and_computed_at_once() -> None:
    """What could double with each level does not: powers of powers, and signs of signs."""
    nested = "(" * MAX_NESTED + "samples" + ") ** 4" * MAX_NESTED
    deep = "-" * (MAX_SIGNS - 1) + "samples"
    ones = {"samples": np.ones(2)}
    for text in (nested, deep, "+".join(["samples"] * (MAX_SIGNS // 2))):
        expression = Expression(text, NAMES, KEY)
        assert len(expression.to_json()) < 2 * MAX_CHARS
        assert abs(expression.of(ones)).tolist() in ([1, 1], [MAX_SIGNS // 2] * 2)


def test_what_is_no_text_is_refused() -> None:
    """YAML gives a number for `balance: 12`."""
    with pytest.raises(InvalidJob, match=f"{KEY} is 12: give an expression as text"):
        Expression(12, NAMES, KEY)  # type: ignore[arg-type]
