"""One word for one thing: no class and no file of the product has the name of another one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [
    file
    for folder in ("proto", "server", "client")
    for file in sorted((ROOT / folder).rglob("*.py"))
    if "_pb2" not in file.name
]

SAME = {
    "bench.py": "what a job gives: to a reader of any node, and through a node of its own",
    "cli.py": "the entry point of `penstock` and that of `penstockd`",
    "errors.py": "the client's are those of the wire, under another name",
    "quarantine.py": "what a node does about it, and the command that shows it",
    "store.py": "what every store promises, and the command that moves one",
}
"""Files of one name that are about one thing, and what that is."""


def test_no_file_has_the_name_of_another() -> None:
    places = defaultdict(list)
    for file in FILES:
        if file.name not in ("__init__.py", *SAME):
            places[file.name].append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_class_has_the_name_of_another() -> None:
    places = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(file.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
