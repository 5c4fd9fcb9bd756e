"""The composition root of a loader node: everything is made, started and ended here, in order."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

from penstock.common.malloc import keep_memory
from penstock.server.access.callers import Access
from penstock.server.access.tls import LOOK_S, NodeTls
from penstock.server.jobs.load import Config
from penstock.server.jobs.settings import ServerSettings
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.process.allocator import chosen
from penstock.server.process.garbage import collect_as_usual
from penstock.server.process.users import Users
from penstock.server.rpc.autoscaling import EVERY_S, AutoscalingSignal
from penstock.server.rpc.connections import raise_files
from penstock.server.rpc.opening import VERSION
from penstock.server.rpc.service import Service
from penstock.server.store import Store, open_store
from penstock.server.store.watch import StoreWatch
from penstock.wire.errors import InvalidRequest, PenstockError

logger = structlog.get_logger("penstock")


def run(
    config: Config,
    *,
    users: Users | None = None,
    names: Iterable[str] | None = None,
    store: Store | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain; return the exit status.

    The log was configured before: workers follow it.

    Args:
        config: The settings and the jobs.
        users: Who uses it; it ends when nobody does. None = it is there for everybody.
        names: The jobs that are served; None = all.
        store: What is used in place of the store of the settings; not opened yet.

    Raises:
        PenstockError: What keeps it from starting, in one sentence.
    """
    keep_memory()
    raise_files()
    with contextlib.suppress(ImportError):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config, users, names, store))
    return asyncio.run(_serve(config, users, names, store))


async def _serve(
    config: Config,
    users: Users | None,
    names: Iterable[str] | None,
    store: Store | None,
) -> int:
    settings = config.server
    check_exposed(settings)
    is_unix = settings.listen.startswith("unix:")
    tls, access = None, None
    if not is_unix or settings.remote_page is not None:
        if settings.tls is not None:
            tls = NodeTls(settings.tls, config.base)
            tls.announce()
        if settings.tokens is not None:
            access = Access(config.base / settings.tokens, list(config.jobs))
    stop, at_once = asyncio.Event(), asyncio.Event()
    ending = Ending()
    _on_signals(stop, at_once)
    jobs = {name: config.job(name) for name in names or config.jobs}
    for job in jobs.values():
        job.check_fits(settings.ready_limit_bytes)
    if store is None:
        store = open_store(settings.store, config.base)
    metrics = Metrics(VERSION)
    metrics.begin(jobs)
    watch = StoreWatch(store)
    metrics.store_away_s = watch.away_s

    def store_failed(error: PenstockError) -> None:
        metrics.store_failed(error)
        watch.failed(error)

    store.watch(store_failed)
    async with contextlib.AsyncExitStack() as stack:
        if users is not None:
            # Entered first, so left last: whoever waits for it finds the store free.
            stack.enter_context(users)
        await store.open()
        served = False

        async def close_store() -> None:
            # A start that fails leaves no empty store, which the next start would take for theirs.
            await (store.close() if served else store.discard())

        stack.push_async_callback(ending.stage, "store", close_store)
        stack.push_async_callback(watch.close)
        if store.created:
            # A mistyped name looks like a fresh start: runs would begin at step 0 again.
            logger.info(
                "created an empty store: no run has a cursor in it yet", store=store.created
            )
        node = Node(
            jobs,
            store,
            workers=settings.worker_count,
            bound_bytes=settings.ready_limit_bytes,
            snapshot_seconds=settings.snapshot_seconds,
            item_deadline_s=settings.item_seconds,
            observer=metrics,
            imports=config.imports,
        )
        failed = asyncio.Event()

        def fail() -> None:
            failed.set()
            at_once.set()
            stop.set()

        node.life.on_fatal = fail
        # Workers are started before gRPC exists in this process.
        stack.push_async_callback(
            ending.stage, "workers", lambda: node.close(ending.left_s(WORKERS_END_S, STORE_SHARE))
        )
        if not await _start(node, stop):
            logger.info("stopped before it was ready")
            return 1 if failed.is_set() else 0
        asked = None if is_unix else access
        service = Service(
            node,
            store,
            metrics,
            asked,
            reflects=settings.reflection,
            node_id="" if settings.node_id == "auto" else settings.node_id,
        )
        metrics.watch(service.status)
        http = await _serve_http(settings, service, tls, access, stack, ending)
        for name, job in jobs.items():
            for sentence in job.cautions():
                logger.warning(sentence, job=name)
            if shares := job.shares():
                logger.info("each batch comes from one set of roles", job=name, shares=shares)
        collect_as_usual()
        address = await service.start(settings.listen, int(settings.socket_mode, 8), tls)
        served = True
        stack.push_async_callback(
            ending.stage, "port", lambda: service.stop(ending.left_s(PORT_END_S, WORKERS_SHARE))
        )
        _warn_if_open(address, tls, access)
        if tls is not None:
            metrics.watch_certificate(tls.expires_s)
        if access is not None:
            metrics.watch_callers(lambda: access.names, service.streams.by_caller)
        seeing = asyncio.ensure_future(_keep_seeing(service.wanted))
        stack.callback(seeing.cancel)
        if tls is not None or access is not None:
            looking = asyncio.ensure_future(_keep_looking(tls, access, service))
            stack.callback(looking.cancel)
        logger.info(
            "ready",
            address=address,
            tls=tls is not None and not is_unix,
            **http,
            store=store.where,
            workers=settings.worker_count,
            allocator=str(chosen() or "of the system"),
            jobs={name: job.log_id.hex()[:12] for name, job in jobs.items()},
            version=VERSION,
        )
        watching = None
        if users is not None:
            users.ready()
            watching = asyncio.ensure_future(users.gone())
            watching.add_done_callback(lambda _: stop.set())
            stack.callback(watching.cancel)
        await stop.wait()
        grace_s = settings.drain_seconds
        if watching is not None and watching.done():
            grace_s = min(grace_s, UNUSED_GRACE_S)
        logger.info("draining", streams=len(service.streams), grace_s=grace_s)
        metrics.draining.set(1)
        ending.begin(grace_s)
        await ending.stage("drain", lambda: _drain(node, service, ending.left_s(), at_once))
        if at_once.is_set():
            ending.end_now()
    logger.info("stopped", took_s=ending.took_s(), stages_s=ending.stages_s)
    return 1 if failed.is_set() else 0


