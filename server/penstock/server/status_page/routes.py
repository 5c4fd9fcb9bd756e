"""What the status page asks for over HTTP: the page, the status, its history, and one batch.

All of it is for browsers on this machine: the peer must be on the loopback, and so must the name
that the browser was told to open, or a page of somebody else's could have its own name lead here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from penstock.server.job import Job
from penstock.server.node.node import Node
from penstock.server.status_page.batch import decoder, latest, shown
from penstock.server.status_page.history import EVERY_S, History
from penstock.wire.errors import clean_json

FILE = Path(__file__).with_name("page.html")

MAX_TEXT = 4096
"""Characters of any text of a reply."""

ELSEWHERE = (
    "The status page is for browsers on the node's own machine: forward the port "
    "(ssh -L 9090:127.0.0.1:9090 HOST, or kubectl port-forward POD 9090) and open "
    "http://127.0.0.1:9090/\n"
)


class StatusPage:
    """The routes of the page.

    Args:
        node: The node.
        status: Returns its status.
    """

    def __init__(self, node: Node, status: Callable[[], dict[str, Any]]) -> None:
        self._node, self._history = node, History(status)
        self._sampling: asyncio.Task[None] | None = None
        self._page, self._policy = b"", ""

    def routes(self) -> list[web.RouteDef]:
        """Return what a server adds."""
        return [
            web.get("/", self._local(self._show_page)),
            web.get("/status.json", self._local(self._show_status)),
            web.get("/history.json", self._local(self._show_history)),
            web.get("/batch.json", self._local(self._show_batch)),
        ]

    def start(self) -> None:
        """Take samples from now on."""
        self._sampling = asyncio.get_running_loop().create_task(self._sample())

    async def stop(self) -> None:
        """Take none any more."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            self._history.sample()
            await asyncio.sleep(EVERY_S)

    def _local(self, show: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.StreamResponse:
            if not is_local(request.remote, request.host):
                return web.Response(status=403, text=ELSEWHERE)
            response: web.StreamResponse = await show(request)
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Cache-Control"] = "no-store"
            return response

        return answer

    async def _show_page(self, _: web.Request) -> web.Response:
        if not self._page:
            self._page = FILE.read_bytes()
            self._policy = policy(self._page.decode())
        headers = {"Content-Security-Policy": self._policy, "Referrer-Policy": "no-referrer"}
        return web.Response(
            body=self._page, content_type="text/html", charset="utf-8", headers=headers
        )

    async def _show_status(self, _: web.Request) -> web.Response:
        return _json(self._history.now())

    async def _show_history(self, _: web.Request) -> web.Response:
        return _json(self._history.samples())

    async def _show_batch(self, request: web.Request) -> web.Response:
        job = self._node.jobs.get(request.query.get("job", ""))
        if job is None:
            return web.Response(status=404, text="there is no such job\n")
        return _json({"batch": await self._batch(job)})

    async def _batch(self, job: Job) -> dict[str, Any] | None:
        copied = latest(self._node.log(job))
        if copied is None:
            return None
        # On a thread: a tokenizer is loaded for the first one.
        return await asyncio.to_thread(shown, copied, decoder(job))


def is_local(remote: str | None, host: str) -> bool:
    """Tell whether a request comes from this machine, by a name of the loopback.

    Args:
        remote: The address of the peer.
        host: What its header `Host` says.
    """
    name = re.sub(r":\d+$", "", host).strip("[]")
    return _is_loopback(remote or "") and (name == "localhost" or _is_loopback(name))


def _is_loopback(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its own script and style, and nothing else."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (hashlib.sha256(text.encode()).digest() for text in found)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def _json(value: Any) -> web.Response:
    body = json.dumps(clean_json(value, MAX_TEXT), separators=(",", ":"))
    return web.Response(text=body, content_type="application/json")


__all__ = ["StatusPage", "is_local", "policy"]
