"""TlsSettings: the certificates that a client trusts and presents, for brokers that use TLS.

Files are read when the settings are made, and their content is kept: the settings work unchanged in
every process that they are sent to, even on a machine without these files.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Final

from rmq_spark.client.arguments import check_flag, check_kind, explain_all_keywords, wrong_kind
from rmq_spark.client.errors import TlsRejected
from rmq_spark.errors import sanitize

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----[ -~\s]*?-----END \1-----")
_FILES: Final = {"ca": "ca_file", "certificate": "cert_file", "key": "key_file"}
_CERTIFICATE: Final = "CERTIFICATE"
_PRIVATE_KEY: Final = "PRIVATE KEY"
_PEM_HINT: Final = (
    "it must be a text file that contains -----BEGIN {} (PEM). Make one with keytool or openssl"
)
_PATH_HINT: Final = "needed a PEM file on this machine. Correct the path, or put the file there"


@dataclass(frozen=True, slots=True)
class Pem:
    """The content of one PEM file; its representation shows only the file's name."""

    name: str
    text: str = field(repr=False)

    @classmethod
    def read(cls, setting: str, path: str | os.PathLike[str]) -> Pem:
        """Read the PEM blocks of a file; ignore everything else."""
        needed, example = "the path of a PEM file (str)", "'/etc/rocketmq/ca.pem'"
        check_kind(setting, path, (str, os.PathLike), needed, example)
        path = os.fspath(path)
        if not path:
            raise TlsRejected(setting, f"needed {needed}, found ''; for example: {example}")
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise TlsRejected(
                setting, f"{sanitize(path)} cannot be read: {sanitize(why)}; {_PATH_HINT}"
            ) from error
        blocks = (found[0] for found in _BLOCK.finditer(data.decode("ascii", "replace")))
        return cls(sanitize(path), "".join(f"{block}\n" for block in blocks))

    def has_block(self, block_type: str) -> bool:
        """Return whether there is a block of a kind, such as ``"PRIVATE KEY"``."""
        return any(found[1].endswith(block_type) for found in _BLOCK.finditer(self.text))

    @property
    def has_locked_key(self) -> bool:
        """True if the private key needs a password."""
        return "ENCRYPTED" in self.text


@explain_all_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of a client: pass them to `ClientInstance` as ``tls``.

    Usually made with `of_files`. Files are read at once and their content is kept, so the settings
    can be pickled and used on machines that do not have the files.

    Example:
        tls = TlsSettings.of_files(ca_file="ca.pem")
        with ClientInstance("broker.example:9876", tls=tls) as instance:
            ...

    Attributes:
        ca: Certificates of the authorities to trust; None trusts those of the system.
        certificate: Certificate that the client presents to brokers which ask for one.
        key: Private key of that certificate; None if it is in the certificate's file.
        key_password: Password of the private key.
        verify: Whether to check the brokers' certificates. If False, anyone can pose as a broker.
        server_name: Name that the brokers' certificates must have, if it is not the address that
            the client connects to.

    Raises:
        TlsRejected: A file holds something else, or the settings contradict each other.
        TypeError: A setting has the wrong type.
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
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        key_password: str | None = None,
        verify: bool = True,
        server_name: str | None = None,
    ) -> TlsSettings:
        """Read the settings from PEM files.

        Args:
            ca_file: File with the certificates of the authorities to trust.
            cert_file: File with the client's certificate.
            key_file: File with its private key, if that is not in ``cert_file``.
            key_password: Password of the private key.
            verify: Whether to check the brokers' certificates.
            server_name: Name that the certificates must have, if not the address connected to.

        Raises:
            TlsRejected: A file cannot be read, or holds something else, or the settings contradict
                each other.
            TypeError: An argument has the wrong type.
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
        """Raise `TlsRejected` or TypeError for settings that cannot work."""
        for name, pem in (("ca", self.ca), ("certificate", self.certificate), ("key", self.key)):
            example = f"TlsSettings.of_files({_FILES[name]}='{name}.pem')"
            check_kind(name, pem, (Pem, NoneType), "a Pem, which of_files reads", example)
            # the error does not show the text, which may be a secret
            if pem is not None and not isinstance(pem.text, str):
                raise wrong_kind(
                    f"text of {name}", "a string (str)", type(pem.text).__name__, example
                )
        check_flag("verify", self.verify)
        check_kind(
            "server_name", self.server_name, (str, NoneType), "a string (str)", "'broker.example'"
        )
        _check_password(self.key_password)
        if self.ca is not None and not self.verify:
            raise TlsRejected(
                "ca_file", "it has no effect with verify=False. Remove one of the two"
            )
        _check_has_block("ca_file", self.ca, _CERTIFICATE)
        _check_has_block("cert_file", self.certificate, _CERTIFICATE)
        _check_has_block("key_file", self.key, _PRIVATE_KEY)
        if self.certificate is None:
            for given, what in ((self.key, "its key"), (self.key_password, "its key's password")):
                if given is not None:
                    raise TlsRejected("cert_file", f"it is required together with {what}")
            return
        key = self.key or self.certificate
        if not key.has_block(_PRIVATE_KEY):
            raise TlsRejected(
                "key_file",
                f"it is required, because {self.certificate.name} contains no private key",
            )
        if key.has_locked_key and self.key_password is None:
            raise TlsRejected(
                "key_password", f"it is required, because the key in {key.name} is encrypted"
            )


def _check_password(found: object) -> None:
    """Raise an error if a password is not a string; the error does not show the value."""
    if found is None:
        return
    if not isinstance(found, str):
        raise wrong_kind("key_password", "a string (str)", type(found).__name__, "'secret'")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise TlsRejected(
            "key_password", "needed text that UTF-8 can encode, found a lone surrogate"
        ) from None


def _check_has_block(setting: str, pem: Pem | None, block_type: str) -> None:
    if pem is not None and not pem.has_block(block_type):
        raise TlsRejected(
            setting, f"{pem.name} contains no {block_type.lower()}: {_PEM_HINT.format(block_type)}"
        )
