"""Certificates in files: read, checked against their key, and read again once they change.

Both halves need it. Python's ssl checks that a key belongs to its certificate; the two dates are
read here, as ssl gives them only for certificates that it has verified.
"""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 1 << 20
"""Chains and bundles of authorities take some hundred KiB at most."""

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\s(.*?)-----END CERTIFICATE-----", re.DOTALL)

_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
"""Tags of DER, as X.690 and RFC 5280 have them."""


class Problem(NamedTuple):
    """A file that is not what it should be.

    Attributes:
        name: Which of the files: a key of `WatchedFiles.paths`.
        sentence: What is wrong, without the path.
    """

    name: str
    sentence: str


class Validity(NamedTuple):
    """From when to when a certificate is valid, in UTC."""

    begins: datetime
    ends: datetime

    def problem(self, now: datetime | None = None) -> str:
        """Return why it is not valid now, as the end of a sentence; empty = it is."""
        now = datetime.now(UTC) if now is None else now
        if now > self.ends:
            return f"has expired: it was valid until {_shown(self.ends)}"
        if now < self.begins:
            return f"is not valid yet: it begins at {_shown(self.begins)}"
        return ""

    def left_s(self) -> float:
        """Return the seconds until it expires; negative = it has."""
        return (self.ends - datetime.now(UTC)).total_seconds()


def _shown(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"


def validity(pem: bytes) -> Validity:
    """Return the dates of the first certificate of a file.

    Raises:
        ValueError: It holds no certificate.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("it holds no certificate in PEM")
    try:
        return validity_of_der(b64decode(found[1]))
    except (IndexError, Base64Error) as error:
        raise ValueError("its certificate cannot be read") from error


def validity_of_der(der: bytes) -> Validity:
    """Return the dates of a certificate in DER.

    Raises:
        ValueError: It is not one.
    """
    certificate, _ = _inside(der, _SEQUENCE)
    rest, _ = _inside(certificate, _SEQUENCE)
    if rest[:1] == bytes((_VERSION,)):
        rest = _element(rest)[2]
    for _ in ("serial number", "algorithm", "issuer"):
        rest = _element(rest)[2]
    dates, _ = _inside(rest, _SEQUENCE)
    tag, first, dates = _element(dates)
    begins = _time(tag, first)
    tag, second, _ = _element(dates)
    return Validity(begins, _time(tag, second))


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first element, and what follows it."""
    if len(data) < 2:
        raise ValueError("its certificate ends too early")
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise ValueError("its certificate ends too early")
    return tag, data[start : start + length], data[start + length :]


def _inside(data: bytes, tag: int) -> tuple[bytes, bytes]:
    found, content, rest = _element(data)
    if found != tag:
        raise ValueError("its certificate cannot be read")
    return content, rest


def _time(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii", "replace")
    if tag == _UTC_TIME:  # RFC 5280, 4.1.2.5.1: years from 50 on are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("its certificate has no dates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


@dataclass(frozen=True)
class Contents:
    """What the files hold.

    Attributes:
        files: The bytes by name: `cert`, `key`, `ca`, those that were given.
        validity: The dates of `cert`; None = there is none.
    """

    files: Mapping[str, bytes]
    validity: Validity | None = None

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file; None = it was not given."""
        return self.files.get(name)


class WatchedFiles:
    """Files that are read again once they change. Used by several threads, as a whole value.

    Args:
        paths: By name: `cert` and `key`, a chain and its key; `ca`, a bundle of authorities.
    """

    def __init__(self, paths: Mapping[str, str | os.PathLike[str]]) -> None:
        self.paths = {name: Path(path) for name, path in paths.items()}

    def state(self) -> tuple[tuple[int, ...] | None, ...]:
        """Return what differs once a file was written or replaced; a link is followed."""
        return tuple(map(_state, self.paths.values()))

    def read(self) -> Contents | Problem:
        """Return what they hold, checked, or what is wrong with one of them.

        Key and certificate do not belong together for a moment, while both are written.
        """
        before = self.state()
        held: dict[str, bytes] = {}
        dates = None
        for name, path in self.paths.items():
            try:
                with path.open("rb") as file:
                    data = file.read(MAX_FILE_BYTES + 1)
            except OSError as error:
                return Problem(name, f"it cannot be read ({error.strerror or error})")
            if len(data) > MAX_FILE_BYTES:
                return Problem(name, f"it has more than {MAX_FILE_BYTES >> 20} MiB")
            held[name] = data
            if name != "key":
                try:
                    found = validity(data)
                except ValueError as error:
                    return Problem(name, str(error))
                dates = found if name == "cert" else dates
        wrong = self._pair_problem() if "cert" in held else None
        if wrong is None and self.state() != before:
            wrong = Problem("cert", "it is being written")
        return Contents(held, dates) if wrong is None else wrong

    def _pair_problem(self) -> Problem | None:
        """Return why the key is not that of the certificate; None = it is."""
        context, asked = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), []

        def password() -> str:  # else OpenSSL asks the terminal for it
            asked.append(True)
            return ""

        try:
            context.load_cert_chain(self.paths["cert"], self.paths["key"], password=password)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            reason = getattr(error, "reason", None) or str(error)
            if asked:
                return Problem("key", "it has a password: give a key without one")
            if reason == "KEY_VALUES_MISMATCH":
                return Problem("key", f"it is not the key of {self.paths['cert']}")
            return Problem("key", f"it is not a private key in PEM ({reason})")
        return None


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
