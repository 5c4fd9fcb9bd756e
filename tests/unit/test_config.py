"""Job files: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.server.job import Job
from penstock.server.jobs.load import Config, load
from penstock.server.jobs.settings import (
    JobSettings,
    ServerSettings,
    SetSettings,
    parse_bytes,
)
from penstock.server.joint_job import JointJob, RoleSet
from penstock.wire.errors import InvalidJob, InvalidRequest, UnknownJob
from penstock.wire.nearest import hint, nearest

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


def refuse(folder: Path, text: str) -> InvalidJob:
    """Return the error of a job file that must not pass, all its jobs built."""
    with pytest.raises(InvalidJob) as caught:
        dict(read(folder, text).jobs)
    assert "\n" not in caught.value.message, "one sentence"
    assert caught.value.fields["file"].endswith("penstock.yaml")
    return caught.value


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


@pytest.mark.parametrize(
    ("change", "by", "key", "says"),
    [
        ("lanes: 4", "lane: 4", "jobs.code.lane", "did you mean lanes"),
        ("server:", "sever:", "sever", "did you mean server?"),
        ("listen: 127.0.0.1:0", "lissten: x:1", "server.lissten", "did you mean listen?"),
        ("lanes: 4", "lanes: four", "jobs.code.lanes", "is 'four': give a whole number"),
        ("lanes: 4", "lanes: 0", "jobs.code.lanes", "is 0: give a whole number from 1 to 65,536"),
        ("lanes: 4", "lanes: true", "jobs.code.lanes", "is true: give a whole number"),
        ("lanes: 4", "lanes: 4.0", "jobs.code.lanes", "is 4.0: give a whole number"),
        ("seed: 7", "seed: '7'", "jobs.code.seed", "is '7': give a whole number"),
        ("seed: 7", "seed: no", "jobs.code.seed", "is 'no': give a whole number"),
        ("seed: 7", "on_item_error: skip", "jobs.code.on_item_error", "give stop or quarantine"),
        ("listen: 127.0.0.1:0", "listen: 9", "server.listen", "host:port or unix:/path"),
        ("listen: 127.0.0.1:0", "listen: a:99999", "server.listen", "'a:99999'"),
        ("listen: 127.0.0.1:0", "workers: many", "server.workers", "auto, or a whole number"),
        ("listen: 127.0.0.1:0", "ready_bytes: 2 Gigs", "server.ready_bytes", "such as 2 GiB"),
        ("batch_size: 2", "epochs: 1", "jobs.code.batcher", "neither batcher nor batch_size"),
        (
            "batch_size: 2",
            "batch_size: 2\n    batcher: {type: simple, batch_size: 2}",
            "jobs.code.batch_size",
            "batch_size and batcher are both given",
        ),
        ("code:", "'co de':", "jobs.co de", "is not a name for a job"),
        ("code:", "7:", "jobs.7", "is not a name for a job"),
    ],
)
def test_a_mistake_names_key_value_and_remedy(
    tmp_path: Path, change: str, by: str, key: str, says: str
) -> None:
    """Every wrong key or value is one sentence with the key path and what belongs there."""
    error = refuse(tmp_path, GOOD.replace(change, by, 1))

    assert error.fields["key"] == key
    assert says in error.message


def test_a_mistake_names_its_line(tmp_path: Path) -> None:
    """The line is the one that an editor would jump to."""
    for number, line in enumerate(GOOD.splitlines(), start=1):
        if line.strip().startswith(("lanes", "seed", "batch_size")):
            name = line.strip().partition(":")[0]
            error = refuse(tmp_path, GOOD.replace(line, f"    {name}: wrong"))
            assert error.fields["line"] == number
            assert f"penstock.yaml:{number}: " in error.message


def test_of_several_mistakes_the_first_in_the_file_is_told(tmp_path: Path) -> None:
    """A reader mends a file from the top down."""
    error = refuse(tmp_path, GOOD.replace("seed: 7", "sed: 7").replace("lanes: 4", "lanes: x"))

    assert error.fields["key"] == "jobs.code.sed"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("jobs:\n  a: [1\n", 3, "this is not YAML"),
        ("jobs:\n\ta: 1\n", 2, "this is not YAML: a tab stands"),
        (GOOD + "    seed: 8\n", 9, "jobs.code.seed is given twice, first on line 5"),
        (GOOD + "---\njobs: {}\n", 9, "this is not YAML"),
        ("jobs: &a {x: *a}\n", 1, "contains itself"),
        ("", None, "holds nothing"),
        ("- 1\n", 1, "holds [1]"),
        ("server: {}\n", 1, "jobs is missing"),
        ("jobs: {}\n", 1, "at least one job"),
        ("jobs: {a: }\n", 1, "jobs.a is null: give a job"),
        ("jobs: {a: {batch_size: 1}}\n", 1, "jobs.a.source is missing"),
    ],
)
def test_a_file_that_is_no_job_file_is_refused(
    tmp_path: Path, text: str, line: int | None, says: str
) -> None:
    """Broken YAML, repeated keys and missing sections are told with their line."""
    error = refuse(tmp_path, text)

    assert error.line == line
    assert says in error.message


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    """The first mistake of all: a wrong name."""
    with pytest.raises(InvalidJob, match=r"there is no job file .*penstockd init"):
        load(str(tmp_path / "none.yaml"), environ={})


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """A tokenizer or a Parquet file in place of a job file gives a sentence, not a traceback."""
    path = tmp_path / "penstock.yaml"
    path.write_bytes(b"PAR1\xff\xfe")

    with pytest.raises(InvalidJob, match="not UTF-8"):
        load(str(path), environ={})


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


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"environ": {"PENSTOCK_WORKERS": "x"}}, "PENSTOCK_WORKERS is 'x'"),
        ({"overrides": {"ready_bytes": "lots"}}, "--ready-bytes is 'lots'"),
        ({"environ": {"PENSTOCK_TLS": '{"cert": "a"}'}}, "PENSTOCK_TLS.key is missing"),
        ({"environ": {"PENSTOCK_TLS": "cert.pem"}}, "PENSTOCK_TLS is no JSON"),
    ],
)
def test_a_wrong_override_names_where_it_came_from(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    """A variable is not called a key of the file."""
    with pytest.raises(InvalidRequest, match=says):
        read(tmp_path, GOOD, **options)


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
from penstock.server.job import Job
from penstock.server.sources import ItemsSource

def make():
    source = ItemsSource(items=[{"x": 1}, {"x": 2}, {"x": 3}])
    return Job(source=source, batch_size=2, seed=7, lanes=4)

jobs = {"code": make(), "lazy": make}
one = make()
def all_of_them():
    return {"code": make()}
def broken():
    return 1 / 0
number = 7
wrong = {"code": 7}
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("number", "must be a dict of names and Jobs"),
        ("wrong", "the job 'code' is 7 and no Job"),
        ("broken", r"broken raises ZeroDivisionError: division by zero \(.*jobs\.py:13\)"),
        ("job", "has no 'job'; did you mean jobs"),
    ],
)
def test_wrong_python_jobs_are_told_in_a_sentence(tmp_path: Path, name: str, says: str) -> None:
    """A user's mistake in jobs.py has no traceback of ours."""
    path = write(tmp_path, JOBS_PY, "jobs.py")

    with pytest.raises(InvalidJob, match=says):
        dict(load(f"{path}:{name}", environ={}).jobs)


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
