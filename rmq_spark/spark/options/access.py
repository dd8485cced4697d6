"""BrokerAccess: the options by which source and sink reach brokers.

    options  >  the profile that option profile names  >  environment variables

The driver reads environment variables and all files, such as profiles and certificates; executors
get their content with the parsed options. Thus only the driver needs the files, `load()` reports
what is wrong with them, and Spark never sees the keys of a profile or variable: its plans,
checkpoints and logs have options as the user wrote them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmq_spark.client.api.name_servers import parse_addresses
from rmq_spark.client.errors import MessageRejected, ProfileRejected, TlsRejected
from rmq_spark.client.instance.instance import NAME_SERVER_VARIABLE
from rmq_spark.client.profiles import CREDENTIAL_VARIABLES, Profile, read_profile
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.client.transport.remoting_client import Credentials
from rmq_spark.spark.errors import OptionError, no_effect_without
from rmq_spark.spark.options import values
from rmq_spark.spark.options.table import OptionReader, of_option

if TYPE_CHECKING:
    from rmq_spark.client.transport.tls.settings import TlsSettings

_log = logging.getLogger(__name__)

_TLS_OPTIONS: Final = {
    "ca_file": "tlsCaFile",
    "cert_file": "tlsCertFile",
    "key_file": "tlsKeyFile",
    "key_password": "tlsKeyPassword",
    "verify": "tlsVerify",
    "server_name": "tlsServerName",
}
"""The TLS options, by the names of the client's settings."""

_PROFILE_OPTIONS: Final = {
    "namesrv": "namesrvAddr",
    "access-key": "accessKey",
    "secret-key": "secretKey",
    "max-body-bytes": "maxBodyBytes",
    "namespace": "namespace",
    "registry-user": "bodyRegistryUser",
    "registry-password": "bodyRegistryPassword",
    "tls": "tls",
    **{f"tls-{setting.replace('_', '-')}": name for setting, name in _TLS_OPTIONS.items()},
}
"""The option for each setting of a profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAccess:
    """The parsed options by which source and sink reach brokers."""

    name_servers: tuple[str, ...]
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    broker_addresses: tuple[tuple[str, str], ...] = ()
    """Pairs of a broker's name, or its address in routes, and the address to use instead."""
    request_timeout_ms: int = of_option("requestTimeoutMs")
    retry_timeout_ms: int = of_option("retryTimeoutMs")

    @property
    def is_secured(self) -> bool:
        """True if connections have TLS, or requests are signed."""
        return self.tls is not None or self.credentials is not None


def add_connection_defaults(options: OptionReader) -> None:
    """Add missing options from the profile that option ``profile`` names, and from variables."""
    name = options.text("profile")
    if name is not None:
        try:
            profile = read_profile(name)
        except ProfileRejected as error:
            raise OptionError("profile", error.problem) from None
        if profile.warning is not None:
            _log.warning("%s", profile.warning)
        options.add_defaults(_texts_of(profile, options.text("tls")), f"profile ({name})")
    for setting, variable in CREDENTIAL_VARIABLES.items():
        text, option = os.environ.get(variable), _PROFILE_OPTIONS[setting]
        if option == "tlsKeyPassword" and options.text("tlsCertFile") is None:
            continue  # it is the password of another cluster's key
        if text:
            options.add_defaults({option: text}, variable)


def _texts_of(profile: Profile, tls: str | None) -> dict[str, str]:
    texts = {
        option: str(value).lower() if isinstance(value, bool) else str(value)
        for setting, option in _PROFILE_OPTIONS.items()
        if (value := profile.settings.get(setting)) is not None
    }
    of_tls = _TLS_OPTIONS.values() & texts.keys()
    if of_tls:  # certificates have no effect without TLS
        texts.setdefault("tls", "true")
    is_without_tls = (tls or texts.get("tls", "")).strip().lower() == "false"
    return {name: text for name, text in texts.items() if not is_without_tls or name not in of_tls}


def access_of(options: OptionReader) -> BrokerAccess:
    """Parse the options by which brokers are reached."""
    text = options.text("namesrvAddr") or os.environ.get(NAME_SERVER_VARIABLE)
    try:
        addresses = parse_addresses(text)
    except MessageRejected as error:
        raise OptionError(
            options.written_name("namesrvAddr"), f"needed {error.needed}, found {error.found!r}"
        ) from None
    if not addresses:
        raise OptionError(
            "namesrvAddr",
            "it is required. Give the address of a name server, for example localhost:9876, here, "
            f"in a profile or in {NAME_SERVER_VARIABLE}{options.table_hint}",
        )
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise OptionError(
                options.written_name("namesrvAddr"),
                f"needed host:port, for example localhost:9876, found {address!r}",
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
            "needed the addresses of brokers, by broker name or by the address in the routes, for "
            f'example {{"broker-a": "localhost:10911"}}, found {text}',
        ) from None
    return tuple(sorted(found.items()))


def _credentials(options: OptionReader) -> Credentials | None:
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    if (access_key is None) != (secret_key is None):
        given, missing = ("accessKey", "secretKey") if access_key else ("secretKey", "accessKey")
        raise OptionError(missing, f"it is required together with {options.written_name(given)}")
    token = options.text("securityToken")
    if access_key is None or secret_key is None:
        if token is not None:
            raise OptionError("accessKey", "it is required together with securityToken")
        return None
    return Credentials(access_key, secret_key, token)


def _tls(options: OptionReader) -> TlsSettings | None:
    if not options["tls"]:
        for name in _TLS_OPTIONS.values():
            if options.text(name) is not None:
                raise no_effect_without(name, "tls=true")
        return None
    from rmq_spark.client.transport.tls.client import ssl_context  # noqa: PLC0415  # brings OpenSSL
    from rmq_spark.client.transport.tls.settings import TlsSettings  # noqa: PLC0415  # only with TLS

    texts = {
        setting: options.text(name) for setting, name in _TLS_OPTIONS.items() if setting != "verify"
    }
    try:
        settings = TlsSettings.of_files(**texts, verify=options["tlsVerify"])
        ssl_context(settings)  # raises the errors that a client would raise
    except TlsRejected as error:
        name = options.written_name(_TLS_OPTIONS[error.setting])
        raise OptionError(name, error.problem) from None
    return settings
