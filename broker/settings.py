"""The settings under RocketMQ's own names, as `conf/broker.conf` and arguments give them.

``key=value`` lines, ``#`` begins a comment; arguments of the same form override the file. A key that is not
here is refused, with the nearest that is; so is a value that does not mean anything. No other module knows
the name of a key.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.config import BrokerConfig, FilterLimits, ServerLimits
from broker.longpolling.hold_limits import HoldLimits
from broker.store.config import BrokerRole, FlushDiskType, StoreConfig
from rmq_spark.errors import RocketPollError

_MIB = 1 << 20


class ConfigError(RocketPollError):
    """A setting that is unknown, or whose value means nothing."""


class _Key(NamedTuple):
    section: str  # "" or the name of a field of BrokerConfig
    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str]
    comment: str


def _int(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", text) or not low <= int(text) <= high:
            raise ValueError(
                f"a number from {low} to {high}" if high < 1 << 31 else f"a number from {low} on"
            )
        return int(text)

    return parse


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _percent(text: str) -> float:
    return _int(1, 100)(text) / 100


def _name(text: str) -> str:
    if not re.fullmatch(r"[%|a-zA-Z0-9_.-]{1,127}", text):
        raise ValueError("letters, digits and % | _ . - only")
    return text


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise ValueError("an IP address, as 127.0.0.1") from None


def _address_or_nothing(text: str) -> str:
    return _address(text) if text else ""


def _directory(text: str) -> Path:
    if not text:
        raise ValueError("a directory")
    return Path(text).expanduser()


def _flush_disk_type(text: str) -> FlushDiskType:
    if text not in FlushDiskType.__members__:
        raise ValueError("SYNC_FLUSH or ASYNC_FLUSH")
    return FlushDiskType[text]


def _broker_role(text: str) -> BrokerRole:
    if text not in BrokerRole.__members__:
        raise ValueError("ASYNC_MASTER or SLAVE; a SYNC_MASTER needs a cluster of RocketMQ's")
    return BrokerRole[text]


def _hours(text: str) -> tuple[int, ...]:
    hours = tuple(int(hour) for hour in text.split(";") if re.fullmatch(r"\d{1,2}", hour.strip()))
    if not hours or len(hours) != len(text.split(";")) or max(hours) > 23:
        raise ValueError("hours of the day, as 04 or 04;16")
    return hours


_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def _delay_levels(text: str) -> tuple[int, ...]:
    levels = [re.fullmatch(r"(\d{1,9})([smhd])", word) for word in text.split()]
    if not levels or None in levels:
        raise ValueError("delays separated by spaces, as 1s 5s 10m 2h 1d")
    return tuple(int(level[1]) * _UNITS_MS[level[2]] for level in levels if level)


def _show_delay_levels(levels: Iterable[int]) -> str:
    words = []
    for delay_ms in levels:
        unit = next(unit for unit in "dhms" if delay_ms % _UNITS_MS[unit] == 0)
        words.append(f"{delay_ms // _UNITS_MS[unit]}{unit}")
    return " ".join(words)


def _show_percent(ratio: float) -> str:
    return str(round(ratio * 100))


def _show_bool(value: bool) -> str:  # noqa: FBT001  # it is the value that is shown
    return str(value).lower()


_SIZE = _int(1)
_MS = _int(0, 1 << 40)
_COUNT = _int(1, 1 << 30)

KEYS: Final[Mapping[str, _Key]] = {
    # who it is and where it listens
    "brokerClusterName": _Key("", "broker_cluster_name", _name, str, "the cluster's name"),
    "brokerName": _Key("", "broker_name", _name, str, "the broker's name, part of every queue's"),
    "listenPort": _Key(
        "", "listen_port", _int(0, 65_535), str, "one port for all requests; 0: any that is free"
    ),
    "bindAddress": _Key("", "bind_address", _address, str, "the address to listen on"),
    "brokerIP1": _Key(
        "",
        "broker_ip1",
        _address_or_nothing,
        str,
        "the address told to clients; nothing: the one that they reached",
    ),
    "allowRemoteWithoutAuthentication": _Key(
        "",
        "allow_remote_without_authentication",
        _bool,
        _show_bool,
        "true: anybody who reaches a bindAddress beyond loopback may read, write and delete",
    ),
    "brokerPermission": _Key("", "broker_permission", _int(0, 6), str, "4 read + 2 write"),
    "brokerRole": _Key(
        "store", "broker_role", _broker_role, lambda role: role.value, "ASYNC_MASTER, or SLAVE: read only"
    ),
    "regionId": _Key("", "region_id", _name, str, "told to producers for their traces"),
    "traceOn": _Key("", "trace_on", _bool, _show_bool, "whether producers may trace"),
    # topics, groups, sends
    "autoCreateTopicEnable": _Key(
        "", "auto_create_topic_enable", _bool, _show_bool, "a send makes its topic"
    ),
    "autoCreateSubscriptionGroup": _Key(
        "", "auto_create_subscription_group", _bool, _show_bool, "a consumer makes its group"
    ),
    "defaultTopicQueueNums": _Key(
        "", "default_topic_queue_nums", _int(1, 1_024), str, "queues of such a topic, at most"
    ),
    "maxMessageSize": _Key("store", "max_message_size", _int(1, 16 * _MIB - 1), str, "bytes of one message"),
    "sendThreadPoolQueueCapacity": _Key(
        "", "send_queue_capacity", _COUNT, str, "sends that wait for the disk; more are refused as busy"
    ),
    "osPageCacheBusyTimeOutMills": _Key(
        "",
        "send_wait_max_ms",
        _MS,
        str,
        "when the disk makes sends wait longer, new ones are refused as busy",
    ),
    "syncFlushTimeout": _Key(
        "", "sync_flush_timeout_ms", _MS, str, "after this, a send is answered FLUSH_DISK_TIMEOUT"
    ),
    "messageDelayLevel": _Key(
        "store",
        "message_delay_level_ms",
        _delay_levels,
        _show_delay_levels,
        "the delays of levels 1, 2, 3 ...",
    ),
    # pulls
    "longPollingEnable": _Key(
        "holds",
        "long_polling_enable",
        _bool,
        _show_bool,
        "false: pulls wait for shortPollingTimeMills, nobody wakes them",
    ),
    "shortPollingTimeMills": _Key("holds", "short_polling_time_ms", _MS, str, "how long then"),
    "suspendTimeoutMillsMin": _Key(
        "holds", "suspend_timeout_min_ms", _MS, str, "a client that asks for less waits this"
    ),
    "suspendTimeoutMillsMax": _Key(
        "holds", "suspend_timeout_max_ms", _MS, str, "a client that asks for more waits this"
    ),
    "maxHoldsPerConnectionAndQueue": _Key(
        "holds", "holds_per_connection_and_queue", _COUNT, str, "more are answered at once"
    ),
    "maxHolds": _Key(
        "holds", "holds_max", _COUNT, str, "waiting pulls of all clients; more are answered at once"
    ),
    "maxTransferCountOnMessageInMemory": _Key("", "max_transfer_count", _COUNT, str, "messages of one pull"),
    "maxTransferBytesOnMessageInMemory": _Key("", "max_transfer_bytes", _SIZE, str, "their bytes"),
    "maxTransferBytesExtended": _Key(
        "",
        "max_transfer_bytes_extended",
        _int(1, 15 * _MIB),
        str,
        "the same for clients that take large pulls",
    ),
    "enablePropertyFilter": _Key(
        "filters", "enable_property_filter", _bool, _show_bool, "SQL92 subscriptions"
    ),
    "maxFilterExpressionBytes": _Key("filters", "expression_bytes_max", _COUNT, str, "the text of one"),
    "maxFilterDepth": _Key("filters", "depth_max", _int(1, 200), str, "how deep it may nest"),
    "maxFilterNodes": _Key("filters", "nodes_max", _COUNT, str, "how many parts it may have"),
    # connections
    "maxConnections": _Key("server", "max_connections", _COUNT, str, "clients"),
    "maxConnectionsPerAddress": _Key("server", "max_connections_per_address", _COUNT, str, "of one address"),
    "maxAcceptsPerSecond": _Key(
        "server", "max_accepts_per_second", _COUNT, str, "new clients; more are turned away"
    ),
    "maxFrameBytes": _Key("server", "frame_bytes_max", _int(1_024, 16 * _MIB), str, "one request"),
    "firstFrameTimeoutMills": _Key(
        "server", "first_frame_timeout_ms", _COUNT, str, "a client that says nothing is closed"
    ),
    "partialFrameTimeoutMills": _Key(
        "server", "partial_frame_timeout_ms", _COUNT, str, "so is one that does not finish a request"
    ),
    "serverChannelMaxIdleTimeMills": _Key(
        "server", "idle_timeout_ms", _COUNT, str, "and one that has nothing to do"
    ),
    "clientExpiredTimeoutMills": _Key(
        "", "client_expired_timeout_ms", _COUNT, str, "without a heartbeat a client leaves its groups"
    ),
    "maxWriteBufferBytes": _Key(
        "server",
        "write_buffer_bytes",
        _SIZE,
        str,
        "answers that a client has not read; beyond, nothing is read from it",
    ),
    "slowReaderTimeoutMills": _Key(
        "server", "slow_reader_timeout_ms", _COUNT, str, "after this it is closed"
    ),
    "maxInFlightBytes": _Key(
        "server",
        "in_flight_bytes_max",
        _SIZE,
        str,
        "half requests and unread answers of all; beyond, sends are busy",
    ),
    # the store
    "storePathRootDir": _Key("store", "store_path_root_dir", _directory, str, "where everything is kept"),
    "mappedFileSizeCommitLog": _Key(
        "store",
        "mapped_file_size_commit_log",
        _int(4_096),
        str,
        "bytes of a file; never change it for a store that exists",
    ),
    "mappedFileSizeConsumeQueue": _Key("store", "mapped_file_size_consume_queue", _int(20), str, "likewise"),
    "maxHashSlotNum": _Key("store", "max_hash_slot_num", _COUNT, str, "likewise, of the index"),
    "maxIndexNum": _Key("store", "max_index_num", _COUNT, str, "likewise"),
    "messageIndexEnable": _Key(
        "store", "message_index_enable", _bool, _show_bool, "whether messages are found by key"
    ),
    "flushDiskType": _Key(
        "store",
        "flush_disk_type",
        _flush_disk_type,
        lambda kind: kind.value,
        "SYNC_FLUSH: a message that is acknowledged is on the disk; ASYNC_FLUSH: will be",
    ),
    "flushIntervalCommitLog": _Key(
        "store", "flush_interval_commit_log_ms", _COUNT, str, "how soon, with ASYNC_FLUSH"
    ),
    "checkWholeLogBytes": _Key(
        "store",
        "check_whole_log_bytes",
        _int(0),
        str,
        "a log up to this size is checked whole at every start",
    ),
    "checkpointIntervalMills": _Key(
        "", "checkpoint_interval_ms", _COUNT, str, "how much a start after a crash has to redo"
    ),
    "flushConsumerOffsetInterval": _Key(
        "", "flush_consumer_offset_interval_ms", _COUNT, str, "offsets of groups"
    ),
    "flushDelayOffsetInterval": _Key(
        "", "flush_delay_offset_interval_ms", _COUNT, str, "offsets of delay levels"
    ),
    "fileReservedTime": _Key(
        "store", "file_reserved_time_hours", _COUNT, str, "hours that messages are kept"
    ),
    "deleteWhen": _Key(
        "store",
        "delete_when_hours",
        _hours,
        lambda hours: ";".join(f"{h:02d}" for h in hours),
        "in which hours older ones go",
    ),
    "cleanResourceInterval": _Key(
        "", "clean_resource_interval_ms", _COUNT, str, "how often that is looked at"
    ),
    "diskMaxUsedSpaceRatio": _Key(
        "store",
        "disk_max_used_space_ratio",
        _percent,
        _show_percent,
        "percent of the disk in use: old ones go at any hour",
    ),
    "diskSpaceCleanForciblyRatio": _Key(
        "store",
        "disk_space_clean_forcibly_ratio",
        _percent,
        _show_percent,
        "the oldest go, whatever their age",
    ),
    "diskSpaceWarningLevelRatio": _Key(
        "store", "disk_space_warning_level_ratio", _percent, _show_percent, "sends are refused"
    ),
}

DEFAULT_STORE: Final = "~/store"


def load_config(path: Path | None = None, overrides: Iterable[str] = ()) -> BrokerConfig:
    """The configuration in a file, changed by ``key=value`` texts.

    Raises:
        ConfigError: With everything that is wrong, not only the first.
    """
    values: dict[str, str] = {}
    faults: list[str] = []
    sources = [(f"argument {text!r}", text) for text in overrides]
    if path is not None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        sources = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1)] + sources
    for place, line in sources:
        text = line.strip()
        if text and not text.startswith("#"):
            fault = _take(values, text)
            if fault:
                faults.append(f"{place}: {fault}")
    if faults:
        raise ConfigError("; ".join(faults))
    return config_of(values)


def config_of(values: Mapping[str, str]) -> BrokerConfig:
    """The configuration of these keys and texts, with defaults for the others."""
    fields: dict[str, dict[str, Any]] = {"": {}, "store": {}, "server": {}, "holds": {}, "filters": {}}
    fields["store"]["store_path_root_dir"] = _directory(DEFAULT_STORE)
    for name, text in values.items():
        fault = _fault_of(name, text)
        if fault:
            raise ConfigError(fault)
        key = KEYS[name]
        fields[key.section][key.name] = key.parse(text)
    config = BrokerConfig(
        store=StoreConfig(**fields["store"]),
        server=ServerLimits(**fields["server"]),
        holds=HoldLimits(**fields["holds"]),
        filters=FilterLimits(**fields["filters"]),
        **fields[""],
    )
    _check(config)
    return config


def settings_of(config: BrokerConfig) -> dict[str, str]:
    """Every key with its value, as a file would say it."""
    return {
        name: key.show(getattr(getattr(config, key.section) if key.section else config, key.name))
        for name, key in KEYS.items()
    }


def _take(values: dict[str, str], text: str) -> str | None:
    name, equals, value = text.partition("=")
    if not equals:
        return f"needed key=value, found {text!r}"
    name, value = name.strip(), value.strip()
    values[name] = value
    return _fault_of(name, value)


def _fault_of(name: str, value: str) -> str | None:
    key = KEYS.get(name)
    if key is None:
        nearest = difflib.get_close_matches(name, KEYS, 1)
        return f"there is no setting {name!r}" + (f"; did you mean {nearest[0]}?" if nearest else "")
    try:
        key.parse(value)
    except ValueError as error:
        return f"{name} must be {error}, not {value!r}"
    return None


def _check(config: BrokerConfig) -> None:
    """What no key says alone."""
    faults = []
    if not ipaddress.ip_address(config.bind_address).is_loopback and not (
        config.allow_remote_without_authentication
    ):
        faults.append(
            f"bindAddress={config.bind_address} lets other machines in, and nobody is asked who they are: "
            "whoever reaches it may read, write and delete. If that is meant, say "
            "allowRemoteWithoutAuthentication=true"
        )
    if config.holds.suspend_timeout_min_ms > config.holds.suspend_timeout_max_ms:
        faults.append("suspendTimeoutMillsMin is over suspendTimeoutMillsMax")
    if config.store.max_message_size > config.store.mapped_file_size_commit_log:
        faults.append("maxMessageSize does not fit into mappedFileSizeCommitLog")
    if faults:
        raise ConfigError("; ".join(faults))
