"""A certificate that a test can choose to trust."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from appliance.upstream.connect import tls_context


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Signed by itself, for localhost and nothing else; its key is in the same file."""
    path, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", path],
        check=True,
        capture_output=True,
        timeout=30,
    )
    path.write_text(path.read_text() + key.read_text())
    return path


@pytest.fixture
def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch):
    """The program trusts the certificate, as an operator would tell it to."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()
