"""Write what the chart takes from elsewhere: its schema, its table of values, rules and dashboards.

    python helm/generate.py            write
    python helm/generate.py --check    tell which files are not as they would be written

The schema has two sources: the models of job files for what is penstock's, and the table below for
what is the chart's own. Keys of Kubernetes are passed on, and open.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from penstock.server.jobs.reference import json_schema
from penstock.server.jobs.settings import MAX_WORKERS, ServerSettings

CHART = Path(__file__).parent / "penstock"
DEPLOY = CHART.parents[1] / "deploy"

OWNED = {
    "listen": "service.dataPort",
    "metrics": "service.metricsPort",
    "store": "store",
    "hash_cache": "store",
    "workers": "loaderGroups[].workers",
    "node_id": "nothing: each node is called as its Pod is",
    "socket_mode": "nothing: nodes of the chart listen on TCP",
    "tls": "tls.secretName",
    "tokens": "tokens.secretName",
    "insecure": "tls.secretName",
    "remote_page": "kubectl port-forward to service.metricsPort",
}
"""Settings of a node that the chart decides, and the value that says it instead."""

MOST_EXACT = 2**53 - 1
"""Helm holds numbers as floats: a larger one would arrive as another."""

NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0, "maximum": 100_000}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
FLAG = {"type": "boolean"}
AUTO = {"enum": ["auto", True, False]}
OPEN = {"type": "object"}
OBJECTS = {"type": "array", "items": OPEN}
ANNOTATIONS = {"type": "object", "additionalProperties": TEXT}
LABEL_NAME = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL = {"type": "string", "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}
SELECTED = {
    "type": "object",
    "patternProperties": {LABEL_NAME: LABEL},
    "additionalProperties": False,
}
"""Labels that something has already: those of nodes."""

OWN_LABELS = (
    *(
        f"app.kubernetes.io/{name}"
        for name in ("component", "instance", "managed-by", "name", "version")
    ),
    "helm.sh/chart",
    "penstock/loader-group",
)
LABELS = {
    **SELECTED,
    "allOf": [
        {
            "if": {"required": [name]},
            "then": {"required": [f"a name other than {name}: the chart gives it its value"]},
        }
        for name in OWN_LABELS
    ],
}
SECRET = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", "maxLength": 253}
QUANTITY = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {
            "type": "string",
            "pattern": "^([0-9]*[1-9][0-9]*([.][0-9]+)?|0+[.][0-9]*[1-9][0-9]*)([kMGT]|[KMGT]i)?$",
        },
    ]
}
VOLUMES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "if": {"properties": {"name": {"enum": ["jobs", "shm", "store", "tls", "tmp", "tokens"]}}},
        "then": {"required": ["another name: the chart has a volume of this one"]},
    },
}
MOUNTS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "mountPath"],
        "if": {"properties": {"mountPath": {"pattern": "^/(jobs|data|tmp|dev/shm|tls|tokens)/*$"}}},
        "then": {"required": ["another mountPath: the chart mounts something there"]},
    },
}
ENVIRONMENT = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "if": {"properties": {"name": {"pattern": "^PENSTOCK_"}}},
        "then": {"required": ["another name: settings are written under server"]},
    },
}


SEVERAL: tuple[dict[str, Any], ...] = (
    {
        "allOf": [{"required": ["replicas"]}],
        "properties": {"replicas": {"minimum": 2}},
    },
    {"allOf": [{"required": ["autoscaling"]}]},
)
"""Groups that have, or may have, several nodes."""


def _demand(when: dict[str, Any], then: str) -> dict[str, Any]:
    """Refuse what `when` describes: errors of a JSON Schema have no text, names of keys are one."""
    return {"if": when, "then": {"required": [then]}}


class Value(NamedTuple):
    """A value of the chart.

    Attributes:
        path: Where it is, with dots.
        schema: What it may be.
        meaning: What it is for.
    """

    path: str
    schema: dict[str, Any]
    meaning: str


VALUES = [
    Value("image.repository", {"type": "string", "minLength": 1}, "The image, without its tag."),
    Value(
        "image.tag",
        {"type": "string", "pattern": "^([A-Za-z0-9_][A-Za-z0-9._-]*)?$", "maxLength": 128},
        "Its tag; empty = the chart's appVersion. `latest` is refused.",
    ),
    Value(
        "image.digest",
        {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        "Its digest, which wins over the tag.",
    ),
    Value("image.pullPolicy", {"enum": ["Always", "IfNotPresent", "Never"]}, "When it is pulled."),
    Value("imagePullSecrets", OBJECTS, "Secrets for the registry: `[{name: ...}]`."),
    Value(
        "fullnameOverride",
        {"anyOf": [{"const": ""}, {"type": "string", "pattern": NAME, "maxLength": 40}]},
        "In place of RELEASE-penstock.",
    ),
    Value("commonLabels", LABELS, "Labels for every object."),
    Value("server", {"$ref": "#/$defs/server"}, "Settings of every node: docs/reference.md."),
    Value(
        "tls.secretName",
        SECRET,
        "A secret with `tls.crt` and `tls.key`; empty = `insecure: true`, without TLS.",
    ),
    Value("tls.clientCa", FLAG, "Whether clients need a certificate that its `ca.crt` signed."),
    Value("tls.minVersion", {"enum": ["", "1.2", "1.3"]}, "The oldest TLS that is spoken."),
    Value("tokens.secretName", SECRET, "A secret with the key `tokens`; needs TLS."),
    Value(
        "store.existingSecret",
        SECRET,
        "A secret with the address of a PostgreSQL; empty = SQLite on the volume of one node.",
    ),
    Value(
        "store.secretKey",
        {"type": "string", "pattern": "^[-._a-zA-Z0-9]+$", "maxLength": 253},
        "The key of the address in it; `uri` in what CloudNativePG makes.",
    ),
    Value("store.size", QUANTITY, "The size of each node's volume. It cannot be changed later."),
    Value(
        "store.storageClassName",
        {"type": ["string", "null"]},
        "The class of the volume; null = the cluster's default.",
    ),
    Value(
        "store.ephemeral",
        FLAG,
        "No volume: hashes of data files, and cursors in SQLite, are lost with the Pod.",
    ),
    Value(
        "loaderGroups",
        {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/group"}},
        "Groups of loader nodes, below.",
    ),
    Value("startupSeconds", {**COUNT, "minimum": 1}, "Patience for a start, with hashing."),
    Value("preStopSeconds", COUNT, "Seconds from leaving the endpoints to SIGTERM."),
    Value(
        "terminationGracePeriodSeconds",
        {"anyOf": [{"type": "null"}, {**COUNT, "minimum": 1}]},
        "null = preStopSeconds + drain_seconds + 5.",
    ),
    Value("service.dataPort", PORT, "The port for trainers."),
    Value("service.metricsPort", PORT, "The port for probes and Prometheus."),
    Value("service.annotations", ANNOTATIONS, "Annotations of the headless Service."),
    Value("podSecurityContext", OPEN, "The security context of Pods."),
    Value("networkPolicy.enabled", FLAG, "Whether a NetworkPolicy is made."),
    Value("networkPolicy.trainers", OBJECTS, "Peers that may reach the data port."),
    Value("networkPolicy.prometheus", OBJECTS, "Peers that may reach the metrics port."),
    Value("networkPolicy.egress.storage", OBJECTS, "Egress rules for the storage that jobs read."),
    Value("networkPolicy.egress.store", OBJECTS, "Egress rules for a store beyond the Pod."),
    Value("podMonitor.enabled", AUTO, "`auto` = where the cluster knows the kind."),
    Value(
        "podMonitor.interval",
        {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        "Time between scrapes.",
    ),
    Value("podMonitor.labels", LABELS, "Labels that your Prometheus selects by."),
    Value("prometheusRule.enabled", AUTO, "`auto` = where the cluster knows the kind."),
    Value("prometheusRule.labels", LABELS, "Labels that your Prometheus selects by."),
    Value(
        "prometheusRule.runbookUrl",
        {"type": "string", "pattern": '^(https?://[^#"{}\\\\\\s]+)?$'},
        "Where you serve docs/alerts.md; each alert then has its place there as `runbook_url`.",
    ),
    Value("dashboards.enabled", AUTO, "`auto` = where the cluster knows PrometheusRule."),
    Value(
        "dashboards.label",
        {"type": "string", "pattern": LABEL_NAME},
        "What Grafana's sidecar looks for.",
    ),
    Value("dashboards.labelValue", LABEL, "The value of that label."),
    Value("dashboards.annotations", ANNOTATIONS, "Such as the folder in Grafana."),
    Value("tests.enabled", FLAG, "Whether `helm test` has Pods to run."),
    Value("tests.tlsSecretName", SECRET, "What the test trusts, and shows; needed with `tls`."),
    Value("tests.tokenSecretName", SECRET, "What the test calls with; needed with `tokens`."),
]

GROUP = [
    Value(
        "name",
        {"type": "string", "pattern": NAME, "maxLength": 30},
        "Part of the names of its Pods.",
    ),
    Value(
        "replicas",
        {"type": "integer", "minimum": 0},
        "How many nodes; 1 = the default, 0 keeps the volume. More need `store.existingSecret`.",
    ),
    Value(
        "workers",
        {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1, "maximum": MAX_WORKERS}]},
        "Processes that make batches, and the CPUs that are requested; `auto` = as many as the "
        "machine has, with no request.",
    ),
    Value(
        "stalledMiB",
        {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_EXACT},
        "What `penstockd check` prints as memory where readers stall; a quarter more is the limit.",
    ),
    Value("resources", OPEN, "Resources of the container, which win over what follows from these."),
    Value(
        "jobs",
        {
            "type": "object",
            "minProperties": 1,
            "patternProperties": {"^[A-Za-z0-9_.-]+$": {"$ref": "#/$defs/JobSettings"}},
            "additionalProperties": False,
        },
        "Its jobs as under `jobs:` of a job file. Helm reads them first: `n` is false, 1.0 is 1.",
    ),
    Value(
        "jobFile",
        {"type": "string", "minLength": 1},
        "In place of `jobs`: the text of a job file, as `--set-file` gives it; arrives unchanged.",
    ),
    Value(
        "existingConfigMap",
        SECRET | {"minLength": 1},
        "In place of both: with `penstock.yaml` in it.",
    ),
    Value("server", {"$ref": "#/$defs/server"}, "Settings of its nodes, which win over `server`."),
    Value("existingClaim", SECRET, "In place of a volume of its own."),
    Value("env", ENVIRONMENT, "Variables of the container, such as credentials of a storage."),
    Value("envFrom", OBJECTS, "The same from secrets."),
    Value("volumes", VOLUMES, "Volumes with data or code."),
    Value("volumeMounts", MOUNTS, "Where they are mounted."),
    Value(
        "autoscaling",
        {
            "type": "object",
            "additionalProperties": False,
            "required": ["kind", "maxReplicas"],
            "properties": {
                "kind": {"enum": ["hpa", "keda"]},
                "minReplicas": {**COUNT, "minimum": 1},
                "maxReplicas": {**COUNT, "minimum": 1},
                "downSeconds": {**COUNT, "maximum": 3600},
                "prometheus": {"type": "string", "pattern": '^https?://[^\\s"]+$'},
            },
            "allOf": [
                _demand(
                    {
                        "properties": {"kind": {"const": "keda"}},
                        "not": {"required": ["prometheus"]},
                    },
                    "prometheus: the address that KEDA asks",
                )
            ],
        },
        "In place of `replicas`: `kind` `hpa` or `keda`, `minReplicas` (1), `maxReplicas`, "
        "`downSeconds` (1800) that fewer have to be wanted for, and `prometheus`, KEDA's address.",
    ),
    Value(
        "topologySpreadConstraints",
        OBJECTS,
        "How its Pods are spread; default, of several: over machines, where there is room.",
    ),
    Value("nodeSelector", SELECTED, "Where its Pods may run."),
    Value("tolerations", OBJECTS, "Taints that they stand."),
    Value("affinity", OPEN, "Where they would rather run."),
    Value("priorityClassName", TEXT, "Below that of the GPU jobs, as a rule."),
    Value("podLabels", LABELS, "Labels of its Pods."),
    Value("podAnnotations", ANNOTATIONS, "Annotations of its Pods."),
]


def _described(value: Value) -> dict[str, Any]:
    return {**value.schema, "description": value.meaning}


def _tree() -> dict[str, Any]:
    """Return the schema of `VALUES`, whose every key is known and no other is."""
    top: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    for value in VALUES:
        *parents, name = value.path.split(".")
        at = top
        for parent in parents:
            at = at["properties"].setdefault(
                parent, {"type": "object", "additionalProperties": False, "properties": {}}
            )
        at["properties"][name] = _described(value)
    top["properties"]["global"] = OPEN  # what Helm gives to charts of charts
    return top


def _has(section: str, key: str) -> dict[str, Any]:
    """Match values where a name of a secret is given."""
    inner = {"required": [key], "properties": {key: {"minLength": 1}}}
    return {"required": [section], "properties": {section: inner}}


def _server(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the settings that are free, and say of the others where they are."""
    settings = schema["$defs"]["ServerSettings"]["properties"]
    free = {name: settings[name] for name in ServerSettings.model_fields if name not in OWNED}
    refused = [
        _demand({"required": [name]}, f"{where} in place of server.{name}")
        for name, where in sorted(OWNED.items())
    ]
    # A free key under another condition: those above speak first.
    known = {**free, **dict.fromkeys(OWNED, True)}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": known,
        "allOf": refused,
    }


