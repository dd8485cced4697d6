"""BrokerAccess: the options by which source and sink reach brokers.

Files, such as certificates, are read on the driver, and their content goes to executors with the
options. Thus only the driver needs the files, and `load()` reports any problem with them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_spark.client.api.name_servers import parse_addresses
from rmq_spark.client.errors import MessageRejected, TlsRejected
from rmq_spark.client.instance.instance import NAME_SERVER_VARIABLE
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import values
from rmq_spark.spark.options.table import OptionReader, of_option

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings

_TLS_OPTIONS: Final = {
    "ca_file": "tlsCaFile",
    "cert_file": "tlsCertFile",
    "key_file": "tlsKeyFile",
    "key_password": "tlsKeyPassword",
    "verify": "tlsVerify",
    "server_name": "tlsServerName",
}
"""The TLS options, by the names of the client's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """The options by which brokers are reached; the same for source and sink."""

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    broker_addresses: tuple[tuple[str, str], ...] = ()
    """Pairs of a broker's name, or the address that name servers give, and where to reach it."""
    request_timeout_ms: int = of_option("requestTimeoutMs")
    retry_timeout_ms: int = of_option("retryTimeoutMs")

    @property
    def is_secured(self) -> bool:
        """True if connections have TLS, or requests are signed."""
        return self.tls is not None or self.credentials is not None


def access_of(options: OptionReader) -> BrokerAccess:
    """Parse the options by which brokers are reached."""
    text = options.text("namesrvAddr") or os.environ.get(NAME_SERVER_VARIABLE)
    try:
        addresses = parse_addresses(text)
    except MessageRejected as error:
        raise OptionError("namesrvAddr", f"needed {error.needed}, found {error.found!r}") from None
    if not addresses:
        raise OptionError(
            "namesrvAddr",
            "it is needed: the name server's address, as localhost:9876, here or in "
            f"{NAME_SERVER_VARIABLE}",
        )
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise OptionError(
                "namesrvAddr", f"needed host:port, as localhost:9876, found {address!r}"
            )
    return BrokerAccess(
        name_servers=addresses,
        credentials=_credentials(options),
        tls=_tls(options),
        broker_addresses=options.get("brokerAddresses", _broker_addresses, ()),
        **options.fields(BrokerAccess),
    )


def _broker_addresses(option: str, text: str) -> tuple[tuple[str, str], ...]:
    found = values.json_object(option, text)
    try:
        AddressOverrides(found)
    except (TypeError, MessageRejected):
        raise OptionError(
            option,
            "needed where brokers are reached, by name or by the address that name servers give, "
            f'as {{"broker-a": "localhost:10911"}}, found {text}',
        ) from None
    return tuple(sorted(found.items()))


def _credentials(options: OptionReader) -> Credentials | None:
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    if (access_key is None) != (secret_key is None):
        given, missing = ("accessKey", "secretKey") if access_key else ("secretKey", "accessKey")
        raise OptionError(missing, f"it is needed as well as {given}")
    token = options.text("securityToken")
    if access_key is None or secret_key is None:
        if token is not None:
            raise OptionError("accessKey", "it is needed as well as securityToken")
        return None
    return Credentials(access_key, secret_key, token)


def _tls(options: OptionReader) -> TlsSettings | None:
    if not options["tls"]:
        for name in _TLS_OPTIONS.values():
            if options.text(name) is not None:
                raise OptionError(
                    name, "it has no effect without tls=true: set that, or leave this out"
                )
        return None
    from rmq_spark.client.transport.tls.client import ssl_context  # noqa: PLC0415  # brings OpenSSL
    from rmq_spark.client.transport.tls.settings import TlsSettings  # noqa: PLC0415

    texts = {
        setting: options.text(name) for setting, name in _TLS_OPTIONS.items() if setting != "verify"
    }
    try:
        settings = TlsSettings.of_files(**texts, verify=options["tlsVerify"])
        ssl_context(settings)  # raises the errors that a client would raise
    except TlsRejected as error:
        raise OptionError(_TLS_OPTIONS[error.setting], error.problem) from None
    return settings
