"""YAML as job files use it: YAML 1.2's core schema, no repeated keys, and the line of each key.

PyYAML speaks YAML 1.1, where `no` is false, `1e-4` is a string, `12:30` is 750 and `2024-01-01` is
a date: each would decide bytes behind the user's back. Here plain scalars are what JSON has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from penstock.server.place import KeyPath, Place
from penstock.wire.errors import InvalidJob


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


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
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def read(path: Path, shown: str) -> tuple[Any, Place]:
    """Return the values of a YAML or JSON file, and the place of its top.

    Args:
        path: The file; JSON is read as YAML, of which it is a part.
        shown: The file as the user named it, for messages.

    Raises:
        InvalidJob: The file cannot be read, is no YAML, or repeats a key; names the line.
    """
    # Not resolve(): a mounted ConfigMap is a link, and its store must not land behind it.
    base = path.absolute().parent
    place = Place(shown, base)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise place.error(f"the job file cannot be read: {error.strerror} ({path})") from None
    except UnicodeDecodeError as error:
        raise place.error(
            f"the job file is not UTF-8 text (byte {error.start}): is it the right file?"
        ) from None
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # legal between JSON's tokens, illegal as YAML's indentation
    lines: dict[KeyPath, int] = {}
    place = Place(shown, base, (), lines)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, place
        _walk(node, (), lines, place)
        return loader.construct_document(node), place
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, place) from None
    except yaml.YAMLError as error:
        raise place.error(f"this is not YAML: {str(error).splitlines()[0]}") from None
    finally:
        loader.dispose()


def _syntax(error: yaml.MarkedYAMLError, place: Place) -> InvalidJob:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 1
    problem = error.problem or error.context or "cannot be read"
    top = Place(place.file, place.base, (), {(): line})
    return top.error(f"this is not YAML: {problem}", line=line)


def _walk(
    node: yaml.Node,
    path: KeyPath,
    lines: dict[KeyPath, int],
    place: Place,
    above: tuple[yaml.Node, ...] = (),
) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if any(node is outer for outer in above):
        raise place.at(*path).error(f"{place.at(*path).key} contains itself by an alias")
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        for index, inner in enumerate(node.value):
            _walk(inner, (*path, index), lines, place, above)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
            continue
        line = key.start_mark.line + 1
        if key.value in seen:
            lines[(*path, key.value)] = line
            raise place.at(*path, key.value).error(
                f"{place.at(*path, key.value).key} is given twice, first on line "
                f"{seen[key.value]}: remove one of them"
            )
        seen[key.value] = line
        lines[(*path, key.value)] = line
        _walk(value, (*path, key.value), lines, place, above)


__all__ = ["read"]