def _group() -> dict[str, Any]:
    one_of = ["jobs", "jobFile", "existingConfigMap"]
    others = [
        _demand({"required": [first, second]}, f"{first} or {second}, not both")
        for number, first in enumerate(one_of)
        for second in one_of[number + 1 :]
    ]
    none = {"not": {"anyOf": [{"required": [name]} for name in one_of]}}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["name", "workers"],
        "properties": {value.path: _described(value) for value in GROUP},
        "allOf": [
            _demand(
                {"required": ["replicas", "autoscaling"]},
                "replicas or autoscaling, not both",
            ),
            *(
                _demand(
                    {"required": ["existingClaim"], **several},
                    "no existingClaim: a claim belongs to one node",
                )
                for several in SEVERAL
            ),
            _demand(none, "jobs, jobFile or existingConfigMap"),
            *others,
        ],
    }


def values_schema() -> dict[str, Any]:
    """Return the JSON Schema of the chart's values, as draft 7, which old Helm knows too."""
    jobs = json_schema()
    definitions = _used_by("JobSettings", jobs["$defs"])
    definitions["JobSettings"]["properties"]["seed"]["maximum"] = MOST_EXACT
    tree = _tree()
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "values of penstock's chart",
        **tree,
        "allOf": [
            {
                "if": {"not": _has("store", "existingSecret")},
                "then": {"properties": {"loaderGroups": {"items": _alone()}}},
            },
            _demand(
                {"properties": {"image": {"properties": {"tag": {"const": "latest"}}}}},
                "image.tag other than latest: a node that restarts must come back as it was",
            ),
            {
                "if": _has("tokens", "secretName"),
                "then": {"allOf": [_needs("tls", "secretName", "tokens never travel without TLS")]},
            },
            {
                "if": {**_has("tls", "secretName"), **_and_tested()},
                "then": {"allOf": [_needs("tests", "tlsSecretName", "what helm test trusts")]},
            },
            {
                "if": {**_has("tokens", "secretName"), **_and_tested()},
                "then": {
                    "allOf": [_needs("tests", "tokenSecretName", "what helm test calls with")]
                },
            },
            {
                "if": {
                    "properties": {
                        "tls": {
                            "required": ["clientCa"],
                            "properties": {"clientCa": {"const": True}},
                        }
                    }
                },
                "then": {"allOf": [_needs("tls", "secretName", "ca.crt is in that secret")]},
            },
        ],
        "$defs": {**definitions, "server": _server(jobs), "group": _group()},
    }


