"""The chart at a real API server: what it takes, what it refuses, and a release's life by Helm.

There is no kubelet and there are no controllers. What a StatefulSet's controller would make is made
here (`apiserver.made_by`), since a server does not look into the Pods of a set before that.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import apiserver
import charts
from apiserver import ApiServer, Object, Refused

pytestmark = pytest.mark.skipif(
    not apiserver.PROGRAM, reason="NOT RUN: no kube-apiserver takes the chart (make kube)"
)
pytest.importorskip("helm_python", reason="NOT RUN: helm-python-sdk is not installed (make dev)")

PAGE = (charts.ROOT / "docs" / "kubernetes.md").read_text()
PRIORITIES = ("below-gpu-jobs", "low")
FIXED = {"store.size", "store.storageClassName", "store.ephemeral", "loaderGroups[].existingClaim"}
"""Values that an upgrade cannot change, since a StatefulSet's volumes are what they are."""


NEWER = ("PodDisruptionBudget", "HorizontalPodAutoscaler")
"""Rendered without a server, in versions that an old one does not know."""


def definition(kind: str) -> Object:
    """Return the definition of a kind that others define, as far as the chart uses it."""
    spec = structural(charts.custom_schema(kind)["properties"]["spec"])
    schema = {"type": "object", "properties": {"spec": spec}}
    group, _, name = charts.CUSTOM[kind].partition("/")
    version = {"name": name, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [version],
        },
    }


def structural(schema: Any) -> Any:
    """Return a schema without `additionalProperties: false`, which a definition means anyway."""
    if isinstance(schema, dict):
        return {
            key: structural(value)
            for key, value in schema.items()
            if (key, value) != ("additionalProperties", False)
        }
    return [structural(each) for each in schema] if isinstance(schema, list) else schema


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server that knows the Prometheus operator's kinds, and priorities of users."""
    with apiserver.serving(tmp_path_factory.mktemp("kube")) as server:
        for kind in charts.CUSTOM:
            server.define(definition(kind))
        for name in PRIORITIES:
            server.apply(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": name},
                    "value": -1,
                }
            )
        yield server


NUMBERS = itertools.count()


