"""The status page in a real browser, on a real node: what it shows, asks for, and lets pass."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import CHROMIUM, browsing
from harness import Server, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.server.metrics.scraped import SLOWEST_RANKS

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT RUN: chromium is not installed (Debian: apt install chromium)"
)

EVIL = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"

ROLES = """
def whole(row):
    return {"input_ids": row["input_ids"]}
"""

ITEMS = [{"input_ids": list(range(1, n))} for n in (5, 9, 14, 20, 30, 3)]
JOBS: dict[str, Any] = {
    "code": {
        "lanes": 2,
        "source": {"type": "items", "items": [*ITEMS, {"evil": EVIL}]},
        "processor": {"function": "./roles.py:whole"},
        "on_item_error": "quarantine",
        "batcher": {"type": "best_fit", "max_tokens": 32, "rows": 2, "pool_size": 4},
        "collator": {"type": "packed", "pad_to": 32},
    },
    "plain": {
        "lanes": 1,
        "source": {"type": "items", "items": [{"text": EVIL}]},
        "batch_size": 1,
    },
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A node, and where its page is; a reader commits all the while."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "roles.py").write_text(ROLES)
    file = write_job_file(folder / "jobs.yaml", JOBS, metrics="127.0.0.1:0")
    over = threading.Event()
    with (
        serving(file) as node,
        Loader(node.address, "code", group="run", rank=0, world_size=1, as_numpy=True) as loader,
        Loader(node.address, "plain", rank=0, world_size=1, as_numpy=True) as plain,
    ):
        next(iter(plain))

        def train() -> None:
            for step, _ in enumerate(loader):
                if step % 10 == 9:
                    loader.commit()
                if over.wait(0.01):
                    return

        thread = threading.Thread(target=train)
        thread.start()
        [ready] = node.events("ready")
        try:
            yield node, f"http://{ready['metrics']}"
        finally:
            over.set()
            thread.join()


def get(url: str, **headers: str) -> tuple[int, dict[str, str], str]:
    """Return status, headers and text of a URL."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, dict(reply.headers), reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def test_the_page_has_the_figures_of_top(page: tuple[Server, str]) -> None:
    """`/status.json` is `Feed.Status`, with the strip of each job beside it."""
    node, url = page

    found = json.loads(get(f"{url}/status.json")[2])

    told = node.status()
    assert set(found["status"]) == set(told)
    for shown, job in zip(found["status"]["jobs"], told["jobs"], strict=True):
        assert set(shown) == set(job)
        assert set(shown["counts"]) == set(job["counts"])
    # Readers come and go between the two answers; what is said of each is the same.
    jobs = [*found["status"]["jobs"], *told["jobs"]]
    groups = [set(each) for job in jobs for each in job["groups"]]
    assert all(each == groups[0] for each in groups)
    assert found["status"]["node"] == told["node"]
    assert set(found["strip"]) == {"code", "plain"}
    assert json.loads(get(f"{url}/history.json")[2])["every_s"] == 5


def test_others_are_sent_away(page: tuple[Server, str]) -> None:
    """By every name that is not the loopback's; probes and scrapes are answered."""
    _, url = page

    for path in ("/", "/status.json", "/history.json", "/batch.json?job=code"):
        code, _, text = get(url + path, Host="node.example:9090")
        assert (code, "forward the port" in text) == (403, True), path
    for path in ("/metrics", "/healthz", "/readyz"):
        assert get(url + path, Host="node.example:9090")[0] == 200
    assert get(f"{url}/batch.json?job=other")[0] == 404


def test_a_scrape_of_64_ranks_has_them_in_one_series(page: tuple[Server, str]) -> None:
    """How long it takes is in `make bench NAMES=status_page`."""
    node, url = page
    readers = [
        node.read("code", group="many", rank=rank, world_size=64, batches_per_step=64)
        for rank in range(64)
    ]
    eventually(
        lambda: sum(len(job["groups"]) for job in node.status()["jobs"]) >= 65, 60, "all read"
    )

    text = get(f"{url}/metrics")[2]

    assert 'penstock_group_readers{group="many",penstock_job="code"} 64.0' in text
    of_ranks = re.findall(r'^(\w+)\{group="many",.*rank="\d+"\}', text, re.M)
    assert set(Counter(of_ranks).values()) == {SLOWEST_RANKS}
    for reader in readers:
        reader.cancel()


@needs_chromium
async def test_a_browser_shows_it_and_asks_nobody_else(
    page: tuple[Server, str], tmp_path: Path
) -> None:
    """At three widths, light and dark, by the keyboard alone; a report stands for itself."""
    _, url = page
    async with browsing() as tab:
        await tab.look(1360, 900, "light")
        await tab.open(f"{url}/")
        await tab.until("!!document.querySelector('[data-doc]') && !!document.querySelector('em')")
        for width in (1360, 820, 390):
            backgrounds = set()
            for scheme in ("light", "dark"):
                await tab.look(width, 900, scheme)
                wide = await tab.run("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{width} px: the page is {wide} px wider"
                backgrounds.add(await tab.run("getComputedStyle(document.body).backgroundColor"))
                await tab.picture(tmp_path / f"{width}-{scheme}.png")
            assert len(backgrounds) == 2

        # What it says.
        parts = await tab.run("[...document.querySelectorAll('#strip li')].map(e=>e.dataset.part)")
        assert parts == ["source", "process", "pack", "ready", "sent", "committed"]
        assert "run" in await tab.run("document.getElementById('ranks').innerText")
        assert "quarantined" in await tab.run("document.getElementById('out').innerText")

        # The keyboard: to the second document (padding is none), and to the other job.
        await tab.run("document.activeElement.blur()")
        reached: list[str] = []
        second = "document.querySelectorAll('[data-doc]')[1]"
        for _ in range(12):
            await tab.press("Tab")
            reached.append(await tab.run("document.activeElement.innerText"))
            if await tab.run(f"document.activeElement === {second}"):
                break
        assert reached[:3] == ["Save report", "code", "plain"]
        await tab.press("Enter")
        assert await tab.run("document.activeElement.getAttribute('aria-pressed')") == "true"
        assert "tokens" in await tab.run("document.getElementById('text').innerText")
        await tab.run("document.querySelectorAll('#jobs button')[1].focus()")
        await tab.press("Enter")
        await tab.until("document.getElementById('rows').innerText.includes('onerror')")
        title = await tab.run("document.title")
        assert title == "plain · penstock"  # what a text says is shown, and not obeyed

        # A report is the page with its figures; opened from a file it asks nobody.
        await tab.run(
            "window.blobs=[]; const make=URL.createObjectURL;"
            "URL.createObjectURL=blob=>{window.blobs.push(blob);return make(blob)}"
        )
        await tab.run("document.getElementById('save').click()")
        text = await tab.until("window.blobs[0] && window.blobs[0].text()")
        assert [
            each for each in tab.requested if not each.startswith((url, "blob:", "data:"))
        ] == []
        report = tmp_path / "report.html"
        report.write_text(text)
        before = len(tab.requested)
        await tab.open(report.as_uri())
        await tab.until("document.getElementById('rows').innerText.includes('onerror')")
        assert "Saved" in await tab.run("document.getElementById('foot').innerText")
        assert [each for each in tab.requested[before:] if each != report.as_uri()] == []
        assert tab.complaints == []
