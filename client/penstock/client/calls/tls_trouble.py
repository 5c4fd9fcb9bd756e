"""Why a connection over TLS, or one without it, was not made: gRPC says UNAVAILABLE to all of it.

So the node is asked once more, by Python's ssl, which tells the reasons apart.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from penstock.client.calls.node_address import SYSTEM, VARIABLES, Address, Tls, host_and_port
from penstock.common.certificates import Problem, Validity, WatchedFiles, validity_of_der

PROBE_S = 3.0
"""How long each step of the question may take."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What an HTTP/2 client says first (RFC 9113, 3.4), with empty settings: a node answers it."""

_EXPIRED, _NOT_YET, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64
"""OpenSSL's codes of what is wrong with a certificate (X509_V_ERR_...)."""


def trouble(address: Address) -> str | None:
    """Return what keeps TLS from being spoken, as a sentence with the remedy; None = not known.

    Args:
        address: Of a node that could not be reached, over TCP.
    """
    if not isinstance(address.target, str):
        return None
    host, port = host_and_port(address.target)
    if not port.isdigit():
        return None
    try:
        if address.tls is None:
            return _speaks_tls(address.text, host, int(port))
        return _of_tls(address.text, host, int(port), address.tls)
    except OSError:
        return None  # it is away, and gRPC has said so


def _speaks_tls(target: str, host: str, port: int) -> str | None:
    """Ask a node that hung up on a client without TLS."""
    try:
        _handshake(_unverified(), host, port, host)
    except ssl.SSLError:
        return None
    return (
        f"{target} speaks TLS, and this client does not: pass tls=Tls(ca=FILE), or set "
        f"{VARIABLES['ca']} to the file of the authority that signed its certificate"
    )


def _of_tls(target: str, host: str, port: int, tls: Tls) -> str | None:
    name = tls.name or host
    held = WatchedFiles(tls.paths).read()
    if isinstance(held, Problem):
        return f"{held.name} {tls.paths[held.name]}: {held.sentence}"
    context = _verified(tls)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    try:
        answered = _handshake(context, host, port, name).answered
    except ssl.SSLCertVerificationError as error:
        return _not_verified(target, host, port, tls, name, error)
    except ssl.SSLEOFError:
        # It hung up without a word: a node that is ending, or that has no room for a connection.
        return None
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return (
                f"{target} does not speak TLS, and this client does: leave tls= and PENSTOCK_TLS_* "
                "out, or give the node a certificate (server: tls: in its job file)"
            )
        return f"{target} refused TLS ({reason or error}): its log may say more"
    if answered:
        return None
    return _client_refused(target, tls, held.validity)


def _not_verified(
    target: str,
    host: str,
    port: int,
    tls: Tls,
    name: str,
    error: ssl.SSLCertVerificationError,
) -> str:
    code = error.verify_code
    if code in (_EXPIRED, _NOT_YET):
        with contextlib.suppress(OSError, ValueError):
            der = _handshake(_unverified(), host, port, name).certificate
            problem = validity_of_der(der).problem()
            if problem:
                return f"the certificate of {target} {problem}; renew it there"
        return f"a certificate of {target} is not valid now ({error.verify_message}); renew it"
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        names = ""
        with contextlib.suppress(OSError):
            nameless = _verified(tls)
            nameless.check_hostname = False
            names = _names(_handshake(nameless, host, port, name).fields)
        said = f"is for {names}, and not for {name}" if names else f"is not for {name}"
        return (
            f"the certificate of {target} {said}: connect to a name that it has, or give it as "
            f"Tls(name=...) or {VARIABLES['name']}"
        )
    if tls.ca == SYSTEM:
        known = "is signed by none of the public authorities"
    else:
        known = f"is signed by none of the authorities in {tls.ca}"
    return (
        f"the certificate of {target} {known} ({error.verify_message}): give the file of "
        f"the one that signed it as Tls(ca=...) or {VARIABLES['ca']}"
    )


def _names(fields: Mapping[str, Any]) -> str:
    """Return the names in a certificate, some of them if they are many."""
    found = [value for _, value in fields.get("subjectAltName", ())]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _client_refused(target: str, tls: Tls, dates: Validity | None) -> str:
    """A node that hangs up right after the handshake does not accept who the client is."""
    if tls.cert is None:
        return (
            f"{target} asks for a client certificate, and this client has none: pass "
            f"Tls(cert=FILE, key=FILE), or set {VARIABLES['cert']} and {VARIABLES['key']}"
        )
    problem = "" if dates is None else dates.problem()
    if problem:
        return f"{target} refuses the client certificate {tls.cert}, which {problem}; renew it"
    return (
        f"{target} refuses the client certificate {tls.cert}: it is not signed by the authorities "
        "that the node trusts (server: tls: client_ca: in its job file)"
    )


class _Answer:
    """What a handshake gave.

    Attributes:
        certificate: The node's certificate, in DER.
        fields: The same as ssl reads it; empty where it was not verified.
        answered: The node went on after it.
    """

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self.certificate = connection.getpeercert(binary_form=True) or b""
        self.fields: Mapping[str, Any] = connection.getpeercert() or {}
        try:
            connection.sendall(_PREFACE)
            self.answered = bool(connection.recv(9))
        except (ssl.SSLError, ConnectionError):
            self.answered = False
        except TimeoutError:
            self.answered = True


def _handshake(context: ssl.SSLContext, host: str, port: int, name: str) -> _Answer:
    with (
        socket.create_connection((host, port), PROBE_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        return _Answer(connection)


def _verified(tls: Tls) -> ssl.SSLContext:
    """Return a context that takes the certificates that gRPC takes."""
    context = ssl.create_default_context(cafile=None if tls.ca == SYSTEM else tls.ca)
    # Python 3.13 is stricter than gRPC by default.
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    context.set_alpn_protocols(["h2"])
    return context


def _unverified() -> ssl.SSLContext:
    """Return a context that takes any certificate: to look at it, and to send nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
