"""From `type:` to a role: names, parameters, paths, and a user's own classes."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.server import roles
from penstock.server.config.class_parameters import describe_type
from penstock.server.config.location import Location
from penstock.server.jobs.registry import KINDS, absolute, build, resolve_path
from penstock.server.roles import (
    BestFitPackingBatcher,
    FunctionCollator,
    FunctionProcessor,
    MapDistributor,
    WindowPackingBatcher,
)
from penstock.server.roles.role import Role
from penstock.wire.errors import InvalidJob, PenstockError

ROLES_PY = """\
from penstock.server.roles import RawItemProcessor, SampleBatcher

class Doubled(RawItemProcessor):
    path_params = ("table",)

    def __init__(self, factor: int = 2, *, table: str | None = None) -> None:
        self.factor, self.table = factor, table

    def process(self, raw, context):
        return {"x": raw["x"] * self.factor}

class Picky(RawItemProcessor):
    def __init__(self, size):
        check(size)

    def process(self, raw, context):
        return raw

def check(size):
    if size != 3:
        raise ValueError(f"size must be 3, not {size}")

class Open(RawItemProcessor):
    def __init__(self, **options):
        self.options = options

    def process(self, raw, context):
        return raw

def to_sample(raw):
    return {"x": raw["x"]}
"""


@pytest.fixture
def location(tmp_path: Path) -> Location:
    (tmp_path / "my_roles.py").write_text(ROLES_PY)
    return Location("penstock.yaml", tmp_path, ("jobs", "code"))


def make(kind: str, spec: dict[str, Any], location: Location) -> Any:
    return build(KINDS[kind], spec, location.at(kind))


def refuse(kind: str, spec: dict[str, Any], location: Location) -> PenstockError:
    with pytest.raises(InvalidJob) as caught:
        make(kind, spec, location)
    assert "\n" not in caught.value.message, "one sentence"
    return caught.value


def builtins() -> list[tuple[str, str, type[Role]]]:
    return [
        (kind.name, name, cls) for kind in KINDS.values() for name, cls in kind.builtins.items()
    ]


@pytest.mark.parametrize(("kind", "name", "cls"), builtins())
def test_every_builtin_is_named_versioned_and_of_its_kind(
    kind: str, name: str, cls: type[Role]
) -> None:
    """A name in a job file leads to a concrete class with a version of its own."""
    assert issubclass(cls, KINDS[kind].base)
    assert not inspect.isabstract(cls)
    assert cls.type_name == name
    assert "version" in vars(cls)


def test_the_roles_package_exports_every_role() -> None:
    """What a job file can name, Python can import from one location."""
    for name in roles.__all__:
        assert inspect.isclass(getattr(roles, name)) or name in (
            "Rows",
            "RawItem",
            "Row",
            "Sample",
        )
    exported = {
        getattr(roles, name)
        for name in roles.__all__
        if name[0].isupper() and inspect.isclass(getattr(roles, name))
    }
    for kind, _, cls in builtins():
        assert kind == "source" or cls in exported
    assert not hasattr(roles, "NoSuchRole")


def test_a_builtin_gets_its_parameters(location: Location) -> None:
    """What stands beside `type` reaches the constructor by name."""
    batcher = make("batcher", {"type": "best_fit", "max_tokens": 8, "pool_size": 4}, location)

    assert isinstance(batcher, BestFitPackingBatcher)
    assert batcher.arguments == {"max_tokens": 8, "pool_size": 4}


def test_a_number_in_a_name_is_a_parameter(location: Location) -> None:
    """`window_10` is the name that its users know; the identity is that of the parameter."""
    named = make("batcher", {"type": "window_10", "max_tokens": 8}, location)
    spelled = make("batcher", {"type": "window", "window": 12, "max_tokens": 8}, location)
    twelve = make("batcher", {"type": "window_12", "max_tokens": 8}, location)

    assert isinstance(named, WindowPackingBatcher)
    assert named.arguments == {"max_tokens": 8, "window": 10}
    assert twelve.identity() == spelled.identity() != named.identity()


@pytest.mark.parametrize(
    "named", ["./my_roles.py:Doubled", "my_roles.py:Doubled", "{base}/my_roles.py:Doubled"]
)
def test_a_class_in_a_file_is_found_beside_the_job_file(location: Location, named: str) -> None:
    """Relative to the job file, or absolute; never to the working directory."""
    role = make("processor", {"type": named.format(base=location.base), "factor": 3}, location)

    assert type(role).__name__ == "Doubled"
    assert role.process({"x": 2}, None) == {"x": 6}


def test_a_class_in_a_package_is_found(location: Location) -> None:
    """`package.module:Class` names what is installed."""
    named = "penstock.server.roles.distributors:MapDistributor"

    assert isinstance(make("distributor", {"type": named}, location), MapDistributor)


def test_an_entry_point_is_found_and_cannot_replace_a_builtin(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package adds names; what a job file says does not change by installing one."""
    points = tuple(
        EntryPoint(name, "penstock.server.roles.batchers:SimpleBatcher", "penstock.batchers")
        for name in ("mine", "best_fit")
    )
    monkeypatch.setattr(
        "penstock.server.jobs.registry.entry_points",
        lambda group: points if group == "penstock.batchers" else (),
    )

    assert (
        type(make("batcher", {"type": "mine", "batch_size": 2}, location)).__name__
        == "SimpleBatcher"
    )
    assert isinstance(
        make("batcher", {"type": "best_fit", "max_tokens": 8}, location), BestFitPackingBatcher
    )