async def _serve_http(
    settings: ServerSettings,
    service: Service,
    tls: NodeTls | None,
    access: Access | None,
    stack: contextlib.AsyncExitStack,
    ending: Ending,
) -> dict[str, str | None]:
    """Open the ports of HTTP; return their addresses by setting."""
    found: dict[str, str | None] = {"metrics": None, "remote_page": None}
    if settings.metrics is None and settings.remote_page is None:
        return found
    # Here, as the import takes a fifth of the time that a node without it starts in.
    from penstock.server.web.http import METRICS, REMOTE_PAGE, HttpPort, probes
    from penstock.server.web.routes import StatusPage

    page = StatusPage(service.node, service.status, service.metrics)
    stack.push_async_callback(page.stop)
    if settings.metrics is not None:
        answers = probes(service.metrics, lambda: not service.hand_over.has_begun)
        port = HttpPort(METRICS, [*answers, *page.local_routes()])
        found["metrics"] = await port.start(settings.metrics)
        stack.push_async_callback(ending.stage, "metrics", port.stop)
    if settings.remote_page is not None:
        assert tls is not None, "check_exposed refuses it"
        assert access is not None, "check_exposed refuses it"
        port = HttpPort(REMOTE_PAGE, page.remote_routes(access))
        found["remote_page"] = await port.start(settings.remote_page, tls.context())
        stack.push_async_callback(ending.stage, "remote_page", port.stop)
    page.start()
    return found


ENDING_S, ENDING_SHARE = 3.0, 0.4
"""What is kept of the time to end in for what follows the drain: seconds, at most this share."""

EXIT_S, EXIT_SHARE = 1.0, 0.2
"""What the interpreter gets to end in, once everything here has ended: 0.2 s, more under load."""

WORKERS_SHARE, STORE_SHARE = 0.7, 0.4
"""Of that, what is left when the port is closed, and when the workers have ended."""

PORT_END_S, WORKERS_END_S = 0.5, 2.0
"""How long calls, and workers, may take to end by themselves, however much time there is."""


class Ending:
    """The time from the signal to the end: all of it fits into `drain_seconds`.

    People copy that number into what kills the process a moment later.

    Attributes:
        stages_s: How long each stage took.
    """

    def __init__(self) -> None:
        self.stages_s: dict[str, float] = {}
        self._begun: float | None = None
        self._deadline = self._kept_s = 0.0

    def begin(self, grace_s: float) -> None:
        """Start the clock."""
        self._begun = time.monotonic()
        grace_s -= min(EXIT_S, EXIT_SHARE * grace_s)
        self._deadline = self._begun + grace_s
        self._kept_s = min(ENDING_S, ENDING_SHARE * grace_s)

    def end_now(self) -> None:
        """End at once: nothing that hangs is waited for."""
        self._deadline = min(self._deadline, time.monotonic())

    def left_s(self, most_s: float | None = None, share: float = 1.0) -> float:
        """Return how long a stage may take.

        Args:
            most_s: At most this.
            share: The part of the kept time that is for what follows the stage.
        """
        if self._begun is None:  # it ends before it was ready
            return most_s or 0.0
        left_s = max(0.0, self._deadline - share * self._kept_s - time.monotonic())
        return left_s if most_s is None else min(most_s, left_s)

    async def stage(self, name: str, end: Callable[[], Awaitable[None]]) -> None:
        """Run a stage, and note how long it took."""
        start = time.monotonic()
        try:
            await end()
        finally:
            self.stages_s[name] = round(time.monotonic() - start, 3)

    def took_s(self) -> float:
        """Return the seconds since the signal."""
        return round(time.monotonic() - self._begun, 3) if self._begun is not None else 0.0


