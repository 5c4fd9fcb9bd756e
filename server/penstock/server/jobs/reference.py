"""The job file's reference, from models and docstrings: a JSON Schema, and tables for people."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from penstock.server.config.class_parameters import constructor_parameters
from penstock.server.job.job import SOURCE_NAME
from penstock.server.jobs.docstrings import argument_docs
from penstock.server.jobs.registry import FUNCTIONS, KINDS, Kind
from penstock.server.jobs.settings import (
    JobFile,
    JobSettings,
    MediaSettings,
    PlanSettings,
    RolesSettings,
    ServerSettings,
    SetSettings,
    TlsSettings,
)
from penstock.server.jobs.token_settings import TokenSettings
from penstock.server.roles.role import Role

SOURCES = ("source", "sources")
"""The keys of a section that say where its items come from: one of them is there."""


class ReferenceRow(NamedTuple):
    """One key or parameter of the reference.

    Attributes:
        name: Its name.
        default: Its default as it would stand in a file, or `required`.
        meaning: One or a few sentences.
    """

    name: str
    default: str
    meaning: str


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of job files: every key, its default and meaning, roles included."""
    schema = JobFile.model_json_schema()
    for name, kind in KINDS.items():
        schema["$defs"][name] = _role_schema(kind)
    for section, ways in (("JobSettings", (*SOURCES, "joint")), ("SetSettings", SOURCES)):
        keys = schema["$defs"][section]["properties"]
        for name in KINDS:
            meaning = keys[name].get("description", "")
            keys[name] = {"$ref": f"#/$defs/{name}", "description": meaning}
        keys["sources"] = _named("source", keys["sources"])
        schema["$defs"][section]["oneOf"] = [{"required": [way]} for way in ways]
    job = schema["$defs"]["JobSettings"]["properties"]
    job["joint"] = _named("SetSettings", job["joint"])
    for section in schema["$defs"].values():
        for field in section.get("properties", {}).values():
            field.pop("expects", None)
    for field in schema["properties"].values():
        field.pop("expects", None)
    # `x-...` keys hold YAML anchors; like the loader, the schema lets them pass.
    schema["patternProperties"] = {"^x-": True}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "penstock job file",
        **{name: value for name, value in schema.items() if name != "title"},
    }


def _named(of: str, described: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of several things of a kind by name."""
    return {
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": f"^{SOURCE_NAME.pattern}$"},
        "additionalProperties": {"$ref": f"#/$defs/{of}"},
        "description": described.get("description", ""),
    }


def _role_schema(kind: Kind) -> dict[str, Any]:
    """A role is its bare name, or its `type` with parameters; those of built-ins are known."""
    names = sorted(kind.builtins)
    cases = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": _parameters_schema(kind.builtins[name], {"type": True}),
        }
        for name in names
    ]
    described = {"type": {"type": "string", "examples": names}}
    if kind.name in FUNCTIONS:
        described["function"] = {"type": "string"}
        cases.append(
            {
                "if": {"not": {"required": ["type"]}},
                "then": _parameters_schema(FUNCTIONS[kind.name], {}),
            }
        )
    return {
        "anyOf": [
            {"type": "null"},
            {"type": "string", "examples": names},
            {"type": "object", "properties": described, "allOf": cases},
        ]
    }


def _parameters_schema(cls: type[Role], beside: dict[str, Any]) -> dict[str, Any]:
    rows = list(parameter_rows(cls))
    return {
        "properties": {**beside, **{row.name: {"description": row.meaning} for row in rows}},
        "required": [row.name for row in rows if row.default == "required"],
        **({} if _takes_any(cls) else {"additionalProperties": False}),
    }


def _takes_any(cls: type[Role]) -> bool:
    parameters = constructor_parameters(cls).values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _further(cls: type[Role]) -> Iterator[ReferenceRow]:
    """Yield a row for `**arguments`, where the constructor takes any."""
    for parameter in constructor_parameters(cls).values():
        if parameter.kind is parameter.VAR_KEYWORD:
            meaning = _meanings(cls).get(parameter.name, "")
            yield ReferenceRow("...", "none", f"Any other parameter. {meaning}")


def setting_rows(model: type[BaseModel]) -> Iterator[ReferenceRow]:
    """Yield the keys of one section of a job file."""
    for name, field in model.model_fields.items():
        default = field.default
        text = "required" if default is PydanticUndefined else _literal(default)
        yield ReferenceRow(name, text, field.description or "")


def parameter_rows(cls: type[Role]) -> Iterator[ReferenceRow]:
    """Yield the parameters of a role, described by its docstring."""
    meanings = _meanings(cls)
    for name, parameter in constructor_parameters(cls).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        yield ReferenceRow(
            name, "required" if required else _literal(parameter.default), meanings.get(name, "")
        )


def _meanings(cls: type[Role]) -> dict[str, str]:
    """Return what docstrings say of parameters: that of the class before those of its bases."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        found |= argument_docs(inspect.cleandoc(vars(base).get("__doc__") or ""))
    return found


def _literal(value: Any) -> str:
    return json.dumps(value, default=str).strip('"')


def markdown() -> str:
    """Return the tables of `docs/reference.md`."""
    parts = ["### `server:`", "", *_table("Key", setting_rows(ServerSettings))]
    parts += ["", "### `server.tls:`", "", *_table("Key", setting_rows(TlsSettings))]
    parts += ["", "### `tokens[]:` of a file of tokens", ""]
    parts += _table("Key", setting_rows(TokenSettings))
    parts += ["", "### `jobs.NAME:`", "", *_table("Key", setting_rows(JobSettings))]
    parts += ["", "### `jobs.NAME.plan:`", "", *_table("Key", setting_rows(PlanSettings))]
    parts += ["", "### `jobs.NAME.media:`", "", *_table("Key", setting_rows(MediaSettings))]
    own = (row for row in setting_rows(SetSettings) if row.name not in RolesSettings.model_fields)
    parts += ["", "### `jobs.NAME.joint.NAME:`", "", "The keys of a source and its roles, and:", ""]
    parts += _table("Key", own)
    for kind in KINDS.values():
        for name, cls in kind.builtins.items():
            parts += ["", f"### `{kind.name}: {{type: {name}}}`", "", _first_sentence(cls), ""]
            rows = [*parameter_rows(cls), *_further(cls)]
            parts += _table("Parameter", iter(rows)) if rows else ["It has no parameters."]
    for name, called in FUNCTIONS.items():
        parts += ["", f"### `{name}: {{function: ...}}`", "", _first_sentence(called), ""]
        parts += _table("Parameter", parameter_rows(called))
    return "\n".join(parts) + "\n"


def _first_sentence(cls: type[Role]) -> str:
    first = (inspect.getdoc(cls) or "").partition("\n\n")[0]
    return " ".join(first.split())


def _table(what: str, rows: Iterator[ReferenceRow]) -> list[str]:
    lines = [f"| {what} | Default | Meaning |", "|---|---|---|"]
    for row in rows:
        default = row.default if row.default == "required" else f"`{row.default}`"
        lines.append(f"| `{row.name}` | {default} | {row.meaning.replace('|', chr(92) + '|')} |")
    return lines
