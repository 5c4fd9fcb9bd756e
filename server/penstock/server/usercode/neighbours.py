"""The modules that a role's code imports from its own folder: found, hashed and loaded alike.

A role's identity is the text of its module and of every module of its own folder that it may
import. They are found in the text, in functions too, so that a process that has not yet run the
import gives the same identity as one that has.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from penstock.wire.errors import InvalidJob

_OURS = "penstock"  # its own versions and the order format identify its source

_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # in Python's order

_folders: list[Path] = []
_sources: dict[str, bytes] = {}


class Neighbour(NamedTuple):
    """A module of a role's own folder.

    Attributes:
        name: As it is imported.
        path: Its file.
        source: Its bytes, as this process runs them.
    """

    name: str
    path: str
    source: bytes


def add_folder(folder: Path) -> None:
    """Let role files of a folder import their neighbours, after everything that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if folder not in _folders:
        _folders.append(folder)
        if _finder not in sys.path_hooks:
            sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.pop(str(folder), None)
    importlib.invalidate_caches()  # a neighbour may just have been written


def neighbours(source: bytes, name: str, package: str, root: Path) -> list[Neighbour]:
    """Return what a module may import from below `root`, directly or not, ordered by name.

    These are the import statements of its text, at any place in it, and `import_module` and
    `__import__` of a literal name. A name that something installed has, too, is not a neighbour's:
    Python would import the installed one.

    Args:
        source: The module's bytes.
        name: Its name; it does not count as its own neighbour.
        package: The package that its relative imports start from; empty = none.
        root: Its own folder.

    Raises:
        InvalidJob: A neighbour cannot be read, or another module of its name comes before it.
    """
    found: dict[str, Neighbour] = {}
    seen = {name}
    waiting = [(source, package)]
    while waiting:
        text, within = waiting.pop()
        for imported in _imports(text, within):
            for module in _chain(imported, root, seen):
                if module.path is None:
                    continue
                body = source_of(module.path)
                found[module.name] = Neighbour(module.name, module.path, body)
                if module.path.endswith(tuple(SOURCE_SUFFIXES)):
                    waiting.append((body, module.package))
    return [found[name] for name in sorted(found)]


def source_of(path: str) -> bytes:
    """Return a neighbour's bytes as they were first read; the same bytes are run.

    Raises:
        InvalidJob: It cannot be read.
    """
    if path not in _sources:
        try:
            _sources[path] = Path(path).read_bytes()
        except OSError as error:
            raise InvalidJob(f"{path} cannot be read: {error.strerror}", spec=path) from None
    return _sources[path]


def source_hash(source: bytes, beside: Iterable[Neighbour]) -> str:
    """Return the SHA-256, hex, of a module's text and of its neighbours' names and texts."""
    own = hashlib.sha256(source).hexdigest()
    others = [
        f"{neighbour.name}\0{hashlib.sha256(neighbour.source).hexdigest()}" for neighbour in beside
    ]
    if not others:
        return own
    return hashlib.sha256("\n".join([own, *others]).encode()).hexdigest()


def module_source_hash(module: ModuleType) -> str | None:
    """Return the hash of an importable module's file and of what it imports from its own folder.

    The own folder of a module in a package is that of the package at the top. An installed module
    counts alone: its package has a version, and may be as large as torch. None = it has no file.
    """
    path = getattr(module, "__file__", None)
    if not path or not Path(path).exists():
        return None
    if _is_installed(path):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    name, package = module.__name__, getattr(module, "__package__", "") or ""
    root = Path(path).absolute().parent
    for _ in range(name.count(".") + (Path(path).name == "__init__.py") - 1):
        root = root.parent
    source = Path(path).read_bytes()
    return source_hash(source, neighbours(source, name, package, root))


# --- what a text imports --------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Return the absolute dotted names that a text may import, in its order."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()  # importing it will raise this; its text counts all the same
    return tuple(dict.fromkeys(_spelled_out(tree, package)))


