"""Certificates for tests, made by the openssl command: an authority, and what it has signed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path


class Authority:
    """Its own certificate is `cert`."""

    def __init__(self, place: Path, name: str = "authority") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command (Debian: apt install openssl) to make a certificate")
        place.mkdir(parents=True, exist_ok=True)
        self.place = place
        self.cert = place / f"{name}.pem"
        self.key = place / f"{name}-key.pem"
        # from Python 3.13 on a client refuses an authority that does not say what its key is for
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        made: list[str | Path] = ["-out", self.cert, "-keyout", self.key]
        self._openssl("req", "-x509", *EC, "-days", "2", "-subj", f"/CN={name}", *usage, *made)

    def sign(self, name: str, subject: str, other_names: str = "", days: int = 2) -> Pair:
        """`subject` in openssl's form, /O=org/CN=name; `other_names` as DNS:localhost,IP:127.0.0.1."""
        pair = Pair(self.place / f"{name}.pem", self.place / f"{name}-key.pem")
        request = self.place / f"{name}.csr"
        names = ["-addext", f"subjectAltName={other_names}"] if other_names else []
        self._openssl("req", "-new", *EC, "-utf8", "-subj", subject, *names, "-out", request, "-keyout", pair.key)
        sign: list[str | Path] = [
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.cert,
            "-CAkey",
            self.key,
            "-CAcreateserial",
        ]
        self._openssl(*sign, "-days", str(days), "-copy_extensions", "copy", "-out", pair.cert)
        return pair

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
