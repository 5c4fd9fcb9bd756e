"""Names of a package that are imported when they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: what a process does not use, it does not load.

    A type checker must not see it, since to that any name would then be there:

    ```python
    if TYPE_CHECKING:
        from penstock.server.job.job import Job as Job
    else:
        __getattr__ = lazy_names(__name__, {"Job": "job"})
    ```

    Args:
        package: Its name.
        places: By name, the module below the package that has it.
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