@pytest.fixture
def namespace(server: ApiServer) -> str:
    """A namespace of this test."""
    return server.namespace(f"test-{next(NUMBERS)}")


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, which Helm takes to servers of every age.

    The server may be older than the Kubernetes that Chart.yaml asks for, of which nothing but Helm
    would know. All else is the chart's.
    """
    folder = tmp_path_factory.mktemp("chart") / "helm" / "penstock"
    folder.mkdir(parents=True)
    for path in charts.CHART.iterdir():
        if path.name != "Chart.yaml":
            (folder / path.name).symlink_to(path)
    text = (charts.CHART / "Chart.yaml").read_text()
    lowered = re.sub(r'^kubeVersion: ".*"\n', "", text, flags=re.M)
    assert lowered != text
    (folder / "Chart.yaml").write_text(lowered)
    return folder


Helm = Callable[..., str]


@pytest.fixture
def helm(server: ApiServer, tmp_path: Path) -> Helm:
    """A real Helm 3, whose cluster is the server; it returns what Helm says."""
    program = charts.helm_3()
    assert program is not None, "Helm 3 is not installed (make helm-3)"

    def run(*arguments: str, folder: Path = tmp_path) -> str:
        homes = {f"HELM_{name}_HOME": str(tmp_path / name) for name in ("CACHE", "CONFIG", "DATA")}
        environment = {**os.environ, **homes, "KUBECONFIG": str(server.kubeconfig)}
        done = subprocess.run(
            [program, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def unlike(sent: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield each place where the server has kept something else than it was sent."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            yield from unlike(value, kept.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) <= len(kept):
        # A server adds tolerations of its own, at the end.
        for index, (one, other) in enumerate(zip(sent, kept, strict=False)):
            yield from unlike(one, other, f"{path}[{index}]")
    elif sent != kept and not (kept is None and sent in (False, {}, [])) and not equal(sent, kept):
        yield f"{path}: {sent!r} was sent, {kept!r} is kept"


def content(kept: Object) -> Object:
    """Return what is kept, and its `generation`, which a change raises; not who wrote it when."""
    metadata = kept["metadata"]
    named = {key: metadata.get(key) for key in ("labels", "annotations", "generation")}
    return {**kept, "metadata": named}


def equal(sent: Any, kept: Any) -> bool:
    """Tell whether two texts are one amount, which a server writes in its own way."""
    try:
        return charts.mebibytes(sent) == charts.mebibytes(kept)
    except (AttributeError, KeyError, TypeError):
        return False


def with_what_they_make(found: charts.Objects) -> charts.Objects:
    """Return objects, and those that the controllers of StatefulSets would make."""
    return [
        *found,
        *(one for each in charts.of(found, "StatefulSet") for one in apiserver.made_by(each)),
    ]


# --- what is taken ---


@pytest.mark.parametrize("path", charts.SCENARIOS, ids=lambda path: path.stem)
def test_each_case_of_use_is_taken_kept_as_it_is_and_deleted(
    server: ApiServer, namespace: str, chart: Path, helm: Helm, path: Path
) -> None:
    """Rendered for this server by Helm: its version, and the kinds that it has."""
    text = helm(
        "template", charts.RELEASE, str(chart), "--namespace", namespace,
        "--values", str(path), "--validate",
    )  # fmt: skip
    found = charts.parsed(text)
    everything = with_what_they_make(found)

    for one in everything:
        server.apply(one, dry=True)
    assert [one["kind"] for one in everything if server.get(one)] == []

    kept = [server.apply(one) for one in everything]
    assert [list(unlike(*pair)) for pair in zip(everything, kept, strict=True)] == [
        [] for _ in kept
    ]

    for one, first in zip(found, kept, strict=False):
        if one["kind"] != "Pod":  # that of a test is never sent twice
            again = server.apply(one)
            assert content(again) == content(first)

    for one in everything:
        server.delete(one)
    assert [one["kind"] for one in found if server.get(one)] == []


def test_kinds_that_the_server_has_are_made_by_themselves(
    namespace: str, chart: Path, helm: Helm
) -> None:
    """`auto`, with what a server says of itself."""
    text = helm(
        "template", charts.RELEASE, str(chart), "--namespace", namespace, "--validate"
    )  # fmt: skip

    assert set(charts.OPERATOR) <= {one["kind"] for one in charts.parsed(text)}


@pytest.mark.parametrize("release", ["a", "a" * 37, "penstock", "a-1", "1a", "a.b", "a" * 53])
def test_a_release_of_any_name_is_taken(server: ApiServer, release: str) -> None:
    """All are names to Helm; the last three are none to the chart, and get another there."""
    from helm_python import HelmError, validate_release_name

    validate_release_name(release)
    server.namespace(charts.NAMESPACE)
    values = charts.EVERYTHING
    if release in ("1a", "a.b", "a" * 53):
        with pytest.raises(HelmError, match="set fullnameOverride"):
            charts.objects(values, release=release)
        values = {**values, "fullnameOverride": "loaders"}
    found = charts.objects(values, release=release)

    for one in with_what_they_make(found):
        server.apply(one, dry=True)


# --- upgrades ---


def others() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each value of the chart, and values in which it is another one."""
    for path, other in charts.OTHER.items():
        yield path, charts.altered(charts.EVERYTHING, path, other)
    for key, other in charts.OTHER_OF_GROUP.items():
        jobs = {"jobs": None} if key in ("jobFile", "existingConfigMap") else {}
        volumes = {"volumes": charts.OTHER_OF_GROUP["volumes"]} if key == "volumeMounts" else {}
        count = {"replicas": None} if key == "autoscaling" else {}
        group = charts.demo(**jobs, **volumes, **count, **{key: other})
        yield f"loaderGroups[].{key}", {**charts.EVERYTHING, **group}


def test_an_upgrade_may_change_every_value_but_those_of_volumes(server: ApiServer) -> None:
    """Each alone, of a release with everything; a volume's stay, as docs/kubernetes.md says."""
    server.namespace(charts.NAMESPACE)
    base = charts.objects(charts.EVERYTHING)
    for one in base:
        if one["kind"] != "Pod":  # Helm deletes that of a test before it makes another
            server.apply(one)
    refused: dict[str, list[str]] = {}

    for path, values in others():
        for one in with_what_they_make(charts.objects(values)):
            if one["kind"] in NEWER:
                continue
            try:
                server.apply(one, dry=True)
            except Refused as error:
                refused.setdefault(path, []).append(error.message)

    for one in base:
        if one["kind"] != "Pod":
            server.delete(one)
    assert set(refused) == FIXED, refused
    for messages in refused.values():
        [message] = messages
        assert "updates to statefulset spec for fields other than" in message
    for path in FIXED:
        assert f"`{path.removeprefix('loaderGroups[].')}`" in PAGE


