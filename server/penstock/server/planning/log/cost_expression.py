"""Cost expressions: arithmetic over counts, the same to the bit on every machine.

```
tokens + squares / 8192
0.5 * padded + 3 * samples
max(tokens, 2 * images) ** 2
```

Which batch goes to which rank may follow from such a value, so two machines that differ in its last
bit would serve different logs. Hence only what IEEE 754 defines to the bit: conversion to float64,
`+`, `-`, `*`, `/`, `min` and `max`, one operation at a time over whole arrays, in the order that
the text gives. There are no sums over elements (numpy chooses their order by the CPU), no `exp` or
`log` (each C library rounds them in its own way), and a power is repeated multiplication. An array
holds each intermediate value, so that no compiler joins a product and a sum into one rounding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.common.nearest import hint
from penstock.wire.errors import InvalidJob

MAX_CHARS = 1000
MAX_SIGNS = 200
"""Operators, commas and opening parentheses: this bounds the work, and the depth of the tree."""

MAX_NESTED = 20
"""Parentheses that are open at once: a parser that looks for the error in many tries takes long."""

POWERS = (2, 3, 4)

ALLOWED = (
    "numbers, names, +, -, *, /, parentheses, min(...), max(...), and powers "
    f"{', '.join(f'**{power}' for power in POWERS)}"
)

_SHOWN = 200
"""Characters of a text, and of a word in it, that a message shows."""

_OTHER = re.compile(
    r"//|[^A-Za-z0-9_.()+*/, \t\r\n-]"
    r"|(?<![\w.])(?=\.?\d)\d*+\.?+\d*+(?:[eE][+-]?\d++)?+[\w.]+"
)
"""What Python knows and an expression does not have: other signs, and numbers of other forms."""

Float64s: TypeAlias = NDArray[np.float64]

_OPERATIONS: dict[type[ast.operator], tuple[str, Callable[[Float64s, Float64s], Float64s]]] = {
    ast.Add: ("+", np.add),
    ast.Sub: ("-", np.subtract),
    ast.Mult: ("*", np.multiply),
    ast.Div: ("/", np.true_divide),
}

_CHOICES: dict[str, Callable[[Float64s, Float64s], Float64s]] = {
    "min": np.minimum,
    "max": np.maximum,
}


class Expression:
    """A cost expression of a job file, checked.

    Two texts of one meaning may differ in `to_json`: `a + b` and `b + a` are different expressions.

    Args:
        text: Numbers, names, `+ - * /`, parentheses, unary minus, powers `**2` to `**4`, and `min`
            and `max` of two or more.
        names: The names that may be used.
        key: Its place in a job file, for messages.

    Attributes:
        names: The names that it uses, sorted; at least one.

    Raises:
        InvalidJob: It is not such an expression; says where.
    """

    def __init__(self, text: str, names: Collection[str], key: str) -> None:
        self._key = key
        if not isinstance(text, str):
            raise InvalidJob(
                f"{key} is {text!r}: give an expression as text, such as "
                f'"{next(iter(sorted(names)), "tokens")} / 8192"',
                key=key,
            )
        self._text, self._allowed = text, names
        self._check_bounds()
        self._root = self._parse()
        self.names = tuple(sorted(_names(self._root)))
        if not self.names:
            raise self._wrong(0, f"it names nothing, so its value is always the same; {self._hint}")

    def to_json(self) -> str:
        """Return the same text for a text, however it is spaced: every operation in parentheses."""
        return _written(self._root)

    def of(self, values: Mapping[str, NDArray[np.number]]) -> Float64s:
        """Return the value for each element.

        Args:
            values: For each of `names` an array of shape (n,) of integers or floats, which are
                converted to float64 first; others are not looked at.

        Returns:
            float64 of shape (n,): finite, and no zero is negative. The bits are the same on every
            machine, unless a library has told the CPU to flush subnormal numbers to zero and a
            value comes below 2.3e-308.

        Raises:
            InvalidJob: A value, also an intermediate one, is not finite, or something is divided by
                zero; names the first such element.
            ValueError: A name is missing, or the shapes differ.
        """
        arrays: dict[str, Float64s] = {}
        for name in self.names:
            if name not in values:
                raise ValueError(f"{self._key} needs {name}, given are {', '.join(sorted(values))}")
            arrays[name] = np.asarray(values[name]).astype(np.float64)
            if arrays[name].ndim != 1:
                raise ValueError(f"{name} has shape {arrays[name].shape}: give one of shape (n,)")
        sizes = {name: len(array) for name, array in arrays.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"the values of {self._key} differ in length: {sizes}")
        for name, array in arrays.items():
            if len(bad := np.flatnonzero(~np.isfinite(array))):
                raise self._failed(f"{name} is {array[bad[0]]}", int(bad[0]), arrays)
        with np.errstate(all="ignore"):  # every result is looked at, on every machine alike
            found = self._value(self._root, arrays)
            # IEEE 754 leaves open which of 0.0 and -0.0 is the larger: what is left has no sign.
            return np.add(found, 0.0)

    def _value(self, node: _Node, arrays: Mapping[str, Float64s]) -> Float64s:
        if isinstance(node, float):
            return np.full(len(arrays[self.names[0]]), node)
        if isinstance(node, str):
            return arrays[node]
        parts = [self._value(part, arrays) for part in node.parts]
        if node.sign == "/" and len(zero := np.flatnonzero(parts[1] == 0)):
            raise self._failed(f"{_written(node)} divides by zero", int(zero[0]), arrays)
        if node.sign == "-" and len(parts) == 1:
            return np.negative(parts[0])
        found = parts[0]
        for part in parts[1:]:
            found = node.apply(found, part)
        if node.sign == "**":
            # From left to right, each product rounded: no library's `pow`.
            for _ in range(node.power - 1):
                found = np.multiply(found, parts[0])
        if len(bad := np.flatnonzero(~np.isfinite(found))):
            raise self._failed(f"{_written(node)} exceeds 1.8e308", int(bad[0]), arrays)
        return found

    def _failed(self, what: str, element: int, arrays: Mapping[str, Float64s]) -> InvalidJob:
        given = ", ".join(f"{name} = {array[element]:g}" for name, array in arrays.items())
        return InvalidJob(
            f"{self._key}: {what}, in element {element} ({given}): change the expression so that "
            "it has a finite value for every one, for example by max(1, ...) around a divisor",
            key=self._key,
        )

    def _wrong(self, place: int, why: str) -> InvalidJob:
        """Return the error: `place` counts characters from 0, and is told from 1."""
        return InvalidJob(
            f'{self._key} is "{_cut(_one_line(self._text))}", and at character {place + 1} {why}',
            key=self._key,
        )

    @property
    def _hint(self) -> str:
        return f"allowed are {ALLOWED}; names are {', '.join(sorted(self._allowed))}"

    def _check_bounds(self) -> None:
        """Refuse what is long, nested or of other signs.

        Before the parser sees it: it has limits of its own, which differ from Python to Python.
        """
        text = self._text
        if len(text) > MAX_CHARS:
            raise self._wrong(
                MAX_CHARS, f"it goes on to {len(text)}: give at most {MAX_CHARS} characters"
            )
        if other := _OTHER.search(text):
            word = _cut(other.group())
            raise self._wrong(other.start(), f"{word!r} is not allowed: {self._hint}")
        signs, nested = 0, 0
        for place, character in enumerate(text):
            signs += character in "+-*/(,"
            nested += {"(": 1, ")": -1}.get(character, 0)
            if signs > MAX_SIGNS:
                raise self._wrong(place, f"there are more than {MAX_SIGNS} signs")
            if nested > MAX_NESTED:
                raise self._wrong(
                    place, f"there are more than {MAX_NESTED} parentheses within each other"
                )

    def _parse(self) -> _Node:
        line = _one_line(self._text).rstrip()
        if not line:
            raise self._wrong(0, f"it ends: {self._hint}")
        start = len(line) - len(line := line.lstrip())
        try:
            tree = ast.parse(line, mode="eval")
        except SyntaxError as error:
            place = start + min(error.offset - 1 if error.offset else len(line), len(line))
            why = "something is missing or too much"
            raise self._wrong(place, f"{why}: {self._hint}") from error
        return self._node(tree.body, start)

    def _node(self, node: ast.expr, start: int) -> _Node:
        place = start + node.col_offset

        def inner(*parts: ast.expr) -> tuple[_Node, ...]:
            return tuple(self._node(part, start) for part in parts)

        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._number(value, place)
            case ast.Name(id=name) if name in self._allowed:
                return name
            case ast.Name(id=name) if name not in _CHOICES:
                near = hint(name, self._allowed)
                raise self._wrong(place, f"{_cut(name)!r} is not known: {near}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _Operation("-", inner(operand), np.subtract)
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                power = right.value if isinstance(right, ast.Constant) else None
                if not isinstance(power, int) or power not in POWERS:
                    raise self._wrong(
                        start + right.col_offset,
                        "a power is not one of "
                        f"{', '.join(map(str, POWERS))}: others are not rounded alike everywhere",
                    )
                return _Operation("**", inner(left), np.multiply, power)
            case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _OPERATIONS:
                sign, apply = _OPERATIONS[type(operator)]
                return _Operation(sign, inner(left, right), apply)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CHOICES:
                if len(args) < 2:
                    raise self._wrong(place, f"{name}() has fewer than two values")
                return _Operation(name, inner(*args), _CHOICES[name])
            case ast.Call(func=ast.Name(id=name) as function) if name not in _CHOICES:
                inner(function)
                raise self._wrong(place, f"{name} is called, and only min and max can be")
        raise self._wrong(place, f"something is not allowed: {self._hint}")

    def _number(self, value: float, place: int) -> float:
        try:
            found = float(value)
        except OverflowError:
            found = np.inf
        if not np.isfinite(found):
            raise self._wrong(place, "a number exceeds 1.8e308")
        return found


@dataclass(frozen=True)
class _Operation:
    """An operation: of one part (minus, a power), of two, or of several from left to right."""

    sign: str
    parts: tuple[_Node, ...]
    apply: Callable[[Float64s, Float64s], Float64s]
    power: int = 1


_Node: TypeAlias = _Operation | str | float


def _names(node: _Node) -> set[str]:
    if isinstance(node, _Operation):
        return set().union(*map(_names, node.parts))
    return {node} if isinstance(node, str) else set()


def _written(node: _Node) -> str:
    """Return it as text that does not depend on Python's version, as `ast.unparse` does."""
    if isinstance(node, float):
        return repr(node)
    if isinstance(node, str):
        return node
    parts: Sequence[str] = [_written(part) for part in node.parts]
    if node.sign in _CHOICES:
        return f"{node.sign}({', '.join(parts)})"
    if node.sign == "**":
        return f"({parts[0]} ** {node.power})"
    if len(parts) == 1:
        return f"(-{parts[0]})"
    return f"({f' {node.sign} '.join(parts)})"


def _one_line(text: str) -> str:
    """Return it with a space for each break: every character stays at its place."""
    return re.sub(r"[\t\r\n]", " ", text)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