def test_an_entry_point_that_fails_to_import_is_told(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken plugin is named; it is not our traceback."""
    point = EntryPoint("mine", "no_such_package_at_all:Batcher", "penstock.batchers")
    monkeypatch.setattr("penstock.server.jobs.registry.entry_points", lambda group: (point,))

    error = refuse("batcher", {"type": "mine"}, location)

    assert "'mine' of no_such_package_at_all:Batcher cannot be imported" in error.message


def test_a_constructor_that_raises_shows_the_users_frames_only(location: Location) -> None:
    """The traceback begins in the user's file and holds none of ours."""
    error = refuse("processor", {"type": "./my_roles.py:Picky", "size": 4}, location)

    assert "Picky cannot be built: ValueError: size must be 3, not 4" in error.message
    frames = [line for line in error.fields["traceback"].splitlines() if "File " in line]
    assert len(frames) == 2
    assert all("my_roles.py" in frame for frame in frames)


def test_a_constructor_may_take_any_parameter(location: Location) -> None:
    """`**options` turns the check of names off."""
    role = make("processor", {"type": "./my_roles.py:Open", "anything": 1}, location)

    assert role.options == {"anything": 1}


def test_function_makes_a_processor_of_a_function(location: Location) -> None:
    """No class is needed."""
    role = make("processor", {"function": "./my_roles.py:to_sample"}, location)

    assert isinstance(role, FunctionProcessor)
    assert isinstance(
        make("collator", {"function": "./my_roles.py:to_sample"}, location), FunctionCollator
    )


def test_path_parameters_become_absolute(location: Location) -> None:
    """What a class declares as a path is relative to the job file; nothing else is touched."""
    role = make("processor", {"type": "./my_roles.py:Doubled", "table": "a/b.json"}, location)

    assert role.table == f"{location.base}/a/b.json"
    assert "table" not in role.identity().get("parameters", {})


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("corpus/*.parquet", "/jobs/corpus/*.parquet"),
        ("./a.txt", "/jobs/a.txt"),
        ("../a.txt", "/jobs/../a.txt"),
        ("/data/a.txt", "/data/a.txt"),
        ("s3://bucket/a*.parquet", "s3://bucket/a*.parquet"),
        ("file:///data/a", "file:///data/a"),
        ("./data.py:make", "/jobs/data.py:make"),
        ("data.py:Maker.make", "/jobs/data.py:Maker.make"),
        ("/x/data.py:make", "/x/data.py:make"),
        ("package.module:make", "package.module:make"),
        (["a", "s3://b", "/c"], ["/jobs/a", "s3://b", "/c"]),
        ({"train": ["a"], "test": "b"}, {"train": ["/jobs/a"], "test": "/jobs/b"}),
        (None, None),
        (7, 7),
    ],
)
def test_paths_are_resolved_and_names_are_not(value: Any, result: Any) -> None:
    """Globs, URLs, files with attributes, modules, lists and dicts."""
    assert absolute(value, Path("/jobs")) == result


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is what a shell makes of it."""
    monkeypatch.setenv("HOME", "/home/me")

    assert resolve_path("~/corpus", Path("/jobs")) == "/home/me/corpus"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (int, "a whole number"),
        (int | None, "a whole number or null"),
        (Literal["a", "b"], "a or b"),
        (list[int], "a list of whole number values"),
        (dict[str, int], "keys and values"),
    ],
)
def test_types_are_told_in_words(wanted: Any, words: str) -> None:
    """Nobody needs to know Python to mend a job file."""
    assert describe_type(wanted) == words


def test_a_role_without_a_constructor_takes_no_parameters() -> None:
    """Python itself would take them silently, and they would be in the log id."""
    with pytest.raises(TypeError, match=r"DefaultBatchCollator\(\) takes no parameters"):
        roles.DefaultBatchCollator(column="text")
