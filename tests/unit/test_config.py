"""Job files: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.common.nearest import hint, nearest
from penstock.server.job.job import Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.load import Config, load
from penstock.server.jobs.settings import JobSettings, ServerSettings, SetSettings, parse_bytes
from penstock.wire.errors import InvalidJob, UnknownJob

GOOD = """\
server:
  listen: 127.0.0.1:0
jobs:
  code:
    seed: 7
    lanes: 4
    source: {type: items, items: [{x: 1}, {x: 2}, {x: 3}]}
    batch_size: 2
"""


def write(folder: Path, text: str, name: str = "penstock.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def read(folder: Path, text: str, **options: Any) -> Config:
    return load(write(folder, text), **{"environ": {}, **options})


def test_a_job_file_gives_settings_and_jobs(tmp_path: Path) -> None:
    """What the file says is what the job has; what it leaves out has the documented default."""
    config = read(tmp_path, GOOD)

    job = config.job("code")

    assert (job.name, job.seed, job.lanes, job.epochs) == ("code", 7, 4, None)
    assert config.server.listen == "127.0.0.1:0"
    assert config.server.metrics == "127.0.0.1:9090"
    assert config.base == tmp_path


def test_jobs_are_built_when_asked_for_and_once(tmp_path: Path) -> None:
    """A job that cannot be built does not keep another from being used."""
    broken = "  bad:\n    source: {type: parquet, files: none.parquet}\n    batch_size: 1\n"

    config = read(tmp_path, GOOD + broken)

    assert list(config.jobs) == ["code", "bad"]
    assert config.jobs["code"] is config.jobs["code"]
    with pytest.raises(InvalidJob, match=r"jobs\.bad\.source\.files"):
        config.job("bad")


def test_json_says_the_same_as_yaml(tmp_path: Path) -> None:
    """A job file in JSON, tabs and all, is the same job."""
    as_json = json.dumps(yaml.safe_load(GOOD), indent="\t")

    same = load(write(tmp_path, as_json, "penstock.json"), environ={})

    assert same.job("code").log_id == read(tmp_path, GOOD).job("code").log_id


def test_scalars_are_what_json_has(tmp_path: Path) -> None:
    """YAML 1.1's surprises (no, dates, 12:30, 1e-4) do not reach a role's parameters."""
    items = "[no, 2024-01-01, 12:30, 1e-4, on, 8_192, 012, ~, true, .5, '7']"
    text = f"jobs: {{a: {{source: {{type: items, items: {items}}}, batch_size: 1}}}}\n"

    source = read(tmp_path, text).job("a").sources["main"]

    raws = source.fetch(range(len(source)))
    assert raws == ["no", "2024-01-01", "12:30", 1e-4, "on", 8192, "012", None, True, 0.5, "7"]


def test_anchors_are_shared_through_x_keys(tmp_path: Path) -> None:
    """Several jobs may share a section, as in compose files."""
    text = (
        "x-data: &data {type: items, items: [{x: 1}]}\n"
        "jobs:\n"
        "  a: {source: *data, batch_size: 1}\n"
        "  b: {source: *data, batch_size: 1, seed: 1}\n"
    )

    config = read(tmp_path, text)

    assert len(config.job("a").sources["main"]) == len(config.job("b").sources["main"]) == 1


def test_flags_win_over_environment_and_environment_over_the_file(tmp_path: Path) -> None:
    """The nearest word counts, for every setting on its own."""
    text = GOOD + "\n".join(["", ""])
    environ = {"PENSTOCK_WORKERS": "2", "PENSTOCK_LISTEN": "h:1", "PENSTOCK_PORT": "tcp://x:1"}

    server = read(
        tmp_path, text, environ=environ, overrides={"listen": "f:2", "store": None}
    ).server

    assert (server.workers, server.listen) == (2, "f:2")
    assert server.store == "sqlite:///penstock.db"


def test_a_section_of_the_server_is_json_in_its_variable(tmp_path: Path) -> None:
    """A chart gives certificates so, beside a job file that says nothing of them."""
    tls = '{"cert": "tls.crt", "key": "tls.key", "min_version": "1.3"}'

    server = read(tmp_path, GOOD, environ={"PENSTOCK_TLS": tls}).server

    assert server.tls is not None
    assert (server.tls.cert, server.tls.key, server.tls.client_ca) == ("tls.crt", "tls.key", None)
    assert server.tls.min_version == "1.3"


def test_metrics_can_be_off(tmp_path: Path) -> None:
    """`off` by file or flag means no port."""
    assert read(tmp_path, GOOD, overrides={"metrics": "off"}).server.metrics is None
    assert (
        read(tmp_path, GOOD.replace("listen: 127.0.0.1:0", "metrics: off")).server.metrics is None
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 GiB", 2 << 30), ("1.5 MiB", 3 << 19), ("10MB", 10_000_000), ("512", 512), ("1 kb", 1000)],
)
def test_sizes_are_read_as_people_write_them(text: str, value: int) -> None:
    """Binary and decimal units."""
    assert parse_bytes(text) == value


def test_auto_settings_are_resolved_within_bounds() -> None:
    """`auto` gives at least one worker and a bound that is neither nothing nor everything."""
    server = ServerSettings()

    assert server.worker_count >= 1
    assert 64 << 20 <= server.ready_limit_bytes <= 16 << 30


def test_defaults_of_file_and_python_are_the_same() -> None:
    """A key that is left out of a file means what the same argument left out in Python means."""
    import inspect

    parameters = {
        **inspect.signature(JointJob.__init__).parameters,
        **inspect.signature(Job.__init__).parameters,
    }
    of_set = inspect.signature(RoleSet.__init__).parameters

    for name, field in JobSettings.model_fields.items():
        if name not in ("source", "sources", "function", "joint"):  # of which Python has one
            assert parameters[name].default == field.default, name
    for name, field in SetSettings.model_fields.items():
        if name not in ("source", "sources", "function"):
            assert of_set[name].default == field.default, name


def test_an_unknown_job_names_the_nearest(tmp_path: Path) -> None:
    """The commands' most frequent typing mistake."""
    with pytest.raises(UnknownJob, match=r"there is no job 'cod': did you mean code\?"):
        read(tmp_path, GOOD).job("cod")


