"""The files of a TLS listener: each mistake is said with its option and its file, before anything is opened."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from kvitto.base.config import Config, ConfigError
from kvitto.server.embedded import Broker
from kvitto.server.tls import context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates with their keys, the first key with a passphrase too, and a file that is no PEM."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command (Debian: apt install openssl) to make a certificate")
    place = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, stderr=subprocess.DEVNULL)

    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    for name in ("", "other-"):
        openssl("req", "-x509", *ec, "-keyout", f"{name}key.pem", "-out", f"{name}cert.pem")
    openssl("pkey", "-in", "key.pem", "-aes128", "-passout", "pass:secret", "-out", "locked.pem")
    (place / "text.pem").write_text("no PEM\n")
    (place / "torn.pem").write_text("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n")
    return place


def test_certificate_and_key_make_a_context(files: Path) -> None:
    assert context(files / "cert.pem", files / "key.pem").minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        ("none.pem", "key.pem", "--tls-cert {}/none.pem: No such file or directory"),
        ("cert.pem", "none.pem", "--tls-key {}/none.pem: No such file or directory"),
        ("text.pem", "key.pem", "--tls-cert {}/text.pem: this is no certificate"),
        ("torn.pem", "key.pem", "--tls-cert {}/torn.pem: this is no certificate"),
        ("key.pem", "cert.pem", "--tls-cert {}/key.pem: this is no certificate"),
        ("cert.pem", "text.pem", "--tls-key {}/text.pem: this is no private key"),
        ("cert.pem", "other-key.pem", "--tls-key {}/other-key.pem: the key does not belong to --tls-cert"),
        ("cert.pem", "locked.pem", "--tls-key {}/locked.pem: the key has a passphrase"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(files: Path, cert: str, key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        context(files / cert, files / key)
    assert str(caught.value).startswith(says.format(files))


def test_a_bad_certificate_is_found_before_the_data_directory_is_touched(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    none = tmp_path / "none.pem"
    broker._config = Config(data_dir=tmp_path / "data", port=0, http_port=None, tls_port=0, tls_cert=none, tls_key=none)
    with pytest.raises(ConfigError, match=r"--tls-cert \S+none\.pem"):
        broker.start()
    assert not (tmp_path / "data").exists()
