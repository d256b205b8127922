"""Authorities and certificates for tests, made by the `openssl` command; they are good for a day."""

from __future__ import annotations

import subprocess
from pathlib import Path

from snapshot.host.net.tls import Tls


class Authority:
    """Signs certificates; its files are in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._made = 0
        self.certificate = folder / "authority.pem"
        self.key = folder / "authority.key"
        _openssl("req", "-x509", *_new(self.key, folder.name), "-days", "1", "-out", self.certificate)

    def issue(self, days: int = 1) -> Tls:
        """A new key, its certificate, and this authority; with -1 `days` it has expired."""
        self._made += 1
        certificate, key, request = (self._folder / f"{self._made}.{end}" for end in ("pem", "key", "request"))
        _openssl("req", *_new(key, f"{self._folder.name} {self._made}"), "-out", request)
        signed_by = ("-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", str(days), "-out", certificate)
        return Tls(certificate, key, self.certificate)


def with_password(key: Path) -> Path:
    """The same key in another file, which wants a password."""
    locked = key.with_suffix(".locked")
    _openssl("ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    return locked


def _new(key: Path, name: str) -> tuple[str | Path, ...]:
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    return (*kind, "-keyout", key, "-subj", f"/CN={name}")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
