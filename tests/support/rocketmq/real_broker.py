"""A real RocketMQ: name server, broker and client of one version, as processes on this machine.

They write only below the given directory, and use loopback and free ports. A start waits until the
process answers; a stop uses its process id.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import randrange
from types import MappingProxyType, TracebackType
from typing import Any

from support.rocketmq.java_programs import JavaProgram, java_program

from rocketpoll.broker.store.config import StoreConfig

READY_SECONDS_MAX = 180
STOP_SECONDS_MAX = 60
POLL_SECONDS = 0.02
CLUSTER = "peers"

OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
)
"""Options with which RocketMQ's start scripts open packages on Java 17."""

# 4.9 needs this file to start.
_LOGBACK_NAMES = ("logback_namesrv.xml", "logback_broker.xml", "logback_tools.xml")
_LOGBACK = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%d %-5p %logger{0} - %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="console"/></root>
</configuration>
"""


class Process:
    """One JVM with its own home directory."""

    def __init__(
        self,
        home: Path,
        program: JavaProgram,
        main_class: str,
        heap: str,
        arguments: Iterable[str],
        more_options: Iterable[str] = (),
        **pipes: Any,
    ) -> None:
        self.home = home
        configurations = home / "conf"
        configurations.mkdir(parents=True, exist_ok=True)
        for name in _LOGBACK_NAMES:
            (configurations / name).write_text(_LOGBACK, encoding="ascii")
        self.log = home / f"{main_class.rpartition('.')[2]}.log"
        options = (
            *(f"-Xmx{heap}", f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", *OPENED),
            *(
                f"-Drocketmq.client.logRoot={home}",
                "-Drocketmq.client.logLevel=ERROR",
                *more_options,
            ),
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*program.command(main_class, *options), *arguments],
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "cwd": home, **pipes},
            )

    def stop(self) -> None:
        """Stop the process with SIGTERM and wait for its end."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the process if it is running."""
        self.process.kill()
        self.process.wait()

    def check_is_running(self) -> None:
        """Raise an error with the reason if the process has ended."""
        if self.process.poll() is not None:
            said = self.log.read_text(encoding="utf-8", errors="replace")
            raise AssertionError(
                f"{self.log.stem} has ended with {self.process.returncode}:\n{said[-4000:]}"
            )


