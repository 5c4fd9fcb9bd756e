"""From pydantic's errors to a sentence: which value is where, and what is expected there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from penstock.server.config.location import KeyPath, Location
from penstock.server.core.shown import shown_at
from penstock.server.jobs.misplaced import remedy
from penstock.server.jobs.settings import (
    JobFile,
    JobSettings,
    MediaSettings,
    PlanSettings,
    ServerSettings,
    SetSettings,
    TlsSettings,
)

Model = TypeVar("Model", bound=BaseModel)

_SECTIONS: Mapping[tuple[type[BaseModel], str], type[BaseModel]] = {
    (JobFile, "server"): ServerSettings,
    (ServerSettings, "tls"): TlsSettings,
    (JobSettings, "plan"): PlanSettings,
    (SetSettings, "plan"): PlanSettings,
    (JobSettings, "media"): MediaSettings,
    (SetSettings, "media"): MediaSettings,
}
"""The sections of a section that are no lists of named ones."""


def validate(model: type[Model], data: Any, location: Location, *, strict: bool = True) -> Model:
    """Return `data` as a model.

    Args:
        model: What it should be.
        data: What the file holds.
        location: Where it stands.
        strict: Refuse `"7"` where 7 is expected; False for environment variables, which are all
            text.

    Raises:
        InvalidJob: The first thing in the file that is wrong: an unknown key with the nearest known
            one, or a key path, its value and what is expected.
    """
    try:
        return model.model_validate(data, strict=strict)
    except ValidationError as error:
        errors = error.errors()
        found = [_complaint(model, data, item["loc"], item["type"], location) for item in errors]
    # A key that is misplaced explains one that is missing.
    rank = [
        (at.line or 0, item["type"] == "missing", order)
        for order, ((at, _), item) in enumerate(zip(found, errors, strict=True))
    ]
    at, sentence = found[min(rank)[-1]]
    raise at.error(sentence)


def _complaint(
    model: type[BaseModel], data: Any, loc: KeyPath, kind: str, location: Location
) -> tuple[Location, str]:
    keys, field, section, value = _descend(model, data, loc)
    at = location.at(*keys)
    if kind == "extra_forbidden" and section is not None:
        above = location.at(*keys[:-1]).key
        known = list(section.model_fields)
        return at, (
            f"{at.key} is not a key of {_noun(section, above)}: {remedy(str(keys[-1]), known)}"
        )
    whole = {JobSettings: "a job: {source: ..., ...}", SetSettings: "a set of roles: {source: ...}"}
    expects = whole.get(section) if section is not None else None
    expects = expects or _expects(field)
    if kind == "missing":
        return at, f"{at.key} is missing: give {expects}"
    return at, f"{at.key or 'the file'} is {shown_at(at.key, value)}: give {expects}"


def _descend(
    model: type[BaseModel], data: Any, loc: KeyPath
) -> tuple[KeyPath, FieldInfo | None, type[BaseModel] | None, Any]:
    """Follow pydantic's location as far as it names keys of the file.

    Beyond that it names branches of unions and validators, which mean nothing to a user.
    """
    keys: list[str | int] = []
    field: FieldInfo | None = None
    section: type[BaseModel] | None = model
    value = data
    for part in loc:
        if section is not None:
            field = section.model_fields.get(str(part))
            owner: type[BaseModel] | None = section
            section = _SECTIONS.get((section, str(part)))
        elif model is JobFile and keys == ["jobs"]:
            owner, section, field = None, JobSettings, None
        elif keys[-1] == "joint" and keys[:-2] in ([], ["jobs"]):
            owner, section, field = None, SetSettings, None
        else:
            break
        keys.append(part)
        value = value.get(part) if isinstance(value, Mapping) else None
        if owner is not None and field is None:  # an unknown key
            return tuple(keys), None, owner, value
    return tuple(keys), field, section, value


def _noun(section: type[BaseModel], above: str) -> str:
    if section is JobFile:
        return "a job file"
    return f"{above}" if above else "the server's settings"


def _expects(field: FieldInfo | None) -> str:
    extra = field.json_schema_extra if field is not None else None
    if isinstance(extra, dict) and "expects" in extra:
        return str(extra["expects"])
    return "keys and values: server and jobs"
