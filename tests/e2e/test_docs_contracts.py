"""The page's own tests of roles and stores, run by pytest in a folder of the user's."""

from __future__ import annotations

import re
from pathlib import Path

from harness import ENVIRONMENT, run_command

DOCS = Path(__file__).parents[2] / "docs"


STORE = """
import pytest

pytest.register_assert_rewrite("penstock.server.testing.store")

from penstock.server.store import Memory, MemoryStore
from penstock.server.testing.store import StoreContract


class Forgetful(MemoryStore):
    async def commit(self, *arguments, **options):
        done = await super().commit(*arguments, **options)
        return done._replace(cursor=0)


class TestForgetful(StoreContract):
    memory = Memory()

    def make(self, folder):
        return Forgetful(self.memory)
"""


def test_the_pages_example_runs_as_it_stands(tmp_path: Path) -> None:
    """With pytest, in a folder of the user's; a store's suite beside it finds its mistake."""
    text = (DOCS / "roles.md").read_text()
    for name, code in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)^```", text, re.M | re.S):
        (tmp_path / name).write_text(code)
    (tmp_path / "test_my_store.py").write_text(STORE)
    commits = "my_roles or a_commit or first_begin"

    done = run_command(
        ["pytest", "-q", "-rA", "-p", "no:randomly", "-o", "asyncio_mode=auto", "-k", commits],
        environment={**ENVIRONMENT, "PYTEST_ADDOPTS": ""},
        folder=tmp_path,
    )

    failed = set(re.findall(r"^FAILED (\S+)::", done.stdout, re.M))
    assert failed == {"test_my_store.py::TestForgetful"}, done.stdout + done.stderr
    assert done.stdout.count("PASSED test_my_roles.py") == 2