def test_helm_installs_upgrades_rolls_back_and_removes(
    server: ApiServer, namespace: str, chart: Path, helm: Helm, tmp_path: Path
) -> None:
    where = ("--namespace", namespace)
    scenario = {path.stem.removesuffix("-values"): str(path) for path in charts.SCENARIOS}

    def kept() -> dict[tuple[str, str], Any]:
        """Return the specs of the release's objects."""
        manifest = charts.parsed(helm("get", "manifest", charts.RELEASE, *where))
        found = {}
        for one in manifest:
            live = server.get(one)
            assert live is not None, (one["kind"], one["metadata"]["name"])
            assert list(unlike(one, live)) == []
            content = live.get("spec", live.get("data"))
            found[one["kind"], one["metadata"]["name"]] = content
        return found

    helm("install", charts.RELEASE, str(chart), *where, "--values", scenario["default"])
    first = kept()
    notes = helm("get", "notes", charts.RELEASE, *where)
    line = f'Loader("rel-penstock-demo-0.rel-penstock.{namespace}.svc:50051", "numbers"'
    assert line in notes

    helm("upgrade", charts.RELEASE, str(chart), *where, "--values", scenario["mtls-tokens"])
    second = kept()
    assert second.keys() == first.keys()
    assert second != first
    assert 'tls=Tls(ca="ca.crt"' in helm("get", "notes", charts.RELEASE, *where)

    # Other groups: those of before go, and the others come.
    helm("upgrade", charts.RELEASE, str(chart), *where, "--values", scenario["groups"])
    third = kept()
    gone = {("StatefulSet", "rel-penstock-demo"), ("ConfigMap", "rel-penstock-demo-jobs")}
    assert gone <= first.keys() - third.keys()
    for kind, name in gone:
        api = {"StatefulSet": "apps/v1", "ConfigMap": "v1"}[kind]
        at = {"name": name, "namespace": namespace}
        assert server.get({"apiVersion": api, "kind": kind, "metadata": at}) is None

    helm("rollback", charts.RELEASE, "1", *where)
    assert kept() == first

    everything = charts.parsed(helm("get", "manifest", charts.RELEASE, *where))
    helm("uninstall", charts.RELEASE, *where)
    assert [one["kind"] for one in everything if server.get(one)] == []


def test_the_commands_of_the_page_install_upgrade_and_remove(
    server: ApiServer, chart: Path, helm: Helm, tmp_path: Path
) -> None:
    """Those of docs/kubernetes.md, with its values, in its namespace."""
    [values] = re.findall(r"<!-- file: values.yaml -->\n```yaml\n(.*?)```", PAGE, re.S)
    (tmp_path / "values.yaml").write_text(values)
    job = "jobs: {main: {batch_size: 2, lanes: 2, source: {type: items, items: [1, 2, 3]}}}\n"
    (tmp_path / "penstock.yaml").write_text(job)
    (tmp_path / "helm").symlink_to(chart.parent)
    server.namespace("training")
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    said = {}

    for line in commands:
        program, verb, *rest = shlex.split(line)
        if program == "helm" and verb != "test":  # its Pod would have to run
            said[verb] = helm(verb, *rest)
            if verb == "install":
                found = charts.parsed(helm("get", "manifest", "loaders", "--namespace", "training"))
                for node in charts.of(found, "StatefulSet"):
                    for one in apiserver.made_by(node):
                        server.apply(one, dry=True)

    assert list(said) == ["install", "upgrade", "uninstall"]
    assert "REVISION: 2" in said["upgrade"]
    assert [one["kind"] for one in found if server.get(one)] == []


# --- what is refused ---


def fault(kind: str, path: str, value: Any, sentence: str, *, later: bool = False) -> Any:
    """Return a planted fault: where, what is put there, what the server says to it.

    Args:
        kind: The object: `made` = the Pod that a StatefulSet would have.
        path: The place, with dots; an empty last part adds to a list.
        value: What is put there.
        sentence: A part of what the server says.
        later: Whether the object is there already, and right.
    """
    return pytest.param(kind, path, value, sentence, later, id=f"{kind}-{path}")