def _spelled_out(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            if base:
                yield base
                # What is named may be a module itself; `*` takes what the package lists.
                yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and (text := _literal_import(node)):
            yield _absolute(text, package)


def _literal_import(call: ast.Call) -> str:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name not in ("import_module", "__import__") or not call.args:
        return ""
    given = call.args[0]
    text = given.value if isinstance(given, ast.Constant) else None
    return text if isinstance(text, str) else ""


def _absolute(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # relative, and there is no such package: Python would refuse it, too
        return ""


# --- where an imported name lies ------------------------------------------------------------------


class _ModuleFiles(NamedTuple):
    """Where a module lies: its file, None = a folder without `__init__.py`; and its submodules."""

    name: str
    path: str | None
    folders: tuple[str, ...]

    @property
    def package(self) -> str:
        """Return what its relative imports start from."""
        return self.name if self.folders else self.name.rpartition(".")[0]


def _chain(name: str, root: Path, seen: set[str]) -> Iterator[_ModuleFiles]:
    """Yield the modules among `a`, `a.b`, `a.b.c` that are below `root` and not yet seen."""
    first, *rest = name.split(".")
    module = None if first == _OURS else _top(first, root)
    while module is not None and _is_below(module, root):
        if module.name not in seen:
            seen.add(module.name)
            yield module
        if not rest:
            return
        if rest[0] == "*":  # it may import any of them
            names = {path.stem for folder in module.folders for path in Path(folder).glob("*.py")}
            for stem in sorted(names - {"__init__"}):
                yield from _chain(f"{module.name}.{stem}", root, seen)
            return
        module = _below(module, rest.pop(0))


def _below(package: _ModuleFiles, part: str) -> _ModuleFiles | None:
    """Return where a submodule lies, without importing its package as Python's search would."""
    name = f"{package.name}.{part}"
    for folder in package.folders:
        within = os.path.join(folder, part)
        for suffix in _SUFFIXES:
            if os.path.isfile(path := os.path.join(within, f"__init__{suffix}")):
                return _ModuleFiles(name, path, (within,))
        for suffix in _SUFFIXES:
            if os.path.isfile(path := within + suffix):
                return _ModuleFiles(name, path, ())
    spread = tuple(os.path.join(folder, part) for folder in package.folders)
    spread = tuple(folder for folder in spread if os.path.isdir(folder))
    return _ModuleFiles(name, None, spread) if spread else None


def _top(name: str, root: Path) -> _ModuleFiles | None:
    """Return where Python finds a top-level name: where it is loaded from, or would be.

    Raises:
        InvalidJob: `root` has a module of that name, and Python finds another one first.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as __main__
        return None
    if spec is None:
        return None
    path = spec.origin if spec.has_location else None
    found = _ModuleFiles(name, path, tuple(spec.submodule_search_locations or ()))
    own = _below(_ModuleFiles("", None, (str(root),)), name)
    if (
        path is not None
        and own is not None
        and own.path is not None
        and not _is_below(found, root)
        and not _is_installed(path)
        and source_of(own.path) != source_of(path)
    ):
        raise InvalidJob(
            f"{own.path} cannot be imported: Python finds another module of the name {name!r} "
            f"first, {path}; rename one of them",
            spec=name,
        )
    return found


def _is_installed(path: str) -> bool:
    """Tell whether a module belongs to Python or to an installed package."""
    paths = sysconfig.get_paths()
    homes = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(Path(path).is_relative_to(home) for home in [*homes, site.getusersitepackages()])


def _is_below(module: _ModuleFiles, root: Path) -> bool:
    """Tell whether a module's file lies in a folder, or in a package in it.

    Every folder between is named as a package can be: what is installed in a virtual environment
    below the folder (`.venv`, `site-packages`) is not the user's own code.
    """
    if module.path is not None:
        return _is_own(module.path, root)
    return bool(module.folders) and all(
        _is_own(f"{folder}/__init__.py", root) for folder in module.folders
    )


def _is_own(path: str, root: Path) -> bool:
    # One folder may have two names on the way to it; a file in it that is a link stays in it.
    folder, home = Path(os.path.realpath(os.path.dirname(path))), Path(os.path.realpath(root))
    return folder.is_relative_to(home) and all(
        part.isidentifier() for part in folder.relative_to(home).parts
    )


# --- how it is loaded -----------------------------------------------------------------------------


class _PinnedLoader(SourceFileLoader):
    """Runs the bytes that were hashed; never the import system's cache, which trusts times."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of a module."""
        code: CodeType = compile(source_of(self.path), self.path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run a module; one that fails is read again the next time."""
        try:
            super().exec_module(module)
        except BaseException:
            _sources.pop(self.path, None)
            raise


def _finder(path: str) -> Any:
    """Find modules in the folders of role files, and in packages there: a hook of `sys.path`."""
    if not any(_is_own(f"{path}/__init__.py", folder) for folder in _folders):
        raise ImportError(path)
    return FileFinder(
        path,
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_PinnedLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
