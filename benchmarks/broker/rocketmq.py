"""The RocketMQ side: a name server and a broker, always with asynchronous flush.

Both have Java's default compilers and collectors, the broker a heap of 2 GB, and RocketMQ's default
file sizes, threads and queues. Settings that differ from RocketMQ's defaults favour RocketMQ,
unless their comment says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker.java import JavaClasses
from benchmarks.broker.process import Process
from benchmarks.broker.running import (
    NAME,
    RunningBroker,
    free_port,
    is_listening,
    wait_for_route,
    wait_until,
    write_settings,
)

# What RocketMQ's own start scripts open to it on Java 17.
_OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
_NAME_SERVER_HEAP = ("-Xms512m", "-Xmx512m")
_BROKER_HEAP = ("-Xms2g", "-Xmx2g")

# 4.9 does not start without one.
_LOGBACK_NAMES = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")
_LOGBACK = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d %-5p %logger{0} - %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="console"/></root>
</configuration>
"""


@dataclass(frozen=True)
class RocketMQ:
    """The side of RocketMQ in one version."""

    classes: JavaClasses

    @property
    def name(self) -> str:
        """The name with the version."""
        return f"RocketMQ {self.classes.version}"

    def start(self, directory: Path, clients_max: int | None = None) -> RunningBroker:  # noqa: ARG002  # it has no such limits
        """Start a name server and a broker; return when the broker is registered."""
        name_server_port, port = free_port(), free_port()
        started = time.perf_counter()
        with ExitStack() as failing:
            name_server = self._start(
                directory / "namesrv",
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                _NAME_SERVER_HEAP,
                _name_server_settings(directory, name_server_port),
            )
            failing.callback(name_server.stop)
            wait_until(lambda: is_listening(name_server_port), [name_server])
            broker = self._start(
                directory / "broker",
                "org.apache.rocketmq.broker.BrokerStartup",
                _BROKER_HEAP,
                _broker_settings(directory / "store", name_server_port, port),
            )
            failing.callback(broker.stop)
            wait_for_route(name_server_port, [broker, name_server], reminded=port)
            seconds = time.perf_counter() - started
            failing.pop_all()
        return RunningBroker(name_server_port, port, [broker, name_server], seconds)

    def _start(
        self, home: Path, main_class: str, heap: tuple[str, ...], settings: Mapping[str, object]
    ) -> Process:
        configurations = home / "conf"
        configurations.mkdir(parents=True)
        for name in _LOGBACK_NAMES:
            (configurations / name).write_text(_LOGBACK, encoding="ascii")
        file = write_settings(home / "settings.conf", settings)
        options = (*heap, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *_OPENED)
        command = [*self.classes.command(main_class, *options), "-c", str(file)]
        return Process(command, home / f"{home.name}.log", home)


def _name_server_settings(directory: Path, port: int) -> Mapping[str, object]:
    return {
        "listenPort": port,
        "bindAddress": "127.0.0.1",  # which 4.9 does not know
        "kvConfigPath": directory / "kvConfig.json",
        "configStorePath": directory / "namesrv.properties",
    }


def _broker_settings(store: Path, name_server_port: int, port: int) -> Mapping[str, object]:
    return {
        "brokerName": NAME,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": f"127.0.0.1:{name_server_port}",
        "autoCreateTopicEnable": "true",
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
        "flushDiskType": "ASYNC_FLUSH",
        # A slow machine, or one whose disk is nearly full, is no reason to refuse messages here.
        "waitTimeMillsInSendQueue": 30_000,
        "osPageCacheBusyTimeOutMills": 30_000,
        "diskMaxUsedSpaceRatio": 95,
        # 5.5 alone: its default of ten seconds keeps a core busy for the first ten.
        "transactionMetricFlushInterval": 500,
        # 5.5 alone: delays that are no levels; what it needs for them takes seconds to start and
        # stop.
        "timerWheelEnable": "false",
    }
