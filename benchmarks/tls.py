"""A certificate for this machine, made anew for each run by openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Certificate:
    """Self-signed: it is its own authority."""

    cert: Path
    key: Path

    @property
    def query(self) -> str:
        """What a client's URI says so that it verifies the broker."""
        return f"&cacertfile={quote(str(self.cert))}"


def make_certificate(place: Path) -> Certificate | None:
    """None where openssl is not installed: then nothing is measured over TLS."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    place.mkdir(parents=True, exist_ok=True)
    made = Certificate(place / "cert.pem", place / "key.pem")
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, "-keyout", str(made.key), "-out", str(made.cert)], check=True, capture_output=True)
    return made
