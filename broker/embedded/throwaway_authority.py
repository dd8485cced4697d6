"""ThrowawayAuthority: certificates for tests, made without a library.

    authority ── signs ──> a server's certificate, for names and addresses
              └─ signs ──> a client's certificate

Keys are ECDSA P-256. Certificates are valid from 2020 to 2120, so that tests can move their clocks.
The authority's own key is in memory only, so nothing can be signed later. The arithmetic is not
constant-time, so its timing can reveal keys: use it for tests only.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from rmq_spark.client.transport.tls.settings import TlsSettings

# ---- The curve P-256 (FIPS 186-4, D.1.2.3): y^2 = x^3 - 3x + b over the field of P.

_P: Final = 0xFFFFFFFF_00000001_00000000_00000000_00000000_FFFFFFFF_FFFFFFFF_FFFFFFFF
_ORDER: Final = 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551
_BASE_X: Final = 0x6B17D1F2_E12C4247_F8BCE6E5_63A440F2_77037D81_2DEB33A0_F4A13945_D898C296
_BASE_Y: Final = 0x4FE342E2_FE1A7F9B_8EE7EB4A_7C0F9E16_2BCE3357_6B315ECE_CBB64068_37BF51F5
_BYTES: Final = 32


def _multiply_base(factor: int) -> tuple[int, int]:
    """Return the base point times a factor from 1 to the order - 1, as x and y."""
    x, y, z = _BASE_X, _BASE_Y, 1  # the point (x / z^2, y / z^3), which saves divisions
    for bit in bin(factor)[3:]:
        zz, yy = z * z % _P, y * y % _P
        beta = x * yy % _P
        alpha = 3 * (x - zz) * (x + zz) % _P
        x, y, z = (
            (alpha * alpha - 8 * beta) % _P,
            (alpha * (12 * beta - alpha * alpha) - 8 * yy * yy) % _P,
            2 * y * z % _P,
        )
        if bit == "1":
            zz = z * z % _P
            h, r = (_BASE_X * zz - x) % _P, (_BASE_Y * zz * z - y) % _P
            hh = h * h % _P
            hhh, v = h * hh % _P, x * hh % _P
            x = (r * r - hhh - 2 * v) % _P
            y, z = (r * (v - x) - y * hhh) % _P, z * h % _P
    inverse = pow(z, -1, _P)
    square = inverse * inverse % _P
    return x * square % _P, y * square * inverse % _P


class EcKey(NamedTuple):
    """A private key with its public point, uncompressed."""

    secret: int
    public: bytes

    @classmethod
    def generate(cls, random_bytes: Callable[[int], bytes]) -> EcKey:
        """Generate a key."""
        secret = _random_factor(random_bytes)
        x, y = _multiply_base(secret)
        return cls(secret, b"\x04" + x.to_bytes(_BYTES, "big") + y.to_bytes(_BYTES, "big"))

    def sign(self, data: bytes, random_bytes: Callable[[int], bytes]) -> bytes:
        """Return the ECDSA signature with SHA-256, in DER."""
        digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
        while True:
            nonce = _random_factor(random_bytes)
            r = _multiply_base(nonce)[0] % _ORDER
            s = pow(nonce, -1, _ORDER) * (digest + r * self.secret) % _ORDER
            if r and s:
                return _sequence(_integer(r), _integer(s))

    def to_pem(self) -> str:
        """Return the private key in PEM (RFC 5915)."""
        secret = _der(0x04, self.secret.to_bytes(_BYTES, "big"))
        point = _der(0xA1, _bits(self.public))
        return _pem("EC PRIVATE KEY", _sequence(_integer(1), secret, _der(0xA0, _OID_P256), point))


def _random_factor(random_bytes: Callable[[int], bytes]) -> int:
    while not 0 < (factor := int.from_bytes(random_bytes(_BYTES), "big")) < _ORDER:
        pass
    return factor


# ---- DER: values of the form tag, length, content.


def _der(tag: int, *content: bytes) -> bytes:
    data = b"".join(content)
    size = len(data)
    if size < 0x80:
        return bytes((tag, size)) + data
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + data


def _sequence(*values: bytes) -> bytes:
    return _der(0x30, *values)


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(data: bytes) -> bytes:
    return _der(0x03, b"\0", data)


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    data = bytearray((40 * first + second,))
    for number in rest:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        data += bytes(reversed(groups))
    return _der(0x06, bytes(data))


def _pem(kind: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"


_OID_P256: Final = _oid("1.2.840.10045.3.1.7")
_KEY_ALGORITHM: Final = _sequence(_oid("1.2.840.10045.2.1"), _OID_P256)
_SIGNATURE_ALGORITHM: Final = _sequence(_oid("1.2.840.10045.4.3.2"))  # ECDSA with SHA-256
_VALIDITY: Final = _sequence(_der(0x17, b"200101000000Z"), _der(0x18, b"21200101000000Z"))
_TRUE: Final = _der(0x01, b"\xff")


# ---- Certificates (RFC 5280).


def _name(common_name: str) -> bytes:
    value = _der(0x0C, common_name.encode())
    return _sequence(_der(0x31, _sequence(_oid("2.5.4.3"), value)))


def _extension(oid: str, value: bytes, *, is_critical: bool = False) -> bytes:
    return _sequence(_oid(oid), _TRUE if is_critical else b"", _der(0x04, value))


def _key_id(key: EcKey) -> bytes:
    return hashlib.sha1(key.public, usedforsecurity=False).digest()


def _alternative_name(name: str) -> bytes:
    try:
        return _der(0x87, ip_address(name).packed)
    except ValueError:
        return _der(0x82, name.encode())


_SERVER_AUTH: Final = "1.3.6.1.5.5.7.3.1"
_CLIENT_AUTH: Final = "1.3.6.1.5.5.7.3.2"


class ThrowawayAuthority:
    """An authority that signs certificates; its own is in `certificate`."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._random_bytes = random_bytes
        self._key = EcKey.generate(random_bytes)
        # a client that trusts several authorities finds them by their names
        self._name = _name(f"rocketpoll throw-away authority {random_bytes(8).hex()}")
        self.certificate = self._sign(
            self._name,
            self._key,
            _extension("2.5.29.19", _sequence(_TRUE), is_critical=True),  # of an authority
            _extension("2.5.29.15", _der(0x03, b"\x01\x06"), is_critical=True),  # signs others
        )
        """The authority's certificate in PEM, which clients have to trust."""

    def issue_server(self, names: Iterable[str]) -> str:
        """Return certificate and key of a server with these host names and addresses, in PEM."""
        alternatives = _sequence(*map(_alternative_name, names))
        return self._issue("rocketpoll server", _SERVER_AUTH, _extension("2.5.29.17", alternatives))

    def issue_client(self) -> str:
        """Return certificate and key of a client, in PEM."""
        return self._issue("rocketpoll client", _CLIENT_AUTH)

    def _issue(self, common_name: str, purpose: str, *extensions: bytes) -> str:
        key = EcKey.generate(self._random_bytes)
        usage = _extension("2.5.29.37", _sequence(_oid(purpose)))
        return self._sign(_name(common_name), key, usage, *extensions) + key.to_pem()

    def _sign(self, subject: bytes, key: EcKey, *extensions: bytes) -> str:
        serial = int.from_bytes(self._random_bytes(16), "big") >> 1 | 1
        key_id = _extension("2.5.29.14", _der(0x04, _key_id(key)))
        authority_id = _extension("2.5.29.35", _sequence(_der(0x80, _key_id(self._key))))
        to_be_signed = _sequence(
            _der(0xA0, _integer(2)),  # version 3
            _integer(serial),
            _SIGNATURE_ALGORITHM,
            self._name,
            _VALIDITY,
            subject,
            _sequence(_KEY_ALGORITHM, _bits(key.public)),
            _der(0xA3, _sequence(*extensions, key_id, authority_id)),
        )
        signature = self._key.sign(to_be_signed, self._random_bytes)
        return _pem("CERTIFICATE", _sequence(to_be_signed, _SIGNATURE_ALGORITHM, _bits(signature)))


# ---- EmbeddedTls: certificates of an embedded broker in files, and the settings of its clients.

_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
MADE_SETTINGS: Final = ("tls.server.certPath", "tls.server.keyPath", "tls.server.keyPassword")
"""Settings that name the files made for a broker with a throw-away authority."""
_NEED_CLIENT_AUTH: Final = "tls.server.need.client.auth"


class EmbeddedTls:
    """A throw-away authority and the certificates that it signed, in a temporary directory."""

    def __init__(self, addresses: Iterable[str], settings: Mapping[str, str]) -> None:
        """Make the files for a broker at these addresses and localhost.

        If its settings ask clients for a certificate, one is made.
        """
        self._directory = Path(
            tempfile.mkdtemp(prefix="rocketpoll-tls-")
        )  # only its user may open it
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
        """Return the settings that name the broker's files."""
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
    """Return the defaults of a broker with a throw-away authority: it accepts TLS only."""
    defaults = {"tls.server.mode": "enforcing"}
    if asks_clients(settings):
        defaults["tls.server.authClient"] = "true"
    return defaults
