"""Authorities and certificates for tests: real ones, made in milliseconds, in files."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its key, in files; the paths are texts, as settings have them."""

    cert: str
    key: str


class Authority:
    """Signs certificates.

    Args:
        folder: Where files go.
        name: Its common name, and that of its file.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        self._certificate = (
            x509.CertificateBuilder()
            .subject_name(own)
            .issuer_name(own)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 3650 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        path = folder / f"{name}.pem"
        path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.path = str(path)

    def sign(
        self,
        name: str = "node",
        names: Sequence[str] = ("127.0.0.1", "localhost"),
        *,
        begins: timedelta = -DAY,
        ends: timedelta = 30 * DAY,
    ) -> Pair:
        """Write a certificate and its key; those of that name before are replaced at once, each.

        Args:
            name: Its common name, and that of its files.
            names: What else it is for: addresses, URIs and DNS names.
            begins: When it begins to be valid, from now.
            ends: When it ends, from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(each) for each in names]), critical=False
            )
        signed = builder.sign(self._key, hashes.SHA256())
        pair = Pair(str(self._folder / f"{name}.crt"), str(self._folder / f"{name}.key"))
        _replace(pair.cert, signed.public_bytes(serialization.Encoding.PEM))
        _replace(
            pair.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return pair


def _replace(path: str, data: bytes) -> None:
    """Write a file that only this user may read, at once."""
    new = f"{path}.new"
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(new, path)


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


__all__ = ["DAY", "Authority", "Pair"]
