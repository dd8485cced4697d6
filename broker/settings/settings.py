"""Settings files: reads settings under RocketMQ's names from `conf/broker.conf` and arguments.

A file consists of ``key=value`` lines; ``#`` begins a comment. Arguments of the same form override
the file. A key that is not in `KEYS` is refused, with the nearest known key as a suggestion; so is
a value that cannot be parsed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmq_spark.errors import RocketPollError, nearest_name

from ..common.setting import DIRECTORY, HIDDEN, SETTING, Setting
from ..filter.filter_limits import FilterLimits
from ..longpolling.hold_limits import HoldLimits
from ..store.config import BrokerRole, StoreConfig
from .access import AccessConfig
from .config import BrokerConfig, ServerLimits, TlsConfig
from .pop import PopConfig

# ---- Keys: every setting with its place in `BrokerConfig` and its description, in the order of
# conf/broker.conf.

SECTIONS: Final[Mapping[str, type[Any]]] = {
    "": BrokerConfig,
    "tls": TlsConfig,
    "access": AccessConfig,
    "holds": HoldLimits,
    "filters": FilterLimits,
    "pop": PopConfig,
    "server": ServerLimits,
    "store": StoreConfig,
}
"""The classes of settings by their fields in `BrokerConfig`, which itself has the empty name."""


class SettingKey(NamedTuple):
    """The description of one setting, and where its value is kept."""

    section: str  # one of SECTIONS
    name: str
    setting: Setting


def _keys() -> Iterator[tuple[str, SettingKey]]:
    for section, kind in SECTIONS.items():
        for each in fields(kind):
            if SETTING in each.metadata:
                setting: Setting = each.metadata[SETTING]
                yield setting.key, SettingKey(section, each.name, setting)


KEYS: Final[Mapping[str, SettingKey]] = dict(_keys())


# ---- RocketMQ's other settings, for users who bring its broker.conf.

_NO_CLASSES: Final = (
    "RocketMQ loads a class with it, and this broker has one way to authenticate and authorize, "
    "which is that of RocketMQ's own classes: remove it"
)
_NO_EXEMPTIONS: Final = (
    "RocketMQ exempts requests from its checks with it, and this broker checks every request: "
    "remove it"
)
_NO_CACHE: Final = (
    "RocketMQ keeps users and decisions in caches with it, and this broker has all users in "
    "memory: remove it"
)
_SINGLE_DIRECTORY: Final = (
    "RocketMQ keeps some files in another directory with it, and this broker keeps all "
    "files below one: set storePathRootDir"
)
_NO_LIGHT_QUEUES: Final = (
    "RocketMQ serves light queues (of MQTT and lite topics) with it, and this broker does not: "
    "remove it, and use RocketMQ for these"
)
_NO_SLAVES: Final = (
    "RocketMQ configures masters and slaves with it, and this broker has none: remove it"
)
_NO_REPLICATION: Final = (
    "RocketMQ replicates the log among brokers with it, and this broker does not: remove it, or "
    "use RocketMQ where messages have to be on several machines"
)
_NO_THREAD_POOLS: Final = (
    "RocketMQ sizes its threads and their queues with it, and this broker serves all clients from "
    "one event loop: remove it"
)
_NO_BUFFERS: Final = (
    "RocketMQ tunes its memory with it, and this broker leaves caching to the system: remove it"
)
_NO_FILTER_FILES: Final = (
    "RocketMQ keeps filters of SQL92 in additional files with it, and this broker filters when it "
    "reads: remove it"
)
_METRICS: Final = (
    "RocketMQ configures its metrics with it, which this broker serves at metricsHost "
    "and metricsPort: set metricsPort=5557"
)

_CLIENT_TLS: Final = (
    "it is for RocketMQ's clients, and the broker is none: remove it, and set it in the clients"
)
_OPENSSL_DEFAULTS: Final = (
    "this broker speaks TLS 1.2 and 1.3 with OpenSSL's own choice of ciphers: remove it"
)

UNSUPPORTED: Final[Mapping[str, str]] = {
    "tls.enable": _CLIENT_TLS,
    "tls.client.authServer": _CLIENT_TLS,
    "tls.client.certPath": _CLIENT_TLS,
    "tls.client.keyPassword": _CLIENT_TLS,
    "tls.client.keyPath": _CLIENT_TLS,
    "tls.client.trustCertPath": _CLIENT_TLS,
    "tls.ciphers": _OPENSSL_DEFAULTS,
    "tls.protocols": _OPENSSL_DEFAULTS,
    "tls.config.file": (
        "RocketMQ reads its TLS settings from that file: put its lines that begin with tls.server "
        "into this one"
    ),
    "tls.test.mode.enable": (
        "RocketMQ makes itself a certificate with it, and this broker does not: remove it, and set "
        "tls.server.certPath and tls.server.keyPath; for tests, EmbeddedBroker(tls=True) has one"
    ),
    "authenticationProvider": _NO_CLASSES,
    "authenticationMetadataProvider": _NO_CLASSES,
    "authenticationStrategy": _NO_CLASSES,
    "authorizationProvider": _NO_CLASSES,
    "authorizationMetadataProvider": _NO_CLASSES,
    "authorizationStrategy": _NO_CLASSES,
    "authenticationWhitelist": _NO_EXEMPTIONS,
    "authorizationWhitelist": _NO_EXEMPTIONS,
    "innerClientAuthenticationCredentials": (
        "RocketMQ's brokers sign in to each other with it, and this broker is no client of others: "
        "remove it; if other programs sign in as that user, create it"
    ),
    "migrateAuthFromV1Enabled": (
        "RocketMQ copies plain_acl.yml with it, and this broker uses that file as it is: remove "
        "it, and set aclEnable=true instead of authenticationEnabled=true"
    ),
    "authConfigPath": (
        "RocketMQ keeps users in another directory with it, and this broker has config/users.json "
        "below storePathRootDir: remove it"
    ),
    "userCacheMaxNum": _NO_CACHE,
    "userCacheExpiredSecond": _NO_CACHE,
    "userCacheRefreshSecond": _NO_CACHE,
    "aclCacheMaxNum": _NO_CACHE,
    "aclCacheExpiredSecond": _NO_CACHE,
    "aclCacheRefreshSecond": _NO_CACHE,
    "statefulAuthenticationCacheMaxNum": _NO_CACHE,
    "statefulAuthenticationCacheExpiredSecond": _NO_CACHE,
    "statefulAuthorizationCacheMaxNum": _NO_CACHE,
    "statefulAuthorizationCacheExpiredSecond": _NO_CACHE,
    "enableLmq": _NO_LIGHT_QUEUES,
    "enableMultiDispatch": _NO_LIGHT_QUEUES,
    "enableLiteEventMode": _NO_LIGHT_QUEUES,
    "enableCompaction": (
        "RocketMQ compacts topics by key with it, and this broker keeps every message until it "
        "expires: remove it"
    ),
    "priorityOrderAsc": (
        "RocketMQ delivers messages by priority with it, and this broker in the order in which "
        "they were stored: remove it"
    ),
    "storeType": (
        "RocketMQ chooses between files and RocksDB with it, and this broker has RocketMQ's files: "
        "remove it"
    ),
    "brokerId": _NO_SLAVES,
    "brokerIP2": _NO_SLAVES,
    "haListenPort": _NO_SLAVES,
    "haMasterAddress": _NO_SLAVES,
    "enableDLegerCommitLog": _NO_REPLICATION,
    "dLegerGroup": _NO_REPLICATION,
    "dLegerPeers": _NO_REPLICATION,
    "dLegerSelfId": _NO_REPLICATION,
    "enableControllerMode": _NO_REPLICATION,
    "controllerAddr": _NO_REPLICATION,
    **dict.fromkeys(
        (
            "allAckInSyncStateSet",
            "enableSlaveActingMaster",
            "enableRemoteEscape",
            "haHousekeepingInterval",
            "haMaxGapNotInSync",
            "haSendHeartbeatInterval",
            "haSlaveFallbehindMax",
            "haTransferBatchSize",
            "inSyncReplicas",
            "minInSyncReplicas",
            "offsetCheckInSlave",
            "skipPreOnline",
            "slaveReadEnable",
            "slaveTimeout",
            "totalReplicas",
        ),
        _NO_SLAVES,
    ),
    **dict.fromkeys(
        (
            "adminBrokerThreadPoolNums",
            "brokerFastFailureEnable",
            "clientManageThreadPoolNums",
            "clientManagerThreadPoolQueueCapacity",
            "consumerManageThreadPoolNums",
            "consumerManagerThreadPoolQueueCapacity",
            "endTransactionPoolQueueCapacity",
            "endTransactionThreadPoolNums",
            "heartbeatThreadPoolNums",
            "heartbeatThreadPoolQueueCapacity",
            "processReplyMessageThreadPoolNums",
            "pullMessageThreadPoolNums",
            "pullThreadPoolQueueCapacity",
            "queryMessageThreadPoolNums",
            "queryThreadPoolQueueCapacity",
            "replyThreadPoolQueueCapacity",
            "sendMessageThreadPoolNums",
            "serverCallbackExecutorThreads",
            "serverSelectorThreads",
            "serverWorkerThreads",
            "useEpollNativeSelector",
            "useReentrantLockWhenPutMessage",
            "waitTimeMillsInHeartbeatQueue",
            "waitTimeMillsInPullQueue",
            "waitTimeMillsInSendQueue",
            "waitTimeMillsInTransactionQueue",
        ),
        _NO_THREAD_POOLS,
    ),
    **dict.fromkeys(
        (
            "accessMessageInMemoryMaxRatio",
            "fastFailIfNoBufferInStorePool",
            "serverPooledByteBufAllocatorEnable",
            "transferMsgByHeap",
            "transientStorePoolEnable",
            "transientStorePoolSize",
            "warmMapedFileEnable",
        ),
        _NO_BUFFERS,
    ),
    "enableCalcFilterBitMap": _NO_FILTER_FILES,
    "enableConsumeQueueExt": _NO_FILTER_FILES,
    "mappedFileSizeConsumeQueueExt": _NO_FILTER_FILES,
    "messageStorePlugIn": (
        "RocketMQ loads another store with it, and this broker has one: remove it"
    ),
    "traceTopicEnable": (
        "RocketMQ creates its topic of traces with it, and this broker always has it: remove it"
    ),
    "notifyConsumerIdsChangedEnable": (
        "RocketMQ stops notifying groups of new members with it, and this broker always notifies "
        "them: remove it"
    ),
    "storePathCommitLog": _SINGLE_DIRECTORY,
    "storePathConsumeQueue": _SINGLE_DIRECTORY,
    "storePathIndex": _SINGLE_DIRECTORY,
    "metricsExporterType": _METRICS,
    "metricsPromExporterPort": _METRICS,
    "metricsPromExporterHost": _METRICS,
    "queues": (
        "topics that their first message creates have defaultTopicQueueNums= queues; "
        "create_topic(name, queues=2) sets the number for one topic"
    ),
}


class ConfigError(RocketPollError, page="troubleshooting.md#the-broker-and-its-store"):
    """A setting is unknown, its value cannot be parsed, or settings contradict each other."""

    __module__ = "rocketpoll"  # from which programs import it


DEFAULT_STORE: Final = "~/store"


def load_config(path: Path | None = None, overrides: Iterable[str] = ()) -> BrokerConfig:
    """Return the configuration in a file, with ``key=value`` overrides applied.

    Args:
        path: A file of ``key=value`` lines such as `conf/broker.conf`; None for the defaults.
        overrides: ``key=value`` texts, which take precedence over the file.

    Raises:
        ConfigError: The file cannot be read, or settings are wrong. The message names all faults,
            not only the first.
    """
    values: dict[str, str] = {}
    faults: list[str] = []
    sources = [(f"argument {_shown(text)!r}", text) for text in overrides]
    if path is not None:
        try:
            lines = path.read_text(
                encoding="utf-8-sig"
            ).splitlines()  # editors may add a byte order mark
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"{path} cannot be read: {why}. Check the path") from error
        sources = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1)] + sources
    for source, line in sources:
        text = line.strip()
        if text and not text.startswith("#"):
            fault = _parse(values, text)
            if fault:
                faults.append(f"{source}: {fault}")
    if faults:
        raise ConfigError("; ".join(faults))
    return config_of(values)


def config_of(settings: Mapping[str, str], arguments: Iterable[str] = ()) -> BrokerConfig:
    """Return the configuration with the given settings, and defaults for all others.

    Args:
        settings: Texts of values by key, such as ``{"listenPort": "9877"}``.
        arguments: The caller's own arguments; an unknown key may be a misspelling of one.
    """
    fields: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, text in settings.items():
        fault = _fault_of(name, text, arguments)
        if fault:
            raise ConfigError(fault)
        key = KEYS[name]
        fields[key.section][key.name] = key.setting.value_type.parse(text)
    if "storePathRootDir" not in settings:
        fields["store"]["store_path_root_dir"] = _default_store()
    sections = {section: kind(**fields[section]) for section, kind in SECTIONS.items() if section}
    config = BrokerConfig(**sections, **fields[""])
    _check(config)
    return config


def _default_store() -> Path:
    try:
        return DIRECTORY.parse(DEFAULT_STORE)
    except ValueError:
        raise ConfigError(
            f"storePathRootDir is {DEFAULT_STORE} by default, and this user has no home "
            "directory: set storePathRootDir=/some/directory"
        ) from None


def settings_of(config: BrokerConfig) -> dict[str, str]:
    """Return all settings of a configuration by key, as in a file; secrets are hidden."""
    return {name: key.setting.value_type.to_text(_value(config, key)) for name, key in KEYS.items()}


def _value(config: BrokerConfig, key: SettingKey) -> object:
    value: object = getattr(getattr(config, key.section) if key.section else config, key.name)
    return value


def _parse(values: dict[str, str], text: str) -> str | None:
    name, equals, value = text.partition("=")
    if not equals:
        return f"needed key=value, for example listenPort=9876, found {text!r}"
    name, value = name.strip(), value.strip()
    values[name] = value
    return _fault_of(name, value)


def _fault_of(name: str, value: str, arguments: Iterable[str] = ()) -> str | None:
    key = KEYS.get(name)
    if key is None and name in UNSUPPORTED:
        return f"there is no setting {name!r}: {UNSUPPORTED[name]}"
    if key is None:
        nearest = nearest_name(name, (*KEYS, *arguments))
        return f"there is no setting {name!r}" + (
            f"; did you mean {nearest}?" if nearest else ". Remove it"
        )
    try:
        key.setting.value_type.parse(value)
    except ValueError as error:
        return f"{name} must be {error}" + (
            "" if key.setting.value_type.is_secret else f", not {value!r}"
        )
    return None


def _shown(text: str) -> str:
    """Return an argument, without its value if that is secret."""
    name, equals, _ = text.partition("=")
    key = KEYS.get(name.strip())
    is_secret = key is not None and key.setting.value_type.is_secret
    return f"{name}{equals}{HIDDEN}" if is_secret else text


def _check(config: BrokerConfig) -> None:
    faults = []
    is_local = ipaddress.ip_address(config.bind_address).is_loopback
    if not (is_local or config.access.is_enabled or config.allow_remote_without_authentication):
        faults.append(
            f"bindAddress={config.bind_address} accepts other machines, without "
            "authentication: every client that reaches it can read, write and delete. Set "
            "authenticationEnabled=true, or if that is intended, "
            "allowRemoteWithoutAuthentication=true"
        )
    if config.namesrv_addr:
        faults += _registration_faults(config)
    if config.listen_port and config.listen_port == config.metrics_port:
        faults.append(
            f"listenPort={config.listen_port} and metricsPort={config.metrics_port} are "
            "the same port: choose another one for metrics"
        )
    faults += config.tls.faults()
    faults += config.access.faults()
    holds = config.holds
    if holds.suspend_timeout_min_ms > holds.suspend_timeout_max_ms:
        faults.append(
            f"suspendTimeoutMillsMin={holds.suspend_timeout_min_ms} is over "
            f"suspendTimeoutMillsMax={holds.suspend_timeout_max_ms}"
        )
    if config.store.max_message_size > config.store.mapped_file_size_commit_log:
        faults.append(
            f"maxMessageSize={config.store.max_message_size} does not fit into "
            f"mappedFileSizeCommitLog={config.store.mapped_file_size_commit_log}: a message lies "
            "in one file of the log. Lower maxMessageSize"
        )
    if config.store.max_message_size > config.server.frame_bytes_max:
        faults.append(
            f"maxFrameBytes={config.server.frame_bytes_max} is below "
            f"maxMessageSize={config.store.max_message_size}: a client that sends such a "
            "message would be disconnected"
        )
    if faults:
        raise ConfigError("; ".join(faults))


def _registration_faults(config: BrokerConfig) -> list[str]:
    faults = []
    if not config.broker_ip1 and ipaddress.ip_address(config.bind_address).is_unspecified:
        faults.append(
            f"namesrvAddr needs an address to register, and bindAddress={config.bind_address} is "
            "none: set brokerIP1 to the address at which clients reach this broker"
        )
    if config.store.broker_role is BrokerRole.SLAVE:
        faults.append(
            "namesrvAddr registers the broker as a master, and brokerRole=SLAVE takes no messages: "
            "remove one of them"
        )
    own = {"localhost", "127.0.0.1", "[::1]", config.bind_address, config.broker_ip1}
    for each in config.namesrv_addr:
        host, _, port = each.rpartition(":")
        if host in own and int(port) == config.listen_port:
            faults.append(
                f"namesrvAddr={each} is this broker itself: name RocketMQ's name servers, or "
                "remove it, because a broker is its own name server without it"
            )
    return faults


# ---- Reload: which settings take effect in a running broker.

RELOADABLE: Final = frozenset(name for name, key in KEYS.items() if key.setting.is_reloadable)
"""The settings that a running broker can change."""


class Reload(NamedTuple):
    """The changes of a new configuration.

    Attributes:
        config: The old configuration with the reloadable settings of the new one.
        reloaded: The settings that have changed in ``config``, as ``key=value``.
        need_restart: The changed settings that need a restart, as ``key=value``.
    """

    config: BrokerConfig
    reloaded: tuple[str, ...]
    need_restart: tuple[str, ...]


def plan_reload(old: BrokerConfig, new: BrokerConfig) -> Reload:
    """Return which changes of a configuration a running broker can apply."""
    after = settings_of(new)
    changed = [name for name, key in KEYS.items() if _value(old, key) != _value(new, key)]
    reloadable = [key for key in changed if key in RELOADABLE]
    config = old
    for section in SECTIONS:
        names = [KEYS[key].name for key in reloadable if KEYS[key].section == section]
        if not names:
            continue
        source = getattr(new, section) if section else new
        values = {name: getattr(source, name) for name in names}
        if section:
            config = replace(config, **{section: replace(getattr(config, section), **values)})
        else:
            config = replace(config, **values)
    return Reload(
        config,
        tuple(f"{key}={after[key]}" for key in reloadable),
        tuple(f"{key}={after[key]}" for key in changed if key not in RELOADABLE),
    )