JOBS_PY = """\
from penstock.server.job.job import Job
from penstock.server.sources import ItemsSource

def make():
    source = ItemsSource(items=[{"x": 1}, {"x": 2}, {"x": 3}])
    return Job(source=source, batch_size=2, seed=7, lanes=4)

jobs = {"code": make(), "lazy": make}
one = make()
def all_of_them():
    return {"code": make()}
"""


@pytest.mark.parametrize("name", ["jobs", "all_of_them"])
def test_jobs_built_in_python_are_the_same_jobs(tmp_path: Path, name: str) -> None:
    """The same plan has the same log id, from a file or from Python."""
    path = write(tmp_path, JOBS_PY, "jobs.py")

    config = load(f"{path}:{name}", environ={})

    assert config.job("code").log_id == read(tmp_path, GOOD).job("code").log_id
    assert config.job("code").name == "code"


def test_python_jobs_may_be_one_job_or_functions(tmp_path: Path) -> None:
    """A Job, a dict of Jobs and functions, and the default name `jobs`."""
    path = write(tmp_path, JOBS_PY, "jobs.py")

    assert list(load(f"{path}:one", environ={}).jobs) == ["job"]
    assert load(path, environ={}).job("lazy").name == "lazy"


def test_the_target_is_absolute_so_that_workers_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process with another working directory loads the same jobs by `config.target`."""
    write(tmp_path, GOOD)
    write(tmp_path, JOBS_PY, "jobs.py")
    monkeypatch.chdir(tmp_path)
    targets = [load(target, environ={}).target for target in ("penstock.yaml", "jobs.py:jobs")]

    monkeypatch.chdir("/")

    ids = {load(target, environ={}).job("code").log_id for target in targets}
    assert len(ids) == 1


def test_paths_start_at_the_link_not_behind_it(tmp_path: Path) -> None:
    """A mounted ConfigMap is a link: data and store lie beside the link."""
    (tmp_path / "behind").mkdir()
    write(tmp_path / "behind", GOOD)
    (tmp_path / "penstock.yaml").symlink_to(tmp_path / "behind" / "penstock.yaml")

    assert load(str(tmp_path / "penstock.yaml"), environ={}).base == tmp_path


def test_hints_prefer_what_is_near_and_stay_short() -> None:
    """A near name is suggested; else what there is, bounded."""
    known = [f"name{number:02}" for number in range(40)]

    assert nearest("Lanes", ["lanes", "seed"]) == ["lanes"]
    assert hint("zzz", known).endswith("and 20 more")
    assert hint("zzz", []) == "there are none"
