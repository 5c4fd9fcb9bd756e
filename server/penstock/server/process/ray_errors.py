"""What Ray raises, as one sentence of an error of penstock."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from penstock.wire.errors import PenstockError, Unreachable
from penstock.wire.plain import clean_text

MAX_CHARACTERS = 300
"""Of what Ray says of an error: some go on for pages."""


@contextlib.contextmanager
def ray_errors(remedy: str) -> Iterator[None]:
    """Say in a sentence what Ray raises.

    Its errors have several bases: `RayError`, and built-in ones such as `RuntimeError`, where the
    cluster has another version of Ray or Python.

    Args:
        remedy: What to check or to do next, after "Ray has failed (...): ".

    Raises:
        Unreachable: Ray has raised anything; an error of penstock is raised as it is.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        address = os.environ.get("RAY_ADDRESS")
        where = "the Ray of this machine" if address is None else f"the Ray at {address!r}"
        raise Unreachable(
            f"{where} has failed ({ray_words(error)}): {remedy}", target=address
        ) from error


def ray_words(error: Exception) -> str:
    """Return what an error of Ray says, in a line.

    That of a task is the traceback of another process; its last line says what was raised there.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any(line.startswith("Traceback ") for line in lines) or "ray::" in "".join(lines[:1]):
        said = lines[-1]
    else:
        said = " ".join([f"{type(error).__name__}:", *lines])
    return clean_text(said, MAX_CHARACTERS)
