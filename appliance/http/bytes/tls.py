"""TLS towards clients: the server's certificate."""

from __future__ import annotations

import logging
import os
import ssl
import time
from typing import NamedTuple, Protocol

from appliance.errors import UsageError

RECHECK_AFTER = 10.0
"""Seconds between looks whether the certificate's files were renewed."""
_REASONS = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "KEY_TYPE_MISMATCH": "the key does not belong to the certificate",
    "EE_KEY_TOO_SMALL": "the certificate's key is too short to be safe; make one of 2048 bits or more",
}

log = logging.getLogger(__name__)


class ServerContexts(Protocol):
    """A server's certificate, which may change between two connections."""

    def context(self) -> ssl.SSLContext: ...


class _Version(NamedTuple):
    """A file's identity, by which a change shows."""

    modified_ns: int
    size: int


class Certificates:
    """The server's certificate (with its chain) and key. Files that are renewed in place are taken over by themselves.

    Raises UsageError when it is made, with what is wrong with which file; later a pair that cannot be used is logged
    and the one before stays.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._versions = self._look()
        self._context = load_context(certificate, key)
        self._looked_at = time.monotonic()

    def context(self) -> ssl.SSLContext:
        """For a new connection."""
        now = time.monotonic()
        if now - self._looked_at >= RECHECK_AFTER:
            self._looked_at = now
            if (versions := self._look()) != self._versions:
                self._versions = versions
                self._renew()
        return self._context

    def _renew(self) -> None:
        try:
            self._context = load_context(self._certificate, self._key)
        except UsageError as error:
            log.warning("the renewed certificate is not used, the old one stays: %s", error)
        else:
            log.info("the certificate %s was renewed", self._certificate)

    def _look(self) -> list[_Version | None]:
        found: list[_Version | None] = []
        for path in (self._certificate, self._key):
            try:
                stat = os.stat(path)  # noqa: PTH116  -- called between two connections
                found.append(_Version(stat.st_mtime_ns, stat.st_size))
            except OSError:
                found.append(None)
        return found


def load_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.2 or later with this certificate. Raises UsageError."""
    shown = f"--ssl-cert-file {certificate}"
    if "CERTIFICATE-----" not in _pem("--ssl-cert-file", certificate):
        raise UsageError(f"{shown} holds no certificate in PEM form, which begins with -----BEGIN CERTIFICATE-----")
    text = _pem("--ssl-key-file", key)
    if "PRIVATE KEY-----" not in text:
        raise UsageError(f"--ssl-key-file {key} holds no private key in PEM form")
    if "ENCRYPTED" in text:
        raise UsageError(
            f"--ssl-key-file {key} is protected by a passphrase, which a service has nobody to type; "
            f"take it off with 'openssl pkey -in {key} -out NEW'"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # never asks on the terminal
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        why = _REASONS.get(reason, f"OpenSSL says {reason}")
        raise UsageError(f"{shown} and --ssl-key-file {key} cannot be used: {why}") from None
    except OSError as error:
        raise UsageError(f"{shown} and --ssl-key-file {key} cannot be used: {error.strerror}") from None
    return context


def _pem(flag: str, path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:  # noqa: PTH123  -- a path as the user wrote it
            return file.read(1 << 20)
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read: {error.strerror or error}") from None
