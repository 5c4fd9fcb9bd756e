"""A log id in other processes: of other hash seeds, other folders and edited modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness import run_command
from unit.test_log_id import JOB, changed, folder, log_id  # noqa: F401 - a fixture


def test_it_is_the_same_in_another_process(folder: Path) -> None:  # noqa: F811
    """Nothing in it depends on hash randomisation or on what was loaded before."""
    job = changed(JOB, "processor", {"type": "./my_roles.py:Upper"})
    here = log_id(folder, job)
    code = (
        "import sys; from penstock.server.jobs.load import load;"
        "print(load(sys.argv[1]).job('j').log_id.hex())"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "penstock.yaml")],
        env={**os.environ, "PYTHONHASHSEED": "99"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == here


NEIGHBOURS = {
    "roles7.py": """\
from penstock.server.roles import RawItemProcessor
import json
from helpers7 import factor

class Mine(RawItemProcessor):
    def process(self, raw, context):
        from package7 import late
        return {"n": late.twice(factor) * len(raw["text"])}
""",
    "helpers7.py": "import deep7\nfactor = deep7.value\n",
    "deep7.py": "value = 3\nimport helpers7\n",  # a circle
    "package7/__init__.py": "",
    "package7/late.py": "from . import beside\nfrom .inner import thing as t\n"
    "def twice(x): return 2 * x\n",
    "package7/beside.py": "import importlib\nby_name = importlib.import_module('named7')\n",
    "package7/inner/thing.py": "x = 1\n",  # a folder without __init__.py
    "named7.py": "y = 1\n",
    "unused7.py": "z = 1\n",
    "json.py": "raise RuntimeError('hidden by the json of Python')\n",
}


IDENTITY = (
    "import sys; from penstock.server.jobs.load import load;"
    "print(load(sys.argv[1]).job('j').log_id.hex())"
)


def write_neighbours(home: Path) -> None:
    for name, text in NEIGHBOURS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    job = {
        "source": {"type": "items", "items": [{"text": "a"}]},
        "processor": {"type": "./roles7.py:Mine"},
        "batch_size": 1,
    }
    (home / "penstock.yaml").write_text(json.dumps({"jobs": {"j": job}}))


def identity(home: Path, code: str = IDENTITY, **environment: str) -> str:
    """Return what a process of its own says: modules are imported once per process.

    With other variables it is a fresh interpreter, else a fork of one without modules of a user's.
    """
    if environment:
        done = subprocess.run(
            [sys.executable, "-c", code, str(home / "penstock.yaml")],
            env={**os.environ, **environment},
            cwd=home.parent,
            capture_output=True,
            text=True,
        )
    else:
        (home.parent / "asking7.py").write_text(code)
        done = run_command(["asking7", str(home / "penstock.yaml")], folder=home.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_is_changed_by_every_module_that_a_role_imports_from_its_folder(tmp_path: Path) -> None:
    """Directly, through others, in a circle, in a function, from packages, by a literal name."""
    home = tmp_path / "home"
    write_neighbours(home)
    before = identity(home)

    changes = {}
    for name in NEIGHBOURS:
        write_neighbours(home)
        with (home / name).open("a") as file:
            file.write("# edited\n")
        changes[name] = identity(home) != before

    assert changes == {name: name not in ("unused7.py", "json.py") for name in NEIGHBOURS}


def test_neighbours_count_by_their_text_wherever_they_lie_and_whatever_ran(tmp_path: Path) -> None:
    """Copied, touched, reached by a link, with the imports in functions done or not: one id."""
    home = tmp_path / "home"
    write_neighbours(home)
    (home / "json.py").unlink()  # a user's own path comes before Python's
    before = identity(home)
    shutil.copytree(home, tmp_path / "there" / "copy")
    for path in (tmp_path / "there").rglob("*"):
        os.utime(path, (1, 1))
    (tmp_path / "link").symlink_to(home)
    ran = (
        f"import sys; sys.path.insert(0, '{home}'); import helpers7, package7.late;"  # by its user
        "from penstock.server.jobs.load import load; job = load(sys.argv[1]).job('j');"
        "job.role_sets[0].processor.process({'text': 'a'}, None); print(job.log_id.hex())"
    )

    assert identity(tmp_path / "there" / "copy") == before
    assert identity(tmp_path / "link") == before
    assert identity(home, ran) == before
    assert identity(tmp_path / "link", ran) == before
    assert identity(home, PYTHONPATH=str(home)) == before


def test_an_edited_neighbour_is_run_as_it_is_hashed(tmp_path: Path) -> None:
    """Python's cache of compiled code knows times and sizes: it gives no old code here."""
    home = tmp_path / "home"
    code = (
        "import sys; from penstock.server.jobs.load import load; job = load(sys.argv[1]).job('j');"
        "print(job.log_id.hex(), job.role_sets[0].processor.process({'text': 'a'}, None)['n'])"
    )

    said = []
    for value in (3, 4):
        write_neighbours(home)
        (home / "deep7.py").write_text(f"value = {value}\n")
        for path in home.rglob("*.py"):
            os.utime(path, (10**9, 10**9))
        said.append(identity(home, code).split())

    assert [n for _, n in said] == ["6", "8"]
    assert said[0][0] != said[1][0]


