"""YAML as job files use it: YAML 1.2's core schema, no repeated keys, and the line of each key.

PyYAML speaks YAML 1.1, where `no` is false, `1e-4` is a string, `12:30` is 750 and `2024-01-01` is
a date: each would change bytes without the user noticing. Here plain scalars are those of JSON.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from penstock.server.config.location import KeyPath, Location
from penstock.server.core.shown import shown
from penstock.wire.errors import InvalidJob

MAX_FILE_BYTES = 1 << 20
"""A job file is written by people; PyYAML takes seconds for 1 MiB. Data belongs in other files."""

MAX_DEPTH, MAX_VALUES, MAX_DIGITS = 64, 100_000, 64
"""Nesting, values with every alias written out, and digits of a number: a few lines of aliases can
stand for 10^9 values, and Python's own limits end in a traceback."""


class _TooDeep(Exception):
    """A value stands inside too many others."""

    def __init__(self, mark: yaml.Mark) -> None:
        super().__init__()
        self.line: int = mark.line + 1


class _Loader(yaml.SafeLoader):
    """SafeLoader with the values of YAML 1.2's core schema, and a bound on nesting."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node as PyYAML does, but not inside more than `MAX_DEPTH` others."""
        if self._depth > MAX_DEPTH:
            raise _TooDeep(self.get_mark())
        self._depth += 1
        try:
            node = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        if node is not None:
            _check_tag(node)
        return node


_PREFIX = "tag:yaml.org,2002:"

_SCALARS: dict[str, re.Pattern[str]] = {}
"""Patterns of plain values by their tag: a tag that is written out goes by the same."""

_OTHERS = {_PREFIX + name for name in ("str", "seq", "map")}

for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.[0-9]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN))$",
        "-+0123456789.",
    ),
    ("merge", r"^<<$", "<"),
):
    _SCALARS[_PREFIX + _tag] = re.compile(_pattern)
    _Loader.add_implicit_resolver(_PREFIX + _tag, _SCALARS[_PREFIX + _tag], list(_first))


class _WrongTag(yaml.MarkedYAMLError):
    """A tag that job files do not have; the problem is a sentence."""


def _check_tag(node: yaml.Node) -> None:
    """Refuse `!!int x`, of which PyYAML makes a traceback, and dates, sets and bytes.

    Raises:
        _WrongTag: The tag is not that of a value of JSON, or the value is another.
    """
    pattern = _SCALARS.get(node.tag)
    if pattern is None and node.tag in _OTHERS:
        return
    name = node.tag.replace(_PREFIX, "!!", 1)
    if pattern is None:
        problem = f"the tag {shown(name)} is not that of a value of JSON"
    elif not isinstance(node, yaml.ScalarNode) or not pattern.match(node.value):
        problem = f"a value has the tag {name} and is none"
    else:
        return
    raise _WrongTag(problem=f"{problem}: write the value without it", problem_mark=node.start_mark)