UNUSED_GRACE_S = 1.0
"""How long a node that nobody uses any more waits for its workers: its last user waits for it."""


async def _start(node: Node, stop: asyncio.Event) -> bool:
    """Start the node; False where it is told to stop before: workers may take long to load."""
    starting, stopping = asyncio.ensure_future(node.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _drain(node: Node, service: Service, grace_s: float, at_once: asyncio.Event) -> None:
    """Let streams and workers end at the same time: a stalled reader costs no snapshot."""
    drain = asyncio.gather(service.drain(grace_s), node.drain(grace_s))
    hurried = asyncio.ensure_future(at_once.wait())
    await asyncio.wait((drain, hurried), return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, hurried):
        task.cancel()
    await asyncio.gather(drain, hurried, return_exceptions=True)


def _on_signals(stop: asyncio.Event, at_once: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT drains; the second ends at once."""

    def handle() -> None:
        if stop.is_set():
            at_once.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle)


def check_exposed(settings: ServerSettings) -> None:
    """Refuse a node that anybody in the network could read, unless that is said to be meant.

    Raises:
        InvalidRequest: It listens beyond this machine without TLS, and has tokens, or no
            `insecure: true`; or it has `remote_page` without TLS or without tokens.
    """
    if settings.remote_page is not None:
        for missing, given, danger, remedy in (
            (
                "TLS",
                settings.tls,
                "tokens would travel readable by all between",
                "give the node a certificate (server: tls: {cert: FILE, key: FILE})",
            ),
            (
                "tokens",
                settings.tokens,
                "whoever reaches the port could read the texts of every job",
                "give the node a file of tokens (server: tokens: FILE; `penstockd token new` "
                "writes it)",
            ),
        ):
            if given is None:
                raise InvalidRequest(
                    f"server.remote_page on {settings.remote_page} without {missing}: {danger}; "
                    f"{remedy}, or write remote_page: off and forward the port of the metrics",
                    field="remote_page",
                    value=settings.remote_page,
                )
    if settings.tls is not None or is_local(settings.listen):
        return
    if settings.tokens is not None:
        raise InvalidRequest(
            f"server.tokens on {settings.listen} without TLS: tokens would travel readable by all "
            "between; give the node a certificate (server: tls: {cert: FILE, key: FILE}), or "
            "listen on 127.0.0.1 or unix:/path",
            field="tokens",
            value=settings.listen,
        )
    if settings.insecure:
        return
    raise InvalidRequest(
        f"listening on {settings.listen} without TLS: whoever reaches the port could read every "
        "job and move every cursor; give it a certificate (server: tls: {cert: FILE, key: FILE}), "
        "listen on 127.0.0.1 or unix:/path, or write server: insecure: true (PENSTOCK_INSECURE) if "
        "nobody else is in this network",
        field="listen",
        value=settings.listen,
    )


def is_local(address: str) -> bool:
    """Tell whether only processes of this machine reach an address."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _warn_if_open(address: str, tls: NodeTls | None, access: Access | None) -> None:
    """Warn when anybody in the network may connect."""
    if is_local(address) or access is not None or (tls is not None and tls.asks_clients):
        return
    how = "without TLS and without a token" if tls is None else "without client_ca and a token"
    logger.warning(
        f"listening beyond this machine {how}: whoever reaches the port can read every job and "
        "move every cursor; keep it inside a trusted network",
        address=address,
    )


async def _keep_seeing(wanted: AutoscalingSignal) -> None:
    """See now and then what jobs want of nodes."""
    while True:
        wanted.look(time.monotonic())
        await asyncio.sleep(EVERY_S)


async def _keep_looking(tls: NodeTls | None, access: Access | None, service: Service) -> None:
    """Look at the files now and then, also while nobody connects."""
    while True:
        await asyncio.sleep(LOOK_S)
        if tls is not None:
            tls.look()
        if access is not None:
            if access.look():
                service.metrics.begin_callers(access.names)
            service.streams.check_callers(access)