def _alone() -> dict[str, Any]:
    """Return the schema of a group without a store that nodes share: it has one node."""
    why = "store.existingSecret, the address of PostgreSQL: SQLite on a volume belongs to one node"
    return {"allOf": [_demand(several, why) for several in SEVERAL]}


def _used_by(name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with those that it refers to."""
    found: dict[str, Any] = {}
    wanted = [name]
    while wanted:
        if (at := wanted.pop()) not in found:
            found[at] = definitions[at]
            wanted += re.findall(r'"#/\$defs/(\w+)"', json.dumps(found[at]))
    return {name: found[name] for name in sorted(found)}


def _and_tested() -> dict[str, Any]:
    return {"allOf": [{"properties": {"tests": {"properties": {"enabled": {"const": True}}}}}]}


def _needs(section: str, key: str, why: str) -> dict[str, Any]:
    """Demand the name of a secret, and say why."""
    missing = {"properties": {section: {"properties": {key: {"const": ""}}}}}
    return _demand(missing, f"{section}.{key}: {why}")


def _default(values: Any, path: str) -> str:
    for part in path.split("."):
        values = values[part]
    return "see values.yaml" if isinstance(values, (dict, list)) and values else json.dumps(values)


def readme() -> str:
    """Return the page of the chart, with a table of its values."""
    import yaml

    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = [
        "# The chart of penstock",
        "",
        "[docs/kubernetes.md](../../docs/kubernetes.md) says how to use it.",
        "This page is written by `helm/generate.py`.",
        "",
        "## Values",
        "",
        "| Value | Default | Meaning |",
        "|---|---|---|",
        *(
            f"| `{value.path}` | `{_default(defaults, value.path)}` | {value.meaning} |"
            for value in VALUES
        ),
        "",
        "## A group of `loaderGroups`",
        "",
        "`name`, `workers` and one of `jobs`, `jobFile` and `existingConfigMap` are required, and",
        "either `stalledMiB` or `resources.limits.memory`.",
        "",
        "| Key | Meaning |",
        "|---|---|",
        *(f"| `{value.path}` | {value.meaning} |" for value in GROUP),
    ]
    return "\n".join(lines) + "\n"


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file that is written, and its text."""
    yield CHART / "values.schema.json", json.dumps(values_schema(), indent=1) + "\n"
    yield CHART / "README.md", readme()
    yield CHART / "files" / "alerts.yaml", (DEPLOY / "prometheus" / "alerts.yaml").read_text()
    for board in sorted((DEPLOY / "grafana").glob("*.json")):
        yield CHART / "dashboards" / board.name, board.read_text()


def stale() -> list[str]:
    """Return the files that are not as they would be written, or that nothing would write."""
    wanted = dict(files())
    found = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    found += [path for path in (CHART / "dashboards").glob("*.json") if path not in wanted]
    return [str(path.relative_to(CHART)) for path in found]


def main() -> int:
    """Write the files, or with `--check` only compare them."""
    if "--check" in sys.argv[1:]:
        for name in stale():
            sys.stderr.write(f"{name} is not what helm/generate.py writes\n")
        return 1 if stale() else 0
    for board in (CHART / "dashboards").glob("*.json"):
        board.unlink()
    for path, text in files():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
