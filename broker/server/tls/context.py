"""TLS context: makes an OpenSSL context from the TLS settings, or says what is wrong with them.

Each error names the setting, its path, the cause, and what to do.
"""

from __future__ import annotations

import ssl
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NamedTuple

from rmq_spark.errors import RocketPollError

from ...settings.config import ClientAuth, TlsConfig
from .validity import Validity, certificates_of_pem, validity_of_der

WARN_SECONDS: Final = 14 * 86_400
"""Warnings are logged from this many seconds before a certificate expires."""
_FILE_BYTES_MAX: Final = 1 << 20
_CERT_PATH: Final = "tls.server.certPath"
_KEY_PATH: Final = "tls.server.keyPath"
_TRUST_PATH: Final = "tls.server.trustCertPath"
_VERIFY_MODES: Final = {
    ClientAuth.none: ssl.CERT_NONE,
    ClientAuth.optional: ssl.CERT_OPTIONAL,
    ClientAuth.require: ssl.CERT_REQUIRED,
}
_KEY_MISMATCH_REASONS: Final = frozenset(
    {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
)
"""The last two mean that the key has another type than the certificate's."""
_WEAK_REASONS: Final = ("TOO_SMALL", "TOO_WEAK")


class TlsFileRejected(RocketPollError, page="troubleshooting.md#certificates-of-the-broker"):
    """A file that a TLS setting of the broker names cannot be used."""

    def __init__(self, setting: str, path: Path, why: str) -> None:
        """Name the setting and its path; ``why`` is the cause, and what to do."""
        super().__init__(f"{setting}={path}: {why}")


class CertificateFile(NamedTuple):
    """The certificates of one file, by their validity."""

    setting: str
    path: Path
    validities: tuple[Validity, ...]

    @property
    def not_after(self) -> int:
        """The time at which the first of them expires, in seconds since 1970."""
        return min(each.not_after for each in self.validities)

    @property
    def not_before(self) -> int:
        """The time from which on all of them are valid, in seconds since 1970."""
        return max(each.not_before for each in self.validities)

    def fault(self, now: float) -> str | None:
        """Return why a certificate is not valid at a time, and what to do; None if all are."""
        if now < self.not_before:
            return (
                f"{self.setting}={self.path}: the certificate is valid from "
                f"{format_time(self.not_before)} on, and this machine's clock says "
                f"{format_time(now)}. Correct the clock, or wait until then"
            )
        if now > self.not_after:
            return (
                f"{self.setting}={self.path}: the certificate expired at "
                f"{format_time(self.not_after)}, and this machine's clock says "
                f"{format_time(now)}: clients that verify it do not connect. Renew it and send "
                "SIGHUP"
            )
        return None

    def warning(self, now: float) -> str | None:
        """Return a warning if a certificate expires soon after a time."""
        left = self.not_after - now
        if left > WARN_SECONDS:
            return None
        return (
            f"{self.setting}={self.path}: the certificate expires at "
            f"{format_time(self.not_after)}, in {left / 86_400:.1f} days. Renew it and send SIGHUP"
        )


class TlsContext(NamedTuple):
    """OpenSSL's context for new connections, and the files of which it was made."""

    context: ssl.SSLContext
    files: tuple[CertificateFile, ...]


def load_context(config: TlsConfig) -> TlsContext:
    """Read the files of the settings, and return the context."""
    path = config.cert_path
    if path is None:
        raise AssertionError("TLS needs a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    files = [_read_certificates(_CERT_PATH, path)]
    _load_key(context, config, path)
    if config.auth_client and config.trust_cert_path is not None:
        files.append(_read_certificates(_TRUST_PATH, config.trust_cert_path, context))
        context.verify_mode = _VERIFY_MODES[config.need_client_auth]
    return TlsContext(context, tuple(files))


def _read_certificates(
    setting: str, path: Path, trusting: ssl.SSLContext | None = None
) -> CertificateFile:
    """Read a file of certificates, which ``trusting`` then trusts, if given."""
    text = _read(setting, path)
    try:
        certificates = certificates_of_pem(text)
        if not certificates:
            raise TlsFileRejected(
                setting,
                path,
                "it holds no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----. "
                "Convert it, for example with openssl x509 -inform der, or name another file",
            )
        # OpenSSL decides whether they are certificates
        (trusting or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).load_verify_locations(
            cadata=b"".join(certificates)
        )
        validities = tuple(map(validity_of_der, certificates))
    except (ValueError, ssl.SSLError) as error:
        raise TlsFileRejected(
            setting, path, f"a certificate in it is damaged ({error}). Copy the file again"
        ) from error
    return CertificateFile(setting, path, validities)


def _load_key(context: ssl.SSLContext, config: TlsConfig, cert_path: Path) -> None:
    path = config.key_path or cert_path
    setting = _KEY_PATH if config.key_path else _CERT_PATH
    text = _read(setting, path)
    if "PRIVATE KEY-----" not in text:
        why = "it holds no private key in PEM, which begins with -----BEGIN PRIVATE KEY-----"
        advice = "Name another file" if config.key_path else f"Set {_KEY_PATH}"
        raise TlsFileRejected(setting, path, f"{why}. {advice}")
    is_locked = "ENCRYPTED" in text
    password = config.key_password.text.encode("utf-8", "surrogateescape")
    if is_locked and not password:
        raise TlsFileRejected(
            setting, path, "the private key is encrypted. Set tls.server.keyPassword"
        )
    try:
        context.load_cert_chain(
            cert_path, path, lambda: password
        )  # a function, so that OpenSSL never prompts
    except ssl.SSLError as error:
        reason = error.reason or ""
        if reason in _KEY_MISMATCH_REASONS:
            why = (
                f"it is not the key of the certificate in {cert_path}. Name the key that the "
                "certificate was made with"
            )
        elif any(part in reason for part in _WEAK_REASONS):
            setting, path = _CERT_PATH, cert_path
            why = (
                f"its key or signature is too weak for this machine's OpenSSL ({reason}). Make "
                "one with ECDSA P-256 or RSA of 2048 bits, and SHA-256"
            )
        elif is_locked:
            why = (
                "tls.server.keyPassword does not decrypt the private key, or OpenSSL does not know "
                "its encryption. Set the key's own password"
            )
        else:
            why = f"the private key is damaged ({error}). Copy the file again"
        raise TlsFileRejected(setting, path, why) from error
    except (OSError, ValueError) as error:  # ValueError: a password of over 1,024 bytes
        raise TlsFileRejected(setting, path, f"it cannot be loaded ({error})") from error


def _read(setting: str, path: Path) -> str:
    try:
        if not path.is_dir() and path.exists() and not path.is_file():  # opening a pipe may wait
            raise TlsFileRejected(setting, path, "it is not a regular file. Name a PEM file")
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        why = "the file does not exist. Correct the path, or put the file there"
        raise TlsFileRejected(setting, path, why) from error
    except IsADirectoryError as error:
        why = "it is a directory. Name a file in it"
        raise TlsFileRejected(setting, path, why) from error
    except PermissionError as error:
        why = "the broker's user may not read it. Change the owner or the rights of the file"
        raise TlsFileRejected(setting, path, why) from error
    except OSError as error:
        why = f"it cannot be read: {error.strerror or error}"
        raise TlsFileRejected(setting, path, why) from error
    if len(data) > _FILE_BYTES_MAX:
        why = f"it has over {_FILE_BYTES_MAX} bytes. Name a PEM file"
        raise TlsFileRejected(setting, path, why)
    return data.decode("ascii", "replace")


def format_time(seconds: float) -> str:
    """Return a time of day in UTC, as 2026-01-31 12:00:00 UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
