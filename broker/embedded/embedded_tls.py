"""EmbeddedTls: certificates of an embedded broker in files, and the settings of its clients."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rmq_spark.client.transport.tls.settings import TlsSettings

from .throwaway_authority import ThrowawayAuthority

_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
MADE_SETTINGS: Final = ("tls.server.certPath", "tls.server.keyPath", "tls.server.keyPassword")
"""The settings that stand for files which a broker with a throw-away authority makes itself."""
_NEED_CLIENT_AUTH: Final = "tls.server.need.client.auth"


class EmbeddedTls:
    """A throw-away authority with the certificates that it has signed, in a temporary directory."""

    def __init__(self, addresses: Iterable[str], settings: Mapping[str, str]) -> None:
        """Make the files.

        Args:
            addresses: The addresses at which clients find the broker, besides this machine's own.
            settings: The broker's settings. If they ask clients for a certificate, there is one.
        """
        self._directory = Path(tempfile.mkdtemp(prefix="rocketpoll-tls-"))  # for its user alone
        authority = ThrowawayAuthority()
        self.ca_file = self._write("ca.pem", authority.certificate)
        names = dict.fromkeys((*_LOCAL_NAMES, *filter(None, addresses)))
        self._cert_file = self._write("server.pem", authority.issue_server(names))
        self.client_file: Path | None = None
        """Certificate and key for clients, if the broker asks for one."""
        if asks_clients(settings):
            self.client_file = self._write("client.pem", authority.issue_client())
        self.client_settings = TlsSettings.of_files(
            ca_file=self.ca_file, cert_file=self.client_file
        )

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of the broker that name the files."""
        settings = {"tls.server.certPath": str(self._cert_file)}
        if self.client_file is not None:
            settings["tls.server.trustCertPath"] = str(self.ca_file)
        return settings

    def remove(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_text(text, encoding="ascii")
        return path


def asks_clients(settings: Mapping[str, str]) -> bool:
    """Return whether a broker with these settings asks clients for a certificate."""
    return settings.get(_NEED_CLIENT_AUTH, "none") != "none"


def default_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of a broker with a throw-away authority: clients have to use TLS."""
    defaults = {"tls.server.mode": "enforcing"}
    if asks_clients(settings):
        defaults["tls.server.authClient"] = "true"
    return defaults
