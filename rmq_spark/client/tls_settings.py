"""TlsSettings: whom a client trusts, and who it is itself, where brokers speak TLS.

Files are read when the settings are made, and what they hold is kept: the value is the same in every process
that it travels to, also on a machine that has no such files. It connects to nothing and brings no OpenSSL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rmq_spark.client.errors import TlsRejected

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[ -~\s]*?-----END \1-----")
_CERTIFICATE: Final = "CERTIFICATE"
_PRIVATE_KEY: Final = "PRIVATE KEY"
_OTHER_FORMS: Final = "it has to be a text file with -----BEGIN {} in it (PEM); keytool and openssl make one"


@dataclass(frozen=True, slots=True)
class Pem:
    """What one PEM file holds; shown by its name only."""

    name: str
    text: str = field(repr=False)

    @classmethod
    def read(cls, setting: str, path: str) -> Pem:
        """The blocks of a file, without what else stands in it.

        Raises:
            TlsRejected: It cannot be read.
        """
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise TlsRejected(setting, f"{path} cannot be read: {why}") from error
        blocks = (found[0] for found in _BLOCK.finditer(data.decode("ascii", "replace")))
        return cls(path, "".join(f"{block}\n" for block in blocks))

    def has(self, what: str) -> bool:
        """Whether a block of this kind is there."""
        return any(found[1].endswith(what) for found in _BLOCK.finditer(self.text))

    @property
    def has_locked_key(self) -> bool:
        """Whether its key needs a password."""
        return "ENCRYPTED" in self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """See the module; usually made by `of_files`.

    Without ``ca`` the system's authorities are trusted. ``certificate`` and ``key`` say who the client is, to
    brokers that ask; the key may stand in the certificate's file. ``server_name`` is the name that
    certificates have to bear, where it is not the address that is dialled. Without ``verify`` anybody can
    pose as a broker.
    """

    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None

    @classmethod
    def of_files(
        cls,
        *,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        key_password: str | None = None,
        verify: bool = True,
        server_name: str | None = None,
    ) -> TlsSettings:
        """Settings out of PEM files.

        Raises:
            TlsRejected: A file cannot be read, or holds something else; or settings contradict each other.
        """
        return cls(
            ca=None if ca_file is None else Pem.read("ca_file", ca_file),
            certificate=None if cert_file is None else Pem.read("cert_file", cert_file),
            key=None if key_file is None else Pem.read("key_file", key_file),
            key_password=key_password,
            verify=verify,
            server_name=server_name,
        )

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.ca is not None and not self.verify:
            raise TlsRejected(
                "ca_file", "nothing is held against it where nothing is verified: leave one out"
            )
        _check_has("ca_file", self.ca, _CERTIFICATE)
        _check_has("cert_file", self.certificate, _CERTIFICATE)
        _check_has("key_file", self.key, _PRIVATE_KEY)
        if self.certificate is None:
            for given, what in ((self.key, "its key"), (self.key_password, "its key's password")):
                if given is not None:
                    raise TlsRejected("cert_file", f"it is needed as well as {what}")
            return
        key = self.key or self.certificate
        if not key.has(_PRIVATE_KEY):
            raise TlsRejected("key_file", f"it is needed: {self.certificate.name} holds no private key")
        if key.has_locked_key and self.key_password is None:
            raise TlsRejected("key_password", f"it is needed: the key in {key.name} is locked")


def _check_has(setting: str, pem: Pem | None, what: str) -> None:
    if pem is not None and not pem.has(what):
        raise TlsRejected(setting, f"{pem.name} holds no {what.lower()}: {_OTHER_FORMS.format(what)}")
