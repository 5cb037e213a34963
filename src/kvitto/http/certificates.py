"""The expiry time of the TLS certificate. The standard library gives this field for authorities only."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

SEQUENCE, VERSION, UTC_TIME = 0x30, 0xA0, 0x17


def expires_at(path: Path) -> datetime:
    """Return the expiry time of the first certificate in a PEM file. Raise OSError or ValueError."""
    text = path.read_text("ascii", "replace")
    start, end = text.find(ssl.PEM_HEADER), text.find(ssl.PEM_FOOTER)
    der = ssl.PEM_cert_to_DER_cert(text[start : end + len(ssl.PEM_FOOTER)])
    return _not_after(der)


def _not_after(der: bytes) -> datetime:
    """X.509: Certificate { tbsCertificate { [version], serial, algorithm, issuer, validity { notBefore, notAfter }, ... } ... }."""
    _, certificate, _ = _read(der)
    _, rest, _ = _read(certificate)
    kind, _, behind = _read(rest)
    fields = 3 if kind == VERSION else 2
    rest = behind
    for _ in range(fields):
        _, _, rest = _read(rest)
    _, validity, _ = _read(rest)
    _, _, rest = _read(validity)
    kind, value, _ = _read(rest)
    form = "%y%m%d%H%M%SZ" if kind == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC)


def _read(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the contents of the first element, and the bytes behind it. Raise ValueError."""
    if len(der) < 2:
        raise ValueError("the certificate is cut off")
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + size], der[start + size :]