CONTAINER = "spec.template.spec.containers.0"
FAULTS = [
    # Unknown and ill-typed fields.
    fault("StatefulSet", f"{CONTAINER}.imag", "a", ".imag: field not declared in schema"),
    fault("StatefulSet", "spec.servicename", "a", ".spec.servicename: field not declared"),
    fault("StatefulSet", "spec.replicas", "one", "replicas"),
    fault("Service", "spec.clusterIp", "None", ".spec.clusterIp: field not declared"),
    fault("NetworkPolicy", "spec.ingres", [], ".spec.ingres: field not declared"),
    fault("PodMonitor", "spec.joblabel", "a", ".spec.joblabel: field not declared"),
    fault("PodMonitor", "spec.podMetricsEndpoints.0.interval", "soon", "interval"),
    fault("PrometheusRule", "spec.groups.0.rules.0.for", "2 minutes", "for"),
    # Names and labels.
    fault("StatefulSet", "metadata.name", "Rel", "lower case"),
    fault("Service", "metadata.name", "1rel", "DNS-1035"),
    fault("Service", "metadata.labels.team", "a b", "a valid label must be"),
    fault("StatefulSet", "spec.template.metadata.labels.team", "a b", "a valid label must be"),
    fault(
        "StatefulSet",
        "spec.selector.matchLabels.penstock/loader-group",
        "b",
        "`selector` does not match template `labels`",
    ),
    # Ports.
    fault("Service", "spec.ports.0.targetPort", "data_port", "targetPort"),
    fault("Service", "spec.ports.0.name", "metrics", "Duplicate value"),
    fault("Service", "spec.ports.1.port", 50051, "duplicate"),
    fault("Service", "spec.ports.1.port", 70000, "must be between 1 and 65535"),
    fault("NetworkPolicy", "spec.ingress.0.ports.0.port", 70000, "must be between 1 and 65535"),
    fault("NetworkPolicy", "spec.ingress.0.ports.0.port", "Data", "port"),
    fault("NetworkPolicy", "spec.ingress.0.ports.0.protocol", "HTTP", "protocol"),
    fault("made", "spec.containers.0.ports.0.name", "metrics", "Duplicate value"),
    fault("made", "spec.containers.0.ports.0.name", "the-port-of-data", "no more than 15"),
    fault("made", "spec.containers.0.livenessProbe.httpGet.port", "metrics_", "httpGet.port"),
    # Probes and the end.
    fault("made", "spec.containers.0.livenessProbe.httpGet", None, "must specify a handler type"),
    fault("made", "spec.containers.0.livenessProbe.successThreshold", 2, "must be 1"),
    fault("made", "spec.containers.0.startupProbe.periodSeconds", -1, "greater than or equal to 0"),
    fault("made", "spec.containers.0.lifecycle.preStop.exec", None, "must specify a handler type"),
    # Volumes, resources, security.
    fault("made", "spec.containers.0.volumeMounts.0.name", "job", "Not found"),
    fault("made", "spec.containers.0.volumeMounts.1.mountPath", "/jobs", "duplicate entries"),
    fault("made", "spec.volumes.0.configMap.name", "", "name: Required value"),
    fault("made", "spec.volumes.", {"name": "jobs", "emptyDir": {}}, "duplicate"),
    fault("made", "spec.containers.0.env.", {"name": "HOME", "value": "/"}, "duplicate"),
    fault("made", "spec.containers.0.resources.limits.cpu", "100m", "equal to cpu limit"),
    fault("made", "spec.containers.0.resources.limits.memory", "lots", "quantit"),
    fault("made", "spec.containers.0.securityContext.allowPrivilegeEscalation", "no", "Privilege"),
    fault("made", "spec.securityContext.runAsUser", -1, "runAsUser"),
    fault("made", "spec.priorityClassName", "no-such", "no PriorityClass with name no-such"),
    fault("made", "spec.serviceAccountName", "nobody", 'serviceaccount "nobody" not found'),
    fault("Pod", "spec.restartPolicy", "Neverr", "restartPolicy"),
    fault("Pod", "spec.activeDeadlineSeconds", 0, "activeDeadlineSeconds"),
    fault("PersistentVolumeClaim", "spec.resources.requests.storage", "0", "greater than zero"),
    fault("ConfigMap", "data.penstock_yaml", "a" * (1 << 20), "Too long"),
    # What cannot be changed.
    fault("StatefulSet", "spec.serviceName", "other", "updates to statefulset spec", later=True),
    fault(
        "StatefulSet", "spec.podManagementPolicy", "OrderedReady", "updates to stateful", later=True
    ),
    fault("Service", "spec.clusterIP", "10.0.0.9", "may not change", later=True),
]  # fmt: skip


def put(one: Object, path: str, value: Any) -> None:
    """Put a value at a place of an object; None removes what is there."""
    at: Any = one
    *parents, last = path.split(".")
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
    if value is None:
        del at[last]
    elif isinstance(at, list):
        at.append(value) if last == "" else at.__setitem__(int(last), value)
    else:
        at[last] = value


@pytest.mark.parametrize(("kind", "path", "value", "sentence", "later"), FAULTS)
def test_a_planted_fault_is_refused(
    server: ApiServer, kind: str, path: str, value: Any, sentence: str, later: bool
) -> None:
    """And what has no fault is taken."""
    server.namespace(charts.NAMESPACE)
    found = with_what_they_make(charts.objects(charts.EVERYTHING))
    right = next(
        one
        for one in found
        if one["kind"] == ("Pod" if kind == "made" else kind)
        and one["metadata"]["name"].endswith("-0") == (kind in ("made", "PersistentVolumeClaim"))
    )
    wrong = copy.deepcopy(right)
    put(wrong, path, value)

    server.apply(right, dry=not later)
    try:
        with pytest.raises(Refused) as refused:
            server.apply(wrong, dry=True)
    finally:
        if later:
            server.delete(right)

    assert sentence in refused.value.message
