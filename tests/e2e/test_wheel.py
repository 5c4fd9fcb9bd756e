"""The wheel, not only the editable install, works: built, installed elsewhere, used end to end."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement

from venvs import bare_environment, venv_with

CHECKOUT = Path(__file__).parents[2]
BATCHES = 6


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    command += ["--sdist", "--wheel", str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [found] = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def bin_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh venv: penstock from the wheel, all else from this Python."""
    home = tmp_path_factory.mktemp("venv")
    venv_with(home, str(wheel))
    return home / "bin"


def files_of_the_base_install() -> set[str]:
    """The top-level names in site-packages of what the wheel needs without an extra."""
    wanted, seen, names = ["penstock"], set(), set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        distribution = metadata.distribution(name)
        needed = map(Requirement, distribution.requires or ())
        wanted.extend(
            requirement.name
            for requirement in needed
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        )
        if name != "penstock":
            names |= {path.parts[0] for path in distribution.files or ()}
    return names - {"..", "__pycache__"}


@pytest.fixture(scope="module")
def base_folder(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a fresh venv with the wheel and what it needs, as without `[server]`."""
    home = tmp_path_factory.mktemp("base")
    venv.create(home, with_pip=False)
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install"]
    install += ["--no-deps", "--no-index", "--disable-pip-version-check", "-q", str(wheel)]
    subprocess.run(install, check=True, timeout=120, env=bare_environment())
    [site] = home.glob("lib/python3*/site-packages")
    for name in files_of_the_base_install():
        (site / name).symlink_to(find_in_path(name))
    return home / "bin"


def find_in_path(name: str) -> Path:
    """Where this Python has a package."""
    return next(found for path in sys.path if path and (found := Path(path) / name).exists())


def run(command: list[str], cwd: Path, status: int = 0) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env=bare_environment(),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_batches_over_the_wire_are_those_that_are_computed_alone(
    bin_folder: Path, tmp_path: Path
) -> None:
    """init, check, a node with workers on a Unix socket, its client: all from the wheel."""
    table = pa.table({"text": [f"document {number}" for number in range(64)]})
    pq.write_table(table, tmp_path / "notes.parquet")
    penstockd, penstock = str(bin_folder / "penstockd"), str(bin_folder / "penstock")
    run([penstockd, "init", "notes.parquet"], tmp_path)
    run([penstockd, "check", "penstock.yaml"], tmp_path)

    target = "spawn:penstock.yaml?workers=2"
    read = run([penstock, "cat", target, "main", "--count", str(BATCHES), "--json"], tmp_path)
    step = ["--step", "0", "--batches-per-step", str(BATCHES), "--json"]
    shown = run([penstockd, "show", "penstock.yaml", "main", *step], tmp_path).splitlines()

    records = [json.loads(line) for line in read.splitlines()]
    assert [record["position"] for record in records] == list(range(BATCHES))
    assert [record["digest"] for record in records] == [json.loads(s)["digest"] for s in shown]


JOB = "jobs:\n  main: {source: {type: items, items: [1, 2, 3]}, batch_size: 2}\n"
WHAT_TO_INSTALL = (
    "needs the server half of penstock, which is not installed whole (aiohttp, click, "
    "grpcio-health-checking and 7 more are missing): pip install 'penstock[server]' "
    "[missing_extra]\n"
)


@pytest.mark.parametrize(
    ("program", "arguments", "what", "status"),
    [
        ("penstockd", ["--help"], "penstockd", 2),
        ("penstockd", ["serve", "job.yaml"], "penstockd", 2),
        ("penstockd", ["check", "job.yaml"], "penstockd", 2),
        ("penstock", ["cat", "local:job.yaml", "main"], "local:job.yaml", 1),
        ("penstock", ["ping", "local:job.yaml"], "local:job.yaml", 1),
        ("penstock", ["cat", "spawn:job.yaml?workers=1", "main"], "spawn:job.yaml?workers=1", 1),
    ],
)
def test_without_the_extra_every_way_to_the_server_half_says_what_to_install(
    base_folder: Path, tmp_path: Path, program: str, arguments: list[str], what: str, status: int
) -> None:
    """One sentence, no traceback, and no process that dies three times."""
    (tmp_path / "job.yaml").write_text(JOB)

    said = run([str(base_folder / program), *arguments], tmp_path, status)

    assert said == f"{program}: error: {what} {WHAT_TO_INSTALL}"


def test_without_the_extra_the_demo_says_what_to_install(base_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    penstock = str(base_folder / "penstock")

    own = run([penstock, "demo", "job.yaml", "main"], tmp_path, 1)
    packed = run([penstock, "demo", "--data", str(tmp_path / "corpus")], tmp_path, 1)

    assert own.endswith(f"penstock: error: penstockd {WHAT_TO_INSTALL}")
    assert "pip install 'penstock[server,tokenizers]' [missing_extra]" in packed
    assert "Traceback" not in own + packed


def test_without_the_extra_a_trainer_reads_from_a_node(
    base_folder: Path, bin_folder: Path, tmp_path: Path
) -> None:
    """The client half needs none of it: only an address that answers."""
    (tmp_path / "job.yaml").write_text(JOB)
    address = f"unix:{tmp_path / 'node.sock'}"
    serve = [str(bin_folder / "penstockd"), "serve", "job.yaml", "--listen", address]
    node = subprocess.Popen(
        [*serve, "--metrics", "off", "--workers", "1"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=bare_environment(),
    )
    try:
        assert node.stderr is not None
        assert any("ready" in line for line in node.stderr)
        cat = [str(base_folder / "penstock"), "cat", address, "main", "--count", "2", "--json"]
        read = [json.loads(line) for line in run(cat, tmp_path).splitlines()]
    finally:
        node.terminate()
        node.communicate(timeout=60)

    assert [record["position"] for record in read] == [0, 1]


def test_without_the_extra_check_is_still_named_as_penstockds(
    base_folder: Path, tmp_path: Path
) -> None:
    said = run([str(base_folder / "penstock"), "check", "job.yaml"], tmp_path, 2)
    assert "check is a command of penstockd: write penstockd check job.yaml" in said


def test_nothing_comes_from_the_checkout(bin_folder: Path, tmp_path: Path) -> None:
    """Else the tests above would test the editable install again."""
    code = (
        "import penstock.client, penstock.server, penstock.wire as wire\n"
        "print(penstock.client.__file__, penstock.server.__file__, wire.__file__, sep='\\n')"
    )

    files = run([str(bin_folder / "python"), "-c", code], tmp_path).splitlines()

    assert len(files) == 3
    assert all(Path(file).is_relative_to(bin_folder.parent) for file in files), files


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """Types, stubs, protos and example files are in it; caches and tests are not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    code = {name for name in names if not name.startswith("penstock-")}

    for half in ("wire", "common", "server", "client"):
        assert f"penstock/{half}/py.typed" in names
    assert "penstock/wire/v1/feed.proto" in names
    assert "penstock/wire/v1/feed_pb2.pyi" in names
    assert "penstock/server/examples/stdlib.yaml" in names
    assert "penstock/__init__.py" not in names
    assert all(name.startswith("penstock/") for name in code), code
    assert not [name for name in code if "__pycache__" in name or "test" in Path(name).name]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_was_listed(built: Path) -> None:
    """No cache, no store, no data of whoever builds it."""
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    roots = {name.partition("/")[0] for name in names if name}
    known = {"proto", "server", "client", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"}
    assert roots - {"PKG-INFO", ".gitignore"} == known
    assert not [name for name in names if "__pycache__" in name]
