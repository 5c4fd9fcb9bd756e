"""Print how large the code is: for a change that says what it removed.

Lines are those of code: no blank ones, comments or docstrings. Generated code is left out.
A circle is a set of files each of which imports, at any depth, each other one.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PRODUCT = ("proto", "server", "client")
GENERATED = ("_pb2.py", "_pb2_grpc.py")
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
METHODS, PARAMETERS, LINES = 15, 5, 500
"""What has more (a class, a function) or as many (a file) is counted."""


def files(*folders: str) -> Iterator[Path]:
    """Return the files of Python below these folders, without generated ones."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if not file.name.endswith(GENERATED):
                yield file


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the lines of strings that stand alone: docstrings, and those below constants."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(text: str, tree: ast.Module) -> int:
    """Return how many lines of a file have code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstring_lines(tree))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many parameters a function has beside `self` or `cls`."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return sets of modules that import each other (Tarjan, 1972, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []
    for root in sorted(graph.modules):
        if root in index:
            continue
        work = [(root, iter(sorted(graph.find_modules_directly_imported_by(root))))]
        index[root] = low[root] = len(index)
        path.append(root)
        while work:
            module, imported = work[-1]
            for each in imported:
                if each not in index:
                    index[each] = low[each] = len(index)
                    path.append(each)
                    below = iter(sorted(graph.find_modules_directly_imported_by(each)))
                    work.append((each, below))
                    break
                if each in path:
                    low[module] = min(low[module], index[each])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[module])
                if low[module] == index[module]:
                    start = path.index(module)
                    if len(path) - start > 1:
                        found.append(sorted(path[start:]))
                    del path[start:]
    return found


def main() -> None:
    """Print the table."""
    counted = dict.fromkeys(("product", "tests"), 0)
    many_methods, many_parameters, long_files = [], [], []
    for name, folders in (("product", PRODUCT), ("tests", ("tests",))):
        for file in files(*folders):
            text = file.read_text()
            tree = ast.parse(text)
            counted[name] += code_lines(text, tree)
            if name == "tests":
                continue
            place = str(file.relative_to(ROOT))
            if text.count("\n") >= LINES:
                long_files.append(f"{place} {text.count(chr(10))}")
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    methods = [each for each in node.body if isinstance(each, FUNCTIONS)]
                    if len(methods) > METHODS:
                        many_methods.append(f"{place}:{node.name} {len(methods)}")
                elif isinstance(node, FUNCTIONS) and parameters(node) > PARAMETERS:
                    many_parameters.append(f"{place}:{node.name} {parameters(node)}")
    graph = grimp.build_graph(
        "penstock.wire", "penstock.common", "penstock.server", "penstock.client", cache_dir=None
    )
    rings = circles(graph)
    rows = [
        ("lines of code, product", counted["product"], []),
        ("lines of code, tests", counted["tests"], []),
        (f"classes of more than {METHODS} methods", len(many_methods), many_methods),
        (f"functions of more than {PARAMETERS} parameters", len(many_parameters), many_parameters),
        (f"files of {LINES} lines and more", len(long_files), long_files),
        ("circles of imports", len(rings), [", ".join(each) for each in rings]),
    ]
    for name, number, names in rows:
        sys.stdout.write(f"{name:40} {number:>8,}\n")
        if "--names" in sys.argv:
            sys.stdout.writelines(f"    {each}\n" for each in names)


if __name__ == "__main__":
    main()
