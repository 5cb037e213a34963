"""The TLS of a listener, from a certificate and its key. What is wrong with the files is said with option and file."""

from __future__ import annotations

import ssl
from pathlib import Path

from kvitto.base.config import ConfigError


def context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer. ConfigError for files that cannot be read or used; a passphrase is never asked for."""

    def locked() -> str:
        raise ConfigError(
            f"--tls-key {key}: the key has a passphrase, Kvitto needs one without (openssl pkey removes it)"
        )

    _readable("--tls-cert", cert)
    _readable("--tls-key", key)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # load_cert_chain does not say which of the two files is no PEM: look at the certificate alone first
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=cert)
    except ssl.SSLError:
        raise ConfigError(f"--tls-cert {cert}: this is no certificate in PEM form") from None
    try:
        made.load_cert_chain(cert, key, password=locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"--tls-key {key}: the key does not belong to --tls-cert {cert}") from None
        if error.reason is None:
            raise ConfigError(f"--tls-key {key}: this is no private key in PEM form") from None
        reason = error.reason.lower().replace("_", " ")
        raise ConfigError(f"--tls-cert {cert} with --tls-key {key}: {reason}") from None
    return made


def _readable(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from None
