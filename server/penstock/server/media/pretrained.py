"""JSON files of a tokenizer or a processor, as `save_pretrained` of transformers writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a file holds; empty = there is no such file.

    Raises:
        InvalidJob: It cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidJob(
            f"{str(path)!r} cannot be read ({error_line(error, 300)}): write it again, as "
            "save_pretrained of transformers does",
            key="tokenizer",
        ) from None
    return found if isinstance(found, dict) else {}
