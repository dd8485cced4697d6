"""Both kinds of broker for tests with Java clients: a real RocketMQ, and ours.

Both are processes with the same settings, under RocketMQ's names, and have the same interface: the
addresses of name server and broker, and methods to stop, kill and start the broker. All other
differences between them stay in this file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import pytest
from support.rocketmq.java_programs import ROOT, JavaError
from support.rocketmq.real_broker import CLUSTER, RocketMQ, free_broker_port, write_settings
from support.suite.selection import PEERS

from rocketpoll.broker.store.config import FlushDiskType, StoreConfig

NAME = "broker-a"
TOPIC_OF_ALL = "TBW102"
"""The topic that a broker creates at its start if it creates topics on the first send."""

DELAYS_S = (1, 1, 1, 1, 2, *[3600] * 13)
"""The delay levels. Retries begin with the third, which is one second."""

WAIT_SECONDS_MAX = 30
START_SECONDS_MAX = 180
"""Seconds for a RocketMQ to start: two JVMs, on a machine that may be busy."""

POLL_SECONDS = 0.02
POLLS_PER_REMINDER = 25

Found = TypeVar("Found")


def wait_until(
    what: str, condition: Callable[[], Found], seconds_max: float = WAIT_SECONDS_MAX
) -> Found:
    """Poll until the result is true."""
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds_max
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {seconds_max} s there is still not: {what}"
        time.sleep(POLL_SECONDS)
    return found


class Clients(Protocol):
    """A client that reports whether it knows the broker: see `java_clients`."""

    def ask(self, what: str, **fields: Any) -> Any:
        """Return the response of the Java program."""


class RunningBroker(Protocol):
    """The interface of a broker process on this machine."""

    version: str
    name_server: str
    address: str
    root: Path

    def start(self) -> None:
        """Start the broker again, on the same directory and port, without waiting until it is
        ready."""

    def remind(self, clients: Clients) -> None:
        """Make the broker register again; called when clients have not found it for long."""

    def stop(self) -> None:
        """Stop the broker cleanly, and check its exit."""

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""

    def close(self) -> None:
        """End all remaining processes."""


def settings(flush: FlushDiskType) -> dict[str, object]:
    """Return the settings that both kinds get."""
    return {
        "flushDiskType": flush.value,
        "autoCreateTopicEnable": "true",
        "autoCreateSubscriptionGroup": "true",
        "defaultTopicQueueNums": 8,
        "enablePropertyFilter": "true",
        "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_S),
        # RocketMQ 5 records the end of a transaction up to three seconds late, and checks it
        # meanwhile
        "transactionTimeOut": 4_000,
        "transactionCheckInterval": 1_000,
    }


def store_config(root: Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=root,
        mapped_file_size_commit_log=32 << 20,
        mapped_file_size_consume_queue=20 * 20_000,
        max_hash_slot_num=10_000,
        max_index_num=40_000,
    )


class RocketMQBroker:
    """A real RocketMQ broker with its name server."""

    def __init__(
        self,
        version: str,
        directory: Path,
        flush: FlushDiskType,
        more: Mapping[str, object] = MappingProxyType({}),
        java_options: Sequence[str] = (),
    ) -> None:
        self.version = version
        self._more = more
        self.root = directory / "store"
        self._port = free_broker_port()
        self._flush = flush
        self._rocketmq = RocketMQ(version, directory, java_options)
        self.name_server = self._rocketmq.address
        self.address = f"127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        more = {
            **settings(self._flush),
            "timerWheelEnable": "true",  # 5.5 cannot delete a topic without it
            **self._more,
        }
        self._process = self._rocketmq.start_broker(NAME, self._port, store_config(self.root), more)

    def remind(self, clients: Clients) -> None:
        self._process.check_is_running()
        clients.ask("admin remind", address=self.address)

    def stop(self) -> None:
        __tracebackhide__ = True
        self._process.check_is_running()
        self._process.stop()
        assert not (self.root / "abort").exists(), "the broker has not stopped in order"

    def kill(self) -> None:
        self._process.check_is_running()
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._rocketmq.kill()


class RocketPollBroker:
    """A broker of ours, which is its own name server."""

    def __init__(
        self,
        version: str,
        directory: Path,
        flush: FlushDiskType,
        name: str = NAME,
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.version = version
        self.root = directory / "store"
        self._name = name
        self._port = free_broker_port()
        self.address = self.name_server = f"127.0.0.1:{self._port}"
        self._log = directory / "broker.log"
        self._settings = write_settings(
            directory / "broker.conf", {**self._all_settings(flush), **more}
        )
        self.start()

    def _all_settings(self, flush: FlushDiskType) -> Mapping[str, object]:
        config = store_config(self.root)
        return {
            "brokerClusterName": CLUSTER,
            "brokerName": self._name,
            "brokerIP1": "127.0.0.1",
            "listenPort": self._port,
            "storePathRootDir": config.store_path_root_dir,
            "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num,
            "maxIndexNum": config.max_index_num,
            **settings(flush),
        }

    def start(self) -> None:
        said_before = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rocketpoll.broker", "-c", str(self._settings)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

        def listens() -> bool:
            self._check_is_running()
            return f"listens on {self.address}".encode() in self._log.read_bytes()[said_before:]

        try:
            wait_until(f"a broker that listens on {self.address}", listens)
        except BaseException:
            self.close()
            raise

    def _check_is_running(self) -> None:
        if self._process.poll() is not None:
            said = self._log.read_text(encoding="utf-8", errors="replace")
            raise AssertionError(
                f"the broker has ended with {self._process.returncode}:\n{said[-4000:]}"
            )

    def remind(self, clients: Clients) -> None:  # noqa: ARG002  # it is its own name server
        self._check_is_running()

    def stop(self) -> None:
        __tracebackhide__ = True
        self._check_is_running()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(WAIT_SECONDS_MAX)
        assert not (self.root / "abort").exists(), "the broker has not stopped in order"

    def kill(self) -> None:
        self._check_is_running()
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


KINDS = {"rocketmq": RocketMQBroker, "rocketpoll": RocketPollBroker}


def every_kind(versions: Sequence[str]) -> list[Any]:
    """Return fixture parameters: each kind of broker, with the clients of each version."""
    kinds = KINDS if PEERS else ["rocketpoll"]
    return [
        pytest.param((kind, version), id=f"{kind}-{version}")
        for kind in kinds
        for version in versions
    ]


def started_broker(
    kind_and_version: tuple[str, str],
    directory: Path,
    flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
) -> Iterator[RunningBroker]:
    """Yield a started broker."""
    kind, version = kind_and_version
    broker = KINDS[kind](version, directory, flush)
    try:
        yield broker
    finally:
        broker.close()


def wait_until_known(broker: RunningBroker, clients: Clients) -> None:
    """Wait until clients find the broker."""
    polls = 0

    def is_known() -> bool:
        nonlocal polls
        polls += 1
        if polls % POLLS_PER_REMINDER == 0:
            broker.remind(clients)
        with suppress(JavaError):  # on a busy machine, a first request may time out
            return NAME in clients.ask("admin queues", topic=TOPIC_OF_ALL)
        return False

    wait_until("a name server that knows of the broker", is_known, START_SECONDS_MAX)
