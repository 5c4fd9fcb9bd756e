"""The keys of a file of tokens: names, types, defaults and meanings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Scope = Literal["read", "read+text", "commit", "admin"]

EXPECTED = {
    "name": "a name: letters, digits, dots, dashes and underscores",
    "sha256": "the hash of a token, as `penstockd token new` prints it",
    "certificate": "a name in a client certificate, or a pattern such as *.trainers",
    "scopes": "a list of read, read+text, commit and admin",
    "jobs": "a list of names of jobs, or of patterns such as code-*",
    "groups": "a list of names of groups, or of patterns such as run-*",
    "expires": 'a day, in quotes: "2027-01-31"',
    "streams": "null or a whole number of at least 1",
    "lanes": "null or a whole number of at least 1",
    "horizon": "null or a whole number of at least 1",
}
_MEANINGS = {
    "name": "Who it is, in the log and in metrics; each name stands once.",
    "sha256": "The SHA-256 of the token in hex. This or `certificate` is required.",
    "certificate": (
        "A name in the client's certificate (a DNS name, a URI or its common name), or a pattern, "
        "in place of a token; for nodes with `tls: {client_ca: FILE}`."
    ),
    "scopes": (
        "`read` reads batches and looks at groups. `read+text` also shows which items are in a "
        "batch and why items were left out. `commit` also begins, commits, names and moves to "
        "steps near the cursor. `admin` also moves anywhere, deletes groups and releases items."
    ),
    "jobs": "The jobs that it is for, by name or pattern (`*`, `?`); default all.",
    "groups": "The groups that it is for, likewise; reading without a group is always allowed.",
    "expires": "The last day on which it is valid, in UTC; default for ever.",
    "streams": "How many streams it may have open on this node at a time; default any number.",
    "lanes": "How many lanes one of its streams may read; default all.",
    "horizon": (
        "How many batches beyond the next one are made for one of its streams; default as many as "
        "its reader accepts."
    ),
}


def _key(name: str, default: object) -> object:
    return Field(
        default, description=_MEANINGS[name], json_schema_extra={"expects": EXPECTED[name]}
    )


Count = Annotated[int, Field(ge=1, le=1 << 30)]
Patterns = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class TokenSettings(BaseModel):
    """One entry of the list `tokens` of a file of tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")] = _key("name", ...)  # type: ignore[assignment]
    sha256: str | None = _key("sha256", None)  # type: ignore[assignment]
    certificate: Annotated[str, Field(min_length=1)] | None = _key("certificate", None)  # type: ignore[assignment]
    scopes: Annotated[list[Scope], Field(min_length=1)] = _key("scopes", ...)  # type: ignore[assignment]
    jobs: Patterns = _key("jobs", ["*"])  # type: ignore[assignment]
    groups: Patterns = _key("groups", ["*"])  # type: ignore[assignment]
    expires: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = _key("expires", None)  # type: ignore[assignment]
    streams: Count | None = _key("streams", None)  # type: ignore[assignment]
    lanes: Count | None = _key("lanes", None)  # type: ignore[assignment]
    horizon: Count | None = _key("horizon", None)  # type: ignore[assignment]
