"""A certificate for a measurement on loopback."""

from __future__ import annotations

import subprocess
from pathlib import Path

from paceline.errors import ConfigError
from paceline.tls import TlsFiles

_COMMAND = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=paceline-bench "
    "-addext subjectAltName=IP:127.0.0.1,DNS:localhost"
)


def throwaway_certificate(folder: Path) -> TlsFiles:
    """Of services and clients alike: one that signed itself and is its own authority, for a day.

    Raises ConfigError where openssl is missing or fails.
    """
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    try:
        subprocess.run([*_COMMAND.split(), "-out", cert, "-keyout", key], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ConfigError("mTLS is measured with a certificate made by openssl, which is not installed") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"openssl makes no certificate: {error.stderr.strip()}") from error
    return TlsFiles(cert, key, cert)
