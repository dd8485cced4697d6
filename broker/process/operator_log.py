"""Operator log: logs a broker's start, what recovery found, its limits, and its addresses.

Shortages and their ends are logged where they are detected.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from ipaddress import ip_address
from typing import Final

from rmq_spark import __version__
from rmq_spark.errors import format_bytes

from ..controller import BrokerController
from ..settings.config import BrokerConfig, ClientAuth, TlsMode
from ..store.config import BrokerRole
from ..store.results import StoreState

# ---- Formats of the log.

LOG_FORMATS: Final = ("text", "json")
_TEXT: Final = "%(asctime)s %(levelname)s %(module_name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """A record as text, with the last part of its logger's name."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text."""
        record.module_name = record.name.rpartition(".")[2]
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the log line without its newline."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        document = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    """Log to stderr, from INFO on, in one of `LOG_FORMATS`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


_log = logging.getLogger(__name__)
_MIB = 1 << 20


def log_start(config: BrokerConfig, controller: BrokerController) -> None:
    """Log the broker's version, the recovery and its duration, the limits, and the addresses.

    With common settings, no line has more than 100 columns.
    """
    _log.info(
        "rocketpoll %s, Python %s, %s",
        __version__,
        platform.python_version(),
        type(asyncio.get_running_loop()).__module__.partition(".")[0],
    )
    cluster = config.broker_cluster_name
    _log.info("broker %s of %s, process %d", config.broker_name, cluster, os.getpid())
    _log_store(config, controller)
    server = config.server
    _log.info(
        "limits: %s connections, %s of one address",
        f"{server.max_connections:,}",
        f"{server.max_connections_per_address:,}",
    )
    _log.info(
        "limits: %d MiB of requests, %d MiB of unread answers",
        server.in_flight_bytes_max // _MIB,
        server.unread_bytes_max // _MIB,
    )
    _log.info(
        "limits: %s topics, %s queues, %s groups",
        f"{config.max_topics:,}",
        f"{config.max_queues:,}",
        f"{config.max_groups:,}",
    )
    host = format_host(config.bind_address)
    addresses = [f"{host}:{controller.port}"]
    if controller.vip_port is not None:
        addresses.append(f"port {controller.vip_port} (VIP channel)")
    _log.info("access: %s", controller.tls.description())
    _log.info("access: %s", controller.access_setup.description)
    if controller.metrics_port is not None:
        metrics_host = format_host(config.metrics_host)
        _log.info("serves metrics at http://%s:%d/metrics", metrics_host, controller.metrics_port)
    _log.info("listens on %s", ", ".join(addresses))
    if not ip_address(config.bind_address).is_loopback and not controller.tls.is_enforced:
        _log.warning(
            "bindAddress=%s accepts other machines without TLS: the network can read and change "
            "messages. Set tls.server.mode=enforcing",
            config.bind_address,
        )
    if config.store.broker_role is BrokerRole.SLAVE:
        _log.warning(
            "brokerRole=SLAVE: the broker serves what %s has, refuses all sends, and "
            "copies from no master. Remove brokerRole to accept messages",
            config.store.store_path_root_dir,
        )
    tls = config.tls
    if tls.need_client_auth is ClientAuth.require and tls.mode is TlsMode.permissive:
        _log.warning(
            "tls.server.need.client.auth=require: clients without a certificate can connect "
            "without TLS. Set tls.server.mode=enforcing"
        )


def _describe_recovery(state: StoreState) -> str:
    if state.recovered_from_crash:
        return "after a crash"
    return "after a clean stop" if state.written_offset else "no messages yet"


def _log_store(config: BrokerConfig, controller: BrokerController) -> None:
    store, tables = controller.store, controller.tables
    state = store.state()
    _log.info(
        "store %s: opened in %.2f s, %s",
        config.store.store_path_root_dir,
        controller.opening_seconds,
        _describe_recovery(state),
    )
    _log.info(
        "store: commit log from %s to %s, %s holes",
        f"{state.min_offset:,}",
        f"{state.written_offset:,}",
        f"{len(state.holes):,}",
    )
    _log.info(
        "store: %s topics (%s with messages), %s groups, %s offsets",
        f"{len(tables.topics.topics):,}",
        f"{len(store.queue_nums()):,}",
        f"{len(tables.groups.groups):,}",
        f"{tables.offsets.count:,}",
    )
    disk, storage = controller.disk_usage(), config.store
    _log.info(
        "store: %s, keeps %d h, %s open files at most",
        storage.flush_disk_type.name,
        storage.file_reserved_time_hours,
        f"{storage.open_files_max:,}",
    )
    _log.info(
        "disk: %.0f %% of %s used",
        disk.ratio * 100,
        format_bytes(disk.total),
    )
    _log.info(
        "disk: early deletion from %.0f %%, no sends from %.0f %%",
        storage.disk_space_clean_forcibly_ratio * 100,
        storage.disk_space_warning_level_ratio * 100,
    )


def log_reload(reloaded: Iterable[str], need_restart: Iterable[str]) -> None:
    """Log which changed settings of the file are in effect now, and which need a restart."""
    changed, waiting = ", ".join(reloaded), ", ".join(need_restart)
    _log.info("settings reloaded: %s", changed or "no reloadable setting has changed")
    if waiting:
        _log.warning("changed settings that need a restart: %s", waiting)


def log_stopping(controller: BrokerController) -> None:
    """Log that the broker begins to stop, and the clients and pulls that get responses first."""
    _log.info(
        "stopping: %d clients get their responses first; %d pulls are held",
        controller.server.connections,
        controller.hold_service.hold_count,
    )


def log_stopped(seconds: float) -> None:
    """Log a clean stop, and how long it took."""
    _log.info("stopped cleanly in %.3f s", seconds)


def format_host(address: str) -> str:
    """Return an IP address in the form that a port can follow."""
    return f"[{address}]" if ":" in address else address