def read(path: Path, shown: str) -> tuple[Any, Location]:
    """Return the values of a YAML or JSON file, and the location of its top.

    Args:
        path: The file; JSON is read as YAML, of which it is a subset.
        shown: The file as the user named it, for messages.

    Raises:
        InvalidJob: The file cannot be read, is not YAML, or repeats a key; names the line.
    """
    # Not resolve(): a mounted ConfigMap is a link, and the store belongs beside the link, not
    # beside the file that it points to.
    base = path.absolute().parent
    location = Location(shown, base)
    try:
        # Opening a named pipe would wait for a writer, so this does not wait.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise location.error(
                    f"the job file {shown} is not a regular file but a pipe or a device: every "
                    "start of a node reads it again, so write it to a file"
                )
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise location.error(
                f"the job file is larger than {MAX_FILE_BYTES:,} bytes: put data and long lists "
                "into files of their own, and name those"
            )
        text = data.decode("utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise location.error(f"the job file cannot be read: {error.strerror} ({path})") from None
    except UnicodeDecodeError as error:
        raise location.error(
            f"the job file is not UTF-8 text (byte {error.start}): is it the right file?"
        ) from None
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # legal between JSON's tokens, illegal as YAML's indentation
    return parse(text, location)


def parse(text: str, location: Location) -> tuple[Any, Location]:
    """Return the content of YAML, with the lines of its keys.

    Args:
        text: YAML, or JSON without tabs.
        location: Where it stands, for messages.

    Raises:
        InvalidJob: It is not YAML, or repeats a key; names the line.
    """
    lines: dict[KeyPath, int] = {}
    location = Location(location.file, location.base, location.path, lines)
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise _at(location, line).error(_foreign(text[error.position])) from None
    try:
        try:
            node = loader.get_single_node()
        except (ValueError, OverflowError):  # PyYAML's chr()
            raise _at(location, loader.line + 1).error(
                "this is not YAML: an escape \\U is beyond the characters of Unicode"
            ) from None
        if node is None:
            return None, location
        _refuse_bombs(node, location)
        _walk(node, (), lines, location)
        return loader.construct_document(node), location
    except _TooDeep as error:
        raise _at(location, error.line).error(
            f"this is nested more than {MAX_DEPTH} levels deep: put data into a file of "
            "its own, and name that"
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, location) from None
    except yaml.YAMLError as error:
        raise location.error(f"this is not YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _foreign(character: str) -> str:
    return (
        f"this holds the character U+{ord(character):04X}, which no key or value may hold: remove "
        "it"
    )


def _at(location: Location, line: int) -> Location:
    """Return the location of a line that has no key yet."""
    return Location(location.file, location.base, (), {(): line})


def _syntax(error: yaml.MarkedYAMLError, location: Location) -> InvalidJob:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 1
    problem = error.problem or error.context or "cannot be read"
    if "'\\t'" in problem:
        problem = "a tab stands where a key or a value begins: indent with spaces"
    if not isinstance(error, _WrongTag):
        problem = f"this is not YAML: {problem}"
    return _at(location, line).error(problem)


def _refuse_bombs(top: yaml.Node, location: Location) -> None:
    """Refuse short files with large content: aliases of aliases, and numbers with very many digits.

    Each node is looked at once, however many aliases name it, so this takes no longer than the file
    is long.

    Raises:
        InvalidJob: Names the line.
    """
    measured: dict[int, tuple[int, int]] = {}  # id of a node -> (values, levels), aliases expanded
    open_nodes: set[int] = set()

    def measure(node: yaml.Node) -> tuple[int, int]:
        known = measured.get(id(node))
        if known is not None:
            return known
        at = _at(location, node.start_mark.line + 1)
        if id(node) in open_nodes:
            raise at.error("a value contains itself by an alias: write out what is meant")
        if isinstance(node, yaml.ScalarNode):
            if "\0" in node.value:  # written as an escape; no path or name can hold it
                raise at.error(_foreign("\0"))
            if node.tag.endswith((":int", ":float")) and len(node.value) > MAX_DIGITS:
                raise at.error(
                    f"a number has {len(node.value):,} characters: give at most {MAX_DIGITS}, or "
                    "put it in quotes where text is meant"
                )
            found = 1, 1
        else:
            open_nodes.add(id(node))
            inner = [
                measure(part)
                for entry in node.value
                for part in (entry if isinstance(entry, tuple) else (entry,))
            ]
            open_nodes.discard(id(node))
            found = (
                1 + sum(values for values, _ in inner),
                1 + max((levels for _, levels in inner), default=0),
            )
        if found[0] > MAX_VALUES or found[1] > MAX_DEPTH:
            what = (
                f"{found[0]:,} values" if found[0] > MAX_VALUES else f"{found[1]} levels of nesting"
            )
            raise at.error(
                f"with its aliases written out this holds {what}, and at most {MAX_VALUES:,} "
                f"values and {MAX_DEPTH} levels are read: put data into a file of its own"
            )
        measured[id(node)] = found
        return found

    measure(top)


def _walk(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], location: Location) -> None:
    """Note the line of every key, and refuse one that is given twice."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            _walk(inner, (*path, index), lines, location)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
            continue
        line = key.start_mark.line + 1
        if key.value in seen:
            lines[(*path, key.value)] = line
            raise location.at(*path, key.value).error(
                f"{location.at(*path, key.value).key} is given twice, first on line "
                f"{seen[key.value]}: remove one of them"
            )
        seen[key.value] = line
        lines[(*path, key.value)] = line
        _walk(value, (*path, key.value), lines, location)