def test_what_is_hashed_is_what_runs_later_in_this_process(tmp_path: Path) -> None:
    """A neighbour that is imported late, and edited before that, runs as it was hashed."""
    home = tmp_path / "home"
    write_neighbours(home)
    code = (
        "import sys, pathlib; from penstock.server.jobs.load import load;"
        "job = load(sys.argv[1]).job('j'); before = job.log_id;"
        "late = pathlib.Path(sys.argv[1]).parent / 'package7' / 'late.py';"
        "late.write_text('def twice(x): return 200 * x');"
        "print(job.role_sets[0].processor.process({'text': 'a'}, None)['n'])"
    )

    assert identity(home, code) == "6"


def test_a_module_in_a_package_counts_with_its_package(tmp_path: Path) -> None:
    """`package.module:Class` brings what it imports from its package, and nothing installed."""
    home = tmp_path / "home"
    write_neighbours(home)
    package = tmp_path / "lib" / "mine7"
    shutil.copytree(home / "package7", package)
    (package / "roles").mkdir()
    (package / "roles" / "__init__.py").write_text("")
    (package / "other.py").write_text("x = 1\n")
    (package / "roles" / "role.py").write_text(
        "from ..inner import thing\nimport numpy\n"
        + NEIGHBOURS["roles7.py"].replace("helpers7", "mine7.inner.thing").replace("factor", "x")
    )
    job = json.loads((home / "penstock.yaml").read_text())
    job["jobs"]["j"]["processor"]["type"] = "mine7.roles.role:Mine"
    (home / "penstock.yaml").write_text(json.dumps(job))
    lib = {"PYTHONPATH": str(tmp_path / "lib")}
    before = identity(home, **lib)

    (package / "other.py").write_text("x = 2\n")
    same = identity(home, **lib)
    (package / "inner" / "thing.py").write_text("x = 2\n")
    other = identity(home, **lib)

    assert same == before != other


def test_two_folders_with_different_modules_of_one_name_are_refused(tmp_path: Path) -> None:
    """The second role would run the first one's module: it is named, with the way on."""
    for name, value in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "common7.py").write_text(f"value = {value}\n")
        (tmp_path / name / f"role_{name}.py").write_text(
            "from common7 import value\ndef f(raw): return {'n': value}\n"
        )
    code = (
        "import sys; from penstock.server.usercode.imports import load_attribute\n"
        "from penstock.wire.errors import InvalidJob\n"
        "f = load_attribute('a/role_a.py:f')\n"
        "try: load_attribute('b/role_b.py:f')\n"
        "except InvalidJob as error: print(error.message)"
    )

    said = identity(tmp_path / "a", code)

    assert f"{tmp_path}/b/common7.py cannot be imported" in said
    assert "rename one of them" in said
