"""What probes, Prometheus and browsers ask for over HTTP: `/metrics`, `/readyz`, `/`, ..."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock.server.metrics import Metrics
from penstock.server.status_page.routes import StatusPage
from penstock.wire.errors import PortInUse


class HttpEdge:
    """The metrics port.

    Args:
        metrics: What `/metrics` shows.
        ready: Whether `/readyz` says yes: after the start, and until the node drains. It does not
            ask the store: an outage there must not take every node out of service at once.
        page: The status page.
    """

    def __init__(self, metrics: Metrics, ready: Callable[[], bool], page: StatusPage) -> None:
        self._metrics, self._ready, self._page = metrics, ready, page
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str) -> str:
        """Listen, and return the address with the port that was taken.

        Raises:
            PortInUse: Another process listens there.
        """
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._show_metrics),
                web.get("/healthz", self._show_health),
                web.get("/readyz", self._show_ready),
                *self._page.routes(),
            ]
        )
        # A scrape takes milliseconds; a connection that is only kept open must not delay the end.
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        host, _, port = listen.rpartition(":")
        site = web.TCPSite(runner, host.strip("[]"), int(port), reuse_port=False)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise PortInUse(
                f"cannot serve metrics on {listen}: {error.strerror or error}; stop the other "
                "process, or give another --metrics (off for none)",
                address=listen,
            ) from error
        self._runner = runner
        self._page.start()
        return f"{host}:{runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close the port."""
        await self._page.stop()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _show_health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _show_ready(self, _request: web.Request) -> web.Response:
        if self._ready():
            return web.Response(text="ready\n")
        return web.Response(text="draining\n", status=503)


__all__ = ["HttpEdge"]