class RocketMQ:
    """A name server of one version, and brokers that register there."""

    def __init__(self, version: str, directory: Path, java_options: Iterable[str] = ()) -> None:
        self.version = version
        self._directory = directory
        self._java_options = tuple(java_options)
        self._program = java_program("peers", version)
        self._port = free_port()
        home = directory / "namesrv"
        home.mkdir()
        settings = write_settings(
            home / "namesrv.conf",
            {
                "listenPort": self._port,
                "bindAddress": "127.0.0.1",  # unknown to 4.9
                "kvConfigPath": home / "kvConfig.json",
                "configStorePath": home / "namesrv.properties",
            },
        )
        main_class = "org.apache.rocketmq.namesrv.NamesrvStartup"
        arguments = ["-c", str(settings)]
        self._process = Process(
            home, self._program, main_class, "256m", arguments, self._java_options
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.kill()
            raise

    def _wait_until_ready(self) -> None:
        __tracebackhide__ = True
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not is_listening(self._port):
            self._process.check_is_running()
            assert time.monotonic() < deadline, "the name server does not listen"
            time.sleep(POLL_SECONDS)

    @property
    def address(self) -> str:
        """Return the name server's address."""
        return f"127.0.0.1:{self._port}"

    def broker(
        self,
        name: str,
        port: int,
        config: StoreConfig,
        topic: str,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> Broker:
        """Start a broker on a store directory, and a client; return when the topic has a route."""
        process = self.start_broker(name, port, config, more)
        return Broker(self._program, process, self.address, name, port, config, topic)

    def start_broker(
        self,
        name: str,
        port: int,
        config: StoreConfig,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> Process:
        """Start only a broker, with more settings, without waiting."""
        home = self._directory / name
        home.mkdir(exist_ok=True)
        settings = {**_settings(self.address, name, port, config), **more}
        file = write_settings(home / "broker.conf", settings)
        main_class = "org.apache.rocketmq.broker.BrokerStartup"
        return Process(
            home, self._program, main_class, "768m", ["-c", str(file)], self._java_options
        )

    def kill(self) -> None:
        """Kill the name server. Each broker is stopped by the code that started it."""
        self._process.kill()


class Broker:
    """A running broker and a client. Leaving the context stops the broker cleanly, unless it was
    killed."""

    def __init__(
        self,
        program: JavaProgram,
        process: Process,
        name_server: str,
        name: str,
        port: int,
        config: StoreConfig,
        topic: str,
    ) -> None:
        __tracebackhide__ = True
        self.root = config.store_path_root_dir
        self._process = process
        with ExitStack() as started:
            started.callback(process.kill)
            self._client = Process(
                process.home,
                program,
                "rocketpoll.peers.Main",
                "256m",
                [name_server, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
            )
            started.callback(self._end_client)
            ready = self.ask("ready", topic=topic, address=f"127.0.0.1:{port}")
            self._process.check_is_running()
            assert ready, f"the name server does not learn of {topic}"
            started.pop_all()

    def ask(self, what: str, **fields: Any) -> Any:
        """Return the client's answer to a command of rocketpoll.peers.Main."""
        client = self._client.process
        client.stdin.write(json.dumps({"ask": what, **fields}) + "\n")
        client.stdin.flush()
        line = client.stdout.readline()
        if not line:
            client.wait(STOP_SECONDS_MAX)
            self._client.check_is_running()
        answer = json.loads(line)
        if "error" in answer:
            self._process.check_is_running()
            raise AssertionError(f"{what} {fields}: {answer['error']}")
        return answer["answer"]

    def stop(self) -> None:
        """Stop the broker, and check that its exit was clean."""
        __tracebackhide__ = True
        self._end_client()
        self._process.check_is_running()
        self._process.stop()
        assert self._process.process.returncode == 128 + signal.SIGTERM
        assert not (self.root / "abort").exists(), "the broker has not stopped in order"

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        self._end_client()
        self._process.check_is_running()
        self._process.kill()

    def _end_client(self) -> None:
        client = self._client.process
        client.stdin.close()
        client.stdout.close()
        self._client.kill()

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.process.poll() is not None:
            return
        if error is None:
            self.stop()
        else:
            self._end_client()
            self._process.kill()


def _settings(name_server: str, name: str, port: int, config: StoreConfig) -> Mapping[str, object]:
    return {
        "brokerClusterName": CLUSTER,
        "brokerName": name,
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": port,
        "namesrvAddr": name_server,
        "autoCreateTopicEnable": "false",
        "storePathRootDir": config.store_path_root_dir,
        "storePathCommitLog": config.store_path_root_dir / "commitlog",
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
        # Otherwise, a broker loses the keys of its last index file in a crash (the default).
        "messageIndexSafe": "true",
        # Never refuse messages because the machine is slow or its disk nearly full.
        "waitTimeMillsInSendQueue": 30_000,
        "osPageCacheBusyTimeOutMills": 30_000,
        "diskMaxUsedSpaceRatio": 95,
        # Only 5.5: the default of ten seconds keeps a core busy for the first ten seconds.
        "transactionMetricFlushInterval": 500,
        # Only 5.5: timers of arbitrary delay take seconds to start and stop.
        "timerWheelEnable": "false",
    }


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8"
    )
    return path


def free_port() -> int:
    """Return a free port."""
    return _free_port((0,))


def free_broker_port() -> int:
    """Return a free port whose neighbours are free: a broker also listens two ports below and one
    above."""
    return _free_port((0, -2, 1))


def _free_port(neighbours: Iterable[int]) -> int:
    """Return a free port below the ephemeral range, from which the system could assign it at any
    moment."""
    while True:
        port = randrange(15_000, 30_000)
        with ExitStack() as probes:
            try:
                for neighbour in neighbours:
                    probes.enter_context(socket.socket()).bind(("", port + neighbour))
            except OSError:
                continue
            return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
