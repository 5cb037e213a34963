"""The TLS of a listener, made from its files, and the users that client certificates stand for. An error of a file
names its option."""

from __future__ import annotations

import logging
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvitto.base.config import Config, ConfigError

log = logging.getLogger("kvitto")

SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS",
    "generationQualifier": "GENERATIONQUALIFIER",
    "givenName": "GIVENNAME",
    "initials": "INITIALS",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "pseudonym": "PSEUDONYM",
    "serialNumber": "SERIALNUMBER",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "surname": "SN",
    "title": "TITLE",
    "userId": "UID",
}
"""OpenSSL's names for the parts of a distinguished name -> those of RFC 4514, and RabbitMQ's."""


def context(cert: Path, key: Path, ca: Path | None = None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer. With `ca` a client may present a certificate, which one of these
    authorities must have signed.

    Raises ConfigError for files that cannot be read or used. It never asks for a passphrase.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    load_pair(made, "--tls", cert, key)
    if key.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("--tls-key %s can be read by other users of this machine: chmod 600 it", key)
    if ca is not None:
        load_authorities(made, "--tls", ca)
        made.verify_mode = ssl.CERT_OPTIONAL
    return made


def load_pair(made: ssl.SSLContext, options: str, cert: Path, key: Path) -> None:
    """Load a certificate and its key. `options`: what the names of their options begin with. Raises ConfigError."""
    cert_option, key_option = f"{options}-cert {cert}", f"{options}-key {key}"

    def locked() -> str:
        raise ConfigError(
            f"{key_option}: the key has a passphrase, Kvitto needs a key without one (openssl pkey removes it)"
        )

    _readable(cert_option, cert)
    _readable(key_option, key)
    try:
        # load_cert_chain does not say which of the two files is not PEM, so the certificate is checked alone first
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=cert)
    except ssl.SSLError:
        raise ConfigError(f"{cert_option}: this is no certificate in PEM form") from None
    try:
        made.load_cert_chain(cert, key, password=locked)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key_option}: the key does not belong to {cert_option}") from None
        if error.reason is None:
            raise ConfigError(f"{key_option}: this is no private key in PEM form") from None
        reason = error.reason.lower().replace("_", " ")
        raise ConfigError(f"{cert_option} with {key_option}: {reason}") from None


def load_authorities(made: ssl.SSLContext, options: str, ca: Path) -> None:
    """Load the authorities whose certificates are accepted. Raises ConfigError."""
    _readable(f"{options}-ca {ca}", ca)
    try:
        made.load_verify_locations(cafile=ca)
    except ssl.SSLError:
        raise ConfigError(f"{options}-ca {ca}: this is no certificate in PEM form") from None


class TlsFiles:
    """The contents of the files of a configuration when they were last read. Raises ConfigError if one of them cannot be used."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.context = self._read()

    def _read(self) -> ssl.SSLContext:
        config = self._config
        assert config.tls_cert is not None and config.tls_key is not None
        return context(config.tls_cert, config.tls_key, config.tls_ca)

    def reload(self) -> None:
        """Read the files again for new connections. If they cannot be used, the error is logged and nothing changes."""
        try:
            self.context = self._read()
        except ConfigError as error:
            log.error("%s; the old files stay in use", error)
        else:
            log.info("certificate, key and authorities have been read again, new connections get them")


def user_of(certificate: Mapping[str, Any], login_from: str) -> str | None:
    """Return the user's name in a verified certificate (as `getpeercert` gives it), or None if there is not exactly
    one.

    `login_from` is RabbitMQ's ssl_cert_login_from: the subject in RabbitMQ's form of RFC 4514 (last part first), its
    common name, or the DNS name among the subject's alternative names.
    """
    subject = certificate.get("subject", ())
    if login_from == "distinguished_name":
        parts = ("+".join(f"{SHORT.get(kind, kind)}={escaped(value)}" for kind, value in rdn) for rdn in subject)
        return ",".join(reversed([*parts])) or None
    if login_from == "common_name":
        names = [value for rdn in subject for kind, value in rdn if kind == "commonName"]
    else:
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    return names[0] if len(names) == 1 else None


def escaped(value: str) -> str:
    """Escape a value for a distinguished name, so that it cannot pass for the next part."""
    out = ""
    for i, octet in enumerate(value.encode()):
        c = chr(octet)
        edge = (c in " #" and i == 0) or (c == " " and i == len(value.encode()) - 1)
        if edge or c in '"+,;<>\\':
            out += "\\" + c
        else:
            out += c if 32 <= octet < 126 else f"\\{octet:02X}"
    return out


def _readable(option: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option}: {error.strerror}") from None
