"""What the status page asks for over HTTP: the page, the status, its history, and one batch.

It is served twice. On the port of the metrics it is for browsers on this machine: the peer must be
on the loopback, and so must the name that the browser was told to open, or a page of somebody
else's could have its own name lead here. On `remote_page`, over TLS, it is for whoever shows a
token; there the page alone, which holds no figure, asks for none.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from penstock.server.access.caller import ANYBODY, READ, TEXT, Caller
from penstock.server.access.callers import Access
from penstock.server.job.job import Job
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.rpc.status import seen_by
from penstock.server.web.batch_page import MOST_BYTES, Copied, decoder, shown
from penstock.server.web.history import EVERY_S, History
from penstock.wire.errors import Forbidden, PenstockError, Unauthenticated
from penstock.wire.plain import clean_json

FILE = Path(__file__).with_name("page.html")

MAX_TEXT = 4096
"""Characters of any text of a reply."""

ELSEWHERE = (
    "The status page is for browsers on the node's own machine: forward the port "
    "(ssh -L 9090:127.0.0.1:9090 HOST, or kubectl port-forward POD 9090) and open "
    "http://127.0.0.1:9090/; its operator can also serve it over TLS to tokens, with "
    "server.remote_page\n"
)

NO_TOKEN = (
    "this page asks for a token of the node, with the scope read; its operator makes one with "
    "`penstockd token new`"
)

Show = Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]


class StatusPage:
    """The routes of the page.

    Args:
        node: The node.
        status: Returns its status.
        metrics: Where refused requests are counted.
    """

    def __init__(self, node: Node, status: Callable[[], dict[str, Any]], metrics: Metrics) -> None:
        self._node, self._history, self._metrics = node, History(status), metrics
        self._sampling: asyncio.Task[None] | None = None
        self._page, self._policy = b"", ""
        self._statuses, self._pasts = SharedText(_status_for), SharedText(_past_for)

    def local_routes(self) -> list[web.RouteDef]:
        """Return what is served to browsers on this machine."""

        def guarded(show: Show) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
            async def answer(request: web.Request) -> web.StreamResponse:
                if not is_local(request.remote, request.host):
                    return _guarded(web.Response(status=403, text=ELSEWHERE))
                return _guarded(await show(request, ANYBODY))

            return answer

        return [
            web.get("/", guarded(self._show_page)),
            web.get("/status.json", guarded(self._show_status)),
            web.get("/history.json", guarded(self._show_history)),
            web.get("/batch.json", guarded(self._show_batch)),
        ]

    def remote_routes(self, access: Access) -> list[web.RouteDef]:
        """Return what is served to whoever shows a token.

        Args:
            access: Whose tokens are good.
        """

        def asking(
            show: Show, scope: str, what: str
        ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
            async def answer(request: web.Request) -> web.StreamResponse:
                try:
                    shown = request.headers.get("Authorization")
                    if shown is None:
                        raise Unauthenticated(NO_TOKEN)
                    caller = access.of_header(shown)
                    caller.need(scope, what)
                    return _guarded(await show(request, caller))
                except (Unauthenticated, Forbidden) as error:
                    self._metrics.refused(error.name or "", error.code)
                    return _guarded(_refusal(error))

            return answer

        async def page(request: web.Request) -> web.StreamResponse:
            return _guarded(await self._show_page(request, ANYBODY))

        return [
            web.get("/", page),
            web.get("/status.json", asking(self._show_status, READ, "look at the node")),
            web.get("/history.json", asking(self._show_history, READ, "look at the node")),
            web.get("/batch.json", asking(self._show_batch, TEXT, "see the texts of a batch")),
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

    async def _show_page(self, _request: web.Request, _caller: Caller) -> web.Response:
        if not self._page:
            self._page = FILE.read_bytes()
            self._policy = policy(self._page.decode())
        headers = {"Content-Security-Policy": self._policy, "Referrer-Policy": "no-referrer"}
        return web.Response(
            body=self._page, content_type="text/html", charset="utf-8", headers=headers
        )

    async def _show_status(self, _request: web.Request, caller: Caller) -> web.Response:
        return _json(self._statuses.text(self._history.now(), caller))

    async def _show_history(self, _request: web.Request, caller: Caller) -> web.Response:
        return _json(self._pasts.text(self._history.samples(), caller))

    async def _show_batch(self, request: web.Request, caller: Caller) -> web.Response:
        name = request.query.get("job", "")
        caller.check(name)
        job = self._node.jobs.get(name)
        if job is None:
            return web.Response(status=404, text="there is no such job\n")
        return _json(_text({"batch": await self._batch(job)}))

    async def _batch(self, job: Job) -> dict[str, Any] | None:
        entry = self._node.latest(job, MOST_BYTES)
        if entry is None:
            return None
        copied = Copied(entry)
        # On a thread: a tokenizer is loaded for the first one.
        return await asyncio.to_thread(shown, copied, decoder(job))


class SharedText:
    """The text of something for each caller: made once for all who ask for the same.

    With 1,024 readers one of a status takes 20 ms of a core, which ten viewers share.

    Args:
        seen: Gives what a caller may see of it.
    """

    def __init__(self, seen: Callable[[Caller, Any], Any]) -> None:
        self._seen = seen
        self._of: object = None
        self._texts: dict[Caller, str] = {}

    def text(self, of: Any, caller: Caller) -> str:
        """Return the JSON of what a caller may see.

        Args:
            of: All of it; another object where it has changed.
            caller: Who asks.
        """
        if of is not self._of:
            self._of, self._texts = of, {}
        text = self._texts.get(caller)
        if text is None:
            text = self._texts[caller] = _text(self._seen(caller, of))
        return text


def _status_for(caller: Caller, now: Mapping[str, Any]) -> dict[str, Any]:
    status, flows = seen_by(caller, now["status"]), _of_jobs(caller, now["strip"])
    return {**now, "status": status, "strip": flows}


def _past_for(caller: Caller, past: Mapping[str, Any]) -> dict[str, Any]:
    samples = [{**sample, "jobs": _of_jobs(caller, sample["jobs"])} for sample in past["samples"]]
    return {**past, "samples": samples}


def _of_jobs(caller: Caller, by_job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller may see of something by job."""
    return {name: found for name, found in by_job.items() if caller.sees_job(name)}


def _guarded(response: web.StreamResponse) -> web.StreamResponse:
    """Return a response that is neither guessed at nor kept."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    return response


def _refusal(error: PenstockError) -> web.Response:
    """Return what a browser is told that is not let in; it never repeats a token."""
    known = isinstance(error, Forbidden)
    return web.Response(
        status=403 if known else 401,
        text=f"{error.message} [{error.code}]\n",
        headers={} if known else {"WWW-Authenticate": "Bearer"},
    )


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


def _text(value: Any) -> str:
    return json.dumps(clean_json(value, MAX_TEXT), separators=(",", ":"))


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")
