"""Certificates of a test's own authority, written as files that services and clients read."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from paceline.tls import TlsFiles

_DAY = datetime.timedelta(days=1)


class Authority:
    """A self-signed certificate that signs others. ``issue`` replaces a set of files at once, as Kubernetes does."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._subject = subject
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = str(self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)))

    def issue(self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), days: float = 10) -> TlsFiles:
        """Files for a peer that answers to these hosts; a name used before gets other ones in the same place."""
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.datetime.now(datetime.UTC) + days * _DAY
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(datetime.datetime.now(datetime.UTC), end) - _DAY)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        paths = [
            self._write(f"{name}-cert.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}-key.pem", private),
        ]
        return TlsFiles(str(paths[0]), str(paths[1]), self.ca)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        os.replace(fresh, path)
        return path


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
