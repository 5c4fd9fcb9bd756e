"""Settings of a node: flags override PENSTOCK_* variables, which override the job file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.common.nearest import hint
from penstock.server.config.location import Location
from penstock.server.jobs.checked_keys import validate
from penstock.server.jobs.settings import ServerSettings
from penstock.wire.errors import InvalidJob, InvalidRequest

ENVIRONMENT_PREFIX = "PENSTOCK_"

_KUBERNETES = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)?)"
)
"""Variables that a Pod gets for a Service whose name begins with penstock."""


SECTIONS = frozenset(("tls",))
"""Settings that are sections: no flag sets one, and a variable holds it as JSON."""

OF_CLIENTS = frozenset(
    f"{ENVIRONMENT_PREFIX}{name}"
    for name in ("TLS_CA", "TLS_CERT", "TLS_KEY", "TLS_NAME", "TOKEN", "TOKEN_FILE")
)
"""What readers show to nodes: a process may be a reader and have a node of its own."""


def override(
    settings: ServerSettings, overrides: Mapping[str, Any] | None, environ: Mapping[str, str]
) -> ServerSettings:
    """Return server settings, overridden by PENSTOCK_* variables and then by flags.

    Variables that Kubernetes makes for a service of the name penstock are left alone.

    Raises:
        InvalidRequest: A value is invalid, or a variable with the prefix is not a setting; names
            the variable or the flag.
    """
    names = list(ServerSettings.model_fields)
    settable = {ENVIRONMENT_PREFIX + name.upper() for name in names}
    for variable in sorted(environ):
        if (
            variable.startswith(ENVIRONMENT_PREFIX)
            and variable not in settable
            and variable not in OF_CLIENTS
            and not _KUBERNETES.fullmatch(variable)
        ):
            raise InvalidRequest(
                f"the environment variable {variable} is not a setting of penstock: "
                f"{hint(variable, settable)}",
                field="name",
                value=variable,
            )
    layers: list[tuple[dict[str, str], dict[str, Any]]] = [
        (
            {name: ENVIRONMENT_PREFIX + name.upper() for name in names},
            {
                name: _section(variable, environ[variable])
                if name in SECTIONS
                else environ[variable]
                for name in names
                if (variable := ENVIRONMENT_PREFIX + name.upper()) in environ
            },
        ),
        (
            {name: "--" + name.replace("_", "-") for name in names},
            {name: value for name, value in (overrides or {}).items() if value is not None},
        ),
    ]
    for labels, values in layers:
        for name, value in values.items():
            try:
                checked = validate(
                    ServerSettings, {name: value}, Location("", Path()), strict=False
                )
            except InvalidJob as error:
                sentence = error.message.removeprefix(": ").replace(name, labels.get(name, name), 1)
                raise InvalidRequest(sentence, field=labels.get(name, name), value=value) from None
            settings = settings.model_copy(update={name: getattr(checked, name)})
    return settings


def _section(variable: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidRequest(
            f"{variable} is no JSON ({error}): it holds a section, such as "
            '{"cert": "tls.crt", "key": "tls.key"}',
            field=variable,
            value=value,
        ) from None
