"""What probes, Prometheus and browsers ask for over HTTP: `/metrics`, `/readyz`, `/`, ..."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from penstock.server.metrics.node_metrics import Metrics
from penstock.wire.errors import PortInUse


class Purpose(NamedTuple):
    """What a port is for, in the words of its errors.

    Attributes:
        serves: What it serves.
        setting: What says its address.
    """

    serves: str
    setting: str


METRICS = Purpose("metrics", "--metrics")
REMOTE_PAGE = Purpose("the status page", "server.remote_page")


class HttpPort:
    """A port of HTTP.

    Args:
        purpose: What it is for.
        routes: What it serves.
    """

    def __init__(self, purpose: Purpose, routes: Iterable[web.RouteDef]) -> None:
        self._purpose, self._routes = purpose, list(routes)
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str, tls: ssl.SSLContext | None = None) -> str:
        """Listen, and return the address with the port that was taken.

        Args:
            listen: `host:port`.
            tls: The certificate that is shown; None = plain HTTP.

        Raises:
            PortInUse: Another process listens there.
        """
        app = web.Application()
        app.add_routes(self._routes)
        # A scrape takes milliseconds; a connection that is only kept open must not delay the end.
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        host, _, port = listen.rpartition(":")
        site = web.TCPSite(runner, host.strip("[]"), int(port), reuse_port=False, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise PortInUse(
                f"cannot serve {self._purpose.serves} on {listen}: {error.strerror or error}; stop "
                f"the other process, or give another {self._purpose.setting} (off for none)",
                address=listen,
            ) from error
        self._runner = runner
        return f"{host}:{runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()


def probes(metrics: Metrics, ready: Callable[[], bool]) -> list[web.RouteDef]:
    """Return what Prometheus and probes ask for; they show no token.

    Args:
        metrics: What `/metrics` shows.
        ready: Whether `/readyz` says yes: after the start, and until the node drains. It does not
            ask the store: an outage there must not take every node out of service at once.
    """

    async def show_metrics(_request: web.Request) -> web.Response:
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def show_ready(_request: web.Request) -> web.Response:
        if ready():
            return web.Response(text="ready\n")
        return web.Response(text="draining\n", status=503)

    return [
        web.get("/metrics", show_metrics),
        web.get("/healthz", show_health),
        web.get("/readyz", show_ready),
    ]
