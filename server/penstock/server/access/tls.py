"""The certificate that a node shows: read again once its files change, told once, counted down."""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from penstock.common.certificates import Contents, Problem, WatchedFiles, validity
from penstock.server.jobs.settings import TlsSettings
from penstock.wire.errors import InvalidJob

if TYPE_CHECKING:
    import grpc

logger = structlog.get_logger("penstock")

LOOK_S = 2.0
"""How often files are looked at; those of certificates at every handshake, too."""

SOON_S = 7 * 86400.0
"""A certificate that expires within this is told of at the start."""

CIPHERS = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:" + ":".join(
    f"ECDHE-{kind}-{cipher}"
    for cipher in ("AES256-GCM-SHA384", "CHACHA20-POLY1305")
    for kind in ("ECDSA", "RSA")
)
"""For TLS 1.2, where gRPC would take older ones too; those of TLS 1.3 cannot be chosen."""

VARIABLE, NONE = "GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305"
"""What gRPC takes ciphers from, and one that needs a key shared before, which nobody has."""

_FILES = {"cert": "cert", "key": "key", "ca": "client_ca"}
"""Names of `WatchedFiles` by what the settings call them."""


class NodeTls:
    """The TLS of a node. Used by the event loop and by gRPC's threads.

    Args:
        settings: The section `server.tls`.
        base: The folder that relative paths start from.

    Raises:
        InvalidJob: A file cannot be used; names the key.
    """

    def __init__(self, settings: TlsSettings, base: Path) -> None:
        self.settings = settings
        given = {"cert": settings.cert, "key": settings.key, "ca": settings.client_ca}
        paths = {name: base / Path(path).expanduser() for name, path in given.items() if path}
        self._files = WatchedFiles(paths)
        self._lock = threading.Lock()
        self._state = self._files.state()
        held = self._read()
        if isinstance(held, Problem):
            key = f"server.tls.{_FILES[held.name]}"
            raise InvalidJob(f"{key}: {paths[held.name]}: {held.sentence}", key=key)
        self._held = held
        self._given: Contents | None = None  # what gRPC has

    def _read(self) -> Contents | Problem:
        held = self._files.read()
        if isinstance(held, Problem):
            return held
        with contextlib.suppress(FileNotFoundError):  # it is being replaced
            if self._files.paths["key"].stat().st_mode & stat.S_IRWXO:
                return Problem("key", "every user of this machine may read it: chmod o-rwx")
        for name in ("cert", "ca"):
            data = held.get(name)
            if data is not None and (problem := validity(data).problem()):
                return Problem(name, f"its certificate {problem}")
        return held

    @property
    def asks_clients(self) -> bool:
        """Whether clients need a certificate of their own."""
        return self.settings.client_ca is not None

    def expires_s(self) -> float:
        """Return the seconds until the certificate that is shown expires; negative = it has."""
        dates = self._held.validity
        assert dates is not None
        return dates.left_s()

    def look(self) -> bool:
        """Read the files again if they have changed; tell whether others are shown from now on."""
        with self._lock:
            state = self._files.state()
            if state == self._state:
                return False
            self._state = state
            held = self._read()
            if isinstance(held, Problem):
                logger.warning(
                    "the certificate has changed and cannot be used: the one before is shown",
                    file=str(self._files.paths[held.name]),
                    error=held.sentence,
                    expires=_date(self._held),
                )
                return False
            if held.files == self._held.files:
                return False
            self._held = held
            logger.info("the certificate has changed: new connections get it", expires=_date(held))
            return True

    def announce(self) -> None:
        """Log what is shown, and that it expires soon."""
        logger.info(
            "TLS",
            expires=_date(self._held),
            client_certificates="required" if self.asks_clients else "not asked for",
            min_version=self.settings.min_version,
        )
        if self.expires_s() < SOON_S:
            logger.warning("the certificate expires soon", expires=_date(self._held))

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a port of gRPC is opened with: it asks here at every handshake."""
        import grpc

        def configuration() -> grpc.ServerCertificateConfiguration:
            held = self._held
            self._given = held
            pair = (held.files["key"], held.files["cert"])
            return grpc.ssl_server_certificate_configuration([pair], held.get("ca"))

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            self.look()
            return None if self._held is self._given else configuration()

        return grpc.dynamic_ssl_server_credentials(
            configuration(),
            renewed,  # type: ignore[arg-type]  # None = as before, which grpc-stubs leave out
            self.asks_clients,
        )

    def context(self) -> ssl.SSLContext:
        """Return what a port of HTTP is opened with: it asks here at every handshake, too.

        It speaks TLS 1.3 alone, whatever `min_version` says.
        """
        shown = self._held, self._context_of(self._held)

        def renewed(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal shown
            self.look()
            held = self._held
            if held is not shown[0]:
                shown = held, self._context_of(held)
            connection.context = shown[1]

        context = self._context_of(self._held)
        context.sni_callback = renewed  # called without a name, too
        return context

    def _context_of(self, held: Contents) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # All browsers speak it. A session that is resumed shows no certificate, so a changed
        # client_ca would not hold for it: without tickets there is none, which TLS 1.2 has, too.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        with contextlib.ExitStack() as files:

            def path(name: str) -> str:
                """Return a file with what was checked; those on the disk may be others by now."""
                file = files.enter_context(open(os.memfd_create(name), "wb"))
                file.write(held.files[name])
                file.flush()
                return f"/proc/self/fd/{file.fileno()}"

            context.load_cert_chain(path("cert"), path("key"))
            if self.asks_clients:
                context.load_verify_locations(path("ca"))
                context.verify_mode = ssl.CERT_REQUIRED
        return context


def choose_ciphers(settings: TlsSettings, environ: MutableMapping[str, str] = os.environ) -> None:
    """Choose the ciphers of TLS 1.2 for this process, before gRPC is imported; the user's stay.

    gRPC's Python has no other way to refuse a version: without a cipher nobody speaks it.
    """
    if settings.min_version == "1.3":
        environ[VARIABLE] = NONE
    else:
        environ.setdefault(VARIABLE, CIPHERS)


def _date(held: Contents) -> str:
    assert held.validity is not None
    return f"{held.validity.ends:%Y-%m-%dT%H:%M:%SZ}"
